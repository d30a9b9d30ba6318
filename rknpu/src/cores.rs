//! The NPU's cores, each the right to run one job on it, and the pool that matmuls share.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use rknpu_sys::regs::CORES;

use crate::device::{Device, Entered};
use crate::driver::{Completion, Submission};
use crate::error::{Error, Result};
use crate::health::JobFailure;
use crate::worker::Worker;

/// One core of the NPU: the right to run a job on it.
///
/// There is one token for each core, and submitting needs it, so that the driver never has to queue: a
/// job that times out in the driver's queue is freed while still linked there.
///
/// ```compile_fail,E0599
/// let device = rknpu::Device::simulated(Default::default())?;
/// let core = device.core(0)?;
/// let second = core.clone(); // there is only one
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let core = device.core(0)?;
/// assert_eq!(core.index(), 0);
/// drop(core);
/// assert!(device.core(0).is_ok());
/// # Ok::<(), rknpu::Error>(())
/// ```
pub struct Core {
    index: u32,
    worker: Worker,
    /// Programs that its thread runs, and whose outcome nobody has been told.
    started: Option<u32>,
    /// The driver's record of it names a job that is gone; see [`Completion::foreign_status`].
    lost: bool,
    device: Device,
}

impl Core {
    pub(crate) fn lease(device: Device, index: u32) -> Core {
        Core { index, worker: Worker::default(), started: None, lost: false, device }
    }

    /// Index, from 0.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// assert_eq!(device.core(2)?.index(), 2);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The device that it belongs to.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// An error when no job may be run on it any more: one has been seen to be freed while it still stood in
    /// the driver's record of the core.
    pub(crate) fn check(&self) -> Result<()> {
        if self.lost { Err(Error::CoreLost { core: self.index }) } else { Ok(()) }
    }

    /// Runs on the calling thread.
    pub(crate) fn run(&mut self, submission: Submission) -> Completion {
        let completion = self.device.driver().submit(&submission);
        self.note(completion)
    }

    /// Runs on the core's own thread; [`Core::finish`] waits for it.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn start(&mut self, submission: Submission, entered: Option<Entered>) -> Result<()> {
        let what = "cannot start the thread of an NPU core";
        let programs = submission.programs().len() as u32;
        let started = self.worker.start(submission, entered, &self.device);
        started.map_err(|source| Error::Os { what, source })?;
        self.started = Some(programs);
        Ok(())
    }

    /// Waits for what [`Core::start`] started.
    pub(crate) fn finish(&mut self) -> Completion {
        let completion = self.worker.finish();
        self.started = None;
        self.note(completion)
    }

    fn note(&mut self, completion: Completion) -> Completion {
        self.lost |= completion.foreign_status.is_some();
        completion
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core({})", self.index)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let seen = self.device.resets();
        if let Some(programs) = self.started {
            // Nobody asked how it ended, but what becomes of its memory depends on that.
            let completion = self.finish();
            if let Some(failure) = JobFailure::of(&completion, programs, self.index, 0) {
                self.device.abandon(&failure, seen);
            }
        }
        self.worker.stop();
        self.device.return_core(self.index, self.lost);
    }
}

/// Cores that several users share: each takes what is free, and gives it back.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let cores = device.cores()?;
/// assert_eq!(cores.count(), 3);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone)]
pub struct Cores(Arc<Pool>);

/// The cores of a [`Cores`], and those who wait for one.
pub(crate) struct Pool {
    count: usize,
    device: Device,
    free: Mutex<Free>,
    returned: Condvar,
}

/// Cores by index.
type Hand = [Option<Core>; CORES];

/// Cores that nobody has taken.
#[derive(Default)]
struct Free {
    hand: Hand,
    /// Cores that came back lost, and were dropped.
    lost: usize,
}

impl Cores {
    /// A pool of these cores.
    ///
    /// ```
    /// use rknpu::{Cores, Device};
    ///
    /// // One core stays free for somebody else.
    /// let device = Device::simulated(Default::default())?;
    /// let two = Cores::new(vec![device.core(0)?, device.core(1)?])?;
    /// assert_eq!(two.count(), 2);
    /// assert!(device.core(2).is_ok());
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoCore`] when there are none, or they are of different devices.
    pub fn new(cores: Vec<Core>) -> Result<Cores> {
        let none = Error::NoCore { core: 0, cores: 0 };
        let Some(device) = cores.first().map(|core| core.device.clone()) else { return Err(none) };
        if cores.iter().any(|core| !core.device.is(&device)) {
            return Err(none);
        }
        let (count, mut free) = (cores.len(), Free::default());
        for core in cores {
            let index = core.index as usize;
            if let Some(place) = free.hand.get_mut(index) {
                *place = Some(core);
            }
        }
        let returned = Condvar::new();
        Ok(Cores(Arc::new(Pool { count, device, free: Mutex::new(free), returned })))
    }

    pub(crate) fn from_pool(pool: Arc<Pool>) -> Cores {
        Cores(pool)
    }

    pub(crate) fn downgrade(&self) -> Weak<Pool> {
        Arc::downgrade(&self.0)
    }

    /// How many there are.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// assert_eq!(device.cores()?.count(), 3);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn count(&self) -> usize {
        self.0.count
    }

    /// The device that they belong to.
    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits until one is free and takes up to `want` of the free ones, at least one.
    ///
    /// # Errors
    /// [`Error::CoreLost`] when every core of the pool is.
    pub(crate) fn take(&self, want: usize) -> Result<Taken<'_>> {
        let mut free = self.0.free();
        while free.hand.iter().all(Option::is_none) {
            if free.lost == self.0.count {
                return Err(Error::CoreLost { core: 0 });
            }
            free = self.0.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        let mut cores = Hand::default();
        let taken = free.hand.iter_mut().filter(|core| core.is_some()).take(want.max(1));
        let mut count = 0;
        for (place, core) in cores.iter_mut().zip(taken) {
            *place = core.take();
            count += 1;
        }
        Ok(Taken { pool: &self.0, cores, count })
    }
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cores({})", self.count())
    }
}

impl Pool {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cores taken from a pool; they go back when dropped, after their work has ended.
pub(crate) struct Taken<'a> {
    pool: &'a Pool,
    cores: Hand,
    count: usize,
}

impl Taken<'_> {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The cores' indices, in the order in which they run.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> {
        self.cores.iter().flatten().map(Core::index)
    }

    /// Runs what `submission` gives for the number of each core taken, from 0, and its index: the first
    /// on this thread, the others on theirs. Waits for all, and says what became of each.
    ///
    /// # Errors
    /// Not all could be started; those that were have ended all the same.
    pub(crate) fn run(
        &mut self,
        submission: impl Fn(usize, u32) -> Result<Option<Submission>>,
    ) -> ([Option<Completion>; CORES], Result<()>) {
        let (mut completions, mut started) = ([None; CORES], Ok(()));
        let mut cores = self.cores.iter_mut().flatten();
        let first = cores.next();
        for (i, core) in (1..).zip(cores) {
            started = started.and_then(|()| match submission(i, core.index)? {
                Some(submission) => core.start(submission, None),
                None => Ok(()),
            });
        }
        if let (Some(core), Ok(())) = (first, &started) {
            match submission(0, core.index) {
                Ok(Some(submission)) => completions[0] = Some(core.run(submission)),
                Ok(None) => {}
                Err(error) => started = Err(error),
            }
        }
        let cores = self.cores.iter_mut().flatten().zip(&mut completions);
        for (core, completion) in cores.filter(|(core, _)| core.started.is_some()) {
            *completion = Some(core.finish());
        }
        (completions, started)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.free();
        for mut core in self.cores.iter_mut().filter_map(Option::take) {
            // Nobody may take a core whose job is on the NPU, whatever became of its owner.
            core.worker.settle();
            let (index, lost) = (core.index as usize, core.lost);
            free.lost += usize::from(lost);
            if let Some(place) = free.hand.get_mut(index).filter(|_| !lost) {
                *place = Some(core);
            }
        }
        drop(free);
        self.pool.returned.notify_all();
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_what_is_free_and_takes_it_back() {
        let device = Device::simulated(Default::default()).unwrap();
        let cores = device.cores().unwrap();
        let first = cores.take(2).unwrap();
        assert_eq!(first.count(), 2);
        let second = cores.take(3).unwrap();
        assert_eq!(second.count(), 1);
        assert_eq!(second.cores.iter().flatten().map(Core::index).collect::<Vec<_>>(), [2]);
        drop(first);
        assert_eq!(cores.take(9).unwrap().count(), 2);
        drop(second);
        assert!(matches!(device.core(0), Err(Error::CoreLeased { core: 0 })));
        // The same pool for everybody, as long as somebody has it.
        assert!(Arc::ptr_eq(&device.cores().unwrap().0, &cores.0));
        drop(cores);
        assert!(device.core(0).is_ok());
    }

    #[test]
    fn a_pool_is_of_one_device() {
        let a = Device::simulated(Default::default()).unwrap();
        let b = Device::simulated(Default::default()).unwrap();
        let mixed = vec![a.core(0).unwrap(), b.core(1).unwrap()];
        assert!(Cores::new(mixed).is_err());
        assert!(Cores::new(Vec::new()).is_err());
    }
}
