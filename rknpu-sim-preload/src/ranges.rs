//! Where simulated buffers are mapped in this process.
//!
//! Each part of a mapping holds its token; when the last part is unmapped, the token is dropped, which
//! is when the driver learns of it. Address ranges that are not simulated cost two comparisons.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Mapped ranges, each with a share of its token.
#[derive(Debug)]
pub(crate) struct Ranges<T> {
    /// Bounds of all ranges there ever were.
    low: AtomicUsize,
    high: AtomicUsize,
    mapped: Mutex<BTreeMap<usize, (usize, Arc<T>)>>,
}

impl<T> Ranges<T> {
    pub(crate) const fn new() -> Ranges<T> {
        let (low, high) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
        Ranges { low, high, mapped: Mutex::new(BTreeMap::new()) }
    }

    /// Whether the range may touch a mapping. Cheap, and never waits.
    pub(crate) fn may_touch(&self, start: usize, len: usize) -> bool {
        let end = start.saturating_add(len);
        start < self.high.load(Ordering::Acquire) && end > self.low.load(Ordering::Acquire)
    }

    /// Whether the range touches a mapping.
    pub(crate) fn touches(&self, start: usize, len: usize) -> bool {
        let end = start.saturating_add(len);
        self.lock().range(..end).next_back().is_some_and(|(_, (stop, _))| *stop > start)
    }

    /// How many of `len` bytes come before the first that is in a range.
    pub(crate) fn before(&self, start: usize, len: usize) -> usize {
        if !self.may_touch(start, len) {
            return len;
        }
        let (end, mapped) = (start.saturating_add(len), self.lock());
        let around = mapped.range(..=start).next_back().is_some_and(|(_, (stop, _))| *stop > start);
        let next = mapped.range(start..end).next().map_or(len, |(&at, _)| at - start);
        if around { 0 } else { next }
    }

    /// Books a mapping; one that was in its place is gone, and its tokens are returned.
    pub(crate) fn add(&self, start: usize, len: usize, token: Arc<T>) -> Vec<Arc<T>> {
        let end = start.saturating_add(len);
        self.low.fetch_min(start, Ordering::AcqRel);
        self.high.fetch_max(end, Ordering::AcqRel);
        let mut mapped = self.lock();
        let gone = cut(&mut mapped, start, end);
        mapped.insert(start, (end, token));
        gone.into_iter().map(|(.., token)| token).collect()
    }

    /// Books that a range is unmapped. The caller drops what is returned outside any lock.
    pub(crate) fn remove(&self, start: usize, len: usize) -> Vec<Arc<T>> {
        if !self.may_touch(start, len) {
            return Vec::new();
        }
        let gone = cut(&mut self.lock(), start, start.saturating_add(len));
        gone.into_iter().map(|(.., token)| token).collect()
    }

    /// Books that a range has moved, as mremap does.
    pub(crate) fn moved(&self, from: usize, len: usize, to: usize) {
        let mut mapped = self.lock();
        let parts = cut(&mut mapped, from, from.saturating_add(len));
        for (start, end, token) in parts {
            let start = to + (start - from);
            let end = to + (end - from);
            self.low.fetch_min(start, Ordering::AcqRel);
            self.high.fetch_max(end, Ordering::AcqRel);
            mapped.insert(start, (end, token));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, (usize, Arc<T>)>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes `start..end` out of the map; returns the parts taken.
fn cut<T>(
    mapped: &mut BTreeMap<usize, (usize, Arc<T>)>,
    start: usize,
    end: usize,
) -> Vec<(usize, usize, Arc<T>)> {
    let first = mapped.range(..start).next_back().map_or(start, |(&at, _)| at);
    let hit = |(_, (stop, _)): &(&usize, &(usize, Arc<T>))| *stop > start;
    let keys: Vec<usize> = mapped.range(first..end).filter(hit).map(|(&at, _)| at).collect();
    let mut gone = Vec::new();
    for at in keys {
        let Some((stop, token)) = mapped.remove(&at) else { continue };
        if at < start {
            mapped.insert(at, (start, token.clone()));
        }
        if stop > end {
            mapped.insert(end, (stop, token.clone()));
        }
        gone.push((at.max(start), stop.min(end), token));
    }
    gone
}
