//! A file mapped read-only.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// A whole file, mapped read-only and private to this process's view.
///
/// Others must not shorten or rewrite the file while it is mapped: reading past a new end kills
/// the process (SIGBUS), and changed bytes are seen. Programs that replace model files do so by
/// rename, which leaves a mapping on the old file; all writers of this crate do.
///
/// ```
/// let file = tempfile::NamedTempFile::new()?;
/// std::fs::write(file.path(), b"weights")?;
/// let mapping = ork_weights::Mapping::open(file.path())?;
/// assert_eq!(mapping.as_ref(), b"weights");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Mapping {
    map: memmap2::Mmap,
}

impl Mapping {
    /// Maps the file at `path`.
    ///
    /// ```
    /// let folder = tempfile::tempdir()?;
    /// assert!(ork_weights::Mapping::open(folder.path()).is_err()); // a folder
    /// assert!(ork_weights::Mapping::open(folder.path().join("none")).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of opening and mapping it; a folder is refused.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Mapping> {
        Mapping::of(&crate::open_regular(path.as_ref())?)
    }

    /// Maps an open file.
    ///
    /// ```
    /// use ork_weights::Mapping;
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(file.path(), b"weights")?;
    /// let mapping = Mapping::of(&std::fs::File::open(file.path())?)?; // outlives the descriptor
    /// assert_eq!(mapping.as_ref(), b"weights");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of mapping; [`io::ErrorKind::InvalidInput`] when it is no regular file.
    pub fn of(file: &File) -> io::Result<Mapping> {
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the mapping is read-only and only ever read as bytes, any value of which is
        // valid. That no one truncates or rewrites the file meanwhile is asked of the user above;
        // this crate replaces files by rename only.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Mapping { map })
    }

    /// Tells the kernel that `range` is about to be read, front to back. A hint: failure changes
    /// nothing but speed and is not reported.
    ///
    /// ```
    /// use ork_weights::Mapping;
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(file.path(), vec![7; 1 << 20])?;
    /// let mapping = Mapping::open(file.path())?;
    /// mapping.will_read(0..1 << 20); // the disk is at work while something else is computed
    /// assert_eq!(mapping.as_ref()[1 << 19], 7);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn will_read(&self, range: Range<usize>) {
        let Range { start, end } = range;
        if start < end && end <= self.map.len() {
            let _ = self.map.advise_range(memmap2::Advice::WillNeed, start, end - start);
        }
    }

    /// Drops the pages that lie wholly inside `range` from this process; a later read brings them
    /// back from the file. Ranges outside the file are ignored.
    ///
    /// ```
    /// use ork_weights::Mapping;
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(file.path(), vec![7; 1 << 20])?;
    /// let mapping = Mapping::open(file.path())?;
    /// mapping.evict(0..1 << 20)?;
    /// assert_eq!(mapping.as_ref()[0], 7); // read again from the file
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// That of madvise.
    pub fn evict(&self, range: Range<usize>) -> io::Result<()> {
        let page = rustix::param::page_size();
        let Some(start) = range.start.checked_next_multiple_of(page) else { return Ok(()) };
        // The last page of the file may go although the file ends inside it.
        let end = match range.end >= self.map.len() {
            true => self.map.len(),
            false => range.end / page * page,
        };
        if start >= end {
            return Ok(());
        }
        // SAFETY: the range lies in the mapping, which is of a file and never written, so dropped
        // pages read back as the same bytes.
        unsafe {
            self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
        }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_pages_read_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        let mapping = Mapping::open(file.path()).unwrap();
        assert_eq!(mapping.as_ref(), bytes);
        for range in [0..100_000, 1..99_999, 5..6, 99_999..100_000, 0..0, 90_000..usize::MAX] {
            mapping.will_read(range.clone());
            mapping.evict(range).unwrap();
            assert_eq!(mapping.as_ref(), bytes);
        }
    }

    #[test]
    fn empty_files_and_folders() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Mapping::open(file.path()).unwrap().as_ref().is_empty());
        Mapping::open(file.path()).unwrap().evict(0..1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        assert!(Mapping::open(folder.path()).is_err());
    }
}
