//! Makes room for a weight that has no place, by evicting others where it must.

use super::Residency;
use super::state::{
    Class, Home, LoadId, Purpose, Slot, SlotState, Stage, State, Step, Ticket, Weight,
};
use crate::error::{Error, Result};
use crate::ids::{ClassId, SlotId, WeightId};

impl Residency {
    pub(super) fn place(&mut self, weight: WeightId, purpose: Purpose) -> Result<Step> {
        let step = match self.weights[weight.index()].home {
            Home::Class(class) => self.place_in_class(weight, class, purpose)?,
            Home::Own | Home::Fixed => self.place_alone(weight, purpose)?,
        };
        if let Step::Load(_) = step {
            match purpose {
                Purpose::Demand => self.stats.demand_loads += 1,
                Purpose::Prefetch | Purpose::Speculate => self.stats.prefetch_loads += 1,
            }
        }
        Ok(step)
    }

    fn place_in_class(
        &mut self,
        weight: WeightId,
        class: ClassId,
        purpose: Purpose,
    ) -> Result<Step> {
        if self.classes[class.index()].slots == 0 {
            return Err(self.no_room(weight));
        }
        if purpose == Purpose::Speculate {
            return Ok(self.place_guess(weight, class));
        }
        if let Some(slot) = self.classes[class.index()].empty.pop() {
            return Ok(Step::Load(self.begin(weight, slot, Stage::Refill)));
        }
        Ok(match self.choose(weight, purpose, |slot| slot.class == Some(class)) {
            Some((_, slot)) => Step::Load(self.begin(weight, slot, Stage::Refill)),
            None => Step::Full,
        })
    }

    /// A guess gets an empty slot while another stays empty for a demand; else the slot of an older
    /// guess that came to nothing; else, while guesses hold less than a sixteenth of the class, that
    /// of the policy's victim. So wrong guesses never crowd out what is used.
    fn place_guess(&mut self, weight: WeightId, class: ClassId) -> Step {
        let Class { slots, ref mut empty, .. } = self.classes[class.index()];
        let free = if empty.len() > 1 { empty.pop() } else { None };
        let slot = free.or_else(|| {
            let Residency { guessed, weights, .. } = self;
            guessed
                .retain(|&w| matches!(weights[w.index()].state, State::Ready { used: false, .. }));
            let stale = |w: &WeightId| match self.weights[w.index()] {
                Weight { home, state: State::Ready { pins: 0, expected: false, .. }, .. } => {
                    home == Home::Class(class)
                }
                _ => false,
            };
            if let Some(at) = self.guessed.iter().position(stale) {
                let victim = self.guessed.remove(at)?;
                return self.evict(victim).map(|(_, slot)| slot);
            }
            if self.guessed.len() >= (slots / 16).max(1) {
                return None;
            }
            let here = |slot: &Slot| slot.class == Some(class);
            self.choose(weight, Purpose::Speculate, here).map(|(_, slot)| slot)
        });
        match slot {
            Some(slot) => {
                self.guessed.push_back(weight);
                Step::Load(self.begin(weight, slot, Stage::Refill))
            }
            None => Step::Full,
        }
    }

    fn place_alone(&mut self, weight: WeightId, purpose: Purpose) -> Result<Step> {
        let (need, domain) = {
            let w = &self.weights[weight.index()];
            (w.bytes, w.domain)
        };
        if need <= self.ledger.left(domain) {
            self.ledger.enter(domain, need);
            let state = SlotState::Busy;
            let slot = self.new_slot(Slot { bytes: need, domain, class: None, state });
            return Ok(Step::Load(self.begin(weight, slot, Stage::Create)));
        }
        if need <= self.ledger.left_soon(domain) {
            return Ok(Step::Full);
        }
        // A victim in the same domain gives room there and in the total; one elsewhere only helps
        // when the total is what is short. Only a demand may wait for another domain's turn.
        let own_short =
            need > self.ledger.limits.domains[domain.index()] - self.ledger.used(domain);
        let victim = self
            .choose(weight, purpose, |slot| slot.class.is_none() && slot.domain == domain)
            .or_else(|| {
                if own_short || purpose != Purpose::Demand {
                    return None;
                }
                self.choose(weight, purpose, |slot| slot.class.is_none())
            });
        match victim {
            // A buffer of the same size changes hands: no call to the device but the sync.
            Some((bytes, slot)) if bytes == need && self.slots[slot.index()].domain == domain => {
                Ok(Step::Load(self.begin(weight, slot, Stage::Refill)))
            }
            Some((_, slot)) => Ok(Step::Free(self.leave(slot))),
            None if purpose == Purpose::Demand && !self.may_change(weight, own_short) => {
                Err(self.no_room(weight))
            }
            None => Ok(Step::Full),
        }
    }

    /// Evicts the policy's victim among the slots for which `place` holds: its slot is then busy
    /// and the weight absent.
    fn choose(
        &mut self,
        incoming: WeightId,
        purpose: Purpose,
        place: impl Fn(&Slot) -> bool,
    ) -> Option<(u64, SlotId)> {
        let Residency { weights, slots, policy, .. } = self;
        let mut pick = |expected_too: bool| {
            policy.victim(incoming, purpose, &mut |w| match weights[w.index()].state {
                State::Ready { slot, pins: 0, expected, .. } => {
                    (!expected || expected_too) && place(&slots[slot.index()])
                }
                _ => false,
            })
        };
        // What is expected to be used goes last, and never for a prefetch.
        let victim = match pick(false) {
            None if purpose == Purpose::Demand => pick(true),
            victim => victim,
        }?;
        self.evict(victim)
    }

    /// Takes a ready weight out of its slot, which is busy from then on.
    fn evict(&mut self, victim: WeightId) -> Option<(u64, SlotId)> {
        let State::Ready { slot, used, .. } = self.weights[victim.index()].state else {
            return None;
        };
        self.policy.remove(victim);
        self.weights[victim.index()].state = State::Absent;
        self.slots[slot.index()].state = SlotState::Busy;
        self.stats.evictions += 1;
        self.stats.wasted += u64::from(!used);
        Some((self.slots[slot.index()].bytes, slot))
    }

    /// The slot's buffer is about to be freed; its bytes stay in the ledger until it is.
    pub(super) fn leave(&mut self, slot: SlotId) -> SlotId {
        let Slot { domain, bytes, state, .. } = &mut self.slots[slot.index()];
        *state = SlotState::Busy;
        self.ledger.leaving(*domain, *bytes);
        slot
    }

    pub(super) fn begin(&mut self, weight: WeightId, slot: SlotId, stage: Stage) -> Ticket {
        self.loads += 1;
        let load = LoadId(self.loads);
        self.slots[slot.index()].state = SlotState::Busy;
        self.weights[weight.index()].state = State::Loading { load, waiters: 0 };
        Ticket { weight, slot, load, stage }
    }

    /// Whether something can still make room for `weight`: a buffer under way, or one whose
    /// weight may be evicted once its pins are gone. With `own_short` only its own domain counts.
    fn may_change(&self, weight: WeightId, own_short: bool) -> bool {
        let domain = self.weights[weight.index()].domain;
        let near = |slot: &&Slot| slot.class.is_none() && (slot.domain == domain || !own_short);
        self.slots.iter().filter(near).any(|slot| match slot.state {
            SlotState::Busy => true,
            SlotState::Holds(held) => !matches!(self.weights[held.index()].home, Home::Fixed),
            SlotState::Gone | SlotState::Empty | SlotState::Lost => false,
        })
    }

    fn no_room(&self, weight: WeightId) -> Error {
        let w = &self.weights[weight.index()];
        let (left, limit) = (self.ledger.left(w.domain), self.ledger.limits.of(w.domain));
        let short = w.bytes.saturating_sub(left);
        Error::NoRoom { weight, bytes: w.bytes, domain: w.domain, held: limit - left, limit, short }
    }
}
