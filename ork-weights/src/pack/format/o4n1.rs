//! The compact int4 blob: a header, a scale per channel, then the codes channel by channel.

use super::bytes::Cursor;
use crate::pack::error::{PackError, Result};

/// "1N4O" on disk.
const MAGIC: u32 = 0x4F34_4E31;
/// Bytes of the header.
pub(crate) const HEADER: usize = 20;

/// What the sixteen codes of a compact int4 weight stand for.
///
/// ```
/// use ork_weights::pack::Codebook;
///
/// assert_eq!(Codebook::Uniform.levels()[15], -1);
/// assert_eq!(Codebook::Nf4.levels()[15], 127);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codebook {
    /// The code itself, two's complement; packers write −7 to 7.
    Uniform,
    /// The levels of 4-bit NormalFloat, times 127.
    Nf4,
}

impl Codebook {
    /// The int8 value of each code.
    ///
    /// ```
    /// use ork_weights::pack::Codebook;
    ///
    /// // The nearest NF4 level to a value of 0.3, in 127ths.
    /// let levels = Codebook::Nf4.levels();
    /// let nearest = levels.iter().min_by_key(|level| (**level as i32 - 38).abs());
    /// assert_eq!(nearest, Some(&43));
    /// ```
    pub const fn levels(self) -> [i8; 16] {
        match self {
            Codebook::Uniform => [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1],
            Codebook::Nf4 => {
                [-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127]
            }
        }
    }

    /// The number in a blob's header.
    ///
    /// ```
    /// use ork_weights::pack::Codebook;
    ///
    /// assert_eq!((Codebook::Uniform.code(), Codebook::Nf4.code()), (0, 1));
    /// ```
    pub const fn code(self) -> u32 {
        match self {
            Codebook::Uniform => 0,
            Codebook::Nf4 => 1,
        }
    }
}

/// Bytes of the blob of a K × N weight.
pub(crate) fn bytes(k: u32, n: u32) -> u64 {
    HEADER as u64 + 4 * u64::from(n) + u64::from(k) * u64::from(n) / 2
}

/// The 20 bytes that begin a compact int4 blob; N scales (f32) and K·N/2 code bytes follow.
///
/// ```
/// use ork_weights::pack::{Codebook, o4n1_header};
///
/// let (k, n) = (64, 32);
/// let mut blob = o4n1_header(k, n, Codebook::Nf4).to_vec();
/// blob.extend([1.0f32; 32].iter().flat_map(|scale| scale.to_le_bytes()));
/// blob.extend(vec![0x77; (k * n / 2) as usize]); // level 7 is zero
/// assert_eq!(blob.len() as u32, 20 + 4 * n + k * n / 2);
/// ```
pub fn o4n1_header(k: u32, n: u32, codebook: Codebook) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    for (field, value) in out.chunks_exact_mut(4).zip([MAGIC, 0, k, n, codebook.code()]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    out
}

/// Checks `header`, the start of a blob of `blob` bytes, against the entry's K and N.
pub(crate) fn check(header: &[u8], blob: u64, name: &str, k: u32, n: u32) -> Result<Codebook> {
    let refuse = |field, found: u64, expected: u64| PackError::O4n1 {
        name: name.into(),
        field,
        found,
        expected,
    };
    if blob != bytes(k, n) || header.len() < HEADER {
        return Err(refuse("size", blob, bytes(k, n)));
    }
    let mut at = Cursor::new(header);
    // The packers' comments say version 1, their code writes 0.
    let fields = [("magic", MAGIC, MAGIC), ("version", 0, 1), ("K", k, k), ("N", n, n)];
    for (field, least, most) in fields {
        let found = at.u32().unwrap_or_default();
        if !(least..=most).contains(&found) {
            return Err(refuse(field, found.into(), most.into()));
        }
    }
    match at.u32() {
        Some(0) => Ok(Codebook::Uniform),
        Some(1) => Ok(Codebook::Nf4),
        other => Err(refuse("quantisation kind", other.unwrap_or_default().into(), 1)),
    }
}

/// The scales in a blob of `bytes` whose header fits the entry's K and N; `start` is the blob or so
/// much of it.
pub(crate) fn scales<'a>(
    start: &'a [u8],
    bytes: u64,
    name: &str,
    k: u32,
    n: u32,
) -> Result<&'a [u8]> {
    check(start, bytes, name, k, n)?;
    // `check` compared the size, so the scales are there.
    Ok(start.get(HEADER..HEADER + 4 * n as usize).unwrap_or_default())
}
