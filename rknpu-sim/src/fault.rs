//! Faults that the environment can be made to have.
//!
//! ```
//! use rknpu_sim::{CallKind, Config, Fault, Machine};
//! use rknpu_sys::uapi::MemCreate;
//! use rustix::io::Errno;
//!
//! let machine = Machine::new(Config::default());
//! let file = machine.open();
//! let mut create = || file.call(&mut MemCreate { flags: 0x403, size: 4096, ..Default::default() });
//! // The second buffer from now on cannot be had.
//! let (kind, errno) = (CallKind::MemCreate, Errno::NOMEM);
//! machine.inject(Fault::Call { kind, after: 1, times: 1, errno });
//! assert_eq!([create(), create(), create()], [Ok(()), Err(errno), Ok(())]);
//! ```

use crate::report::CallKind;
use rustix::io::Errno;

/// A fault, armed with [`crate::Machine::inject`].
///
/// ```
/// use rknpu_sim::{Config, Fault, Machine};
/// # use rustix::io::Errno;
/// # use rknpu_sim::doc::job;
///
/// let machine = Machine::new(Config::default());
/// let file = machine.open();
/// machine.inject(Fault::Hang { core: Some(0), after: 0, times: 1 });
/// assert_eq!(file.call(&mut job(&file, 0)?), Err(Errno::TIMEDOUT));
/// assert_eq!(machine.report().jobs_timed_out, 1);
/// # Ok::<(), Errno>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The call of this kind after `after` others fails with this errno, having done nothing; `times`
    /// in a row.
    Call {
        /// Which call.
        kind: CallKind,
        /// Calls of the kind that still go through first.
        after: u32,
        /// How many then fail.
        times: u32,
        /// The errno.
        errno: Errno,
    },
    /// A core's work never ends.
    Hang {
        /// Core, or any.
        core: Option<usize>,
        /// Starts that still go well first.
        after: u32,
        /// How many then hang.
        times: u32,
    },
    /// `rocket` drops jobs, out of memory for instance, and SUBMIT says 0.
    DroppedJob {
        /// Jobs that are queued before.
        after: u32,
        /// How many.
        times: u32,
    },
    /// A core's interrupt comes with another status than its job waits for, as one left over from a job
    /// before: the driver takes note and waits on, until the timeout.
    ForeignInterrupt {
        /// Core, or any.
        core: Option<usize>,
        /// The status. A pair of bits that the job waits for, and no other, ends it all the same.
        status: u32,
        /// Interrupts that still are the job's own first.
        after: u32,
        /// How many then are not.
        times: u32,
    },
    /// The memory of a buffer can't be pinned, as that of a contiguous one: direct I/O into it is EFAULT.
    Unpinned {
        /// Buffers that are made before.
        after: u32,
        /// How many.
        times: u32,
    },
    /// Direct I/O that a library in front of the program sees ends half way, as where a page was dropped or
    /// the process forks.
    ShortDirectIo {
        /// Reads and writes before.
        after: u32,
        /// How many.
        times: u32,
    },
    /// The reset lines fail: the next soft reset returns this errno and leaves its flag set.
    ResetLines(Errno),
    /// The next switch of domain fails to attach.
    Attach(Errno),
    /// The next sync file cannot be made.
    FenceFile(Errno),
    /// The struct of the next call that hands one in cannot be read: EFAULT, nothing done.
    CopyIn,
    /// The struct of the next call that wants one back cannot be written: EFAULT, and everything
    /// done.
    CopyOut,
    /// Another process holds a domain for so many milliseconds from now on: it is made the live one
    /// if nothing else holds another, else the fault does nothing.
    BusyDomain {
        /// Domain.
        domain: i32,
        /// How long.
        for_ms: u32,
    },
}

/// Faults armed.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<Fault>,
}

impl Faults {
    pub(crate) fn arm(&mut self, fault: Fault) {
        self.armed.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.armed.clear();
    }

    /// The errno that a call fails with, if one is due.
    pub(crate) fn call(&mut self, of: CallKind) -> Option<Errno> {
        let at =
            self.armed.iter().position(|f| matches!(f, Fault::Call { kind, .. } if *kind == of))?;
        let Fault::Call { after, times, errno, .. } = &mut self.armed[at] else { return None };
        if *after > 0 {
            *after -= 1;
            return None;
        }
        let errno = *errno;
        *times = times.saturating_sub(1);
        if *times == 0 {
            self.armed.remove(at);
        }
        Some(errno)
    }

    /// Whether the work that a core begins never ends.
    pub(crate) fn hang(&mut self, on: usize) -> bool {
        let hangs =
            |f: &Fault| matches!(f, Fault::Hang { core, .. } if core.is_none_or(|c| c == on));
        let Some(at) = self.armed.iter().position(hangs) else { return false };
        let Fault::Hang { after, times, .. } = &mut self.armed[at] else { return false };
        if *after > 0 {
            *after -= 1;
            return false;
        }
        *times = times.saturating_sub(1);
        if *times == 0 {
            self.armed.remove(at);
        }
        true
    }

    /// The status that a core's interrupt comes with instead of its own.
    pub(crate) fn foreign_interrupt(&mut self, on: usize) -> Option<u32> {
        let foreign = |f: &Fault| match f {
            Fault::ForeignInterrupt { core, .. } => core.is_none_or(|core| core == on),
            _ => false,
        };
        let at = self.armed.iter().position(foreign)?;
        let Fault::ForeignInterrupt { status, after, times, .. } = &mut self.armed[at] else {
            return None;
        };
        if *after > 0 {
            *after -= 1;
            return None;
        }
        let status = *status;
        *times = times.saturating_sub(1);
        if *times == 0 {
            self.armed.remove(at);
        }
        Some(status)
    }

    pub(crate) fn reset(&mut self) -> Option<Errno> {
        self.once(|fault| match fault {
            Fault::ResetLines(errno) => Some(*errno),
            _ => None,
        })
    }

    pub(crate) fn attach(&mut self) -> Option<Errno> {
        self.once(|fault| match fault {
            Fault::Attach(errno) => Some(*errno),
            _ => None,
        })
    }

    pub(crate) fn fence_file(&mut self) -> Option<Errno> {
        self.once(|fault| match fault {
            Fault::FenceFile(errno) => Some(*errno),
            _ => None,
        })
    }

    /// Whether the caller's struct cannot be read this time.
    pub(crate) fn copy_in(&mut self) -> bool {
        self.once(|fault| matches!(fault, Fault::CopyIn).then_some(Errno::FAULT)).is_some()
    }

    /// Whether it cannot be written this time.
    pub(crate) fn copy_out(&mut self) -> bool {
        self.once(|fault| matches!(fault, Fault::CopyOut).then_some(Errno::FAULT)).is_some()
    }

    /// Whether `rocket` drops the next job.
    pub(crate) fn dropped_job(&mut self) -> bool {
        self.counted(|fault| match fault {
            Fault::DroppedJob { after, times } => Some((after, times)),
            _ => None,
        })
    }

    /// Whether the memory of the next buffer can't be pinned.
    pub(crate) fn unpinned(&mut self) -> bool {
        self.counted(|fault| match fault {
            Fault::Unpinned { after, times } => Some((after, times)),
            _ => None,
        })
    }

    /// Whether direct I/O ends half way.
    pub(crate) fn short_direct_io(&mut self) -> bool {
        self.counted(|fault| match fault {
            Fault::ShortDirectIo { after, times } => Some((after, times)),
            _ => None,
        })
    }

    /// Whether a fault that begins after some times, and ends after some more, is due.
    fn counted(&mut self, pick: impl Fn(&mut Fault) -> Option<(&mut u32, &mut u32)>) -> bool {
        let Some(at) = self.armed.iter_mut().position(|fault| pick(fault).is_some()) else {
            return false;
        };
        let Some((after, times)) = pick(&mut self.armed[at]) else { return false };
        if *after > 0 {
            *after -= 1;
            return false;
        }
        *times = times.saturating_sub(1);
        if *times == 0 {
            self.armed.remove(at);
        }
        true
    }

    fn once(&mut self, pick: impl Fn(&Fault) -> Option<Errno>) -> Option<Errno> {
        let at = self.armed.iter().position(|fault| pick(fault).is_some())?;
        pick(&self.armed.remove(at))
    }
}
