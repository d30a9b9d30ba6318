//! A buffer's bytes: what the CPU sees, and what the device sees.
//!
//! The CPU's view is a memory file, mapped here and by whoever maps the buffer. In fast mode the
//! device reads and writes the same bytes. In strict mode a CACHEABLE buffer has two more copies:
//! what is in memory (the device's view), and what the CPU's cache held when the two last agreed, so
//! that a line is dirty exactly when the CPU's view differs from the latter. Nothing is touched
//! before it is used: a reservation of 4 GiB costs address space only.
//!
//! Direct I/O needs the kernel to pin the program's pages. Those of memory files it pins, as it does an object's
//! of single pages; what the driver maps by page frame alone it can't, and so that the host's kernel can't either
//! lies in secret memory (memfd_secret), where the host has that.

mod map;

use crate::memory::map::Map;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use map::Reader;

/// A cache line.
pub(crate) const LINE: usize = 64;
/// What memory that nobody cleaned is filled with.
pub(crate) const POISON: u8 = 0xA5;
const PAGE: usize = 4096;

/// The two further copies of strict mode.
#[derive(Debug)]
struct Split {
    device: Arc<Map>,
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

/// Whether the kernel pins a buffer's pages, for direct I/O and whatever else looks at them past a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// It does.
    Allowed,
    /// It answers EFAULT, as for pages that are mapped by their frame alone.
    Refused,
}

/// The CPU's view and the file behind it.
#[derive(Debug)]
struct Pages {
    cpu: Arc<Map>,
    file: OwnedFd,
    inode: u64,
    pinning: Pinning,
}

/// Buffers from this size on are large: taking their pages from the host again and again costs several
/// times what a program does with them.
const LARGE: usize = 64 << 20;
/// Larger ones are not kept.
const LARGEST: usize = 512 << 20;

/// The pages of the large buffer that was freed last, for the next one of its size.
static SPARE: Mutex<Option<Arc<Pages>>> = Mutex::new(None);

impl Pages {
    /// New ones. Nobody can cut or lengthen the file, as nobody can a dma-buf.
    fn new(len: usize, pinning: Pinning) -> rustix::io::Result<Pages> {
        if pinning == Pinning::Refused
            && let Ok((file, cpu)) = Map::of_secret_file(len)
        {
            let inode = fstat(&file)?.st_ino;
            return Ok(Pages { cpu: Arc::new(cpu), file, inode, pinning });
        }
        let file = memfd_create("rknpu-sim", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let inode = fstat(&file)?.st_ino;
        let cpu = Arc::new(Map::of_file(&file, len)?);
        Ok(Pages { cpu, file, inode, pinning: Pinning::Allowed })
    }

    /// The spare ones, zeroed, if they are of this size.
    fn spare(len: usize) -> Option<Arc<Pages>> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = spare.take_if(|pages| pages.cpu.len() == len)?;
        drop(spare);
        pages.cpu.fill(0, len, 0);
        Some(pages)
    }

    /// Keeps them for the next buffer of their size, if most of them are there: what was never
    /// touched costs nothing to reserve again, and much to zero.
    fn keep(self: Arc<Pages>) {
        let resident = fstat(&self.file).map_or(0, |stat| stat.st_blocks.cast_unsigned() * 512);
        if self.cpu.len() > LARGEST || resident < self.cpu.len() as u64 / 2 {
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
    pages: Arc<Pages>,
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
    pub(crate) fn new(
        len: usize,
        split: bool,
        poisoned: bool,
        pinning: Pinning,
    ) -> rustix::io::Result<Backing> {
        let spare = !split && len >= LARGE && pinning == Pinning::Allowed;
        if let Some(pages) = spare.then(|| Pages::spare(len)).flatten() {
            return Ok(Backing::of_pages(pages, None));
        }
        let split = if split { Some(Split::new(len, poisoned)?) } else { None };
        Ok(Backing::of_pages(Arc::new(Pages::new(len, pinning)?), split))
    }

    fn of_pages(pages: Arc<Pages>, split: Option<Split>) -> Backing {
        Backing {
            pages,
            split,
            shared: AtomicBool::new(false),
            device_wrote: AtomicBool::new(false),
            unclean: AtomicBool::new(false),
        }
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
        self.pages.cpu.len()
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

    /// The device's view, of which a range, which lies in the buffer, can be read.
    pub(crate) fn device(&self, at: usize, len: usize) -> &Arc<Map> {
        match &self.split {
            Some(split) => {
                split.fill_poison(at, len);
                &split.device
            }
            None => &self.pages.cpu,
        }
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
            } else if dirty && invalidate && !self.is_fresh(split, start, bytes.len()) {
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
            if !self.pages.cpu.same(&split.clean, start, len) {
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
        !self.pages.cpu.same(&split.clean, line, len)
    }

    /// Whether a line is as the kernel left it: zeroed through the cache, and never cleaned.
    fn is_fresh(&self, split: &Split, line: usize, len: usize) -> bool {
        let holds = |map: &Map, byte: u8| {
            let mut bytes = [0; LINE];
            map.copy_out(line, &mut bytes[..len]);
            bytes[..len].iter().all(|b| *b == byte)
        };
        holds(&split.clean, POISON) && holds(&self.pages.cpu, 0)
    }

    fn lines(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + use<> {
        (from..to).step_by(LINE)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        let shared = self.split.is_some() || self.shared.load(Ordering::Relaxed);
        if self.len() >= LARGE && !shared && self.pages.pinning == Pinning::Allowed {
            self.pages.clone().keep();
        }
    }
}

impl Split {
    fn new(len: usize, poisoned: bool) -> rustix::io::Result<Split> {
        let pages = len.div_ceil(PAGE);
        let bits = if poisoned { vec![!0; pages.div_ceil(64)] } else { Vec::new() };
        let (device, clean) = (Arc::new(Map::anonymous(len)?), Map::anonymous(len)?);
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
                let len = PAGE.min(self.device.len() - page * PAGE);
                self.device.fill(page * PAGE, len, POISON);
                self.clean.fill(page * PAGE, len, POISON);
            }
        }
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
        backing.pages.cpu.again(&backing.pages.file, len).map(UserMap::Own)
    }

    fn map(&self) -> &Map {
        match self {
            UserMap::Shared(backing) => &backing.pages.cpu,
            UserMap::Own(map) => map,
        }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.map().base()
    }

    /// Reads as much as lies in the mapping.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        let len = self.map().len().saturating_sub(at).min(out.len());
        if len > 0 {
            self.map().copy_out(at, &mut out[..len]);
        }
    }

    /// Writes as much as lies in the mapping.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let len = self.map().len().saturating_sub(at).min(bytes.len());
        if len > 0 {
            self.map().copy_in(at, &bytes[..len]);
        }
    }
}

#[cfg(test)]
mod tests;
