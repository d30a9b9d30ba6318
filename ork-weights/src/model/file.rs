//! Bytes of a model file, mapped or read.

use super::error::ModelError;
use crate::Mapping;
use rustix::fs::{Advice, OFlags};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How the bytes of weights are read.
///
/// ```
/// use ork_weights::model::Read;
///
/// assert_eq!("direct".parse(), Ok(Read::Direct));
/// assert_eq!(Read::default(), Read::Mapped);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Read {
    /// Through a mapping, page by page as they are used.
    #[default]
    Mapped,
    /// By large reads past the page cache (O_DIRECT) where the filesystem can, else through it.
    Direct,
}

/// A text that names no way to read.
///
/// ```
/// let error = "fast".parse::<ork_weights::model::Read>().unwrap_err();
/// assert_eq!(error.to_string(), "\"fast\" is no way to read: mmap or direct");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no way to read: mmap or direct")]
#[non_exhaustive]
pub struct ParseReadError {
    /// The text.
    pub text: Box<str>,
}

impl std::str::FromStr for Read {
    type Err = ParseReadError;

    /// `mmap` or `direct`.
    fn from_str(text: &str) -> Result<Read, ParseReadError> {
        match text {
            "mmap" => Ok(Read::Mapped),
            "direct" => Ok(Read::Direct),
            _ => Err(ParseReadError { text: text.into() }),
        }
    }
}

/// Offsets and lengths of direct reads are multiples of this; so is the buffer's address.
const ALIGNMENT: u64 = 4096;

/// An open model file. The header is always read through the mapping.
#[derive(Debug)]
pub(super) struct ModelFile {
    pub(super) path: PathBuf,
    pub(super) mapping: Mapping,
    pub(super) modified_ns: u64,
    direct: Option<File>,
}

impl ModelFile {
    pub(super) fn open(path: &Path, read: Read) -> Result<ModelFile, ModelError> {
        let file = File::open(path).map_err(ModelError::io("open", path))?;
        let metadata = file.metadata().map_err(ModelError::io("look at", path))?;
        let mapping = Mapping::of(&file).map_err(ModelError::io("map", path))?;
        let direct = match read {
            Read::Mapped => None,
            Read::Direct => Some(direct(path).unwrap_or(file)),
        };
        let modified = metadata.modified().ok();
        let modified_ns = modified
            .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
            .map_or(0, |age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        Ok(ModelFile { path: path.to_owned(), mapping, modified_ns, direct })
    }

    pub(super) fn len(&self) -> u64 {
        self.mapping.as_ref().len() as u64
    }

    /// The bytes of `range`.
    pub(super) fn bytes(&self, range: Range<u64>) -> io::Result<Bytes<'_>> {
        let (Ok(start), Ok(end)) = (usize::try_from(range.start), usize::try_from(range.end))
        else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match &self.direct {
            None => match self.mapping.as_ref().get(start..end) {
                Some(bytes) => Ok(Bytes::Mapped(bytes)),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            },
            Some(file) => read(file, range),
        }
    }

    /// Has the pages of `range` brought in, if they go through the page cache.
    pub(super) fn will_read(&self, range: Range<u64>) {
        let end = usize::try_from(range.end).unwrap_or(usize::MAX);
        if let (None, Ok(start)) = (&self.direct, usize::try_from(range.start)) {
            self.mapping.will_read(start..end);
        }
    }

    /// Forgets the pages of `range`: those of the mapping, or of the page cache if they were read
    /// through it. Failing costs memory and nothing else.
    pub(super) fn evict(&self, range: Range<u64>) {
        match &self.direct {
            None => {
                let end = usize::try_from(range.end).unwrap_or(usize::MAX);
                if let Ok(start) = usize::try_from(range.start) {
                    let _ = self.mapping.evict(start..end);
                }
            }
            Some(file) => {
                let length = std::num::NonZeroU64::new(range.end.saturating_sub(range.start));
                let _ = rustix::fs::fadvise(file, range.start, length, Advice::DontNeed);
            }
        }
    }
}

/// Opens past the page cache; fails where the filesystem does not do that.
fn direct(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECT.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Reads whole aligned blocks around `range`.
fn read(file: &File, range: Range<u64>) -> io::Result<Bytes<'static>> {
    let start = range.start / ALIGNMENT * ALIGNMENT;
    let skip = (range.start - start) as usize;
    let wanted = (range.end - start) as usize;
    let mut buffer = vec![0; wanted.next_multiple_of(ALIGNMENT as usize) + ALIGNMENT as usize];
    let aligned = buffer.as_ptr().align_offset(ALIGNMENT as usize).min(ALIGNMENT as usize);
    let room = buffer.len() - ALIGNMENT as usize;
    let target = &mut buffer[aligned..aligned + room];
    let mut filled = 0;
    while filled < wanted {
        match file.read_at(&mut target[filled..], start + filled as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Bytes::Read { buffer, range: aligned + skip..aligned + wanted })
}

/// Bytes of a weight.
#[derive(Debug)]
pub(super) enum Bytes<'a> {
    /// In the mapping.
    Mapped(&'a [u8]),
    /// In a buffer, with what alignment made of it around them.
    Read { buffer: Vec<u8>, range: Range<usize> },
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(bytes) => bytes,
            Bytes::Read { buffer, range } => &buffer[range.clone()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_read_the_same() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let content: Vec<u8> = (0..50_001u32).map(|i| ((i * 31) >> 4) as u8).collect();
        std::fs::write(file.path(), &content).unwrap();
        for how in [Read::Mapped, Read::Direct] {
            let model = ModelFile::open(file.path(), how).unwrap();
            for range in [0..0, 0..1, 5..4096, 4095..4097, 8192..50_001, 0..50_001, 50_000..50_001]
            {
                let wanted = &content[range.start as usize..range.end as usize];
                assert_eq!(&*model.bytes(range.clone()).unwrap(), wanted, "{how:?} {range:?}");
                model.evict(range.clone());
                assert_eq!(&*model.bytes(range).unwrap(), wanted);
            }
            let error = model.bytes(50_000..50_002).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        assert!("mmap".parse::<Read>().is_ok() && "O_DIRECT".parse::<Read>().is_err());
    }
}
