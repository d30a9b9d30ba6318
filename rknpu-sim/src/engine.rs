//! What executes jobs: the boundary between the driver model and whatever plays the NPU.
//!
//! The driver model knows what the kernel driver knows of a job: the first task's program address
//! and amount, the interrupt mask, how many tasks. An [`Engine`] turns that into an [`Outcome`],
//! reading and writing memory through the [`Bus`] only, that is, through the IOVA map of the domain
//! that is live while the job runs.
//!
//! An engine that finishes every job at once, and writes down nothing.
//!
//! ```
//! use rknpu_sim::engine::{Bus, Engine, Outcome, Run, Start};
//! use rknpu_sim::{Config, Machine};
//! use std::sync::Arc;
//! # use rknpu_sim::doc::job;
//!
//! #[derive(Debug)]
//! struct AtOnce;
//!
//! impl Engine for AtOnce {
//!     fn run(&self, start: &Start, _: &mut dyn Bus) -> Run {
//!         let outcome =
//!             Outcome::Done { int_status: start.int_mask, tasks_done: start.tasks, busy_ns: 0 };
//!         Run { outcome, findings: Vec::new() }
//!     }
//! }
//!
//! let file = Machine::new(Config { engine: Arc::new(AtOnce), ..Config::default() }).open();
//! let mut job = job(&file, 0)?;
//! file.call(&mut job)?;
//! assert_eq!(job.task_counter, 1);
//! # Ok::<(), rustix::io::Errno>(())
//! ```

use std::fmt;

/// One core's share of a job, as the driver programs it into the core's registers.
///
/// ```
/// use rknpu_sim::engine::Start;
///
/// // What the driver programs for a submit of the tasks 0..3, with 5 as PC and PINGPONG.
/// let start = Start {
///     core: 0,
///     regcmd_addr: 0xffff_0000,
///     regcfg_amount: 108,
///     tasks: 3,
///     dma_base: 0,
///     int_mask: 0x300,
///     ping_pong: true,
///     fresh: true,
/// };
/// assert_eq!(start.int_mask, rknpu_sys::regs::INT_DPU);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Core, 0..=2.
    pub core: usize,
    /// IOVA of the first program: the low 32 bits of the first task's `regcmd_addr`.
    pub regcmd_addr: u32,
    /// The first task's `regcfg_amount`: commands before the trailer.
    pub regcfg_amount: u32,
    /// Tasks in this commit, 1..=4095.
    pub tasks: u32,
    /// Low 32 bits of the submit's `task_base_addr`.
    pub dma_base: u32,
    /// The last task's `int_mask`: the interrupt bits that the driver waits for.
    pub int_mask: u32,
    /// Whether the submit asked for ping-pong between register groups.
    pub ping_pong: bool,
    /// Whether the core was powered up or reset since its last start: what its registers held is lost.
    pub fresh: bool,
}

/// How a core's work ends.
///
/// ```
/// use rknpu_sim::engine::Outcome;
///
/// let busy = |outcome: &Outcome| match outcome {
///     Outcome::Done { busy_ns, .. } => Some(*busy_ns),
///     Outcome::Hang { .. } => None, // the driver's timeout decides
/// };
/// assert_eq!(busy(&Outcome::Done { int_status: 0x300, tasks_done: 1, busy_ns: 90 }), Some(90));
/// assert_eq!(busy(&Outcome::Hang { task_counter: 0 }), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An interrupt after `busy_ns` of core time.
    Done {
        /// Interrupt bits raised.
        int_status: u32,
        /// Programs run.
        tasks_done: u32,
        /// Modelled core time in nanoseconds.
        busy_ns: u64,
    },
    /// No interrupt ever: the driver's timeout and reset will end it.
    Hang {
        /// What the status register shows as tasks done.
        task_counter: u32,
    },
}

/// What a finding says; there is nothing else that it could.
///
/// ```
/// use rknpu_sim::engine::Verdict;
///
/// assert_eq!(Verdict::NotModelled.to_string(), "not modelled");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Verdict {
    /// A board would hang or compute something else; the text names who found that.
    Wrong,
    /// This simulator does not know what a board would do.
    NotModelled,
    /// It works, but relies on something.
    Doubtful,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Wrong => "wrong",
            Verdict::NotModelled => "not modelled",
            Verdict::Doubtful => "doubtful",
        })
    }
}

/// Something about a run that a driver cannot see.
///
/// ```
/// use rknpu_sim::engine::{Finding, Verdict};
///
/// let finding = Finding { verdict: Verdict::Doubtful, text: "a register was never written".into() };
/// assert_eq!(finding.to_string(), "doubtful: a register was never written");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Finding {
    /// Which of the three it is.
    pub verdict: Verdict,
    /// The entry or register, its address, and what was expected.
    pub text: String,
}

impl Finding {
    /// That a board would hang or compute something else.
    pub(crate) fn wrong(text: String) -> Finding {
        Finding { verdict: Verdict::Wrong, text }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verdict, self.text)
    }
}

/// A result, and everything about it that would be wrong or uncertain on a board.
///
/// ```
/// use rknpu_sim::engine::{Finding, Outcome, Run, Verdict};
///
/// // What a driver cannot see, but a test can: why the core hangs.
/// let text = "program at 0xffff0000: entry 3 names no register".into();
/// let run = Run {
///     outcome: Outcome::Hang { task_counter: 0 },
///     findings: vec![Finding { verdict: Verdict::NotModelled, text }],
/// };
/// assert_eq!(run.findings.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// How the work ends.
    pub outcome: Outcome,
    /// Each names the entry or register, its address and what was expected.
    pub findings: Vec<Finding>,
}

/// A unit of a core that reads or writes memory.
///
/// ```
/// use rknpu_sim::engine::Unit;
///
/// assert_ne!(Unit::CnaFeature, Unit::CnaWeight);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// The PC fetches register commands.
    Pc,
    /// The CNA reads the input.
    CnaFeature,
    /// The CNA reads weights.
    CnaWeight,
    /// The DPU reads its own inputs.
    DpuRead,
    /// The DPU writes results.
    DpuWrite,
}

/// An access that the IOMMU refuses.
///
/// ```
/// use rknpu_sim::engine::BusFault;
///
/// let fault = BusFault { iova: 0xffff_f000, len: 8192, write: true, mapped: 4096 };
/// assert_eq!(
///     fault.to_string(),
///     "write of 8192 bytes at IOVA 0xfffff000: only 4096 are mapped there in one buffer"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusFault {
    /// First byte asked for.
    pub iova: u64,
    /// Bytes asked for.
    pub len: u64,
    /// Whether it was a write.
    pub write: bool,
    /// Bytes from `iova` on that are mapped, in one buffer.
    pub mapped: u64,
}

impl fmt::Display for BusFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.write { "write" } else { "read" };
        write!(
            f,
            "{way} of {} bytes at IOVA {:#x}: only {} are mapped there in one buffer",
            self.len, self.iova, self.mapped
        )
    }
}

impl std::error::Error for BusFault {}

/// Memory as the NPU sees it: the device's view of buffers, through the live domain's map.
///
/// A range must lie in one buffer; a program that runs from one buffer into the next is faulted even
/// where the next happens to be mapped, because it is a mistake of the program.
///
/// ```
/// use rknpu_sim::engine::{Bus, BusFault, Unit};
///
/// /// One buffer at IOVA 0x1000 that notes what is written.
/// #[derive(Default)]
/// struct Page(Vec<(u64, Vec<u8>)>);
///
/// impl Bus for Page {
///     fn read(&self, _: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
///         let end = iova.saturating_add(len);
///         if iova < 0x1000 || end > 0x2000 {
///             return Err(BusFault { iova, len, write: false, mapped: 0 });
///         }
///         Ok(&[0; 4096][..len as usize])
///     }
///
///     fn write(&mut self, _: Unit, iova: u64, bytes: &[u8]) -> Result<(), BusFault> {
///         self.writable(iova, bytes.len() as u64)?;
///         self.0.push((iova, bytes.to_vec()));
///         Ok(())
///     }
///
///     fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault> {
///         self.read(Unit::DpuWrite, iova, len).map(drop).map_err(|fault| BusFault { write: true, ..fault })
///     }
/// }
///
/// let mut page = Page::default();
/// page.write(Unit::DpuWrite, 0x1ffc, &[1, 2, 3, 4])?;
/// let refused = page.write(Unit::DpuWrite, 0x1ffd, &[1, 2, 3, 4]);
/// assert!(refused.is_err_and(|fault| fault.write));
/// # Ok::<(), BusFault>(())
/// ```
pub trait Bus {
    /// Bytes for reading. Nobody writes to them before this bus does, or the run ends.
    ///
    /// # Errors
    /// [`BusFault`] when the range is not mapped in one buffer.
    fn read(&self, unit: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault>;

    /// Bytes that the core has kept in CBUF since an earlier [`Bus::read`]: they are not fetched again.
    ///
    /// # Errors
    /// As for [`Bus::read`].
    fn kept(&self, unit: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        self.read(unit, iova, len)
    }

    /// Writes bytes, once no other core reads them. What was read from this bus has to be used up.
    ///
    /// # Errors
    /// [`BusFault`] as for [`Bus::read`].
    fn write(&mut self, unit: Unit, iova: u64, bytes: &[u8]) -> Result<(), BusFault>;

    /// Whether a write of `len` bytes would go through; nothing is read or written.
    ///
    /// # Errors
    /// [`BusFault`] as for [`Bus::write`].
    fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault>;
}

/// Plays the NPU: executes the job of one core.
///
/// [The module](self) shows one; this crate brings [`Npu`](crate::npu::Npu), which computes.
pub trait Engine: Send + Sync + fmt::Debug {
    /// Runs to the end, or says that it would never end. Called outside all locks of the driver
    /// model, from one thread per core at a time.
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run;
}
