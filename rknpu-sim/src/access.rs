//! What the cores read and wrote through the IOMMU, written down where it happens.
//!
//! ```
//! use rknpu_sim::{Config, Machine};
//!
//! let machine = Machine::new(Config::default());
//! machine.record_accesses(100_000); // entries to be kept
//! // … jobs …
//! let accesses = machine.take_accesses();
//! assert!(accesses.list.is_empty() && accesses.left_out == 0);
//! ```

use crate::engine::Unit;
use crate::job::CORES;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A range that a unit of a core has read or written, byte for byte.
///
/// ```
/// use rknpu_sim::access::BusAccess;
/// use rknpu_sim::engine::Unit;
///
/// let (iova, len) = (0xffff_0000, 4096);
/// let access = BusAccess { core: 0, domain: 0, unit: Unit::DpuWrite, write: true, iova, len };
/// assert_eq!(access.iova + access.len, 0xffff_1000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusAccess {
    /// Core.
    pub core: usize,
    /// IOMMU domain in which it happened.
    pub domain: usize,
    /// Which unit of the core.
    pub unit: Unit,
    /// Whether it wrote.
    pub write: bool,
    /// First byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
}

impl BusAccess {
    /// The byte behind the last.
    pub(crate) fn end(&self) -> u64 {
        self.iova + self.len
    }
}

/// What was recorded, in the order of each core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Ranges. One that goes on where the core's last one ended, alike in all else, is the same entry.
    pub list: Vec<BusAccess>,
    /// Ranges that there was no room for.
    pub left_out: u64,
}

/// The record of a machine.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Entries to be kept; 0 for a machine that records nothing.
    most: AtomicUsize,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    accesses: Accesses,
    /// Each core's last entry.
    last: [Option<usize>; CORES],
}

impl Recorder {
    pub(crate) fn record(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Accesses {
        std::mem::take(&mut *self.lock()).accesses
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, access: BusAccess) {
        let most = self.most.load(Ordering::Relaxed);
        if most == 0 {
            return;
        }
        let Record { accesses, last } = &mut *self.lock();
        let last = &mut last[access.core % CORES];
        if let Some(before) = last.and_then(|at| accesses.list.get_mut(at))
            && (BusAccess { iova: before.end(), len: access.len, ..*before }) == access
        {
            before.len += access.len;
        } else if accesses.list.len() < most {
            *last = Some(accesses.list.len());
            accesses.list.push(access);
        } else {
            accesses.left_out += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_one_entry_and_what_has_no_room_is_counted() {
        let recorder = Recorder::default();
        let read = |core, iova| BusAccess {
            core,
            domain: 0,
            unit: Unit::CnaFeature,
            write: false,
            iova,
            len: 16,
        };
        recorder.note(read(0, 0)); // not asked for yet
        recorder.record(3);
        for (core, iova) in [(0, 0), (1, 16), (0, 16), (0, 48), (1, 16), (0, 64)] {
            recorder.note(read(core, iova));
        }
        let long = |core, iova, len| BusAccess { len, ..read(core, iova) };
        let list = vec![long(0, 0, 32), long(1, 16, 16), long(0, 48, 32)];
        assert_eq!(recorder.take(), Accesses { list, left_out: 1 });
        recorder.note(read(0, 80)); // nothing goes on across a taking
        assert_eq!(recorder.take().list, [read(0, 80)]);
    }
}
