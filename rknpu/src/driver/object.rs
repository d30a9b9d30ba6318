//! What a driver allocates, and what is asked of it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mapping::Mapping;

/// A buffer that a driver has: a GEM object, at an address of one of its spaces.
///
/// Only [`Driver::free`](super::Driver::free) ends one, and takes it: there is no object that is gone.
/// What the driver knows it by, a kernel pointer among them, is not shown.
pub struct Object {
    /// Of which driver: another refuses it.
    pub(super) driver: u64,
    pub(super) handle: u32,
    /// The kernel dereferences it without looking it up.
    pub(super) obj_addr: u64,
    pub(super) space: u32,
    pub(super) iova: u64,
    pub(super) size: u64,
    /// The driver can read it as a list of programs.
    pub(super) programs: bool,
    /// Never synced for the device yet.
    pub(super) fresh: AtomicBool,
    /// A job writes it, or did and was not waited for.
    pub(super) written: AtomicBool,
    pub(super) mapping: Option<Arc<Mapping>>,
}

impl Object {
    /// Address space.
    pub fn space(&self) -> u32 {
        self.space
    }

    /// First address at which the NPU sees it.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Bytes, a whole number of pages.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A range of it; `None` beyond its end.
    pub(crate) fn part(&self, range: Range<u64>) -> Option<Part<'_>> {
        let len = range.end.checked_sub(range.start)?;
        (range.end <= self.size).then_some(Part { object: self, offset: range.start, len })
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.fresh.load(Ordering::Acquire)
    }

    pub(super) fn synced(&self) {
        self.fresh.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Object { space, iova, size, .. } = self;
        write!(f, "Object({size} bytes at {iova:#x} in space {space})")
    }
}

/// A range inside an object.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    object: &'a Object,
    offset: u64,
    len: u64,
}

impl<'a> Part<'a> {
    /// The object.
    pub fn object(&self) -> &'a Object {
        self.object
    }

    /// First byte in the object.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What programs do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// The NPU reads it.
    Read,
    /// The NPU writes it, and may read it.
    Write,
}

/// The objects that the programs of a job read and write. They exist until the job has ended, whatever
/// becomes of whoever submitted it.
#[derive(Debug, Default)]
pub struct Uses(pub(crate) Vec<(Arc<Object>, Usage)>);

impl Uses {
    /// Each object once.
    pub fn iter(&self) -> impl Iterator<Item = (&Object, Usage)> {
        self.0.iter().map(|(object, access)| (&**object, *access))
    }
}

/// One core's share of a job: some programs of a list, and what they read and write.
#[derive(Debug)]
pub struct Submission {
    pub(crate) list: Arc<Object>,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) core: u32,
    pub(crate) timeout_ms: u32,
    pub(crate) uses: Arc<Uses>,
}

impl Submission {
    /// The list of programs; its space is that of every address in them.
    pub fn list(&self) -> &Object {
        &self.list
    }

    /// Which of them, in order.
    pub fn programs(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// The core, where the driver leaves the choice to its caller.
    pub fn core(&self) -> u32 {
        self.core
    }

    /// Longest that it may take, in milliseconds.
    pub fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// What the programs read and write.
    pub fn uses(&self) -> &Uses {
        &self.uses
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An object that no driver has.
    pub(crate) fn nobodys(size: u64) -> Object {
        Object {
            driver: 0,
            handle: 3,
            obj_addr: 0xffff_8881_dead_beef,
            space: 0,
            iova: 0x1000,
            size,
            programs: true,
            fresh: AtomicBool::new(true),
            written: AtomicBool::new(false),
            mapping: None,
        }
    }

    #[test]
    fn an_object_does_not_print_its_kernel_address() {
        assert!(!format!("{:?}", nobodys(4096)).contains("beef"));
    }

    #[test]
    fn a_part_ends_with_its_object() {
        let object = nobodys(4096);
        assert!(object.part(0..4096).is_some_and(|part| part.len() == 4096));
        assert!(object.part(4096..4096).is_some_and(|part| part.is_empty()));
        assert!(object.part(0..4097).is_none());
        assert!(object.part(1 << 40..1 << 41).is_none());
        #[expect(clippy::reversed_empty_ranges)]
        let backwards = 8..4;
        assert!(object.part(backwards).is_none());
    }
}
