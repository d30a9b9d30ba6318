//! The C functions on paths that this library replaces.
//!
//! A path is looked at once; one that leads nowhere into the simulation is passed on as it is.
//! Variadic functions are written as in `hooks`.

#![allow(unreachable_pub, reason = "the loader reaches them")]

use std::ffi::{CStr, c_char, c_int, c_uint};

use rustix::io::Errno;

use crate::hooks::answer;
use crate::nodes::{self, Place};
use crate::process::{Process, process};
use crate::real;

/// What the library does with a path; `None` passes the call on.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn place(path: *const c_char) -> Option<(&'static Process, Place)> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a C string by the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    Some((process()?, nodes::find(path.to_bytes())?))
}

/// Defines the names of an opening function.
macro_rules! open {
    ($($name:ident),+) => {$(
        /// `open(2)` and its 64-bit and fortified twins.
        ///
        /// # Safety
        /// As `open(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
            // SAFETY: `path` is what the caller gave to `open`.
            match unsafe { place(path) } {
                Some((process, place)) => answer(-1, || process.open(place, flags)),
                // SAFETY: the caller's arguments, passed on.
                None => unsafe { real::open(path, flags, mode) },
            }
        }
    )+};
}
open!(open, open64, __open_2, __open64_2);

/// Defines the names of an opening function that takes a directory, which absolute paths ignore.
macro_rules! openat {
    ($($name:ident),+) => {$(
        /// `openat(2)` and its 64-bit and fortified twins.
        ///
        /// # Safety
        /// As `openat(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            at: c_int,
            path: *const c_char,
            flags: c_int,
            mode: c_uint,
        ) -> c_int {
            // SAFETY: `path` is what the caller gave to `openat`.
            match unsafe { place(path) } {
                Some((process, place)) => answer(-1, || process.open(place, flags)),
                // SAFETY: the caller's arguments, passed on.
                None => unsafe { real::openat(at, path, flags, mode) },
            }
        }
    )+};
}
openat!(openat, openat64, __openat_2, __openat64_2);

/// Defines the names of `fopen`.
macro_rules! fopen {
    ($($name:ident),+) => {$(
        /// `fopen(3)`, which opens by other means than `open`.
        ///
        /// # Safety
        /// As `fopen(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
            // SAFETY: `path` is what the caller gave to `fopen`.
            match unsafe { place(path) } {
                Some((process, place)) => {
                    answer(std::ptr::null_mut(), || {
                        let fd = process.open(place, libc::O_CLOEXEC)?;
                        // SAFETY: `mode` is the caller's; the descriptor is new.
                        Ok(unsafe { libc::fdopen(fd, mode) })
                    })
                }
                // SAFETY: the caller's arguments, passed on.
                None => unsafe { real::fopen(path, mode) },
            }
        }
    )+};
}
fopen!(fopen, fopen64);

/// Stats what a simulated place looks like: `/dev/null` in disguise.
///
/// # Safety
/// `out` is writable.
unsafe fn stat_place(place: Place, out: *mut libc::stat) -> c_int {
    // SAFETY: the path is a C string, `out` is writable by the caller's promise.
    let result = unsafe { real::stat(c"/dev/null".as_ptr(), out) };
    if result == 0 {
        // SAFETY: the call succeeded, so `out` is valid and filled.
        place.disguise(unsafe { &mut *out });
    }
    result
}

/// Defines a stat function with its 64-bit twin.
macro_rules! stat {
    ($real:ident: $($name:ident),+) => {$(
        /// `stat(2)` and `lstat(2)`.
        ///
        /// # Safety
        /// As `stat(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, out: *mut libc::stat) -> c_int {
            // SAFETY: the caller's arguments, looked at and passed on.
            unsafe {
                match place(path) {
                    Some((_, place)) => stat_place(place, out),
                    None => real::$real(path, out),
                }
            }
        }
    )+};
}
stat!(stat: stat, stat64);
stat!(lstat: lstat, lstat64);

/// Defines the names of `fstatat`.
macro_rules! fstatat {
    ($($name:ident),+) => {$(
        /// `fstatat(2)`.
        ///
        /// # Safety
        /// As `fstatat(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            at: c_int,
            path: *const c_char,
            out: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the caller's arguments, looked at and passed on.
            unsafe {
                match place(path) {
                    Some((_, place)) => stat_place(place, out),
                    None => real::fstatat(at, path, out, flags),
                }
            }
        }
    )+};
}
fstatat!(fstatat, fstatat64);

/// `statx(2)`.
///
/// # Safety
/// As `statx(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    out: *mut libc::statx,
) -> c_int {
    // SAFETY: `path` is what the caller gave to `statx`.
    let Some((_, place)) = (unsafe { place(path) }) else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real::statx(at, path, flags, mask, out) };
    };
    // SAFETY: the path is a C string; the rest are the caller's arguments.
    let result = unsafe { real::statx(at, c"/dev/null".as_ptr(), flags, mask, out) };
    if result == 0 {
        // SAFETY: the call succeeded, so `out` is valid and filled.
        let out = unsafe { &mut *out };
        out.stx_mode = place.mode() as u16;
        (out.stx_rdev_major, out.stx_rdev_minor) = place.device().unwrap_or((0, 0));
    }
    result
}

/// `access(2)`: simulated places are readable, devices also writable; none can be executed.
fn permitted(place: Place, mode: c_int) -> Result<c_int, Errno> {
    let writes = mode & libc::W_OK != 0 && place.device().is_none();
    if mode & libc::X_OK != 0 || writes { Err(Errno::ACCESS) } else { Ok(0) }
}

/// `access(2)`.
///
/// # Safety
/// As `access(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: `path` is what the caller gave to `access`.
    match unsafe { place(path) } {
        Some((_, place)) => answer(-1, || permitted(place, mode)),
        // SAFETY: the caller's arguments, passed on.
        None => unsafe { real::access(path, mode) },
    }
}

/// `faccessat(2)`.
///
/// # Safety
/// As `faccessat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faccessat(
    at: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: `path` is what the caller gave to `faccessat`.
    match unsafe { place(path) } {
        Some((_, place)) => answer(-1, || permitted(place, mode)),
        // SAFETY: the caller's arguments, passed on.
        None => unsafe { real::faccessat(at, path, mode, flags) },
    }
}
