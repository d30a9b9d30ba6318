//! The C functions on descriptors and mappings that this library replaces.
//!
//! Each asks first whether the call is about something simulated, which costs a load or two, and
//! passes it on otherwise. None allocates or takes a lock on the way to the C library.
//!
//! Variadic functions are written with the arguments that they may take: on x86-64 and aarch64 Linux
//! those are passed alike, and the ones that a caller did not give are passed on unread.

#![allow(unreachable_pub, reason = "the loader reaches them")]

use std::any::Any;
use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rknpu_sim::config::Clock;
use rknpu_sys::drm::{DmaBufSync, DmaHeapAllocation, PrimeHandle};
use rknpu_sys::flags::JobFlags;
use rknpu_sys::uapi::Submit;
use rustix::fd::AsRawFd;
use rustix::io::Errno;

use crate::nodes::Place;
use crate::process::{Behind, Process, process};
use crate::real;
use crate::settings::Hazards;

/// `DMA_HEAP_IOCTL_ALLOC`.
const HEAP_ALLOC: u32 = 0xC018_4800;
/// `DMA_BUF_IOCTL_SYNC`.
const BUF_SYNC: u32 = 0x4008_6200;
/// Number of PRIME_HANDLE_TO_FD among the DRM calls.
const PRIME_EXPORT: u32 = 0x2d;
/// Number of SUBMIT.
const SUBMIT: u32 = 0x41;
/// A page, for what the kernel rounds and refuses.
const PAGE: usize = 4096;

/// The process, when `fd` is simulated.
fn simulated(fd: c_int) -> Option<&'static Process> {
    process().filter(|process| process.table.has(fd))
}

/// Runs a simulated call; errno is set on failure and otherwise left as it was.
pub(crate) fn answer<T>(failed: T, call: impl FnOnce() -> Result<T, Errno>) -> T {
    let before = real::errno();
    match guarded(call) {
        Ok(value) => {
            real::set_errno(before);
            value
        }
        Err(errno) => {
            real::set_errno(errno.raw_os_error());
            failed
        }
    }
}

/// Does the books beside a call of the C library, without touching errno.
pub(crate) fn book(work: impl FnOnce()) {
    let before = real::errno();
    guarded(work);
    real::set_errno(before);
}

/// A panic is a hazard that the settings asked to abort at.
fn guarded<T>(work: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(panic) => abort(panic.as_ref()),
    }
}

fn abort(panic: &(dyn Any + Send)) -> ! {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    eprintln!("rknpu-sim: aborted: {}", text.unwrap_or("a panic"));
    std::process::abort()
}

/// Closes a descriptor of this library's own.
pub(crate) fn close_for_good(fd: c_int) {
    // SAFETY: the caller owns the descriptor; nothing else uses it.
    unsafe { real::close(fd) };
}

/// `close(2)`.
///
/// # Safety
/// As `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if let Some(process) = simulated(fd) {
        book(|| process.closing(fd));
    }
    // SAFETY: the caller's argument, passed on.
    unsafe { real::close(fd) }
}

/// `close_range(2)`.
///
/// # Safety
/// As `close_range(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    /// `CLOSE_RANGE_CLOEXEC`: nothing is closed yet.
    const CLOEXEC: c_int = 4;
    if let Some(process) = process().filter(|_| flags & CLOEXEC == 0 && first <= last) {
        for fd in process.table.within(first, last) {
            book(|| process.closing(fd));
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::close_range(first, last, flags) }
}

/// Books a duplicate that the C library has just made.
fn duplicated(from: c_int, to: c_int) -> c_int {
    if let Some(process) = simulated(from).filter(|_| to >= 0 && to != from) {
        book(|| process.duplicated(from, to));
    }
    to
}

/// A descriptor is about to be replaced by a duplicate of `from`.
fn replacing(from: c_int, to: c_int) {
    if from == to {
        return;
    }
    if let Some(process) = simulated(to) {
        // SAFETY: the command takes no argument and fails harmlessly for a number that is not open.
        let open = unsafe { real::fcntl(from, libc::F_GETFD, 0) } >= 0;
        if open {
            book(|| process.closing(to));
        }
    }
}

/// `dup(2)`.
///
/// # Safety
/// As `dup(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's argument, passed on.
    duplicated(fd, unsafe { real::dup(fd) })
}

/// `dup2(2)`.
///
/// # Safety
/// As `dup2(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    replacing(fd, to);
    // SAFETY: the caller's arguments, passed on.
    duplicated(fd, unsafe { real::dup2(fd, to) })
}

/// `dup3(2)`.
///
/// # Safety
/// As `dup3(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    replacing(fd, to);
    // SAFETY: the caller's arguments, passed on.
    duplicated(fd, unsafe { real::dup3(fd, to, flags) })
}

/// Defines the names of `fcntl`.
macro_rules! fcntl {
    ($($name:ident),+) => {$(
        /// `fcntl(2)`: duplicates are booked.
        ///
        /// # Safety
        /// As `fcntl(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
            // SAFETY: the caller's arguments, passed on.
            let result = unsafe { real::fcntl(fd, command, argument) };
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                duplicated(fd, result);
            }
            result
        }
    )+};
}
fcntl!(fcntl, fcntl64);

/// `ioctl(2)`.
///
/// # Safety
/// As `ioctl(2)`: `argument` is what the request asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let behind = simulated(fd).and_then(|process| Some((process, process.table.get(fd)?)));
    let Some((process, behind)) = behind else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real::ioctl(fd, request, argument) };
    };
    // The kernel takes 32 bits of the request.
    let request = request as u32;
    answer(-1, || match &*behind {
        // SAFETY: `argument` is what the request asks for, by the caller's promise.
        Behind::Device { .. } => unsafe { device(process, &behind, request, argument) },
        Behind::Heap if request == HEAP_ALLOC && !argument.is_null() => {
            let allocation = argument.cast::<DmaHeapAllocation>();
            // SAFETY: the request asks for a pointer to this struct.
            let wanted = unsafe { allocation.read_unaligned() };
            let made = process.allocate(wanted.len, wanted.fd_flags)?;
            let fd = made.cast_unsigned();
            // SAFETY: as above.
            unsafe { allocation.write_unaligned(DmaHeapAllocation { fd, ..wanted }) };
            Ok(0)
        }
        Behind::Descriptor if request == BUF_SYNC && !argument.is_null() => {
            // SAFETY: the request asks for a pointer to this struct.
            let flags = unsafe { argument.cast::<DmaBufSync>().read_unaligned() }.flags;
            process.machine().sync_dma_buf(fd, flags).map(|()| 0)
        }
        Behind::Heap | Behind::Descriptor => Err(Errno::NOTTY),
    })
}

/// An ioctl of a device node.
///
/// # Safety
/// `argument` is what the request asks for.
unsafe fn device(
    process: &Process,
    behind: &Arc<Behind>,
    request: u32,
    argument: *mut c_void,
) -> Result<c_int, Errno> {
    let Behind::Device { file, .. } = &**behind else { return Err(Errno::NOTTY) };
    process.machine();
    let strict = process.settings.hazards == Hazards::Errno;
    let before = if strict { process.hazards() } else { 0 };
    // SAFETY: by the caller's promise.
    let result = unsafe { file.ioctl(request, argument) }?;
    match request & 0xff {
        // SAFETY: the call succeeded with a struct of this type.
        PRIME_EXPORT => process.given_out(unsafe { (*argument.cast::<PrimeHandle>()).fd }),
        SUBMIT if request >> 16 & 0x3fff >= size_of::<Submit>() as u32 => {
            let submit = argument.cast::<Submit>();
            // SAFETY: as above; the fields lie within the size that the request states.
            let (flags, fence) = unsafe { ((*submit).flags, (*submit).fence_fd) };
            let flags = JobFlags::from_bits_retain(flags);
            if flags.contains(JobFlags::FENCE_OUT) && fence >= 0 {
                process.given_out(fence);
            }
            if flags.contains(JobFlags::NONBLOCK) {
                process.tell_of_polling();
                // What the program does next may be to free what the job uses. Where waits take no time,
                // it may have seen the results by then.
                process.machine().settle();
                if process.settings.config.clock == Clock::Virtual {
                    process.machine().finish();
                }
            }
        }
        _ => {}
    }
    if strict && process.hazards() > before {
        return Err(Errno::FAULT);
    }
    Ok(result)
}

/// Defines the names of `mmap`.
macro_rules! mmap {
    ($($name:ident),+) => {$(
        /// `mmap(2)`.
        ///
        /// # Safety
        /// As `mmap(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            at: *mut c_void,
            len: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> *mut c_void {
            let behind = if flags & libc::MAP_ANONYMOUS == 0 {
                simulated(fd).and_then(|process| Some((process, process.table.get(fd)?)))
            } else {
                None
            };
            match behind {
                Some((process, behind)) if matches!(*behind, Behind::Device { .. }) => {
                    answer(libc::MAP_FAILED, || {
                        // SAFETY: the caller's arguments.
                        unsafe { map(process, &behind, (at, len), prot, flags, offset) }
                    })
                }
                // SAFETY: the caller's arguments, passed on.
                _ => unsafe { plain_map(at, len, prot, flags, fd, offset) },
            }
        }
    )+};
}
mmap!(mmap, mmap64);

/// A mapping of something that is no device node: a dma-buf, or what may replace a simulated mapping.
///
/// # Safety
/// As `mmap(2)`.
unsafe fn plain_map(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's arguments, passed on.
    let mapped = unsafe { real::mmap(at, len, prot, flags, fd, offset) };
    let replaces = flags & libc::MAP_FIXED != 0 && mapped != libc::MAP_FAILED;
    let touched = process().filter(|p| replaces && p.ranges.may_touch(mapped.addr(), len));
    if let Some(process) = touched {
        book(|| drop(process.unmapped(mapped.addr(), pages(len))));
    }
    let buffer =
        simulated(fd).filter(|_| mapped != libc::MAP_FAILED && flags & libc::MAP_ANONYMOUS == 0);
    if let Some(process) = buffer {
        book(|| drop(process.ranges.add(mapped.addr(), pages(len), Arc::new(None))));
    }
    mapped
}

/// Maps a simulated buffer: its memory file, which a child of fork does not get.
///
/// # Safety
/// As `mmap(2)` for the range and flags.
unsafe fn map(
    process: &Process,
    behind: &Arc<Behind>,
    (at, len): (*mut c_void, usize),
    prot: c_int,
    flags: c_int,
    offset: i64,
) -> Result<*mut c_void, Errno> {
    let Behind::Device { file, .. } = &**behind else { return Err(Errno::NODEV) };
    let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
    let reservation = file.reserve(offset, len)?;
    let memory = reservation.file().as_raw_fd();
    // SAFETY: the caller's range and flags; the file is at least `len` bytes long, rounded to pages.
    let mapped = unsafe { real::mmap(at, len, prot, flags, memory, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(Errno::from_raw_os_error(real::errno()));
    }
    for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
        // SAFETY: the range was just mapped; the advice changes none of its bytes.
        unsafe { libc::madvise(mapped, pages(len), advice) };
    }
    drop(process.ranges.add(mapped.addr(), pages(len), Arc::new(Some(reservation))));
    Ok(mapped)
}

/// `len` rounded up to pages.
fn pages(len: usize) -> usize {
    len.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
}

/// `munmap(2)`.
///
/// # Safety
/// As `munmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    let valid = at.addr().is_multiple_of(PAGE) && len > 0;
    let ours = process().filter(|p| valid && p.ranges.may_touch(at.addr(), len));
    // Forgotten before it is unmapped: the next mapping may get the same addresses. The driver learns
    // of it after, when the tokens go.
    let tokens = ours.map(|process| process.unmapped(at.addr(), pages(len)));
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real::munmap(at, len) };
    book(|| drop(tokens));
    result
}

/// `mremap(2)`: a simulated mapping can move and shrink, not grow.
///
/// # Safety
/// As `mremap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    at: *mut c_void,
    len: usize,
    new: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let ours = process().filter(|p| p.ranges.may_touch(at.addr(), len));
    let ours = ours.filter(|p| p.ranges.touches(at.addr(), len));
    if ours.is_some() && new > len {
        real::set_errno(libc::EFAULT);
        return libc::MAP_FAILED;
    }
    // SAFETY: the caller's arguments, passed on.
    let moved = unsafe { real::mremap(at, len, new, flags, to) };
    if let Some(process) = ours.filter(|_| moved != libc::MAP_FAILED) {
        let tail = process.unmapped(at.addr().saturating_add(pages(new)), pages(len) - pages(new));
        process.ranges.moved(at.addr(), pages(new), moved.addr());
        process.dropped.moved(at.addr(), pages(new), moved.addr());
        book(|| drop(tail));
    }
    moved
}

/// Defines the names of `fstat`.
macro_rules! fstat {
    ($($name:ident),+) => {$(
        /// `fstat(2)`: a device node shows as one.
        ///
        /// # Safety
        /// As `fstat(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, out: *mut libc::stat) -> c_int {
            // SAFETY: the caller's arguments, passed on.
            let result = unsafe { real::fstat(fd, out) };
            if result == 0 {
                let behind = simulated(fd).and_then(|process| process.table.get(fd));
                let place = match behind.as_deref() {
                    Some(Behind::Device { place, .. }) => Some(*place),
                    Some(Behind::Heap) => Some(Place::Heap),
                    Some(Behind::Descriptor) | None => None,
                };
                if let Some(place) = place {
                    // SAFETY: the call succeeded, so `out` is valid and filled.
                    place.disguise(unsafe { &mut *out });
                }
            }
            result
        }
    )+};
}
fstat!(fstat, fstat64);

/// Defines the names of `_exit`.
macro_rules! leave {
    ($($name:ident),+) => {$(
        /// `_exit(2)`, which runs no exit handler: what is left behind is said here.
        ///
        /// # Safety
        /// As `_exit(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(status: c_int) -> ! {
            let asked = guarded(|| process().and_then(Process::report));
            real::leave(asked.map_or(status, c_int::from))
        }
    )+};
}
leave!(_exit, _Exit);

/// Names and functions of a list of hooks.
macro_rules! hooks {
    ($($name:ident),+ $(,)?) => {
        /// The functions of this file that stand in front of the C library's.
        pub(crate) fn all() -> impl Iterator<Item = crate::real::Hook> {
            [$((concat!(stringify!($name), "\0"), $name as *const c_void)),+]
                .into_iter()
                .filter_map(|(name, function)| {
                    let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
                    Some(crate::real::Hook { name, function })
                })
        }
    };
}
pub(crate) use hooks;
hooks!(
    close,
    close_range,
    dup,
    dup2,
    dup3,
    fcntl,
    fcntl64,
    ioctl,
    mmap,
    mmap64,
    munmap,
    mremap,
    fstat,
    fstat64,
    _exit,
    _Exit,
);

/// Run by the loader before the program's own constructors, so that what is registered then runs last
/// at its exit.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = crate::load::loaded;
