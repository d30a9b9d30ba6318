//! Bytes of a weight out of a pack, as the NPU reads them.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;
use rknpu_sys::layout::{Layout, Precision};

use super::Dtype;
use super::entry::Entry;
use super::error::{PackError, Part, Result};
use super::format::bytes::floats;
use super::format::o4n1::{self, Codebook};
use super::format::stamp;
use super::inflate::{inflate, inflate_tiled};
use super::reader::Pack;
use super::source::{Source, fetch};
use crate::tile::{Threads, rows_bytes, untile_on};

/// Bytes that a thread reads at a time when several share a weight: whole pages, since weights begin
/// at pages in the file and on the device. A weight of one piece stays with the calling thread:
/// measured, to hand pieces out takes 10 µs, in which a thread reads 100 KiB from memory, or 500 KiB
/// from the caches.
const PIECE: usize = 256 << 10;

impl<S: Source> Pack<S> {
    /// Writes the tiled weight into `out`, whose layout is [`Entry::layout`].
    ///
    /// For the plain forms ([`Dtype::is_plain`](super::Dtype::is_plain)) this is one copy, padding
    /// included; the others are inflated to int8. All of it on the calling thread, so that loads
    /// ahead of use take nothing from the cores that compute meanwhile; see
    /// [`Pack::load_into_parallel`] for a load that somebody waits for.
    ///
    /// ```
    /// use ork_weights::pack::Pack;
    ///
    /// # let file = ork_weights::doc::pack()?;
    /// # let path = file.path();
    /// let pack = Pack::open(&path)?; // of one int8 weight, 64 × 64
    /// let entry = &pack.entries()[0];
    /// let mut tiles = vec![0; entry.layout().bytes() as usize]; // or a device's buffer
    /// pack.load_into(entry, &mut tiles)?;
    /// assert_eq!(tiles, [1; 4096]);
    /// assert!(pack.load_into(entry, &mut tiles[1..]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::OutputLength`] when `out` is not exactly as long as the layout; the blob's
    /// [`PackError::Stamp`] or [`PackError::O4n1`] header does not fit; [`PackError::Changed`] when the
    /// file was changed since it was opened; [`PackError::Io`]. On an error `out` holds no weight.
    pub fn load_into(&self, entry: &Entry, out: &mut [u8]) -> Result<()> {
        let read = |start, out: &mut [u8]| self.source.read_at(start, out);
        self.load(entry, out, Threads::One, read)
    }

    /// As [`Pack::load_into`], on the threads of the current rayon pool: as fast as memory or disk
    /// can be, where one thread is not.
    ///
    /// ```
    /// # use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("small.orkpack");
    /// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// # writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
    /// # writer.finish()?;
    /// let pack = Pack::open(&path)?;
    /// let mut tiles = [0; 4096];
    /// pack.load_into_parallel(&pack.entries()[0], &mut tiles)?;
    /// assert_eq!(tiles, [1; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pack::load_into`].
    pub fn load_into_parallel(&self, entry: &Entry, out: &mut [u8]) -> Result<()>
    where
        S: Sync,
    {
        let read = |start, out: &mut [u8]| {
            let pieces = out.par_chunks_mut(PIECE).enumerate();
            pieces.try_for_each(|(i, piece)| self.source.read_at(start + (i * PIECE) as u64, piece))
        };
        self.load(entry, out, Threads::All, read)
    }

    /// `read(offset, out)` reads bytes of the file.
    fn load(
        &self,
        entry: &Entry,
        out: &mut [u8],
        threads: Threads,
        read: impl FnOnce(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
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
            let start = entry.blob_range().start;
            return self.source.read_past_cache(start, out).unwrap_or_else(|| read(start, out));
        }
        match self.codebook(entry)? {
            Some(codebook) => {
                let rows = fetch(&self.source, compact_codes(entry))?;
                inflate_tiled(&layout, codebook, &rows, out, threads);
            }
            None => {
                let rows = self.rows(entry, threads)?;
                inflate_tiled(&layout, Codebook::Uniform, &rows, out, threads);
            }
        }
        Ok(())
    }

    /// Scales of a weight: one per channel, or `[group][channel]` for [`Entry::groups`] groups along K;
    /// none for half floats.
    ///
    /// ```
    /// use ork_weights::pack::Pack;
    ///
    /// # let file = ork_weights::doc::pack()?;
    /// # let path = file.path();
    /// let pack = Pack::open(&path)?; // of one int8 weight, 64 × 64
    /// let entry = &pack.entries()[0];
    /// assert_eq!(pack.scales(entry)?, [0.5; 64]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::ScaleValue`] when one is negative or not finite; [`PackError::O4n1`] when the
    /// blob that holds them does not fit the entry; [`PackError::Changed`]; [`PackError::Io`].
    pub fn scales(&self, entry: &Entry) -> Result<Vec<f32>> {
        self.source.check()?;
        let scales: Vec<f32> = floats(&self.scale_bytes(entry)?).collect();
        refuse_bad_scales(&entry.name, scales.iter().copied())?;
        Ok(scales)
    }

    /// Codes of a weight as row-major int8, `[N][K]`; 4-bit codes one a byte, those of a compact blob
    /// as the int8 values they stand for.
    ///
    /// ```
    /// use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// let mut tiles = [0; 4096];
    /// tiles[32] = 5; // channel 1, k 0: the second run of the first block
    /// writer.add("w", 64, 64, Dtype::Int8, &tiles, &[0.5; 64])?;
    /// writer.finish()?;
    ///
    /// let pack = Pack::open(&path)?;
    /// let codes = pack.codes(&pack.entries()[0])?;
    /// assert_eq!(codes[64], 5); // row 1, column 0
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pack::load_into`]; [`PackError::NoCodes`] for half floats.
    pub fn codes(&self, entry: &Entry) -> Result<Vec<i8>> {
        if entry.dtype == Dtype::Fp16 {
            return Err(PackError::NoCodes { name: entry.name.clone(), dtype: entry.dtype });
        }
        self.source.check()?;
        self.check_stamp(entry)?;
        let codebook = self.codebook(entry)?;
        let rows = match codebook {
            Some(_) => fetch(&self.source, compact_codes(entry))?,
            None => Cow::Owned(self.rows(entry, Threads::All)?),
        };
        if entry.dtype.stored() == Some(Precision::Int8) {
            return Ok(rows.iter().map(|code| *code as i8).collect());
        }
        let mut out = vec![0; 2 * rows.len()];
        inflate(codebook.unwrap_or(Codebook::Uniform), &rows, &mut out);
        Ok(out.into_iter().map(|code| code as i8).collect())
    }

    /// The codes of a tiled blob as row-major `[N][K]`, packed as they are stored.
    fn rows(&self, entry: &Entry, threads: Threads) -> Result<Vec<u8>> {
        let blob = fetch(&self.source, entry.blob_range())?;
        let stored = entry.dtype.stored().unwrap_or(Precision::Int8);
        let layout = stored_layout(entry, stored)?;
        // A blob of another size has no rows; refused before they are allocated.
        let fits = blob.len() as u64 == layout.bytes();
        let mut rows = vec![0; if fits { rows_bytes(&layout) as usize } else { 0 }];
        untile_on(threads, &layout, &blob, &mut rows).map_err(|_| PackError::Size {
            name: entry.name.clone(),
            part: Part::Blob,
            bytes: blob.len() as u64,
            expected: layout.bytes(),
        })?;
        Ok(rows)
    }

    /// Codebook of a compact int4 weight; `None` for other storage forms.
    ///
    /// ```
    /// use ork_weights::pack::Pack;
    ///
    /// # let file = ork_weights::doc::pack()?;
    /// # let path = file.path();
    /// let pack = Pack::open(&path)?; // of one int8 weight, 64 × 64
    /// let entry = &pack.entries()[0];
    /// assert_eq!(pack.codebook(entry)?, None); // not compact
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::O4n1`] when its header does not fit the entry; [`PackError::Io`].
    pub fn codebook(&self, entry: &Entry) -> Result<Option<Codebook>> {
        if entry.dtype.stored().is_some() {
            return Ok(None);
        }
        let Range { start, end } = entry.blob_range();
        let mut header = [0; o4n1::HEADER];
        self.source.read_at(start, &mut header)?;
        let layout = entry.layout();
        o4n1::check(&header, end - start, &entry.name, layout.k(), layout.n()).map(Some)
    }

    /// The stored scales, checked for nothing but their place.
    fn scale_bytes(&self, entry: &Entry) -> Result<Cow<'_, [u8]>> {
        match self.codebook(entry)? {
            None => fetch(&self.source, entry.scales_range()),
            Some(_) => {
                let start = entry.blob_range().start + o4n1::HEADER as u64;
                fetch(&self.source, start..compact_codes(entry).start)
            }
        }
    }

    /// The stamp in front of a blob, if its size says that there is one.
    pub(super) fn check_stamp(&self, entry: &Entry) -> Result<()> {
        let Some(precision) = entry.dtype.stored().filter(|_| entry.stamped) else { return Ok(()) };
        let mut fields = [0; stamp::FIELDS];
        self.source.read_at(entry.blob.offset, &mut fields)?;
        let layout = stored_layout(entry, precision)?;
        stamp::check(&fields, &entry.name, &layout, self.footer.token)
    }
}

/// Refuses scales that no quantiser gives: negative ones and those that are not finite.
pub(super) fn refuse_bad_scales(name: &str, scales: impl Iterator<Item = f32>) -> Result<()> {
    let bad = |(_, scale): &(usize, f32)| !scale.is_finite() || *scale < 0.0;
    match scales.enumerate().find(bad) {
        Some((index, value)) => Err(PackError::ScaleValue { name: name.into(), index, value }),
        None => Ok(()),
    }
}

/// Layout of the tiles on disk.
fn stored_layout(entry: &Entry, precision: Precision) -> Result<Layout> {
    Layout::new(entry.layout().k(), entry.layout().n(), precision)
        .map_err(|source| PackError::Shape { name: entry.name.clone(), source })
}

/// The codes of a compact blob: what follows its header and scales.
fn compact_codes(entry: &Entry) -> Range<u64> {
    let Range { start, end } = entry.blob_range();
    start + o4n1::HEADER as u64 + 4 * u64::from(entry.layout().n())..end
}
