//! A file mapped read-only.
#![allow(unsafe_code, reason = "what a mapping asks of its file nobody but the caller can know")]

use std::io;
use std::path::Path;

/// A whole file, mapped read-only: a [`Source`](crate::pack::Source) of a pack that is read in place.
///
/// Packs are read by position unless one is given this; it is for those who read tiles where the page
/// cache holds them, on files that are theirs alone.
///
/// ```
/// use ork_weights::{Mapping, pack::Pack};
///
/// # let file = ork_weights::doc::pack()?;
/// # let path = file.path();
/// // SAFETY: nobody else knows of this file.
/// let pack = Pack::parse(unsafe { Mapping::open(&path)? })?;
/// let blob = pack.entries()[0].blob_range();
/// assert_eq!(pack.source().as_ref()[blob.start as usize..blob.end as usize], [1; 4096]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
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
    /// // SAFETY: nothing is mapped.
    /// unsafe {
    ///     assert!(ork_weights::Mapping::open(folder.path()).is_err()); // a folder
    ///     assert!(ork_weights::Mapping::open(folder.path().join("none")).is_err());
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of opening and mapping it; whatever is no regular file is refused.
    ///
    /// # Safety
    /// As long as the mapping lives, nobody may write to the file or shorten it, in this process or in
    /// another: the bytes behind `&[u8]` would change, or reading them would kill the process (SIGBUS).
    /// Replacing the file by a rename is no such change, and all that
    /// [`PackWriter`](crate::pack::PackWriter) does to a pack that stands.
    pub unsafe fn open(path: impl AsRef<Path>) -> io::Result<Mapping> {
        let (file, _) = crate::regular_file::open(path.as_ref())?;
        // SAFETY: the caller promises that nobody changes the file under the mapping, which is all
        // that this asks; the mapping is private and read-only, and a regular file was looked for.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Mapping { map })
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
    fn files_are_mapped_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // SAFETY: the folder is this test's alone.
        let open = |path: &Path| unsafe { Mapping::open(path) };
        for bytes in [Vec::new(), vec![7; 100_000]] {
            std::fs::write(&path, &bytes).unwrap();
            let mapping = open(&path).unwrap();
            assert_eq!(mapping.as_ref(), bytes);
            // Another file under the same name leaves the mapping as it is.
            std::fs::write(folder.path().join("new"), b"other").unwrap();
            std::fs::rename(folder.path().join("new"), &path).unwrap();
            assert_eq!(mapping.as_ref(), bytes);
        }
        for other in [folder.path(), Path::new("/dev/zero")] {
            assert_eq!(open(other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
