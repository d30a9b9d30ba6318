//! An allocator that counts, to show that a hot path allocates nothing and that memory is bounded.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting. A bench or test makes it the program's:
///
/// ```
/// #[global_allocator]
/// static COUNTING: ratio::Counting = ratio::Counting;
///
/// let before = ratio::allocations();
/// let boxed = Box::new(1);
/// assert!(ratio::allocations() > before);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Counting;

/// Allocations of the whole program so far, growing ones included.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// What `work` gives, and the most bytes that the whole program held during it above what it held
/// before. One at a time: two that overlap see each other.
///
/// ```
/// #[global_allocator]
/// static COUNTING: ratio::Counting = ratio::Counting;
///
/// let (kept, peak) = ratio::peak_bytes(|| {
///     drop(vec![0u8; 10_000]);
///     vec![0u8; 1000]
/// });
/// assert_eq!(kept.len(), 1000);
/// assert!((10_000..20_000).contains(&peak));
/// ```
pub fn peak_bytes<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (result, PEAK.load(Ordering::Relaxed).saturating_sub(before))
}

fn grown(at: *mut u8, bytes: usize) -> *mut u8 {
    if !at.is_null() {
        let live = LIVE.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
    at
}

fn shrunk(bytes: usize) {
    LIVE.fetch_sub(bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call is the system allocator's own, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the same.
        grown(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the same.
        grown(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the same.
        let moved = grown(unsafe { System.realloc(at, layout, size) }, size);
        if !moved.is_null() {
            shrunk(layout.size());
        }
        moved
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(at, layout) };
        shrunk(layout.size());
    }
}
