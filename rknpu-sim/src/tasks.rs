//! The task array of a job, as the driver reads it: through its own mapping, without a bounds check.

use crate::memory::Backing;
use rknpu_sys::uapi::Task;
use std::mem::offset_of;
use zerocopy::IntoBytes;

/// Tasks that a core takes in one start.
pub(crate) const MAX_TASKS: u32 = 4095;
const TASK: u64 = size_of::<Task>() as u64;

/// Tasks of one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) first: u64,
    pub(crate) count: u32,
}

/// What the driver takes from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// The first task.
    pub(crate) task: Task,
    /// The last one's.
    pub(crate) int_mask: u32,
    /// Where the last one lies.
    pub(crate) last: u64,
    /// Its status lies past the end: the driver will write there.
    pub(crate) overruns: bool,
}

impl Chunk {
    /// Reads what lies in the buffer; `None` when it does not, or when there is no last task.
    pub(crate) fn read(self, backing: &Backing) -> Option<Read> {
        let size = backing.len() as u64;
        let count = u64::from(self.count).checked_sub(1)?;
        let (first, last) = (self.first * TASK, (self.first + count) * TASK);
        let mask = last + offset_of!(Task, int_mask) as u64;
        if first + TASK > size || mask + 4 > size {
            return None;
        }
        let (mut task, mut int_mask) = (Task::default(), [0; 4]);
        // Both lie in the buffer, whose length fits usize.
        backing.cpu_read(first as usize, task.as_mut_bytes());
        backing.cpu_read(mask as usize, &mut int_mask);
        let overruns = last + TASK > size;
        Some(Read { task, int_mask: u32::from_le_bytes(int_mask), last, overruns })
    }
}
