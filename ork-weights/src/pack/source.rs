//! Where the bytes of a pack come from: memory, a mapping, or a file read by position.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::error::{PackError, Result};
use super::mapping::Mapping;

/// Random access to the bytes of a pack.
///
/// Everything that is `AsRef<[u8]>` is a source, so a pack can be read from a `Vec<u8>` or a slice.
///
/// ```
/// use ork_weights::pack::{Pack, Result, Source};
/// use std::cell::Cell;
/// use std::ops::Range;
///
/// /// Bytes that count how often they are asked for.
/// struct Counted(Vec<u8>, Cell<usize>);
///
/// impl Source for Counted {
///     fn size(&self) -> u64 {
///         Source::size(&self.0)
///     }
///
///     fn bytes(&self, _: Range<u64>) -> Option<&[u8]> {
///         None // so that all goes through `read_at`
///     }
///
///     fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
///         self.1.set(self.1.get() + 1);
///         Source::read_at(&self.0, offset, out)
///     }
/// }
///
/// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// # writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// # writer.finish()?;
/// let pack = Pack::parse(Counted(std::fs::read(&path)?, Cell::new(0)))?;
/// assert!(pack.source().1.get() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Source {
    /// Length in bytes.
    fn size(&self) -> u64;

    /// The bytes themselves, if they lie in memory and inside; `None` sends the reader to
    /// [`Source::read_at`].
    fn bytes(&self, range: Range<u64>) -> Option<&[u8]>;

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// [`PackError::Io`] when the range is not there or cannot be read.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Whether this is still what was opened.
    ///
    /// # Errors
    /// [`PackError::Changed`] when size or modification time of the file differ.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl<B: AsRef<[u8]>> Source for B {
    fn size(&self) -> u64 {
        self.as_ref().len() as u64
    }

    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        slice(self.as_ref(), range)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        copy(self.as_ref(), offset, out, Path::new("pack in memory"))
    }
}

/// The part of `bytes` that `range` names, if it is inside.
pub(crate) fn slice(bytes: &[u8], range: Range<u64>) -> Option<&[u8]> {
    bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// [`Source::read_at`] of bytes in memory.
pub(crate) fn copy(bytes: &[u8], offset: u64, out: &mut [u8], path: &Path) -> Result<()> {
    let end = offset.saturating_add(out.len() as u64);
    let from = slice(bytes, offset..end)
        .ok_or_else(|| PackError::io("read", path)(io::ErrorKind::UnexpectedEof.into()))?;
    out.copy_from_slice(from);
    Ok(())
}

/// `range` of a source, borrowed where possible.
pub(crate) fn fetch<S: Source>(source: &S, range: Range<u64>) -> Result<Cow<'_, [u8]>> {
    if let Some(bytes) = source.bytes(range.clone()) {
        return Ok(Cow::Borrowed(bytes));
    }
    let len = usize::try_from(range.end.saturating_sub(range.start)).ok();
    // Never more than the source has, whoever asks.
    let len = len.filter(|_| range.end <= source.size()).ok_or_else(|| {
        PackError::io("read", Path::new("pack"))(io::ErrorKind::UnexpectedEof.into())
    })?;
    let mut bytes = vec![0; len];
    source.read_at(range.start, &mut bytes)?;
    Ok(Cow::Owned(bytes))
}

/// How to reach the bytes of a pack file.
///
/// ```
/// use ork_weights::pack::{Access, Dtype, Pack, PackWriter, WriterOptions};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("small.orkpack");
/// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// writer.finish()?;
///
/// let pack = Pack::open_with(&path, Access::Pread)?;
/// std::fs::File::options().write(true).open(&path)?.set_len(100)?; // somebody cuts it
/// let error = pack.load_into(&pack.entries()[0], &mut [0; 4096]).unwrap_err();
/// assert!(error.to_string().contains("changed while it was open"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Map the file: loads are plain copies out of the page cache. Safe to use only while nobody
    /// shortens the file in place, since touching a page that is gone raises SIGBUS. Packs that this
    /// library writes are replaced by renaming and never shortened.
    #[default]
    Map,
    /// Read by position: a file that is cut or removed under the reader is an error, never a signal.
    /// The choice for packs that other programs rewrite in place, and for network file systems.
    Pread,
}

/// A pack file, reached as [`Access`] says.
///
/// ```
/// use ork_weights::pack::{Access, PackFile};
///
/// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// # writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// # writer.finish()?;
/// assert!(matches!(PackFile::open(&path, Access::Map)?, PackFile::Mapping(_)));
/// assert!(matches!(PackFile::open(&path, Access::Pread)?, PackFile::Pread(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum PackFile {
    /// Mapped.
    Mapping(Mapping),
    /// Read by position.
    Pread(Pread),
}

impl PackFile {
    /// Opens the file.
    ///
    /// # Errors
    /// [`PackError::Io`] when it cannot be opened or mapped.
    pub fn open(path: &Path, access: Access) -> Result<PackFile> {
        Ok(match access {
            Access::Map => PackFile::Mapping(Mapping::open(path)?),
            Access::Pread => PackFile::Pread(Pread::open(path)?),
        })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        match self {
            PackFile::Mapping(map) => map.file(),
            PackFile::Pread(file) => file.file(),
        }
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        match self {
            PackFile::Mapping(map) => map.path(),
            PackFile::Pread(file) => file.path(),
        }
    }

    fn inner(&self) -> &dyn Source {
        match self {
            PackFile::Mapping(map) => map,
            PackFile::Pread(file) => file,
        }
    }
}

impl Source for PackFile {
    fn size(&self) -> u64 {
        self.inner().size()
    }

    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        self.inner().bytes(range)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.inner().read_at(offset, out)
    }

    fn check(&self) -> Result<()> {
        self.inner().check()
    }
}

/// A file that is read by position, with what it was when it was opened.
///
/// ```
/// use ork_weights::pack::{Pack, Pread};
///
/// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// # writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// # writer.finish()?;
/// let pack = Pack::parse(Pread::open(&path)?)?;
/// assert_eq!(pack.source().path(), path);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pread {
    file: File,
    path: PathBuf,
    size: u64,
    modified: Option<SystemTime>,
}

impl Pread {
    /// Opens the file for reading.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn open(path: &Path) -> Result<Pread> {
        let (file, _) = crate::file::open(path).map_err(PackError::io("open", path))?;
        Pread::from_file(file, path)
    }

    pub(crate) fn from_file(file: File, path: &Path) -> Result<Pread> {
        let stat = file.metadata().map_err(PackError::io("stat", path))?;
        Ok(Pread { file, path: path.into(), size: stat.len(), modified: stat.modified().ok() })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Source for Pread {
    fn size(&self) -> u64 {
        self.size
    }

    fn bytes(&self, _: Range<u64>) -> Option<&[u8]> {
        None
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, offset).map_err(PackError::io("read", &self.path))
    }

    fn check(&self) -> Result<()> {
        let stat = self.file.metadata().map_err(PackError::io("stat", &self.path))?;
        let changed = |what| Err(PackError::Changed { path: self.path.clone(), what });
        if stat.len() != self.size {
            changed("its size differs")
        } else if stat.modified().ok() != self.modified {
            changed("its modification time differs")
        } else {
            Ok(())
        }
    }
}
