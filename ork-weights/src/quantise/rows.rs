//! What is quantised.

use super::QuantiseError;
use crate::dequant::{TensorType, dequantise};

/// A weight, or some channels of it, as a model file holds it: row-major, a row the K values of one
/// output channel.
///
/// ```
/// use ork_weights::{dequant::TensorType, quantise::Rows};
///
/// let raw = [0u8; 34 * 2 * 32]; // 32 channels of two Q8_0 blocks
/// let rows = Rows::new(TensorType::Q8_0, 64, 32, &raw)?;
/// assert_eq!((rows.k(), rows.n()), (64, 32));
/// # Ok::<(), ork_weights::quantise::QuantiseError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    kind: TensorType,
    k: u32,
    n: u32,
    raw: &'a [u8],
    row_bytes: usize,
    first: usize,
}

impl<'a> Rows<'a> {
    /// `n` rows of `k` values in blocks of `kind`.
    ///
    /// ```
    /// use ork_weights::{dequant::TensorType, quantise::Rows};
    ///
    /// assert!(Rows::new(TensorType::F32, 32, 1, &[0; 128]).is_ok());
    /// assert!(Rows::new(TensorType::F32, 32, 1, &[0; 127]).is_err());
    /// assert!(Rows::new(TensorType::Q4_K, 32, 1, &[0; 18]).is_err()); // no whole block
    /// ```
    ///
    /// # Errors
    /// [`QuantiseError::Length`] when `raw` does not hold exactly that many rows of whole blocks.
    pub fn new(kind: TensorType, k: u32, n: u32, raw: &'a [u8]) -> Result<Rows<'a>, QuantiseError> {
        let row_bytes = kind.row_bytes(k.into()).and_then(|bytes| usize::try_from(bytes).ok());
        let expected = row_bytes.and_then(|bytes| bytes.checked_mul(n as usize));
        length("source", raw.len(), expected.unwrap_or(usize::MAX))?;
        Ok(Rows { kind, k, n, raw, row_bytes: row_bytes.unwrap_or(0), first: 0 })
    }

    /// The same rows as channels `first..` of a larger weight: what errors name then are
    /// channels of the whole.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    /// use ork_weights::quantise::{QuantiseError, Recipe, Rows, Tier, quantise};
    ///
    /// let raw = f32::INFINITY.to_le_bytes().repeat(32 * 32);
    /// let rows = Rows::new(TensorType::F32, 32, 32, &raw)?.starting_at(4096);
    /// let error = quantise(&rows, &Recipe::new(Tier::Int8), &mut [0; 4096], &mut [0.0; 32]);
    /// let Err(QuantiseError::NotFinite { channel }) = error else { panic!("infinite") };
    /// assert!(channel >= 4096); // as the whole weight counts
    /// # Ok::<(), QuantiseError>(())
    /// ```
    #[must_use]
    pub fn starting_at(self, first: usize) -> Rows<'a> {
        Rows { first, ..self }
    }

    /// Inputs.
    pub(crate) fn k(&self) -> u32 {
        self.k
    }

    /// Channels.
    pub(crate) fn n(&self) -> u32 {
        self.n
    }

    /// Number in the whole weight of row `index`.
    pub(super) fn channel(&self, index: usize) -> usize {
        self.first + index
    }

    /// Row `index` as floats, at least K. Behind its values, and in rows past the last, are zeros.
    pub(super) fn read(&self, index: usize, out: &mut [f32]) {
        let values = if index < self.n as usize { self.k as usize } else { 0 };
        let (out, padding) = out.split_at_mut(values);
        padding.fill(0.0);
        if out.is_empty() {
            return;
        }
        let raw = &self.raw[index * self.row_bytes..(index + 1) * self.row_bytes];
        let read = dequantise(self.kind, raw, out);
        debug_assert!(read.is_ok(), "the lengths follow from K and the type");
    }
}

/// Checks the length of a buffer.
pub(crate) fn length(
    buffer: &'static str,
    length: usize,
    expected: usize,
) -> Result<(), QuantiseError> {
    if length == expected {
        return Ok(());
    }
    Err(QuantiseError::Length { buffer, length, expected })
}
