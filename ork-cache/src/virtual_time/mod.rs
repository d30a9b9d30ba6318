//! Passes in virtual time: the cache's own decisions on a modelled board, without bytes, threads or
//! waiting.
//!
//! [`Clock`] plays one thread that uses weights and one that loads ahead. Both act on the same
//! [`Core`] and the same queue as the real cache and prefetcher, so what is measured is the code
//! that ships; only durations come from a [`Timing`]. A 235B mixture takes seconds.

mod pass;
mod timing;

use std::time::Duration;

pub use pass::{PassReport, Passes};
pub use timing::Timing;

use crate::core::{Core, Outcome, Presence, Purpose, Stage, Step, Ticket};
use crate::error::{Error, Result};
use crate::ids::WeightId;
use crate::prefetch::{Queue, known};
use crate::trace::{Recorder, Track};

/// A core, a prefetcher and two clocks.
///
/// ```
/// # use ork_cache::core::{Core, Home, Limits, WeightSpec};
/// # use ork_cache::policy::Lru;
/// # use ork_cache::virtual_time::{Clock, Timing};
/// # use ork_cache::{DomainId, WeightId};
/// # let mut core = Core::new(Limits::single(16384), Box::new(Lru::new()));
/// # let (ring, slots) = core.add_class(DomainId(0), 4096, 4)?;
/// # slots.into_iter().for_each(|slot| core.slot_created(slot));
/// # core.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(ring) }; 8])?;
/// # let timing = Timing { load_ns: 1000, load_bytes_per_second: 0, ..Timing::default() };
/// let mut clock = Clock::new(core, timing, true);
/// clock.follow(&(0..8).map(WeightId).collect::<Vec<_>>());
/// (0..8).try_for_each(|w| clock.use_weight(WeightId(w), 5000))?;
/// // Loads of 1 µs hide behind uses of 5 µs, but for the first.
/// assert_eq!(clock.report().stall.as_nanos(), 1000);
/// # Ok::<(), ork_cache::Error>(())
/// ```
#[derive(Debug)]
pub struct Clock<'a> {
    core: Core,
    queue: Queue,
    /// Nanoseconds at which a load of this many bytes ends after it begins.
    timing: Timing,
    prefetching: bool,
    now: u64,
    worker: u64,
    flight: Option<(Ticket, u64, u64)>,
    stall: u64,
    compute: u64,
    bytes_loaded: u64,
    recorder: Option<(&'a Recorder, [Track; 3])>,
}

impl<'a> Clock<'a> {
    /// Time zero. Without `prefetching` every load is on demand. Slots of classes in `core` must
    /// have been reported as created.
    pub fn new(core: Core, timing: Timing, prefetching: bool) -> Clock<'a> {
        Clock {
            core,
            queue: Queue::default(),
            timing,
            prefetching,
            now: 0,
            worker: 0,
            flight: None,
            stall: 0,
            compute: 0,
            bytes_loaded: 0,
            recorder: None,
        }
    }

    /// Records tracks for cores, prefetcher and stalls, and a counter of bytes.
    ///
    /// ```
    /// # use ork_cache::core::{Core, Home, Limits, WeightSpec};
    /// # use ork_cache::policy::Lru;
    /// # use ork_cache::virtual_time::{Clock, Timing};
    /// # use ork_cache::{DomainId, WeightId};
    /// # let mut core = Core::new(Limits::single(16384), Box::new(Lru::new()));
    /// # let (ring, slots) = core.add_class(DomainId(0), 4096, 4)?;
    /// # slots.into_iter().for_each(|slot| core.slot_created(slot));
    /// # core.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(ring) }; 8])?;
    /// # let timing = Timing { load_ns: 1000, load_bytes_per_second: 0, ..Timing::default() };
    /// let recorder = ork_cache::trace::Recorder::new();
    /// let mut clock = Clock::new(core, timing, false);
    /// clock.record(&recorder);
    /// clock.use_weight(WeightId(0), 5000)?;
    /// assert_eq!(recorder.spans().0, ["cores", "prefetch", "stall"]);
    /// # Ok::<(), ork_cache::Error>(())
    /// ```
    pub fn record(&mut self, recorder: &'a Recorder) {
        let tracks = ["cores", "prefetch", "stall"].map(|name| recorder.track(name));
        self.recorder = Some((recorder, tracks));
    }

    /// As [`Prefetcher::follow`](crate::prefetch::Prefetcher::follow).
    pub fn follow(&mut self, order: &[WeightId]) {
        self.queue.follow(&known(&self.core, order));
        self.kick();
    }

    /// As [`Prefetcher::replace`](crate::prefetch::Prefetcher::replace).
    ///
    /// ```
    /// # use ork_cache::core::{Core, Home, Limits, WeightSpec};
    /// # use ork_cache::policy::Lru;
    /// # use ork_cache::virtual_time::{Clock, Timing};
    /// # use ork_cache::{DomainId, WeightId};
    /// # let mut core = Core::new(Limits::single(16384), Box::new(Lru::new()));
    /// # let (ring, slots) = core.add_class(DomainId(0), 4096, 4)?;
    /// # slots.into_iter().for_each(|slot| core.slot_created(slot));
    /// # core.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(ring) }; 8])?;
    /// # let timing = Timing { load_ns: 1000, load_bytes_per_second: 0, ..Timing::default() };
    /// let mut clock = Clock::new(core, timing, true);
    /// clock.replace(&[WeightId(5)]);
    /// clock.rest(1000);
    /// assert_eq!(clock.presence(WeightId(5)), ork_cache::core::Presence::Fresh);
    /// # Ok::<(), ork_cache::Error>(())
    /// ```
    pub fn replace(&mut self, weights: &[WeightId]) {
        crate::prefetch::replace(&mut self.queue, &mut self.core, weights);
        self.kick();
    }

    /// Whether a weight can be used at this moment.
    pub fn presence(&self, weight: WeightId) -> Presence {
        self.core.presence(weight)
    }

    /// As [`Prefetcher::speculate`](crate::prefetch::Prefetcher::speculate).
    pub fn speculate(&mut self, weights: &[WeightId]) {
        self.queue.push(&known(&self.core, weights), Purpose::Speculate);
        self.kick();
    }

    /// Lets `ns` pass in which only the prefetcher works.
    ///
    /// ```
    /// # use ork_cache::core::{Core, Home, Limits, WeightSpec};
    /// # use ork_cache::policy::Lru;
    /// # use ork_cache::virtual_time::{Clock, Timing};
    /// # use ork_cache::{DomainId, WeightId};
    /// # let mut core = Core::new(Limits::single(16384), Box::new(Lru::new()));
    /// # let (ring, slots) = core.add_class(DomainId(0), 4096, 4)?;
    /// # slots.into_iter().for_each(|slot| core.slot_created(slot));
    /// # core.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(ring) }; 8])?;
    /// # let timing = Timing { load_ns: 1000, load_bytes_per_second: 0, ..Timing::default() };
    /// let mut clock = Clock::new(core, timing, true);
    /// clock.follow(&[WeightId(0), WeightId(1)]);
    /// clock.rest(10_000);
    /// assert!([0, 1].iter().all(|&w| clock.presence(WeightId(w)).is_ready()));
    /// # Ok::<(), ork_cache::Error>(())
    /// ```
    pub fn rest(&mut self, ns: u64) {
        self.now = self.now.saturating_add(ns);
        self.run_worker();
    }

    /// Uses a weight: waits until it is ready, then computes for `compute_ns`.
    ///
    /// ```
    /// # use ork_cache::core::{Core, Home, Limits, WeightSpec};
    /// # use ork_cache::policy::Lru;
    /// # use ork_cache::virtual_time::{Clock, Timing};
    /// # use ork_cache::{DomainId, WeightId};
    /// # let mut core = Core::new(Limits::single(16384), Box::new(Lru::new()));
    /// # let (ring, slots) = core.add_class(DomainId(0), 4096, 4)?;
    /// # slots.into_iter().for_each(|slot| core.slot_created(slot));
    /// # core.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(ring) }; 8])?;
    /// # let timing = Timing { load_ns: 1000, load_bytes_per_second: 0, ..Timing::default() };
    /// let mut clock = Clock::new(core, timing, false);
    /// clock.use_weight(WeightId(0), 5000)?; // loads
    /// clock.use_weight(WeightId(0), 5000)?; // hits
    /// assert_eq!(clock.report().wall.as_nanos(), 11_000);
    /// # Ok::<(), ork_cache::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Core::reserve`].
    pub fn use_weight(&mut self, weight: WeightId, compute_ns: u64) -> Result<()> {
        self.run_worker();
        let Clock { queue, core, .. } = self;
        queue.used(weight, |skipped| {
            core.release(skipped);
        });
        let began = self.now;
        loop {
            match self.core.reserve(weight, Purpose::Demand)? {
                Step::Hit(_) => break,
                Step::Load(ticket) => {
                    let ns = self.load_ns(&ticket);
                    // One channel: what is under way gets that much later.
                    if let Some((.., end)) = &mut self.flight {
                        *end = end.saturating_add(ns);
                    }
                    self.now = self.now.saturating_add(ns);
                    self.core.complete(ticket, true, true);
                    break;
                }
                Step::Wait(load) => {
                    self.land()?;
                    if let Outcome::Failed(cause) = self.core.outcome(weight, load) {
                        return Err(Error::Load { weight, cause });
                    }
                }
                Step::Free(slot) => {
                    self.now = self.now.saturating_add(self.timing.free_ns);
                    self.core.freed(slot);
                }
                Step::Full | Step::Ready => self.land()?,
            }
        }
        self.stall = self.stall.saturating_add(self.now - began);
        if self.now > began {
            self.span(2, weight, began, self.now);
        }
        let began = self.now;
        self.now = self.now.saturating_add(compute_ns);
        self.compute = self.compute.saturating_add(compute_ns);
        self.span(0, weight, began, self.now);
        self.run_worker();
        self.core.unpin(weight);
        self.kick();
        Ok(())
    }

    /// What happened so far.
    ///
    /// ```
    /// # use ork_cache::core::{Core, Home, Limits, WeightSpec};
    /// # use ork_cache::policy::Lru;
    /// # use ork_cache::virtual_time::{Clock, Timing};
    /// # use ork_cache::{DomainId, WeightId};
    /// # let mut core = Core::new(Limits::single(16384), Box::new(Lru::new()));
    /// # let (ring, slots) = core.add_class(DomainId(0), 4096, 4)?;
    /// # slots.into_iter().for_each(|slot| core.slot_created(slot));
    /// # core.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(ring) }; 8])?;
    /// # let timing = Timing { load_ns: 1000, load_bytes_per_second: 0, ..Timing::default() };
    /// let report = Clock::new(core, timing, true).report();
    /// assert_eq!((report.loads, report.bytes_peak), (0, 4 * 4096)); // the slots exist
    /// # Ok::<(), ork_cache::Error>(())
    /// ```
    pub fn report(&self) -> PassReport {
        let counters = self.core.counters();
        PassReport {
            wall: Duration::from_nanos(self.now),
            compute: Duration::from_nanos(self.compute),
            stall: Duration::from_nanos(self.stall),
            loads: counters.loads(),
            demand_loads: counters.demand_loads,
            hits: counters.hits,
            wasted: counters.wasted,
            bytes_loaded: self.bytes_loaded,
            bytes_peak: self.core.peak(),
        }
    }

    /// Waits for the load under way to end.
    fn land(&mut self) -> Result<()> {
        let Some((.., end)) = self.flight else {
            // Nobody else could ever change anything.
            return Err(Error::Stuck);
        };
        self.now = self.now.max(end);
        self.run_worker();
        Ok(())
    }

    fn load_ns(&mut self, ticket: &Ticket) -> u64 {
        if ticket.stage() == Stage::Publish {
            return 0;
        }
        let bytes = self.core.bytes_of(ticket.weight());
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
            if let Some((ticket, began, end)) = self.flight.take() {
                if end > self.now {
                    self.flight = Some((ticket, began, end));
                    return;
                }
                self.worker = end;
                self.span(1, ticket.weight(), began, end);
                self.core.complete(ticket, true, false);
            }
            if !self.prefetching {
                return;
            }
            let Clock { queue, core, .. } = self;
            let Some((weight, purpose)) = queue.next(|w| core.is_present(w)) else { return };
            match core.reserve(weight, purpose) {
                Ok(Step::Load(ticket)) => {
                    queue.pop(weight);
                    let began = self.worker;
                    let end = began.saturating_add(self.load_ns(&ticket));
                    self.flight = Some((ticket, began, end));
                }
                Ok(Step::Free(slot)) => {
                    core.freed(slot);
                    self.worker = self.worker.saturating_add(self.timing.free_ns);
                }
                Ok(Step::Full) if purpose != Purpose::Speculate => return,
                _ => queue.pop(weight),
            }
        }
    }

    fn span(&self, track: usize, weight: WeightId, began: u64, ended: u64) {
        let Some((recorder, tracks)) = &self.recorder else { return };
        let (at, length) = (Duration::from_nanos(began), Duration::from_nanos(ended - began));
        recorder.span(tracks[track], weight.to_string(), at, length);
        recorder.counter("device bytes", Duration::from_nanos(ended), self.core.total());
    }
}
