//! What is done before a signal ends the program: buffers go back to the driver, temporary files go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::error::{Error, Result};

type Task = Box<dyn FnOnce() + Send>;

/// What is to be done, by number, in the order in which it was asked for.
static TASKS: Mutex<Vec<(u64, Task)>> = Mutex::new(Vec::new());

/// Something that is done if SIGINT, SIGTERM or SIGHUP ends the process before this is dropped. The signal
/// then does what it ever does.
#[derive(Debug)]
#[must_use = "dropping it means that nothing is done"]
pub struct AtSuddenEnd(u64);

impl AtSuddenEnd {
    /// Asks for `task`. Tasks are done one after the other, the first one first.
    ///
    /// # Errors
    /// [`Error::Thread`] when the signals or the thread that waits for them cannot be had.
    ///
    /// ```
    /// let file = std::env::temp_dir().join("half-done");
    /// let ending = ork::ending::AtSuddenEnd::new(move || drop(std::fs::remove_file(file)))?;
    /// // ... ^C removes the file ...
    /// drop(ending);
    /// # Ok::<(), ork::error::Error>(())
    /// ```
    pub fn new(task: impl FnOnce() + Send + 'static) -> Result<AtSuddenEnd> {
        watch()?;
        let mut tasks = tasks();
        let number = tasks.last().map_or(0, |(number, _)| number + 1);
        tasks.push((number, Box::new(task)));
        Ok(AtSuddenEnd(number))
    }
}

impl Drop for AtSuddenEnd {
    fn drop(&mut self) {
        tasks().retain(|(number, _)| *number != self.0);
    }
}

/// What SIGINT asks to end before it ends the process.
static ASKED: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// From now on SIGINT sets `flag` while it is not set; one that finds it set ends the process.
///
/// # Errors
/// As [`AtSuddenEnd::new`].
pub(crate) fn interrupt_asks_first(flag: &Arc<AtomicBool>) -> Result<()> {
    watch()?;
    *ASKED.lock().unwrap_or_else(PoisonError::into_inner) = Some(flag.clone());
    Ok(())
}

/// Whether SIGINT has asked somebody who had not been asked before.
fn asks_first() -> bool {
    let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    asked.as_ref().is_some_and(|asked| !asked.swap(true, Ordering::Relaxed))
}

fn tasks() -> MutexGuard<'static, Vec<(u64, Task)>> {
    TASKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a thread wait for the signals, once in a process.
fn watch() -> Result<()> {
    static WATCHED: OnceLock<Result<(), std::io::ErrorKind>> = OnceLock::new();
    let watched = WATCHED.get_or_init(|| {
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
        let wait = |mut signals: Signals| {
            thread::Builder::new().name("ork-signals".into()).spawn(move || {
                for signal in signals.forever() {
                    if signal == SIGINT && asks_first() {
                        continue;
                    }
                    // Not under the lock: whatever else ends meanwhile must not wait for it.
                    let tasks = std::mem::take(&mut *tasks());
                    tasks.into_iter().for_each(|(_, task)| task());
                    // Ends the process; if it cannot, there is nothing better to do.
                    let _ = emulate_default_handler(signal);
                }
            })
        };
        signals.and_then(wait).map(drop).map_err(|error| error.kind())
    });
    watched.map_err(|kind| Error::Thread(kind.into()))
}
