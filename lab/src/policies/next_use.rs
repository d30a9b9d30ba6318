//! Belady's rule: what is used again last leaves first. Needs the order of use.

use std::collections::BTreeSet;

use ork_cache::WeightId;
use ork_cache::internals::{Policy, Purpose};

/// After the end of an order that does not repeat.
const NEVER: u64 = u64::MAX;

/// Evicts the weight whose next use is farthest away in a known order.
///
/// For equal sizes and loads only on demand no policy loads less. Uses out of order are followed:
/// the position moves to the next place where the used weight stands.
#[derive(Debug)]
pub(crate) struct NextUse {
    /// Places of each weight in the order, ascending.
    places: Vec<Vec<u32>>,
    length: u64,
    cyclic: bool,
    may_refuse: bool,
    /// Uses so far, as a place in the (unrolled) order.
    now: u64,
    /// Resident weights by their next use. An entry may be out of date, but only too early.
    by_use: BTreeSet<(u64, WeightId)>,
    /// The entry of each resident weight.
    entry: Vec<Option<u64>>,
}

impl NextUse {
    /// An order that repeats for ever: the passes of a dense model.
    pub(crate) fn cyclic(order: &[WeightId]) -> NextUse {
        NextUse::new(order, true, false)
    }

    /// An order that is used once, each weight admitted: a recorded trace.
    pub(crate) fn once(order: &[WeightId]) -> NextUse {
        NextUse::new(order, false, false)
    }

    /// As [`NextUse::once`], but a weight that is used later than all others passes through
    /// without a place. A lower bound for simulations: in a cache a refused weight would wait.
    pub(crate) fn once_with_bypass(order: &[WeightId]) -> NextUse {
        NextUse::new(order, false, true)
    }

    fn new(order: &[WeightId], cyclic: bool, may_refuse: bool) -> NextUse {
        let weights = order.iter().map(|w| w.index() + 1).max().unwrap_or(0);
        let mut places = vec![Vec::new(); weights];
        for (place, weight) in order.iter().enumerate() {
            places[weight.index()].push(place as u32);
        }
        let length = order.len() as u64;
        let (by_use, entry) = (BTreeSet::new(), vec![None; weights]);
        NextUse { places, length, cyclic, may_refuse, now: 0, by_use, entry }
    }

    /// The first place at or after `from` where `weight` stands.
    fn next(&self, weight: WeightId, from: u64) -> u64 {
        let Some(places) = self.places.get(weight.index()).filter(|p| !p.is_empty()) else {
            return NEVER;
        };
        let (round, at) =
            if self.cyclic { (from / self.length, from % self.length) } else { (0, from) };
        let i = places.partition_point(|&p| u64::from(p) < at);
        match places.get(i) {
            Some(&p) => round * self.length + u64::from(p),
            None if self.cyclic => (round + 1) * self.length + u64::from(places[0]),
            None => NEVER,
        }
    }

    fn enter(&mut self, weight: WeightId) {
        self.leave(weight);
        let next = self.next(weight, self.now);
        self.by_use.insert((next, weight));
        self.entry[weight.index()] = Some(next);
    }

    fn leave(&mut self, weight: WeightId) {
        if let Some(next) = self.entry[weight.index()].take() {
            self.by_use.remove(&(next, weight));
        }
    }
}

impl Policy for NextUse {
    fn name(&self) -> &'static str {
        "next_use"
    }

    fn grow(&mut self, weights: usize) {
        if self.entry.len() < weights {
            self.entry.resize(weights, None);
        }
    }

    fn touch(&mut self, weight: WeightId) {
        let at = self.next(weight, self.now);
        if at != NEVER {
            self.now = at + 1;
        }
        if self.entry[weight.index()].is_some() {
            self.enter(weight);
        }
    }

    fn insert(&mut self, weight: WeightId) {
        self.enter(weight);
    }

    fn remove(&mut self, weight: WeightId) {
        self.leave(weight);
    }

    fn victim(
        &mut self,
        incoming: WeightId,
        purpose: Purpose,
        evictable: &mut dyn FnMut(WeightId) -> bool,
    ) -> Option<WeightId> {
        // Uses that were passed over left entries in the past: put them where they belong.
        while let Some(&(next, weight)) = self.by_use.first().filter(|(next, _)| *next < self.now) {
            debug_assert_eq!(self.entry[weight.index()], Some(next));
            self.enter(weight);
        }
        let refuse = self.may_refuse || purpose != Purpose::Demand;
        let own = match self.next(incoming, self.now) {
            _ if !refuse => 0,
            // The use that it is loaded for is the first; what counts is the one after.
            use_now if purpose == Purpose::Demand && use_now != NEVER => {
                self.next(incoming, use_now + 1)
            }
            next => next,
        };
        let mut later = self.by_use.iter().rev().take_while(|(next, _)| *next > own || !refuse);
        later.find(|&&(_, w)| evictable(w)).map(|&(_, w)| w)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(list: &[u32]) -> Vec<WeightId> {
        list.iter().copied().map(WeightId).collect()
    }

    #[test]
    fn the_farthest_next_use_leaves_first() {
        let mut policy = NextUse::cyclic(&ids(&[0, 1, 2, 3]));
        for w in ids(&[0, 1, 2]) {
            policy.insert(w);
            policy.touch(w);
        }
        let any = &mut |_| true;
        assert_eq!(policy.victim(WeightId(3), Purpose::Demand, any), Some(WeightId(2)));
        assert_eq!(
            policy.victim(WeightId(3), Purpose::Demand, &mut |w| w.0 != 2),
            Some(WeightId(1))
        );
    }

    #[test]
    fn a_prefetch_takes_no_place_that_is_needed_sooner() {
        let mut policy = NextUse::cyclic(&ids(&[0, 1, 2, 3]));
        policy.insert(WeightId(0));
        policy.insert(WeightId(1));
        let any = &mut |_| true;
        assert_eq!(policy.victim(WeightId(3), Purpose::Prefetch, any), None);
        assert_eq!(policy.victim(WeightId(3), Purpose::Demand, any), Some(WeightId(1)));
        policy.touch(WeightId(0));
        assert_eq!(policy.victim(WeightId(3), Purpose::Prefetch, any), Some(WeightId(0)));
    }

    #[test]
    fn skipped_uses_are_put_right() {
        let mut policy = NextUse::cyclic(&ids(&[0, 1, 2, 3]));
        policy.insert(WeightId(1));
        policy.insert(WeightId(3));
        policy.touch(WeightId(2));
        // 1 was passed over: its next use is a round later, after that of 3.
        assert_eq!(policy.victim(WeightId(0), Purpose::Demand, &mut |_| true), Some(WeightId(1)));
    }
}
