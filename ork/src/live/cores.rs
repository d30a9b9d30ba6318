//! How much of the time each core computes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time in which each core has computed, jobs under way included.
///
/// ```
/// use ork::live::CoreTimes;
///
/// let times = CoreTimes::default();
/// let job = times.begin();
/// times.end(job, 2); // it ran on cores 0 and 1
/// let busy = times.busy();
/// assert_eq!(busy.len(), 2);
/// assert_eq!(busy[0], busy[1]);
/// ```
#[derive(Debug, Default)]
pub struct CoreTimes {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    busy: Vec<Duration>,
    /// Since when a job runs.
    since: Option<Instant>,
    /// Cores of the last job: those that one under way is taken to be on.
    cores: usize,
}

/// A job under way.
///
/// ```
/// let times = ork::live::CoreTimes::default();
/// let job = times.begin();
/// times.end(job, 3);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a job that has begun must end"]
pub struct Job(Instant);

impl CoreTimes {
    /// A job begins.
    pub fn begin(&self) -> Job {
        let now = Instant::now();
        self.lock().since = Some(now);
        Job(now)
    }

    /// It has ended, and ran on the first `cores` cores.
    pub fn end(&self, job: Job, cores: u32) {
        let took = job.0.elapsed();
        let mut inner = self.lock();
        inner.since = None;
        inner.cores = cores as usize;
        if inner.busy.len() < inner.cores {
            inner.busy.resize(cores as usize, Duration::ZERO);
        }
        inner.busy.iter_mut().take(cores as usize).for_each(|busy| *busy += took);
    }

    /// Time in which each core that ever computed did so.
    ///
    /// ```
    /// let times = ork::live::CoreTimes::default();
    /// assert!(times.busy().is_empty());
    /// times.end(times.begin(), 3);
    /// assert_eq!(times.busy().len(), 3);
    /// ```
    pub fn busy(&self) -> Vec<Duration> {
        let inner = self.lock();
        let under_way = inner.since.map_or(Duration::ZERO, |since| since.elapsed());
        let with = |(core, busy): (usize, &Duration)| {
            if core < inner.cores { *busy + under_way } else { *busy }
        };
        inner.busy.iter().enumerate().map(with).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Sums of durations: whole at every moment.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Differences of busy times as loads.
#[derive(Debug)]
pub(crate) struct Loads {
    at: Instant,
    busy: Vec<Duration>,
}

impl Loads {
    /// Counts from now on.
    pub(crate) fn new() -> Loads {
        Loads { at: Instant::now(), busy: Vec::new() }
    }

    /// Per cent of the time since the last call in which each core computed.
    pub(crate) fn since(&mut self, times: &CoreTimes) -> Vec<f64> {
        let now = Instant::now();
        let busy = times.busy();
        let loads = percent(&self.busy, &busy, now - self.at);
        (self.at, self.busy) = (now, busy);
        loads
    }
}

fn percent(before: &[Duration], now: &[Duration], wall: Duration) -> Vec<f64> {
    let of = |(core, busy): (usize, &Duration)| {
        let did = busy.saturating_sub(before.get(core).copied().unwrap_or_default());
        (did.as_secs_f64() * 100.0 / wall.as_secs_f64().max(1e-9)).min(100.0)
    };
    now.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_differences_over_the_time_between() {
        let ms = Duration::from_millis;
        assert_eq!(percent(&[ms(10)], &[ms(60), ms(25)], ms(100)), [50.0, 25.0]);
        // A job that turned out to be on fewer cores, and a clock that did not move.
        assert_eq!(percent(&[ms(10), ms(30)], &[ms(20), ms(20)], ms(10)), [100.0, 0.0]);
        assert_eq!(percent(&[], &[ms(1)], Duration::ZERO), [100.0]);
    }

    #[test]
    fn a_job_under_way_counts_for_the_cores_of_the_last() {
        let times = CoreTimes::default();
        let job = times.begin();
        assert_eq!(times.busy(), [Duration::ZERO; 0], "nobody knows where the first one runs");
        times.end(job, 3);
        let after = times.busy();
        let _job = times.begin();
        std::thread::sleep(Duration::from_millis(2));
        let under_way = times.busy();
        assert!(
            under_way
                .iter()
                .zip(&after)
                .all(|(now, then)| *now >= *then + Duration::from_millis(2))
        );
    }
}
