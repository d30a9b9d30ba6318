//! Folders that go with the program, also when it is told to end; and room on disks.

use std::fs;
use std::io;
use std::path::Path;
use std::thread::{self, JoinHandle};

use rustix::fs::statvfs;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;
use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::size::Size;

/// A folder for temporary files. It is removed when it is dropped, and when SIGINT, SIGTERM or SIGHUP
/// ends the process, which they then do as ever.
#[derive(Debug)]
pub struct TemporaryFolder {
    folder: TempDir,
    signals: Handle,
    watch: Option<JoinHandle<()>>,
}

impl TemporaryFolder {
    /// Makes one whose name begins with `prefix`, where the system keeps temporary files (`TMPDIR`).
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Thread`].
    pub fn new(prefix: &str) -> Result<TemporaryFolder> {
        // Watched before it is there: no moment in which a signal would leave it behind.
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(Error::Thread)?;
        let folder = tempfile::Builder::new().prefix(prefix).tempdir();
        let folder = folder.map_err(Error::file("make a folder in", &std::env::temp_dir()))?;
        let (path, handle) = (folder.path().to_owned(), signals.handle());
        let watch = move || {
            if let Some(signal) = signals.forever().next() {
                // Others still make files there until the process ends.
                while fs::remove_dir_all(&path).is_err() && path.exists() {
                    thread::yield_now();
                }
                let _ = emulate_default_handler(signal);
            }
        };
        let watch = thread::Builder::new().name("ork-signals".into()).spawn(watch);
        let watch = Some(watch.map_err(Error::Thread)?);
        Ok(TemporaryFolder { folder, signals: handle, watch })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(watch) = self.watch.take() {
            // It does not panic; if it did, the folder would go with this value all the same.
            let _ = watch.join();
        }
    }
}

/// Refuses what would fill the disk of `folder`: `what` needs `need` bytes there.
///
/// # Errors
/// [`Error::File`] with both numbers. Where the system does not tell, nothing is refused.
pub fn check_room(folder: &Path, what: &str, need: u64) -> Result<()> {
    let Ok(disk) = statvfs(folder) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if need <= free {
        return Ok(());
    }
    let text = format!(
        "{what} needs {} ({need} bytes), and {} ({free} bytes) are free: make room, or name another folder in TMPDIR",
        Size(need),
        Size(free)
    );
    let source = io::Error::new(io::ErrorKind::StorageFull, text);
    Err(Error::file("make files in", folder)(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_its_value() {
        let folder = TemporaryFolder::new("ork-test-").unwrap();
        let path = folder.path().to_owned();
        fs::write(path.join("file"), "x").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn more_than_the_disk_has_is_refused_with_both_numbers() {
        let folder = std::env::temp_dir();
        assert!(check_room(&folder, "it", 1).is_ok());
        let error = check_room(&folder, "the pack", 1 << 60).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        let text = crate::error::chain(&error);
        assert!(text.contains("the pack needs") && text.contains("1152921504606846976"), "{text}");
    }
}
