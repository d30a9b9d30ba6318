//! Weights that come in pieces, so that nobody has to hold one whole.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use rknpu_sys::layout::Layout;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::{PackWriter, WeightHeader};
use crate::pack::Dtype;
use crate::pack::entry::{Entry, Span};
use crate::pack::error::{PackError, Part, Result};
use crate::pack::file::PackFile;
use crate::pack::format::{o4n1, sizes};
use crate::pack::source::Source;
use crate::pack::verify;

/// A weight that is being written, see [`PackWriter::begin`].
///
/// Dropped before [`WeightWriter::finish`], it leaves the writer as it was before.
///
/// ```
/// # use ork_weights::pack::{Dtype, PackWriter, WeightHeader, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// let mut weight = writer.begin(WeightHeader { name: "w", k: 64, n: 64, dtype: Dtype::Int8 })?;
/// weight.write_at(0, &[1; 100])?;
/// drop(weight); // given up: the writer is as it was
/// assert!(writer.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WeightWriter<'w> {
    writer: &'w mut PackWriter,
    header: WeightHeader<'w>,
    layout: Layout,
    at: u64,
    /// Bytes of the blob.
    blob: u64,
    written: Vec<Range<u64>>,
    /// Of the bytes that came in their order, from the first on.
    hash: Xxh3Default,
    hashed: u64,
    /// Pieces that came before their turn, each with its checksum.
    early: Vec<(Range<u64>, u64)>,
    finished: bool,
}

impl PackWriter {
    /// Begins a weight whose blob comes in pieces, in any order.
    ///
    /// ```
    /// use ork_weights::pack::{Dtype, Pack, PackWriter, WeightHeader, WriterOptions};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// let header = WeightHeader { name: "w", k: 64, n: 64, dtype: Dtype::Int8 };
    /// let mut weight = writer.begin(header)?;
    /// weight.write_at(1024, &[2; 3072])?;
    /// weight.write_at(0, &[1; 1024])?;
    /// weight.finish(&[0.5; 64], None)?;
    /// writer.finish()?;
    ///
    /// let pack = Pack::open(&path)?;
    /// let mut tiles = [0; 4096];
    /// pack.load_into(&pack.entries()[0], &mut tiles)?;
    /// assert_eq!(tiles[1022..1026], [1, 1, 2, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`PackWriter::add`] that name, shape and disk can cause.
    pub fn begin<'w>(&'w mut self, header: WeightHeader<'w>) -> Result<WeightWriter<'w>> {
        let WeightHeader { name, k, n, dtype } = header;
        self.admit_name(name)?;
        let shape = |source| PackError::Shape { name: name.into(), source };
        let layout = dtype.layout(k, n).map_err(shape)?;
        let blob = sizes::bytes(k, n, dtype).map_err(shape)?;
        Ok(WeightWriter {
            header,
            layout,
            at: self.place(name),
            blob,
            written: Vec::new(),
            hash: Xxh3Default::new(),
            hashed: 0,
            early: Vec::new(),
            finished: false,
            writer: self,
        })
    }

    /// What is written of a weight, if it is: before the pack is whole, [`PackWriter::read_at`] reads
    /// its bytes.
    ///
    /// ```
    /// use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
    /// let entry = writer.get("w").ok_or("just added")?;
    /// let mut tile = [0; 1024];
    /// writer.read_at(entry.blob_range().start, &mut tile)?;
    /// assert_eq!(tile, [1; 1024]);
    /// assert!(writer.get("v").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.names.get(name).and_then(|at| self.entries.get(*at))
    }

    /// Reads bytes of what is written, `offset` from the start of the file.
    ///
    /// ```
    /// use ork_weights::pack::{Dtype, PackError, PackWriter, WriterOptions};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
    /// let past = writer.read_at(1 << 20, &mut [0; 64]);
    /// assert!(matches!(past, Err(PackError::Io { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::Io`], also past the end of what is written.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, offset).map_err(PackError::io("read", &self.paths.partial))
    }
}

impl WeightWriter<'_> {
    /// Writes a piece of the blob, `offset` bytes from its start.
    ///
    /// ```
    /// # use ork_weights::pack::{Dtype, PackWriter, WeightHeader, WriterOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// let mut weight = writer.begin(WeightHeader { name: "w", k: 64, n: 64, dtype: Dtype::Int8 })?;
    /// assert!(weight.write_at(4000, &[1; 96]).is_ok());
    /// assert!(weight.write_at(4000, &[1; 97]).is_err()); // past its end
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::Size`] when the piece reaches past the blob's end; [`PackError::Io`].
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.blob {
            return Err(self.size(end));
        }
        self.writer.write(bytes, self.at + offset)?;
        if offset == self.hashed {
            self.hash.update(bytes);
            self.hashed = end;
        } else {
            self.early.push((offset..end, xxh3_64(bytes)));
        }
        self.written.push(offset..end);
        Ok(())
    }

    /// Adds the weight to the pack, with its scales and the relative RMS error of its codes, if that was
    /// measured. Pieces in their order are hashed as they come; others are read back for it.
    ///
    /// ```
    /// # use ork_weights::pack::{Dtype, PackWriter, WeightHeader, WriterOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// let mut weight = writer.begin(WeightHeader { name: "w", k: 64, n: 64, dtype: Dtype::Int8 })?;
    /// weight.write_at(0, &[1; 4096])?;
    /// weight.finish(&[0.5; 64], None)?;
    /// let hollow = writer.begin(WeightHeader { name: "v", k: 64, n: 64, dtype: Dtype::Int8 })?;
    /// assert!(hollow.finish(&[0.5; 64], None).is_err()); // bytes that nobody wrote
    /// assert_eq!(writer.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::Size`] unless the pieces cover every byte once; else those of
    /// [`PackWriter::add`]. The writer is then as it was before the weight.
    pub fn finish(mut self, scales: &[f32], error: Option<f32>) -> Result<()> {
        self.written.sort_unstable_by_key(|piece| (piece.start, piece.end));
        let mut covered = 0;
        for piece in &self.written {
            if piece.start != covered {
                return Err(self.size(covered.min(piece.start)));
            }
            covered = piece.end;
        }
        if covered != self.blob {
            return Err(self.size(covered));
        }
        let path = &self.writer.paths.partial;
        let file = self.writer.file.try_clone().map_err(PackError::io("reopen", path))?;
        let source = PackFile::from_file(file, path)?;
        let mut compact = Vec::new();
        if self.header.dtype == Dtype::O4n1 {
            compact.resize(o4n1::HEADER + 4 * self.layout.n() as usize, 0);
            source.read_at(self.at, &mut compact)?;
        }
        let span = Span { offset: self.at, bytes: self.blob };
        let raw = super::raw_entry(&self.header, &self.layout, span, scales.len(), error);
        let entry = self.writer.admit(self.header.name, raw, &compact, scales)?;
        let sum = match self.hashed == self.blob {
            true => self.hash.digest(),
            false => self.read_back(&source)?,
        };
        self.writer.append(entry, sum, scales)?;
        self.finished = true;
        Ok(())
    }

    /// The checksum of pieces that did not come in their order: the file's, whose pieces must be those written.
    fn read_back(&mut self, source: &PackFile) -> Result<u64> {
        self.early.push((0..self.hashed, self.hash.digest()));
        self.early.sort_unstable_by_key(|(piece, _)| (piece.start, piece.end));
        let mut whole = Xxh3Default::new();
        let mut buffer = vec![0; verify::CHUNK];
        for (piece, expected) in &self.early {
            let span = Span { offset: self.at + piece.start, bytes: piece.end - piece.start };
            let read = |chunk: &[u8]| whole.update(chunk);
            let found = verify::hash(source, span, &mut buffer, read)?;
            if found != *expected {
                let (name, part) = (self.header.name.into(), Part::Blob);
                return Err(PackError::Checksum { name, part, found, expected: *expected });
            }
        }
        Ok(whole.digest())
    }

    fn size(&self, bytes: u64) -> PackError {
        let (name, expected) = (self.header.name.into(), self.blob);
        PackError::Size { name, part: Part::Blob, bytes, expected }
    }
}

impl Drop for WeightWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.writer.cut_back();
        }
    }
}

impl std::fmt::Debug for WeightWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightWriter")
            .field("header", &self.header)
            .field("blob", &self.blob)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}
