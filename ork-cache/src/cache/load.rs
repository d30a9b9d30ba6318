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

/// A load under way: reports a failure when it is dropped before it is done, so that a panic in
/// the backend neither blocks the weight nor loses the slot.
struct Flight<'a, B: Backend> {
    shared: &'a Shared<B>,
    ticket: Option<Ticket>,
    slot: SlotId,
    buffer: Option<Arc<B::Buffer>>,
}

/// Whether a load may wait for the domain to be handed over to the NPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Wait until no other domain is at work.
    Always,
    /// When another domain is at work, leave it to the next use.
    WhenFree,
}

impl<B: Backend> Shared<B> {
    /// Loads for a use: the weight is pinned when it is done.
    pub(super) fn load_now(
        &self,
        state: MutexGuard<'_, State<B>>,
        ticket: Ticket,
    ) -> Result<Arc<B::Buffer>> {
        let weight = ticket.weight();
        match self.load(state, ticket, true, Publish::Always, None) {
            Ok(Some(buffer)) => Ok(buffer),
            Ok(None) => Err(Error::Load { weight, cause: std::sync::Arc::new(InUse) }),
            Err(cause) => Err(Error::Load { weight, cause }),
        }
    }

    /// Carries out `ticket` and reports to the core; with `pin`, gives a share of the buffer.
    /// `next` is the weight that will be loaded after it, if that is known.
    pub(crate) fn load(
        &self,
        mut state: MutexGuard<'_, State<B>>,
        ticket: Ticket,
        pin: bool,
        publish: Publish,
        next: Option<WeightId>,
    ) -> std::result::Result<Option<Arc<B::Buffer>>, Cause> {
        let since = Instant::now();
        let slot = ticket.slot();
        let (domain, bytes) = state.core.slot(slot);
        let buffer = state.take(slot);
        drop(state);
        if let Some(next) = next {
            self.backend.ahead(next);
        }
        let mut flight = Flight { shared: self, ticket: Some(ticket), slot, buffer };
        let published = match flight.run(domain, bytes, publish) {
            Ok(published) => published,
            Err(cause) => {
                flight.fail(&cause);
                return Err(cause);
            }
        };
        let mut state = lock(&self.state);
        let (Some(ticket), Some(buffer)) = (flight.ticket.take(), flight.buffer.take()) else {
            return Err(std::sync::Arc::new(InUse));
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
        Ok(share)
    }

    /// Frees the buffer of a slot that the core has given up.
    pub(crate) fn free<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
        slot: SlotId,
    ) -> MutexGuard<'a, State<B>> {
        let domain = state.core.slot(slot).0;
        let buffer = state.take(slot);
        drop(state);
        let freed = match buffer.map(Arc::try_unwrap) {
            Some(Ok(buffer)) => self.memory_call(domain, |b| b.free(buffer)).is_ok(),
            Some(Err(_)) => false,
            None => true,
        };
        let mut state = lock(&self.state);
        if freed {
            state.core.freed(slot)
        } else {
            state.core.lost(slot)
        }
        self.wake(&mut state);
        state
    }

    /// Makes a memory call in `domain`, while no other domain is at work.
    pub(super) fn memory_call<T>(&self, domain: DomainId, call: impl FnOnce(&B) -> T) -> T {
        let mut state = lock(&self.state);
        while !state.gate.call(domain) {
            state = self.wait(state);
        }
        drop(state);
        self.in_call(call)
    }

    /// As [`Shared::memory_call`]; `None` without a call when another domain is at work.
    fn try_memory_call<T>(&self, domain: DomainId, call: impl FnOnce(&B) -> T) -> Option<T> {
        if !lock(&self.state).gate.call(domain) {
            return None;
        }
        Some(self.in_call(call))
    }

    fn in_call<T>(&self, call: impl FnOnce(&B) -> T) -> T {
        /// Ends the call, also when the backend panics.
        struct End<'a, B: Backend>(&'a Shared<B>);
        impl<B: Backend> Drop for End<'_, B> {
            fn drop(&mut self) {
                let mut state = lock(&self.0.state);
                if state.gate.end_call() {
                    self.0.wake(&mut state);
                }
            }
        }
        let _end = End(self);
        call(&self.backend)
    }
}

impl<B: Backend> Flight<'_, B> {
    fn run(
        &mut self,
        domain: DomainId,
        bytes: u64,
        publish: Publish,
    ) -> std::result::Result<bool, Cause> {
        let Some(ticket) = &self.ticket else { return Ok(true) };
        let (weight, stage) = (ticket.weight(), ticket.stage());
        if stage == Stage::Create {
            let created = self.shared.memory_call(domain, |b| b.create(domain, bytes))?;
            self.buffer = Some(Arc::new(created));
        }
        let in_use = || -> Cause { std::sync::Arc::new(InUse) };
        let buffer = self.buffer.as_mut().and_then(Arc::get_mut).ok_or_else(in_use)?;
        if stage != Stage::Publish {
            self.shared.backend.copy(buffer, weight)?;
        }
        match publish {
            Publish::Always => self.shared.memory_call(domain, |b| b.publish(buffer))?,
            Publish::WhenFree => match self.shared.try_memory_call(domain, |b| b.publish(buffer)) {
                Some(result) => result?,
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn fail(&mut self, cause: &Cause) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut state = lock(&self.shared.state);
        let alive = self.buffer.is_some();
        let to_free = state.core.fail(ticket, cause, alive);
        if let Some(buffer) = self.buffer.take() {
            state.put(self.slot, buffer);
        }
        if let Some(slot) = to_free {
            state = self.shared.free(state, slot);
        }
        self.shared.wake(&mut state);
    }
}

impl<B: Backend> Drop for Flight<'_, B> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let cause: Cause = std::sync::Arc::new(Panicked);
            self.fail(&cause);
        }
    }
}
