//! A thread for a core, so that submissions that block run side by side.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::io::Errno;

use crate::device::{Device, Entered};
use crate::driver::{Completion, Driver, Submission};
use crate::fast_cores::pin_to_fast;

#[derive(Default)]
enum Slot {
    #[default]
    Idle,
    /// What to run, and where a job that outlives its caller has entered; left when it has ended.
    Ready(Submission, Option<Entered>),
    Running,
    Done(Completion),
    Stop,
    /// The thread is gone: a driver that is not ours panicked.
    Ended,
}

#[derive(Default)]
struct Shared {
    slot: Mutex<Slot>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, slot: MutexGuard<'a, Slot>) -> MutexGuard<'a, Slot> {
        self.changed.wait(slot).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread is gone, should it go before it was told to.
struct Serving<'a>(&'a Shared);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        *self.0.lock() = Slot::Ended;
        self.0.changed.notify_all();
    }
}

/// The thread of one core, started with its first submission.
#[derive(Default)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(
        &mut self,
        submission: Submission,
        entered: Option<Entered>,
        device: &Device,
    ) -> Result<(), std::io::Error> {
        if matches!(*self.shared.lock(), Slot::Ended) {
            self.thread = None;
        }
        if self.thread.is_none() {
            let core = submission.core();
            let (shared, driver) = (Arc::clone(&self.shared), device.share_driver());
            let named = thread::Builder::new().name(format!("rknpu-core{core}"));
            let pin = device.pins_threads();
            let work = move || {
                if pin {
                    pin_to_fast(core);
                }
                serve(&shared, &*driver);
            };
            self.thread = Some(named.spawn(work)?);
        }
        *self.shared.lock() = Slot::Ready(submission, entered);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Waits for what was started. When the thread has ended without an answer, the job cannot be taken for
    /// one that ran.
    pub(crate) fn finish(&mut self) -> Completion {
        self.settle().unwrap_or_else(|| Completion::failed(Errno::CANCELED))
    }

    /// Waits until nothing runs; how it ended, unless nobody was to be told.
    pub(crate) fn settle(&mut self) -> Option<Completion> {
        let mut slot = self.shared.lock();
        while matches!(*slot, Slot::Ready(..) | Slot::Running) {
            slot = self.shared.wait(slot);
        }
        match std::mem::take(&mut *slot) {
            Slot::Done(completion) => Some(completion),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Waits for what runs and ends the thread.
    pub(crate) fn stop(&mut self) {
        self.settle();
        *self.shared.lock() = Slot::Stop;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so in its slot.
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared, driver: &dyn Driver) {
    let serving = Serving(shared);
    let mut slot = shared.lock();
    loop {
        match std::mem::take(&mut *slot) {
            Slot::Ready(submission, entered) => {
                *slot = Slot::Running;
                drop(slot);
                let completion = driver.submit(&submission);
                // Before the caller is told: what the job used is its owner's alone then.
                drop((submission, entered));
                slot = shared.lock();
                *slot = Slot::Done(completion);
                shared.changed.notify_all();
            }
            Slot::Stop => {
                std::mem::forget(serving);
                return;
            }
            other => *slot = other,
        }
        slot = shared.wait(slot);
    }
}
