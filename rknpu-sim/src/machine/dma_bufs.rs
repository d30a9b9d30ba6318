//! dma-bufs that a machine makes, and those that its files give out.

use super::{Machine, Mapping, Reservation};
use crate::calls::{Mapped, prime};
use crate::config::Mode;
use crate::memory::{Backing, Pinning};
use rustix::fd::{OwnedFd, RawFd};
use rustix::io::Errno;
use std::sync::Arc;

impl Machine {
    /// Another driver's dma-buf of `len` bytes, as a dma-heap would make it.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use rknpu_sys::{drm::PrimeHandle, ioctl};
    /// use std::os::fd::AsRawFd;
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// let heap = machine.foreign_buffer(1 << 20)?;
    /// let mut import = PrimeHandle { fd: heap.as_raw_fd(), ..Default::default() };
    /// // SAFETY: the word takes a `PrimeHandle`.
    /// unsafe { file.ioctl(ioctl::PRIME_FD_TO_HANDLE, (&raw mut import).cast())? };
    /// assert_eq!(import.handle, 1);
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Errors
    /// EINVAL for no bytes, else what the host says.
    pub fn foreign_buffer(&self, len: usize) -> Result<OwnedFd, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let len = len.checked_next_multiple_of(4096).ok_or(Errno::NOMEM)?;
        let strict = self.config().mode == Mode::Strict;
        let backing = Arc::new(Backing::new(len, strict, false, Pinning::Allowed)?);
        prime::remember(backing.inode(), self.kernel());
        self.kernel().enter().dma_bufs.add_foreign(backing)
    }

    /// DMA_BUF_IOCTL_SYNC: the CPU begins or ends an access to a dma-buf. In strict mode another driver's is
    /// as its maker has it: beginning to read throws away what the CPU has cached, ending to write writes it
    /// back, once somebody has imported it. Nothing happens to the driver's own exports, as recorded.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use rknpu_sys::drm::{DMA_BUF_SYNC_START, DMA_BUF_SYNC_WRITE};
    /// use std::os::fd::AsRawFd;
    ///
    /// let machine = Machine::new(Config::default());
    /// let heap = machine.foreign_buffer(4096)?;
    /// machine.sync_dma_buf(heap.as_raw_fd(), DMA_BUF_SYNC_START | DMA_BUF_SYNC_WRITE)?;
    /// // Neither reading nor writing.
    /// assert!(machine.sync_dma_buf(heap.as_raw_fd(), DMA_BUF_SYNC_START).is_err());
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Errors
    /// EINVAL for flags that say neither, or anything else; EBADF when the descriptor is none of this machine's
    /// dma-bufs.
    pub fn sync_dma_buf(&self, fd: RawFd, flags: u64) -> Result<(), Errno> {
        let mut call = self.kernel().enter();
        prime::sync(&mut call, fd, flags)
    }

    /// Maps a dma-buf that [`File::ioctl`](crate::File::ioctl) exported. The driver always maps from its first page,
    /// whatever `offset` says.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// # use rknpu_sys::{drm::PrimeHandle, ioctl, uapi::MemCreate};
    /// # let mut buffer = MemCreate { flags: 0x403, size: 8192, ..Default::default() };
    /// # file.call(&mut buffer)?;
    /// # let mut export = PrimeHandle { handle: buffer.handle, flags: 0o2000002, fd: -1 };
    /// # // SAFETY: the word takes a `PrimeHandle`.
    /// # unsafe { file.ioctl(ioctl::PRIME_HANDLE_TO_FD, (&raw mut export).cast())? };
    /// # // SAFETY: the call has made this descriptor for us.
    /// # let dma_buf = unsafe { OwnedFd::from_raw_fd(export.fd) };
    /// let mapping = machine.mmap_dma_buf(dma_buf.as_raw_fd(), 0, 8192)?;
    /// mapping.write(0, b"shared");
    /// assert_eq!(mapping.len(), 8192);
    /// # machine.descriptor_closed(dma_buf.as_raw_fd());
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Errors
    /// EBADF when the descriptor is none of this machine's dma-bufs, EACCES when it was exported for reading
    /// only, EINVAL for a range past its end.
    pub fn mmap_dma_buf(&self, fd: RawFd, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let mut call = self.kernel().enter();
        let mapped = Mapped::of_dma_buf(&mut call, fd, offset, len)?;
        drop(call);
        let len = len.next_multiple_of(4096);
        Mapping::new(Reservation::new(self.clone(), mapped), len)
    }

    /// Tells the machine that the program has closed a descriptor that came from PRIME or FENCE_OUT,
    /// which the machine cannot see. Returns whether it was one.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// # use rknpu_sys::{drm::PrimeHandle, ioctl, uapi::MemCreate};
    /// # let mut buffer = MemCreate { flags: 0x403, size: 8192, ..Default::default() };
    /// # file.call(&mut buffer)?;
    /// # let mut export = PrimeHandle { handle: buffer.handle, flags: 0o2000002, fd: -1 };
    /// # // SAFETY: the word takes a `PrimeHandle`.
    /// # unsafe { file.ioctl(ioctl::PRIME_HANDLE_TO_FD, (&raw mut export).cast())? };
    /// # // SAFETY: the call has made this descriptor for us.
    /// # let dma_buf = unsafe { OwnedFd::from_raw_fd(export.fd) };
    /// let number = dma_buf.as_raw_fd();
    /// drop(dma_buf);
    /// assert!(machine.descriptor_closed(number));
    /// assert!(!machine.descriptor_closed(number)); // no longer one
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn descriptor_closed(&self, fd: RawFd) -> bool {
        let mut call = self.kernel().enter();
        if call.fences.closed(fd) {
            return true;
        }
        let (known, object) = call.dma_bufs.closed(fd);
        if let Some(object) = object {
            call.put_object(object);
        }
        known
    }

    /// Tells the machine of a duplicate of such a descriptor.
    pub fn descriptor_duplicated(&self, from: RawFd, to: RawFd) {
        let mut call = self.kernel().enter();
        call.dma_bufs.duplicated(from, to);
        call.fences.duplicated(from, to);
    }
}

/// [`Machine::sync_dma_buf`] for those who hold a descriptor and know no machine, as DMA_BUF_IOCTL_SYNC is;
/// `None` when no machine has made it.
///
/// ```
/// use rknpu_sim::{Config, Machine, sync_dma_buf};
/// use std::os::fd::AsRawFd;
///
/// let machine = Machine::new(Config::default());
/// let heap = machine.foreign_buffer(4096)?;
/// assert_eq!(sync_dma_buf(heap.as_raw_fd(), 1), Some(Ok(()))); // begins to read
/// assert_eq!(sync_dma_buf(std::io::stdin().as_raw_fd(), 1), None);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
pub fn sync_dma_buf(fd: RawFd, flags: u64) -> Option<Result<(), Errno>> {
    let kernel = prime::maker(fd)?;
    let answer = prime::sync(&mut kernel.enter(), fd, flags);
    Some(answer)
}
