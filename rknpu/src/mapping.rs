//! What a kernel hands out: objects, mappings, and exclusive claims on ranges of a mapping.
//!
//! Together with the two kernels this is the only file with `unsafe` code. Three types carry the
//! proofs, so that everything above them is safe:
//!
//! * [`Object`]: a live kernel object. It is not `Clone`, and only `destroy` consumes it, so whoever
//!   holds a reference to one may hand its `obj_addr` to the driver.
//! * [`Mapping`]: mapped memory that stays mapped until the value goes.
//! * [`MappedRange`]: the claim on a range of a mapping. Spans of one mapping never overlap, because the only
//!   ways to make one are to take a fresh mapping whole and to split another span.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;

/// A live kernel object: a buffer that the driver knows.
///
/// The driver dereferences `obj_addr`, a kernel pointer, without looking it up. It is never printed
/// and never taken from outside.
///
/// ```
/// use rknpu::driver::{self, Create};
/// use rknpu::sys::flags::MemFlags;
///
/// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
/// let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE;
/// let object = driver.create(&Create { size: 4096, flags, domain: 0 })?;
/// assert!(!format!("{object:?}").contains("obj_addr")); // a kernel pointer is not shown
/// driver.destroy(object).map_err(|(_, errno)| errno)?;
/// # Ok::<(), rknpu::Errno>(())
/// ```
pub struct Object {
    handle: u32,
    obj_addr: u64,
    iova: u64,
    size: u64,
    sram: u64,
}

impl Object {
    /// An object that a [`Driver`](crate::driver::Driver) has just created.
    ///
    /// # Safety
    /// `handle` and `obj_addr` name a live object of that kernel that no other `Object` names, the
    /// NPU sees exactly its `size` bytes at `iova`, and it lives until `destroy` takes the value.
    pub unsafe fn from_raw(handle: u32, obj_addr: u64, iova: u64, size: u64, sram: u64) -> Object {
        Object { handle, obj_addr, iova, size, sram }
    }

    /// As [`Object::from_raw`], inside the crate: `reply` is what `MEM_CREATE` has just answered.
    pub(crate) fn created(reply: &rknpu_sys::uapi::MemCreate) -> Object {
        Object {
            handle: reply.handle,
            obj_addr: reply.obj_addr,
            iova: reply.dma_addr,
            size: reply.size,
            sram: reply.sram_size,
        }
    }

    /// Handle in the kernel's file.
    ///
    /// ```
    /// use rknpu::driver::{self, Create};
    /// use rknpu::sys::flags::MemFlags;
    ///
    /// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
    /// let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE;
    /// let object = driver.create(&Create { size: 4096, flags, domain: 0 })?;
    /// assert_eq!(object.handle(), 1);
    /// driver.destroy(object).map_err(|(_, errno)| errno)?;
    /// # Ok::<(), rknpu::Errno>(())
    /// ```
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The kernel's own address of the object, for `MEM_SYNC` and `SUBMIT`.
    pub fn obj_addr(&self) -> u64 {
        self.obj_addr
    }

    /// First address at which the NPU sees it, in its domain.
    ///
    /// ```
    /// use rknpu::driver::{self, Create};
    /// use rknpu::sys::flags::MemFlags;
    ///
    /// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
    /// let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE;
    /// let object = driver.create(&Create { size: 4096, flags, domain: 0 })?;
    /// assert_eq!(object.iova(), 0xffff_f000);
    /// driver.destroy(object).map_err(|(_, errno)| errno)?;
    /// # Ok::<(), rknpu::Errno>(())
    /// ```
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Bytes, a whole number of pages.
    ///
    /// ```
    /// use rknpu::driver::{self, Create};
    /// use rknpu::sys::flags::MemFlags;
    ///
    /// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
    /// let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE;
    /// let object = driver.create(&Create { size: 4096, flags, domain: 0 })?;
    /// assert_eq!(object.size(), 4096);
    /// driver.destroy(object).map_err(|(_, errno)| errno)?;
    /// # Ok::<(), rknpu::Errno>(())
    /// ```
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of it in SRAM.
    ///
    /// ```
    /// use rknpu::driver::{self, Create};
    /// use rknpu::sys::flags::MemFlags;
    ///
    /// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
    /// let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE;
    /// let object = driver.create(&Create { size: 4096, flags, domain: 0 })?;
    /// assert_eq!(object.sram(), 0); // it was not asked for
    /// driver.destroy(object).map_err(|(_, errno)| errno)?;
    /// # Ok::<(), rknpu::Errno>(())
    /// ```
    pub fn sram(&self) -> u64 {
        self.sram
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Object {{ handle: {}, iova: {:#x}, size: {} }}",
            self.handle, self.iova, self.size
        )
    }
}

/// Takes a mapping back.
pub trait Unmap: Send + Sync + fmt::Debug {
    /// Unmaps.
    ///
    /// # Safety
    /// The range is one that this value's kernel mapped, and nothing refers to it any more.
    ///
    /// # Errors
    /// The kernel's errno; the range then stays mapped.
    unsafe fn unmap(&self, start: NonNull<u8>, len: usize) -> Result<(), Errno>;
}

/// Mapped memory of one object.
///
/// ```
/// use rknpu::driver::{self, Create};
/// use rknpu::sys::flags::MemFlags;
///
/// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
/// let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE;
/// let object = driver.create(&Create { size: 4096, flags, domain: 0 })?;
/// let mapping = driver.map(&object)?;
/// assert_eq!(mapping.len(), 4096);
/// drop(mapping); // before the object: while it lives, the addresses stay taken
/// driver.destroy(object).map_err(|(_, errno)| errno)?;
/// # Ok::<(), rknpu::Errno>(())
/// ```
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    owner: Arc<dyn Unmap>,
}

// SAFETY: the pointer is to plain memory that no thread owns; access goes through `MappedRange`, which
// gives shared slices by `&` and exclusive ones by `&mut`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory that a [`Driver`](crate::driver::Driver) has just mapped.
    ///
    /// # Safety
    /// `len` bytes from `start` are readable and writable until `owner` unmaps them, which only this
    /// value asks for; nothing else in the process refers to them.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, owner: Arc<dyn Unmap>) -> Mapping {
        Mapping { start, len, owner }
    }

    /// Bytes.
    ///
    /// ```
    /// use rknpu::driver::{self, Create};
    /// use rknpu::sys::flags::MemFlags;
    ///
    /// let driver = driver::simulated(&rknpu::sim::Machine::new(Default::default()));
    /// let flags = MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE;
    /// let object = driver.create(&Create { size: 4096, flags, domain: 0 })?;
    /// assert_eq!(driver.map(&object)?.len(), 4096);
    /// driver.destroy(object).map_err(|(_, errno)| errno)?;
    /// # Ok::<(), rknpu::Errno>(())
    /// ```
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Unmaps, and says whether that worked; dropping does the same silently.
    pub(crate) fn release(self) -> Result<(), Errno> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so its owner is read out once; the range is the one that
        // the owner mapped (`from_raw`), and with the value consumed no span refers to it.
        unsafe {
            let owner = std::ptr::read(&this.owner);
            owner.unmap(this.start, this.len)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A failure here has nobody to tell; the device's own paths use `release`.
        // SAFETY: as in `release`.
        let _ = unsafe { self.owner.unmap(self.start, self.len) };
    }
}

/// The exclusive claim on a range of a mapping.
#[derive(Debug)]
pub(crate) struct MappedRange {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl MappedRange {
    /// All of a fresh mapping.
    pub(crate) fn whole(mapping: Mapping) -> MappedRange {
        let len = mapping.len();
        MappedRange { mapping: Arc::new(mapping), offset: 0, len }
    }

    /// First byte in the mapping.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first `at` bytes (at most all) and the rest.
    pub(crate) fn split(self, at: usize) -> (MappedRange, MappedRange) {
        let at = at.min(self.len);
        let rest = MappedRange {
            mapping: Arc::clone(&self.mapping),
            offset: self.offset + at,
            len: self.len - at,
        };
        (MappedRange { len: at, ..self }, rest)
    }

    /// One span of two that touch, the first before the second; both back when they do not.
    pub(crate) fn join(self, next: MappedRange) -> Result<MappedRange, (MappedRange, MappedRange)> {
        if Arc::ptr_eq(&self.mapping, &next.mapping) && self.offset + self.len == next.offset {
            Ok(MappedRange { len: self.len + next.len, ..self })
        } else {
            Err((self, next))
        }
    }

    /// The mapping, when this is the last span of it.
    pub(crate) fn into_mapping(self) -> Option<Mapping> {
        Arc::into_inner(self.mapping)
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping (whole, or split from one that does), which lives as
        // long as the `Arc`; no other span covers it, and `&mut` access needs `&mut self`.
        unsafe {
            std::slice::from_raw_parts(self.mapping.start.as_ptr().add(self.offset), self.len)
        }
    }

    /// The bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes this the only reference into the range.
        unsafe {
            std::slice::from_raw_parts_mut(self.mapping.start.as_ptr().add(self.offset), self.len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug, Default)]
    struct Heap(AtomicUsize);

    impl Unmap for Heap {
        unsafe fn unmap(&self, start: NonNull<u8>, len: usize) -> Result<(), Errno> {
            self.0.fetch_add(1, Ordering::Relaxed);
            // SAFETY: `mapping` leaked a boxed slice of this length.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start.as_ptr(), len)) });
            Ok(())
        }
    }

    fn mapping(len: usize, heap: &Arc<Heap>) -> Mapping {
        let start = NonNull::from(Box::leak(vec![0u8; len].into_boxed_slice())).cast();
        // SAFETY: leaked memory, referred to by nothing else.
        unsafe { Mapping::from_raw(start, len, heap.clone()) }
    }

    #[test]
    fn spans_split_join_and_give_the_mapping_back() {
        let heap = Arc::new(Heap::default());
        let (mut a, mut b) = MappedRange::whole(mapping(64, &heap)).split(16);
        a.bytes_mut().fill(1);
        b.bytes_mut().fill(2);
        assert_eq!((a.len(), b.len(), b.offset()), (16, 48, 16));
        let (b, a) = b.join(a).unwrap_err();
        let whole = a.join(b).unwrap();
        assert_eq!(whole.bytes()[15..17], [1, 2]);
        whole.into_mapping().unwrap().release().unwrap();
        assert_eq!(heap.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_mapping_stays_while_a_span_lives() {
        let heap = Arc::new(Heap::default());
        let (a, b) = MappedRange::whole(mapping(32, &heap)).split(99);
        assert_eq!((a.len(), b.len()), (32, 0));
        assert!(a.into_mapping().is_none());
        assert_eq!(heap.0.load(Ordering::Relaxed), 0);
        drop(b);
        assert_eq!(heap.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_object_does_not_print_its_kernel_address() {
        // SAFETY: never given to a driver.
        let object = unsafe { Object::from_raw(3, 0xffff_8881_dead_beef, 0x1000, 4096, 0) };
        assert!(!format!("{object:?}").contains("beef"));
    }
}
