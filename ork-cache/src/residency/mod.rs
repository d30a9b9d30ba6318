//! Who is where: the cache as a pure state machine.
//!
//! The residency owns no memory, takes no time and does no I/O. Each call returns what must be done
//! next ([`Step`]); the caller does it without a lock and reports back. Whatever the order of
//! reports, these hold:
//!
//! * bytes that exist on the device never exceed the limits: bytes are entered before the device
//!   is asked for them and struck off after it has really freed them;
//! * a weight is loaded by one caller at a time, the others wait for that load;
//! * a pinned weight is neither evicted nor overwritten;
//! * the error of a load reaches those who waited for that load and nobody else.

mod ledger;
mod make_room;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;

pub use ledger::Limits;
pub use state::{Home, LoadId, Presence, Purpose, Stage, Step, Ticket, WeightSpec};

use std::collections::VecDeque;

use ledger::Ledger;
use state::{Class, Failure, Slot, SlotState, State, Weight};

use crate::error::{Cause, Error, Result};
pub use crate::ids::SlotId;
use crate::ids::{ClassId, DomainId, WeightId};
use crate::policy::Policy;
use crate::stats::Stats;

/// Size of a page of device memory: buffers are multiples of it.
pub const PAGE: u64 = 4096;

/// Bytes of the buffer for `bytes`: whole pages, one at the least.
fn whole_pages(bytes: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(PAGE)
}

/// What has happened to a load that a caller waits for.
#[derive(Debug)]
pub enum Outcome {
    /// Still under way: wait on.
    Pending,
    /// Over, and not failed: ask again for the weight.
    Over,
    /// Failed; each waiter is told once.
    Failed(Cause),
}

/// The state machine. See the module for what it guarantees.
#[derive(Debug)]
pub struct Residency {
    weights: Vec<Weight>,
    slots: Vec<Slot>,
    /// Ids of slots that do not exist at present.
    gone: Vec<SlotId>,
    classes: Vec<Class>,
    ledger: Ledger,
    policy: Box<dyn Policy>,
    failures: Vec<Failure>,
    /// Guesses that were loaded, oldest first; some may have been used or evicted since.
    guessed: VecDeque<WeightId>,
    loads: u64,
    stats: Stats,
}

impl Residency {
    /// An empty cache.
    pub fn new(limits: Limits, policy: Box<dyn Policy>) -> Residency {
        Residency {
            weights: Vec::new(),
            slots: Vec::new(),
            gone: Vec::new(),
            classes: Vec::new(),
            ledger: Ledger::new(limits),
            policy,
            failures: Vec::new(),
            guessed: VecDeque::new(),
            loads: 0,
            stats: Stats::default(),
        }
    }

    /// Makes weights known; their ids follow each other from the returned one. Nothing is loaded.
    ///
    /// # Errors
    /// A weight that cannot fit even alone, or whose domain or class does not exist. Nothing is
    /// attached then.
    pub fn attach(&mut self, specs: &[WeightSpec]) -> Result<WeightId> {
        let most = u32::MAX as usize;
        if specs.len() > most - self.weights.len() {
            return Err(Error::TooManyWeights { most });
        }
        let first = WeightId(self.weights.len() as u32);
        for (i, spec) in specs.iter().enumerate() {
            self.check(WeightId(first.0 + i as u32), spec)?;
        }
        self.weights.extend(specs.iter().map(|spec| Weight {
            bytes: whole_pages(spec.bytes).unwrap_or(spec.bytes),
            domain: spec.domain,
            home: spec.home,
            state: State::Absent,
        }));
        self.policy.grow(self.weights.len());
        Ok(first)
    }

    fn check(&self, weight: WeightId, spec: &WeightSpec) -> Result<()> {
        let &WeightSpec { bytes, domain, home } = spec;
        self.domain(domain)?;
        if let Home::Class(class) = home {
            let known = self.classes.get(class.index()).filter(|c| c.domain == domain);
            let slot = known.ok_or(Error::UnknownClass { class, domain })?.bytes;
            if bytes > slot {
                return Err(Error::LargerThanSlot { weight, bytes, class, slot });
            }
            return Ok(());
        }
        let limit = self.ledger.limits.of(domain);
        if whole_pages(bytes).is_none_or(|b| b > limit) {
            return Err(Error::TooLarge { weight, bytes, domain, limit });
        }
        Ok(())
    }

    fn domain(&self, domain: DomainId) -> Result<()> {
        let known = self.ledger.limits.domains.len();
        if domain.index() < known { Ok(()) } else { Err(Error::UnknownDomain { domain, known }) }
    }

    /// Reserves `count` slots of `bytes` each, to be created once by the caller, who reports each
    /// with [`Residency::slot_created`] or [`Residency::slot_failed`].
    ///
    /// # Errors
    /// An unknown domain, or slots that do not fit beside what is there.
    pub fn add_class(
        &mut self,
        domain: DomainId,
        bytes: u64,
        count: usize,
    ) -> Result<(ClassId, Vec<SlotId>)> {
        self.domain(domain)?;
        let (left, limit) = (self.ledger.left(domain), self.ledger.limits.of(domain));
        let room = whole_pages(bytes).and_then(|b| Some((b, b.checked_mul(count as u64)?)));
        let Some((size, sum)) = room.filter(|&(_, sum)| sum <= left) else {
            let needed = bytes.saturating_mul(count as u64).saturating_add(limit - left);
            return Err(Error::NoRoomForSlots { count, bytes, domain, left, limit, needed });
        };
        let class = ClassId(self.classes.len() as u32);
        self.ledger.enter(domain, sum);
        let slots = (0..count)
            .map(|_| {
                self.new_slot(Slot {
                    bytes: size,
                    domain,
                    class: Some(class),
                    state: SlotState::Busy,
                })
            })
            .collect();
        let empty = Vec::with_capacity(count);
        self.classes.push(Class { bytes: size, domain, slots: count, empty });
        Ok((class, slots))
    }

    /// A slot of a class exists now.
    pub fn slot_created(&mut self, slot: SlotId) {
        let Some(Slot { class, state, .. }) = self.slots.get_mut(slot.index()) else { return };
        *state = SlotState::Empty;
        if let Some(class) = *class {
            self.classes[class.index()].empty.push(slot);
        }
    }

    /// A slot of a class could not be created; its bytes are free for others.
    pub fn slot_failed(&mut self, slot: SlotId) {
        let Some(&Slot { bytes, domain, class, .. }) = self.slots.get(slot.index()) else { return };
        self.ledger.strike(domain, bytes);
        if let Some(class) = class {
            self.classes[class.index()].slots -= 1;
        }
        self.retire(slot);
    }

    fn new_slot(&mut self, slot: Slot) -> SlotId {
        match self.gone.pop() {
            Some(id) => {
                self.slots[id.index()] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                SlotId(self.slots.len() as u32 - 1)
            }
        }
    }

    fn retire(&mut self, slot: SlotId) {
        self.slots[slot.index()].state = SlotState::Gone;
        self.gone.push(slot);
    }

    /// What to do so that `weight` becomes ready; with [`Purpose::Demand`], [`Step::Hit`] has
    /// pinned it and [`Step::Wait`] has entered the caller as a waiter.
    ///
    /// # Errors
    /// An unknown weight, or one for which nothing can ever make room.
    pub fn reserve(&mut self, weight: WeightId, purpose: Purpose) -> Result<Step> {
        let known = self.weights.len();
        let entry =
            self.weights.get_mut(weight.index()).ok_or(Error::UnknownWeight { weight, known })?;
        match &mut entry.state {
            State::Ready { slot, pins, expected, used, synced: true } => {
                let slot = *slot;
                if purpose != Purpose::Demand {
                    return Ok(Step::Ready);
                }
                *pins += 1;
                *used = true;
                *expected = false;
                self.stats.hits += 1;
                if matches!(entry.home, Home::Fixed) {
                    return Ok(Step::Hit(slot));
                }
                self.policy.touch(weight);
                Ok(Step::Hit(slot))
            }
            State::Loading { waiters, load } => {
                if purpose != Purpose::Demand {
                    return Ok(Step::Ready);
                }
                *waiters += 1;
                self.stats.joins += 1;
                Ok(Step::Wait(*load))
            }
            State::Ready { slot, .. } => {
                if purpose != Purpose::Demand {
                    return Ok(Step::Ready);
                }
                let slot = *slot;
                self.stats.hits += 1;
                Ok(Step::Load(self.begin(weight, slot, Stage::Sync)))
            }
            State::Absent => self.place(weight, purpose),
        }
    }

    /// The load is done: the weight is ready, pinned for the caller when `pin`. With `synced`
    /// false its bytes are in place but the NPU has not been handed them yet; the next use does.
    pub fn complete(&mut self, ticket: Ticket, synced: bool, pin: bool) {
        let Ticket { weight, slot, .. } = ticket;
        self.slots[slot.index()].state = SlotState::Holds(weight);
        let entry = &mut self.weights[weight.index()];
        entry.state = State::Ready { slot, pins: pin.into(), expected: !pin, used: pin, synced };
        if matches!(entry.home, Home::Fixed) {
            return;
        }
        // A weight that waited for its sync has been in the policy's books since its copy.
        if ticket.stage != Stage::Sync {
            self.policy.insert(weight);
        }
        if pin {
            self.policy.touch(weight);
        }
    }

    /// The load failed. Waiters will get `cause` from [`Residency::outcome`]. When `alive`, the buffer
    /// still exists: a slot of a class is used again; any other must be freed by the caller, who
    /// is given its id, and reported with [`Residency::freed`].
    pub fn fail(&mut self, ticket: Ticket, cause: &Cause, alive: bool) -> Option<SlotId> {
        let Ticket { weight, slot, load, stage } = ticket;
        self.stats.failures += 1;
        if stage == Stage::Sync && !matches!(self.weights[weight.index()].home, Home::Fixed) {
            self.policy.remove(weight);
        }
        let before = std::mem::replace(&mut self.weights[weight.index()].state, State::Absent);
        if let State::Loading { waiters: remaining @ 1.., .. } = before {
            self.failures.push(Failure { load, cause: cause.clone(), remaining });
        }
        if !alive {
            self.slot_failed(slot);
            return None;
        }
        if self.slots[slot.index()].class.is_some() {
            self.slot_created(slot);
            return None;
        }
        Some(self.leave(slot))
    }

    /// What became of the load that [`Step::Wait`] named.
    pub fn outcome(&mut self, weight: WeightId, load: LoadId) -> Outcome {
        if let Some(at) = self.failures.iter().position(|f| f.load == load) {
            let failure = &mut self.failures[at];
            failure.remaining -= 1;
            let cause = failure.cause.clone();
            if failure.remaining == 0 {
                self.failures.swap_remove(at);
            }
            return Outcome::Failed(cause);
        }
        match self.weights.get(weight.index()).map(|w| &w.state) {
            Some(State::Loading { load: now, .. }) if *now == load => Outcome::Pending,
            _ => Outcome::Over,
        }
    }

    /// The buffer of a slot named by [`Step::Free`] or [`Residency::fail`] no longer exists.
    pub fn freed(&mut self, slot: SlotId) {
        let Some(&Slot { bytes, domain, .. }) = self.slots.get(slot.index()) else { return };
        self.ledger.left_for_good(domain, bytes);
        self.stats.frees += 1;
        self.retire(slot);
    }

    /// The device failed to free the slot's buffer: its bytes stay in the ledger for good.
    pub fn lost(&mut self, slot: SlotId) {
        let Some(&Slot { bytes, domain, .. }) = self.slots.get(slot.index()) else { return };
        self.ledger.stays(domain, bytes);
        self.slots[slot.index()].state = SlotState::Lost;
        self.stats.lost += 1;
    }

    /// A pin is given back; `true` when it was the last and the weight can now be evicted.
    pub fn unpin(&mut self, weight: WeightId) -> bool {
        match self.weights.get_mut(weight.index()).map(|w| (&mut w.state, w.home)) {
            Some((State::Ready { pins, .. }, home)) => {
                *pins = pins.saturating_sub(1);
                *pins == 0 && !matches!(home, Home::Fixed)
            }
            _ => false,
        }
    }

    /// No use of this weight is to come any more: its place may be taken by a prefetch. `true` when
    /// that changed anything.
    pub fn release(&mut self, weight: WeightId) -> bool {
        self.set_expected(weight, false)
    }

    /// A use of this weight is to come: if it is ready, no prefetch takes its place until then.
    /// `true` when that changed anything.
    pub fn expect(&mut self, weight: WeightId) -> bool {
        self.set_expected(weight, true)
    }

    fn set_expected(&mut self, weight: WeightId, value: bool) -> bool {
        match self.weights.get_mut(weight.index()).map(|w| &mut w.state) {
            Some(State::Ready { expected, .. }) => std::mem::replace(expected, value) != value,
            _ => false,
        }
    }

    /// Whether the weight is ready or on its way.
    pub fn is_present(&self, weight: WeightId) -> bool {
        self.presence(weight) != Presence::Absent
    }

    /// Whether the weight can be used at once, and has been.
    pub fn presence(&self, weight: WeightId) -> Presence {
        match self.weights.get(weight.index()).map(|w| &w.state) {
            None | Some(State::Absent) => Presence::Absent,
            Some(State::Loading { .. }) => Presence::Loading,
            Some(State::Ready { used: false, .. }) => Presence::Fresh,
            Some(State::Ready { used: true, .. }) => Presence::Used,
        }
    }

    /// Whether making `weight` ready may create or free a buffer.
    pub fn needs_memory_calls(&self, weight: WeightId) -> bool {
        let home = self.weights.get(weight.index()).map(|w| w.home);
        matches!(home, Some(Home::Own | Home::Fixed))
    }

    /// Pins held on a weight at this moment.
    pub fn pins(&self, weight: WeightId) -> u32 {
        match self.weights.get(weight.index()).map(|w| &w.state) {
            Some(State::Ready { pins, .. }) => *pins,
            _ => 0,
        }
    }

    /// Bytes of a weight, whole pages; 0 for an unknown one.
    pub fn bytes_of(&self, weight: WeightId) -> u64 {
        self.weights.get(weight.index()).map_or(0, |w| w.bytes)
    }

    /// Domain of a weight.
    pub fn domain_of(&self, weight: WeightId) -> Option<DomainId> {
        self.weights.get(weight.index()).map(|w| w.domain)
    }

    /// Domain and bytes of a slot; no bytes for an unknown one.
    pub fn slot(&self, slot: SlotId) -> (DomainId, u64) {
        self.slots.get(slot.index()).map_or((DomainId(0), 0), |slot| (slot.domain, slot.bytes))
    }

    /// Weights attached.
    pub fn weights(&self) -> usize {
        self.weights.len()
    }

    /// Slot ids given out so far; ids are used again.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// What happened since creation, and the bytes that exist.
    pub fn stats(&self) -> Stats {
        Stats { bytes_now: self.total(), bytes_peak: self.ledger.peak(), ..self.stats }
    }

    /// For what only the caller knows: bytes loaded and times.
    pub(crate) fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// Bytes that exist in `domain`, frees under way included.
    pub fn used(&self, domain: DomainId) -> u64 {
        if domain.index() < self.ledger.limits.domains.len() { self.ledger.used(domain) } else { 0 }
    }

    /// Bytes that exist over all domains, frees under way included.
    pub fn total(&self) -> u64 {
        self.ledger.total()
    }

    /// The limits given at creation.
    pub fn limits(&self) -> &Limits {
        &self.ledger.limits
    }
}
