//! The boundary to whatever drives the NPU, in terms of what is meant and not of what is called.
//!
//! A [`Driver`] has address spaces ([`Spaces`]: how many, how large, whether work in one excludes the
//! others), allocates [`Object`]s in them, maps and syncs those, and runs [`Submission`]s: lists of register
//! programs with the objects that they read and write. Handles, kernel pointers, task arrays, domain ids and
//! core masks stay behind it.
//!
//! | | `rknpu` | in process | `rocket` |
//! |---|---|---|---|
//! | an address space | an IOMMU domain of the device, one of 16 | the same | an open file, as many as wanted |
//! | exclusive | yes: a switch waits for all cores | the same | no |
//! | sync for the CPU | cache maintenance | copies the cache model's lines | waits for the jobs that write it |
//! | submit | one call, which waits | the same | a call, and the wait for an object written |
//! | the core | the caller's choice | the same | the kernel's choice: one job for each space |
//!
//! Nothing here is unsafe to call or to implement: an object is mapped once, no [`Part`] reaches beyond its
//! object, freeing takes the object, and a driver refuses objects of another. They come from the drivers of
//! this crate only, so one from outside wraps another, to count, delay or fail its calls:
//!
//! ```
//! use rknpu::driver::{self, Allocate, Completion, Driver, Import, MappedRange, Object, Part, Program};
//! use rknpu::driver::{Refused, Submission};
//! use rknpu::{Device, OpenOptions, capabilities::Capabilities, sim::Machine};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::time::Duration;
//!
//! #[derive(Debug)]
//! struct Counted {
//!     inner: Arc<dyn Driver>,
//!     allocated: AtomicU64,
//! }
//!
//! impl Driver for Counted {
//!     fn allocate(&self, request: &Allocate) -> Result<Object, Refused> {
//!         self.allocated.fetch_add(request.size, Ordering::Relaxed);
//!         self.inner.allocate(request)
//!     }
//!     // All others hand the call on.
//! #     fn capabilities(&self) -> &Capabilities { self.inner.capabilities() }
//! #     fn import(&self, from: &Import<'_>) -> Result<Object, Refused> { self.inner.import(from) }
//! #     fn map(&self, object: &mut Object) -> Result<MappedRange, Refused> { self.inner.map(object) }
//! #     fn sync_for_device(&self, part: &Part<'_>) -> Result<(), Refused> {
//! #         self.inner.sync_for_device(part)
//! #     }
//! #     fn sync_for_cpu(&self, part: &Part<'_>) -> Result<(), Refused> { self.inner.sync_for_cpu(part) }
//! #     fn free(&self, object: Object) -> Result<(), (Object, Refused)> { self.inner.free(object) }
//! #     fn write_program(&self, entry: &mut [u8], program: &Program) {
//! #         self.inner.write_program(entry, program);
//! #     }
//! #     fn submit(&self, submission: &Submission) -> Completion { self.inner.submit(submission) }
//! #     fn fences(&self, submission: &Submission) -> Result<bool, Refused> {
//! #         self.inner.fences(submission)
//! #     }
//! #     fn reset(&self) -> Result<(), Refused> { self.inner.reset() }
//! #     fn check_spaces(&self) -> Result<(), Refused> { self.inner.check_spaces() }
//! #     fn shut_down(&self) -> Vec<(u32, u64, Refused)> { self.inner.shut_down() }
//! #     fn pause(&self, time: Duration) { self.inner.pause(time) }
//! }
//!
//! let inner = driver::simulated(&Machine::new(Default::default()))?;
//! let counted = Arc::new(Counted { inner, allocated: AtomicU64::new(0) });
//! let device = Device::with_driver(counted.clone(), &OpenOptions::new())?;
//! let _buffer = device.domain(0)?.alloc(8192)?;
//! assert_eq!(counted.allocated.load(Ordering::Relaxed), 8192);
//! # Ok::<(), rknpu::Error>(())
//! ```

mod object;
mod rocket;
mod vendor;
mod vetted;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rknpu_sys::regs::CORES;
use rustix::io::Errno;

use crate::capabilities::Capabilities;
use crate::error::{Call, Error};

pub use crate::mapping::MappedRange;
pub use object::{Object, Part, Submission, Usage, Uses};

pub(crate) use rocket::{Node as RocketNode, Rocket};
pub(crate) use vendor::{
    Linux, Rknpu, allocate_dma_buf, carry, driver_name, map_dma_buf, map_node, sync_dma_buf,
};

/// Driver version as the driver reports it: 0.9.8 is 908.
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

/// The address spaces of a driver, numbered from 0.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let spaces = device.capabilities().spaces;
/// assert_eq!((spaces.count, spaces.bytes), (16, (4 << 30) - 4096));
/// assert!(spaces.exclusive); // all cores work in one at a time
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spaces {
    /// How many there are.
    pub count: u32,
    /// Bytes that can be mapped in each.
    pub bytes: u64,
    /// Bytes of the largest object.
    pub largest: u64,
    /// Whether work in one keeps every other from being entered.
    pub exclusive: bool,
    /// Cores that can work in one at a time.
    pub cores: u32,
    /// The one that takes memory of other drivers, if any does.
    pub import: Option<u32>,
}

impl Spaces {
    /// How many spaces work side by side on one product when all cores work: each core needs one of its own
    /// where only one works in a space at a time, and none excludes another.
    ///
    /// ```
    /// use rknpu::Device;
    /// use rknpu::sim::config::{Config, Driver, Form};
    ///
    /// assert_eq!(Device::simulated(Config::default())?.capabilities().spaces.lanes(), 1);
    /// let mainline = Config { driver: Driver::Rocket(Form::Later), ..Config::default() };
    /// assert_eq!(Device::simulated(mainline)?.capabilities().spaces.lanes(), 3);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn lanes(&self) -> usize {
        if self.exclusive { 1 } else { (CORES / self.cores.max(1) as usize).max(1) }
    }
}

/// A call that the driver did not do.
///
/// ```
/// use rknpu::{Errno, driver::Refused, error::Call};
///
/// let refused = Refused { call: Call::Sync, errno: Errno::INVAL };
/// assert_eq!(refused.to_string(), "MEM_SYNC: Invalid argument (os error 22)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {errno}")]
pub struct Refused {
    /// Which.
    pub call: Call,
    /// The driver's answer.
    pub errno: Errno,
}

impl Refused {
    /// As an error, of a call on `bytes` in a domain.
    pub(crate) fn on(self, domain: u32, bytes: u64) -> Error {
        Error::Driver { call: self.call, domain, bytes, errno: self.errno }
    }
}

/// What to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocate {
    /// Address space.
    pub space: u32,
    /// Bytes, in whole pages; above 0.
    pub size: u64,
    /// For what.
    pub purpose: Purpose,
    /// How the CPU will see it.
    pub caching: Caching,
}

/// What an object is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For the NPU to read and write.
    Data,
    /// A list of programs, which the driver reads.
    Programs,
}

/// How the CPU sees an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Through its caches: both sides see what the other wrote after a sync.
    Cached,
    /// Past them, writes gathered.
    WriteCombined,
    /// Past them.
    Uncached,
}

/// Memory of another driver, and where to map it.
#[derive(Clone, Copy, Debug)]
pub struct Import<'a> {
    /// Address space.
    pub space: u32,
    /// The dma-buf; it may be closed afterwards.
    pub dma_buf: BorrowedFd<'a>,
}

/// A register program in the NPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Address of its first command.
    pub iova: u64,
    /// Commands, the trailer that chains and starts it not counted.
    pub commands: u32,
    /// Address of four bytes that it writes and that no program of its submission reads: the last of its
    /// results, where that is known. A driver that is not told what ran looks there.
    pub mark: Option<u64>,
}

/// Bytes of an entry of a program list.
pub const PROGRAM_ENTRY: usize = 40;

/// What became of a submission.
///
/// ```
/// use rknpu::driver::Completion;
///
/// // The NPU took no time: whatever the driver says, nothing ran.
/// assert!(!Completion { programs_done: 1, ..Completion::default() }.ran(1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Programs done.
    pub programs_done: u32,
    /// From start to interrupt; zero when nothing ran.
    pub busy: Duration,
    /// From submit to answer.
    pub waited: Duration,
    /// The driver's answer, unless it was success.
    pub errno: Option<Errno>,
    /// An interrupt came, with a status that is not of this job: the driver's record of the core now names
    /// a job that is gone, and no reset clears it.
    pub foreign_status: Option<u32>,
}

impl Completion {
    /// Whether all `programs` ran: the driver says so, has counted every one, and the NPU took time.
    pub fn ran(&self, programs: u32) -> bool {
        self.errno.is_none() && self.programs_done == programs && !self.busy.is_zero()
    }

    pub(crate) fn failed(errno: Errno) -> Completion {
        Completion { errno: Some(errno), ..Completion::default() }
    }
}

/// A driver, as this crate needs it; see the [module](self).
///
/// Calls come from any thread. The device above sees to it that none enters a space of an exclusive driver
/// while work in another runs, and that no core is given two submissions at once.
pub trait Driver: Send + Sync + fmt::Debug {
    /// What it can do, found out when it was opened.
    fn capabilities(&self) -> &Capabilities;

    /// A new object, zeroed, at an address of its space.
    ///
    /// # Errors
    /// EFAULT: no addresses; ENOMEM: no memory, or no descriptors.
    fn allocate(&self, request: &Allocate) -> Result<Object, Refused>;

    /// Maps memory of another driver.
    ///
    /// # Errors
    /// EXDEV: another space than [`Spaces::import`]; EEXIST: the memory is an object of this driver's
    /// already; ENOMEM when descriptors run out; EINVAL for something that is no dma-buf.
    fn import(&self, from: &Import<'_>) -> Result<Object, Refused>;

    /// Maps all of an object for the CPU.
    ///
    /// # Errors
    /// EBUSY: it is mapped already.
    fn map(&self, object: &mut Object) -> Result<MappedRange, Refused>;

    /// Shows the NPU what the CPU wrote. The first sync of an object covers all of it.
    ///
    /// # Errors
    /// EINVAL when its space cannot be entered.
    fn sync_for_device(&self, part: &Part<'_>) -> Result<(), Refused>;

    /// Shows the CPU what the NPU wrote, after waiting for whatever still writes it.
    ///
    /// # Errors
    /// EINVAL when its space cannot be entered.
    fn sync_for_cpu(&self, part: &Part<'_>) -> Result<(), Refused>;

    /// Unmaps an object and gives it back.
    ///
    /// # Errors
    /// The object, which the driver still has; EBUSY when a part of its mapping is still held.
    fn free(&self, object: Object) -> Result<(), (Object, Refused)>;

    /// Writes an entry of a program list, [`PROGRAM_ENTRY`] bytes.
    fn write_program(&self, entry: &mut [u8], program: &Program);

    /// Runs programs and waits for them.
    fn submit(&self, submission: &Submission) -> Completion;

    /// Whether the driver was built with fences, found out by running this submission with one.
    ///
    /// # Errors
    /// As submitting.
    fn fences(&self, submission: &Submission) -> Result<bool, Refused>;

    /// Resets the NPU. Nothing of this process runs on it.
    ///
    /// # Errors
    /// The reset lines failed.
    fn reset(&self) -> Result<(), Refused>;

    /// Whether spaces can still be changed between. Nothing of this process runs.
    ///
    /// # Errors
    /// They cannot.
    fn check_spaces(&self) -> Result<(), Refused>;

    /// Gives back every object that there is, for a process that is about to end: waits for calls under way,
    /// and every later one is answered ESHUTDOWN. Returns what would not go: space, bytes and answer.
    fn shut_down(&self) -> Vec<(u32, u64, Refused)>;

    /// Waits, on the driver's clock.
    fn pause(&self, time: Duration);
}

/// The driver on a simulated machine, to wrap in another [`Driver`]: one that counts, delays or fails.
///
/// ```
/// use rknpu::driver;
///
/// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()))?;
/// assert_eq!(driver.capabilities().version.to_string(), "0.9.8");
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// # Errors
/// As [`Device::simulated`](crate::Device::simulated).
#[cfg(feature = "sim")]
pub fn simulated(machine: &rknpu_sim::Machine) -> crate::error::Result<std::sync::Arc<dyn Driver>> {
    match machine.config().driver {
        rknpu_sim::config::Driver::Rknpu => vendor::simulated(machine),
        rknpu_sim::config::Driver::Rocket(_) => rocket::simulated(machine),
    }
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
