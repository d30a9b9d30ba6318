//! One load and one free, without the lock.

use std::time::Instant;

use super::{Shared, State};
use crate::backend::Backend;
use crate::core::{Stage, Ticket};
use crate::error::{Cause, Error, Result};
use crate::ids::{DomainId, SlotId, WeightId};
use crate::sync::{Arc, MutexGuard, lock};

/// The loading thread panicked in the backend.
#[derive(Debug, thiserror::Error)]
#[error("the loading thread panicked")]
struct Panicked;

/// A buffer that nobody should hold has another owner: its weight is left alone.
#[derive(Debug, thiserror::Error)]
#[error("the slot's buffer is still in use")]
struct InUse;

fn in_use() -> Cause {
    std::sync::Arc::new(InUse)
}

/// A load under way: reports a failure when it is dropped before it is done, so that a panic in
/// the backend neither blocks the weight nor loses the slot.
struct Flight<'a, B: Backend> {
    shared: &'a Shared<B>,
    ticket: Option<Ticket>,
    slot: SlotId,
    buffer: Option<Arc<B::Buffer>>,
}

/// What a load gives: a share of the buffer, if one was asked for.
type Loaded<B> = std::result::Result<Option<Arc<<B as Backend>::Buffer>>, Cause>;

/// Whether a load may wait for the domain to be handed over to the NPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Wait until no other domain is at work.
    Always,
    /// When another domain is at work, leave it to the next use.
    WhenFree,
}

/// A memory call under way: other domains wait. Ends when it is dropped, also by a panic of the
/// backend.
pub(super) struct Call<'a, B: Backend> {
    shared: &'a Shared<B>,
    ended: bool,
}

impl<B: Backend> Shared<B> {
    /// Loads for a use: the weight is pinned when it is done.
    pub(super) fn load_now<'a>(
        &'a self,
        state: MutexGuard<'a, State<B>>,
        ticket: Ticket,
    ) -> (MutexGuard<'a, State<B>>, Result<Arc<B::Buffer>>) {
        let weight = ticket.weight();
        let (state, loaded) = self.load(state, ticket, true, Publish::Always, None);
        let shared = loaded.and_then(|share| share.ok_or_else(in_use));
        (state, shared.map_err(|cause| Error::Load { weight, cause }))
    }

    /// Carries out `ticket` and reports to the core; with `pin`, gives a share of the buffer.
    /// `next` is the weight that will be loaded after it, if that is known.
    pub(crate) fn load<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
        ticket: Ticket,
        pin: bool,
        publish: Publish,
        next: Option<WeightId>,
    ) -> (MutexGuard<'a, State<B>>, Loaded<B>) {
        let since = Instant::now();
        let slot = ticket.slot();
        let buffer = state.take(slot);
        let mut flight = Flight { shared: self, ticket: Some(ticket), slot, buffer };
        let (mut state, published) = match flight.run(state, publish, next) {
            Ok(done) => done,
            Err(cause) => return (flight.fail(&cause), Err(cause)),
        };
        let (Some(ticket), Some(buffer)) = (flight.ticket.take(), flight.buffer.take()) else {
            return (state, Err(in_use()));
        };
        if ticket.stage() != Stage::Publish {
            state.times.bytes_loaded += state.core.bytes_of(ticket.weight());
        }
        state.times.load += since.elapsed();
        // Without a pin the slot keeps the only share: it may be wanted for refilling at once.
        let share = pin.then(|| buffer.clone());
        state.put(slot, buffer);
        state.core.complete(ticket, published, pin);
        self.wake(&mut state);
        (state, Ok(share))
    }

    /// Frees the buffer of a slot that the core has given up.
    pub(crate) fn free<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
        slot: SlotId,
    ) -> MutexGuard<'a, State<B>> {
        let domain = state.core.slot(slot).0;
        let freed = match state.take(slot).map(Arc::try_unwrap) {
            Some(Ok(buffer)) => {
                let call = self.begin_call(state, domain);
                let freed = self.backend.free(buffer).is_ok();
                state = call.end();
                freed
            }
            Some(Err(_)) => false,
            None => true,
        };
        if freed {
            state.core.freed(slot)
        } else {
            state.core.lost(slot)
        }
        self.wake(&mut state);
        state
    }

    /// Begins a memory call in `domain`, once no other domain is at work.
    pub(super) fn begin_call<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
        domain: DomainId,
    ) -> Call<'a, B> {
        while !state.gate.call(domain) {
            state = self.wait(state);
        }
        Call { shared: self, ended: false }
    }

    fn end_call(&self) -> MutexGuard<'_, State<B>> {
        let mut state = lock(&self.state);
        if state.gate.end_call() {
            self.wake(&mut state);
        }
        state
    }
}

impl<'a, B: Backend> Call<'a, B> {
    /// Ends the call and gives the lock that was taken to do so.
    pub(super) fn end(mut self) -> MutexGuard<'a, State<B>> {
        self.ended = true;
        self.shared.end_call()
    }
}

impl<B: Backend> Drop for Call<'_, B> {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.shared.end_call());
        }
    }
}

impl<'a, B: Backend> Flight<'a, B> {
    /// Loads; `true` when the bytes have been handed to the NPU.
    fn run(
        &mut self,
        state: MutexGuard<'a, State<B>>,
        publish: Publish,
        next: Option<WeightId>,
    ) -> std::result::Result<(MutexGuard<'a, State<B>>, bool), Cause> {
        let shared = self.shared;
        let Some(ticket) = &self.ticket else { return Ok((state, true)) };
        let (weight, stage) = (ticket.weight(), ticket.stage());
        let (domain, bytes) = state.core.slot(self.slot);
        if stage == Stage::Create {
            let call = shared.begin_call(state, domain);
            let created = shared.backend.create(domain, bytes);
            drop(call);
            self.buffer = Some(Arc::new(created?));
        } else {
            drop(state);
        }
        if let Some(next) = next {
            shared.backend.ahead(next);
        }
        let buffer = self.buffer.as_mut().and_then(Arc::get_mut).ok_or_else(in_use)?;
        if stage != Stage::Publish {
            shared.backend.copy(buffer, weight)?;
        }
        let state = lock(&shared.state);
        if publish == Publish::WhenFree && !state.gate.admits(domain) {
            return Ok((state, false));
        }
        let call = shared.begin_call(state, domain);
        shared.backend.publish(buffer)?;
        Ok((call.end(), true))
    }

    fn fail(&mut self, cause: &Cause) -> MutexGuard<'a, State<B>> {
        let mut state = lock(&self.shared.state);
        let Some(ticket) = self.ticket.take() else { return state };
        let alive = self.buffer.is_some();
        let to_free = state.core.fail(ticket, cause, alive);
        if let Some(buffer) = self.buffer.take() {
            state.put(self.slot, buffer);
        }
        if let Some(slot) = to_free {
            state = self.shared.free(state, slot);
        }
        self.shared.wake(&mut state);
        state
    }
}

impl<B: Backend> Drop for Flight<'_, B> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let cause: Cause = std::sync::Arc::new(Panicked);
            drop(self.fail(&cause));
        }
    }
}
