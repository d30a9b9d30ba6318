//! Building a pack: weight by weight into a partial file beside the target, renamed when it is whole.

mod disk;
mod finish;
mod journal;
mod options;
mod pieces;
mod places;
mod resume;
mod target;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use rknpu_sys::layout::{Layout, PAGE};
use xxhash_rust::xxh3::xxh3_64;

use self::disk::{Disk, Os};
pub use self::options::{Summary, WriterOptions};
pub use self::pieces::WeightWriter;
pub use self::places::Places;
use self::target::{Existing, Paths};
use super::dtype::PADDED;
use super::entry::{Checksums, Entry, Span};
use super::error::{PackError, Result};
use super::format::bytes::floats;
use super::format::footer::Form;
use super::format::index::{MAX_NAME, RawEntry};
use super::format::o4n1;
use super::load::refuse_bad_scales;
use super::source::Source;
use super::verify;
use super::{Dtype, Identity};

/// Builds a pack, one weight at a time.
///
/// ```
/// use ork_weights::pack::{Dtype, Identity, PackWriter, WriterOptions};
///
/// let folder = tempfile::tempdir()?;
/// let target = folder.path().join("model.orkpack");
/// let model = Identity { size: 1 << 20, modified_ns: 0, sample_hash: 1, full_hash: None };
/// let mut writer = PackWriter::create(&target, &model, WriterOptions::default())?;
/// writer.add("blk.0.attn_q.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// drop(writer); // interrupted
///
/// let mut writer = PackWriter::create(&target, &model, WriterOptions::default())?;
/// assert!(writer.contains("blk.0.attn_q.weight"));
/// writer.add("blk.0.attn_k.weight", 64, 64, Dtype::Int8, &[2; 4096], &[0.5; 64])?;
/// let summary = writer.finish()?;
/// assert_eq!((summary.weights, summary.resumed), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Bytes go to `<target>.partial`, which is locked while it is written. The target itself is touched
/// by one rename at the very end, after everything was written, synced and read back; until then
/// whatever stood there stands.
///
/// `<target>.journal` records what the partial file holds. A writer that is dropped or killed leaves
/// both, and the next one for the same model and settings goes on with every weight whose checksum
/// still fits; ask [`PackWriter::contains`] before making a weight. Without an identity, or before
/// the first weight, nothing is kept. [`PackWriter::abandon`] removes both.
pub struct PackWriter {
    paths: Paths,
    file: File,
    journal: Option<Journal>,
    disk: Box<dyn Disk>,
    options: WriterOptions,
    form: Form,
    identity: Option<Identity>,
    existing: Option<Existing>,
    entries: Vec<Entry>,
    names: HashMap<Box<str>, usize>,
    metadata: Option<Span>,
    /// End of the last part.
    end: u64,
    resumed: u32,
    /// Whether the partial file is this writer's to remove: not before it was taken over, not after
    /// it was renamed.
    owns_partial: bool,
}

/// A weight that is to be written, but for its bytes: for [`PackWriter::begin`], which shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightHeader<'a> {
    /// Name of the tensor, as for [`Entry::name`].
    pub name: &'a str,
    /// Inputs of the matrix. Its bytes are those of [`Dtype::layout`].
    pub k: u32,
    /// Channels of the matrix.
    pub n: u32,
    /// Storage form.
    pub dtype: Dtype,
}

/// The open journal.
struct Journal {
    file: File,
    end: u64,
}

impl PackWriter {
    /// Begins a pack for `target`.
    ///
    /// `identity` is that of the model, `None` when it is not known.
    ///
    /// ```
    /// use ork_weights::pack::{PackError, PackWriter, WriterOptions};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("small.orkpack");
    /// let _writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// // One writer at a time.
    /// let second = PackWriter::create(&path, None, WriterOptions::default());
    /// assert!(matches!(second, Err(PackError::Locked { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::Locked`] while another process writes this target; [`PackError::TargetExists`]
    /// when something stands there that must not be lost; [`PackError::PartialDiffers`] when an
    /// interrupted conversion of something else does; [`PackError::WriteVersion`];
    /// [`PackError::Io`], also for a target without write permission.
    pub fn create<'a>(
        target: impl AsRef<Path>,
        identity: impl Into<Option<&'a Identity>>,
        options: WriterOptions,
    ) -> Result<PackWriter> {
        PackWriter::on(Box::new(Os), target.as_ref(), identity.into(), options)
    }

    fn on(
        disk: Box<dyn Disk>,
        target: &Path,
        identity: Option<&Identity>,
        options: WriterOptions,
    ) -> Result<PackWriter> {
        let form = match options.version {
            2 | 3 => Form::ENTRY_40,
            5 => Form::ENTRY_48,
            7 => Form::PREFIXED_56,
            version => return Err(PackError::WriteVersion { version }),
        };
        let paths = Paths::new(target)?;
        let existing = target::existing(&paths.target, identity, &options)?;
        let file = paths.lock()?;
        let mut writer = PackWriter {
            paths,
            file,
            journal: None,
            disk,
            form,
            identity: identity.copied(),
            existing,
            entries: Vec::new(),
            names: HashMap::new(),
            metadata: None,
            end: 0,
            resumed: 0,
            owns_partial: false,
            options,
        };
        // A partial file that was made just now holds nothing that anybody could miss.
        writer.owns_partial = writer.file.metadata().is_ok_and(|stat| stat.len() == 0);
        writer.resume()?;
        writer.owns_partial = true;
        Ok(writer)
    }

    /// Whether the pack has this weight already, be it from an interrupted run.
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Weights written so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Weights that an interrupted run had left and that were found whole.
    pub fn resumed(&self) -> u32 {
        self.resumed
    }

    /// Adds a weight whose blob is at hand; [`PackWriter::begin`] takes it in pieces, with the error that
    /// was measured. `blob` is what K, N and dtype give (tiles, or a compact blob), `scales` one per
    /// channel or `[group][channel]`, empty for [`Dtype::O4n1`]; both for the channels of
    /// [`Dtype::layout`].
    ///
    /// ```
    /// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// assert!(writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64]).is_ok());
    /// assert!(writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64]).is_err()); // twice
    /// assert!(writer.add("v", 64, 64, Dtype::Int8, &[1; 100], &[0.5; 64]).is_err()); // too short
    /// assert!(writer.add("v", 64, 64, Dtype::Int8, &[1; 4096], &[f32::NAN; 64]).is_err());
    /// assert_eq!(writer.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same variants as for reading when name, shape, sizes or scales do not agree;
    /// [`PackError::DuplicateName`]; [`PackError::Io`] when the disk is full or fails. After an error
    /// the writer is as before the call and may be used on.
    pub fn add(
        &mut self,
        name: &str,
        k: u32,
        n: u32,
        dtype: Dtype,
        blob: &[u8],
        scales: &[f32],
    ) -> Result<()> {
        let mut weight = self.begin(WeightHeader { name, k, n, dtype })?;
        weight.write_at(0, blob)?;
        weight.finish(scales, None)
    }

    /// Writes the scales of a weight whose blob is written, and takes the weight in.
    fn append(&mut self, mut entry: Entry, sum: u64, scales: &[f32]) -> Result<()> {
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        entry.checksums = Some(Checksums { blob: sum, scales: xxh3_64(&scales) });
        let at = entry.blob.range().end;
        self.write(&scales, at)?;
        self.record(&entry)?;
        self.names.insert(entry.name.clone(), self.entries.len());
        self.entries.push(entry);
        self.end = self.end.max(at + scales.len() as u64);
        Ok(())
    }

    /// Where a weight that is next goes.
    fn place(&self, name: &str) -> u64 {
        let place = self.options.places.as_ref().and_then(|places| places.get(name));
        place.unwrap_or_else(|| self.end.next_multiple_of(PAGE))
    }

    /// Cuts what was written of a weight that failed: it must not show in a gap. If this fails too,
    /// the next weight or the end of the pack overwrites or cuts it.
    fn cut_back(&mut self) {
        let _ = self.disk.set_len(&self.file, self.end);
    }

    fn admit_name(&self, name: &str) -> Result<()> {
        let order = self.entries.len() as u32;
        if name.len() > MAX_NAME as usize {
            let bytes = name.len() as u32;
            return Err(PackError::NameLength { entry: order, bytes, max: MAX_NAME });
        }
        if name.is_empty() {
            return Err(PackError::NameEmpty { entry: order });
        }
        if name.chars().any(char::is_control) {
            return Err(PackError::NameControl { entry: order, name: name.into() });
        }
        if self.names.contains_key(name) {
            return Err(PackError::DuplicateName { name: name.into() });
        }
        Ok(())
    }

    /// The entry of a new weight, if a reader would accept it. `compact` is at least header and scales
    /// of a compact blob.
    fn admit(&self, name: &str, raw: RawEntry, compact: &[u8], scales: &[f32]) -> Result<Entry> {
        self.admit_name(name)?;
        let stored = raw.blob.bytes;
        let entry = raw.check(name, self.entries.len() as u32, u64::MAX)?;
        if entry.dtype == Dtype::O4n1 {
            let (k, n) = (entry.layout.k(), entry.layout.n());
            let inside = o4n1::scales(compact, stored, name, k, n)?;
            refuse_bad_scales(name, floats(inside))?;
        }
        refuse_bad_scales(name, scales.iter().copied())?;
        Ok(entry)
    }

    /// Embeds a GGUF metadata section: `range` of `source`, copied as it is. Call it after the last
    /// weight; a resumed writer needs it again.
    ///
    /// # Errors
    /// [`PackError::Io`] when reading or writing fails.
    pub(crate) fn embed_metadata<S: Source>(
        &mut self,
        source: &S,
        range: Range<u64>,
    ) -> Result<()> {
        let at = self.end.next_multiple_of(PAGE);
        let bytes = range.end.saturating_sub(range.start);
        let mut buffer = vec![0; verify::CHUNK];
        let mut done = 0;
        while done < bytes {
            let len = (bytes - done).min(buffer.len() as u64);
            let chunk = &mut buffer[..len as usize];
            source.read_at(range.start + done, chunk)?;
            self.write(chunk, at + done)?;
            done += len;
        }
        self.metadata = Some(Span { offset: at, bytes });
        self.end = at + bytes;
        Ok(())
    }

    /// Gives up: removes the partial file.
    ///
    /// ```
    /// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
    /// writer.abandon()?;
    /// assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn abandon(mut self) -> Result<()> {
        self.remove_partial()
    }

    fn remove_partial(&mut self) -> Result<()> {
        for path in [&self.paths.journal, &self.paths.partial] {
            self.disk.remove(path).map_err(PackError::io("remove", path))?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.disk
            .write_at(&self.file, bytes, offset)
            .map_err(PackError::io("write", &self.paths.partial))
    }

    /// Notes in the journal that the bytes of `entry` are written.
    fn record(&mut self, entry: &Entry) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let record = journal::record(entry);
        self.disk
            .write_at(&journal.file, &record, journal.end)
            .map_err(PackError::io("write", &self.paths.journal))?;
        journal.end += record.len() as u64;
        Ok(())
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // Nobody can go on with a partial file that is empty or not known to be of one model.
        // Failing to remove it harms nobody: the next writer cuts it.
        if self.owns_partial && (self.entries.is_empty() || self.journal.is_none()) {
            let _ = self.remove_partial();
        }
    }
}

impl std::fmt::Debug for PackWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackWriter")
            .field("target", &self.paths.target)
            .field("weights", &self.entries.len())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// What the index will say of a weight whose scales follow its blob.
fn raw_entry(
    header: &WeightHeader<'_>,
    layout: &Layout,
    blob: Span,
    scales: usize,
    error: Option<f32>,
) -> RawEntry {
    let padded = (header.k, header.n) != (layout.k(), layout.n());
    RawEntry {
        k: header.k,
        n: header.n,
        dtype: header.dtype.code() | if padded { PADDED } else { 0 },
        scales: u32::try_from(scales).unwrap_or(u32::MAX),
        blob,
        scales_at: if scales == 0 { 0 } else { blob.range().end },
        full_k: 0,
        error: error.unwrap_or(0.0),
    }
}
