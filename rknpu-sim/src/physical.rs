//! Contiguous memory: the CMA region, and pages outside it. Addresses are made up, below 4 GiB.
//! What a block held when it was freed is what the next one there finds, unless the driver zeroes it.

use crate::config::Alignment;
use crate::iova::{PAGE, Space};
use crate::memory::Backing;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The largest block that the page allocator gives: order 10.
const BLOCK: u64 = PAGE << 10;
/// Bytes in freed blocks whose contents are remembered; others are found zero.
const REMEMBERED: u64 = 64 << 20;

/// Physical memory, as far as contiguous buffers need it.
#[derive(Debug)]
pub(crate) struct Physical {
    space: Space,
    cma: u64,
    used: u64,
    /// Contents of freed blocks, by address.
    left: BTreeMap<u64, Arc<Backing>>,
}

impl Physical {
    pub(crate) fn new(cma: u64) -> Physical {
        let (space, left) = (Space::new(Alignment::None), BTreeMap::new());
        Physical { space, cma: cma.min(0x8000_0000), used: 0, left }
    }

    /// A contiguous block's address: from the CMA region when it is larger than a page and fits,
    /// else from the page allocator when it is small enough.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<(u64, bool)> {
        if bytes > PAGE && bytes <= self.cma - self.used {
            let address = self.space.alloc_unaligned(bytes)?;
            self.used += bytes;
            return Some((address, true));
        }
        (bytes <= BLOCK).then(|| self.space.alloc_unaligned(bytes))?.map(|at| (at, false))
    }

    /// Where another driver's buffer lies; it takes nothing of the CMA region.
    pub(crate) fn foreign(&mut self, bytes: u64) -> Option<u64> {
        self.space.alloc_unaligned(bytes)
    }

    /// Remembers what a block held that is freed.
    pub(crate) fn leave(&mut self, address: u64, backing: Arc<Backing>) {
        let bytes = backing.len() as u64;
        self.forget(address, bytes);
        let held: u64 = self.left.values().map(|backing| backing.len() as u64).sum();
        if held + bytes <= REMEMBERED {
            self.left.insert(address, backing);
        }
    }

    /// Takes what was left where a new block lies: only of a block in the same place and size.
    pub(crate) fn left(&mut self, address: u64, bytes: u64) -> Option<Arc<Backing>> {
        let left = self.left.remove(&address);
        self.forget(address, bytes);
        left.filter(|backing| backing.len() as u64 == bytes)
    }

    fn forget(&mut self, address: u64, bytes: u64) {
        self.left.retain(|&start, backing| {
            start + backing.len() as u64 <= address || address + bytes <= start
        });
    }

    /// Gives a block back.
    pub(crate) fn give_back(&mut self, address: u64, bytes: u64, cma: bool) {
        self.space.free_unaligned(address);
        if cma {
            self.used -= bytes;
        }
    }
}
