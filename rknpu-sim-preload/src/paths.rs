//! The C functions on paths that this library replaces.
//!
//! A path is looked at once; one that leads nowhere into the simulation is passed on as it is.
//! Variadic functions are written as in `hooks`.

#![allow(unreachable_pub, reason = "the loader reaches them")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use rustix::io::Errno;

use crate::hooks::answer;
use crate::listing::Next;
use crate::nodes::{self, Place};
use crate::process::{Process, process};
use crate::real;

/// What stands at a path in the simulation.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn found(path: *const c_char) -> Option<(&'static Process, Place)> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a C string by the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let process = process()?;
    Some((process, nodes::find(path.to_bytes(), process.settings.config.driver)?))
}

/// What is to be opened at a path; `None` passes the call on, for directories as well.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn openable(path: *const c_char) -> Option<(&'static Process, Place)> {
    // SAFETY: by the caller's promise.
    unsafe { found(path) }.filter(|(_, place)| *place != Place::Directory)
}

/// What a path shows; `None` passes the call on, for directories that the system has as well.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn shown(path: *const c_char) -> Option<Place> {
    // SAFETY: by the caller's promise; a path that was found is a C string.
    unsafe {
        let (_, place) = found(path)?;
        (place != Place::Directory || !exists(path)).then_some(place)
    }
}

/// Whether the system has something at a path. Leaves errno alone.
///
/// # Safety
/// `path` is a C string.
unsafe fn exists(path: *const c_char) -> bool {
    let before = real::errno();
    // SAFETY: a C string by the caller's promise.
    let there = unsafe { real::access(path, libc::F_OK) } == 0;
    real::set_errno(before);
    there
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
            match unsafe { openable(path) } {
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
            match unsafe { openable(path) } {
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
            match unsafe { openable(path) } {
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
                match shown(path) {
                    Some(place) => stat_place(place, out),
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
                match shown(path) {
                    Some(place) => stat_place(place, out),
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
    let Some(place) = (unsafe { shown(path) }) else {
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
    match unsafe { shown(path) } {
        Some(place) => answer(-1, || permitted(place, mode)),
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
    match unsafe { shown(path) } {
        Some(place) => answer(-1, || permitted(place, mode)),
        // SAFETY: the caller's arguments, passed on.
        None => unsafe { real::faccessat(at, path, mode, flags) },
    }
}

/// `opendir(3)`: simulated entries come first.
///
/// # Safety
/// As `opendir(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: `path` is what the caller gave to `opendir`.
    let Some((process, Place::Directory)) = (unsafe { found(path) }) else {
        // SAFETY: the caller's argument, passed on.
        return unsafe { real::opendir(path) };
    };
    // SAFETY: `path` was found to be a C string.
    let (real, name) = unsafe { (exists(path), CStr::from_ptr(path)) };
    let path = if real { path } else { c"/".as_ptr() };
    // SAFETY: a C string in both cases.
    let stream = unsafe { real::opendir(path) };
    if !stream.is_null() {
        let entries = nodes::entries(name.to_bytes(), process.settings.config.driver);
        process.listings.add(stream.addr(), entries, real);
    }
    stream
}

/// Defines the names of `readdir`.
macro_rules! readdir {
    ($($name:ident),+) => {$(
        /// `readdir(3)`.
        ///
        /// # Safety
        /// As `readdir(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(stream: *mut libc::DIR) -> *mut libc::dirent {
            let ours = process().filter(|process| process.listings.any());
            let Some(process) = ours else {
                // SAFETY: the caller's argument, passed on.
                return unsafe { real::readdir(stream) };
            };
            match process.listings.next(stream.addr()) {
                Next::Entry(entry) => entry,
                Next::End => std::ptr::null_mut(),
                Next::Real => loop {
                    // SAFETY: the caller's argument, passed on.
                    let entry = unsafe { real::readdir(stream) };
                    // SAFETY: an entry's name ends with a zero byte.
                    let name = (!entry.is_null()).then(|| unsafe {
                        CStr::from_ptr((&raw const (*entry).d_name).cast())
                    });
                    if !name.is_some_and(|name| process.listings.hides(stream.addr(), name)) {
                        break entry;
                    }
                },
            }
        }
    )+};
}
readdir!(readdir, readdir64);

/// `rewinddir(3)`.
///
/// # Safety
/// As `rewinddir(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rewinddir(stream: *mut libc::DIR) {
    if let Some(process) = process().filter(|process| process.listings.any()) {
        process.listings.rewind(stream.addr());
    }
    // SAFETY: the caller's argument, passed on.
    unsafe { real::rewinddir(stream) }
}

/// `closedir(3)`.
///
/// # Safety
/// As `closedir(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(stream: *mut libc::DIR) -> c_int {
    if let Some(process) = process().filter(|process| process.listings.any()) {
        process.listings.remove(stream.addr());
    }
    // SAFETY: the caller's argument, passed on.
    unsafe { real::closedir(stream) }
}

/// Defines the names of `getxattr`.
macro_rules! getxattr {
    ($($name:ident),+) => {$(
        /// `getxattr(2)`: a simulated place has no attributes.
        ///
        /// # Safety
        /// As `getxattr(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            name: *const c_char,
            out: *mut c_void,
            room: usize,
        ) -> isize {
            // SAFETY: `path` is what the caller gave to `getxattr`.
            match unsafe { shown(path) } {
                Some(_) => answer(-1, || Err(Errno::NODATA)),
                // SAFETY: the caller's arguments, passed on.
                None => unsafe { real::$name(path, name, out, room) },
            }
        }
    )+};
}
getxattr!(getxattr, lgetxattr);

/// Defines the names of `listxattr`.
macro_rules! listxattr {
    ($($name:ident),+) => {$(
        /// `listxattr(2)`: a simulated place has no attributes.
        ///
        /// # Safety
        /// As `listxattr(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, out: *mut c_char, room: usize) -> isize {
            // SAFETY: `path` is what the caller gave to `listxattr`.
            match unsafe { shown(path) } {
                Some(_) => 0,
                // SAFETY: the caller's arguments, passed on.
                None => unsafe { real::$name(path, out, room) },
            }
        }
    )+};
}
listxattr!(listxattr, llistxattr);

crate::hooks::hooks!(
    open,
    open64,
    __open_2,
    __open64_2,
    openat,
    openat64,
    __openat_2,
    __openat64_2,
    fopen,
    fopen64,
    stat,
    stat64,
    lstat,
    lstat64,
    fstatat,
    fstatat64,
    statx,
    access,
    faccessat,
    opendir,
    readdir,
    readdir64,
    rewinddir,
    closedir,
    getxattr,
    lgetxattr,
    listxattr,
    llistxattr,
);
