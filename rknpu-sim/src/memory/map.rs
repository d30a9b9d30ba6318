//! Mapped memory that the simulated program, the cores and the driver model share.
//!
//! Who reads a range says so, and who writes one, so that no byte is read and written at once by
//! functions of this module, however many threads use a [`Map`]: a write waits for the reads that
//! meet it. Nobody waits while it reads ([`Reader`] gives its ranges back before its owner may
//! write), so that all waits end.
//!
//! What is outside is the rest of the process by raw pointer ([`Map::base`]), whose users promise what
//! [`Mapping::as_ptr`](crate::Mapping::as_ptr) asks for, and whoever else has the memory file: as
//! with any mapped file, that no other process changes it is the word of who gives it away.

use rustix::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::ftruncate;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Whose a range is that is taken for a single copy.
const COPY: u64 = 0;

/// Ranges that are read and written now, with whose they are.
#[derive(Debug, Default)]
struct Taken {
    reads: Vec<(u64, Range<usize>)>,
    writes: Vec<Range<usize>>,
    /// Threads that wait for a range: telling nobody is a system call, too.
    waiting: usize,
}

/// The ranges of one memory, however often it is mapped.
#[derive(Debug, Default)]
struct Ranges {
    taken: Mutex<Taken>,
    freed: Condvar,
}

fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Ranges {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, mut taken: MutexGuard<'a, Taken>) -> MutexGuard<'a, Taken> {
        taken.waiting += 1;
        let mut taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        taken.waiting -= 1;
        taken
    }

    /// Tells those who wait that something has been given back.
    fn told(&self, taken: MutexGuard<'_, Taken>) {
        let waiting = taken.waiting > 0;
        drop(taken);
        if waiting {
            self.freed.notify_all();
        }
    }

    /// Takes a range for reading, once nobody writes it.
    fn read(&self, owner: u64, range: &Range<usize>) {
        let mut taken = self.lock();
        while taken.writes.iter().any(|write| meet(write, range)) {
            taken = self.wait(taken);
        }
        taken.reads.push((owner, range.clone()));
    }

    /// Takes a range for writing, once nobody reads or writes it.
    fn write(&self, range: &Range<usize>) {
        let mut taken = self.lock();
        while taken.writes.iter().any(|write| meet(write, range))
            || taken.reads.iter().any(|(_, read)| meet(read, range))
        {
            taken = self.wait(taken);
        }
        taken.writes.push(range.clone());
    }

    /// Gives back one range that was taken for a copy out.
    fn copied(&self, range: &Range<usize>) {
        let mut taken = self.lock();
        // One of two that are equal is as good as the other.
        if let Some(at) = taken.reads.iter().rposition(|(of, held)| *of == COPY && held == range) {
            taken.reads.swap_remove(at);
        }
        self.told(taken);
    }

    /// Gives back a range that was taken for writing.
    fn written(&self, range: &Range<usize>) {
        let mut taken = self.lock();
        if let Some(at) = taken.writes.iter().position(|held| held == range) {
            taken.writes.swap_remove(at);
        }
        self.told(taken);
    }

    /// Gives back everything that an owner reads.
    fn release(&self, owner: u64) {
        let mut taken = self.lock();
        taken.reads.retain(|(of, _)| *of != owner);
        self.told(taken);
    }
}

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
    ranges: Arc<Ranges>,
}

// SAFETY: the mapping is plain memory that this value owns. Its functions access only ranges that
// they have taken from `ranges`, which excludes a write beside any other access in any thread.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of a memory file of at least that size which nobody can cut.
    pub(super) fn of_file(fd: impl AsFd, len: usize) -> rustix::io::Result<Map> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so no existing mapping is replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) }?;
        Map::at(base, len)
    }

    /// A file of `len` bytes that no kernel pins pages of, and its mapping: what the CPU writes and what is
    /// read through the page cache goes there, and nothing else does.
    ///
    /// # Errors
    /// The host has no secret memory (Linux before 5.14, or a machine that can't take pages out of its own
    /// map), or gives no more of it (RLIMIT_MEMLOCK).
    pub(super) fn of_secret_file(len: usize) -> rustix::io::Result<(OwnedFd, Map)> {
        // SAFETY: the call takes flags alone, and gives a descriptor that nobody else has.
        let file = unsafe {
            match libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) {
                fd @ 0.. => OwnedFd::from_raw_fd(fd as RawFd),
                _ => return Err(rustix::io::Errno::NOSYS),
            }
        };
        // Its length is set once: nobody can cut it.
        ftruncate(&file, len as u64)?;
        let map = Map::of_file(&file, len)?;
        Ok((file, map))
    }

    /// Maps the memory file of this mapping once more.
    pub(super) fn again(&self, fd: impl AsFd, len: usize) -> rustix::io::Result<Map> {
        let mut map = Map::of_file(fd, len)?;
        map.ranges = Arc::clone(&self.ranges);
        Ok(map)
    }

    pub(super) fn anonymous(len: usize) -> rustix::io::Result<Map> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so no existing mapping is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?;
        Map::at(base, len)
    }

    fn at(base: *mut c_void, len: usize) -> rustix::io::Result<Map> {
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Map { base, len, ranges: Arc::default() })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The range, which lies in the mapping.
    fn range(&self, at: usize, len: usize) -> Range<usize> {
        assert!(at <= self.len && len <= self.len - at, "range outside the mapping");
        at..at + len
    }

    pub(super) fn copy_out(&self, at: usize, out: &mut [u8]) {
        let range = self.range(at, out.len());
        self.ranges.read(COPY, &range);
        // SAFETY: the range lies in the mapping and nobody writes to it meanwhile; `out` is exclusive,
        // so that it is not of the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), out.as_mut_ptr(), out.len());
        }
        self.ranges.copied(&range);
    }

    pub(super) fn copy_in(&self, at: usize, bytes: &[u8]) {
        let range = self.range(at, bytes.len());
        self.ranges.write(&range);
        // SAFETY: the range lies in the mapping and is this call's alone. `bytes` does not meet it: a
        // slice of the mapping is a range that a `Reader` has taken, for which the line above waits.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len());
        }
        self.ranges.written(&range);
    }

    pub(super) fn fill(&self, at: usize, len: usize, byte: u8) {
        let range = self.range(at, len);
        self.ranges.write(&range);
        // SAFETY: the range lies in the mapping and is this call's alone.
        unsafe { std::ptr::write_bytes(self.base.as_ptr().add(at), byte, len) }
        self.ranges.written(&range);
    }

    /// Whether a range holds the same bytes here and there.
    pub(super) fn same(&self, other: &Map, at: usize, len: usize) -> bool {
        let (here, there) = (self.range(at, len), other.range(at, len));
        self.ranges.read(COPY, &here);
        other.ranges.read(COPY, &there);
        // SAFETY: both ranges lie in their mappings, and nobody writes to them meanwhile.
        let same = unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().add(at), len)
                == std::slice::from_raw_parts(other.base.as_ptr().add(at), len)
        };
        other.ranges.copied(&there);
        self.ranges.copied(&here);
        same
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: base and length are those of a mapping that nobody else unmaps, and no slice of
        // it outlives the value. A failure leaves address space behind, nothing worse.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Reads ranges of maps in place, which nobody writes through a [`Map`] before they are released.
#[derive(Debug)]
pub(crate) struct Reader {
    owner: u64,
    maps: Mutex<Vec<Arc<Map>>>,
}

impl Reader {
    pub(crate) fn new() -> Reader {
        static NEXT: AtomicU64 = AtomicU64::new(COPY + 1);
        Reader { owner: NEXT.fetch_add(1, Ordering::Relaxed), maps: Mutex::default() }
    }

    /// The bytes of a range, which lies in the map.
    pub(crate) fn read(&self, map: &Arc<Map>, at: usize, len: usize) -> &[u8] {
        let range = map.range(at, len);
        map.ranges.read(self.owner, &range);
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if !maps.iter().any(|known| Arc::ptr_eq(known, map)) {
            maps.push(Arc::clone(map));
        }
        // SAFETY: the range lies in the mapping. Nobody writes to it, and `maps` keeps it mapped, until
        // `release`, which needs `self` exclusively, so that no slice lives then.
        unsafe { std::slice::from_raw_parts(map.base.as_ptr().add(at), len) }
    }

    /// Gives back what was read so far.
    pub(crate) fn release(&mut self) {
        for map in self.maps.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            map.ranges.release(self.owner);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn a_write_waits_for_the_reads_that_meet_it() {
        let map = Arc::new(Map::anonymous(8192).unwrap());
        let mut reader = Reader::new();
        let written = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let before = reader.read(&map, 100, 50);
            scope.spawn(|| {
                map.copy_in(0, &[2; 100]); // beside it
                map.copy_in(149, &[1; 50]); // its last byte
                written.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!written.load(Ordering::SeqCst));
            assert_eq!(before, [0; 50]);
            reader.release();
        });
        assert!(written.load(Ordering::SeqCst));
        assert_eq!(reader.read(&map, 98, 3), [2, 2, 0]);
        assert_eq!(reader.read(&map, 149, 1), [1]);
    }

    #[test]
    fn copies_of_two_threads_are_whole() {
        let map = Map::anonymous(4096).unwrap();
        std::thread::scope(|scope| {
            for byte in [1, 2] {
                let map = &map;
                scope.spawn(move || {
                    let mut seen = [0; 3000];
                    for _ in 0..2000 {
                        map.copy_in(500, &[byte; 3000]);
                        map.copy_out(500, &mut seen);
                        assert!(seen.iter().all(|other| *other == seen[0]));
                    }
                });
            }
        });
        assert!(map.ranges.lock().reads.is_empty() && map.ranges.lock().writes.is_empty());
    }
}
