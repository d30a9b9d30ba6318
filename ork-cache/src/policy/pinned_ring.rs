//! A fixed set that stays, and a ring for the rest: the optimum for an order that repeats.

use std::collections::VecDeque;

use super::Policy;
use crate::ids::WeightId;
use crate::residency::Purpose;

/// Members of the pinned set are never victims; the others leave in the order in which they came.
///
/// On a scan of N equal layers with room for C of which S are the ring, every pass loads exactly
/// N − (C − S) layers. Which weights are pinned is decided by a [plan](crate::plan).
#[derive(Debug)]
pub struct PinnedRing {
    pinned: Vec<bool>,
    ring: VecDeque<WeightId>,
}

impl PinnedRing {
    /// Pins `pinned`; every other weight goes through the ring.
    pub fn new(pinned: &[WeightId]) -> PinnedRing {
        let mut set = vec![false; pinned.iter().map(|w| w.index() + 1).max().unwrap_or(0)];
        pinned.iter().for_each(|w| set[w.index()] = true);
        PinnedRing { pinned: set, ring: VecDeque::new() }
    }

    fn is_pinned(&self, weight: WeightId) -> bool {
        self.pinned.get(weight.index()).copied().unwrap_or(false)
    }
}

impl Policy for PinnedRing {
    fn name(&self) -> &'static str {
        "pinned_ring"
    }

    fn grow(&mut self, _weights: usize) {}

    fn touch(&mut self, _weight: WeightId) {}

    fn insert(&mut self, weight: WeightId) {
        if !self.is_pinned(weight) {
            self.ring.push_back(weight);
        }
    }

    fn remove(&mut self, weight: WeightId) {
        self.ring.retain(|&w| w != weight);
    }

    fn victim(
        &mut self,
        _incoming: WeightId,
        _purpose: Purpose,
        evictable: &mut dyn FnMut(WeightId) -> bool,
    ) -> Option<WeightId> {
        self.ring.iter().copied().find(|&w| evictable(w))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_ring_turns_and_the_pinned_stay() {
        let mut policy = PinnedRing::new(&[WeightId(1)]);
        for w in [0, 1, 2] {
            policy.insert(WeightId(w));
        }
        let any = &mut |_| true;
        assert_eq!(policy.victim(WeightId(3), Purpose::Demand, any), Some(WeightId(0)));
        policy.touch(WeightId(0));
        policy.remove(WeightId(0));
        assert_eq!(policy.victim(WeightId(3), Purpose::Demand, any), Some(WeightId(2)));
        policy.remove(WeightId(2));
        assert_eq!(policy.victim(WeightId(3), Purpose::Demand, any), None);
    }
}
