//! Finding and opening the node.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rknpu_sys::layout::Precision;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::chains::{ChainRules, Chains};
use crate::device::Device;
use crate::driver::{Linux, Rknpu, Rocket, RocketNode, driver_name};
use crate::error::{Error, NodeAnswer, Result};
use crate::keeper::{Keeper, KeeperCommand};
use crate::limits;
use crate::lock::DeviceLock;
pub use crate::lock::{LockHolder, LockPolicy};

/// Name of the driver.
const DRIVER: &str = rknpu_sys::drm::DRIVER_NAME;
const ROCKET: &str = rknpu_sys::rocket::DRIVER_NAME;
/// Where DRM nodes are.
const DRI: &str = "/dev/dri";
/// Where DRM nodes of accelerators are, such as those of the mainline driver `rocket`.
const ACCEL: &str = "/dev/accel";
/// The node of a vendor driver built for the DMA heap.
const MISC: &str = "/dev/rknpu";

/// How a device is opened.
///
/// ```no_run
/// use rknpu::OpenOptions;
/// use rknpu::open::LockPolicy;
///
/// let device = OpenOptions::new()
///     .timeout(std::time::Duration::from_secs(30))
///     .lock(LockPolicy::Ignore { reason: "the other process only reads its version".into() })
///     .open()?;
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) timeout: Duration,
    pub(crate) lock: LockPolicy,
    pub(crate) pin: bool,
    pub(crate) chains: ChainRules,
    keeper: Option<KeeperCommand>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let (timeout, lock) = (limits::TIMEOUT, LockPolicy::Exclusive);
        OpenOptions { timeout, lock, pin: true, chains: ChainRules::default(), keeper: None }
    }
}

impl OpenOptions {
    /// Jobs may take 10 s; the device is locked; threads are pinned.
    ///
    /// ```
    /// let opening = rknpu::OpenOptions::new().open_path("/dev/null");
    /// assert!(matches!(opening, Err(rknpu::Error::OtherDriver { .. })));
    /// ```
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Longest that a job may take. Be generous: a job that ends within 100 ms after its timeout
    /// leaves the driver unable to switch domains until a reboot.
    ///
    /// ```
    /// use rknpu::{Device, Error, OpenOptions, driver, sim::Machine};
    /// use std::time::Duration;
    ///
    /// let driver = driver::simulated(&Machine::new(Default::default()))?;
    /// let none = OpenOptions::new().timeout(Duration::ZERO); // the driver would wait for ever
    /// assert!(Device::with_driver(driver.clone(), &none).is_err());
    /// let minute = OpenOptions::new().timeout(Duration::from_secs(60));
    /// assert!(Device::with_driver(driver, &minute).is_ok());
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> OpenOptions {
        self.timeout = timeout;
        self
    }

    /// What to do about other processes.
    ///
    /// ```
    /// use rknpu::OpenOptions;
    /// use rknpu::open::LockPolicy;
    ///
    /// let reason = "the other process has stopped its jobs".to_owned();
    /// let options = OpenOptions::new().lock(LockPolicy::Ignore { reason });
    /// assert!(format!("{options:?}").contains("stopped"));
    /// ```
    #[must_use]
    pub fn lock(mut self, policy: LockPolicy) -> OpenOptions {
        self.lock = policy;
        self
    }

    /// Whether the threads that wait for the cores are pinned to the CPU's fast cores, where it has slow
    /// ones, too; so they are unless told otherwise. Public measurements on RK3588 boards gain up to a factor
    /// of two from it when several cores work.
    ///
    /// ```
    /// let options = rknpu::OpenOptions::new().pin_threads(false); // the program pins its threads itself
    /// assert!(format!("{options:?}").contains("pin: false"));
    /// ```
    #[must_use]
    pub fn pin_threads(mut self, pin: bool) -> OpenOptions {
        self.pin = pin;
        self
    }

    /// What a chain of programs may hold on this board, instead of [what has been seen to
    /// work](Chains::seen_on_boards).
    ///
    /// ```
    /// use rknpu::{OpenOptions, Precision, chains::Chains};
    ///
    /// // Each weight by itself: more submits, nothing to believe in.
    /// let options = OpenOptions::new().chains(Precision::Int8, Chains::NONE);
    /// # assert!(format!("{options:?}").contains("int8: Chains { weights: 1"));
    /// ```
    #[must_use]
    pub fn chains(mut self, precision: Precision, chains: Chains) -> OpenOptions {
        self.chains.set(precision, chains);
        self
    }

    /// A command that holds the files of the mainline driver, so that a process that is killed outright does not
    /// hurt the kernel: it has to call [`keep`](crate::keeper::keep) with its standard input. It is started only
    /// for a node of that driver.
    ///
    /// ```
    /// let options = rknpu::OpenOptions::new().keeper("/usr/bin/engine", ["keep-npu-files"]);
    /// assert!(format!("{options:?}").contains("keep-npu-files"));
    /// ```
    #[must_use]
    pub fn keeper(
        mut self,
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> OpenOptions {
        let arguments = arguments.into_iter().map(Into::into).collect();
        self.keeper = Some(KeeperCommand { program: program.into(), arguments });
        self
    }

    /// As [`Device::open`].
    ///
    /// ```
    /// use rknpu::{Error, OpenOptions};
    ///
    /// match OpenOptions::new().open() {
    ///     Ok(device) => println!("{}", device.capabilities()),
    ///     Err(Error::NoDevice { tried }) => println!("no NPU among {} nodes", tried.len()),
    ///     Err(error) => println!("{error}"), // says what to do
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open(&self) -> Result<Device> {
        let mut tried = Vec::new();
        let mut refused = None;
        for path in nodes() {
            match self.open_path(&path) {
                Ok(device) => return Ok(device),
                Err(error) => {
                    let answer = match &error {
                        Error::OtherDriver { driver, .. } => driver.clone(),
                        Error::Permission { .. } => "permission denied".to_owned(),
                        Error::Open { errno, .. } => errno.to_string(),
                        // The right node, but it cannot be had: that is the answer.
                        _ => return Err(error),
                    };
                    if matches!(error, Error::Permission { .. }) {
                        refused.get_or_insert(error);
                    }
                    tried.push(NodeAnswer { path, answer });
                }
            }
        }
        let misc = PathBuf::from(MISC);
        if misc.exists() {
            let answer = "the vendor driver built for the DMA heap, another interface".to_owned();
            tried.push(NodeAnswer { path: misc, answer });
        }
        match refused {
            // All other nodes are other drivers: the one that could not be asked may be it.
            Some(refused) if tried.iter().all(|n| n.answer == "permission denied") => Err(refused),
            _ => Err(Error::NoDevice { tried }),
        }
    }

    /// As [`Device::open_path`].
    ///
    /// ```
    /// use rknpu::{Error, OpenOptions};
    ///
    /// let missing = OpenOptions::new().open_path("/dev/dri/renderD999");
    /// assert!(matches!(missing, Err(Error::NoNode { .. })));
    /// ```
    ///
    /// # Errors
    /// As [`Device::open_path`].
    pub fn open_path(&self, path: impl AsRef<Path>) -> Result<Device> {
        let path = path.as_ref();
        let owned = || path.to_path_buf();
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(
            |errno| match errno {
                Errno::NOENT => Error::NoNode { path: owned() },
                Errno::ACCESS | Errno::PERM => Error::Permission { path: owned() },
                errno => Error::Open { path: owned(), errno },
            },
        )?;
        match driver_name(&fd) {
            Ok(name) if name == DRIVER => {}
            Ok(name) if name == ROCKET => {
                let lock = DeviceLock::acquire(path, &fd, &self.lock)?;
                let keeper = self.keeper.as_ref().map(Keeper::start).transpose()?;
                let (node, file) = RocketNode::new(owned(), fd, keeper)?;
                let driver = Arc::new(Rocket::open(node, file)?);
                return Device::new(driver, self, Some(lock));
            }
            Ok(driver) => return Err(Error::OtherDriver { path: owned(), driver }),
            Err(errno) => {
                let driver = format!("not DRM: {errno}");
                return Err(Error::OtherDriver { path: owned(), driver });
            }
        }
        let lock = DeviceLock::acquire(path, &fd, &self.lock)?;
        let driver = Arc::new(Rknpu::open(Linux::new(fd, path.display().to_string()))?);
        Device::new(driver, self, Some(lock))
    }
}

/// A timeout as the driver takes it.
pub(crate) fn timeout_ms(timeout: Duration) -> Result<u32> {
    let ms = timeout.as_millis();
    if (1..=i32::MAX as u128).contains(&ms) { Ok(ms as u32) } else { Err(Error::Timeout(timeout)) }
}

/// All DRM nodes: card nodes first, as submits through the render node have been seen to run nothing,
/// and those of accelerators last, for their drivers' names.
fn nodes() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for (folder, prefix) in [(DRI, "card"), (DRI, "renderD"), (ACCEL, "accel")] {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let mut found: Vec<_> = paths.filter(|path| name_starts(path, prefix)).collect();
        found.sort();
        all.append(&mut found);
    }
    all
}

fn name_starts(path: &Path, prefix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_nodes_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("card0");
        assert!(
            matches!(Device::open_path(&missing), Err(Error::NoNode { path }) if path == missing)
        );

        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Device::open_path(&file).unwrap_err();
        assert!(
            matches!(&error, Error::OtherDriver { driver, .. } if driver.starts_with("not DRM"))
        );

        let error = Device::open_path(folder.path()).unwrap_err();
        assert!(matches!(error, Error::Open { errno: Errno::ISDIR, .. }));
    }

    #[test]
    fn timeouts_are_those_that_the_driver_reads_rightly() {
        assert_eq!(timeout_ms(Duration::from_millis(1)).unwrap(), 1);
        assert_eq!(timeout_ms(Duration::from_millis(0x7fff_ffff)).unwrap(), 0x7fff_ffff);
        for bad in [Duration::ZERO, Duration::from_micros(999), Duration::from_millis(1 << 31)] {
            assert!(matches!(timeout_ms(bad), Err(Error::Timeout(t)) if t == bad));
        }
    }
}
