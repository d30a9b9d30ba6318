//! Carries the requests to the simulator, in this process.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rknpu_sim::{File, Machine};
use rknpu_sys::drm;
use rknpu_sys::ioctl::{self, Request};
use rustix::io::Errno;

use super::driver::{Channel, Rknpu};
use crate::driver::Driver;
use crate::driver::vetted::Vetted;
use crate::error::Result as OpenResult;
use crate::mapping::{Mapping, Unmap};

/// A file on a simulated machine.
#[derive(Debug)]
struct Simulated {
    file: File,
}

/// The driver on a simulated machine.
pub(in crate::driver) fn simulated(machine: &Machine) -> OpenResult<Arc<dyn Driver>> {
    Ok(Arc::new(Rknpu::open(Simulated { file: machine.open() })?))
}

/// Keeps a simulated mapping until it is unmapped.
#[derive(Debug)]
struct Held(Mutex<Option<rknpu_sim::Mapping>>);

impl Unmap for Held {
    unsafe fn unmap(&self, _: NonNull<u8>, _: usize) -> Result<(), Errno> {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }
}

/// Maps an object of a simulated file.
pub(in crate::driver) fn map_simulated(
    file: &File,
    offset: u64,
    len: usize,
) -> Result<Mapping, Errno> {
    let held = file.mmap(offset, len)?;
    let start = NonNull::new(held.as_ptr()).ok_or(Errno::NOMEM)?;
    let owner = Arc::new(Held(Mutex::new(Some(held))));
    // SAFETY: `len` bytes are mapped there until `owner` drops the simulator's mapping, which it
    // does when it unmaps; nothing else in the process was given the address.
    Ok(unsafe { Mapping::from_raw(start, len, owner) })
}

/// An ioctl of the driver that the simulator has behind this file.
pub(in crate::driver) fn carry_simulated<T: Request>(
    file: &File,
    request: &mut Vetted<T>,
) -> Result<(), Errno> {
    let arg = std::ptr::from_mut(request.get_mut()).cast();
    // SAFETY: `arg` is a live struct of the size that its word says (`Request`), whose contents are vetted
    // ([`Vetted`]): user addresses in it are of arrays that live across the call.
    unsafe { file.ioctl(T::REQUEST, arg) }.map(drop)
}

impl Channel for Simulated {
    fn node(&self) -> &str {
        "sim"
    }

    fn call<T: Request>(&self, request: &mut Vetted<T>) -> Result<(), Errno> {
        carry_simulated(&self.file, request)
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        map_simulated(&self.file, offset, len)
    }

    fn close_fence(&self, fd: i32) {
        if fd >= 0 {
            self.file.machine().descriptor_closed(fd);
            // SAFETY: the simulator has just made this descriptor for us; nothing else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }

    fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<u32, Errno> {
        let mut request = drm::PrimeHandle { fd: dma_buf.as_raw_fd(), ..Default::default() };
        let arg = std::ptr::from_mut(&mut request).cast();
        // SAFETY: the word takes a `PrimeHandle`, which `arg` points to.
        unsafe { self.file.ioctl(ioctl::PRIME_FD_TO_HANDLE, arg)? };
        Ok(request.handle)
    }

    fn pause(&self, time: Duration) {
        self.file.machine().sleep(time);
    }
}
