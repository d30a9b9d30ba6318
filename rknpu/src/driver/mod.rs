//! The boundary to whatever answers for the NPU: the `rknpu` driver, the simulator, or another.
//!
//! [`Device::with_driver`](crate::Device::with_driver) puts a device on top of one. Everything above speaks
//! in [`Object`]s and [`Mapping`]s, which only a [`Driver`] makes, and never in numbers of the driver.
//!
//! ```
//! use rknpu::driver::{self, DriverVersion};
//! use rknpu::sys::action;
//!
//! let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
//! let version = DriverVersion(driver.action(action::GET_DRV_VERSION, 0)?);
//! assert!(version >= DriverVersion::SAFE_DOMAINS);
//! # Ok::<(), rknpu::Errno>(())
//! ```

mod drm;
mod linux;
#[cfg(feature = "sim")]
mod sim;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rknpu_sys::flags::{CoreMask, MemFlags, SyncFlags};
use rknpu_sys::regs::{CORES, pc::TASKS_PER_COMMIT};
use rknpu_sys::uapi::Task;
use rustix::io::Errno;

pub use crate::mapping::{Mapping, Object, Unmap};
pub(crate) use linux::{Linux, allocate_dma_buf, driver_name, map_dma_buf, sync_dma_buf};
#[cfg(feature = "sim")]
pub(crate) use sim::Simulated;
#[cfg(feature = "sim")]
pub use sim::simulated;

/// Driver version as `ACTION` reports it: 0.9.8 is 908.
///
/// ```
/// use rknpu::driver::DriverVersion;
///
/// let version = DriverVersion(907);
/// assert_eq!(version.to_string(), "0.9.7");
/// assert!(version >= DriverVersion::DOMAIN_IDS && version < DriverVersion::SAFE_DOMAINS);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion(pub u32);

impl DriverVersion {
    /// First with domain ids in its structs.
    pub const DOMAIN_IDS: DriverVersion = DriverVersion(906);
    /// First with page-granular address space (flag 0x400).
    pub const UNALIGNED_IOVA: DriverVersion = DriverVersion(907);
    /// First that counts who uses a domain before it switches: needed for more than one.
    pub const SAFE_DOMAINS: DriverVersion = DriverVersion(908);
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 10_000, self.0 / 100 % 100, self.0 % 100)
    }
}

impl fmt::Debug for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What to allocate.
///
/// ```
/// use rknpu::driver::{self, Create};
/// use rknpu::sys::flags::MemFlags;
///
/// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
/// let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE;
/// let object = driver.create(&Create { size: 4096, flags, domain: 0 })?;
/// assert_eq!(object.size(), 4096);
/// driver.destroy(object).map_err(|(_, errno)| errno)?;
/// # Ok::<(), rknpu::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Bytes, above 0 and below 4 GiB.
    pub size: u64,
    /// How.
    pub flags: MemFlags,
    /// Domain to map it in.
    pub domain: u32,
}

/// One core's share of work: a range of a task array.
///
/// ```
/// use rknpu::driver::{self, Create, Submission};
/// use rknpu::sys::flags::MemFlags;
///
/// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
/// let flags =
///     MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE | MemFlags::KERNEL_MAPPING;
/// let tasks = driver.create(&Create { size: 4096, flags, domain: 0 })?;
/// let one = Submission { tasks: &tasks, start: 0, count: 1, domain: 0, core: 0, timeout_ms: 100 };
/// assert!(one.is_sound());
/// assert!(!Submission { count: 103, ..one }.is_sound()); // a page holds 102
/// driver.destroy(tasks).map_err(|(_, errno)| errno)?;
/// # Ok::<(), rknpu::Errno>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// Buffer with the task array; it has a kernel mapping.
    pub tasks: &'a Object,
    /// First task.
    pub start: u32,
    /// Tasks, 1..=4095, all inside the buffer.
    pub count: u32,
    /// Domain of every address in the programs.
    pub domain: u32,
    /// Core, 0..=2.
    pub core: u32,
    /// 1..=0x7fff_ffff ms.
    pub timeout_ms: u32,
}

impl Submission<'_> {
    /// The core as a mask.
    ///
    /// ```
    /// # use rknpu::driver::{self, Create, Submission};
    /// # use rknpu::sys::flags::{CoreMask, MemFlags};
    /// # let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
    /// # let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE | MemFlags::KERNEL_MAPPING;
    /// # let tasks = driver.create(&Create { size: 4096, flags, domain: 0 })?;
    /// # let one = Submission { tasks: &tasks, start: 0, count: 1, domain: 0, core: 0, timeout_ms: 100 };
    /// let on_core_2 = Submission { core: 2, ..one };
    /// assert_eq!(on_core_2.mask(), CoreMask::CORE2);
    /// # driver.destroy(tasks).map_err(|(_, errno)| errno)?;
    /// # Ok::<(), rknpu::Errno>(())
    /// ```
    pub fn mask(&self) -> CoreMask {
        CoreMask::from_bits_retain(1 << self.core)
    }

    /// Whether the driver may be asked: it checks none of this, and reads and writes past the task
    /// buffer when the range is wrong.
    ///
    /// ```
    /// # use rknpu::driver::{self, Create, Submission};
    /// # use rknpu::sys::flags::MemFlags;
    /// # let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
    /// # let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE | MemFlags::KERNEL_MAPPING;
    /// # let tasks = driver.create(&Create { size: 4096, flags, domain: 0 })?;
    /// # let one = Submission { tasks: &tasks, start: 0, count: 1, domain: 0, core: 0, timeout_ms: 100 };
    /// assert!(!Submission { count: 0, ..one }.is_sound()); // the driver would read before the array
    /// assert!(!Submission { timeout_ms: 1 << 31, ..one }.is_sound()); // a wait without end
    /// # driver.destroy(tasks).map_err(|(_, errno)| errno)?;
    /// # Ok::<(), rknpu::Errno>(())
    /// ```
    pub fn is_sound(&self) -> bool {
        let end = u64::from(self.start) + u64::from(self.count);
        end * size_of::<Task>() as u64 <= self.tasks.size()
            && (1..=TASKS_PER_COMMIT).contains(&self.count)
            && (self.core as usize) < CORES
            && (1..=i32::MAX as u32).contains(&self.timeout_ms)
    }
}

/// What the driver reports of a submission, also when it failed.
///
/// ```
/// use rknpu::driver::Completion;
///
/// let nothing_ran = Completion::default();
/// assert!(nothing_ran.tasks_done == 0 && nothing_ran.busy.is_zero());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Tasks done.
    pub tasks_done: u32,
    /// From commit to interrupt; zero when nothing ran.
    pub busy: Duration,
}

/// A driver, as this crate needs it.
///
/// The implementations here are Linux's `rknpu` and the simulator; a third can come from outside, through
/// [`Device::with_driver`](crate::Device::with_driver). Implementing it needs no `unsafe` by itself: the
/// promises are those of [`Object::from_raw`] and [`Mapping::from_raw`]. Calls must be safe from any
/// thread; the device makes sure that none names another domain than the one whose jobs run.
///
/// One around another, for a test that wants to know what a program asks of the driver:
///
/// ```
/// use rknpu::driver::{self, Completion, Create, Driver, Mapping, Object, Submission};
/// use rknpu::sys::flags::SyncFlags;
/// use rknpu::{Device, Errno, OpenOptions, sim::Machine};
/// use std::os::fd::BorrowedFd;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
///
/// #[derive(Debug)]
/// struct Counted {
///     inner: Arc<dyn Driver>,
///     created: AtomicU64,
/// }
///
/// impl Driver for Counted {
///     fn create(&self, create: &Create) -> Result<Object, Errno> {
///         self.created.fetch_add(create.size, Ordering::Relaxed);
///         self.inner.create(create)
///     }
///     // All others hand the call on.
/// #     fn node(&self) -> &str {
/// #         self.inner.node()
/// #     }
/// #     fn action(&self, code: u32, value: u32) -> Result<u32, Errno> {
/// #         self.inner.action(code, value)
/// #     }
/// #     fn map(&self, object: &Object) -> Result<Mapping, Errno> {
/// #         self.inner.map(object)
/// #     }
/// #     fn sync(&self, o: &Object, flags: SyncFlags, at: u64, len: u64) -> Result<(), Errno> {
/// #         self.inner.sync(o, flags, at, len)
/// #     }
/// #     fn destroy(&self, object: Object) -> Result<(), (Object, Errno)> {
/// #         self.inner.destroy(object)
/// #     }
/// #     fn abandon(&self, object: &Object) -> Result<(), Errno> {
/// #         self.inner.abandon(object)
/// #     }
/// #     fn submit(&self, submission: &Submission<'_>) -> (Completion, Result<(), Errno>) {
/// #         self.inner.submit(submission)
/// #     }
/// #     fn fences(&self, submission: &Submission<'_>) -> Result<bool, Errno> {
/// #         self.inner.fences(submission)
/// #     }
/// #     fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<Object, Errno> {
/// #         self.inner.import(dma_buf)
/// #     }
/// #     fn pause(&self, time: Duration) {
/// #         self.inner.pause(time)
/// #     }
/// }
///
/// let inner = driver::simulated(&Machine::new(Default::default()));
/// let counted = Arc::new(Counted { inner, created: AtomicU64::new(0) });
/// let device = Device::with_driver(counted.clone(), &OpenOptions::new())?;
/// let _buffer = device.domain(0)?.alloc(8192)?;
/// assert_eq!(counted.created.load(Ordering::Relaxed), 8192);
/// # Ok::<(), rknpu::Error>(())
/// ```
pub trait Driver: Send + Sync + fmt::Debug {
    /// Where it is: a path, or `sim`.
    fn node(&self) -> &str;

    /// `ACTION`: the value that the call leaves.
    ///
    /// # Errors
    /// The driver's errno, here and below.
    fn action(&self, code: u32, value: u32) -> Result<u32, Errno>;

    /// `MEM_CREATE`.
    ///
    /// # Errors
    /// EFAULT: no address space; ENOMEM: no memory; EINVAL: anything else.
    fn create(&self, create: &Create) -> Result<Object, Errno>;

    /// `MEM_MAP` and `mmap`, all of the object.
    ///
    /// # Errors
    /// The errno of either.
    fn map(&self, object: &Object) -> Result<Mapping, Errno>;

    /// `MEM_SYNC` over a range that lies inside the object.
    ///
    /// # Errors
    /// EINVAL when the domain cannot be switched to.
    fn sync(&self, object: &Object, flags: SyncFlags, offset: u64, len: u64) -> Result<(), Errno>;

    /// `MEM_DESTROY`, after the mapping has gone.
    ///
    /// # Errors
    /// The object back: the driver still has it.
    fn destroy(&self, object: Object) -> Result<(), (Object, Errno)>;

    /// `MEM_DESTROY` of an object that is still in use, by a process that is about to end: memory and
    /// addresses go with the last mapping. No other call may name the object afterwards.
    ///
    /// # Errors
    /// As [`Driver::destroy`].
    fn abandon(&self, object: &Object) -> Result<(), Errno>;

    /// `SUBMIT`, blocking.
    ///
    /// # Errors
    /// ETIMEDOUT when it ran too long, EINVAL when it was not run.
    fn submit(&self, submission: &Submission<'_>) -> (Completion, Result<(), Errno>);

    /// Whether the driver was built with fences, found out by running this submission with one.
    ///
    /// # Errors
    /// As [`Driver::submit`], except EINVAL, which is the answer of a driver without.
    fn fences(&self, submission: &Submission<'_>) -> Result<bool, Errno>;

    /// Imports a dma-buf into the live domain; the descriptor may be closed afterwards.
    ///
    /// # Errors
    /// ENOMEM when descriptors run out, EINVAL for something that is no dma-buf.
    fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<Object, Errno>;

    /// Waits, on the driver's clock.
    fn pause(&self, time: Duration);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_print_as_the_driver_writes_them() {
        assert_eq!(DriverVersion(908).to_string(), "0.9.8");
        assert_eq!(format!("{:?}", DriverVersion(10_203)), "1.2.3");
        assert!(DriverVersion::UNALIGNED_IOVA < DriverVersion::SAFE_DOMAINS);
    }
}
