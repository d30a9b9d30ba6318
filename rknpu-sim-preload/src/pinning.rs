//! The C functions by which the kernel looks at a program's pages past its mappings: direct I/O, pipes, other
//! processes, registered buffers.
//!
//! Of mapped buffers the kernel pins the pages that are there and are mapped as pages. Those that are mapped by
//! frame alone lie in memory that the host's kernel does not pin either; here is what it would not refuse by
//! itself: pages that were dropped, and whoever takes the slow way to them. Bytes that go through the page cache
//! are copied by the CPU, as everywhere.

#![allow(unreachable_pub, reason = "the loader reaches them")]

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use rustix::io::Errno;

use crate::hooks::answer;
use crate::process::{Process, process};
use crate::real;

/// `IORING_REGISTER_BUFFERS`.
const REGISTER_BUFFERS: c_long = 0;

/// The process, where it has a buffer mapped that a range may touch.
fn with_buffer(at: *const c_void, len: usize) -> Option<&'static Process> {
    process()
        .filter(|p| p.ranges.may_touch(at.addr(), len))
        .filter(|p| p.ranges.touches(at.addr(), len))
}

/// Whether bytes of a file go past the page cache.
fn is_direct(fd: c_int) -> bool {
    let before = real::errno();
    // SAFETY: the command takes no argument and fails harmlessly for a number that is not open.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    real::set_errno(before);
    flags >= 0 && flags & libc::O_DIRECT != 0
}

/// How many of `len` bytes at `at` a direct read or write moves; all of them where it is about no buffer.
fn moved(fd: c_int, at: *const c_void, len: usize) -> Result<usize, Errno> {
    let Some(process) = with_buffer(at, len).filter(|_| is_direct(fd)) else { return Ok(len) };
    let here = process.dropped.before(at.addr(), len);
    if here == 0 {
        return Err(Errno::FAULT);
    }
    process.machine().direct_io(here)
}

/// The parts of a vector.
///
/// # Safety
/// `parts` are `count` of them, or null.
unsafe fn parts<'a>(parts: *const libc::iovec, count: usize) -> &'a [libc::iovec] {
    if parts.is_null() || count > libc::UIO_MAXIOV as usize {
        return &[];
    }
    // SAFETY: by the caller's promise.
    unsafe { std::slice::from_raw_parts(parts, count) }
}

/// Whether direct I/O with these parts is refused. One that would be short is whole instead: a short one is
/// right at every length, and so is this.
fn refused(fd: c_int, parts: &[libc::iovec]) -> Result<(), Errno> {
    parts.iter().try_for_each(|part| moved(fd, part.iov_base, part.iov_len).map(drop))
}

/// Whether the slow way to the pages of these parts meets a buffer, which has no pages for it.
fn is_buffer(parts: &[libc::iovec]) -> bool {
    parts.iter().any(|part| with_buffer(part.iov_base, part.iov_len).is_some())
}

/// Defines reads and writes of one range.
macro_rules! ranges {
    ($($name:ident, $real:ident($($after:ident: $kind:ty),*), $pointer:ty;)+) => {$(
        /// The call of this name: direct I/O with a mapped buffer is answered as the driver's pages are.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, at: $pointer, len: usize, $($after: $kind),*) -> isize {
            match moved(fd, at, len) {
                // SAFETY: the caller's arguments, passed on; fewer bytes than it gave room for.
                Ok(len) => unsafe { real::$real(fd, at, len, $($after),*) },
                Err(errno) => answer(-1, || Err(errno)),
            }
        }
    )+};
}
ranges! {
    read, read(), *mut c_void;
    pread, pread(offset: i64), *mut c_void;
    pread64, pread(offset: i64), *mut c_void;
    write, write(), *const c_void;
    pwrite, pwrite(offset: i64), *const c_void;
    pwrite64, pwrite(offset: i64), *const c_void;
}

/// Defines reads and writes of several ranges.
macro_rules! vectors {
    ($($name:ident, $real:ident($($after:ident: $kind:ty),*);)+) => {$(
        /// The call of this name: direct I/O with a mapped buffer is answered as the driver's pages are.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, at: *const libc::iovec, count: c_int, $($after: $kind),*) -> isize {
            // SAFETY: by the caller's promise; a negative count is no vector.
            let vector = unsafe { parts(at, usize::try_from(count).unwrap_or(usize::MAX)) };
            match refused(fd, vector) {
                // SAFETY: the caller's arguments, passed on.
                Ok(()) => unsafe { real::$real(fd, at, count, $($after),*) },
                Err(errno) => answer(-1, || Err(errno)),
            }
        }
    )+};
}
vectors! {
    readv, readv();
    preadv, preadv(offset: i64);
    preadv64, preadv(offset: i64);
    writev, writev();
    pwritev, pwritev(offset: i64);
    pwritev64, pwritev(offset: i64);
}

/// `vmsplice(2)`: dropped pages can't be lent.
///
/// # Safety
/// As `vmsplice(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(
    fd: c_int,
    at: *const libc::iovec,
    count: usize,
    flags: c_uint,
) -> isize {
    // SAFETY: by the caller's promise.
    let first = unsafe { parts(at, count) }.first().copied();
    let gone = |part: libc::iovec| {
        with_buffer(part.iov_base, part.iov_len)
            .is_some_and(|p| p.dropped.before(part.iov_base.addr(), part.iov_len) == 0)
    };
    if first.is_some_and(gone) {
        return answer(-1, || Err(Errno::FAULT));
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::vmsplice(fd, at, count, flags) }
}

/// Defines access to other processes' memory, of which the last range named is the other side.
macro_rules! of_process {
    ($($name:ident),+) => {$(
        /// The call of this name: a mapping of the driver's has no pages for it, this process's own neither.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            other: c_int,
            local: *const libc::iovec,
            local_count: c_ulong,
            remote: *const libc::iovec,
            remote_count: c_ulong,
            flags: c_ulong,
        ) -> isize {
            let own = other.cast_unsigned() == std::process::id();
            // SAFETY: by the caller's promise.
            if own && is_buffer(unsafe { parts(remote, remote_count as usize) }) {
                return answer(-1, || Err(Errno::FAULT));
            }
            // SAFETY: the caller's arguments, passed on.
            unsafe { real::$name(other, local, local_count, remote, remote_count, flags) }
        }
    )+};
}
of_process!(process_vm_readv, process_vm_writev);

/// `madvise(2)`: dropped pages of a buffer come back for the CPU, and for nothing that pins them.
///
/// # Safety
/// As `madvise(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real::madvise(at, len, advice) };
    let drops = result == 0 && advice == libc::MADV_DONTNEED;
    if let Some(process) = with_buffer(at, len).filter(|_| drops) {
        return answer(-1, || {
            let len = len.checked_next_multiple_of(4096).ok_or(Errno::NOMEM)?;
            process.dropped.add(at.addr(), len, ().into());
            Ok(result)
        });
    }
    result
}

/// `syscall(2)`: buffers of the driver's can't be registered with io_uring (Linux 6.1; 7.3 takes them).
///
/// # Safety
/// As `syscall(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_io_uring_register && b == REGISTER_BUFFERS && process().is_some() {
        let at = std::ptr::with_exposed_provenance(c as usize);
        // SAFETY: what this call takes, by the caller's promise.
        if is_buffer(unsafe { parts(at, d as usize) }) {
            return answer(-1, || Err(Errno::FAULT));
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::syscall(number, a, b, c, d, e, f) }
}

crate::hooks::hooks!(
    read,
    pread,
    pread64,
    write,
    pwrite,
    pwrite64,
    readv,
    preadv,
    preadv64,
    writev,
    pwritev,
    pwritev64,
    vmsplice,
    process_vm_readv,
    process_vm_writev,
    madvise,
    syscall,
);
