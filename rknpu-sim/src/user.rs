//! Memory of the simulated program: the structs it passes, and what they point to.

use rustix::io::Errno;

/// Addresses below are never mapped.
const LOWEST: usize = 4096;

fn check(address: usize, len: usize) -> Result<(), Errno> {
    let end = address.checked_add(len).ok_or(Errno::FAULT)?;
    // The upper half of the address space is the kernel's.
    let ours = isize::try_from(end).is_ok();
    if address < LOWEST || !ours { Err(Errno::FAULT) } else { Ok(()) }
}

/// Copies from the program; EFAULT for an address that no program can have.
///
/// # Safety
/// Any other address is readable for `out.len()` bytes.
pub(crate) unsafe fn read(from: *const u8, out: &mut [u8]) -> Result<(), Errno> {
    if out.is_empty() {
        return Ok(());
    }
    check(from.addr(), out.len())?;
    // SAFETY: readable by the caller's promise; `out` is exclusive and therefore distinct from what
    // the program passed.
    unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    Ok(())
}

/// Copies to the program; EFAULT for an address that no program can have.
///
/// # Safety
/// Any other address is writable for `bytes.len()` bytes.
pub(crate) unsafe fn write(to: *mut u8, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    check(to.addr(), bytes.len())?;
    // SAFETY: writable by the caller's promise; `bytes` is the simulator's own.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    Ok(())
}

/// Copies as much of `text` as fits to an address that a struct of the program holds, and returns
/// the text's full length.
///
/// The address is the program's word: as with the kernel, a wrong one is the program's fault. Unlike
/// the kernel this model only notices addresses that nobody can have.
pub(crate) fn put_text(address: u64, room: u64, text: &str) -> Result<u64, Errno> {
    let len = usize::try_from(room).unwrap_or(usize::MAX).min(text.len());
    if len > 0 && address != 0 {
        let to = std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0));
        // SAFETY: `ioctl`'s caller promises that addresses in a struct are good for the lengths
        // beside them.
        unsafe { write(to, &text.as_bytes()[..len]) }?;
    }
    Ok(text.len() as u64)
}
