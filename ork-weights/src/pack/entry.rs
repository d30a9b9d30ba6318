//! One weight in a pack.

use std::ops::Range;

use rknpu_sys::layout::{Layout, PAGE};

use super::Dtype;
use super::dtype::PADDED;
use crate::quantise::block_of;

/// A range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Span {
    /// Where it ends; `None` past 2^64.
    pub(crate) fn end(self) -> Option<u64> {
        self.offset.checked_add(self.bytes)
    }

    /// As a range; an end past 2^64 is cut, and no file is that long.
    pub(crate) fn range(self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.bytes)
    }
}

/// XXH3-64 of the stored bytes of a weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checksums {
    pub(crate) blob: u64,
    pub(crate) scales: u64,
}

/// One weight in a pack: its shape, storage form and place.
///
/// Everything here was checked when the pack was opened: sizes are those that K, N and dtype give, and
/// all parts lie inside the file without sharing a byte. A matrix whose shape does not tile is stored
/// with zeros around it: codes, scales and tiles then have the shape of [`Entry::layout`].
///
/// ```
/// use ork_weights::pack::Pack;
///
/// # let file = ork_weights::doc::pack()?;
/// # let path = file.path();
/// let pack = Pack::open(&path)?; // of one int8 weight, 64 × 64
/// let entry = &pack.entries()[0];
/// assert_eq!((entry.k, entry.n, entry.dtype), (64, 64, ork_weights::pack::Dtype::Int8));
/// assert_eq!((entry.order(), entry.groups()), (0, 1)); // the first, one scale a channel
/// assert_eq!(entry.stored_bytes(), 4096 + 4 * 64);
/// assert_eq!(entry.bits_per_weight(), 8.5); // a scale of 32 bits for 64 codes
/// assert!(entry.checksum().is_some() && entry.error().is_none()); // nobody measured it
///
/// // Plain: what a load writes is what stands in the file.
/// let mut raw = vec![0; entry.layout().bytes() as usize];
/// std::os::unix::fs::FileExt::read_exact_at(pack.file(), &mut raw, entry.blob_range().start)?;
/// assert_eq!(raw, [1; 4096]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// Name of the tensor; experts of a 3-D tensor end in `#` and their number.
    pub name: Box<str>,
    /// Rows: inputs of the matrix.
    pub k: u32,
    /// Channels: outputs of the matrix.
    pub n: u32,
    /// Storage form.
    pub dtype: Dtype,
    pub(crate) layout: Layout,
    pub(crate) order: u32,
    pub(crate) stamped: bool,
    pub(crate) blob: Span,
    pub(crate) full_k: Span,
    pub(crate) scales: Span,
    pub(crate) error: Option<f32>,
    pub(crate) checksums: Option<Checksums>,
}

impl Entry {
    /// Layout of what [`Pack::load_into`](super::Pack::load_into) writes, in [`Dtype::loaded`].
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether the matrix is smaller than its layout, which has zeros around it.
    ///
    /// ```
    /// use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// writer.add("w", 60, 33, Dtype::Int8, &[0; 4096], &[0.5; 64])?;
    /// writer.finish()?;
    /// let pack = Pack::open(&path)?;
    /// let entry = &pack.entries()[0];
    /// assert_eq!((entry.k, entry.n), (60, 33));
    /// assert_eq!((entry.layout().k(), entry.layout().n()), (64, 64));
    /// assert!(entry.is_padded());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_padded(&self) -> bool {
        (self.k, self.n) != (self.layout.k(), self.layout.n())
    }

    /// The `dtype` field of its record.
    pub(crate) fn code(&self) -> u32 {
        self.dtype.code() | if self.is_padded() { PADDED } else { 0 }
    }

    /// Place in the file's order, which is the order of first use when the pack was made.
    pub fn order(&self) -> u32 {
        self.order
    }

    /// Bytes of the file that hold the codes, without a stamp. Where [`Dtype::is_plain`] holds these
    /// are exactly the bytes that a load writes, so that they can be read by other means.
    pub fn blob_range(&self) -> Range<u64> {
        let stamp = if self.stamped { PAGE } else { 0 };
        let Range { start, end } = self.blob.range();
        start.saturating_add(stamp).min(end)..end
    }

    /// Bytes of the file that hold the scales beside the blob; empty for [`Dtype::O4n1`] and
    /// [`Dtype::Fp16`].
    pub fn scales_range(&self) -> Range<u64> {
        self.scales.range()
    }

    /// Whether a stamp page stands in front of the codes.
    pub fn is_stamped(&self) -> bool {
        self.stamped
    }

    /// Bytes of the second copy over the full K, 0 when there is none. It can be rebuilt from the
    /// blob and is never read.
    pub fn full_k_bytes(&self) -> u64 {
        self.full_k.bytes
    }

    /// Bytes of the file that the weight takes, all parts together.
    pub fn stored_bytes(&self) -> u64 {
        self.blob.bytes.saturating_add(self.full_k.bytes).saturating_add(self.scales.bytes)
    }

    /// Scales along K: 1 when they are per channel.
    pub fn groups(&self) -> u32 {
        ((self.scales.bytes / 4) as u32).checked_div(self.layout.n()).unwrap_or(1).max(1)
    }

    /// Values of a block of the Hadamard transform that the weight was rotated by, and activations must
    /// be: the largest power of two that divides the layout's K. `None` for forms that are not rotated.
    ///
    /// ```
    /// use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// writer.add("w", 96, 64, Dtype::RotatedInt8, &[1; 8192], &[0.5; 64])?;
    /// writer.finish()?;
    /// assert_eq!(Pack::open(&path)?.entries()[0].rotation(), Some(32));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rotation(&self) -> Option<u32> {
        self.dtype.is_rotated().then(|| block_of(self.layout.k()))
    }

    /// Relative RMS error of the codes against the source weight, where the packer measured it.
    pub fn error(&self) -> Option<f32> {
        self.error
    }

    /// XXH3-64 of the stored blob, stamp included, in packs of this library.
    pub fn checksum(&self) -> Option<u64> {
        self.checksums.map(|sums| sums.blob)
    }

    /// Bits of the file for each weight value, scales included.
    pub fn bits_per_weight(&self) -> f64 {
        let values = f64::from(self.k) * f64::from(self.n);
        (self.blob.bytes.saturating_add(self.scales.bytes)) as f64 * 8.0 / values
    }
}
