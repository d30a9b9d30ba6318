//! Passes in virtual time: the cache's own decisions on a modelled board, without bytes, threads or
//! waiting.
//!
//! [`Clock`] plays one thread that uses weights and one that loads ahead. Both act on the same
//! [`Residency`] and the same queue as the real cache and prefetcher, so what is measured is the code
//! that ships; only durations come from a [`Timing`]. A 235B mixture takes seconds.

mod pass;
mod timing;

use std::time::Duration;

pub(crate) use pass::{PassReport, Passes};
pub(crate) use timing::Timing;

use ork_cache::WeightId;
use ork_cache::internals::{
    Outcome, Presence, Purpose, Queue, Residency, Stage, Step, Ticket, known, replace,
};

use crate::Result;

/// A residency, a prefetcher and two clocks.
#[derive(Debug)]
pub(crate) struct Clock {
    residency: Residency,
    queue: Queue,
    /// Nanoseconds at which a load of this many bytes ends after it begins.
    timing: Timing,
    prefetching: bool,
    now: u64,
    worker: u64,
    flight: Option<(Ticket, u64)>,
    stall: u64,
    compute: u64,
    bytes_loaded: u64,
}

impl Clock {
    /// Time zero. Without `prefetching` every load is on demand. Slots of classes in `residency` must
    /// have been reported as created.
    pub(crate) fn new(residency: Residency, timing: Timing, prefetching: bool) -> Clock {
        Clock {
            residency,
            queue: Queue::default(),
            timing,
            prefetching,
            now: 0,
            worker: 0,
            flight: None,
            stall: 0,
            compute: 0,
            bytes_loaded: 0,
        }
    }

    /// As [`ork_cache::Prefetcher::follow`].
    pub(crate) fn follow(&mut self, order: &[WeightId]) {
        self.queue.follow(&known(&self.residency, order));
        self.kick();
    }

    /// As what a prefetcher does when its router has decided.
    pub(crate) fn replace(&mut self, weights: &[WeightId]) {
        replace(&mut self.queue, &mut self.residency, weights);
        self.kick();
    }

    /// Whether a weight can be used at this moment.
    pub(crate) fn presence(&self, weight: WeightId) -> Presence {
        self.residency.presence(weight)
    }

    /// As what a prefetcher does when its router has decided.
    pub(crate) fn speculate(&mut self, weights: &[WeightId]) {
        self.queue.push(&known(&self.residency, weights), Purpose::Speculate);
        self.kick();
    }

    /// Uses a weight: waits until it is ready, then computes for `compute_ns`.
    ///
    /// # Errors
    /// Those of [`Residency::reserve`].
    pub(crate) fn use_weight(&mut self, weight: WeightId, compute_ns: u64) -> Result<()> {
        self.run_worker();
        let Clock { queue, residency, .. } = self;
        queue.used(weight, |skipped| {
            residency.release(skipped);
        });
        let began = self.now;
        loop {
            match self.residency.reserve(weight, Purpose::Demand)? {
                Step::Hit(_) => break,
                Step::Load(ticket) => {
                    let ns = self.load_ns(&ticket);
                    // One channel: what is under way gets that much later.
                    if let Some((.., end)) = &mut self.flight {
                        *end = end.saturating_add(ns);
                    }
                    self.now = self.now.saturating_add(ns);
                    self.residency.complete(ticket, true, true);
                    break;
                }
                Step::Wait(load) => {
                    self.land()?;
                    if let Outcome::Failed(cause) = self.residency.outcome(weight, load) {
                        return Err(ork_cache::Error::Load { weight, cause }.into());
                    }
                }
                Step::Free(slot) => {
                    self.now = self.now.saturating_add(self.timing.free_ns);
                    self.residency.freed(slot);
                }
                Step::Full | Step::Ready => self.land()?,
            }
        }
        self.stall = self.stall.saturating_add(self.now - began);
        self.now = self.now.saturating_add(compute_ns);
        self.compute = self.compute.saturating_add(compute_ns);
        self.run_worker();
        self.residency.unpin(weight);
        self.kick();
        Ok(())
    }

    /// What happened so far.
    pub(crate) fn report(&self) -> PassReport {
        let stats = self.residency.stats();
        PassReport {
            wall: Duration::from_nanos(self.now),
            compute: Duration::from_nanos(self.compute),
            stall: Duration::from_nanos(self.stall),
            loads: stats.loads(),
            demand_loads: stats.demand_loads,
            hits: stats.hits,
            wasted: stats.wasted,
            bytes_loaded: self.bytes_loaded,
            bytes_peak: stats.bytes_peak,
        }
    }

    /// Waits for the load under way to end.
    fn land(&mut self) -> Result<()> {
        let Some((.., end)) = self.flight else {
            // Nobody else could ever change anything.
            return Err(
                "nothing under way can make room: fewer slots than are pinned at once".into()
            );
        };
        self.now = self.now.max(end);
        self.run_worker();
        Ok(())
    }

    fn load_ns(&mut self, ticket: &Ticket) -> u64 {
        if ticket.stage() == Stage::Sync {
            return 0;
        }
        let bytes = self.residency.bytes_of(ticket.weight());
        self.bytes_loaded = self.bytes_loaded.saturating_add(bytes);
        self.timing.load_ns(bytes)
    }

    /// The worker could have something to do from now on.
    fn kick(&mut self) {
        if self.flight.is_none() {
            self.worker = self.worker.max(self.now);
        }
        self.run_worker();
    }

    /// Plays the worker up to `now`.
    fn run_worker(&mut self) {
        loop {
            if let Some((ticket, end)) = self.flight.take() {
                if end > self.now {
                    self.flight = Some((ticket, end));
                    return;
                }
                self.worker = end;
                self.residency.complete(ticket, true, false);
            }
            if !self.prefetching {
                return;
            }
            let Clock { queue, residency, .. } = self;
            let Some((weight, purpose)) = queue.next(|w| residency.is_present(w)) else { return };
            match residency.reserve(weight, purpose) {
                Ok(Step::Load(ticket)) => {
                    queue.pop(weight);
                    let end = self.worker.saturating_add(self.load_ns(&ticket));
                    self.flight = Some((ticket, end));
                }
                Ok(Step::Free(slot)) => {
                    residency.freed(slot);
                    self.worker = self.worker.saturating_add(self.timing.free_ns);
                }
                Ok(Step::Full) if purpose != Purpose::Speculate => return,
                _ => queue.pop(weight),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ork_cache::DomainId;
    use ork_cache::internals::{Home, Limits, Lru, WeightSpec};

    use super::*;

    /// Eight weights that go through a ring of four slots; a load takes a microsecond.
    fn clock(prefetching: bool) -> Clock {
        let mut residency = Residency::new(Limits::single(16384), Box::new(Lru::new()));
        let (ring, slots) = residency.add_class(DomainId(0), 4096, 4).unwrap();
        slots.into_iter().for_each(|slot| residency.slot_created(slot));
        let spec = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(ring) };
        residency.attach(&[spec; 8]).unwrap();
        let timing = Timing { load_ns: 1000, load_bytes_per_second: 0, ..Timing::default() };
        Clock::new(residency, timing, prefetching)
    }

    #[test]
    fn loads_hide_behind_longer_uses_but_for_the_first() {
        let mut clock = clock(true);
        clock.follow(&(0..8).map(WeightId).collect::<Vec<_>>());
        (0..8).for_each(|w| clock.use_weight(WeightId(w), 5000).unwrap());
        let report = clock.report();
        assert_eq!((report.stall.as_nanos(), report.compute.as_nanos()), (1000, 40_000));
        assert_eq!(report.bytes_peak, 4 * 4096);
    }

    #[test]
    fn without_a_prefetcher_each_first_use_waits_for_its_load() {
        let mut clock = clock(false);
        clock.use_weight(WeightId(0), 5000).unwrap(); // loads
        clock.use_weight(WeightId(0), 5000).unwrap(); // hits
        assert_eq!(clock.report().wall.as_nanos(), 11_000);
    }

    #[test]
    fn what_replaced_a_queue_is_loaded_while_something_else_computes() {
        let mut clock = clock(true);
        clock.replace(&[WeightId(5)]);
        clock.use_weight(WeightId(0), 5000).unwrap();
        assert_eq!(clock.presence(WeightId(5)), Presence::Fresh);
    }
}
