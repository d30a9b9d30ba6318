//! The C functions that replace the process by another program, by which it ends: what is left behind is said
//! before.

#![allow(unreachable_pub, reason = "the loader reaches them")]

use std::ffi::{c_char, c_int, c_void};

use crate::hooks::{book, hooks};
use crate::process::{Process, process};
use crate::real::{self, Texts};

/// Defines those that take lists.
macro_rules! exec {
    ($(fn $name:ident($($argument:ident: $kind:ty),+);)+) => {$(
        /// `execve(2)` and its relatives.
        ///
        /// # Safety
        /// As `execve(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),+) -> c_int {
            book(|| {
                process().and_then(Process::report);
            });
            // SAFETY: the caller's arguments, passed on.
            let failed = unsafe { real::$name($($argument),+) };
            book(|| process().into_iter().for_each(Process::goes_on));
            failed
        }
    )+};
}
exec! {
    fn execv(path: *const c_char, arguments: Texts);
    fn execvp(path: *const c_char, arguments: Texts);
    fn execve(path: *const c_char, arguments: Texts, variables: Texts);
    fn execvpe(path: *const c_char, arguments: Texts, variables: Texts);
    fn fexecve(fd: c_int, arguments: Texts, variables: Texts);
}

/// Arguments that are looked at of a function that takes them one by one: its path is one more. Those
/// that a caller did not give are whatever its stack holds, behind the null that ends the list.
const MOST: usize = 62;

/// Where the list ends; E2BIG when it is longer.
fn end(arguments: &[*const c_char; MOST]) -> Option<usize> {
    let end = arguments.iter().position(|argument| argument.is_null());
    if end.is_none() {
        eprintln!("rknpu-sim: more than {MOST} arguments of execl: use execv, which takes a list");
        real::set_errno(libc::E2BIG);
    }
    end
}

/// Defines one that takes its arguments one by one.
macro_rules! one_by_one {
    ($name:ident, |$path:ident, $list:ident| $call:expr) => {
        /// `execl(3)` or a relative: on x86-64 and aarch64 Linux its arguments are passed like these.
        ///
        /// # Safety
        /// As `execl(3)`.
        #[unsafe(no_mangle)]
        #[rustfmt::skip]
        #[allow(clippy::too_many_arguments, reason = "it is variadic in C")]
        pub unsafe extern "C" fn $name(
            $path: *const c_char,
            a0: *const c_char, a1: *const c_char, a2: *const c_char, a3: *const c_char,
            a4: *const c_char, a5: *const c_char, a6: *const c_char, a7: *const c_char,
            a8: *const c_char, a9: *const c_char, a10: *const c_char, a11: *const c_char,
            a12: *const c_char, a13: *const c_char, a14: *const c_char, a15: *const c_char,
            a16: *const c_char, a17: *const c_char, a18: *const c_char, a19: *const c_char,
            a20: *const c_char, a21: *const c_char, a22: *const c_char, a23: *const c_char,
            a24: *const c_char, a25: *const c_char, a26: *const c_char, a27: *const c_char,
            a28: *const c_char, a29: *const c_char, a30: *const c_char, a31: *const c_char,
            a32: *const c_char, a33: *const c_char, a34: *const c_char, a35: *const c_char,
            a36: *const c_char, a37: *const c_char, a38: *const c_char, a39: *const c_char,
            a40: *const c_char, a41: *const c_char, a42: *const c_char, a43: *const c_char,
            a44: *const c_char, a45: *const c_char, a46: *const c_char, a47: *const c_char,
            a48: *const c_char, a49: *const c_char, a50: *const c_char, a51: *const c_char,
            a52: *const c_char, a53: *const c_char, a54: *const c_char, a55: *const c_char,
            a56: *const c_char, a57: *const c_char, a58: *const c_char, a59: *const c_char,
            a60: *const c_char, a61: *const c_char,
        ) -> c_int {
            let $list: [*const c_char; MOST] = [
                a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15,
                a16, a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31,
                a32, a33, a34, a35, a36, a37, a38, a39, a40, a41, a42, a43, a44, a45, a46, a47,
                a48, a49, a50, a51, a52, a53, a54, a55, a56, a57, a58, a59, a60, a61,
            ];
            $call
        }
    };
}
one_by_one!(execl, |path, list| {
    // SAFETY: the list ends with a null; all before it are the caller's.
    end(&list).map_or(-1, |_| unsafe { execv(path, list.as_ptr()) })
});
one_by_one!(execlp, |path, list| {
    // SAFETY: as above.
    end(&list).map_or(-1, |_| unsafe { execvp(path, list.as_ptr()) })
});
one_by_one!(execle, |path, list| match end(&list).map(|end| list.get(end + 1)) {
    // SAFETY: as above; behind the null comes the list of variables, by the caller's promise.
    Some(Some(variables)) => unsafe { execve(path, list.as_ptr(), variables.cast()) },
    Some(None) => {
        real::set_errno(libc::E2BIG);
        -1
    }
    None => -1,
});

hooks!(execv, execvp, execve, execvpe, fexecve, execl, execlp, execle);
