//! No panic goes out of a callback.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::ggml::Level;
use crate::plugin::Plugin;

/// Runs a callback's work; a panic becomes a line in the log, and `failed`.
pub(crate) fn guarded<T>(plugin: Option<&Plugin>, failed: T, work: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(panic) => {
            // Whatever happens while this is said, too, stays here.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let line = format!("a fault in this library: {}", message(&*panic));
                match plugin {
                    Some(plugin) => plugin.say.line(Level::Error, &line),
                    None => eprintln!("ork: {line}"),
                }
            }));
            failed
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
