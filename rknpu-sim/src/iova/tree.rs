//! The ranges of one 32-bit address space, in pages: next fit, downwards.
//!
//! The kernel keeps a red-black tree of allocated ranges and walks it downwards from the node that
//! it cached last, which is linear in a dense space. Here the gaps are kept as well, by size class,
//! so that the same answer takes a few ordered-map look-ups.

use std::collections::BTreeMap;

/// First page that is handed out: page 0 means failure.
const FIRST: u32 = 1;
/// One past the last page of a 32-bit space.
pub(crate) const LIMIT: u32 = 0x10_0000;
/// Size classes: by the position of the highest bit of a gap's length.
const CLASSES: usize = 21;

/// An address space of [`LIMIT`] pages.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// First page of an allocated range → its last page.
    ranges: BTreeMap<u32, u32>,
    /// Gaps by class: first page → length.
    gaps: [BTreeMap<u32, u32>; CLASSES],
    /// One bit per class that has gaps.
    filled: u32,
    /// First page of the range that the next walk starts below; [`LIMIT`] for the top.
    cursor: u32,
    /// A size that failed: requests at least as large fail at once until something is freed.
    failed: u32,
    pages: u32,
}

impl Tree {
    pub(crate) fn new() -> Tree {
        let mut tree = Tree {
            ranges: BTreeMap::new(),
            gaps: Default::default(),
            filled: 0,
            cursor: LIMIT,
            failed: LIMIT,
            pages: 0,
        };
        tree.add_gap(FIRST, LIMIT);
        tree
    }

    /// Pages allocated.
    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    /// Allocated ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The longest gap, in pages.
    pub(crate) fn largest_gap(&self) -> u32 {
        let class = self.gaps.iter().rev().find(|class| !class.is_empty());
        class.and_then(|class| class.values().max().copied()).unwrap_or(0)
    }

    /// Takes `size` pages whose first page is a multiple of `align`, a power of two.
    pub(crate) fn alloc(&mut self, size: u32, align: u32) -> Option<u32> {
        if size == 0 || size >= self.failed {
            return None;
        }
        // Below the cursor first; then once more from the top down to the cursor's range.
        let found = self
            .adjacent(size, align)
            .or_else(|| self.search(size, align, FIRST, self.cursor))
            .or_else(|| self.search(size, align, self.cursor, LIMIT));
        let Some((gap, len, page)) = found else {
            self.failed = size;
            return None;
        };
        self.remove_gap(gap, len);
        self.add_gap(gap, page);
        self.add_gap(page + size, gap + len);
        self.ranges.insert(page, page + size - 1);
        self.pages += size;
        self.cursor = page;
        Some(page)
    }

    /// Frees the range that starts at `page`; `false` when none does.
    pub(crate) fn free(&mut self, page: u32) -> bool {
        let Some(last) = self.ranges.remove(&page) else { return false };
        let below = self.ranges.range(..page).next_back().map_or(FIRST, |(_, &hi)| hi + 1);
        let above = self.ranges.range(page..).next().map_or(LIMIT, |(&lo, _)| lo);
        if page >= self.cursor {
            self.cursor = above;
        }
        self.remove_gap(below, page - below);
        self.remove_gap(last + 1, above - last - 1);
        self.add_gap(below, above);
        self.pages -= last - page + 1;
        self.failed = LIMIT;
        true
    }

    /// The gap right below the cursor, when it is large enough: the first that the walk meets.
    fn adjacent(&self, size: u32, align: u32) -> Option<(u32, u32, u32)> {
        let below = self.ranges.range(..self.cursor).next_back();
        let gap = below.map_or(FIRST, |(_, &last)| last + 1);
        let page = self.cursor.checked_sub(size)? & !(align - 1);
        (page >= gap).then_some((gap, self.cursor - gap, page))
    }

    /// The highest place in the gaps that start in `from..to`: gap, its length, page.
    fn search(&self, size: u32, align: u32, from: u32, to: u32) -> Option<(u32, u32, u32)> {
        if from >= to {
            return None;
        }
        let mut best: Option<(u32, u32, u32)> = None;
        let mut classes = self.filled >> class_of(size) << class_of(size);
        while classes != 0 {
            let class = &self.gaps[classes.trailing_zeros() as usize];
            classes &= classes - 1;
            let floor = best.map_or(from, |(gap, ..)| gap + 1).max(from);
            if floor >= to {
                break;
            }
            for (&gap, &len) in class.range(floor..to).rev() {
                if len < size {
                    continue;
                }
                let page = (gap + len - size) & !(align - 1);
                if page >= gap {
                    best = Some((gap, len, page));
                    break;
                }
            }
        }
        best
    }

    fn add_gap(&mut self, from: u32, to: u32) {
        if let Some(len) = to.checked_sub(from).filter(|&len| len > 0) {
            let class = class_of(len);
            self.gaps[class].insert(from, len);
            self.filled |= 1 << class;
        }
    }

    fn remove_gap(&mut self, from: u32, len: u32) {
        if len > 0 {
            let class = class_of(len);
            self.gaps[class].remove(&from);
            if self.gaps[class].is_empty() {
                self.filled &= !(1 << class);
            }
        }
    }
}

fn class_of(len: u32) -> usize {
    len.max(1).ilog2().min(CLASSES as u32 - 1) as usize
}
