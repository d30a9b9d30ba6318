//! Contiguous memory: the CMA region, and pages outside it. Addresses are made up, below 4 GiB.

use crate::config::Alignment;
use crate::iova::{PAGE, Space};

/// The largest block that the page allocator gives: order 10.
const BLOCK: u64 = PAGE << 10;

/// Physical memory, as far as contiguous buffers need it.
#[derive(Debug)]
pub(crate) struct Physical {
    space: Space,
    cma: u64,
    used: u64,
}

impl Physical {
    pub(crate) fn new(cma: u64) -> Physical {
        Physical { space: Space::new(Alignment::None), cma: cma.min(0x8000_0000), used: 0 }
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

    /// Gives a block back.
    pub(crate) fn give_back(&mut self, address: u64, bytes: u64, cma: bool) {
        self.space.free_unaligned(address);
        if cma {
            self.used -= bytes;
        }
    }
}
