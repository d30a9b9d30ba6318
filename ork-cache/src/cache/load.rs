//! One load and one free, without the lock.

use std::time::Instant;

use super::slot_memory::SlotMemory;
use super::{Shared, State};
use crate::backend::Backend;
use crate::error::{Cause, Error, Result};
use crate::ids::{DomainId, SlotId, WeightId};
use crate::residency::{Purpose, Stage, Ticket};
use crate::sync::{Arc, MutexGuard, lock};

/// The loading thread panicked in the backend.
#[derive(Debug, thiserror::Error)]
#[error("the loading thread panicked")]
struct Panicked;

/// Memory that nobody should hold has another owner: its weight is left alone.
#[derive(Debug, thiserror::Error)]
#[error("the slot's memory is still in use")]
struct InUse;

pub(super) fn in_use() -> Cause {
    std::sync::Arc::new(InUse)
}

/// A load under way: reports a failure when it is dropped before it is done, so that a panic in
/// the backend does not block the weight.
struct Flight<'a, B: Backend> {
    shared: &'a Shared<B>,
    ticket: Option<Ticket>,
    slot: SlotId,
    memory: Option<SlotMemory<B>>,
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
    ) -> (MutexGuard<'a, State<B>>, Result<Arc<B::Device>>) {
        let (weight, slot) = (ticket.weight(), ticket.slot());
        let (state, loaded) = self.load(state, ticket, Purpose::Demand, None);
        let shared = loaded.and_then(|()| state.share(slot).ok_or_else(in_use));
        (state, shared.map_err(|cause| Error::Load { weight, cause }))
    }

    /// Carries out `ticket` and reports to the residency. For a demand it waits until the device may be
    /// called in the weight's domain; a load ahead leaves the sync to the use when another domain is at
    /// work. `next` is the weight that will be loaded after it, if that is known.
    pub(crate) fn load<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
        ticket: Ticket,
        purpose: Purpose,
        next: Option<WeightId>,
    ) -> (MutexGuard<'a, State<B>>, std::result::Result<(), Cause>) {
        let since = Instant::now();
        let slot = ticket.slot();
        let memory = state.take(slot);
        let mut flight = Flight { shared: self, ticket: Some(ticket), slot, memory };
        let mut state = match flight.run(state, purpose, next) {
            Ok(state) => state,
            Err(cause) => return (flight.fail(&cause), Err(cause)),
        };
        let (Some(ticket), Some(memory)) = (flight.ticket.take(), flight.memory.take()) else {
            return (state, Err(in_use()));
        };
        let bytes = state.residency.bytes_of(ticket.weight());
        let stats = state.residency.stats_mut();
        if ticket.stage() != Stage::Sync {
            stats.bytes_loaded += bytes;
        }
        stats.load_time += since.elapsed();
        let synced = matches!(memory, SlotMemory::Device(_));
        state.put(slot, memory);
        state.residency.complete(ticket, synced, purpose == Purpose::Demand);
        self.wake(&mut state);
        (state, Ok(()))
    }

    /// Frees the memory of a slot that the residency has given up.
    pub(crate) fn free<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
        slot: SlotId,
    ) -> MutexGuard<'a, State<B>> {
        let domain = state.residency.slot(slot).0;
        let freed = match state.take(slot).map(|memory| memory.reclaim(&self.backend)) {
            Some(Ok(memory)) => {
                let call = self.begin_call(state, domain);
                let freed = self.backend.free(memory).is_ok();
                state = call.end();
                freed
            }
            Some(Err(_)) => false,
            None => true,
        };
        if freed {
            state.residency.freed(slot)
        } else {
            state.residency.lost(slot)
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
        while !state.turns.call(domain.0.into()) {
            state = self.wait(state);
        }
        Call { shared: self, ended: false }
    }

    fn end_call(&self) -> MutexGuard<'_, State<B>> {
        let mut state = lock(&self.state);
        if state.turns.end_call() {
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
    fn run(
        &mut self,
        state: MutexGuard<'a, State<B>>,
        purpose: Purpose,
        next: Option<WeightId>,
    ) -> std::result::Result<MutexGuard<'a, State<B>>, Cause> {
        let shared = self.shared;
        let Some(ticket) = &self.ticket else { return Ok(state) };
        let (weight, stage) = (ticket.weight(), ticket.stage());
        let (domain, bytes) = state.residency.slot(self.slot);
        if stage == Stage::Create {
            let call = shared.begin_call(state, domain);
            let created = shared.backend.create(domain, bytes, weight);
            drop(call);
            self.memory = Some(SlotMemory::Host(created?));
        } else {
            drop(state);
        }
        if let Some(next) = next {
            shared.backend.will_need(next);
        }
        let memory = self.memory.take().ok_or_else(in_use)?;
        let host = match memory.reclaim(&shared.backend) {
            Ok(host) => host,
            Err((held, cause)) => {
                self.memory = Some(held);
                return Err(cause);
            }
        };
        // A panic while copying leaves the memory in the slot, to be filled again.
        let SlotMemory::Host(host) = self.memory.insert(SlotMemory::Host(host)) else {
            return Err(in_use());
        };
        if stage != Stage::Sync {
            shared.backend.copy(host, weight, purpose)?;
        }
        let state = lock(&shared.state);
        if purpose != Purpose::Demand && !state.turns.admits(domain.0.into()) {
            return Ok(state);
        }
        let call = shared.begin_call(state, domain);
        let Some(SlotMemory::Host(host)) = self.memory.take() else { return Err(in_use()) };
        match shared.backend.sync_for_device(host) {
            Ok(device) => self.memory = Some(SlotMemory::Device(Arc::new(device))),
            Err((host, cause)) => {
                self.memory = Some(SlotMemory::Host(host));
                return Err(cause);
            }
        }
        Ok(call.end())
    }

    fn fail(&mut self, cause: &Cause) -> MutexGuard<'a, State<B>> {
        let mut state = lock(&self.shared.state);
        let Some(ticket) = self.ticket.take() else { return state };
        let to_free = state.residency.fail(ticket, cause, self.memory.is_some());
        if let Some(memory) = self.memory.take() {
            state.put(self.slot, memory);
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
