//! Bytes of a weight out of a pack, as the NPU reads them.

use std::borrow::Cow;

use rknpu_sys::layout::{Layout, Precision};

use super::entry::Entry;
use super::error::{PackError, Result};
use super::format::bytes::floats;
use super::format::o4n1::{self, Codebook, Compact};
use super::format::stamp;
use super::reader::Pack;
use super::runs;
use super::source::{Source, fetch};

impl<S: Source> Pack<S> {
    /// Writes the tiled weight into `out`, whose layout is [`Entry::layout`].
    ///
    /// For the plain forms ([`Dtype::is_plain`](super::Dtype::is_plain)) this is one copy; the others
    /// are inflated to int8. Every byte of `out` is written, padding as zero.
    ///
    /// # Errors
    /// [`PackError::OutputLength`] when `out` is not exactly as long as the layout; the blob's
    /// [`PackError::Stamp`] or [`PackError::O4n1`] header does not fit; [`PackError::Changed`] when the
    /// file was changed since it was opened; [`PackError::Io`]. On an error `out` holds no weight.
    pub fn load_into(&self, entry: &Entry, out: &mut [u8]) -> Result<()> {
        let layout = entry.layout();
        if out.len() as u64 != layout.bytes() {
            return Err(PackError::OutputLength {
                name: entry.name.clone(),
                bytes: out.len() as u64,
                expected: layout.bytes(),
            });
        }
        self.source.check()?;
        self.check_stamp(entry)?;
        if entry.dtype.is_plain() {
            return self.source.read_at(entry.blob_range().start, out);
        }
        let blob = fetch(&self.source, entry.blob_range())?;
        match stored_layout(entry)? {
            Some(stored) => runs::widen(&stored, &layout, &blob, out),
            None => {
                let compact = self.compact(entry, &blob)?;
                runs::tile_compact(&layout, compact.codebook, compact.codes, out);
            }
        }
        Ok(())
    }

    /// Scales of a weight: one per channel, or `[group][channel]` for [`Entry::groups`] groups along K.
    ///
    /// # Errors
    /// [`PackError::ScaleValue`] when one is negative or not finite; [`PackError::O4n1`] when the
    /// blob that holds them does not fit the entry; [`PackError::Changed`]; [`PackError::Io`].
    pub fn scales(&self, entry: &Entry) -> Result<Vec<f32>> {
        self.source.check()?;
        let bytes = self.scale_bytes(entry)?;
        let scales: Vec<f32> = floats(&bytes).collect();
        let bad = scales.iter().position(|scale| !scale.is_finite() || *scale < 0.0);
        match bad {
            Some(index) => {
                let value = scales[index];
                Err(PackError::ScaleValue { name: entry.name.clone(), index, value })
            }
            None => Ok(scales),
        }
    }

    /// Codes of a weight as row-major int8, `[N][K]`; 4-bit codes one a byte, those of a compact blob
    /// as the int8 values they stand for.
    ///
    /// # Errors
    /// As [`Pack::load_into`].
    pub fn codes(&self, entry: &Entry) -> Result<Vec<i8>> {
        self.source.check()?;
        self.check_stamp(entry)?;
        let blob = fetch(&self.source, entry.blob_range())?;
        let layout = entry.layout();
        let mut out = vec![0; layout.k() as usize * layout.n() as usize];
        match stored_layout(entry)? {
            Some(stored) => runs::untile(&stored, &blob, &mut out),
            None => {
                let compact = self.compact(entry, &blob)?;
                let pairs = compact.codebook.pairs();
                for (to, code) in out.chunks_exact_mut(2).zip(compact.codes) {
                    to.copy_from_slice(&pairs[usize::from(*code)]);
                }
            }
        }
        Ok(out.into_iter().map(|byte| byte as i8).collect())
    }

    /// Codebook of a compact int4 weight; `None` for other storage forms.
    ///
    /// # Errors
    /// [`PackError::O4n1`] when its header does not fit the entry; [`PackError::Io`].
    pub fn codebook(&self, entry: &Entry) -> Result<Option<Codebook>> {
        if entry.dtype.stored().is_some() {
            return Ok(None);
        }
        let blob = fetch(&self.source, entry.blob_range())?;
        Ok(Some(self.compact(entry, &blob)?.codebook))
    }

    /// The stored scales, checked for nothing but their place.
    pub(super) fn scale_bytes(&self, entry: &Entry) -> Result<Cow<'_, [u8]>> {
        if entry.dtype.stored().is_some() {
            return fetch(&self.source, entry.scales_range());
        }
        let blob = fetch(&self.source, entry.blob_range())?;
        Ok(Cow::Owned(self.compact(entry, &blob)?.scales.to_vec()))
    }

    fn compact<'a>(&self, entry: &Entry, blob: &'a [u8]) -> Result<Compact<'a>> {
        o4n1::parse(blob, &entry.name, entry.layout.k(), entry.layout.n())
    }

    /// The stamp in front of a blob, if its size says that there is one.
    pub(super) fn check_stamp(&self, entry: &Entry) -> Result<()> {
        let Some(stored) = stored_layout(entry)?.filter(|_| entry.stamped) else { return Ok(()) };
        let mut page = [0; 64];
        self.source.read_at(entry.blob.offset, &mut page)?;
        stamp::check(&page, &entry.name, &stored, self.footer.token)
    }
}

/// Layout of the tiles on disk; `None` for a compact blob.
fn stored_layout(entry: &Entry) -> Result<Option<Layout>> {
    let layout = |precision: Precision| {
        Layout::new(entry.layout.k(), entry.layout.n(), precision)
            .map_err(|source| PackError::Shape { name: entry.name.clone(), source })
    };
    entry.dtype.stored().map(layout).transpose()
}
