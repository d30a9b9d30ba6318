//! One process at a time.
//!
//! The driver arbitrates nothing between processes: two that use different domains starve each other and
//! can wedge the NPU, one's reset kills the other's jobs. So whoever opens the device takes an advisory lock
//! (`flock`) that goes with the process, whatever ends it.
//!
//! What is locked is the device's directory in sysfs, found by the node's device number. It is the same for
//! every name of a node (links, a second `mknod`) and for all nodes of one NPU, every user may lock it, and
//! nobody can put another in its place, as in a directory for lock files. The node itself is locked beside it,
//! for processes that see another sysfs, such as containers with a network of their own; where sysfs is
//! missing or cannot be locked, it is all that is locked.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, major, minor};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Where device numbers lead to devices.
const DEVICES: &str = "/sys/dev/char";
/// Characters of a holder's command that are shown.
const COMMAND: usize = 80;

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

/// A process that has the lock.
///
/// ```
/// use rknpu::open::LockHolder;
///
/// let holder = LockHolder { pid: 412, command: Some("ork stream model.orkpack".into()) };
/// assert_eq!(holder.to_string(), "process 412 (ork stream model.orkpack)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Its number.
    pub pid: u32,
    /// Its command line, or what the system shows of it.
    pub command: Option<String>,
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.pid == std::process::id() {
            return f.write_str("this process");
        }
        write!(f, "process {}", self.pid)?;
        match &self.command {
            Some(command) => write!(f, " ({command})"),
            None => Ok(()),
        }
    }
}

/// The lock on a device; released when dropped, and when the node that it came with is closed.
#[derive(Debug)]
pub(crate) struct DeviceLock {
    _directory: Option<OwnedFd>,
}

impl DeviceLock {
    /// Locks the device behind `node`, which is open at `path`.
    pub(crate) fn acquire(path: &Path, node: impl AsFd, policy: &LockPolicy) -> Result<DeviceLock> {
        DeviceLock::acquire_in(Path::new(DEVICES), path, node, policy)
    }

    fn acquire_in(
        devices: &Path,
        path: &Path,
        node: impl AsFd,
        policy: &LockPolicy,
    ) -> Result<DeviceLock> {
        let refused = |errno| Error::Open { path: path.to_owned(), errno };
        let number = rustix::fs::fstat(&node).map_err(refused)?.st_rdev;
        let directory = directory(devices, number);
        if let Some(directory) = &directory
            && let Err(locked @ Error::Locked { .. }) = lock(path, directory, policy)
        {
            return Err(locked);
        }
        lock(path, &node, policy)?;
        Ok(DeviceLock { _directory: directory })
    }
}

/// The directory of a device in sysfs: of the NPU, whose nodes are below it; of the node where there is no
/// such thing.
fn directory(devices: &Path, number: u64) -> Option<OwnedFd> {
    let node = devices.join(format!("{}:{}", major(number), minor(number)));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: PathBuf| rustix::fs::open(path, flags, Mode::empty()).ok();
    open(node.join("device")).or_else(|| open(node))
}

fn lock(path: &Path, file: impl AsFd, policy: &LockPolicy) -> Result<()> {
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let locked = Error::Locked { path: path.to_owned(), holder: holder(&file) };
            match policy {
                LockPolicy::Exclusive => Err(locked),
                LockPolicy::Ignore { reason } => {
                    eprintln!("rknpu: {locked}; going on all the same: {reason}");
                    Ok(())
                }
            }
        }
        Err(errno) => Err(Error::Open { path: path.to_owned(), errno }),
    }
}

/// The process that holds a lock on this file, as the kernel lists it.
fn holder(file: impl AsFd) -> Option<LockHolder> {
    let stat = rustix::fs::fstat(file).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    let pid = parse_holder(&locks, &file)?;
    let of = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok();
    let command = of("cmdline").and_then(|line| parse_command(&line));
    Some(LockHolder { pid, command: command.or_else(|| parse_command(&of("comm")?)) })
}

/// Lines look like `1: FLOCK  ADVISORY  WRITE 1234 00:05:987 0 EOF`; waiters have an arrow after the number.
fn parse_holder(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (kind, pid, of) = (fields.next()?, fields.nth(2)?, fields.next()?);
        (kind == "FLOCK" && of == file).then(|| pid.parse().ok())?
    })
}

/// A command line as /proc has it, each word ended by a zero byte, for a line of text. Of the program only
/// the file's name is kept: its folder says nothing, and may be longer than what is shown.
fn parse_command(line: &[u8]) -> Option<String> {
    let program = line.iter().position(|&byte| byte == 0).unwrap_or(line.len());
    let folder = line[..program].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let words = String::from_utf8_lossy(&line[folder..]).replace('\0', " ");
    let shown: String =
        words.trim().chars().map(|c| if c.is_control() { '?' } else { c }).take(COMMAND).collect();
    (!shown.is_empty()).then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    use rustix::fs::{CWD, FileType, mknodat};

    /// Set in the process that the test below starts: the node, and where device numbers lead to devices.
    const NODE: &str = "RKNPU_TEST_LOCK_NODE";
    const ROOT: &str = "RKNPU_TEST_LOCK_ROOT";

    fn acquire(root: &Path, node: &Path, policy: &LockPolicy) -> Result<DeviceLock> {
        DeviceLock::acquire_in(root, node, File::open(node).unwrap(), policy)
    }

    #[test]
    fn the_holder_is_read_from_the_kernels_list() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 00:05:7 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 42 00:05:7 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 43 00:05:7 0 EOF\n";
        assert_eq!(parse_holder(locks, "00:05:7"), Some(42));
        assert_eq!(parse_holder(locks, "00:05:8"), None);
        assert_eq!(parse_holder("garbage\n\n1:", "00:05:7"), None);

        let command = |line: &[u8]| parse_command(line);
        assert_eq!(command(b"ork\0demo\0").as_deref(), Some("ork demo"));
        assert_eq!(command(b"/usr/bin/ork\0run\0/m.gguf\0").as_deref(), Some("ork run /m.gguf"));
        let far = [&[b'/'; 200][..], b"ork\0demo\0"].concat();
        assert_eq!(command(&far).as_deref(), Some("ork demo"), "from the deepest folder");
        assert_eq!(command(b"a\x1b[2J b\0").as_deref(), Some("a?[2J b"), "for any terminal");
        assert_eq!(command(&[b'x'; 500]).map(|text| text.len()), Some(COMMAND));
        assert_eq!(command(b"\0"), None);
    }

    /// Not a test of its own: the other process of the next one.
    #[test]
    fn child() {
        let (Some(node), Some(root)) = (std::env::var_os(NODE), std::env::var_os(ROOT)) else {
            return;
        };
        let lock = acquire(root.as_ref(), node.as_ref(), &LockPolicy::Exclusive).unwrap();
        println!("\nlocked");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        drop(lock);
    }

    /// A name for the device of `system`'s number: by `mknod` where that is allowed.
    fn name_of(folder: &Path, name: &str, system: &str) -> PathBuf {
        let (path, mode) = (folder.join(name), Mode::from_raw_mode(0o666));
        let number = rustix::fs::stat(system).unwrap().st_rdev;
        let made = mknodat(CWD, &path, FileType::CharacterDevice, mode, number);
        if made.is_err() || File::open(&path).is_err() {
            let _ = fs::remove_file(&path);
            symlink(system, &path).unwrap();
        }
        path
    }

    #[test]
    fn two_processes_meet_the_lock_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name, system| name_of(folder.path(), name, system);
        let one = name("card1", "/dev/null");
        let other = name("platform-fdab0000.npu-card", "/dev/null");
        let (render, another) = (name("renderD129", "/dev/zero"), name("card0", "/dev/full"));
        // As sysfs has it: each node's directory links to its device's.
        let root = folder.path().join("char");
        for (number, device) in [("1:3", "npu"), ("1:5", "npu"), ("1:7", "gpu")] {
            let device = folder.path().join(device);
            fs::create_dir_all(&device).unwrap();
            fs::create_dir_all(root.join(number)).unwrap();
            symlink(&device, root.join(number).join("device")).unwrap();
        }

        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lock::tests::child", "--nocapture"])
            .env(NODE, &one)
            .env(ROOT, &root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "locked"));

        // Another name of the node, and another node of the same device.
        for node in [&other, &render] {
            let error = acquire(&root, node, &LockPolicy::Exclusive).unwrap_err();
            let Error::Locked { path, holder: Some(holder) } = &error else { panic!("{error}") };
            assert_eq!((path, holder.pid), (node, child.id()));
            let text = error.to_string();
            assert!(text.contains(&format!("process {} (", child.id())), "{text}");
            assert!(text.contains("lock::tests::child"), "{text}");
        }
        assert!(acquire(&root, &another, &LockPolicy::Exclusive).is_ok(), "another device's node");
        let ignore = LockPolicy::Ignore { reason: "a test".to_owned() };
        assert!(acquire(&root, &other, &ignore).is_ok());

        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
        let again = acquire(&root, &other, &LockPolicy::Exclusive).unwrap();
        let error = acquire(&root, &one, &LockPolicy::Exclusive).unwrap_err();
        assert!(error.to_string().contains("in use by this process"), "{error}");
        drop(again);
    }

    #[test]
    fn without_sysfs_the_node_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let (node, nothing) = (folder.path().join("node"), folder.path().join("no-sysfs"));
        fs::write(&node, "").unwrap();
        let file = File::open(&node).unwrap();
        let _held = DeviceLock::acquire_in(&nothing, &node, &file, &LockPolicy::Exclusive).unwrap();
        let error = acquire(&nothing, &node, &LockPolicy::Exclusive).unwrap_err();
        assert!(matches!(error, Error::Locked { .. }), "{error}");
    }
}
