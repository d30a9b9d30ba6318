//! Loads ahead of use: a worker thread that fills free slots while the cores compute.
//!
//! The worker copies the next weights of an order (dense models) or of a queue (experts) into
//! slots that nobody needs any more. It never takes a slot whose weight is pinned or was loaded
//! ahead and not yet used. A use that finds its weight still queued loads it itself at once; one
//! that finds it under way waits for that load alone. When another domain is at work, bytes are
//! copied but handed to the NPU only by the use, in the weight's own domain.
//!
//! The worker sleeps on a condition variable whenever there is nothing to do or no room; it
//! allocates nothing per weight and holds no lock while it copies.

mod queue;

use std::borrow::Cow;
use std::fmt;

pub use queue::Queue;

use crate::backend::Backend;
use crate::cache::{Cache, Shared, State};
use crate::ids::WeightId;
use crate::npu::Npu;
use crate::residency::{Purpose, Residency, Step};
use crate::sync::{Arc, JoinHandle, MutexGuard, lock, spawn};

/// A worker that loads weights of a cache ahead of their use; ids of weights that are not attached
/// are passed over. Dropping it lets the load under way
/// finish, drops what is queued and joins the thread.
pub struct Prefetcher<B: Backend = Npu> {
    shared: Arc<Shared<B>>,
    queue: usize,
    worker: Option<JoinHandle<()>>,
}

impl<B: Backend> Prefetcher<B> {
    /// Starts a worker with nothing to do.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub fn new(cache: &Cache<B>) -> std::io::Result<Prefetcher<B>> {
        let shared = cache.shared().clone();
        let queue = {
            let mut state = lock(&shared.state);
            let free = state.queues.iter().position(Option::is_none);
            let at = free.unwrap_or(state.queues.len());
            if free.is_none() {
                state.queues.push(None);
            }
            state.queues[at] = Some(Queue::default());
            at
        };
        let theirs = shared.clone();
        match spawn("ork-prefetch", move || work(&theirs, queue)) {
            Ok(worker) => Ok(Prefetcher { shared, queue, worker: Some(worker) }),
            Err(error) => {
                lock(&shared.state).queues[queue] = None;
                Err(error)
            }
        }
    }

    /// Loads along `order` again and again, each time as far ahead of the uses as there are slots
    /// that may be taken. A weight counts once; uses out of order move the worker along. Replaces
    /// what was followed before.
    pub fn follow(&self, order: &[WeightId]) {
        self.with(|queue, residency| queue.follow(&known(residency, order)));
    }

    /// Adds weights to the end of the queue. Those that are ready or under way cost nothing.
    pub fn queue(&self, weights: &[WeightId]) {
        self.with(|queue, residency| queue.push(&known(residency, weights), Purpose::Prefetch));
    }

    /// Adds guesses: they are taken when nothing else is queued, and only while a slot is left
    /// for a use that needs one at once.
    pub(crate) fn speculate(&self, weights: &[WeightId]) {
        self.with(|queue, residency| queue.push(&known(residency, weights), Purpose::Speculate));
    }

    /// Drops what is queued and queues `weights` instead. What was loaded for the old queue, is
    /// not in the new one and was not used may be overwritten from now on; what is in the new one and
    /// ready already is kept until its use.
    pub(crate) fn replace(&self, weights: &[WeightId]) {
        self.with(|queue, residency| replace(queue, residency, weights));
    }

    fn with(&self, change: impl FnOnce(&mut Queue, &mut Residency)) {
        let mut state = lock(&self.shared.state);
        let State { residency, queues, .. } = &mut *state;
        if let Some(queue) = &mut queues[self.queue] {
            change(queue, residency);
        }
        self.shared.wake(&mut state);
    }
}

impl<B: Backend> fmt::Debug for Prefetcher<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetcher").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl<B: Backend> Drop for Prefetcher<B> {
    fn drop(&mut self) {
        self.with(|queue, _| queue.stop());
        if let Some(worker) = self.worker.take() {
            // A panic of the backend in the worker has already failed the load it was in.
            let _ = worker.join();
        }
        lock(&self.shared.state).queues[self.queue] = None;
    }
}

/// Those of `weights` that are attached: a queue keeps tables as long as the largest id.
pub fn known<'a>(residency: &Residency, weights: &'a [WeightId]) -> Cow<'a, [WeightId]> {
    let attached = |weight: &WeightId| weight.index() < residency.weights();
    match weights.iter().all(attached) {
        true => Cow::Borrowed(weights),
        false => Cow::Owned(weights.iter().copied().filter(attached).collect()),
    }
}

/// Replaces what `queue` has to do and tells the residency which uses are to come.
pub fn replace(queue: &mut Queue, residency: &mut Residency, weights: &[WeightId]) {
    let weights = known(residency, weights);
    queue.replace(&weights, |old| {
        residency.release(old);
    });
    for &weight in &*weights {
        if residency.expect(weight) {
            queue.take(weight);
        }
    }
}

fn work<B: Backend>(shared: &Shared<B>, at: usize) {
    let mut state = lock(&shared.state);
    loop {
        let State { queues, residency, .. } = &mut *state;
        let Some(queue) = queues[at].as_mut().filter(|q| !q.is_stopped()) else { return };
        state = match queue.next(|weight| residency.is_present(weight)) {
            Some((weight, purpose)) => fetch(shared, state, at, weight, purpose),
            None => shared.rest(state),
        };
    }
}

/// One attempt at the weight that is first in the queue.
fn fetch<'a, B: Backend>(
    shared: &'a Shared<B>,
    mut state: MutexGuard<'a, State<B>>,
    at: usize,
    weight: WeightId,
    purpose: Purpose,
) -> MutexGuard<'a, State<B>> {
    // Creating and freeing are memory calls: taken ahead of the decision, so that the worker
    // never waits for a domain with a load half done (its owner may be waiting for the worker).
    let domain = if state.residency.needs_memory_calls(weight) {
        state.residency.domain_of(weight)
    } else {
        None
    };
    if let Some(domain) = domain
        && !state.turns.call_ahead(domain.0.into())
    {
        return shared.rest(state);
    }
    let step = state.residency.reserve(weight, purpose);
    let keep = matches!(step, Ok(Step::Full | Step::Free(_))) && purpose != Purpose::Speculate;
    if !keep && let Some(queue) = &mut state.queues[at] {
        queue.pop(weight);
    }
    let full = matches!(step, Ok(Step::Full)) && keep;
    state = match step {
        Ok(Step::Load(ticket)) => {
            let State { queues, residency, .. } = &mut *state;
            let next = queues[at].as_mut().and_then(|q| q.next(|w| residency.is_present(w)));
            let next = next.map(|(weight, _)| weight);
            // A failure is counted and forgotten here: nobody waits for it, and a use tries again.
            shared.load(state, ticket, purpose, next).0
        }
        Ok(Step::Free(slot)) => shared.free(state, slot),
        _ => state,
    };
    if domain.is_some() && state.turns.end_call() {
        shared.wake(&mut state);
    }
    if full { shared.rest(state) } else { state }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ids::DomainId;
    use crate::policy::Lru;
    use crate::residency::{Home, Limits, WeightSpec};

    #[test]
    fn what_is_superseded_gives_its_slot_to_the_next_prefetch() {
        let mut residency = Residency::new(Limits::single(4096), Box::new(Lru::new()));
        let (class, slots) = residency.add_class(DomainId(0), 4096, 1).unwrap();
        slots.into_iter().for_each(|slot| residency.slot_created(slot));
        let spec = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(class) };
        residency.attach(&[spec; 3]).unwrap();
        let (mut queue, [old, new, other]) = (Queue::default(), [0, 1, 2].map(WeightId));

        let fetch = |queue: &mut Queue, residency: &mut Residency| {
            let (weight, purpose) = queue.next(|w| residency.is_present(w)).unwrap();
            match residency.reserve(weight, purpose).unwrap() {
                Step::Load(ticket) => {
                    queue.pop(weight);
                    residency.complete(ticket, true, false);
                    Some(weight)
                }
                _ => None,
            }
        };
        queue.push(&[old, new], Purpose::Prefetch);
        assert_eq!(fetch(&mut queue, &mut residency), Some(old));
        assert_eq!(fetch(&mut queue, &mut residency), None, "it has not been used yet");
        replace(&mut queue, &mut residency, &[other]);
        assert_eq!(fetch(&mut queue, &mut residency), Some(other));
        // What is not attached is passed over.
        replace(&mut queue, &mut residency, &[WeightId(u32::MAX), other]);
        assert_eq!(queue.next(|w| residency.is_present(w)), None);
        // What is in the new queue and ready is kept.
        replace(&mut queue, &mut residency, &[other, new]);
        assert_eq!(fetch(&mut queue, &mut residency), None);
    }
}
