//! The offsets at which `mmap` finds buffers: one space per device, in pages.
//!
//! The kernel takes the smallest hole that holds the buffer, the youngest among equals, and places
//! it at the hole's lower end.

use std::collections::BTreeMap;

/// First page: everything below is left to real files.
const FIRST: u64 = 0x10_0000;
/// Pages of the space.
const PAGES: u64 = FIRST * 256;

/// Which object lies where.
#[derive(Debug)]
pub(crate) struct Offsets {
    /// First page → pages, object address.
    taken: BTreeMap<u64, (u64, u64)>,
    /// First page of a hole → pages, age.
    holes: BTreeMap<u64, (u64, u64)>,
    age: u64,
}

impl Offsets {
    pub(crate) fn new() -> Offsets {
        Offsets::over(FIRST, PAGES)
    }

    /// A space of `pages` pages from `first` on.
    pub(crate) fn over(first: u64, pages: u64) -> Offsets {
        let mut offsets = Offsets { taken: BTreeMap::new(), holes: BTreeMap::new(), age: 0 };
        offsets.add_hole(first, pages);
        offsets
    }

    /// Ranges taken, pages in them, and pages of the largest hole.
    pub(crate) fn sums(&self) -> (usize, u64, u64) {
        let taken = self.taken.values().map(|(pages, _)| pages).sum();
        let largest = self.holes.values().map(|(len, _)| *len).max();
        (self.taken.len(), taken, largest.unwrap_or(0))
    }

    /// Gives an object `pages` of offset; `None` when it has no pages or nothing fits.
    pub(crate) fn add(&mut self, pages: u64, object: u64) -> Option<u64> {
        if pages == 0 {
            return None;
        }
        let fits = self.holes.iter().filter(|(_, (len, _))| *len >= pages);
        let best = fits.min_by_key(|(_, (len, age))| (*len, u64::MAX - age));
        let (&start, &(len, _)) = best?;
        self.holes.remove(&start);
        self.add_hole(start + pages, len - pages);
        self.taken.insert(start, (pages, object));
        Some(start)
    }

    /// Takes an offset back.
    pub(crate) fn remove(&mut self, start: u64) {
        let Some((mut pages, _)) = self.taken.remove(&start) else { return };
        let mut from = start;
        if let Some((_, (len, _))) = self.holes.remove_entry(&(start + pages)) {
            pages += len;
        }
        let below = self.holes.range(..start).next_back().map(|(&at, &(len, _))| (at, len));
        if let Some((at, len)) = below.filter(|(at, len)| at + len == start) {
            self.holes.remove(&at);
            from = at;
            pages += len;
        }
        self.add_hole(from, pages);
    }

    /// The object that starts exactly at a page, and its pages.
    pub(crate) fn at(&self, start: u64) -> Option<(u64, u64)> {
        self.taken.get(&start).map(|&(pages, object)| (object, pages))
    }

    fn add_hole(&mut self, start: u64, pages: u64) {
        if pages > 0 {
            self.age += 1;
            self.holes.insert(start, (pages, self.age));
        }
    }
}

#[cfg(test)]
mod tests;
