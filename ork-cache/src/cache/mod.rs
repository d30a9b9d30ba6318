//! Locks, waiting and device calls around the core.

mod gate;
mod load;
mod pinned;

use std::fmt;
use std::time::{Duration, Instant};

pub(crate) use load::Publish;
pub use pinned::{Pinned, Visit};

use gate::Gate;

use crate::backend::Backend;
use crate::core::{Core, Limits, Outcome, Presence, Purpose, Step, WeightSpec};
use crate::error::{Error, Result};
use crate::ids::{ClassId, DomainId, SlotId, WeightId};
use crate::policy::Policy;
use crate::prefetch::Queue;
use crate::stats::Stats;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, wait};

/// Weights of one or more models in device memory, within a budget.
///
/// A handle: clones share the cache. [`Cache::acquire`] makes a weight ready, loading it when it
/// is not, and pins it until the guard is dropped. Threads that want the same weight share one
/// load. No lock is held while bytes are copied or the device is called.
///
/// A thread that holds pins and acquires more waits for room; the budget must hold everything
/// that all threads pin at once.
///
/// ```
/// use ork_cache::core::{Home, Limits, WeightSpec};
/// use ork_cache::{Cache, DomainId, fake::Fake, policy::Lru};
///
/// let device = Fake::new(8192);
/// let cache = Cache::new(device, Limits::single(8192), Box::new(Lru::new()));
/// let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let first = cache.attach(&[page; 3])?;
///
/// let pinned = cache.acquire(first)?;
/// assert_eq!(pinned.content(), Some(first)); // a `Fake` buffer knows what was copied into it
/// drop(pinned);
/// assert_eq!(cache.stats().counters.demand_loads, 1);
/// # Ok::<(), ork_cache::Error>(())
/// ```
pub struct Cache<B: Backend> {
    shared: Arc<Shared<B>>,
}

/// Buffers go before the backend: a domain closes after its last buffer.
pub(crate) struct Shared<B: Backend> {
    pub(crate) state: Mutex<State<B>>,
    /// Something that a use may wait for has changed.
    changed: Condvar,
    /// Something that a prefetcher may wait for has changed.
    work: Condvar,
    pub(crate) backend: B,
}

pub(crate) struct State<B: Backend> {
    pub(crate) core: Core,
    buffers: Vec<Option<Arc<B::Buffer>>>,
    pub(crate) gate: Gate,
    /// One for each prefetcher.
    pub(crate) queues: Vec<Option<Queue>>,
    /// Threads that wait on `changed` and on `work`: nobody is woken in vain.
    waiting: usize,
    resting: usize,
    times: Times,
}

#[derive(Clone, Copy, Default)]
struct Times {
    bytes_loaded: u64,
    load: Duration,
    stall: Duration,
}

impl<B: Backend> Clone for Cache<B> {
    fn clone(&self) -> Self {
        Cache { shared: self.shared.clone() }
    }
}

impl<B: Backend> fmt::Debug for Cache<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl<B: Backend> Cache<B> {
    /// An empty cache over `backend`, within `limits`.
    ///
    /// ```
    /// use ork_cache::core::Limits;
    /// use ork_cache::{Cache, fake::Fake, policy::Lru};
    ///
    /// let cache = Cache::new(Fake::new(8192), Limits::single(8192), Box::new(Lru::new()));
    /// assert_eq!(cache.stats().bytes_now, 0);
    /// ```
    pub fn new(backend: B, limits: Limits, policy: Box<dyn Policy>) -> Cache<B> {
        let state = State {
            core: Core::new(limits, policy),
            buffers: Vec::new(),
            gate: Gate::default(),
            queues: Vec::new(),
            waiting: 0,
            resting: 0,
            times: Times::default(),
        };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            work: Condvar::new(),
            backend,
        };
        Cache { shared: Arc::new(shared) }
    }

    /// Makes the weights of a model known and returns the id of the first; the others follow in
    /// order. Several models may share a cache, its budget and its domains. Loads nothing.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let draft = cache.attach(&[page; 3])?;
    /// let main = cache.attach(&[page; 5])?; // a second model shares budget and domains
    /// assert_eq!((draft, main), (WeightId(0), WeightId(3)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A weight that could never fit, or whose domain or slot class does not exist.
    pub fn attach(&self, weights: &[WeightSpec]) -> Result<WeightId> {
        lock(&self.shared.state).core.attach(weights)
    }

    /// Creates `count` slots of `bytes` each in `domain`: a ring, or the slots of experts.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let ring = cache.add_class(DomainId(0), 4096, 3)?;
    /// assert_eq!(cache.stats().bytes_now, 3 * 4096); // they exist from now on
    /// cache.attach(&[WeightSpec { home: Home::Class(ring), ..page }; 9])?;
    /// assert!(cache.add_class(DomainId(0), 4096, 2).is_err()); // room for one is left
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Slots that do not fit beside what is there, or that the device refuses; those already
    /// created stay and serve.
    pub fn add_class(&self, domain: DomainId, bytes: u64, count: usize) -> Result<ClassId> {
        let mut state = lock(&self.shared.state);
        let (class, slots) = state.core.add_class(domain, bytes, count)?;
        let mut refused = None;
        for slot in slots {
            if refused.is_some() {
                state.core.slot_failed(slot);
                continue;
            }
            let size = state.core.slot(slot).1;
            let call = self.shared.begin_call(state, domain);
            let created = self.backend().create(domain, size);
            state = call.end();
            match created {
                Ok(buffer) => {
                    state.put(slot, Arc::new(buffer));
                    state.core.slot_created(slot);
                }
                Err(cause) => {
                    state.core.slot_failed(slot);
                    refused = Some(Error::Slot { bytes, domain, cause });
                }
            }
        }
        self.shared.wake(&mut state);
        refused.map_or(Ok(class), Err)
    }

    /// Makes `weight` ready and pins it: the guard gives its buffer, and while it lives the weight
    /// is neither evicted nor overwritten. Loads in the calling thread when nobody else does.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let weight = cache.attach(&[page])?;
    /// let pinned = cache.acquire(weight)?;
    /// assert_eq!(pinned.content(), Some(weight));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An unknown weight, one that nothing can make room for, or the failure of the load.
    pub fn acquire(&self, weight: WeightId) -> Result<Pinned<B>> {
        self.shared.acquire(weight).map(|buffer| Pinned::new(&self.shared, buffer, weight))
    }

    /// Begins a visit to `domain`: until it ends, no memory call and no visit of another domain
    /// takes place. Waits for its turn. A pass through several domains visits them one by one,
    /// and submits jobs only during the visit. Visits of one thread must not be nested.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let weight = cache.attach(&[page])?;
    /// let visit = cache.enter(DomainId(0))?;
    /// assert_eq!(visit.acquire(weight)?.content(), Some(weight)); // jobs of domain 0 go here
    /// drop(visit); // others may enter theirs
    /// assert!(cache.enter(DomainId(7)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An unknown domain.
    pub fn enter(&self, domain: DomainId) -> Result<Visit<B>> {
        let mut state = lock(&self.shared.state);
        let known = state.core.limits().domains.len();
        if domain.index() >= known {
            return Err(Error::UnknownDomain { domain, known });
        }
        let ticket = state.gate.queue();
        while !state.gate.enter(ticket, domain) {
            state = self.shared.wait(state);
        }
        // The next in the queue may be for the same domain.
        self.shared.wake(&mut state);
        Ok(Visit::new(self, domain))
    }

    /// Counters as of now.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let weight = cache.attach(&[page])?;
    /// let before = cache.stats();
    /// drop(cache.acquire(weight)?);
    /// assert_eq!(cache.stats().loads() - before.loads(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> Stats {
        let state = lock(&self.shared.state);
        Stats {
            counters: state.core.counters(),
            bytes_loaded: state.times.bytes_loaded,
            bytes_now: state.core.total(),
            bytes_peak: state.core.peak(),
            load_time: state.times.load,
            stall_time: state.times.stall,
        }
    }

    /// What it may hold.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// assert_eq!(cache.limits(), Limits::single(16384));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(&self) -> Limits {
        lock(&self.shared.state).core.limits().clone()
    }

    /// Bytes of device memory that exist in `domain`; 0 for an unknown one.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let weight = cache.attach(&[page])?;
    /// drop(cache.acquire(weight)?);
    /// assert_eq!(cache.used(DomainId(0)), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn used(&self, domain: DomainId) -> u64 {
        lock(&self.shared.state).core.used(domain)
    }

    /// Runs `ask` with a function that says whether a weight is ready. Nothing changes meanwhile, so
    /// `ask` must be short and must not use the cache.
    pub(crate) fn with_presence<T>(
        &self,
        ask: impl FnOnce(&dyn Fn(WeightId) -> Presence) -> T,
    ) -> T {
        let state = lock(&self.shared.state);
        ask(&|weight| state.core.presence(weight))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<B>> {
        &self.shared
    }

    /// The device and source below.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// assert_eq!(cache.backend().watch().ledger().live, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backend(&self) -> &B {
        &self.shared.backend
    }
}

impl<B: Backend> Shared<B> {
    fn acquire(&self, weight: WeightId) -> Result<Arc<B::Buffer>> {
        let mut state = lock(&self.state);
        state.note_use(weight);
        match state.core.reserve(weight, Purpose::Demand)? {
            Step::Hit(slot) => Ok(state.get(slot)),
            step => {
                let since = Instant::now();
                let (mut state, result) = self.ready(state, weight, step);
                state.times.stall += since.elapsed();
                result
            }
        }
    }

    /// Makes `weight` ready from `step` on, which was no hit.
    fn ready<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
        weight: WeightId,
        mut step: Step,
    ) -> (MutexGuard<'a, State<B>>, Result<Arc<B::Buffer>>) {
        loop {
            match step {
                Step::Hit(slot) => {
                    let buffer = state.get(slot);
                    return (state, Ok(buffer));
                }
                Step::Load(ticket) => return self.load_now(state, ticket),
                Step::Free(slot) => state = self.free(state, slot),
                Step::Full | Step::Ready => state = self.wait(state),
                Step::Wait(load) => loop {
                    state = self.wait(state);
                    match state.core.outcome(weight, load) {
                        Outcome::Pending => {}
                        Outcome::Over => break,
                        Outcome::Failed(cause) => {
                            return (state, Err(Error::Load { weight, cause }));
                        }
                    }
                },
            }
            step = match state.core.reserve(weight, Purpose::Demand) {
                Ok(step) => step,
                Err(error) => return (state, Err(error)),
            };
        }
    }

    /// Gives back a pin and lets those know who waited for it.
    fn unpin(&self, weight: WeightId) {
        let mut state = lock(&self.state);
        if state.core.unpin(weight) {
            self.wake(&mut state);
        }
    }

    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State<B>>) -> MutexGuard<'a, State<B>> {
        state.waiting += 1;
        let mut state = wait(&self.changed, state);
        state.waiting -= 1;
        state
    }

    /// As [`Shared::wait`], for a prefetcher's worker.
    pub(crate) fn rest<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
    ) -> MutexGuard<'a, State<B>> {
        state.resting += 1;
        let mut state = wait(&self.work, state);
        state.resting -= 1;
        state
    }

    /// Wakes those who wait, if anyone does.
    pub(crate) fn wake(&self, state: &mut State<B>) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        if state.resting > 0 {
            self.work.notify_all();
        }
    }
}

impl<B: Backend> State<B> {
    /// Moves the prefetchers along; what the uses passed over may be overwritten.
    fn note_use(&mut self, weight: WeightId) {
        let State { queues, core, .. } = self;
        for queue in queues.iter_mut().flatten() {
            queue.used(weight, |skipped| {
                core.release(skipped);
            });
        }
    }

    fn put(&mut self, slot: SlotId, buffer: Arc<B::Buffer>) {
        if self.buffers.len() <= slot.index() {
            self.buffers.resize_with(slot.index() + 1, || None);
        }
        self.buffers[slot.index()] = Some(buffer);
    }

    fn take(&mut self, slot: SlotId) -> Option<Arc<B::Buffer>> {
        self.buffers.get_mut(slot.index()).and_then(Option::take)
    }

    fn get(&self, slot: SlotId) -> Arc<B::Buffer> {
        // A load puts the buffer back before it tells the core that the weight is ready, and takes it
        // only with a ticket, for which the core has made the weight absent: both under the lock.
        self.buffers[slot.index()].clone().expect("a ready weight's slot has its buffer")
    }
}

impl<B: Backend> Drop for Shared<B> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for buffer in state.buffers.drain(..).flatten() {
            // The last handle is gone, so no pin is left and the buffer has no other owner. What
            // a device says to a failed free it keeps itself (see `Device::health`).
            if let Ok(buffer) = Arc::try_unwrap(buffer) {
                let _ = self.backend.free(buffer);
            }
        }
    }
}
