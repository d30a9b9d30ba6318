//! A pack file, read by position.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::error::{PackError, Result};
use super::source::Source;

/// A pack file that is read by position, with what it was when it was opened. One that is cut,
/// rewritten or lost meanwhile is an error of the next load, never other bytes and never a signal.
///
/// ```
/// use ork_weights::pack::Pack;
///
/// # let file = ork_weights::doc::pack()?;
/// # let path = file.path();
/// let pack = Pack::open(&path)?; // a `Pack<PackFile>`
/// std::fs::File::options().write(true).open(&path)?.set_len(100)?; // somebody cuts it
/// let error = pack.load_into(&pack.entries()[0], &mut [0; 4096]).unwrap_err();
/// assert!(error.to_string().contains("changed while it was open"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PackFile {
    file: File,
    path: PathBuf,
    size: u64,
    modified: Option<SystemTime>,
}

impl PackFile {
    /// Opens the file for reading.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn open(path: &Path) -> Result<PackFile> {
        let (file, _) = crate::regular_file::open(path).map_err(PackError::io("open", path))?;
        PackFile::from_file(file, path)
    }

    pub(crate) fn from_file(file: File, path: &Path) -> Result<PackFile> {
        let stat = file.metadata().map_err(PackError::io("stat", path))?;
        Ok(PackFile { file, path: path.into(), size: stat.len(), modified: stat.modified().ok() })
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

impl Source for PackFile {
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
