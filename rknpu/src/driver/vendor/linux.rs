//! Carries the requests to the `rknpu` driver of the running Linux kernel: opened node, ioctl, mmap.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rknpu_sys::drm;
use rknpu_sys::ioctl::{self, Prime, Request};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::driver::Channel;
use crate::driver::vetted::Vetted;
use crate::mapping::{Mapping, Unmap};

/// An open node of the driver.
#[derive(Debug)]
pub(crate) struct Linux {
    fd: OwnedFd,
    node: String,
    unmapper: Arc<Munmap>,
}

impl Linux {
    /// `fd` is a node whose driver is `rknpu` ([`driver_name`]); its ioctl numbers mean something
    /// else to other drivers.
    pub(crate) fn new(fd: OwnedFd, node: String) -> Linux {
        Linux { fd, node, unmapper: Arc::new(Munmap) }
    }
}

/// The name of the DRM driver behind an open node.
///
/// # Errors
/// ENOTTY when it is no DRM node.
pub(crate) fn driver_name(fd: impl AsFd) -> Result<String, Errno> {
    let mut name = [0u8; 64];
    let mut request = drm::Version {
        name_len: name.len() as u64,
        name: name.as_mut_ptr() as u64,
        ..Default::default()
    };
    // SAFETY: the kernel writes at most `name_len` bytes at `name`, which is that long and lives
    // across the call; the other two buffers have length 0.
    unsafe { ioctl::call(fd, &mut request)? };
    let len = (request.name_len as usize).min(name.len());
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

/// Maps a file's bytes, shared, to read and write.
fn map_shared(
    fd: impl AsFd,
    offset: u64,
    len: usize,
    unmapper: Arc<Munmap>,
) -> Result<Mapping, Errno> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset)? };
    let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
    // SAFETY: `len` bytes have just been mapped there, referred to by nothing else; the mapping itself
    // keeps the kernel's object alive until it is unmapped.
    Ok(unsafe { Mapping::from_raw(start, len, unmapper) })
}

/// A new dma-buf of `len` bytes from an open dma-heap.
pub(crate) fn allocate_dma_buf(heap: impl AsFd, len: u64) -> Result<OwnedFd, Errno> {
    let fd_flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let mut request = drm::DmaHeapAllocation { len, fd_flags, ..Default::default() };
    // SAFETY: the struct is the one that the word takes and holds no addresses.
    unsafe { ioctl::call(heap, &mut request)? };
    let fd = i32::try_from(request.fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Maps a dma-buf from its start; from elsewhere, some drivers map its start all the same.
pub(crate) fn map_dma_buf(fd: impl AsFd, len: usize) -> Result<Mapping, Errno> {
    map_shared(fd, 0, len, Arc::new(Munmap))
}

/// Maps an object of a node at its offset.
pub(crate) fn map_node(fd: impl AsFd, offset: u64, len: usize) -> Result<Mapping, Errno> {
    map_shared(fd, offset, len, Arc::new(Munmap))
}

/// `DMA_BUF_IOCTL_SYNC`. Memory that is no dma-buf needs none, and whoever imports it says so.
pub(crate) fn sync_dma_buf(fd: impl AsFd, flags: u64) -> Result<(), Errno> {
    let fd = fd.as_fd();
    let mut request = drm::DmaBufSync { flags };
    // SAFETY: the struct is the one that the word takes and holds no addresses.
    match unsafe { ioctl::call(fd, &mut request) } {
        Err(Errno::NOTTY) => simulated_sync(fd, flags),
        result => result,
    }
}

/// The same of memory that a simulated dma-heap has made.
#[cfg(feature = "sim")]
fn simulated_sync(fd: BorrowedFd<'_>, flags: u64) -> Result<(), Errno> {
    rknpu_sim::sync_dma_buf(fd.as_raw_fd(), flags).unwrap_or(Ok(()))
}

#[cfg(not(feature = "sim"))]
fn simulated_sync(_: BorrowedFd<'_>, _: u64) -> Result<(), Errno> {
    Ok(())
}

#[derive(Debug)]
struct Munmap;

impl Unmap for Munmap {
    unsafe fn unmap(&self, start: NonNull<u8>, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise is munmap's contract.
        unsafe { rustix::mm::munmap(start.as_ptr().cast::<c_void>(), len) }
    }
}

/// A driver's ioctl, on a node that was opened by that driver's name.
pub(crate) fn carry(fd: impl AsFd, request: &mut Vetted<impl Request>) -> Result<(), Errno> {
    // SAFETY: word and struct belong together (`Request`), the node's driver is the one that they are of, and
    // the contents are vetted ([`Vetted`]): kernel addresses are of live objects, ranges inside them, user
    // addresses of arrays that live across the call.
    unsafe { ioctl::call(fd, request.get_mut()) }
}

impl Channel for Linux {
    fn node(&self) -> &str {
        &self.node
    }

    fn call<T: Request>(&self, request: &mut Vetted<T>) -> Result<(), Errno> {
        carry(&self.fd, request)
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        map_shared(&self.fd, offset, len, self.unmapper.clone())
    }

    fn close_fence(&self, fd: i32) {
        if fd >= 0 {
            // SAFETY: the driver has just made this descriptor for us; nothing else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }

    fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<u32, Errno> {
        let mut request = drm::PrimeHandle { fd: dma_buf.as_raw_fd(), ..Default::default() };
        // SAFETY: the only caller, `Rknpu::import`, has made domain 0 current, where the object will be
        // freed, and the device above keeps everybody else out of other domains meanwhile.
        unsafe { ioctl::prime(&self.fd, Prime::Import, &mut request)? };
        Ok(request.handle)
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
