//! What the driver would do to the kernel when it is misused.
//!
//! ```
//! use rknpu_sim::{Config, Hazard, Machine};
//! use rknpu_sys::uapi::{MemCreate, MemDestroy, MemSync};
//!
//! let machine = Machine::new(Config::default());
//! let file = machine.open();
//! let mut buffer = MemCreate { flags: 0x403, size: 4096, ..Default::default() };
//! file.call(&mut buffer)?;
//! file.call(&mut MemDestroy { handle: buffer.handle, ..Default::default() })?;
//!
//! // The kernel would follow a pointer into freed memory.
//! let obj_addr = buffer.obj_addr;
//! file.call(&mut MemSync { flags: 1, obj_addr, size: 4096, ..Default::default() }).unwrap_err();
//! assert!(matches!(machine.report().hazards[0].hazard, Hazard::StaleObject { was: true, .. }));
//! # Ok::<(), rustix::io::Errno>(())
//! ```

use crate::config::{Config, OnHazard};
use crate::report::{CallKind, FINDINGS};
use crate::state::State;
use std::fmt;

/// Something that the real kernel would have suffered from.
///
/// ```
/// use rknpu_sim::Hazard;
///
/// let hazard = Hazard::CountBelowZero { count: -1 };
/// assert_eq!(
///     hazard.to_string(),
///     "the domain count is -1: every switch of domain fails after 6 s until reboot"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[allow(missing_docs)] // Fields are what their names say; addresses are `obj_addr`s.
pub enum Hazard {
    /// MEM_SYNC or SUBMIT named an address where no object is.
    StaleObject { call: CallKind, address: u64, was: bool },
    /// MEM_SYNC of a buffer of no bytes.
    EmptySynced { address: u64 },
    /// MEM_SYNC past the end of a contiguous buffer.
    SyncOutside { address: u64, offset: u64, size: u64, len: u64 },
    /// The task buffer has no kernel mapping.
    TasksNotMapped { address: u64 },
    /// A task range leaves its buffer.
    TasksOutside { address: u64, first: u64, count: u32, size: u64 },
    /// A buffer was freed that a running job reads or writes.
    FreedUnderJob { address: u64, core: usize },
    /// A job was freed while a queue or a core's slot still points to it.
    FreedJobLinked { core: usize },
    /// A core took a freed job from its queue.
    FreedJobStarted { core: usize },
    /// A job was freed twice.
    JobFreedTwice,
    /// A job was submitted without the PC flag.
    WithoutPc { busy: bool },
    /// A core mask that is accepted and never runs.
    MaskNeverRuns { mask: u32 },
    /// An interrupt mask that no interrupt can equal.
    HalfInterruptMask { mask: u32 },
    /// A NONBLOCK submit killed jobs that it found too old.
    JobsKilled { core: usize, jobs: u32, blocking: bool },
    /// The domain was switched while a job ran.
    SwitchedUnderJob { domain: i32 },
    /// The domain count fell below zero: no switch will succeed again.
    CountBelowZero { count: i64 },
    /// An object was given up because its domain could not be had in time.
    Leaked { address: u64, domain: i32, bytes: u64 },
    /// A buffer that fell back from contiguous to pages was freed: mappings and addresses stay.
    FallbackFreed { address: u64, bytes: u64 },
    /// A buffer that fell back from contiguous to pages was mapped: one reference too many is dropped.
    FallbackMapped { address: u64 },
    /// A dma-buf of another driver was freed in domain 0, where it was not mapped.
    ForeignUnmapped { iova: u64, bytes: u64, mapped_in: i32 },
    /// FENCE_IN with a descriptor that is no fence leaks the job and its task buffer.
    FenceLeak,
    /// A timeout whose top bit is set.
    EndlessTimeout { timeout: u32 },
    /// GET_VOLT where the device tree names no supply.
    NoSupply,
    /// A size near 2^64 made a buffer of no bytes.
    SizeWrapped { size: u64 },
    /// A call on `rocket` that looks at a master, which there never is.
    NoMaster { call: &'static str },
    /// CREATE_BO without an address left, in the first form.
    NodeNeverInserted { size: u64 },
    /// A job was dropped before it had its address space, in the first form.
    JobWithoutDomain,
    /// CREATE_BO without an address left: the file's IOMMU domain is never freed.
    DomainLeaked { file: u32 },
    /// CREATE_BO above the largest object: its pages are given back and stay mapped.
    PagesLeft { iova: u64, size: u64 },
    /// A file of `rocket` has gone before objects of it.
    OutlivesFile { file: u32, objects: usize },
    /// An allocation left a handle that the caller never learns.
    HandleLost { handle: u32 },
}

impl Hazard {
    /// Whether the kernel would have killed the calling process on the spot.
    ///
    /// ```
    /// use rknpu_sim::Hazard;
    ///
    /// assert!(Hazard::NoSupply.kills()); // a null pointer on the spot
    /// assert!(!Hazard::FenceLeak.kills()); // memory lost, nothing more
    /// ```
    pub fn kills(&self) -> bool {
        use Hazard as H;
        matches!(
            self,
            H::StaleObject { .. }
                | H::EmptySynced { .. }
                | H::TasksNotMapped { .. }
                | H::TasksOutside { .. }
                | H::NoSupply
                | H::NoMaster { .. }
                | H::NodeNeverInserted { .. }
                | H::JobWithoutDomain
        )
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Hazard as H;
        match self {
            H::StaleObject { call, address, was } => {
                let whose = if *was { "an object that was destroyed" } else { "no object" };
                write!(
                    f,
                    "{call:?} with obj_addr {address:#x}, which is {whose}: the kernel uses freed or foreign memory"
                )
            }
            H::EmptySynced { address } => write!(
                f,
                "MEM_SYNC of object {address:#x}, which has no bytes: the kernel follows a null pointer"
            ),
            H::SyncOutside { address, offset, size, len } => write!(
                f,
                "MEM_SYNC of {size} bytes at {offset} in contiguous object {address:#x} of {len} bytes: \
                 cache maintenance runs over whatever lies behind"
            ),
            H::TasksNotMapped { address } => write!(
                f,
                "SUBMIT with tasks in object {address:#x}, which the kernel has not mapped (no \
                 KERNEL_MAPPING, imported, SRAM or empty): the kernel follows a null pointer"
            ),
            H::TasksOutside { address, first, count, size } => write!(
                f,
                "SUBMIT of tasks {first}..{} in object {address:#x} of {size} bytes, which holds {}: \
                 the kernel reads or writes outside the buffer",
                first + u64::from(*count),
                size / 40
            ),
            H::FreedUnderJob { address, core } => write!(
                f,
                "object {address:#x} was freed while a job on core {core} used it: the NPU reads and \
                 writes pages that belong to somebody else, or faults"
            ),
            H::FreedJobLinked { core } => write!(
                f,
                "a job was freed that core {core} still points to: the next job there uses freed memory \
                 (recorded of jobs that are submitted to cores 1 and 2 while a reset runs, or time out \
                 behind another)"
            ),
            H::FreedJobStarted { core } => write!(
                f,
                "core {core} took a freed job from its queue: the kernel oopses, or the core is \
                 occupied for good"
            ),
            H::JobFreedTwice => {
                write!(f, "a job was freed twice: the kernel's allocator is corrupted")
            }
            H::WithoutPc { busy } => {
                let end =
                    if *busy { "the job is freed while it is queued" } else { "it is refused" };
                write!(f, "SUBMIT without the PC flag: {end}")
            }
            H::MaskNeverRuns { mask } => write!(
                f,
                "SUBMIT with core mask {mask}, which is accepted and never runs: its cores stay occupied \
                 until it times out, for good when it is NONBLOCK"
            ),
            H::HalfInterruptMask { mask } => write!(
                f,
                "the last task's int_mask is {mask:#x}, which no interrupt can equal: the job ends in a \
                 timeout, a reset and a wedged core; give whole pairs (0x300 for the DPU)"
            ),
            H::JobsKilled { core, jobs, blocking } => {
                let whose = if *blocking { ", one of them blocking," } else { "" };
                write!(
                    f,
                    "a NONBLOCK submit found the job on core {core} older than timeout microseconds and \
                     killed {jobs} jobs{whose}: the NPU is reset, their references to the domain are lost"
                )
            }
            H::SwitchedUnderJob { domain } => write!(
                f,
                "domain {domain} was made live while a job ran: the job goes on in the wrong domain"
            ),
            H::CountBelowZero { count } => write!(
                f,
                "the domain count is {count}: every switch of domain fails after 6 s until reboot"
            ),
            H::Leaked { address, domain, bytes } => write!(
                f,
                "object {address:#x} ({bytes} bytes of domain {domain}) was given up after 18 s: its \
                 pages and addresses are lost until reboot"
            ),
            H::FallbackFreed { address, bytes } => write!(
                f,
                "object {address:#x}, allocated as contiguous and made of pages, was freed the wrong \
                 way: {bytes} bytes of address space stay taken and mapped"
            ),
            H::FallbackMapped { address } => write!(
                f,
                "mmap of object {address:#x}, allocated as contiguous and made of pages, fails and \
                 drops a reference too many: the kernel will use it after it is freed"
            ),
            H::ForeignUnmapped { iova, bytes, mapped_in } => write!(
                f,
                "an imported dma-buf of {bytes} bytes, mapped in domain {mapped_in} at {iova:#x}, was \
                 unmapped in domain 0: whatever is mapped there is gone"
            ),
            H::FenceLeak => write!(
                f,
                "FENCE_IN with a descriptor that is no fence: the job and its task buffer leak"
            ),
            H::EndlessTimeout { timeout } => write!(
                f,
                "SUBMIT with timeout {timeout:#x}: it never times out, and its success is returned as \
                 an error while the domain count falls below zero; give 1 to 0x7fffffff"
            ),
            H::NoSupply => write!(
                f,
                "GET_VOLT where the device tree names no supply: the kernel follows a null pointer"
            ),
            H::SizeWrapped { size } => write!(
                f,
                "MEM_CREATE of {size:#x} bytes wraps to none and succeeds: a sync of it kills the process"
            ),
            H::NoMaster { call } => write!(
                f,
                "{call} on an accel node: the kernel follows the null pointer of a master that there never is"
            ),
            H::NodeNeverInserted { size } => write!(
                f,
                "CREATE_BO of {size} bytes with no address left: the kernel removes a node that was never \
                 inserted; count the addresses and never ask for more"
            ),
            H::JobWithoutDomain => write!(
                f,
                "SUBMIT of a job that is dropped while it is looked up: the kernel gives back an IOMMU domain \
                 that the job never had; submit only jobs that hold (a task, live handles, exact sizes)"
            ),
            H::DomainLeaked { file } => write!(
                f,
                "CREATE_BO of file {file} with no address left: its IOMMU domain is never freed; count the \
                 addresses and never ask for more"
            ),
            H::PagesLeft { iova, size } => write!(
                f,
                "CREATE_BO of {size} bytes, above 0x7ffff000: it fails, and its pages, given back to the \
                 system, stay mapped for the NPU at {iova:#x}"
            ),
            H::OutlivesFile { file, objects } => write!(
                f,
                "file {file} has gone before {objects} of its objects, which a job, a dma-buf or another file \
                 holds: the kernel frees them into memory that is freed; wait for jobs and close exports first"
            ),
            H::HandleLost { handle } => write!(
                f,
                "MEM_CREATE made handle {handle} but could not return it: it leaks until close"
            ),
        }
    }
}

impl State {
    /// Records a hazard.
    ///
    /// # Panics
    /// When the machine is configured to.
    pub(crate) fn hazard(&mut self, config: &Config, hazard: Hazard) {
        if config.on_hazard == OnHazard::Panic {
            panic!("{hazard}");
        }
        if self.report.hazards.len() < FINDINGS || self.report.hazards.contains_key(&hazard) {
            *self.report.hazards.entry(hazard).or_default() += 1;
        }
    }
}
