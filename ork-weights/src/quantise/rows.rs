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
/// assert!(Rows::new(TensorType::Q8_0, 64, 32, &raw).is_ok());
/// assert!(Rows::new(TensorType::Q8_0, 64, 33, &raw).is_err()); // a row is missing
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
    scales: Option<RowScales<'a>>,
}

/// Scales that stand beside a weight's codes, for blocks of its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowScales<'a> {
    /// From the block of the first channel that is read on, row by row.
    pub(crate) values: &'a [f32],
    /// Scales of a row of blocks.
    pub(crate) columns: usize,
    /// Channels of a block.
    pub(crate) outputs: usize,
    /// Inputs of a block.
    pub(crate) inputs: usize,
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
        Ok(Rows { kind, k, n, raw, row_bytes: row_bytes.unwrap_or(0), first: 0, scales: None })
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

    /// The same rows, their values times these.
    #[must_use]
    pub(crate) fn scaled(self, scales: Option<RowScales<'a>>) -> Rows<'a> {
        Rows { scales, ..self }
    }

    /// Whether they are int8 codes with one scale a channel, which need no quantising.
    pub(super) fn are_codes(&self) -> bool {
        let per_channel = |scales: RowScales<'_>| scales.inputs >= self.k as usize;
        self.kind == TensorType::I8 && self.scales.is_some_and(per_channel)
    }

    /// Scales of row `index`; none for those past the last.
    pub(super) fn scales(&self, index: usize) -> &[f32] {
        let Some(scales) = self.scales.filter(|_| index < self.n as usize) else { return &[] };
        let row = self.channel(index) / scales.outputs - self.first / scales.outputs;
        scales
            .values
            .get(row * scales.columns..)
            .and_then(|s| s.get(..scales.columns))
            .unwrap_or(&[])
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
        self.read_codes(index, out);
        let Some(RowScales { inputs, .. }) = self.scales else { return };
        for (block, scale) in out.chunks_mut(inputs).zip(self.scales(index)) {
            block.iter_mut().for_each(|value| *value *= scale);
        }
    }

    /// [`Rows::read`] without the scales beside.
    pub(super) fn read_codes(&self, index: usize, out: &mut [f32]) {
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
