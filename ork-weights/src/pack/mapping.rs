//! A pack file mapped into memory.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use super::error::{PackError, Result};
use super::source::{Pread, Source, copy, slice};

/// A pack file mapped read-only, together with the open file.
///
/// The bytes must not be shortened while they are mapped: a file cut in place raises SIGBUS on the
/// next touch of a missing page. Each load first asks the system whether size and time are those of
/// the opening, which catches a change that happened before it, not one during the copy. Where other
/// programs rewrite packs in place, use [`Access::Pread`](super::Access::Pread).
///
/// ```
/// use ork_weights::pack::{Mapping, Pack, Source};
///
/// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// # writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// # writer.finish()?;
/// let pack = Pack::parse(Mapping::open(&path)?)?; // what `Pack::open` does
/// assert!(pack.source().check().is_ok()); // nobody has changed the file
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mapping {
    map: crate::Mapping,
    file: Pread,
}

impl Mapping {
    /// Opens and maps the file.
    ///
    /// ```
    /// use ork_weights::pack::{Mapping, PackError};
    ///
    /// let missing = Mapping::open("no/such.orkpack".as_ref()).unwrap_err();
    /// assert!(matches!(missing, PackError::Io { .. }));
    /// ```
    ///
    /// # Errors
    /// [`PackError::Io`] when it cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Mapping> {
        let file = Pread::open(path)?;
        let map = crate::Mapping::of(file.file()).map_err(PackError::io("map", path))?;
        Ok(Mapping { map, file })
    }

    /// The open file, for reads that should not go through the mapping.
    pub fn file(&self) -> &File {
        self.file.file()
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Source for Mapping {
    fn size(&self) -> u64 {
        self.map.as_ref().len() as u64
    }

    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        slice(self.map.as_ref(), range)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        copy(self.map.as_ref(), offset, out, self.path())
    }

    fn check(&self) -> Result<()> {
        self.file.check()
    }
}
