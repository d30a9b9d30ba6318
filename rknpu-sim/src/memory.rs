//! A buffer's bytes: what the CPU sees, and what the device sees.
//!
//! The CPU's view is a memory file, mapped here and by whoever maps the buffer. In fast mode the
//! device reads and writes the same bytes. In strict mode a CACHEABLE buffer has two more copies:
//! what is in memory (the device's view), and what the CPU's cache held when the two last agreed, so
//! that a line is dirty exactly when the CPU's view differs from the latter. Nothing is touched
//! before it is used: a reservation of 4 GiB costs address space only.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A cache line.
pub(crate) const LINE: usize = 64;
/// What memory that nobody cleaned is filled with.
pub(crate) const POISON: u8 = 0xA5;
const PAGE: usize = 4096;

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; every access goes through the functions
// of `Backing`, which state what they need.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn of_file(fd: impl AsFd, len: usize) -> rustix::io::Result<Map> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so no existing mapping is replaced; the file is `len`
        // bytes long.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) }?;
        Map::at(base, len)
    }

    fn anonymous(len: usize) -> rustix::io::Result<Map> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so no existing mapping is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?;
        Map::at(base, len)
    }

    fn at(base: *mut c_void, len: usize) -> rustix::io::Result<Map> {
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Map { base, len })
    }

    /// # Safety
    /// Nobody writes to the range while the slice lives.
    unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.len && len <= self.len - at, "range outside the mapping");
        // SAFETY: the range lies in the mapping, which lives as long as `self`; the rest is the
        // caller's promise.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) }
    }

    fn copy_out(&self, at: usize, out: &mut [u8]) {
        assert!(at <= self.len && out.len() <= self.len - at, "range outside the mapping");
        // SAFETY: the range lies in the mapping, `out` is a distinct exclusive slice.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), out.as_mut_ptr(), out.len());
        }
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at, "range outside the mapping");
        // SAFETY: the range lies in the mapping; `bytes` cannot overlap it, since slices of the
        // mapping are only given out where nothing writes to it meanwhile.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len());
        }
    }

    fn fill(&self, at: usize, len: usize, byte: u8) {
        assert!(at <= self.len && len <= self.len - at, "range outside the mapping");
        // SAFETY: the range lies in the mapping.
        unsafe { std::ptr::write_bytes(self.base.as_ptr().add(at), byte, len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: base and length are those of a mapping that nobody else unmaps, and no slice of
        // it outlives the value. A failure leaves address space behind, nothing worse.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The two further copies of strict mode.
#[derive(Debug)]
struct Split {
    device: Map,
    /// What the CPU's view was when both agreed last.
    clean: Map,
    /// One bit per page whose two copies still have to be filled with [`POISON`].
    poison: Mutex<Vec<u64>>,
}

/// What a sync found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Synced {
    /// Dirty bytes that an invalidation threw away.
    pub discarded: u64,
}

/// The CPU's view and the file behind it.
#[derive(Debug)]
struct Pages {
    cpu: Map,
    file: OwnedFd,
    inode: u64,
}

/// Buffers from this size on are large: taking their pages from the host again and again costs several
/// times what a program does with them.
const LARGE: usize = 64 << 20;
/// Larger ones are not kept.
const LARGEST: usize = 512 << 20;

/// The pages of the large buffer that was freed last, for the next one of its size.
static SPARE: Mutex<Option<Pages>> = Mutex::new(None);

impl Pages {
    fn of_file(file: OwnedFd, len: usize) -> rustix::io::Result<Pages> {
        let inode = fstat(&file)?.st_ino;
        Ok(Pages { cpu: Map::of_file(&file, len)?, file, inode })
    }

    /// The spare ones, zeroed, if they are of this size.
    fn spare(len: usize) -> Option<Pages> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = spare.take_if(|pages| pages.cpu.len == len)?;
        drop(spare);
        pages.cpu.fill(0, len, 0);
        Some(pages)
    }

    /// Keeps them for the next buffer of their size, if most of them are there: what was never
    /// touched costs nothing to reserve again, and much to zero.
    fn keep(self) {
        let resident = fstat(&self.file).map_or(0, |stat| stat.st_blocks.cast_unsigned() * 512);
        if self.cpu.len > LARGEST || resident < self.cpu.len as u64 / 2 {
            return;
        }
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let before = spare.replace(self);
        drop(spare);
        drop(before);
    }
}

/// A buffer's memory.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Taken only when dropped.
    pages: ManuallyDrop<Pages>,
    split: Option<Split>,
    /// Somebody outside may hold the file.
    shared: AtomicBool,
    /// The device wrote, and no FROM_DEVICE sync followed.
    device_wrote: AtomicBool,
    /// CPU writes may sit in the cache: CACHEABLE, mapped, and never cleaned.
    unclean: AtomicBool,
}

impl Backing {
    /// Reserves `len` bytes, which is not 0. `split` asks for the device's own view, `poisoned` for
    /// one that nobody has cleaned yet.
    pub(crate) fn new(len: usize, split: bool, poisoned: bool) -> rustix::io::Result<Backing> {
        if let Some(pages) = (!split && len >= LARGE).then(|| Pages::spare(len)).flatten() {
            return Ok(Backing::of_pages(pages, None, false));
        }
        let file = memfd_create("rknpu-sim", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len as u64)?;
        let split = if split { Some(Split::new(len, poisoned)?) } else { None };
        Ok(Backing::of_pages(Pages::of_file(file, len)?, split, false))
    }

    fn of_pages(pages: Pages, split: Option<Split>, shared: bool) -> Backing {
        Backing {
            pages: ManuallyDrop::new(pages),
            split,
            shared: AtomicBool::new(shared),
            device_wrote: AtomicBool::new(false),
            unclean: AtomicBool::new(false),
        }
    }

    /// Memory of a file made elsewhere.
    pub(crate) fn of_file(
        file: OwnedFd,
        len: usize,
        split: bool,
        poisoned: bool,
    ) -> rustix::io::Result<Backing> {
        let split = if split { Some(Split::new(len, poisoned)?) } else { None };
        Ok(Backing::of_pages(Pages::of_file(file, len)?, split, true))
    }

    /// Takes over the contents of a buffer of the same length whose memory this one is given.
    pub(crate) fn inherit(&self, from: &Backing) {
        let mut bytes = [0; PAGE];
        let len = self.len().min(from.len());
        for at in (0..len).step_by(PAGE) {
            let page = &mut bytes[..PAGE.min(len - at)];
            from.pages.cpu.copy_out(at, page);
            self.pages.cpu.copy_in(at, page);
            if let Some(split) = &self.split {
                split.device.copy_in(at, page);
                split.clean.copy_in(at, page);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.cpu.len
    }

    /// The file behind the CPU's view.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.shared.store(true, Ordering::Relaxed);
        self.pages.file.as_fd()
    }

    /// The file's inode, by which a descriptor of it is known again.
    pub(crate) fn inode(&self) -> u64 {
        self.pages.inode
    }

    /// The device's view of a range, which lies in the buffer.
    ///
    /// The slice is of memory that the simulated program may write to at any time, exactly as the
    /// NPU's reads may meet the CPU's writes on a board: a program that does so reads either value.
    pub(crate) fn device(&self, at: usize, len: usize) -> &[u8] {
        let view = match &self.split {
            Some(split) => {
                split.fill_poison(at, len);
                &split.device
            }
            None => &self.pages.cpu,
        };
        // SAFETY: in strict mode the device's view is written by syncs and by device writes only,
        // in fast mode also by the program under simulation. Neither happens between threads that
        // keep the driver's rules (no access to a buffer while a job uses it); one that breaks them
        // gets torn bytes, which is what the hardware gives it.
        unsafe { view.bytes(at, len) }
    }

    /// Writes into the device's view.
    pub(crate) fn device_write(&self, at: usize, bytes: &[u8]) {
        self.device_wrote.store(true, Ordering::Relaxed);
        match &self.split {
            Some(split) => {
                split.fill_poison(at, bytes.len());
                split.device.copy_in(at, bytes);
            }
            None => self.pages.cpu.copy_in(at, bytes),
        }
    }

    /// Reads through the CPU's view, as the kernel does with a task array.
    pub(crate) fn cpu_read(&self, at: usize, out: &mut [u8]) {
        self.pages.cpu.copy_out(at, out);
    }

    /// Writes through the CPU's view.
    pub(crate) fn cpu_write(&self, at: usize, bytes: &[u8]) {
        self.pages.cpu.copy_in(at, bytes);
    }

    /// Notes that a program has mapped a CACHEABLE buffer and may write to it.
    pub(crate) fn mapped_cacheable(&self) {
        self.unclean.store(true, Ordering::Relaxed);
    }

    /// Whether the device's writes were never fetched with FROM_DEVICE.
    pub(crate) fn unfetched(&self) -> bool {
        self.device_wrote.load(Ordering::Relaxed)
    }

    /// The first line of a range of which the CPU's view holds bytes that memory has not. In fast
    /// mode only a buffer that was mapped and never cleaned counts, once.
    pub(crate) fn stale(&self, at: usize, len: usize) -> Option<usize> {
        let Some(split) = self.split.as_ref() else {
            return self.unclean.swap(false, Ordering::Relaxed).then_some(at);
        };
        split.fill_poison(at, len);
        let from = at / LINE * LINE;
        let to = (at + len).next_multiple_of(LINE).min(self.len());
        self.lines(from, to).find(|&line| self.is_dirty(split, line))
    }

    /// Cache maintenance over a range, which lies in the buffer: clean, invalidate, or first the one
    /// and then the other. A partial line at an edge is written back before it is invalidated.
    pub(crate) fn sync(&self, at: usize, len: usize, clean: bool, invalidate: bool) -> Synced {
        let mut synced = Synced::default();
        if clean {
            self.unclean.store(false, Ordering::Relaxed);
        }
        if invalidate {
            self.device_wrote.store(false, Ordering::Relaxed);
        }
        let Some(split) = self.split.as_ref().filter(|_| len > 0) else { return synced };
        split.fill_poison(at, len);
        let (from, to) = (at / LINE * LINE, (at + len).next_multiple_of(LINE).min(self.len()));
        if clean && !invalidate {
            self.clean_all(split, from, to);
            return synced;
        }
        let mut line = [0; LINE];
        for start in self.lines(from, to) {
            let bytes = &mut line[..LINE.min(self.len() - start)];
            let dirty = self.is_dirty(split, start);
            let partial = start < at || start + bytes.len() > at + len;
            if dirty && (clean || (invalidate && partial)) {
                self.pages.cpu.copy_out(start, bytes);
                split.device.copy_in(start, bytes);
                split.clean.copy_in(start, bytes);
            } else if dirty && invalidate {
                synced.discarded += bytes.len() as u64;
            }
            if invalidate {
                split.device.copy_out(start, bytes);
                self.pages.cpu.copy_in(start, bytes);
                split.clean.copy_in(start, bytes);
            }
        }
        synced
    }

    /// Cleans whole lines, page by page where nothing or everything is dirty.
    fn clean_all(&self, split: &Split, from: usize, to: usize) {
        let mut bytes = [0; PAGE];
        let mut start = from;
        while start < to {
            let len = (PAGE - start % PAGE).min(to - start);
            // SAFETY: see `device`; the comparison may see torn bytes of a program that writes
            // while it syncs.
            let (now, then) =
                unsafe { (self.pages.cpu.bytes(start, len), split.clean.bytes(start, len)) };
            if now != then {
                for line in self.lines(start, start + len) {
                    if self.is_dirty(split, line) {
                        let bytes = &mut bytes[..LINE.min(self.len() - line)];
                        self.pages.cpu.copy_out(line, bytes);
                        split.device.copy_in(line, bytes);
                        split.clean.copy_in(line, bytes);
                    }
                }
            }
            start += len;
        }
    }

    fn is_dirty(&self, split: &Split, line: usize) -> bool {
        let len = LINE.min(self.len() - line);
        // SAFETY: see `clean_all`.
        unsafe { self.pages.cpu.bytes(line, len) != split.clean.bytes(line, len) }
    }

    fn lines(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + use<> {
        (from..to).step_by(LINE)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and never used again.
        let pages = unsafe { ManuallyDrop::take(&mut self.pages) };
        let shared = self.split.is_some() || self.shared.load(Ordering::Relaxed);
        if pages.cpu.len >= LARGE && !shared {
            pages.keep();
        }
    }
}

impl Split {
    fn new(len: usize, poisoned: bool) -> rustix::io::Result<Split> {
        let pages = len.div_ceil(PAGE);
        let bits = if poisoned { vec![!0; pages.div_ceil(64)] } else { Vec::new() };
        let (device, clean) = (Map::anonymous(len)?, Map::anonymous(len)?);
        Ok(Split { device, clean, poison: Mutex::new(bits) })
    }

    fn poison(&self) -> MutexGuard<'_, Vec<u64>> {
        self.poison.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills those pages of a range that are still to be poisoned.
    fn fill_poison(&self, at: usize, len: usize) {
        let mut bits = self.poison();
        if bits.is_empty() || len == 0 {
            return;
        }
        for page in at / PAGE..=(at + len - 1) / PAGE {
            let bit = 1 << (page % 64);
            if bits[page / 64] & bit != 0 {
                bits[page / 64] &= !bit;
                let len = PAGE.min(self.device.len - page * PAGE);
                self.device.fill(page * PAGE, len, POISON);
                self.clean.fill(page * PAGE, len, POISON);
            }
        }
    }
}

/// Buffers kept alive for those who hold slices of them.
#[derive(Debug, Default)]
pub(crate) struct Pins(Mutex<Vec<Arc<Backing>>>);

impl Pins {
    /// Keeps a buffer alive as long as `self`.
    pub(crate) fn pin(&self, backing: Arc<Backing>) {
        let mut pins = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !pins.iter().any(|pin| Arc::ptr_eq(pin, &backing)) {
            pins.push(backing);
        }
    }

    /// The device's view of a range of a buffer, for as long as `self` lives.
    pub(crate) fn device(&self, backing: Arc<Backing>, at: usize, len: usize) -> &[u8] {
        let bytes: *const [u8] = backing.device(at, len);
        self.pin(backing);
        // SAFETY: the slice lies in a mapping owned by the buffer, of which `self` holds a reference
        // until it is dropped; none is removed before.
        unsafe { &*bytes }
    }

    pub(crate) fn into_buffers(self) -> Vec<Arc<Backing>> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program's mapping of a buffer.
#[derive(Debug)]
pub(crate) enum UserMap {
    /// The buffer has one view, which the program shares.
    Shared(Arc<Backing>),
    /// One of its own.
    Own(Map),
}

impl UserMap {
    /// Maps the first `len` bytes of a buffer, shared.
    pub(crate) fn new(backing: &Arc<Backing>, len: usize) -> rustix::io::Result<UserMap> {
        if backing.split.is_none() && len == backing.len() {
            return Ok(UserMap::Shared(Arc::clone(backing)));
        }
        Map::of_file(&backing.pages.file, len).map(UserMap::Own)
    }

    fn map(&self) -> &Map {
        match self {
            UserMap::Shared(backing) => &backing.pages.cpu,
            UserMap::Own(map) => map,
        }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.map().base.as_ptr()
    }

    /// Reads as much as lies in the mapping.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        let len = self.map().len.saturating_sub(at).min(out.len());
        if len > 0 {
            self.map().copy_out(at, &mut out[..len]);
        }
    }

    /// Writes as much as lies in the mapping.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let len = self.map().len.saturating_sub(at).min(bytes.len());
        if len > 0 {
            self.map().copy_in(at, &bytes[..len]);
        }
    }
}

#[cfg(test)]
mod tests;
