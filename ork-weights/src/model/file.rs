//! Bytes of a model file: read by position, through the page cache or past it.

use super::error::ModelError;
use super::gguf::{Gguf, GgufError};
use crate::direct::{DirectFile, DirectReads};
use rayon::prelude::*;
use rustix::fs::Advice;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

/// How the bytes of weights are read.
///
/// ```
/// use ork_weights::model::Read;
///
/// assert_eq!("direct".parse(), Ok(Read::Direct));
/// assert_eq!(Read::default(), Read::Buffered);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Read {
    /// By position, through the page cache, a piece at a time into memory that is used again. A
    /// file that is cut or rewritten meanwhile is an error.
    #[default]
    Buffered,
    /// As [`Read::Buffered`], but past the page cache (O_DIRECT) where the filesystem can.
    Direct,
}

/// A text that names no way to read.
///
/// ```
/// let error = "fast".parse::<ork_weights::model::Read>().unwrap_err();
/// assert_eq!(error.to_string(), "\"fast\" is no way to read: pread or direct");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no way to read: pread or direct")]
#[non_exhaustive]
pub struct ParseReadError {
    /// The text.
    pub text: Box<str>,
}

impl std::str::FromStr for Read {
    type Err = ParseReadError;

    /// `pread` or `direct`.
    fn from_str(text: &str) -> Result<Read, ParseReadError> {
        match text {
            "pread" => Ok(Read::Buffered),
            "direct" => Ok(Read::Direct),
            _ => Err(ParseReadError { text: text.into() }),
        }
    }
}

/// What is read past the page cache begins and ends at multiples of this, in the file and in memory.
const PAGE: u64 = 4096;
/// Bytes that one thread reads at a time: what its cache holds beside its work.
const CHUNK: usize = 256 << 10;

/// An open model file. Headers and samples are always read by position.
#[derive(Debug)]
pub(crate) struct ModelFile {
    pub(crate) path: PathBuf,
    file: File,
    len: u64,
    modified: Option<SystemTime>,
    /// The file again, for weights that are read past the page cache.
    direct: OnceLock<DirectFile>,
    /// Buffers that no reader has at the moment.
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl ModelFile {
    pub(crate) fn open(path: &Path, read: Read) -> Result<ModelFile, ModelError> {
        let (file, stat) = crate::regular_file::open(path).map_err(ModelError::io("open", path))?;
        let (len, modified) = (stat.len(), stat.modified().ok());
        let (direct, spare) = (OnceLock::new(), Arc::default());
        let opened = ModelFile { path: path.to_owned(), file, len, modified, direct, spare };
        if read == Read::Direct {
            // Where the file system can't, it is read through the page cache.
            let _ = opened.read_directly();
        }
        Ok(opened)
    }

    /// The files of one model are read with the same buffers: one after the other, each would keep its own.
    pub(crate) fn share_buffers(files: &mut [ModelFile]) {
        let Some((first, others)) = files.split_first_mut() else { return };
        others.iter_mut().for_each(|file| file.spare = Arc::clone(&first.spare));
    }

    /// From now on weights are read past the page cache.
    pub(crate) fn read_directly(&self) -> io::Result<()> {
        if self.direct.get().is_none() {
            // Another thread may have been faster: one is as good as the other.
            let _ = self.direct.set(DirectFile::open(&self.file)?);
        }
        Ok(())
    }

    /// What was read past the page cache; `None` where nothing is to be.
    pub(crate) fn direct_reads(&self) -> Option<DirectReads> {
        self.direct.get().map(DirectFile::reads)
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Time of its last change in nanoseconds since 1970, 0 when unknown.
    pub(crate) fn modified_ns(&self) -> u64 {
        let age = self.modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        age.map_or(0, |age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Fills `out` from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    /// Its header, if it is a GGUF.
    pub(crate) fn gguf(&self) -> Result<Result<Gguf, GgufError>, ModelError> {
        Gguf::read(self.len, |offset, out| self.read_at(offset, out))
            .map_err(|error| self.failed("its header", 0, error))
    }

    /// For `map_err` on reads of `what` from `offset` on.
    pub(crate) fn failed(
        &self,
        what: impl Into<String>,
        offset: u64,
        error: io::Error,
    ) -> ModelError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                ModelError::Shortened { path: self.path.clone(), what: what.into(), offset }
            }
            _ => ModelError::io("read", &self.path)(error),
        }
    }

    /// Whether length and time are those of the opening.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let stat = self.file.metadata().map_err(ModelError::io("look at", &self.path))?;
        let changed = |what| Err(ModelError::Changed { path: self.path.clone(), what });
        if stat.len() != self.len {
            return changed("its size differs");
        }
        if stat.modified().ok() != self.modified {
            return changed("its modification time differs");
        }
        Ok(())
    }

    /// Hands the bytes of `range` to `work`.
    pub(crate) fn with<T>(
        &self,
        range: Range<u64>,
        work: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<T> {
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let bytes = range.end.checked_sub(range.start).ok_or_else(cut)?;
        let bytes = usize::try_from(bytes).map_err(|_| cut())?;
        if range.end > self.len {
            return Err(cut());
        }
        let mut buffer = self.spare().pop().unwrap_or_default();
        let done = self.fill(range.start, bytes, &mut buffer).map(work);
        self.spare().push(buffer);
        done
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        // A panic elsewhere leaves nothing half done here.
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads `bytes` from `start` on, which the file has, into `buffer`, which grows as needed.
    fn fill<'b>(&self, start: u64, bytes: usize, buffer: &'b mut Vec<u8>) -> io::Result<&'b [u8]> {
        let Some(direct) = self.direct.get() else {
            grow(buffer, bytes);
            let target = &mut buffer[..bytes];
            target.par_chunks_mut(CHUNK).enumerate().try_for_each(|(index, chunk)| {
                self.read_at(start + (index * CHUNK) as u64, chunk)
            })?;
            return Ok(target);
        };
        // Whole blocks around what is asked for, so that nothing of it goes through the cache; one
        // thread, in order, with several pieces under way.
        let from = start - start % PAGE;
        let end = (start + bytes as u64).next_multiple_of(PAGE).min(self.len);
        let (skip, room) = ((start - from) as usize, (end - from) as usize);
        // As much for all reads of this length, however they lie between pages.
        grow(buffer, bytes + 3 * PAGE as usize);
        let aligned = buffer.as_ptr().align_offset(PAGE as usize).min(PAGE as usize);
        let target = &mut buffer[aligned..aligned + room];
        direct.read(&self.file, from, target)?;
        Ok(&target[skip..skip + bytes])
    }

    /// Has the pages of `range` brought in, if they go through the page cache. A hint.
    pub(crate) fn will_read(&self, range: Range<u64>) {
        if self.direct.get().is_none() {
            self.advise(range, Advice::WillNeed);
        }
    }

    /// Forgets the pages of `range`, if they went through the page cache. Failing costs memory and
    /// nothing else.
    pub(crate) fn evict(&self, range: Range<u64>) {
        if self.direct.get().is_none() {
            self.advise(range, Advice::DontNeed);
        }
    }

    fn advise(&self, range: Range<u64>, advice: Advice) {
        let length = std::num::NonZeroU64::new(range.end.saturating_sub(range.start));
        if length.is_some() {
            let _ = rustix::fs::fadvise(&self.file, range.start, length, advice);
        }
    }
}

/// Makes room for `bytes`. What was there goes first: both at once would be twice the memory.
fn grow(buffer: &mut Vec<u8>, bytes: usize) {
    if buffer.len() < bytes {
        *buffer = Vec::new();
        *buffer = vec![0; bytes];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(content: &[u8], how: Read) -> (tempfile::NamedTempFile, ModelFile) {
        // Beside the sources: a temporary folder may be memory, which O_DIRECT does not do.
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        std::fs::write(file.path(), content).unwrap();
        let model = ModelFile::open(file.path(), how).unwrap();
        (file, model)
    }

    const WAYS: [Read; 2] = [Read::Buffered, Read::Direct];

    #[test]
    fn all_ways_read_the_same() {
        let content: Vec<u8> = (0..600_001u32).map(|i| ((i * 31) >> 4) as u8).collect();
        for how in WAYS {
            let (_file, model) = opened(&content, how);
            for range in [0..0, 0..1, 5..4096, 4095..4097, 8192..600_001, 0..600_001, 7..300_000] {
                let wanted = &content[range.start as usize..range.end as usize];
                model.will_read(range.clone());
                for _ in 0..2 {
                    let equal = model.with(range.clone(), |bytes| bytes == wanted).unwrap();
                    assert!(equal, "{how:?} {range:?}");
                    model.evict(range.clone());
                }
            }
            let past = model.with(600_000..600_002, |_| ()).unwrap_err();
            assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
            model.check().unwrap();
        }
    }

    #[test]
    fn a_file_that_is_cut_is_an_error() {
        for how in WAYS {
            let (file, model) = opened(&[7; 50_000], how);
            file.as_file().set_len(20_000).unwrap();
            let gone = model.with(16_000..30_000, |_| ()).unwrap_err();
            assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof, "{how:?}");
            assert!(model.with(0..16_000, |bytes| bytes == [7; 16_000]).unwrap());
            assert!(matches!(model.check(), Err(ModelError::Changed { .. })));
        }
    }

    #[test]
    fn ways_have_names() {
        for (name, how) in [("pread", Read::Buffered), ("direct", Read::Direct)] {
            assert_eq!(name.parse(), Ok(how));
        }
        assert!("mmap".parse::<Read>().is_err());
    }
}
