//! The synchronisation types of the concurrent part: `std`'s, or loom's under `--cfg loom`, so
//! that the model checker runs the code that ships.

#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(not(loom))]
pub(crate) use std::thread::JoinHandle;

#[cfg(loom)]
pub(crate) use loom::thread::JoinHandle;

/// Starts a named thread.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    #[cfg(not(loom))]
    return std::thread::Builder::new().name(name.to_owned()).spawn(body);
    #[cfg(loom)]
    return loom::thread::Builder::new().name(name.to_owned()).spawn(body);
}

/// Locks, also after a panic of another thread.
///
/// What a lock of this crate guards is only changed by code that does not panic half-way (no
/// backend, source or callback runs under it), so a poisoned lock still guards a whole state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits on `condvar`, also after a panic of another thread (see [`lock`]).
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}
