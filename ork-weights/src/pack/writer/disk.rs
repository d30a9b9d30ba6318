//! The file operations of the writer behind one trait, so that tests can make each of them fail.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// What the writer asks of a file system.
pub(crate) trait Disk: Send {
    fn write_at(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn set_len(&mut self, file: &File, bytes: u64) -> io::Result<()>;
    fn sync(&mut self, file: &File) -> io::Result<()>;
    /// Renames; with `fresh`, only if nothing stands at `to`.
    fn rename(&mut self, from: &Path, to: &Path, fresh: bool) -> io::Result<()>;
    fn remove(&mut self, path: &Path) -> io::Result<()>;
}

/// The operating system.
pub(crate) struct Os;

impl Disk for Os {
    fn write_at(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn set_len(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        file.set_len(bytes)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path, fresh: bool) -> io::Result<()> {
        if fresh {
            match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                // File systems without the flag: the check before has to do.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {}
                other => return other.map_err(io::Error::from),
            }
        }
        fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}
