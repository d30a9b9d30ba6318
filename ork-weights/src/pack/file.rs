//! A pack file, read by position.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use super::error::{PackError, Result};
use super::source::Source;
use crate::direct::{DirectFile, DirectReads};

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
    /// The file again, for weights that are read past the page cache.
    direct: OnceLock<DirectFile>,
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
        let (size, modified) = (stat.len(), stat.modified().ok());
        Ok(PackFile { file, path: path.into(), size, modified, direct: OnceLock::new() })
    }

    /// From now on weights are read past the page cache (O_DIRECT), by the disk into the memory that they
    /// are loaded into, several pieces at once. For packs that do not fit into memory beside what is
    /// loaded of them: each byte is read once, is copied by nobody, and throws nothing out of the cache.
    /// What the kernel refuses is read as before, and [`PackFile::direct_reads`] tells.
    ///
    /// A fork while such a read is under way can lose bytes of memory that the child gets a copy of, in
    /// kernels before 5.12. Device memory is not copied.
    ///
    /// ```
    /// use ork_weights::pack::Pack;
    ///
    /// # let file = ork_weights::doc::pack()?;
    /// # let path = file.path();
    /// let pack = Pack::open(&path)?; // of one int8 weight, 64 × 64
    /// if let Err(error) = pack.source().read_directly() {
    ///     println!("not on this file system: {error}"); // loads go on through the cache
    /// }
    /// let mut tiles = vec![0; 4096];
    /// pack.load_into(&pack.entries()[0], &mut tiles)?;
    /// assert_eq!(tiles, [1; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The file system has no direct reads, or the file can't be opened again.
    pub fn read_directly(&self) -> io::Result<()> {
        if self.direct.get().is_none() {
            let direct = DirectFile::open(&self.file)?;
            // Another thread may have been faster: one is as good as the other.
            let _ = self.direct.set(direct);
        }
        Ok(())
    }

    /// What was read past the page cache; `None` where nothing is to be.
    pub fn direct_reads(&self) -> Option<DirectReads> {
        self.direct.get().map(DirectFile::reads)
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

    fn read_past_cache(&self, offset: u64, out: &mut [u8]) -> Option<Result<()>> {
        let read = self.direct.get()?.read(&self.file, offset, out);
        Some(read.map_err(PackError::io("read", &self.path)))
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
