//! Locks, waiting and device calls around the residency state.

mod guards;
mod load;
#[cfg(all(test, loom))]
mod loom;
mod slot_memory;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::time::Instant;

use rknpu::domain_turns::DomainTurns;

pub use guards::{Pinned, Visit};

use slot_memory::SlotMemory;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ids::{ClassId, DomainId, SlotId, WeightId};
use crate::npu::Npu;
use crate::policy::Policy;
use crate::prefetch::Queue;
use crate::residency::{Limits, Outcome, Presence, Purpose, Residency, Step, WeightSpec};
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
/// Made by [`open`](crate::open()). The [crate's front page](crate) shows a pass over a model.
pub struct Cache<B: Backend = Npu> {
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
    pub(crate) residency: Residency,
    /// By slot.
    memory: Vec<Option<SlotMemory<B>>>,
    /// One domain at a time, where that is the driver's rule.
    pub(crate) turns: DomainTurns,
    /// One for each prefetcher.
    pub(crate) queues: Vec<Option<Queue>>,
    /// Threads that wait on `changed` and on `work`: nobody is woken in vain.
    waiting: usize,
    resting: usize,
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
    pub(crate) fn new(backend: B, limits: Limits, policy: Box<dyn Policy>) -> Cache<B> {
        let state = State {
            residency: Residency::new(limits, policy),
            memory: Vec::new(),
            turns: DomainTurns::new(backend.is_exclusive()),
            queues: Vec::new(),
            waiting: 0,
            resting: 0,
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
    /// # Errors
    /// A weight that could never fit, or whose domain or slot class does not exist.
    pub(crate) fn attach(&self, weights: &[WeightSpec]) -> Result<WeightId> {
        lock(&self.shared.state).residency.attach(weights)
    }

    /// Creates `count` slots of `bytes` each in `domain`: a ring, or the slots of experts.
    ///
    /// # Errors
    /// Slots that do not fit beside what is there, or that the device refuses; those already
    /// created stay and serve.
    pub(crate) fn add_class(&self, domain: DomainId, bytes: u64, count: usize) -> Result<ClassId> {
        let mut state = lock(&self.shared.state);
        let (class, slots) = state.residency.add_class(domain, bytes, count)?;
        let size = slots.first().map_or(0, |&slot| state.residency.slot(slot).1);
        let call = self.shared.begin_call(state, domain);
        let (created, refused) = self.backend().create_slots(domain, size, count);
        state = call.end();
        let mut created = created.into_iter();
        for slot in slots {
            match created.next() {
                Some(memory) => {
                    state.put(slot, SlotMemory::Host(memory));
                    state.residency.slot_created(slot);
                }
                None => state.residency.slot_failed(slot),
            }
        }
        let refused = refused.map(|cause| Error::Slot { bytes, domain, cause });
        self.shared.wake(&mut state);
        refused.map_or(Ok(class), Err)
    }

    /// Makes `weight` ready and pins it: the guard gives its buffer, and while it lives the weight
    /// is neither evicted nor overwritten. Loads in the calling thread when nobody else does.
    ///
    /// # Errors
    /// An unknown weight, one that nothing can make room for, or the failure of the load.
    pub fn acquire(&self, weight: WeightId) -> Result<Pinned<B>> {
        let state = lock(&self.shared.state);
        self.shared.acquire(state, weight).map(|buffer| Pinned::new(&self.shared, buffer, weight))
    }

    /// As [`Cache::acquire`], where that would not wait for a load or for room: asked and taken at once, so
    /// that nobody evicts it in between.
    fn acquire_ready(&self, weight: WeightId) -> Result<Option<Pinned<B>>> {
        let state = lock(&self.shared.state);
        if !state.residency.presence(weight).is_ready() {
            return Ok(None);
        }
        let buffer = self.shared.acquire(state, weight)?;
        Ok(Some(Pinned::new(&self.shared, buffer, weight)))
    }

    /// Whether a use of `weight` would find it loaded now. Somebody may evict it before it is used.
    pub fn is_ready(&self, weight: WeightId) -> bool {
        lock(&self.shared.state).residency.presence(weight).is_ready()
    }

    /// Begins a visit to `domain`: until it ends, no memory call and no visit of another domain
    /// takes place. Waits for its turn. A pass through several domains visits them one by one,
    /// and submits jobs only during the visit. Visits of one thread must not be nested. Where domains do not
    /// exclude each other nobody waits, and a visit gives the weights of all.
    ///
    /// # Errors
    /// An unknown domain.
    pub fn enter(&self, domain: DomainId) -> Result<Visit<B>> {
        let mut state = lock(&self.shared.state);
        let known = state.residency.limits().domains.len();
        if domain.index() >= known {
            return Err(Error::UnknownDomain { domain, known });
        }
        let ticket = state.turns.queue();
        while !state.turns.visit(&ticket, domain.0.into()) {
            state = self.shared.wait(state);
        }
        // The next in the queue may be for the same domain.
        self.shared.wake(&mut state);
        Ok(Visit::new(self, domain))
    }

    /// Counters as of now.
    pub fn stats(&self) -> Stats {
        lock(&self.shared.state).residency.stats()
    }

    /// What it may hold.
    pub fn limits(&self) -> Limits {
        lock(&self.shared.state).residency.limits().clone()
    }

    /// Runs `ask` with a function that says whether a weight is ready. Nothing changes meanwhile, so
    /// `ask` must be short and must not use the cache.
    pub(crate) fn with_presence<T>(
        &self,
        ask: impl FnOnce(&dyn Fn(WeightId) -> Presence) -> T,
    ) -> T {
        let state = lock(&self.shared.state);
        ask(&|weight| state.residency.presence(weight))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<B>> {
        &self.shared
    }

    /// The device and source below.
    pub(crate) fn backend(&self) -> &B {
        &self.shared.backend
    }
}

impl<B: Backend> Shared<B> {
    fn acquire<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
        weight: WeightId,
    ) -> Result<Arc<B::Device>> {
        state.note_use(weight);
        match state.residency.reserve(weight, Purpose::Demand)? {
            Step::Hit(slot) => state.hit(weight, slot),
            step => {
                let since = Instant::now();
                let (mut state, result) = self.ready(state, weight, step);
                state.residency.stats_mut().stall_time += since.elapsed();
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
    ) -> (MutexGuard<'a, State<B>>, Result<Arc<B::Device>>) {
        loop {
            match step {
                Step::Hit(slot) => {
                    let hit = state.hit(weight, slot);
                    return (state, hit);
                }
                Step::Load(ticket) => return self.load_now(state, ticket),
                Step::Free(slot) => state = self.free(state, slot),
                Step::Full | Step::Ready => state = self.wait(state),
                Step::Wait(load) => loop {
                    state = self.wait(state);
                    match state.residency.outcome(weight, load) {
                        Outcome::Pending => {}
                        Outcome::Over => break,
                        Outcome::Failed(cause) => {
                            return (state, Err(Error::Load { weight, cause }));
                        }
                    }
                },
            }
            step = match state.residency.reserve(weight, Purpose::Demand) {
                Ok(step) => step,
                Err(error) => return (state, Err(error)),
            };
        }
    }

    /// Gives back a pin and lets those know who waited for it.
    fn unpin(&self, weight: WeightId) {
        let mut state = lock(&self.state);
        if state.residency.unpin(weight) {
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
        let State { queues, residency, .. } = self;
        for queue in queues.iter_mut().flatten() {
            queue.used(weight, |skipped| {
                residency.release(skipped);
            });
        }
    }

    fn put(&mut self, slot: SlotId, memory: SlotMemory<B>) {
        if self.memory.len() <= slot.index() {
            self.memory.resize_with(slot.index() + 1, || None);
        }
        self.memory[slot.index()] = Some(memory);
    }

    fn take(&mut self, slot: SlotId) -> Option<SlotMemory<B>> {
        self.memory.get_mut(slot.index()).and_then(Option::take)
    }

    /// The memory of a slot that the NPU may read.
    fn share(&self, slot: SlotId) -> Option<Arc<B::Device>> {
        match self.memory.get(slot.index()) {
            Some(Some(SlotMemory::Device(device))) => Some(device.clone()),
            _ => None,
        }
    }

    /// The memory of a weight that is ready. A load puts it back before it says so, and takes it only with a
    /// ticket, for which the weight has been made absent: both under the lock.
    fn hit(&self, weight: WeightId, slot: SlotId) -> Result<Arc<B::Device>> {
        self.share(slot).ok_or_else(|| Error::Load { weight, cause: load::in_use() })
    }
}

impl<B: Backend> Drop for Shared<B> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for memory in state.memory.drain(..).flatten() {
            // The last handle is gone, so no pin is left and the memory has no other owner. What
            // a device says to a failed free it keeps itself (see `Device::health`).
            if let Ok(memory) = memory.reclaim(&self.backend) {
                let _ = self.backend.free(memory);
            }
        }
    }
}
