//! What happens when the library is loaded, when its process forks, and when it ends.

use std::ffi::c_int;

use crate::process::{install, process};
use crate::settings::Settings;
use crate::{exit, real};

/// Exit status of a process whose settings cannot be used.
const BAD_SETTINGS: c_int = 2;

/// Run by the loader before the program's own constructors, so that what is registered here runs last
/// at its exit.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    let before = real::errno();
    let variables = std::env::vars_os();
    let texts = variables.filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
    match Settings::read(texts) {
        Ok(settings) => install(settings),
        Err(error) => {
            eprintln!("rknpu-sim: {error}");
            // SAFETY: ends the process; nothing has been opened that would have to be closed.
            unsafe { libc::_exit(BAD_SETTINGS) }
        }
    }
    // SAFETY: the function stays loaded until after all exit handlers have run: preloaded libraries
    // are never unloaded.
    unsafe { libc::atexit(ended) };
    // SAFETY: as above; the child's handler only stores a flag.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    real::set_errno(before);
}

extern "C" fn forked() {
    if let Some(process) = process() {
        process.forked();
    }
}

extern "C" fn ended() {
    let Some(process) = process() else { return };
    let Some(machine) = process.used() else { return };
    let status = exit::report(&process.settings, &machine.report());
    if let Some(status) = status {
        // SAFETY: all other exit handlers have run; what is left is the C library's own flushing,
        // which is done here, as the status can no longer be changed otherwise.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(status.into());
        }
    }
}
