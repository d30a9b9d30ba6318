//! Memory that another driver made.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rknpu_sys::drm::{DMA_BUF_SYNC_END, DMA_BUF_SYNC_READ, DMA_BUF_SYNC_START, DMA_BUF_SYNC_WRITE};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::arena::Backing;
use crate::buffer::{Buffer, Imported, Memory, pages};
use crate::domain::Domain;
use crate::driver::{allocate_dma_buf, map_dma_buf, sync_dma_buf};
use crate::error::{Call, Error, Result};
use crate::limits;
use crate::mapping::MappedRange;

/// Where dma-heaps are.
const HEAPS: &str = "/dev/dma_heap";

/// Memory of another driver, mapped for the CPU: filled once, it can be imported without a copy.
///
/// ```
/// use rknpu::{Device, import::DmaBuf, sim};
///
/// let machine = sim::Machine::new(Default::default());
/// let device = Device::simulated_on(&machine)?;
/// // On a board: `DmaBuf::allocate("system", 4096)?`.
/// let foreign = machine.foreign_buffer(4096).map_err(std::io::Error::from)?;
/// let mut memory = DmaBuf::from_fd(foreign, 4096)?;
/// memory.fill(|bytes| bytes.fill(3))?;
/// let buffer = device.domain(0)?.import(&memory)?;
/// assert_eq!(buffer.len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DmaBuf {
    // Unmapped before the descriptor is closed.
    span: MappedRange,
    fd: OwnedFd,
    len: usize,
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
    /// ```
    /// use rknpu::{Error, import::DmaBuf, sim};
    ///
    /// let machine = sim::Machine::new(Default::default());
    /// let foreign = machine.foreign_buffer(8192).map_err(std::io::Error::from)?;
    /// assert!(matches!(DmaBuf::from_fd(foreign, 0), Err(Error::Size { requested: 0, .. })));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::Driver`] when it cannot be mapped.
    pub fn from_fd(fd: OwnedFd, len: usize) -> Result<DmaBuf> {
        let len = size(len)?;
        let mapping = map_dma_buf(&fd, len).map_err(|errno| failed(len, errno))?;
        Ok(DmaBuf { span: MappedRange::whole(mapping), fd, len })
    }

    /// Lets `f` write the bytes, with the cache maintenance around it that the NPU's reading them needs.
    /// Not while a job reads them.
    ///
    /// ```
    /// use rknpu::{import::DmaBuf, sim};
    ///
    /// # let machine = sim::Machine::new(Default::default());
    /// # let foreign = machine.foreign_buffer(4096).map_err(std::io::Error::from)?;
    /// let mut memory = DmaBuf::from_fd(foreign, 4096)?;
    /// let written = memory.fill(|bytes| {
    ///     bytes[..2].copy_from_slice(&[1, 2]);
    ///     2
    /// })?;
    /// assert_eq!(written, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Driver`] when the maintenance fails.
    pub fn fill<T>(&mut self, f: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let (access, len) = (DMA_BUF_SYNC_READ | DMA_BUF_SYNC_WRITE, self.len);
        let sync = |fd: &OwnedFd, phase| {
            sync_dma_buf(fd, access | phase).map_err(|errno| failed(len, errno))
        };
        sync(&self.fd, DMA_BUF_SYNC_START)?;
        let result = f(self.span.bytes_mut());
        sync(&self.fd, DMA_BUF_SYNC_END)?;
        Ok(result)
    }

    /// Bytes, whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none; never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({} bytes)", self.len)
    }
}

impl Domain {
    /// Imports memory of another driver, filled and synced, for the NPU to read without a copy.
    ///
    /// Only domain 0 takes it: the driver maps it into whatever domain is live (which this makes domain 0)
    /// and always frees it in domain 0, where it would otherwise tear down the mapping of a buffer that is
    /// none of its business. Weights may be imported; whatever else a job touches may not.
    ///
    /// ```
    /// use rknpu::{Device, Error, import::DmaBuf, sim};
    ///
    /// let machine = sim::Machine::new(Default::default());
    /// let device = Device::simulated_on(&machine)?;
    /// # let foreign = machine.foreign_buffer(4096).map_err(std::io::Error::from)?;
    /// let memory = DmaBuf::from_fd(foreign, 4096)?;
    /// let buffer = device.domain(0)?.import(&memory)?;
    /// assert_ne!(buffer.iova(), 0);
    /// let elsewhere = device.domain(1)?.import(&memory);
    /// assert!(matches!(elsewhere, Err(Error::ImportDomain { domain: 1 })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ImportDomain`] outside domain 0; [`Error::DomainBusy`]; [`Error::Driver`] when the driver
    /// refuses.
    pub fn import(&self, memory: &DmaBuf) -> Result<Buffer<Imported>> {
        if self.index() != 0 {
            return Err(Error::ImportDomain { domain: self.index() });
        }
        let device = self.device();
        device.check()?;
        let _entered = device.enter_for_memory(0)?;
        device.switch_to_domain_0()?;
        let object =
            device.driver().import(memory.as_fd()).map_err(|errno| failed(memory.len, errno))?;
        let len = memory.len.min(object.size() as usize);
        Ok(Buffer::from_backing(Backing::Own(Memory::adopt(self, object)), len))
    }
}

fn size(len: usize) -> Result<usize> {
    let requested = len as u64;
    if requested == 0 || requested > limits::BUFFER {
        return Err(Error::Size { requested, limit: limits::BUFFER });
    }
    Ok(pages(requested) as usize)
}

fn failed(len: usize, errno: Errno) -> Error {
    Error::Driver { call: Call::Import, domain: 0, bytes: len as u64, errno }
}
