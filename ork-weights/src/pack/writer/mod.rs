//! Building a pack: weight by weight into a partial file beside the target, renamed when it is whole.

mod disk;
mod journal;
mod target;

use std::collections::HashMap;
use std::fs::File;

use std::ops::Range;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use self::disk::{Disk, Os};
use self::journal::Job;
use self::target::{Existing, Paths};
use super::entry::{Checksums, Entry, Span};
use super::error::{PackError, Result};
use super::format::extension::{self, Extension, PACKER};
use super::format::footer::{Footer, Form};
use super::format::index::{self, MAX_NAME, RawEntry};
use super::format::stamp;
use super::reader::Pack;
use super::source::{Pread, Source};
use super::verify;
use super::{Dtype, Identity, Part};
use rknpu_sys::layout::{Layout, PAGE};

/// How a pack is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Container version: 2, 5 or 7. Readers of the C project accept exactly one each.
    pub version: u32,
    /// Whether tiled blobs get a stamp page, which the newest loaders of the C project demand.
    pub stamped: bool,
    /// Overwrite whatever stands at the target, and start over instead of going on with an
    /// interrupted conversion of something else.
    pub replace: bool,
    /// Hash of the settings that decide what the codes are; packs of other settings are not mixed.
    pub recipe: u64,
    /// Tier signature for versions 5 and 7, see [`Pack::signature`].
    pub signature: u32,
    /// Weights there will be, if known: finishing with fewer is an error.
    pub expected: Option<u32>,
}

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions {
            version: 2,
            stamped: false,
            replace: false,
            recipe: 0,
            signature: 0,
            expected: None,
        }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The finished pack.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its weights.
    pub weights: u32,
    /// How many of them an interrupted run had left.
    pub resumed: u32,
}

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
    /// # Errors
    /// [`PackError::Locked`] while another process writes this target; [`PackError::TargetExists`]
    /// when something stands there that must not be lost; [`PackError::WriteVersion`];
    /// [`PackError::Io`].
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
            2 => Form::ENTRY_40,
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
            options,
        };
        writer.resume()?;
        Ok(writer)
    }

    /// Takes over what an interrupted run of the same job left, and cuts both files to that.
    fn resume(&mut self) -> Result<()> {
        let path = self.paths.journal.clone();
        let Some(job) = Job::new(self.identity.as_ref(), &self.options) else {
            self.disk.remove(&path).map_err(PackError::io("remove", &path))?;
            return self.cut(0);
        };
        let file = target::open(&path)?;
        let mut end = journal::HEADER as u64;
        let found = std::fs::read(&path).map_err(PackError::io("read", &path))?;
        let mut fresh = true;
        if let Some((interrupted, records)) = journal::read(&found) {
            match job.differs(&interrupted) {
                None => {
                    fresh = false;
                    end = self.take_over(records, end)?;
                }
                Some(what) if !self.options.replace => {
                    let path = self.paths.partial.clone();
                    return Err(PackError::PartialDiffers { path, what });
                }
                Some(_) => {}
            }
        }
        self.cut(self.end)?;
        if fresh {
            let header = job.encode();
            self.disk.write_at(&file, &header, 0).map_err(PackError::io("write", &path))?;
        }
        self.disk.set_len(&file, end).map_err(PackError::io("truncate", &path))?;
        self.journal = Some(Journal { file, end });
        Ok(())
    }

    /// Adopts records up to the first whose bytes are not there as written; returns the length of
    /// the journal up to there.
    fn take_over(&mut self, records: Vec<(Entry, u64)>, header: u64) -> Result<u64> {
        let path = &self.paths.partial;
        let file = self.file.try_clone().map_err(PackError::io("reopen", path))?;
        let source = Pread::from_file(file, path)?;
        let (entries, ends): (Vec<Entry>, Vec<u64>) = records.into_iter().unzip();
        let good = verify::all_checksums(&source, &entries);
        let mut journal_end = header;
        for ((entry, sound), end) in entries.into_iter().zip(good).zip(ends) {
            let in_place = entry.blob.offset == self.end.next_multiple_of(PAGE);
            if sound.is_err() || !in_place || self.contains(&entry.name) {
                break;
            }
            self.end = entry.scales.range().end.max(entry.blob.range().end);
            self.names.insert(entry.name.clone(), self.entries.len());
            self.entries.push(entry);
            journal_end = end;
        }
        self.resumed = self.entries.len() as u32;
        Ok(journal_end)
    }

    fn cut(&mut self, bytes: u64) -> Result<()> {
        let path = &self.paths.partial;
        self.disk.set_len(&self.file, bytes).map_err(PackError::io("truncate", path))
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

    /// Adds a weight: `blob` is what K, N and dtype give (tiles, or a compact blob), `scales` one per
    /// channel or `[group][channel]`, empty for [`Dtype::O4n1`].
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
        self.add_measured(name, k, n, dtype, blob, scales, None)
    }

    /// [`PackWriter::add`] with the relative RMS error that the codes have against the source.
    ///
    /// # Errors
    /// As [`PackWriter::add`].
    #[allow(clippy::too_many_arguments, reason = "one weight's fields, named at the call by type")]
    pub fn add_measured(
        &mut self,
        name: &str,
        k: u32,
        n: u32,
        dtype: Dtype,
        blob: &[u8],
        scales: &[f32],
        error: Option<f32>,
    ) -> Result<()> {
        let order = self.entries.len() as u32;
        if name.len() > MAX_NAME as usize {
            let bytes = name.len() as u32;
            return Err(PackError::NameLength { entry: order, bytes, max: MAX_NAME });
        }
        if name.is_empty() {
            return Err(PackError::NameEmpty { entry: order });
        }
        if self.names.contains_key(name) {
            return Err(PackError::DuplicateName { name: name.into() });
        }
        if let Some(index) = scales.iter().position(|scale| !scale.is_finite() || *scale < 0.0) {
            return Err(PackError::ScaleValue { name: name.into(), index, value: scales[index] });
        }
        let at = self.end.next_multiple_of(PAGE);
        let stamp = match dtype.stored().filter(|_| self.options.stamped) {
            Some(precision) => {
                let layout = Layout::new(k, n, precision)
                    .map_err(|source| PackError::Shape { name: name.into(), source })?;
                stamp::encode(&layout, 0)
            }
            None => Vec::new(),
        };
        let bytes = (stamp.len() + blob.len()) as u64;
        let scales_at = at + bytes;
        let raw = RawEntry {
            k,
            n,
            dtype: dtype.code(),
            scales: u32::try_from(scales.len()).unwrap_or(u32::MAX),
            blob: Span { offset: at, bytes },
            scales_at: if scales.is_empty() { 0 } else { scales_at },
            full_k: 0,
            error: error.unwrap_or(0.0),
        };
        let mut entry = raw.check(name, order, u64::MAX)?;
        if entry.stamped == stamp.is_empty() {
            // A blob a page too long, or a page too short for its stamp, is no blob of this weight.
            let expected = entry.blob.bytes.saturating_sub(PAGE);
            let part = Part::Blob;
            return Err(PackError::Size {
                name: name.into(),
                part,
                bytes: blob.len() as u64,
                expected,
            });
        }
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        entry.checksums =
            Some(Checksums { blob: checksum(&[&stamp, blob]), scales: xxh3_64(&scales) });
        self.write(&stamp, at)?;
        self.write(blob, at + stamp.len() as u64)?;
        self.write(&scales, scales_at)?;
        self.record(&entry)?;
        self.names.insert(name.into(), self.entries.len());
        self.entries.push(entry);
        self.end = scales_at + scales.len() as u64;
        Ok(())
    }

    /// Embeds a GGUF metadata section: `range` of `source`, copied as it is. Call it after the last
    /// weight; a resumed writer needs it again.
    ///
    /// # Errors
    /// [`PackError::Io`] when reading or writing fails.
    pub fn embed_metadata<S: Source>(&mut self, source: &S, range: Range<u64>) -> Result<()> {
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

    /// Writes index, extension and footer, syncs, reads everything back, and renames onto the target.
    ///
    /// # Errors
    /// [`PackError::Incomplete`] with fewer weights than were expected; [`PackError::TargetExists`]
    /// when the target changed meanwhile or a weight would change its shape;
    /// [`PackError::Checksum`] when the disk gives back other bytes; [`PackError::Io`]. The target is
    /// as before then, and the partial file stays.
    pub fn finish(mut self) -> Result<Summary> {
        let present = self.entries.len() as u32;
        if let Some(expected) = self.options.expected.filter(|expected| *expected != present) {
            return Err(PackError::Incomplete { present, expected });
        }
        let at = self.end.next_multiple_of(PAGE);
        let closing = self.closing(at);
        self.write(&closing, at)?;
        let bytes = at + closing.len() as u64;
        let partial = self.paths.partial.clone();
        self.disk
            .set_len(&self.file, bytes)
            .map_err(PackError::io("set the length of", &partial))?;
        self.disk.sync(&self.file).map_err(PackError::io("sync", &partial))?;
        self.read_back()?;
        let (names, entries) = (&self.names, &self.entries);
        let find = |name: &str| names.get(name).and_then(|at| entries.get(*at));
        if !self.options.replace {
            target::still_replaceable(&self.paths.target, self.existing.as_ref(), find)?;
        }
        let fresh = self.existing.is_none() && !self.options.replace;
        let target = self.paths.target.clone();
        self.disk.rename(&partial, &target, fresh).map_err(PackError::io("rename to", &target))?;
        let folder =
            File::open(&self.paths.folder).map_err(PackError::io("open", &self.paths.folder))?;
        self.disk.sync(&folder).map_err(PackError::io("sync", &self.paths.folder))?;
        // The pack is in place. A journal without its partial file is ignored by the next writer.
        let _ = self.disk.remove(&self.paths.journal);
        let resumed = self.resumed;
        Ok(Summary { path: target, bytes, weights: present, resumed })
    }

    /// Gives up: removes the partial file.
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

    /// Index, extension and footer of a pack whose index starts at `at`.
    fn closing(&self, at: u64) -> Vec<u8> {
        let mut out = Vec::new();
        if self.form.prefix {
            let metadata = self.metadata.unwrap_or(Span { offset: 0, bytes: 0 });
            out.extend(metadata.offset.to_le_bytes());
            out.extend(metadata.bytes.to_le_bytes());
        }
        for entry in &self.entries {
            index::encode(&mut out, entry, self.form);
        }
        let extension = Extension {
            packer: PACKER.to_owned(),
            recipe: self.options.recipe,
            identity: self.identity,
            metadata: self.metadata.filter(|_| !self.form.prefix),
        };
        let section = extension::encode(&extension, &self.entries, &out);
        out.extend(section);
        let footer = Footer {
            version: self.options.version,
            bytes: 0,
            index: at,
            entries: self.entries.len() as u32,
            token: 0,
            signature: self.options.signature,
            calibration: None,
        };
        out.extend(footer.encode());
        out
    }

    fn read_back(&self) -> Result<()> {
        let path = &self.paths.partial;
        let file = self.file.try_clone().map_err(PackError::io("reopen", path))?;
        let pack = Pack::parse(Pread::from_file(file, path)?)?;
        match verify::verify(&pack, &|_| {}).problems.into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // An empty partial file helps nobody. Failing to remove it harms nobody either.
        if self.entries.is_empty() && self.end == 0 {
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

/// XXH3-64 over parts that follow each other.
fn checksum(parts: &[&[u8]]) -> u64 {
    match parts {
        [[], only] => xxh3_64(only),
        _ => {
            let mut hash = xxhash_rust::xxh3::Xxh3Default::new();
            for part in parts {
                hash.update(part);
            }
            hash.digest()
        }
    }
}
