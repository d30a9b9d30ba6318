//! Folders that go with the program, whatever ends it; and room on disks.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, statvfs};
use tempfile::TempDir;

use crate::ending::AtSuddenEnd;
use crate::error::{Error, Result};
use crate::size::Size;

/// Attempts at making a folder that another process does not take for one that was left behind.
const ATTEMPTS: u32 = 10;

/// A folder for temporary files. It is removed when it is dropped, and when SIGINT, SIGTERM or SIGHUP ends
/// the process. What SIGKILL leaves behind is removed by [`remove_left_behind`]: the folder is locked as long
/// as its process lives.
#[derive(Debug)]
pub struct TemporaryFolder {
    _ending: AtSuddenEnd,
    folder: TempDir,
    _lock: OwnedFd,
}

impl TemporaryFolder {
    /// Makes one whose name begins with `prefix`, where the system keeps temporary files (`TMPDIR`).
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Thread`].
    pub fn new(prefix: &str) -> Result<TemporaryFolder> {
        TemporaryFolder::new_in(&std::env::temp_dir(), prefix)
    }

    fn new_in(parent: &Path, prefix: &str) -> Result<TemporaryFolder> {
        let mut last = io::Error::from(io::ErrorKind::WouldBlock);
        for _ in 0..ATTEMPTS {
            let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
            let folder = folder.map_err(Error::file("make a folder in", parent))?;
            match lock(folder.path()) {
                Ok(lock) => {
                    let path = folder.path().to_owned();
                    let ending = AtSuddenEnd::new(move || {
                        // Others still make files there until the process ends.
                        while fs::remove_dir_all(&path).is_err() && path.exists() {
                            thread::yield_now();
                        }
                    })?;
                    return Ok(TemporaryFolder { _ending: ending, folder, _lock: lock });
                }
                // Another process took it for left behind, before it was locked.
                Err(error) => last = error,
            }
        }
        Err(Error::file("lock a folder in", parent)(last))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes this user's temporary folders whose names begin with `prefix` and that no living process holds;
/// gives their paths.
pub fn remove_left_behind(prefix: &str) -> Vec<PathBuf> {
    remove_left_behind_in(&std::env::temp_dir(), prefix)
}

fn remove_left_behind_in(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let ours = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with(prefix));
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| {
        // Not through links, which may lead anywhere.
        ours(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_dir())
    });
    let left = folders.map(|entry| entry.path()).filter(|path| {
        let user = rustix::process::geteuid().as_raw();
        let held = lock(path);
        let mine = |lock: &OwnedFd| fstat(lock).is_ok_and(|stat| stat.st_uid == user);
        // Locked until it is gone: nobody makes files there meanwhile.
        held.as_ref().is_ok_and(mine) && fs::remove_dir_all(path).is_ok()
    });
    left.collect()
}

/// Locks a folder, which must still stand there then.
fn lock(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    let (held, stands) = (fstat(&folder)?, rustix::fs::stat(path)?);
    match (held.st_dev, held.st_ino) == (stands.st_dev, stands.st_ino) {
        true => Ok(folder),
        false => Err(io::ErrorKind::NotFound.into()),
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
    fn what_no_living_process_holds_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let held = TemporaryFolder::new_in(parent.path(), "ork-test-").unwrap();
        let put = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("model"), "x").unwrap();
            path
        };
        let (left, other) = (put("ork-test-left"), put("else"));
        // A link of that name leads to what is somebody's own.
        std::os::unix::fs::symlink(&other, parent.path().join("ork-test-link")).unwrap();
        assert_eq!(remove_left_behind_in(parent.path(), "ork-test-"), [left.as_path()]);
        assert!(!left.exists() && held.path().exists() && other.join("model").exists());
        let path = held.path().to_owned();
        drop(held);
        assert!(!path.exists());
        assert!(remove_left_behind_in(Path::new("/no/such/folder"), "ork-test-").is_empty());
    }

    #[test]
    fn more_than_the_disk_has_is_refused_with_both_numbers() {
        let folder = std::env::temp_dir();
        assert!(check_room(&folder, "it", 1).is_ok());
        let error = check_room(&folder, "the pack", 1 << 60).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        let text = ork_cache::chain(&error);
        assert!(text.contains("the pack needs") && text.contains("1152921504606846976"), "{text}");
    }
}
