//! One process at a time.
//!
//! The driver arbitrates nothing between processes: two that use different domains starve each other and
//! can wedge the NPU, one's reset kills the other's jobs. So whoever opens the device takes an advisory
//! lock (`flock`) on every node of it that it may open. It goes with the process.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// What to do about other processes that use the NPU.
///
/// ```
/// use rknpu::open::LockPolicy;
///
/// let look_only = LockPolicy::Ignore { reason: "reads the load, submits nothing".into() };
/// assert_ne!(look_only, LockPolicy::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LockPolicy {
    /// Take the lock, or fail with the process that has it.
    #[default]
    Exclusive,
    /// Take it if it is free; if not, go on all the same and print who has it, and the reason.
    Ignore {
        /// Why that is all right.
        reason: String,
    },
}

/// The lock on a device; released when dropped.
#[derive(Debug)]
pub(crate) struct DeviceLock {
    _held: Vec<OwnedFd>,
}

impl DeviceLock {
    /// Locks every one of `nodes` that may be opened.
    pub(crate) fn acquire(nodes: &[PathBuf], policy: &LockPolicy) -> Result<DeviceLock> {
        let mut held = Vec::new();
        for path in nodes {
            // A node that may not be opened is not one that this process can be met on.
            let Ok(fd) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            else {
                continue;
            };
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => held.push(fd),
                Err(Errno::WOULDBLOCK) => {
                    let pid = rustix::fs::fstat(&fd).ok().and_then(|stat| holder(&stat));
                    let locked = Error::Locked { path: path.clone(), pid };
                    match policy {
                        LockPolicy::Exclusive => return Err(locked),
                        LockPolicy::Ignore { reason } => {
                            eprintln!("rknpu: {locked}; going on all the same: {reason}");
                        }
                    }
                }
                Err(errno) => return Err(Error::Open { path: path.clone(), errno }),
            }
        }
        Ok(DeviceLock { _held: held })
    }
}

/// The process that holds a lock on this inode, as the kernel lists it.
fn holder(stat: &Stat) -> Option<u32> {
    let locks = std::fs::read_to_string(Path::new("/proc/locks")).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    parse_holder(&locks, &format!("{major:02x}:{minor:02x}:{}", stat.st_ino))
}

/// Lines look like `1: FLOCK  ADVISORY  WRITE 1234 00:05:987 0 EOF`; waiters have an arrow after the number.
fn parse_holder(locks: &str, inode: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (kind, pid, node) = (fields.next()?, fields.nth(2)?, fields.next()?);
        (kind == "FLOCK" && node == inode).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// Set in the process that the test below starts.
    const CHILD: &str = "RKNPU_TEST_LOCK";

    #[test]
    fn the_holder_is_read_from_the_kernels_list() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 00:05:7 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 42 00:05:7 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 43 00:05:7 0 EOF\n";
        assert_eq!(parse_holder(locks, "00:05:7"), Some(42));
        assert_eq!(parse_holder(locks, "00:05:8"), None);
        assert_eq!(parse_holder("garbage\n\n1:", "00:05:7"), None);
    }

    /// Not a test of its own: the other process of the next one.
    #[test]
    fn child() {
        let Some(path) = std::env::var_os(CHILD) else { return };
        let lock = DeviceLock::acquire(&[path.into()], &LockPolicy::Exclusive).unwrap();
        println!("\nlocked");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        drop(lock);
    }

    #[test]
    fn two_processes_meet_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let (card, render) = (folder.path().join("card0"), folder.path().join("renderD128"));
        std::fs::write(&card, "").unwrap();
        std::fs::write(&render, "").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lock::tests::child", "--nocapture"])
            .env(CHILD, &render)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "locked"));

        // Another node of the same device, which it reaches through the list of both.
        let nodes = [card, render.clone()];
        let error = DeviceLock::acquire(&nodes, &LockPolicy::Exclusive).unwrap_err();
        let Error::Locked { path, pid } = &error else { panic!("{error}") };
        assert_eq!((path, *pid), (&render, Some(child.id())));
        assert!(error.to_string().contains(&format!("process {}", child.id())));

        let ignore = LockPolicy::Ignore { reason: "a test".to_owned() };
        assert!(DeviceLock::acquire(&nodes, &ignore).is_ok());

        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
        let again = DeviceLock::acquire(&nodes, &LockPolicy::Exclusive);
        assert!(again.is_ok());
    }
}
