//! The address allocator against a model that walks a list, step by step, as the kernel walks its
//! tree.

use proptest::prelude::*;
use rknpu_sim::config::Alignment;
use rknpu_sim::iova::Space;

const PAGE: u64 = 4096;
const LIMIT: u64 = 0x10_0000;
const ANCHOR: usize = usize::MAX;

/// Ranges in order, the index that the next walk starts at, magazines per order and CPU.
#[derive(Default)]
struct Naive {
    /// First and last page, ascending.
    ranges: Vec<(u64, u64)>,
    /// First page of the cached range; `None` for the anchor above all.
    cached: Option<u64>,
    failed: Option<u64>,
    /// (order, cpu) → pages, last in, first out. Never more than a magazine in these tests.
    parked: Vec<(u32, usize, u64)>,
    cap: u64,
}

impl Naive {
    fn walk(&self, size: u64, mask: u64, from: usize, low: u64) -> Option<u64> {
        let mut curr = from;
        let mut high = LIMIT;
        loop {
            if curr != ANCHOR {
                high = high.min(self.ranges[curr].0);
            }
            let new = high.wrapping_sub(size) & mask;
            let prev = if curr == ANCHOR { self.ranges.len() } else { curr }.checked_sub(1);
            let done = match prev {
                Some(at) => new > self.ranges[at].1 || new < low,
                None => true,
            };
            if done {
                return (high >= size && new >= low).then_some(new);
            }
            curr = prev.unwrap();
        }
    }

    fn alloc(&mut self, size: u64, align: u64) -> Option<u64> {
        if self.failed.is_some_and(|failed| size >= failed) {
            return None;
        }
        let mask = !(align - 1);
        let at = self.cached.and_then(|lo| self.ranges.iter().position(|r| r.0 == lo));
        let (from, retry) = at.map_or((ANCHOR, u64::MAX), |at| (at, self.ranges[at].1));
        let mut found = self.walk(size, mask, from, 1);
        if found.is_none() && retry < LIMIT {
            found = self.walk(size, mask, ANCHOR, retry + 1);
        }
        let Some(page) = found else {
            self.failed = Some(size);
            return None;
        };
        let at = self.ranges.partition_point(|r| r.0 < page);
        self.ranges.insert(at, (page, page + size - 1));
        self.cached = Some(page);
        Some(page)
    }

    fn free(&mut self, page: u64) {
        let Some(at) = self.ranges.iter().position(|r| r.0 == page) else { return };
        if self.cached.is_none_or(|cached| page >= cached) && self.cached.is_some() {
            self.cached = self.ranges.get(at + 1).map(|r| r.0);
        }
        self.ranges.remove(at);
        self.failed = None;
    }

    fn align(&self, pages: u64) -> u64 {
        pages.next_power_of_two().min(self.cap)
    }

    fn alloc_aligned(&mut self, bytes: u64, cpu: usize) -> Option<u64> {
        let mut pages = bytes.div_ceil(PAGE);
        if pages == 0 || pages >= LIMIT {
            return None;
        }
        if pages < 32 {
            pages = pages.next_power_of_two();
        }
        let order = pages.next_power_of_two().trailing_zeros();
        let parked = self.parked.iter().rposition(|p| (p.0, p.1) == (order, cpu));
        if let Some(at) = parked.filter(|_| order < 6) {
            return Some(self.parked.remove(at).2 * PAGE);
        }
        let align = self.align(pages);
        self.alloc(pages, align)
            .or_else(|| {
                for (_, _, page) in std::mem::take(&mut self.parked) {
                    self.free(page);
                }
                self.alloc(pages, align)
            })
            .map(|page| page * PAGE)
    }

    fn free_aligned(&mut self, iova: u64, bytes: u64, cpu: usize) {
        let order = bytes.div_ceil(PAGE).next_power_of_two().trailing_zeros();
        if order < 6 {
            self.parked.push((order, cpu, iova / PAGE));
        } else {
            self.free(iova / PAGE);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        bytes: u64,
        unaligned: bool,
        cpu: usize,
    },
    /// Frees the n-th of what is held.
    Free {
        n: usize,
        cpu: usize,
    },
}

fn size() -> impl Strategy<Value = u64> {
    let pages = prop_oneof![
        4 => 1..40u64,
        3 => 40..2000u64,
        2 => 2000..70_000u64,
        1 => 70_000..LIMIT + 5,
    ];
    (pages, 0..PAGE).prop_map(|(pages, less)| pages * PAGE - less)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (size(), any::<bool>(), 0..2usize)
            .prop_map(|(bytes, unaligned, cpu)| Op::Alloc { bytes, unaligned, cpu }),
        2 => (any::<usize>(), 0..2usize).prop_map(|(n, cpu)| Op::Free { n, cpu }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn addresses_are_the_kernels(
        ops in prop::collection::vec(op(), 1..120),
        which in 0..3usize,
    ) {
        let (alignment, cap) = [
            (Alignment::PowerOfTwo, u64::MAX),
            (Alignment::Cap2MiB, 512),
            (Alignment::None, 1),
        ][which];
        let mut space = Space::new(alignment);
        let mut naive = Naive { cap, ..Naive::default() };
        let mut held: Vec<(u64, u64, bool)> = Vec::new();
        for op in ops {
            match op {
                Op::Alloc { bytes, unaligned, cpu } => {
                    let (got, want) = if unaligned {
                        let pages = bytes.div_ceil(PAGE);
                        let fits = pages < LIMIT;
                        let want = if fits { naive.alloc(pages, 1) } else { None };
                        (space.alloc_unaligned(bytes), want.map(|page| page * PAGE))
                    } else {
                        (space.alloc_aligned(bytes, cpu), naive.alloc_aligned(bytes, cpu))
                    };
                    prop_assert_eq!(got, want, "{} bytes, unaligned {}", bytes, unaligned);
                    held.extend(got.map(|iova| (iova, bytes, unaligned)));
                }
                Op::Free { n, cpu } if !held.is_empty() => {
                    let (iova, bytes, unaligned) = held.swap_remove(n % held.len());
                    if unaligned {
                        space.free_unaligned(iova);
                        naive.free(iova / PAGE);
                    } else {
                        space.free_aligned(iova, bytes, cpu);
                        naive.free_aligned(iova, bytes, cpu);
                    }
                }
                Op::Free { .. } => {}
            }
        }
        let taken: u64 = naive.ranges.iter().map(|r| r.1 - r.0 + 1).sum();
        prop_assert_eq!(space.used(), taken * PAGE);
        prop_assert_eq!(space.ranges(), (naive.ranges.len(), naive.parked.len()));
    }
}

#[test]
fn a_fresh_space_serves_what_boards_serve() {
    // MiB, buffers aligned and with flag 0x400; third parties measured the first and the fifth.
    for (mib, aligned, unaligned) in [
        (16.0, 255, 255),
        (32.03125, 63, 127),
        (48.0, 63, 85),
        (96.0, 31, 42),
        (128.0, 31, 31),
        (1280.0, 1, 3),
        (2048.0, 1, 1),
        (2049.0, 0, 1),
        (4095.0, 0, 1),
        (4096.0, 0, 0),
    ] {
        let bytes = (mib * 1048576.0) as u64;
        let mut space = Space::new(Alignment::PowerOfTwo);
        let count = std::iter::from_fn(|| space.alloc_aligned(bytes, 0)).count();
        assert_eq!(count, aligned, "{mib} MiB aligned");
        let mut space = Space::new(Alignment::PowerOfTwo);
        let count = std::iter::from_fn(|| space.alloc_unaligned(bytes)).count();
        assert_eq!(count, unaligned, "{mib} MiB unaligned");
    }
}

#[test]
fn thousands_of_freed_ranges_come_back() {
    let mut space = Space::new(Alignment::PowerOfTwo);
    // More than the magazines and their depot hold: 128 each, two and 32 of them.
    let taken: Vec<u64> = (0..6000).filter_map(|_| space.alloc_aligned(PAGE, 0)).collect();
    for &iova in &taken {
        space.free_aligned(iova, PAGE, 0);
    }
    let (ranges, parked) = space.ranges();
    assert_eq!(ranges, parked);
    assert!((33 * 128..=34 * 128).contains(&parked), "{parked}");
    // Nothing fits beside them; the flush gives all of it back.
    assert_eq!(space.alloc_aligned(2 << 30, 0), Some(0x8000_0000));
    assert_eq!(space.ranges(), (1, 0));
}

#[test]
fn no_size_address_or_cpu_is_too_large_to_be_answered() {
    for alignment in [Alignment::PowerOfTwo, Alignment::Cap2MiB, Alignment::None] {
        let mut space = Space::new(alignment);
        for bytes in [0, 1, 1 << 31, 1 << 43, (1 << 44) - 1, u64::MAX - 4094, u64::MAX] {
            for cpu in [0, 1 << 40, usize::MAX] {
                if let Some(iova) = space.alloc_aligned(bytes, cpu) {
                    assert!(iova < 1 << 32, "{bytes}");
                    space.free_aligned(iova, bytes, cpu);
                }
                space.free_aligned(u64::MAX, bytes, cpu);
            }
            if let Some(iova) = space.alloc_unaligned(bytes) {
                assert!(iova < 1 << 32, "{bytes}");
                space.free_unaligned(iova);
            }
            space.free_unaligned(u64::MAX);
        }
        assert_eq!(space.alloc_aligned(1 << 32, 0), None);
    }
}
