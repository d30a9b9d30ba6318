//! From the block types of GGUF, and the codes of other files, to f32.
//!
//! Each type is a run of blocks of [`TensorType::block_bytes`] bytes that stand for
//! [`TensorType::block_elements`] values. Values are computed in the order ggml's own conversion
//! uses, so they are equal to within one unit in the last place of an f32. Source of the layouts:
//! ggml's published block definitions; checked against values its Python package gives.
//!
//! ```
//! use ork_weights::dequant::{TensorType, dequantise};
//!
//! // One Q8_0 block: a scale of 0.5 as half float, then 32 codes.
//! let mut block = vec![0x00, 0x38];
//! block.extend((0..32u8).map(|i| i.wrapping_sub(16)));
//! let mut values = [0f32; 32];
//! dequantise(TensorType::Q8_0, &block, &mut values)?;
//! assert_eq!((values[0], values[17]), (-8.0, 0.5));
//! # Ok::<(), ork_weights::dequant::DequantError>(())
//! ```

mod bytes;
mod codes;
mod float;
mod four_bit;
mod grid;
mod k_quant;
mod legacy;
mod one_bit;
mod ternary;

pub(crate) use float::{half_to_f32, halves_to_f32};

use crate::simd::{Kernel, Machine, dispatch};

/// A type of GGUF tensor that can be turned into f32.
///
/// ```
/// use ork_weights::dequant::TensorType;
///
/// let kind = TensorType::Q6_K;
/// assert_eq!((kind.block_elements(), kind.block_bytes()), (256, 210));
/// assert_eq!(kind.to_string(), "Q6_K");
/// ```
#[allow(non_camel_case_types)] // the names the field knows
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TensorType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    BF16,
    /// 4 bits, one scale for 32.
    Q4_0,
    /// 4 bits, scale and minimum for 32.
    Q4_1,
    /// 5 bits, one scale for 32.
    Q5_0,
    /// 5 bits, scale and minimum for 32.
    Q5_1,
    /// 8 bits, one scale for 32.
    Q8_0,
    /// 2 bits, 4-bit scales and minima for 16.
    Q2_K,
    /// 3 bits, 6-bit scales for 16.
    Q3_K,
    /// 4 bits, 6-bit scales and minima for 32.
    Q4_K,
    /// 5 bits, 6-bit scales and minima for 32.
    Q5_K,
    /// 6 bits, 8-bit scales for 16.
    Q6_K,
    /// Codebook of 256 × 8, 2.06 bits a weight.
    IQ2_XXS,
    /// Codebook of 512 × 8, 2.31 bits.
    IQ2_XS,
    /// Codebook of 1024 × 8, 2.56 bits.
    IQ2_S,
    /// Codebook of 256 × 4, 3.06 bits.
    IQ3_XXS,
    /// Codebook of 512 × 4, 3.44 bits.
    IQ3_S,
    /// Ternary codebook of 2048 × 8, 1.56 bits.
    IQ1_S,
    /// The same codebook, finer scales, 1.75 bits.
    IQ1_M,
    /// 16 uneven levels, one scale for 32.
    IQ4_NL,
    /// 16 uneven levels, 6-bit scales for 32.
    IQ4_XS,
    /// Ternary, five values a byte.
    TQ1_0,
    /// Ternary, four values a byte.
    TQ2_0,
    /// OCP microscaling: E2M1 values, one E8M0 scale for 32.
    MXFP4,
    /// E2M1 values, one E4M3 scale for 16.
    NVFP4,
    /// Signs, one scale for 128.
    Q1_0,
    /// FP8 of 4 exponent bits, without infinities. In files of the hub, with scales beside it.
    F8_E4M3,
    /// Signed bytes. In files of the hub, with scales beside them.
    I8,
    /// E2M1 values, two a byte, the even one low. In files of the hub, with scales beside them.
    E2M1,
}

/// Stands for the number of a type that GGUF files do not have.
const NOT_IN_GGUF: u32 = u32::MAX;

/// Number in files, name, elements and bytes of a block.
const TYPES: [(TensorType, u32, &str, usize, usize); 30] = {
    use TensorType::*;
    [
        (F32, 0, "F32", 1, 4),
        (F16, 1, "F16", 1, 2),
        (BF16, 30, "BF16", 1, 2),
        (Q4_0, 2, "Q4_0", 32, 18),
        (Q4_1, 3, "Q4_1", 32, 20),
        (Q5_0, 6, "Q5_0", 32, 22),
        (Q5_1, 7, "Q5_1", 32, 24),
        (Q8_0, 8, "Q8_0", 32, 34),
        (Q2_K, 10, "Q2_K", 256, 84),
        (Q3_K, 11, "Q3_K", 256, 110),
        (Q4_K, 12, "Q4_K", 256, 144),
        (Q5_K, 13, "Q5_K", 256, 176),
        (Q6_K, 14, "Q6_K", 256, 210),
        (IQ2_XXS, 16, "IQ2_XXS", 256, 66),
        (IQ2_XS, 17, "IQ2_XS", 256, 74),
        (IQ2_S, 22, "IQ2_S", 256, 82),
        (IQ3_XXS, 18, "IQ3_XXS", 256, 98),
        (IQ3_S, 21, "IQ3_S", 256, 110),
        (IQ1_S, 19, "IQ1_S", 256, 50),
        (IQ1_M, 29, "IQ1_M", 256, 56),
        (IQ4_NL, 20, "IQ4_NL", 32, 18),
        (IQ4_XS, 23, "IQ4_XS", 256, 136),
        (TQ1_0, 34, "TQ1_0", 256, 54),
        (TQ2_0, 35, "TQ2_0", 256, 66),
        (MXFP4, 39, "MXFP4", 32, 17),
        (NVFP4, 40, "NVFP4", 64, 36),
        (Q1_0, 41, "Q1_0", 128, 18),
        (F8_E4M3, NOT_IN_GGUF, "F8_E4M3", 1, 1),
        (I8, NOT_IN_GGUF, "I8", 1, 1),
        (E2M1, NOT_IN_GGUF, "E2M1", 2, 1),
    ]
};

/// Names of ggml's types that hold no matmul weights or that no file should have any more.
const OTHER_TYPES: [(u32, &str); 12] = [
    (4, "Q4_2 (removed)"),
    (5, "Q4_3 (removed)"),
    (9, "Q8_1 (activations)"),
    (15, "Q8_K (activations)"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (31, "Q4_0_4_4 (removed)"),
    (32, "Q4_0_4_8 (removed)"),
    (33, "Q4_0_8_8 (removed)"),
];

impl TensorType {
    /// All types, in the order of their declaration.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    ///
    /// // Whichever type has the fewest bits.
    /// let least = TensorType::all().min_by(|a, b| a.bits().total_cmp(&b.bits()));
    /// assert_eq!(least, Some(TensorType::Q1_0));
    /// ```
    pub fn all() -> impl Iterator<Item = TensorType> {
        TYPES.iter().map(|row| row.0)
    }

    /// The type with this number in a GGUF file; `None` for one that cannot be read.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    /// assert_eq!(TensorType::from_ggml(12), Some(TensorType::Q4_K));
    /// assert_eq!(TensorType::from_ggml(4), None);
    /// ```
    pub fn from_ggml(number: u32) -> Option<TensorType> {
        let known = |row: &&(TensorType, u32, &str, usize, usize)| row.1 == number;
        TYPES.iter().find(known).filter(|row| row.1 != NOT_IN_GGUF).map(|row| row.0)
    }

    /// What to call type `number` in a message, readable or not.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    ///
    /// assert_eq!(TensorType::describe(12), "Q4_K");
    /// assert_eq!(TensorType::describe(28), "F64"); // known and not read
    /// assert_eq!(TensorType::describe(999), "unknown (999)");
    /// ```
    pub fn describe(number: u32) -> String {
        let known = TYPES.iter().map(|row| (row.1, row.2)).chain(OTHER_TYPES);
        match known.into_iter().find(|row| row.0 == number && number != NOT_IN_GGUF) {
            Some((_, name)) => name.to_owned(),
            None => format!("unknown ({number})"),
        }
    }

    /// Number in a GGUF file; `None` for types that only other files have.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    ///
    /// for kind in TensorType::all() {
    ///     if let Some(number) = kind.ggml() {
    ///         assert_eq!(TensorType::from_ggml(number), Some(kind));
    ///     }
    /// }
    /// assert_eq!(TensorType::F8_E4M3.ggml(), None);
    /// ```
    pub fn ggml(self) -> Option<u32> {
        Some(self.row().1).filter(|number| *number != NOT_IN_GGUF)
    }

    /// Name, as ggml writes it.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    ///
    /// assert_eq!(TensorType::Q8_0.name(), "Q8_0");
    /// ```
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Values of a block.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    ///
    /// assert_eq!(TensorType::Q4_K.block_elements(), 256);
    /// assert_eq!(TensorType::F32.block_elements(), 1);
    /// ```
    pub fn block_elements(self) -> usize {
        self.row().3
    }

    /// Bytes of a block.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    ///
    /// assert_eq!(TensorType::Q8_0.block_bytes(), 2 + 32); // a half float, 32 codes
    /// ```
    pub fn block_bytes(self) -> usize {
        self.row().4
    }

    /// Bits of one value, scales included.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    /// assert_eq!(TensorType::Q4_K.bits(), 4.5);
    /// ```
    pub fn bits(self) -> f32 {
        8.0 * self.block_bytes() as f32 / self.block_elements() as f32
    }

    /// Bytes of a row of `elements`; `None` when they are no whole number of blocks, or too many.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    ///
    /// assert_eq!(TensorType::Q4_K.row_bytes(4096), Some(16 * 144));
    /// assert_eq!(TensorType::Q4_K.row_bytes(100), None);
    /// ```
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        let per = self.block_elements() as u64;
        elements.is_multiple_of(per).then(|| elements / per)?.checked_mul(self.block_bytes() as u64)
    }

    fn row(self) -> &'static (TensorType, u32, &'static str, usize, usize) {
        // The table has a row per variant, in order (a test holds it to that).
        &TYPES[self as usize]
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A length that does not fit the type.
///
/// ```
/// use ork_weights::dequant::{TensorType, dequantise};
///
/// let error = dequantise(TensorType::Q8_0, &[0; 33], &mut [0.0; 32]).unwrap_err();
/// assert_eq!((error.bytes, error.elements), (33, 32));
/// assert!(error.to_string().contains("32 values take 34 bytes"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "dequantise {kind}: {bytes} bytes do not hold {elements} values ({} values take {} bytes)",
    kind.block_elements(),
    kind.block_bytes()
)]
pub struct DequantError {
    /// Type of the blocks.
    pub kind: TensorType,
    /// Bytes given.
    pub bytes: usize,
    /// Values asked for.
    pub elements: usize,
}

/// Turns whole blocks into f32. `raw` must be exactly the blocks of `out.len()` values.
///
/// ```
/// use ork_weights::dequant::{TensorType, dequantise};
///
/// let mut values = [0.0; 2];
/// dequantise(TensorType::F16, &[0x00, 0x3c, 0x00, 0xc0], &mut values)?;
/// assert_eq!(values, [1.0, -2.0]);
/// # Ok::<(), ork_weights::dequant::DequantError>(())
/// ```
///
/// # Errors
/// [`DequantError`] when the lengths do not fit each other or the type; `out` is then untouched.
pub fn dequantise(kind: TensorType, raw: &[u8], out: &mut [f32]) -> Result<(), DequantError> {
    if kind.row_bytes(out.len() as u64) != Some(raw.len() as u64) {
        return Err(DequantError { kind, bytes: raw.len(), elements: out.len() });
    }
    dispatch(Decode { kind, raw, out });
    Ok(())
}

struct Decode<'a> {
    kind: TensorType,
    raw: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, machine: impl Machine) {
        decode(machine, self.kind, self.raw, self.out);
    }
}

/// One block type: `BYTES` bytes stand for `ELEMENTS` values.
trait Block<const BYTES: usize, const ELEMENTS: usize> {
    /// Writes the values of one block.
    fn decode(raw: &[u8; BYTES], out: &mut [f32; ELEMENTS]);
}

#[inline(always)]
fn blocks<const B: usize, const E: usize, T: Block<B, E>>(raw: &[u8], out: &mut [f32]) {
    for (raw, out) in raw.as_chunks::<B>().0.iter().zip(out.as_chunks_mut::<E>().0) {
        T::decode(raw, out);
    }
}

/// The inner part of [`dequantise`], for use inside another kernel; stops at the shorter of the two.
#[inline(always)]
pub(crate) fn decode(machine: impl Machine, kind: TensorType, raw: &[u8], out: &mut [f32]) {
    match kind {
        TensorType::F32 => float::f32s(machine, raw, out),
        TensorType::F16 => float::f16s(machine, raw, out),
        TensorType::BF16 => float::bf16s(machine, raw, out),
        TensorType::Q4_0 => blocks::<_, _, legacy::Q4_0>(raw, out),
        TensorType::Q4_1 => blocks::<_, _, legacy::Q4_1>(raw, out),
        TensorType::Q5_0 => blocks::<_, _, legacy::Q5_0>(raw, out),
        TensorType::Q5_1 => blocks::<_, _, legacy::Q5_1>(raw, out),
        TensorType::Q8_0 => blocks::<_, _, legacy::Q8_0>(raw, out),
        TensorType::Q2_K => blocks::<_, _, k_quant::Q2K>(raw, out),
        TensorType::Q3_K => blocks::<_, _, k_quant::Q3K>(raw, out),
        TensorType::Q4_K => blocks::<_, _, k_quant::Q4K>(raw, out),
        TensorType::Q5_K => blocks::<_, _, k_quant::Q5K>(raw, out),
        TensorType::Q6_K => blocks::<_, _, k_quant::Q6K>(raw, out),
        TensorType::IQ2_XXS => blocks::<_, _, grid::Iq2Xxs>(raw, out),
        TensorType::IQ2_XS => blocks::<_, _, grid::Iq2Xs>(raw, out),
        TensorType::IQ2_S => blocks::<_, _, grid::Iq2S>(raw, out),
        TensorType::IQ3_XXS => blocks::<_, _, grid::Iq3Xxs>(raw, out),
        TensorType::IQ3_S => blocks::<_, _, grid::Iq3S>(raw, out),
        TensorType::IQ1_S => blocks::<_, _, grid::Iq1S>(raw, out),
        TensorType::IQ1_M => blocks::<_, _, grid::Iq1M>(raw, out),
        TensorType::IQ4_NL => blocks::<_, _, four_bit::Iq4Nl>(raw, out),
        TensorType::IQ4_XS => blocks::<_, _, four_bit::Iq4Xs>(raw, out),
        TensorType::TQ1_0 => blocks::<_, _, ternary::Tq1_0>(raw, out),
        TensorType::TQ2_0 => blocks::<_, _, ternary::Tq2_0>(raw, out),
        TensorType::MXFP4 => blocks::<_, _, four_bit::Mxfp4>(raw, out),
        TensorType::NVFP4 => blocks::<_, _, four_bit::Nvfp4>(raw, out),
        TensorType::Q1_0 => blocks::<_, _, one_bit::Q1_0>(raw, out),
        TensorType::F8_E4M3 => bytes::e4m3s(raw, out),
        TensorType::I8 => bytes::i8s(raw, out),
        TensorType::E2M1 => blocks::<_, _, four_bit::Pair>(raw, out),
    }
}

/// The half float at byte `at` of a block, as f32.
#[inline(always)]
fn half_at<const N: usize>(raw: &[u8; N], at: usize) -> f32 {
    half_to_f32(u16::from_le_bytes([raw[at], raw[at + 1]]))
}

/// `N` bytes of a block from `at`. Every caller's range is constant and inside its block.
#[inline(always)]
fn part<const N: usize>(raw: &[u8], at: usize) -> &[u8; N] {
    raw[at..].first_chunk().expect("constant ranges lie inside their block")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_variants() {
        for (index, row) in TYPES.iter().enumerate() {
            assert_eq!(row.0 as usize, index);
            if let Some(number) = row.0.ggml() {
                assert_eq!(TensorType::from_ggml(number), Some(row.0));
                assert_eq!(TensorType::describe(number), row.0.to_string());
            }
        }
        assert_eq!(TensorType::describe(9), "Q8_1 (activations)");
        assert_eq!(TensorType::describe(77), "unknown (77)");
        assert_eq!(TensorType::from_ggml(NOT_IN_GGUF), None);
        assert_eq!(TensorType::describe(NOT_IN_GGUF), format!("unknown ({NOT_IN_GGUF})"));
    }

    #[test]
    fn lengths_must_fit() {
        let mut out = [1f32; 32];
        for (bytes, elements) in [(33, 32), (35, 32), (0, 32), (34, 31), (34, 0)] {
            let error =
                dequantise(TensorType::Q8_0, &vec![0; bytes], &mut out[..elements]).unwrap_err();
            assert_eq!(error, DequantError { kind: TensorType::Q8_0, bytes, elements });
            assert!(out.iter().all(|&v| v == 1.0));
        }
        dequantise(TensorType::Q4_K, &[], &mut []).unwrap();
        assert_eq!(TensorType::F32.row_bytes(u64::MAX), None);
    }

    #[test]
    fn any_bytes_decode_without_panic() {
        for kind in TensorType::all() {
            for fill in [0u8, 0x7f, 0x80, 0xff, 0x55] {
                let mut out = vec![0f32; 2 * kind.block_elements()];
                dequantise(kind, &vec![fill; 2 * kind.block_bytes()], &mut out).unwrap();
            }
        }
    }
}
