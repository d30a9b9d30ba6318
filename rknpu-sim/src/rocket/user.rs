//! Arrays in the program's memory that a SUBMIT points to, read as the kernel reads them: what is not there
//! is an error and no crash.

use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Copies `len` bytes from a user address.
pub(super) fn copy_in(address: u64, len: u64) -> Result<Vec<u8>, Errno> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    bytes.resize(len, 0);
    // Opened each time: after a fork an older descriptor would show the parent's memory.
    let memory = File::open("/proc/self/mem").map_err(|_| Errno::FAULT)?;
    memory.read_exact_at(&mut bytes, address).map_err(|_| Errno::FAULT)?;
    Ok(bytes)
}

/// Whether the kernel would give an array of this size at all: half of the address space of an `int`.
pub(super) fn fits_an_array(count: u32, size: u64) -> bool {
    u64::from(count) * size <= i32::MAX as u64
}
