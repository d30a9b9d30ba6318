//! The footer, in its three sizes and two places of the magic.

use super::bytes::Cursor;
use crate::pack::error::{PackError, Result};

/// Ends every footer of every version; never changed.
pub(crate) const MAGIC: [u8; 8] = *b"ORKPK01\0";
/// The largest footer: what to read from the end of a file.
pub(crate) const MAX_FOOTER: usize = 48;
/// The smallest one.
const MIN_FOOTER: u64 = 24;

/// Where everything else is found from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) version: u32,
    pub(crate) bytes: u64,
    pub(crate) index: u64,
    pub(crate) entries: u32,
    /// Format token, version 3 and later.
    pub(crate) token: u32,
    /// Tier signature, version 5 and later.
    pub(crate) signature: u32,
    /// Offset and rows of the calibration block, version 7.
    pub(crate) calibration: Option<(u64, u32)>,
}

/// How the index of a version is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Bytes of an entry after its name.
    pub(crate) stride: usize,
    /// Whether offset and size of the metadata section come before the first entry.
    pub(crate) prefix: bool,
}

impl Form {
    /// The three forms that packers are known to have written, and two that experiments may have.
    pub(crate) const ENTRY_40: Form = Form { stride: 40, prefix: false };
    pub(crate) const ENTRY_48: Form = Form { stride: 48, prefix: false };
    pub(crate) const PREFIXED_56: Form = Form { stride: 56, prefix: true };
    const ENTRY_56: Form = Form { stride: 56, prefix: false };
    const PREFIXED_48: Form = Form { stride: 48, prefix: true };
}

impl Footer {
    /// Index forms to try, likeliest first. The numbers 6 to 8 were used for different experiments, so
    /// only the structure decides between them; the footer of 48 bytes came after those.
    pub(crate) fn forms(&self) -> &'static [Form] {
        match (self.version, self.bytes) {
            (1..=3, _) => &[Form::ENTRY_40],
            (4 | 5, _) => &[Form::ENTRY_48],
            (_, 48) => &[Form::PREFIXED_56],
            _ => &[Form::PREFIXED_56, Form::ENTRY_48, Form::ENTRY_56, Form::PREFIXED_48],
        }
    }

    /// Whether bytes behind the index may be calibrations, old ones included, which nothing lists.
    pub(crate) fn may_hold_calibrations(&self) -> bool {
        self.bytes == 48 && self.calibration.is_some()
    }

    /// The bytes of this footer.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_FOOTER);
        out.extend(self.index.to_le_bytes());
        out.extend(self.entries.to_le_bytes());
        out.extend(self.version.to_le_bytes());
        if self.version >= 3 {
            out.extend(self.token.to_le_bytes());
        }
        if self.version >= 5 {
            out.extend(self.signature.to_le_bytes());
        }
        if self.version >= 7 {
            let (offset, rows) = self.calibration.unwrap_or_default();
            out.extend(offset.to_le_bytes());
            out.extend(rows.to_le_bytes());
            out.extend([0; 4]);
        }
        out.extend(MAGIC);
        if matches!(self.version, 3 | 4) {
            out.extend([0; 4]);
        }
        out
    }
}

/// Every reading of the last bytes as a footer, most specific first.
///
/// `tail` is the end of the file, [`MAX_FOOTER`] bytes or the whole file if shorter. More than one
/// reading can be possible, since fields of one size may look like the version of another.
///
/// # Errors
/// [`PackError::TooShort`], [`PackError::NoMagic`]; [`PackError::Version`] when the magic is there and
/// no footer form has the version it would have.
pub(crate) fn candidates(tail: &[u8], file: u64) -> Result<Vec<Footer>> {
    if file < MIN_FOOTER {
        return Err(PackError::TooShort { bytes: file, needed: MIN_FOOTER });
    }
    let mut found = Vec::new();
    if tail.ends_with(&MAGIC) {
        for (bytes, versions) in [(48, 7..=7), (32, 5..=8), (24, 1..=2)] {
            found.extend(read(tail, bytes).filter(|f| versions.contains(&f.version)));
        }
    } else if tail.len() >= 32 && tail[tail.len() - 12..].starts_with(&MAGIC) {
        // 28 bytes of fields in a struct aligned to 8: four zero bytes follow the magic.
        found.extend(read(tail, 32).filter(|f| matches!(f.version, 3 | 4)));
    } else {
        return Err(PackError::NoMagic { bytes: file });
    }
    if found.is_empty() {
        let at = tail.len().saturating_sub(if tail.ends_with(&MAGIC) { 12 } else { 20 });
        let version = Cursor::new(&tail[at..]).u32().unwrap_or_default();
        return Err(PackError::Version { version });
    }
    Ok(found)
}

/// The last `bytes` of `tail` as a footer of that size; `None` when there are fewer.
fn read(tail: &[u8], bytes: usize) -> Option<Footer> {
    let mut at = Cursor::new(tail.get(tail.len().checked_sub(bytes)?..)?);
    let (index, entries, version) = (at.u64()?, at.u32()?, at.u32()?);
    let token = if bytes >= 32 { at.u32()? } else { 0 };
    let signature = if bytes >= 32 && version >= 5 { at.u32()? } else { 0 };
    let calibration = match bytes {
        48 => match (at.u64()?, at.u32()?) {
            (0, 0) => None,
            block => Some(block),
        },
        _ => None,
    };
    Some(Footer { version, bytes: bytes as u64, index, entries, token, signature, calibration })
}
