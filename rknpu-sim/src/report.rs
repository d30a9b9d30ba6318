//! What happened: calls, bytes, what is still held, and what would have hurt the kernel.

use crate::config::{Config, OnHazard};
use crate::object::Object;
use crate::state::State;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // The calls' own names.
pub enum CallKind {
    Action,
    Submit,
    MemCreate,
    MemMap,
    MemDestroy,
    MemSync,
    Version,
    GemClose,
    GetCap,
    PrimeHandleToFd,
    PrimeFdToHandle,
    CreateDumb,
    Mmap,
    Munmap,
    Other,
}

/// Something that the real kernel would have suffered from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
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
    HalfInterruptMask { mask: u32, domain: u32 },
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
    /// An allocation left a handle that the caller never learns.
    HandleLost { handle: u32 },
}

impl Hazard {
    /// Whether the kernel would have killed the calling process on the spot.
    pub fn kills(&self) -> bool {
        use Hazard as H;
        matches!(
            self,
            H::StaleObject { .. }
                | H::EmptySynced { .. }
                | H::TasksNotMapped { .. }
                | H::TasksOutside { .. }
                | H::NoSupply
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
                "a job was freed that core {core} still points to: the next job there uses freed memory"
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
            H::HalfInterruptMask { mask, .. } => write!(
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
            H::HandleLost { handle } => write!(
                f,
                "MEM_CREATE made handle {handle} but could not return it: it leaks until close"
            ),
        }
    }
}

/// Calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// Succeeded.
    pub ok: u64,
    /// Failed.
    pub failed: u64,
}

/// A hazard and how often it was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Met {
    /// What.
    pub hazard: Hazard,
    /// In words.
    pub text: String,
    /// How often.
    pub times: u64,
}

/// Running totals.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) calls: BTreeMap<CallKind, Calls>,
    pub(crate) hazards: BTreeMap<Hazard, u64>,
    pub(crate) findings: BTreeMap<String, u64>,
    pub(crate) jobs_done: u64,
    pub(crate) jobs_timed_out: u64,
    pub(crate) to_device: u64,
    pub(crate) from_device: u64,
    pub(crate) created: u64,
    pub(crate) unfetched: u64,
    pub(crate) discarded: u64,
    pub(crate) peak: u64,
}

/// Distinct findings kept.
const FINDINGS: usize = 1000;

impl Books {
    pub(crate) fn called(&mut self, kind: CallKind, ok: bool) {
        let calls = self.calls.entry(kind).or_default();
        if ok {
            calls.ok += 1;
        } else {
            calls.failed += 1;
        }
    }

    pub(crate) fn finding(&mut self, core: usize, finding: String) {
        let text = format!("core {core}: {finding}");
        if self.findings.len() < FINDINGS || self.findings.contains_key(&text) {
            *self.findings.entry(text).or_default() += 1;
        }
    }

    pub(crate) fn wrong_interrupt(&mut self, core: usize, status: u32, mask: u32) {
        self.finding(
            core,
            format!(
                "interrupt {status:#x} does not equal the last task's int_mask {mask:#x}: the job \
                 cannot complete"
            ),
        );
    }

    pub(crate) fn released(&mut self, object: &Object) {
        if object.cacheable() && object.backing.as_ref().is_some_and(|b| b.unfetched()) {
            self.unfetched += 1;
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

/// One domain's use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DomainUse {
    /// Domain.
    pub domain: usize,
    /// Bytes of address space taken, ranges kept for reuse included.
    pub taken: u64,
    /// Bytes mapped.
    pub mapped: u64,
    /// Ranges taken.
    pub ranges: usize,
    /// Of these, kept for reuse by the DMA API only.
    pub parked: usize,
    /// The longest free range.
    pub largest_gap: u64,
}

/// A machine's report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Calls by kind.
    pub calls: BTreeMap<CallKind, Calls>,
    /// Hazards met.
    pub hazards: Vec<Met>,
    /// What the NPU model found, with missing syncs among it, and how often.
    pub findings: BTreeMap<String, u64>,
    /// Jobs submitted.
    pub jobs: u64,
    /// Jobs that completed.
    pub jobs_done: u64,
    /// Jobs that timed out.
    pub jobs_timed_out: u64,
    /// Jobs that a core still holds or queues.
    pub jobs_pending: usize,
    /// Bytes of MEM_SYNC to the device.
    pub to_device: u64,
    /// Bytes of MEM_SYNC from the device.
    pub from_device: u64,
    /// Bytes of buffers made.
    pub created: u64,
    /// Bytes of buffers alive now.
    pub live: u64,
    /// Most bytes alive at once.
    pub peak: u64,
    /// Open files.
    pub files: usize,
    /// Handles open.
    pub handles: usize,
    /// Objects alive.
    pub objects: usize,
    /// Mappings alive.
    pub mappings: u32,
    /// Domains made, and their use.
    pub domains: Vec<DomainUse>,
    /// Buffers freed after the device had written to them without a FROM_DEVICE sync in between.
    pub unfetched: u64,
    /// Dirty CPU bytes that FROM_DEVICE syncs threw away (strict mode).
    pub discarded: u64,
    /// The live domain.
    pub current_domain: i32,
    /// References to it.
    pub domain_count: i64,
    /// Whether a soft reset is under way or has failed.
    pub resetting: bool,
    /// Nanoseconds on the machine's clock.
    pub now_ns: u64,
}

impl Report {
    /// Whether nothing would have hurt the kernel and nothing was found wrong.
    pub fn is_clean(&self) -> bool {
        self.hazards.is_empty() && self.findings.is_empty()
    }

    /// Drawn up from a machine's state.
    pub(crate) fn of(state: &State) -> Report {
        let books = &state.report;
        let met = |(hazard, times): (&Hazard, &u64)| Met {
            hazard: hazard.clone(),
            text: hazard.to_string(),
            times: *times,
        };
        let domains = state.domains.made().map(|(id, domain)| {
            let (ranges, parked) = domain.space.ranges();
            DomainUse {
                domain: id,
                taken: domain.space.used(),
                mapped: domain.map.bytes(),
                ranges,
                parked,
                largest_gap: domain.space.largest_gap(),
            }
        });
        let pending = |core: &crate::job::Core| core.queue.len() + usize::from(core.slot.is_some());
        Report {
            calls: books.calls.clone(),
            hazards: books.hazards.iter().map(met).collect(),
            findings: books.findings.clone(),
            jobs: state.jobs.submitted,
            jobs_done: books.jobs_done,
            jobs_timed_out: books.jobs_timed_out,
            jobs_pending: state.cores.iter().map(pending).sum(),
            to_device: books.to_device,
            from_device: books.from_device,
            created: books.created,
            live: state.memory,
            peak: books.peak,
            files: state.files.iter().count(),
            handles: state.files.iter().map(|file| file.handles.len()).sum(),
            objects: state.objects.iter().count(),
            mappings: state.objects.iter().map(|(_, object)| object.mappings).sum(),
            domains: domains.collect(),
            unfetched: books.unfetched,
            discarded: books.discarded,
            current_domain: state.domains.current,
            domain_count: state.domains.count,
            resetting: state.resetting,
            now_ns: state.time.now(),
        }
    }
}
