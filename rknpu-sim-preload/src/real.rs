//! The functions that this library stands in front of: the next ones of their names, and the search
//! for names.

#![allow(unreachable_pub, reason = "the loader reaches them")]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Declares each function with the address of its next namesake, looked up once, and with what to
/// return where the C library has none.
macro_rules! next {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, as $kind:ty, or $none:expr;)+) => {
        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the C library documents.
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let mut next = NEXT.load(Ordering::Relaxed);
                if next.is_null() {
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: the name ends with a zero byte.
                    next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
                    if next.is_null() {
                        set_errno(libc::ENOSYS);
                        return $none;
                    }
                    NEXT.store(next, Ordering::Relaxed);
                }
                // SAFETY: the symbol of this name is a function of this type.
                let next = unsafe { std::mem::transmute::<*mut c_void, $kind>(next) };
                // SAFETY: the caller keeps the function's contract.
                unsafe { next($($arg),*) }
            }
        )+
    };
}

type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
type OneFd = unsafe extern "C" fn(c_int) -> c_int;
type TwoFds = unsafe extern "C" fn(c_int, c_int) -> c_int;
type Range = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
type ThreeFds = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
type Ioctl = unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;
type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Munmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, ...) -> *mut c_void;
type ReadFd = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type WriteFd = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type ReadAt = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;
type WriteAt = unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize;
type Vector = unsafe extern "C" fn(c_int, *const libc::iovec, c_int) -> isize;
type VectorAt = unsafe extern "C" fn(c_int, *const libc::iovec, c_int, i64) -> isize;
type Vmsplice = unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_uint) -> isize;
type OfProcess = unsafe extern "C" fn(
    c_int,
    *const libc::iovec,
    c_ulong,
    *const libc::iovec,
    c_ulong,
    c_ulong,
) -> isize;
type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;
type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
type StatAt = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
type Statx = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type AccessAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_int) -> c_int;
type OpenDir = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
type ReadDir = unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent;
type RewindDir = unsafe extern "C" fn(*mut libc::DIR);
type CloseDir = unsafe extern "C" fn(*mut libc::DIR) -> c_int;
type GetAttribute = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_void, usize) -> isize;
type ListAttributes = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
type Exit = unsafe extern "C" fn(c_int);
pub(crate) type Texts = *const *const c_char;
type Exec = unsafe extern "C" fn(*const c_char, Texts) -> c_int;
type ExecWith = unsafe extern "C" fn(*const c_char, Texts, Texts) -> c_int;
type ExecFd = unsafe extern "C" fn(c_int, Texts, Texts) -> c_int;
type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

next! {
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, as Open, or -1;
    fn openat(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, as OpenAt, or -1;
    fn close(fd: c_int) -> c_int, as OneFd, or -1;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, as Range, or -1;
    fn dup(fd: c_int) -> c_int, as OneFd, or -1;
    fn dup2(fd: c_int, to: c_int) -> c_int, as TwoFds, or -1;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, as ThreeFds, or -1;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, as Fcntl, or -1;
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, as Ioctl, or -1;
    fn mmap(at: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64)
        -> *mut c_void, as Mmap, or libc::MAP_FAILED;
    fn munmap(at: *mut c_void, len: usize) -> c_int, as Munmap, or -1;
    fn mremap(at: *mut c_void, len: usize, new: usize, flags: c_int, to: *mut c_void)
        -> *mut c_void, as Mremap, or libc::MAP_FAILED;
    fn read(fd: c_int, out: *mut c_void, len: usize) -> isize, as ReadFd, or -1;
    fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize, as Vector, or -1;
    fn pread(fd: c_int, out: *mut c_void, len: usize, at: i64) -> isize, as ReadAt, or -1;
    fn preadv(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize, as VectorAt, or -1;
    fn write(fd: c_int, from: *const c_void, len: usize) -> isize, as WriteFd, or -1;
    fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize, as Vector, or -1;
    fn pwrite(fd: c_int, from: *const c_void, len: usize, at: i64) -> isize, as WriteAt, or -1;
    fn pwritev(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize, as VectorAt, or -1;
    fn vmsplice(fd: c_int, parts: *const libc::iovec, count: usize, flags: c_uint) -> isize, as Vmsplice, or -1;
    fn process_vm_readv(process: c_int, to: *const libc::iovec, to_count: c_ulong,
        from: *const libc::iovec, from_count: c_ulong, flags: c_ulong) -> isize, as OfProcess, or -1;
    fn process_vm_writev(process: c_int, from: *const libc::iovec, from_count: c_ulong,
        to: *const libc::iovec, to_count: c_ulong, flags: c_ulong) -> isize, as OfProcess, or -1;
    fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int, as Madvise, or -1;
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long)
        -> c_long, as Syscall, or -1;
    fn fstat(fd: c_int, out: *mut libc::stat) -> c_int, as Fstat, or -1;
    fn stat(path: *const c_char, out: *mut libc::stat) -> c_int, as Stat, or -1;
    fn lstat(path: *const c_char, out: *mut libc::stat) -> c_int, as Stat, or -1;
    fn fstatat(at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int)
        -> c_int, as StatAt, or -1;
    fn statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx)
        -> c_int, as Statx, or -1;
    fn access(path: *const c_char, mode: c_int) -> c_int, as Access, or -1;
    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int)
        -> c_int, as AccessAt, or -1;
    fn opendir(path: *const c_char) -> *mut libc::DIR, as OpenDir, or std::ptr::null_mut();
    fn readdir(stream: *mut libc::DIR) -> *mut libc::dirent, as ReadDir, or std::ptr::null_mut();
    fn rewinddir(stream: *mut libc::DIR) -> (), as RewindDir, or Default::default();
    fn closedir(stream: *mut libc::DIR) -> c_int, as CloseDir, or -1;
    fn getxattr(path: *const c_char, name: *const c_char, out: *mut c_void, room: usize)
        -> isize, as GetAttribute, or -1;
    fn lgetxattr(path: *const c_char, name: *const c_char, out: *mut c_void, room: usize)
        -> isize, as GetAttribute, or -1;
    fn listxattr(path: *const c_char, out: *mut c_char, room: usize)
        -> isize, as ListAttributes, or -1;
    fn llistxattr(path: *const c_char, out: *mut c_char, room: usize)
        -> isize, as ListAttributes, or -1;
    fn _exit(status: c_int) -> (), as Exit, or Default::default();
    fn execv(path: *const c_char, arguments: Texts) -> c_int, as Exec, or -1;
    fn execvp(path: *const c_char, arguments: Texts) -> c_int, as Exec, or -1;
    fn execve(path: *const c_char, arguments: Texts, variables: Texts) -> c_int, as ExecWith, or -1;
    fn execvpe(path: *const c_char, arguments: Texts, variables: Texts) -> c_int, as ExecWith, or -1;
    fn fexecve(fd: c_int, arguments: Texts, variables: Texts) -> c_int, as ExecFd, or -1;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, as Fopen, or std::ptr::null_mut();
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address is the calling thread's own, always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Has `handler` run at exit, before those that are registered already.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the function stays loaded until all handlers have run: preloaded libraries are never
    // unloaded.
    unsafe { libc::atexit(handler) };
}

/// Has `handler` run in the child of every fork.
pub(crate) fn after_fork(handler: extern "C" fn()) {
    let handler: unsafe extern "C" fn() = handler;
    // SAFETY: as for `at_exit`.
    unsafe { libc::pthread_atfork(None, None, Some(handler)) };
}

/// Writes out what the C library's streams hold and ends the process without further handlers.
pub(crate) fn exit_now(status: c_int) -> ! {
    // SAFETY: both may be called at any time.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    leave(status)
}

/// `_exit(2)` of the C library.
pub(crate) fn leave(status: c_int) -> ! {
    // SAFETY: it may be called at any time.
    unsafe { _exit(status) };
    // Not reached: the C library has the function.
    std::process::abort()
}

/// The C library's `dlsym`, once it was asked for.
static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the C library's `dlsym`, which this library's own name hides from itself.
extern "C" fn find_dlsym() -> *mut c_void {
    let found = DLSYM.load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    // The versions under which x86-64 and aarch64 have had it, the present one first.
    for version in [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"] {
        // SAFETY: both names are C strings.
        let next = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !next.is_null() {
            DLSYM.store(next, Ordering::Relaxed);
            return next;
        }
    }
    eprintln!("rknpu-sim: the C library has no dlsym of a version that is known here");
    std::process::abort()
}

/// What stands in front of the C library's functions, by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hook {
    pub(crate) name: &'static CStr,
    pub(crate) function: *const c_void,
}

/// `dlsym(3)` on a handle: where it finds the C library's function, the one in front of it.
///
/// # Safety
/// As `dlsym(3)`.
unsafe extern "C" fn look_up(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: the symbol is a function of this type.
    let dlsym = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(find_dlsym()) };
    // SAFETY: the caller's arguments, passed on.
    let found = unsafe { dlsym(handle, name) };
    if found.is_null() || name.is_null() {
        return found;
    }
    // SAFETY: a C string by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let mut hooks = crate::hooks::all()
        .chain(crate::exec::all())
        .chain(crate::paths::all())
        .chain(crate::pinning::all());
    if let Some(hook) = hooks.find(|hook| hook.name == name) {
        // SAFETY: the name is a C string.
        if unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) } == found {
            return hook.function.cast_mut();
        }
    }
    found
}

/// `dlsym(3)`. Without a handle the answer depends on who asks, which the C library takes from the
/// return address: it is jumped to, not called.
///
/// # Safety
/// As `dlsym(3)`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "lea rax, [rdi + 1]", // RTLD_NEXT is -1, RTLD_DEFAULT 0
        "cmp rax, 1",
        "ja {look_up}",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        look_up = sym look_up,
        find = sym find_dlsym,
    )
}

/// `dlsym(3)`, as on x86-64.
///
/// # Safety
/// As `dlsym(3)`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "add x9, x0, #1", // RTLD_NEXT is -1, RTLD_DEFAULT 0
        "cmp x9, #1",
        "b.ls 2f",
        "b {look_up}",
        "2:",
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {find}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x9",
        look_up = sym look_up,
        find = sym find_dlsym,
    )
}
