//! What happens when the library is loaded, when its process forks, and when it ends.

use std::ffi::c_int;

use crate::process::{Process, install, process};
use crate::real;
use crate::settings::Settings;

/// Exit status of a process whose settings cannot be used.
const BAD_SETTINGS: c_int = 2;

/// Sets the library up.
pub(crate) extern "C" fn loaded() {
    let before = real::errno();
    let variables = std::env::vars_os();
    let texts = variables.filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
    match Settings::read(texts) {
        Ok(settings) => install(settings),
        Err(error) => {
            eprintln!("rknpu-sim: {error}");
            real::exit_now(BAD_SETTINGS);
        }
    }
    real::at_exit(ended);
    real::after_fork(forked);
    real::set_errno(before);
}

extern "C" fn forked() {
    if let Some(process) = process() {
        process.forked();
    }
}

extern "C" fn ended() {
    let status = process().and_then(Process::report);
    if let Some(status) = status {
        // All other exit handlers have run, and the status cannot be changed otherwise any more.
        real::exit_now(status.into());
    }
}
