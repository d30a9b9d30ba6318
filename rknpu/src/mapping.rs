//! Mapped memory, and exclusive claims on ranges of it.
//!
//! Beside the two channels to a driver this is the only file with `unsafe` code. Three types carry the
//! proofs, so that everything above them is safe:
//!
//! * [`Mapping`]: memory that stays mapped until the value goes;
//! * [`MappedRange`]: the claim on a range of a mapping. Two of one mapping never overlap, because a mapping
//!   is claimed once, whole, and every other claim is split from that;
//! * [`Shared`]: a mapping of memory that others may have, too, which gives no references into it.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use rustix::io::Errno;

/// Takes a mapping back.
pub(crate) trait Unmap: Send + Sync + fmt::Debug {
    /// Unmaps.
    ///
    /// # Safety
    /// The range is one that this value's driver mapped, and nothing refers to it any more.
    ///
    /// # Errors
    /// The kernel's errno; the range then stays mapped.
    unsafe fn unmap(&self, start: NonNull<u8>, len: usize) -> Result<(), Errno>;
}

/// Mapped memory of one object.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    claimed: AtomicBool,
    owner: Arc<dyn Unmap>,
}

// SAFETY: the pointer is to plain memory that no thread owns; references into it come from `MappedRange`
// only, which gives shared ones by `&` and exclusive ones by `&mut`.
unsafe impl Send for Mapping {}
// SAFETY: as above; what `Mapping` itself does by `&` is atomic or volatile.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory that has just been mapped.
    ///
    /// # Safety
    /// `len` bytes from `start`, on a page, are readable and writable until `owner` unmaps them, which only
    /// this value asks for; nothing else in the process has references into them.
    pub(crate) unsafe fn from_raw(
        start: NonNull<u8>,
        len: usize,
        owner: Arc<dyn Unmap>,
    ) -> Mapping {
        Mapping { start, len, claimed: AtomicBool::new(false), owner }
    }

    /// The claim on all of it, to the first who asks.
    pub(crate) fn claim(this: &Arc<Mapping>) -> Option<MappedRange> {
        let first = !this.claimed.swap(true, Ordering::Relaxed);
        first.then(|| MappedRange { mapping: Arc::clone(this), offset: 0, len: this.len })
    }

    /// A word that the kernel writes, at a multiple of 4 bytes.
    pub(crate) fn read_u32(&self, offset: usize) -> Option<u32> {
        let inside = offset.checked_add(4).is_some_and(|end| end <= self.len);
        (inside && offset.is_multiple_of(4)).then(|| {
            // SAFETY: four bytes inside the mapping, aligned since it starts on a page. Whoever else may
            // write them is the kernel, outside of what the compiler reasons about: hence volatile.
            unsafe { self.start.as_ptr().add(offset).cast::<u32>().read_volatile() }
        })
    }

    /// Writes a word, aligned and inside; else nothing. For memory that a job is about to write.
    pub(crate) fn write_u32(&self, offset: usize, value: u32) {
        if offset.checked_add(4).is_some_and(|end| end <= self.len) && offset.is_multiple_of(4) {
            // SAFETY: four bytes inside the mapping, aligned since it starts on a page. They are those of an
            // object that a job is about to write, whose memory its owner has given up to it, so that no
            // reference to them is used; volatile as the NPU's own write is.
            unsafe { self.start.as_ptr().add(offset).cast::<u32>().write_volatile(value) }
        }
    }

    /// Tells the kernel how the mapping is used.
    pub(crate) fn advise(&self, advice: rustix::mm::Advice) -> Result<(), Errno> {
        // SAFETY: the range is mapped as long as `self` is; advice about children changes nothing that this
        // process sees.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, advice) }
    }

    /// Unmaps, and says whether that worked; dropping does the same silently.
    pub(crate) fn release(self) -> Result<(), Errno> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so its owner is read out once; the range is the one that
        // the owner mapped (`from_raw`), and with the value consumed no `MappedRange` has it.
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

/// A mapping of memory that others may have mapped, too: never claimed, and copied from and to as atomics.
#[derive(Debug)]
pub(crate) struct Shared(Mapping);

impl Shared {
    pub(crate) fn new(mapping: Mapping) -> Shared {
        Shared(mapping)
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len
    }

    /// Copies bytes in that others may read or write at the same time. Of what lies beyond the end, nothing.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let (first, words, last) = self.atomics(offset, bytes.len());
        let (head, bytes) = bytes.split_at(first.len());
        let (whole, tail) = bytes.as_chunks::<8>();
        first.iter().zip(head).for_each(|(to, byte)| to.store(*byte, Ordering::Relaxed));
        for (word, bytes) in words.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        last.iter().zip(tail).for_each(|(to, byte)| to.store(*byte, Ordering::Relaxed));
    }

    /// Copies bytes out that others may write at the same time. Of what lies beyond the end, nothing.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let (first, words, last) = self.atomics(offset, bytes.len());
        let (head, bytes) = bytes.split_at_mut(first.len());
        let (whole, tail) = bytes.as_chunks_mut::<8>();
        first.iter().zip(head).for_each(|(from, byte)| *byte = from.load(Ordering::Relaxed));
        for (word, bytes) in words.iter().zip(whole) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        last.iter().zip(tail).for_each(|(from, byte)| *byte = from.load(Ordering::Relaxed));
    }

    /// A range as words, and the bytes before and after them; empty where it does not lie in the mapping.
    fn atomics(&self, offset: usize, len: usize) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        if offset.checked_add(len).is_none_or(|end| end > self.0.len) {
            return (&[], &[], &[]);
        }
        let head = (offset.next_multiple_of(8) - offset).min(len);
        let (words, tail) = ((len - head) / 8, (len - head) % 8);
        // SAFETY: the three lie one after the other in the mapping, which outlives them, and the words start
        // on 8 bytes or are none. A `Shared` mapping is never claimed, so nothing has plain references into it.
        unsafe {
            let start = self.0.start.as_ptr().add(offset);
            let first = std::slice::from_raw_parts(start.cast::<AtomicU8>(), head);
            let middle = match words {
                0 => &[][..],
                _ => std::slice::from_raw_parts(start.add(head).cast::<AtomicU64>(), words),
            };
            let last = start.add(head + words * 8).cast::<AtomicU8>();
            (first, middle, std::slice::from_raw_parts(last, tail))
        }
    }
}

/// The exclusive claim on a range of an object's mapping.
#[derive(Debug)]
pub struct MappedRange {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl MappedRange {
    /// First byte in the mapping.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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

    /// One range of two that touch, the first before the second; both back when they do not.
    pub(crate) fn join(self, next: MappedRange) -> Result<MappedRange, (MappedRange, MappedRange)> {
        if Arc::ptr_eq(&self.mapping, &next.mapping) && self.offset + self.len == next.offset {
            Ok(MappedRange { len: self.len + next.len, ..self })
        } else {
            Err((self, next))
        }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping (whole, or split from one that does), which is there as
        // long as the `Arc`; no other range covers it, and `&mut` access needs `&mut self`.
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
    use std::sync::atomic::AtomicUsize;

    /// Memory of the heap, on 8 bytes.
    #[derive(Debug, Default)]
    struct Heap(AtomicUsize);

    impl Unmap for Heap {
        unsafe fn unmap(&self, start: NonNull<u8>, len: usize) -> Result<(), Errno> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let words = std::ptr::slice_from_raw_parts_mut(start.as_ptr().cast::<u64>(), len / 8);
            // SAFETY: `mapping` leaked a boxed slice of this length.
            drop(unsafe { Box::from_raw(words) });
            Ok(())
        }
    }

    fn mapping(len: usize, heap: &Arc<Heap>) -> Arc<Mapping> {
        let words = vec![0u64; len / 8].into_boxed_slice();
        let start = NonNull::from(Box::leak(words)).cast();
        // SAFETY: leaked memory, referred to by nothing else.
        Arc::new(unsafe { Mapping::from_raw(start, len, heap.clone()) })
    }

    #[test]
    fn ranges_split_join_and_give_the_mapping_back() {
        let heap = Arc::new(Heap::default());
        let mapping = mapping(64, &heap);
        let (mut a, mut b) = Mapping::claim(&mapping).unwrap().split(16);
        a.bytes_mut().fill(1);
        b.bytes_mut().fill(2);
        assert_eq!((a.len(), b.len(), b.offset()), (16, 48, 16));
        let (b, a) = b.join(a).unwrap_err();
        let whole = a.join(b).unwrap();
        assert_eq!(whole.bytes()[15..17], [1, 2]);
        assert_eq!(mapping.read_u32(12), Some(0x0101_0101));
        assert_eq!((mapping.read_u32(62), mapping.read_u32(13)), (None, None));
        drop(whole);
        Arc::try_unwrap(mapping).unwrap().release().unwrap();
        assert_eq!(heap.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_mapping_is_claimed_once_and_stays_while_a_range_of_it_is_held() {
        let heap = Arc::new(Heap::default());
        let mapping = mapping(32, &heap);
        let (a, b) = Mapping::claim(&mapping).unwrap().split(99);
        assert!(Mapping::claim(&mapping).is_none());
        assert_eq!((a.len(), b.len()), (32, 0));
        drop((mapping, a));
        assert_eq!(heap.0.load(Ordering::Relaxed), 0);
        drop(b);
        assert_eq!(heap.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn shared_memory_is_copied_within_its_bounds() {
        let mapping = mapping(64, &Arc::default());
        let shared = Shared::new(Arc::try_unwrap(mapping).unwrap());
        let bytes: Vec<u8> = (1..=21).collect();
        for offset in 0..=43 {
            for len in [0, 1, 7, 8, 9, 21] {
                shared.copy_in(0, &[0; 64]);
                shared.copy_in(offset, &bytes[..len]);
                let mut all = [0xff; 64];
                shared.copy_out(0, &mut all);
                assert_eq!(all[offset..offset + len], bytes[..len], "{offset} {len}");
                assert!(all[..offset].iter().chain(&all[offset + len..]).all(|byte| *byte == 0));
                let mut part = vec![0; len];
                shared.copy_out(offset, &mut part);
                assert_eq!(part, bytes[..len]);
            }
        }
        // Beyond the end: nothing.
        shared.copy_in(44, &bytes);
        shared.copy_in(usize::MAX, &bytes);
        let mut part = [7; 21];
        shared.copy_out(44, &mut part);
        assert_eq!(part, [7; 21]);
    }
}
