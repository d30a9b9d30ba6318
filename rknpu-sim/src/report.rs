//! What happened: calls, bytes, what is still held, and what would have hurt the kernel.
//!
//! ```
//! use rknpu_sim::{Config, Machine};
//! use rknpu_sys::uapi::{MemCreate, MemDestroy};
//!
//! let machine = Machine::new(Config::default());
//! let file = machine.open();
//! let mut buffer = MemCreate { flags: 0x403, size: 8192, ..Default::default() };
//! file.call(&mut buffer)?;
//! file.call(&mut MemDestroy { handle: buffer.handle, ..Default::default() })?;
//! // What a test of a driver's user asks at its end: nothing left, nothing wrong.
//! let report = machine.report();
//! assert_eq!((report.objects, report.live, report.peak), (0, 0, 8192));
//! assert!(report.is_clean());
//! # Ok::<(), rustix::io::Errno>(())
//! ```

use crate::engine::{Finding, Verdict};
use crate::hazard::Hazard;
use crate::job::CORES;
use crate::object::Object;
use crate::state::State;
use std::collections::BTreeMap;
use std::fmt;

/// Kinds of calls.
///
/// ```
/// use rknpu_sim::{CallKind, Config, Machine};
/// use rknpu_sys::{action, uapi::Action};
///
/// let machine = Machine::new(Config::default());
/// machine.open().call(&mut Action { flags: action::GET_DRV_VERSION, value: 0 })?;
/// assert_eq!(machine.report().calls.keys().collect::<Vec<_>>(), [&CallKind::Action]);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
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
    CreateBo,
    PrepBo,
    FiniBo,
    DirectIo,
    Other,
}

/// Calls of one kind.
///
/// ```
/// use rknpu_sim::{CallKind, Config, Machine, report::Calls};
/// use rknpu_sys::{action, uapi::Action};
///
/// let machine = Machine::new(Config::default());
/// let refused = machine.open().call(&mut Action { flags: action::POWER_ON, value: 0 });
/// assert!(refused.is_err());
/// assert_eq!(machine.report().calls[&CallKind::Action], Calls { ok: 0, failed: 1 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Calls {
    /// Succeeded.
    pub ok: u64,
    /// Failed.
    pub failed: u64,
}

/// A hazard and how often it was met.
///
/// ```
/// use rknpu_sim::{Config, Machine};
/// use rknpu_sys::uapi::MemSync;
///
/// let machine = Machine::new(Config::default());
/// let file = machine.open();
/// for _ in 0..3 {
///     let forged = MemSync { flags: 1, obj_addr: 0x1234, size: 1, ..Default::default() };
///     assert!(file.call(&mut { forged }).is_err());
/// }
/// assert_eq!(machine.report().hazards[0].times, 3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Met {
    /// What.
    pub hazard: Hazard,
    /// In words.
    pub text: String,
    /// How often.
    pub times: u64,
}

/// A finding, on which core, and how often.
///
/// ```
/// use rknpu_sim::engine::{Finding, Verdict};
/// use rknpu_sim::report::Found;
///
/// let finding = Finding { verdict: Verdict::Wrong, text: "missing sync".into() };
/// let found = Found { core: 1, finding, times: 2 };
/// assert_eq!(found.to_string(), "core 1: wrong: missing sync (2 times)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Found {
    /// Core.
    pub core: usize,
    /// What.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub finding: Finding,
    /// How often.
    pub times: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {}: {} ({} times)", self.core, self.finding, self.times)
    }
}

/// Running totals.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) calls: BTreeMap<CallKind, Calls>,
    pub(crate) hazards: BTreeMap<Hazard, u64>,
    pub(crate) findings: BTreeMap<(usize, Finding), u64>,
    pub(crate) jobs_done: u64,
    pub(crate) jobs_timed_out: u64,
    pub(crate) jobs_dropped: u64,
    pub(crate) to_device: u64,
    pub(crate) from_device: u64,
    pub(crate) created: u64,
    pub(crate) unfetched: u64,
    pub(crate) discarded: u64,
    pub(crate) peak: u64,
}

/// Distinct findings and hazards kept.
pub(crate) const FINDINGS: usize = 1000;

impl Books {
    pub(crate) fn called(&mut self, kind: CallKind, ok: bool) {
        let calls = self.calls.entry(kind).or_default();
        if ok {
            calls.ok += 1;
        } else {
            calls.failed += 1;
        }
    }

    pub(crate) fn finding(&mut self, core: usize, finding: Finding) {
        let found = (core, finding);
        if self.findings.len() < FINDINGS || self.findings.contains_key(&found) {
            *self.findings.entry(found).or_default() += 1;
        }
    }

    pub(crate) fn wrong_interrupt(&mut self, core: usize, status: u32, mask: u32) {
        self.finding(
            core,
            Finding::wrong(format!(
                "interrupt {status:#x} does not equal the last task's int_mask {mask:#x}: the job \
                 cannot complete (recorded)"
            )),
        );
    }

    pub(crate) fn released(&mut self, object: &Object) {
        if object.cacheable() && object.backing.as_ref().is_some_and(|b| b.unfetched()) {
            self.unfetched += 1;
        }
    }
}

/// One domain's use.
///
/// ```
/// use rknpu_sim::{Config, Machine};
/// use rknpu_sys::uapi::MemCreate;
///
/// let machine = Machine::new(Config::default());
/// let file = machine.open();
/// let domain = MemCreate { flags: 0x403, size: 1 << 20, iommu_domain_id: 2, ..Default::default() };
/// file.call(&mut { domain })?;
/// let used = machine.report().domains.into_iter().find(|domain| domain.domain == 2);
/// assert_eq!(used.map(|domain| (domain.mapped, domain.ranges)), Some((1 << 20, 1)));
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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

/// One core's use.
///
/// ```
/// use rknpu_sim::{Config, Machine, report::CoreUse};
///
/// let machine = Machine::new(Config::default());
/// assert_eq!(machine.report().cores, [CoreUse::default(); 3]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CoreUse {
    /// Whether the driver thinks that a job runs.
    pub busy: bool,
    /// Jobs queued behind it.
    pub queued: usize,
    /// The driver's count of tasks queued and running, by which it chooses a core; some failures
    /// forget to take theirs off.
    pub tasks: i64,
    /// Programs started.
    pub starts: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Soft resets.
    pub resets: u64,
}

/// A machine's report.
///
/// ```
/// use rknpu_sim::{Config, Machine};
///
/// let report = machine_that_did_nothing().report();
/// assert_eq!((report.jobs, report.current_domain, report.domain_count), (0, 0, 0));
/// # fn machine_that_did_nothing() -> Machine { Machine::new(Config::default()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Report {
    /// Calls by kind.
    pub calls: BTreeMap<CallKind, Calls>,
    /// Hazards met.
    pub hazards: Vec<Met>,
    /// What the NPU model found, with missing syncs among it.
    pub findings: Vec<Found>,
    /// Jobs submitted.
    pub jobs: u64,
    /// Jobs that completed.
    pub jobs_done: u64,
    /// Jobs that timed out.
    pub jobs_timed_out: u64,
    /// Jobs that `rocket` dropped while SUBMIT said 0.
    pub jobs_dropped: u64,
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
    /// The cores.
    pub cores: [CoreUse; CORES],
    /// Domains made, and their use.
    pub domains: Vec<DomainUse>,
    /// Domains of files that have gone, which are never freed.
    pub lost_domains: usize,
    /// Buffers freed after the device had written to them without a FROM_DEVICE sync in between.
    pub unfetched: u64,
    /// Bytes of lines that the CPU wrote to and FROM_DEVICE syncs threw away (strict mode); not those that
    /// the kernel has zeroed and nobody wrote to.
    pub discarded: u64,
    /// The live domain.
    pub current_domain: i32,
    /// References to it.
    pub domain_count: i64,
    /// Whether a soft reset is under way or has failed.
    pub resetting: bool,
    /// What SET_PROC_NICE was last told.
    pub nice: i32,
    /// Nanoseconds on the machine's clock.
    pub now_ns: u64,
}

/// What users that have gone left behind.
///
/// ```
/// use rknpu_sim::{Config, Machine, report::Leaks};
/// use rknpu_sys::uapi::MemCreate;
///
/// let machine = Machine::new(Config::default());
/// let file = machine.open();
/// file.call(&mut MemCreate { flags: 0x403, size: 4096, ..Default::default() })?;
/// let leaks = machine.report().leaks();
/// assert_eq!((leaks.handles, leaks.buffers, leaks.iova), (1, 1, 4096));
/// drop(file);
/// assert_eq!(machine.report().leaks(), Leaks::default());
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Leaks {
    /// Handles not destroyed.
    pub handles: usize,
    /// Buffers alive.
    pub buffers: usize,
    /// Address space still taken, in bytes over all domains; what the DMA API keeps for reuse not.
    pub iova: u64,
    /// Mappings not unmapped.
    pub mappings: u32,
}

impl Report {
    /// What is left, if nobody uses the machine any more.
    pub fn leaks(&self) -> Leaks {
        Leaks {
            handles: self.handles,
            buffers: self.objects,
            iova: self.domains.iter().map(|domain| domain.mapped).sum(),
            mappings: self.mappings,
        }
    }

    /// Whether nothing would have hurt the kernel, nothing was found wrong and all was modelled. What is
    /// doubtful works.
    ///
    /// ```
    /// use rknpu_sim::Report;
    /// use rknpu_sim::engine::{Finding, Verdict};
    /// use rknpu_sim::report::Found;
    ///
    /// let mut report = Report::default();
    /// for (verdict, clean) in [(Verdict::Doubtful, true), (Verdict::Wrong, false)] {
    ///     let finding = Finding { verdict, text: "a missing sync".into() };
    ///     report.findings.push(Found { core: 0, finding, times: 1 });
    ///     assert_eq!(report.is_clean(), clean);
    /// }
    /// ```
    pub fn is_clean(&self) -> bool {
        let bad = |found: &Found| found.finding.verdict != Verdict::Doubtful;
        self.hazards.is_empty() && !self.findings.iter().any(bad)
    }

    /// Drawn up from a machine's state.
    pub(crate) fn of(state: &State) -> Report {
        let books = &state.report;
        let met = |(hazard, times): (&Hazard, &u64)| Met {
            hazard: hazard.clone(),
            text: hazard.to_string(),
            times: *times,
        };
        let found = |((core, finding), times): (&(usize, Finding), &u64)| Found {
            core: *core,
            finding: finding.clone(),
            times: *times,
        };
        let made = state.domains.made().filter(|_| !state.rocket.present);
        let domains = made.map(|(id, domain)| {
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
        let mut cores = state.cores.each_ref().map(|core| CoreUse {
            busy: core.slot.is_some(),
            queued: core.queue.len(),
            tasks: core.tasks,
            starts: core.starts,
            interrupts: core.interrupts,
            resets: core.resets,
        });
        if state.rocket.present {
            for (at, core) in cores.iter_mut().enumerate() {
                (core.busy, core.queued) = state.rocket.jobs.on(at);
            }
        }
        Report {
            calls: books.calls.clone(),
            hazards: books.hazards.iter().map(met).collect(),
            findings: books.findings.iter().map(found).collect(),
            jobs: state.jobs.submitted + state.rocket.jobs.submitted,
            jobs_done: books.jobs_done,
            jobs_timed_out: books.jobs_timed_out,
            jobs_dropped: books.jobs_dropped,
            jobs_pending: cores.iter().map(|core| core.queued + usize::from(core.busy)).sum(),
            to_device: books.to_device,
            from_device: books.from_device,
            created: books.created,
            live: state.memory,
            peak: books.peak,
            files: state.files.iter().count(),
            handles: state.files.iter().map(|file| file.handles.len()).sum(),
            objects: state.objects.iter().count(),
            mappings: state.objects.iter().map(|(_, object)| object.mappings).sum(),
            cores,
            domains: domains.chain(state.rocket.uses()).collect(),
            lost_domains: state.rocket.lost_domains(),
            unfetched: books.unfetched,
            discarded: books.discarded,
            current_domain: state.domains.current,
            domain_count: state.domains.count,
            resetting: state.resetting,
            nice: state.nice,
            now_ns: state.time.now(),
        }
    }
}
