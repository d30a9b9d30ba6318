//! Sync files: what FENCE_OUT returns and FENCE_IN takes.

use crate::kernel::Channel;
use crate::state::State;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::collections::HashMap;

/// Index of a fence.
pub(crate) type FenceId = usize;

/// A fence.
#[derive(Debug)]
struct Fence {
    sequence: u64,
    signalled: bool,
    /// Readable once the fence is signalled.
    file: Option<OwnedFd>,
    /// Another driver's.
    foreign: bool,
}

/// All fences, and which descriptor is which.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    fences: Vec<Fence>,
    files: HashMap<RawFd, FenceId>,
}

/// What a sync file shows.
///
/// ```
/// use rknpu_sim::{Config, Machine};
///
/// let machine = Machine::new(Config::default());
/// let fd = machine.foreign_fence()?;
/// let info = machine.fence(fd).expect("a fence");
/// assert!(!info.signalled);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceInfo {
    /// `rknpu-rknpu<context>-<sequence>`.
    pub name: String,
    /// Whether it is signalled.
    pub signalled: bool,
    /// The driver's name.
    pub driver: &'static str,
    /// The timeline's name.
    pub timeline: &'static str,
}

impl Fences {
    /// A fence that is not signalled yet, without a file.
    pub(crate) fn add(&mut self) -> FenceId {
        let sequence = self.fences.len() as u64 + 1;
        self.fences.push(Fence { sequence, signalled: false, file: None, foreign: false });
        self.fences.len() - 1
    }

    /// A fence of another driver.
    pub(crate) fn add_foreign(&mut self) -> FenceId {
        let id = self.add();
        self.fences[id].foreign = true;
        id
    }

    /// Whether a fence is another driver's and not signalled: one that FENCE_IN waits for.
    pub(crate) fn holds_up(&self, id: FenceId) -> bool {
        self.fences.get(id).is_some_and(|fence| fence.foreign && !fence.signalled)
    }

    /// Opens a file for a fence: the caller's descriptor.
    pub(crate) fn open(&mut self, id: FenceId) -> Result<RawFd, Errno> {
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let theirs = rustix::io::fcntl_dupfd_cloexec(&file, 0)?;
        let fd = theirs.as_raw_fd();
        // The caller closes it.
        std::mem::forget(theirs);
        self.files.insert(fd, id);
        if let Some(fence) = self.fences.get_mut(id) {
            fence.file = Some(file);
        }
        Ok(fd)
    }

    /// The fence behind a descriptor.
    pub(crate) fn of(&self, fd: RawFd) -> Option<FenceId> {
        self.files.get(&fd).copied()
    }

    pub(crate) fn info(&self, id: FenceId) -> Option<FenceInfo> {
        let fence = self.fences.get(id)?;
        let name = format!("rknpu-rknpu1-{}", fence.sequence);
        let (driver, timeline) = ("rknpu", "rknpu");
        Some(FenceInfo { name, signalled: fence.signalled, driver, timeline })
    }

    /// Notes a duplicate of a descriptor.
    pub(crate) fn duplicated(&mut self, from: RawFd, to: RawFd) {
        if let Some(fence) = self.of(from) {
            self.files.insert(to, fence);
        }
    }

    /// Forgets a descriptor that the program has closed.
    pub(crate) fn closed(&mut self, fd: RawFd) -> bool {
        self.files.remove(&fd).is_some()
    }
}

impl State {
    /// Signals a fence.
    pub(crate) fn signal(&mut self, id: FenceId) {
        if let Some(fence) = self.fences.fences.get_mut(id) {
            fence.signalled = true;
            if let Some(file) = fence.file.take() {
                // An eventfd that was just made takes a 1; and who waits would only wait longer.
                let _ = rustix::io::write(&file, &1u64.to_ne_bytes());
            }
        }
        self.time.wake(Channel::Fence);
    }
}
