//! Memory that another driver made.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rknpu_sys::drm::{DMA_BUF_SYNC_END, DMA_BUF_SYNC_READ, DMA_BUF_SYNC_START, DMA_BUF_SYNC_WRITE};
use rustix::fs::{Mode, OFlags, SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;

use crate::allocation::{Allocation, pages};
use crate::arena::Backing;
use crate::buffer::{Buffer, Imported, Unchanged};
use crate::domain::Domain;
use crate::driver::{Import, Refused, allocate_dma_buf, map_dma_buf, sync_dma_buf};
use crate::error::{Call, Error, Result};
use crate::job::Rejected;
use crate::limits;
use crate::mapping::Shared;

/// Where dma-heaps are.
const HEAPS: &str = "/dev/dma_heap";
/// The file system of dma-bufs, by its number.
const DMA_BUF_FS: u64 = 0x444d_4142;

/// Memory of another driver, mapped for the CPU: written once, it can be imported without a copy.
///
/// Others may have the same memory mapped, so the CPU's side gives no references into it: bytes are copied in
/// and out. Importing takes the value, so that the CPU has no way in while the NPU may read it.
///
/// ```
/// use rknpu::{Device, import::DmaBuf, sim};
///
/// let machine = sim::Machine::new(Default::default());
/// let device = Device::simulated_on(&machine)?;
/// // On a board: `DmaBuf::allocate("system", 4096)?`.
/// let foreign = machine.foreign_buffer(4096).map_err(std::io::Error::from)?;
/// let mut memory = DmaBuf::from_fd(foreign, 4096)?;
/// memory.write(0, &[3; 4096])?;
/// let buffer = device.domain(0)?.import(memory)?;
/// assert_eq!(buffer.len(), 4096);
/// let mut memory = buffer.into_dma_buf()?; // and back
/// memory.write(0, &[4; 4096])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What the NPU may read is not written:
///
/// ```compile_fail,E0382
/// # fn f(domain: rknpu::Domain, mut memory: rknpu::import::DmaBuf) -> rknpu::Result<()> {
/// let buffer = domain.import(memory)?;
/// memory.write(0, &[4; 4096])?; // moved
/// # Ok(()) }
/// ```
///
/// and nothing hands out references to what another may write:
///
/// ```compile_fail,E0599
/// # fn f(mut memory: rknpu::import::DmaBuf) {
/// memory.as_mut_slice();
/// # }
/// ```
pub struct DmaBuf {
    // Unmapped before the descriptor is closed.
    mapping: Shared,
    fd: OwnedFd,
}

/// An access of the CPU between its beginning and its end, which `sync` tells the kernel.
fn between(access: u64, sync: impl Fn(u64) -> Result<()>, copy: impl FnOnce()) -> Result<()> {
    sync(access | DMA_BUF_SYNC_START)?;
    copy();
    sync(access | DMA_BUF_SYNC_END)
}

impl DmaBuf {
    /// Allocates `len` bytes, in whole pages, from a dma-heap such as `system`.
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::NoNode`], [`Error::Permission`] and [`Error::Open`] for the heap;
    /// [`Error::Driver`] when it refuses.
    ///
    /// ```
    /// use rknpu::{Error, import::DmaBuf};
    ///
    /// assert!(matches!(DmaBuf::allocate("no-such-heap", 4096), Err(Error::NoNode { .. })));
    /// ```
    pub fn allocate(heap: &str, len: usize) -> Result<DmaBuf> {
        let len = size(len)?;
        let path = Path::new(HEAPS).join(heap);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => Error::NoNode { path: path.clone() },
            Errno::ACCESS | Errno::PERM => Error::Permission { path: path.clone() },
            errno => Error::Open { path: path.clone(), errno },
        })?;
        let memory = allocate_dma_buf(&fd, len as u64).map_err(|errno| failed(len, errno))?;
        DmaBuf::from_fd(memory, len)
    }

    /// Maps a dma-buf of `len` bytes that came from elsewhere. It is always mapped from its start.
    ///
    /// Only memory that cannot be cut under the mapping is taken: a dma-buf, or a memory file that is sealed
    /// against shrinking.
    ///
    /// ```
    /// use rknpu::{Error, import::DmaBuf};
    ///
    /// let file = std::fs::File::open("/proc/self/exe").unwrap();
    /// assert!(matches!(DmaBuf::from_fd(file.into(), 4096), Err(Error::NotDmaBuf { .. })));
    /// ```
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::NotDmaBuf`]; [`Error::Driver`] when it cannot be mapped.
    pub fn from_fd(fd: OwnedFd, len: usize) -> Result<DmaBuf> {
        let len = size(len)?;
        check(&fd, len)?;
        let mapping = map_dma_buf(&fd, len).map_err(|errno| failed(len, errno))?;
        Ok(DmaBuf { mapping: Shared::new(mapping), fd })
    }

    /// Copies bytes in from `offset` on, with the cache maintenance around it that the NPU's reading them
    /// needs.
    ///
    /// # Errors
    /// [`Error::Range`] beyond the end; [`Error::Driver`] when the maintenance fails.
    ///
    /// ```
    /// use rknpu::{Error, import::DmaBuf, sim};
    ///
    /// # let machine = sim::Machine::new(Default::default());
    /// # let foreign = machine.foreign_buffer(4096).map_err(std::io::Error::from)?;
    /// let mut memory = DmaBuf::from_fd(foreign, 4096)?;
    /// memory.write(1, &[1, 2])?;
    /// let mut back = [9; 4];
    /// memory.read(0, &mut back)?;
    /// assert_eq!(back, [0, 1, 2, 0]);
    /// assert!(matches!(memory.write(4095, &[1, 2]), Err(Error::Range { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.access(DMA_BUF_SYNC_WRITE, offset, bytes.len(), |shared| shared.copy_in(offset, bytes))
    }

    /// Copies bytes out from `offset` on.
    ///
    /// # Errors
    /// As [`DmaBuf::write`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let len = bytes.len();
        self.access(DMA_BUF_SYNC_READ, offset, len, |shared| shared.copy_out(offset, bytes))
    }

    fn access(
        &self,
        access: u64,
        offset: usize,
        len: usize,
        copy: impl FnOnce(&Shared),
    ) -> Result<()> {
        let size = self.mapping.len();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let (offset, len, size) = (offset as u64, len as u64, size as u64);
            return Err(Error::Range { offset, len, size });
        }
        let sync = |flags| sync_dma_buf(&self.fd, flags).map_err(|errno| failed(size, errno));
        between(access, sync, || copy(&self.mapping))
    }

    /// Bytes, whole pages.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether it has none; never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({} bytes)", self.len())
    }
}

impl Domain {
    /// Imports memory of another driver for the NPU to read without a copy.
    ///
    /// Only domain 0 takes it: the driver maps it into whatever domain is current and always frees it in
    /// domain 0, where it would otherwise tear down the mapping of a buffer that is none of its business.
    /// Weights may be imported; whatever else a job touches may not.
    ///
    /// ```
    /// use rknpu::{Device, Error, import::DmaBuf, sim};
    ///
    /// let machine = sim::Machine::new(Default::default());
    /// let device = Device::simulated_on(&machine)?;
    /// # let foreign = machine.foreign_buffer(4096).map_err(std::io::Error::from)?;
    /// let same = foreign.try_clone()?;
    /// let memory = DmaBuf::from_fd(foreign, 4096)?;
    /// let elsewhere = device.domain(1)?.import(memory).unwrap_err();
    /// assert!(matches!(elsewhere.error, Error::ImportDomain { domain: 1 }));
    /// let domain = device.domain(0)?;
    /// let buffer = domain.import(elsewhere.kept)?;
    /// // The driver would give the same object twice, and take it away with the first that goes.
    /// let twice = domain.import(DmaBuf::from_fd(same, 4096)?).unwrap_err();
    /// assert!(matches!(twice.error, Error::ImportedAlready));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The memory back and the reason: [`Error::ImportDomain`] outside domain 0; [`Error::ImportedAlready`];
    /// [`Error::DomainBusy`]; [`Error::Driver`] when the driver refuses.
    pub fn import(&self, memory: DmaBuf) -> Result<Buffer<Imported>, Rejected<DmaBuf>> {
        match self.import_object(&memory) {
            Ok(object) => {
                let len = memory.len().min(object.size() as usize);
                Ok(Buffer::from_backing(Backing::Imported(object, Box::new(memory)), len))
            }
            Err(error) => Err(Rejected { kept: memory, error }),
        }
    }

    fn import_object(&self, memory: &DmaBuf) -> Result<Allocation> {
        let (device, space) = (self.device(), self.index());
        if device.capabilities().spaces.import != Some(space) {
            return Err(Error::ImportDomain { domain: space });
        }
        device.check()?;
        let _entered = device.enter_for_memory(space)?;
        let import = Import { space, dma_buf: memory.fd.as_fd() };
        let object = device.driver().import(&import).map_err(|refused| match refused.errno {
            Errno::EXIST => Error::ImportedAlready,
            _ => refused.on(space, memory.len() as u64),
        })?;
        Ok(Allocation::adopt(self, object, None))
    }
}

impl Buffer<Imported> {
    /// Takes the memory back from the NPU, which no longer sees it.
    ///
    /// # Errors
    /// The buffer back and the reason: [`Error::DomainBusy`]; [`Error::Wedged`]; [`Error::Driver`] when the
    /// driver refuses.
    pub fn into_dma_buf(self) -> Result<DmaBuf, Unchanged<Imported>> {
        let (backing, len) = self.into_backing();
        let (memory, dma_buf) = match backing {
            Backing::Imported(memory, dma_buf) => (memory, dma_buf),
            // No other backing is `Imported`.
            backing => {
                let (buffer, error) = (Buffer::from_backing(backing, len), Error::ImportedAlready);
                return Err(Unchanged { buffer, error });
            }
        };
        match memory.free() {
            Ok(()) => Ok(*dma_buf),
            Err((memory, error)) => {
                let buffer = Buffer::from_backing(Backing::Imported(memory, dma_buf), len);
                Err(Unchanged { buffer, error })
            }
        }
    }
}

/// Refuses what is no dma-buf of that many bytes: memory that somebody may cut is a SIGBUS.
fn check(fd: &OwnedFd, len: usize) -> Result<()> {
    let kind = fstatfs(fd).map_err(|errno| failed(len, errno))?.f_type as u64 & 0xffff_ffff;
    if kind == DMA_BUF_FS {
        // The mapping is refused when it is longer.
        return Ok(());
    }
    let sealed = fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    let size = fstat(fd).map_or(0, |stat| stat.st_size.max(0) as u64);
    if sealed && size >= len as u64 {
        return Ok(());
    }
    Err(Error::NotDmaBuf { kind, sealed, size, len: len as u64 })
}

fn size(len: usize) -> Result<usize> {
    let requested = len as u64;
    if requested == 0 || requested > limits::BUFFER {
        return Err(Error::Size { requested, limit: limits::BUFFER });
    }
    Ok(pages(requested) as usize)
}

fn failed(len: usize, errno: Errno) -> Error {
    Refused { call: Call::Import, errno }.on(0, len as u64)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// The kernel is told of the beginning and the end, in this order, both with the direction.
    #[test]
    fn an_access_is_told_at_both_ends() {
        let told = RefCell::new(Vec::new());
        let note = |flags| {
            told.borrow_mut().push(flags);
            Ok(())
        };
        for access in [DMA_BUF_SYNC_READ, DMA_BUF_SYNC_WRITE] {
            between(access, note, || told.borrow_mut().push(u64::MAX)).unwrap();
        }
        // Read is 1, write 2, the end 4.
        assert_eq!(told.take(), [1, u64::MAX, 5, 2, u64::MAX, 6]);
        let refused = between(1, |_| Err(failed(4096, Errno::INVAL)), || unreachable!());
        assert!(refused.is_err());
    }
}
