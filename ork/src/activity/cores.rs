//! How much of the time each core computes, as the program that uses it sees it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time in which each core has computed.
///
/// ```
/// use std::time::Duration;
///
/// let times = ork::activity::CoreTimes::default();
/// times.add(2, Duration::from_millis(3)); // a matmul on cores 0 and 1
/// assert_eq!(times.busy(), [Duration::from_millis(3); 2]);
/// ```
#[derive(Debug, Default)]
pub struct CoreTimes {
    busy: Mutex<Vec<Duration>>,
}

impl CoreTimes {
    /// The first `cores` cores have computed for `took`.
    pub fn add(&self, cores: usize, took: Duration) {
        // Sums of durations: whole at every moment.
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.len() < cores {
            busy.resize(cores, Duration::ZERO);
        }
        busy.iter_mut().take(cores).for_each(|busy| *busy += took);
    }

    /// Time in which each core that ever computed did so.
    pub fn busy(&self) -> Vec<Duration> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Differences of busy times, in per cent of the time between.
#[derive(Debug)]
pub(crate) struct CoreLoads {
    at: Instant,
    busy: Vec<Duration>,
}

impl CoreLoads {
    /// Counts from now on.
    pub(crate) fn new() -> CoreLoads {
        CoreLoads { at: Instant::now(), busy: Vec::new() }
    }

    /// Per cent of the time since the last call in which each core computed. A matmul counts when it
    /// has ended.
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
        // A matmul that began before the last call, and a clock that did not move.
        assert_eq!(percent(&[ms(10), ms(30)], &[ms(200), ms(30)], ms(10)), [100.0, 0.0]);
        assert_eq!(percent(&[], &[ms(1)], Duration::ZERO), [100.0]);
    }

    #[test]
    fn a_core_that_has_not_computed_yet_is_none() {
        let times = CoreTimes::default();
        assert_eq!(times.busy(), [Duration::ZERO; 0]);
        times.add(3, Duration::from_millis(1));
        times.add(1, Duration::from_millis(1));
        assert_eq!(times.busy(), [2, 1, 1].map(Duration::from_millis));
    }
}
