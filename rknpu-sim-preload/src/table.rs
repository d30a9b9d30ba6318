//! Which descriptors are simulated, and what is behind them.
//!
//! A real file stands behind each, so that dup, poll, fstat and the kernel's own closing at exec keep
//! their meaning; the table adds what the file simulates. Descriptors that are not simulated cost one
//! load of a byte.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Simulated descriptors are below this number; beyond, opening answers EMFILE.
pub(crate) const LIMIT: usize = 1 << 16;

/// Descriptors and what they share.
#[derive(Debug)]
pub(crate) struct Table<T> {
    marks: Box<[AtomicBool]>,
    open: RwLock<HashMap<c_int, Arc<T>>>,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Table<T> {
        let marks = (0..LIMIT).map(|_| AtomicBool::new(false)).collect();
        Table { marks, open: RwLock::default() }
    }

    /// Whether the descriptor is simulated. Cheap, and never waits.
    pub(crate) fn has(&self, fd: c_int) -> bool {
        self.mark(fd).is_some_and(|mark| mark.load(Ordering::Acquire))
    }

    /// What is behind the descriptor.
    pub(crate) fn get(&self, fd: c_int) -> Option<Arc<T>> {
        if !self.has(fd) {
            return None;
        }
        self.read().get(&fd).cloned()
    }

    /// Books a descriptor; returns it where the number is too large to be booked.
    pub(crate) fn add(&self, fd: c_int, behind: Arc<T>) -> Result<(), c_int> {
        let mark = self.mark(fd).ok_or(fd)?;
        let mut open = self.write();
        let before = open.insert(fd, behind);
        mark.store(true, Ordering::Release);
        drop(open);
        // Outside the lock: the last reference closes a simulated file.
        drop(before);
        Ok(())
    }

    /// Forgets a descriptor, and gives back what was behind it.
    pub(crate) fn remove(&self, fd: c_int) -> Option<Arc<T>> {
        if !self.has(fd) {
            return None;
        }
        let mut open = self.write();
        if let Some(mark) = self.mark(fd) {
            mark.store(false, Ordering::Release);
        }
        open.remove(&fd)
    }

    /// The simulated descriptors in a range.
    pub(crate) fn within(&self, first: u32, last: u32) -> Vec<c_int> {
        let wanted = |fd: &c_int| u32::try_from(*fd).is_ok_and(|fd| (first..=last).contains(&fd));
        self.read().keys().copied().filter(wanted).collect()
    }

    fn mark(&self, fd: c_int) -> Option<&AtomicBool> {
        usize::try_from(fd).ok().and_then(|fd| self.marks.get(fd))
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<c_int, Arc<T>>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<c_int, Arc<T>>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }
}
