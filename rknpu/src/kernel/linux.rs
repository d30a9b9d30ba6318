//! The `rknpu` driver of the running Linux kernel.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rknpu_sys::drm;
use rknpu_sys::ioctl::{self, Prime, Request};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::drm::{Calls, Vetted};
use super::{Mapping, Unmap};

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

#[derive(Debug)]
struct Munmap;

impl Unmap for Munmap {
    unsafe fn unmap(&self, start: NonNull<u8>, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise is munmap's contract.
        unsafe { rustix::mm::munmap(start.as_ptr().cast::<c_void>(), len) }
    }
}

impl Calls for Linux {
    fn node(&self) -> &str {
        &self.node
    }

    fn call<T: Request>(&self, request: &mut Vetted<T>) -> Result<(), Errno> {
        // SAFETY: the node's driver is rknpu, so word and struct belong together (`Request`), and the
        // contents are vetted: kernel addresses are of live objects, task ranges inside them.
        unsafe { ioctl::call(&self.fd, request.get_mut()) }
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &self.fd,
                offset,
            )?
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // SAFETY: `len` bytes have just been mapped there, referred to by nothing else; the mapping
        // itself keeps the kernel's object alive until it is unmapped.
        Ok(unsafe { Mapping::from_raw(start, len, self.unmapper.clone()) })
    }

    fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<u32, Errno> {
        let mut request = drm::PrimeHandle { fd: dma_buf.as_raw_fd(), ..Default::default() };
        // SAFETY: `import` of the crate calls this with domain 0 live and idle, and frees the object
        // under the same condition.
        unsafe { ioctl::prime(&self.fd, Prime::Import, &mut request)? };
        Ok(request.handle)
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
