//! Memory of the simulated program: the structs it passes, and what they point to.

use crate::calls;
use crate::machine::File;
use rknpu_sys::ioctl::Request;
use rustix::io::Errno;
use std::ffi::c_void;
use zerocopy::{FromBytes, IntoBytes};

/// Addresses below are never mapped.
const LOWEST: usize = 4096;

fn check(address: usize, len: usize) -> Result<(), Errno> {
    let end = address.checked_add(len).ok_or(Errno::FAULT)?;
    // The upper half of the address space is the kernel's.
    let ours = isize::try_from(end).is_ok();
    if address < LOWEST || !ours { Err(Errno::FAULT) } else { Ok(()) }
}

/// A call's request word and the argument that goes with it.
#[derive(Debug)]
pub(crate) struct Arg {
    pub(crate) request: u32,
    at: *mut u8,
}

impl Arg {
    /// Copies the argument's head in; EFAULT for an address that no program can have.
    pub(crate) fn read(&self, out: &mut [u8]) -> Result<(), Errno> {
        if out.is_empty() {
            return Ok(());
        }
        check(self.at.addr(), out.len())?;
        // SAFETY: who made the value promised that the argument is good for the bytes that the word
        // says, and no more are asked for; `out` is the simulator's own.
        unsafe { std::ptr::copy_nonoverlapping(self.at, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies the argument's head out; EFAULT likewise.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        check(self.at.addr(), bytes.len())?;
        // SAFETY: as for reading.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at, bytes.len()) };
        Ok(())
    }
}

impl File {
    /// `ioctl(2)`: what the driver would return, having done what it would do.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use rknpu_sys::{drm::Version, ioctl};
    ///
    /// let file = Machine::new(Config::default()).open();
    /// let mut name = [0u8; 16];
    /// let mut version = Version {
    ///     name_len: 16,
    ///     name: name.as_mut_ptr().expose_provenance() as u64,
    ///     ..Default::default()
    /// };
    /// // SAFETY: the word takes a `Version`, whose name is `name`, 16 bytes long.
    /// unsafe { file.ioctl(ioctl::DRM_VERSION, (&raw mut version).cast())? };
    /// assert_eq!(&name[..version.name_len as usize], b"rknpu");
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Safety
    /// `arg` points to as many bytes as `request` says, readable and writable; addresses that the
    /// struct holds for the kernel to write texts to are writable for the lengths beside them.
    ///
    /// # Errors
    /// The driver's errno. Where the kernel would have killed the process, EFAULT, with the hazard in
    /// the report.
    pub unsafe fn ioctl(&self, request: u32, arg: *mut c_void) -> Result<i32, Errno> {
        self.issue(Arg { request, at: arg.cast() })
    }

    /// [`File::ioctl`] for a struct that belongs to one word.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use rknpu_sys::uapi::MemCreate;
    ///
    /// let file = Machine::new(Config::default()).open();
    /// let mut buffer = MemCreate { flags: 0x403, size: 5000, ..Default::default() };
    /// file.call(&mut buffer)?;
    /// assert_eq!((buffer.handle, buffer.size), (1, 8192)); // rounded up to pages
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Errors
    /// As [`File::ioctl`]. EINVAL for a [`Version`](rknpu_sys::drm::Version) that holds addresses:
    /// where they point only `ioctl`'s caller can vouch for.
    pub fn call<T: Request + FromBytes + IntoBytes>(&self, args: &mut T) -> Result<(), Errno> {
        self.call_bytes(T::REQUEST, args.as_mut_bytes()).map(drop)
    }

    /// [`File::ioctl`] on bytes, for request words of other sizes and directions than the structs'.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let file = Machine::new(Config::default()).open();
    /// // ACTION with a struct twice as long as the kernel's: the rest is left alone.
    /// let mut bytes = [1, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa];
    /// file.call_bytes(0xc010_6440, &mut bytes)?;
    /// assert_eq!(bytes[4..], [0x8c, 0x03, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa]);
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Errors
    /// As [`File::ioctl`]. EINVAL when there are fewer bytes than the word says, or they hold addresses
    /// for the call to write to.
    pub fn call_bytes(&self, request: u32, bytes: &mut [u8]) -> Result<i32, Errno> {
        if calls::size_of_word(request) > bytes.len() || calls::holds_addresses(request, bytes) {
            return Err(Errno::INVAL);
        }
        self.issue(Arg { request, at: bytes.as_mut_ptr() })
    }

    fn issue(&self, arg: Arg) -> Result<i32, Errno> {
        calls::ioctl(&mut self.enter(), self.id(), &arg)
    }
}

/// Copies as much of `text` as fits to an address that a struct of the program holds, and returns
/// the text's full length.
///
/// The address is the program's word: as with the kernel, a wrong one is the program's fault. Unlike
/// the kernel this model only notices addresses that nobody can have.
pub(crate) fn put_text(address: u64, room: u64, text: &str) -> Result<u64, Errno> {
    let len = usize::try_from(room).unwrap_or(usize::MAX).min(text.len());
    if len > 0 && address != 0 {
        let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
        check(address, len)?;
        let to = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: `ioctl`'s caller promises that addresses in a struct are good for the lengths
        // beside them; the simulator's own calls never get here.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to, len) };
    }
    Ok(text.len() as u64)
}
