//! A thread for a core, so that blocking submits run side by side.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::affinity::pin_to_fast;
use crate::device::{Device, Entered};
use crate::driver::{Completion, Driver, Object, Submission};

/// A submission that can travel to a thread.
pub(crate) struct Task {
    /// The buffer with the task array.
    pub(crate) tasks: Arc<Object>,
    pub(crate) start: u32,
    pub(crate) count: u32,
    pub(crate) domain: u32,
    pub(crate) timeout_ms: u32,
    /// Where a job that outlives its caller has entered; left when it has ended.
    pub(crate) entered: Option<Entered>,
}

/// How a submission ended.
pub(crate) struct Finished {
    pub(crate) completion: Completion,
    pub(crate) result: Result<(), Errno>,
    pub(crate) waited: Duration,
    pub(crate) count: u32,
}

impl Task {
    pub(crate) fn run(self, driver: &dyn Driver, core: u32) -> Finished {
        let begin = Instant::now();
        let (completion, result) = driver.submit(&self.submission(core));
        drop(self.entered);
        Finished { completion, result, waited: begin.elapsed(), count: self.count }
    }

    /// What it asks of the driver.
    pub(crate) fn submission(&self, core: u32) -> Submission<'_> {
        let Task { start, count, domain, timeout_ms, .. } = *self;
        Submission { tasks: &self.tasks, start, count, domain, core, timeout_ms }
    }
}

impl Finished {
    /// Whether it ran: the driver says so, has counted every task, and the NPU took time for it.
    pub(crate) fn ran(&self) -> bool {
        self.result.is_ok()
            && self.completion.tasks_done == self.count
            && !self.completion.busy.is_zero()
    }

    /// What is known of a submission whose thread has ended without an answer: that it cannot be taken
    /// for one that ran.
    fn lost(count: u32) -> Finished {
        let completion = Completion { tasks_done: 0, busy: Duration::ZERO };
        Finished { completion, result: Err(Errno::CANCELED), waited: Duration::ZERO, count }
    }
}

#[derive(Default)]
enum Slot {
    #[default]
    Idle,
    Ready(Task),
    Running,
    Done(Finished),
    Stop,
    /// The thread is gone: a kernel that is not ours panicked.
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

/// The thread of one core, started with its first task.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Programs of the last task.
    count: u32,
}

impl Worker {
    pub(crate) fn new() -> Worker {
        Worker { shared: Arc::default(), thread: None, count: 0 }
    }

    pub(crate) fn start(
        &mut self,
        task: Task,
        core: u32,
        device: &Device,
    ) -> Result<(), (Task, std::io::Error)> {
        if matches!(*self.shared.lock(), Slot::Ended) {
            self.thread = None;
        }
        if self.thread.is_none() {
            let (shared, driver) = (Arc::clone(&self.shared), device.share_driver());
            let named = thread::Builder::new().name(format!("rknpu-core{core}"));
            let pin = device.pins_threads();
            let work = move || {
                if pin {
                    pin_to_fast(core);
                }
                serve(&shared, &*driver, core);
            };
            match named.spawn(work) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => return Err((task, error)),
            }
        }
        self.count = task.count;
        *self.shared.lock() = Slot::Ready(task);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Waits for the task that was started, and says how it ended.
    pub(crate) fn finish(&mut self) -> Finished {
        match self.settle() {
            Some(finished) => finished,
            None => Finished::lost(self.count),
        }
    }

    /// Waits until nothing runs; how it ended, unless nobody was to be told.
    pub(crate) fn settle(&mut self) -> Option<Finished> {
        let mut slot = self.shared.lock();
        while matches!(*slot, Slot::Ready(_) | Slot::Running) {
            slot = self.shared.wait(slot);
        }
        match std::mem::take(&mut *slot) {
            Slot::Done(finished) => Some(finished),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Waits for the task and ends the thread.
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

fn serve(shared: &Shared, driver: &dyn Driver, core: u32) {
    let serving = Serving(shared);
    let mut slot = shared.lock();
    loop {
        match std::mem::take(&mut *slot) {
            Slot::Ready(task) => {
                *slot = Slot::Running;
                drop(slot);
                let finished = task.run(driver, core);
                slot = shared.lock();
                *slot = Slot::Done(finished);
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
