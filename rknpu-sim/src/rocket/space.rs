//! A file's address space: addresses as the kernel hands them out, and what is mapped there.

use crate::iova::PAGE;
use crate::memory::Backing;
use crate::offsets::Offsets;
use crate::report::DomainUse;
use crate::state::SpaceMap;
use std::ops::Range;
use std::sync::Arc;

/// Pages that an address space has: 4 GiB.
const PAGES: u64 = 1 << 20;

/// Why an object finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// No hole is large enough.
    Full,
    /// Pages of an object whose creation failed are still mapped there.
    Mapped,
}

/// One file's addresses and mappings.
#[derive(Debug)]
pub(crate) struct Space {
    places: Offsets,
    pub(crate) map: Arc<SpaceMap>,
    /// Pages that were given back to the system and are still mapped.
    left: Vec<Range<u64>>,
    /// A failure has taken a reference to the domain that nobody gives back.
    pub(crate) leaked: bool,
}

impl Space {
    pub(crate) fn new(file: u32) -> Space {
        let (places, map) = (Offsets::over(0, PAGES), Arc::new(SpaceMap::new(file as usize)));
        Space { places, map, left: Vec::new(), leaked: false }
    }

    /// Takes addresses for an object: the smallest hole that holds it, of equal ones the youngest.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<u64, NoPlace> {
        let page = self.places.add(bytes / PAGE, 0).ok_or(NoPlace::Full)?;
        let iova = page * PAGE;
        if self.left.iter().any(|left| left.start < iova + bytes && iova < left.end) {
            self.places.remove(page);
            return Err(NoPlace::Mapped);
        }
        Ok(iova)
    }

    /// Gives addresses back and leaves what was mapped of the object.
    pub(crate) fn leave(&mut self, iova: u64, backing: &Arc<Backing>) {
        self.places.remove(iova / PAGE);
        self.map.map(iova, backing);
        self.left.push(iova..iova + backing.len() as u64);
    }

    /// Unmaps an object and gives its addresses back.
    pub(crate) fn give_back(&mut self, iova: u64, bytes: u64) {
        self.map.unmap(iova, bytes);
        self.places.remove(iova / PAGE);
    }

    pub(crate) fn as_use(&self, file: u32) -> DomainUse {
        let (ranges, taken, largest_gap) = self.places.sums();
        DomainUse {
            domain: file as usize,
            taken: taken * PAGE,
            mapped: self.map.bytes(),
            ranges,
            parked: 0,
            largest_gap: largest_gap * PAGE,
        }
    }
}
