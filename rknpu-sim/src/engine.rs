//! What executes jobs: the boundary between the driver model and whatever plays the NPU.
//!
//! The driver model knows what the kernel driver knows of a job: the first task's program address
//! and amount, the interrupt mask, how many tasks. An [`Engine`] turns that into an [`Outcome`],
//! reading and writing memory through the [`Bus`] only, that is, through the IOVA map of the domain
//! that is live while the job runs.

use std::fmt;

/// One core's share of a job, as the driver programs it into the core's registers.
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
}

/// How a core's work ends.
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

/// A result, and everything about it that would be wrong or uncertain on a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// How the work ends.
    pub outcome: Outcome,
    /// Findings, each naming the entry, its address and what was expected.
    pub findings: Vec<String>,
}

/// An access that the IOMMU refuses.
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
pub trait Bus: Sync {
    /// Bytes for reading.
    ///
    /// # Errors
    /// [`BusFault`] when the range is not mapped in one buffer.
    fn read(&self, iova: u64, len: u64) -> Result<&[u8], BusFault>;

    /// Writes bytes.
    ///
    /// # Errors
    /// [`BusFault`] as for [`Bus::read`].
    fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), BusFault>;

    /// Whether a write of `len` bytes would go through; nothing is read or written.
    ///
    /// # Errors
    /// [`BusFault`] as for [`Bus::write`].
    fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault> {
        self.read(iova, len).map(drop).map_err(|fault| BusFault { write: true, ..fault })
    }
}

/// Plays the NPU: executes the job of one core.
pub trait Engine: Send + Sync + fmt::Debug {
    /// Runs to the end, or says that it would never end. Called outside all locks of the driver
    /// model, from one thread per core at a time.
    fn run(&self, start: &Start, bus: &dyn Bus) -> Run;
}
