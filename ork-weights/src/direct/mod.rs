//! Bytes of a file read past the page cache, straight into memory of the caller's.
//!
//! What is read once and stays in device memory, or does not fit memory at all, only throws out of the page
//! cache what others need, and is copied once more by the CPU. O_DIRECT lets the disk write where the bytes
//! belong. It is a hint all the same: whatever the kernel refuses (memory that it can't pin, as contiguous
//! device memory; an end that is no whole block; a read that a fork made short) is read through the page cache
//! instead, and counted.

mod ring;
mod threads;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, OFlags, StatxFlags};

use ring::Ring;

/// Bytes of one read: large enough that its cost does not count, small enough that several of a weight's
/// are under way at once.
const PIECE: usize = 2 << 20;
/// Bytes below which a read goes through the page cache: the disk takes as long for them as for more, and
/// the system reads ahead.
const LEAST: u64 = 32 << 10;
/// Alignment where the system does not say: a page, which satisfies every disk.
const PAGE: u64 = 4096;

/// What was read past the page cache, and what was not.
///
/// ```
/// let reads = ork_weights::pack::DirectReads::default();
/// assert_eq!((reads.direct, reads.buffered), (0, 0));
/// assert!(reads.refusal().is_none());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectReads {
    /// Bytes that the disk wrote into the caller's memory.
    pub direct: u64,
    /// Bytes that went through the page cache all the same: ends that are no whole blocks, small weights,
    /// and what the kernel refused.
    pub buffered: u64,
    refusal: i32,
}

impl DirectReads {
    /// Both together; the refusal of the first that has one.
    pub fn and(self, other: DirectReads) -> DirectReads {
        DirectReads {
            direct: self.direct + other.direct,
            buffered: self.buffered + other.buffered,
            refusal: if self.refusal != 0 { self.refusal } else { other.refusal },
        }
    }

    /// Why the kernel refused a direct read, the first time that it did.
    pub fn refusal(&self) -> Option<io::Error> {
        (self.refusal != 0).then(|| io::Error::from_raw_os_error(self.refusal))
    }
}

/// A file that is open for direct reads.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: File,
    /// Of offsets and lengths, in bytes.
    block: u64,
    /// Of addresses.
    memory: u64,
    /// Queues that no reader has at the moment; `None` where the system has none.
    rings: Option<Mutex<Vec<Ring>>>,
    direct: AtomicU64,
    buffered: AtomicU64,
    refusal: AtomicI32,
}

impl DirectFile {
    /// Opens the file behind `file` again.
    ///
    /// # Errors
    /// Those of opening; EINVAL where the file system has no direct reads.
    pub(crate) fn open(file: &File) -> io::Result<DirectFile> {
        // The same file, whatever stands under its path by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = (OFlags::DIRECT | OFlags::NONBLOCK).bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let (block, memory) = alignment(&file);
        Ok(DirectFile {
            file,
            block,
            memory,
            rings: Ring::new().ok().map(|ring| Mutex::new(vec![ring])),
            direct: AtomicU64::new(0),
            buffered: AtomicU64::new(0),
            refusal: AtomicI32::new(0),
        })
    }

    /// What was read so far.
    pub(crate) fn reads(&self) -> DirectReads {
        DirectReads {
            direct: self.direct.load(Ordering::Relaxed),
            buffered: self.buffered.load(Ordering::Relaxed),
            refusal: self.refusal.load(Ordering::Relaxed),
        }
    }

    /// Fills `out` from `offset` on; what can't be read directly comes from `file`, the same file read
    /// through the page cache.
    ///
    /// # Errors
    /// Those of reading it so.
    pub(crate) fn read(&self, file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let len = out.len();
        let whole = self.blocks(offset, out.as_ptr() as u64, len as u64);
        let mut lost = self.read_blocks(offset + whole.start as u64, &mut out[whole.clone()]);
        lost.iter_mut().for_each(|l| *l = whole.start + l.start..whole.start + l.end);
        lost.extend([0..whole.start, whole.end..len]);
        let mut buffered = 0;
        for part in lost.into_iter().filter(|part| !part.is_empty()) {
            buffered += part.len() as u64;
            file.read_exact_at(&mut out[part.clone()], offset + part.start as u64)?;
        }
        self.direct.fetch_add(len as u64 - buffered, Ordering::Relaxed);
        self.buffered.fetch_add(buffered, Ordering::Relaxed);
        Ok(())
    }

    /// The whole blocks of `len` bytes at `offset`, to be read to `address`; empty where one of the two
    /// is aligned and the other is not.
    fn blocks(&self, offset: u64, address: u64, len: u64) -> Range<usize> {
        let head = offset.next_multiple_of(self.block) - offset;
        let body = len.saturating_sub(head) / self.block * self.block;
        if body < LEAST || !(address + head).is_multiple_of(self.memory) {
            return 0..0;
        }
        head as usize..(head + body) as usize
    }

    /// Reads whole blocks; which parts of `out` were not.
    fn read_blocks(&self, offset: u64, out: &mut [u8]) -> Vec<Range<usize>> {
        let refused = |error: i32| {
            let _ = self.refusal.compare_exchange(0, error, Ordering::Relaxed, Ordering::Relaxed);
        };
        if out.is_empty() {
            return Vec::new();
        }
        let ring = self.rings.as_ref().and_then(|rings| {
            let spare = lock(rings).pop();
            Some((rings, spare.or_else(|| Ring::new().ok())?))
        });
        match ring {
            Some((rings, mut ring)) => {
                let (lost, fit) = ring.read(&self.file, offset, out, refused);
                if fit {
                    lock(rings).push(ring);
                }
                lost
            }
            None => threads::read(&self.file, offset, out, &refused),
        }
    }
}

fn lock(rings: &Mutex<Vec<Ring>>) -> MutexGuard<'_, Vec<Ring>> {
    // A ring is whole whenever it lies there.
    rings.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What direct reads of a file must be aligned to: offsets and lengths; addresses.
fn alignment(file: &File) -> (u64, u64) {
    let usable = |bytes: u32| bytes.is_power_of_two().then_some(u64::from(bytes));
    let said = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let said = said
        .ok()
        .and_then(|stat| usable(stat.stx_dio_offset_align).zip(usable(stat.stx_dio_mem_align)));
    said.unwrap_or((PAGE, PAGE))
}

#[cfg(test)]
mod tests;
