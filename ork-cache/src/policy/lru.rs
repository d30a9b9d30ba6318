//! Least recently used: what the C project evicts by.

use super::Policy;
use crate::ids::WeightId;
use crate::residency::Purpose;

const NONE: u32 = u32::MAX;

/// Least recently used first, as a linked list over indices: every operation is O(1), a victim
/// O(weights that may not be evicted).
#[derive(Debug)]
pub struct Lru {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
    linked: bool,
}

impl Lru {
    /// An empty list.
    pub fn new() -> Lru {
        Lru { links: Vec::new(), oldest: NONE, newest: NONE }
    }

    fn unlink(&mut self, at: u32) {
        let Link { older, newer, linked } = self.links[at as usize];
        if !linked {
            return;
        }
        match older {
            NONE => self.oldest = newer,
            o => self.links[o as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            n => self.links[n as usize].older = older,
        }
        self.links[at as usize].linked = false;
    }

    fn push(&mut self, at: u32) {
        self.links[at as usize] = Link { older: self.newest, newer: NONE, linked: true };
        match self.newest {
            NONE => self.oldest = at,
            n => self.links[n as usize].newer = at,
        }
        self.newest = at;
    }
}

impl Default for Lru {
    fn default() -> Lru {
        Lru::new()
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn grow(&mut self, weights: usize) {
        let empty = Link { older: NONE, newer: NONE, linked: false };
        self.links.resize(self.links.len().max(weights), empty);
    }

    fn touch(&mut self, weight: WeightId) {
        if self.newest != weight.0 && self.links[weight.index()].linked {
            self.unlink(weight.0);
            self.push(weight.0);
        }
    }

    fn insert(&mut self, weight: WeightId) {
        self.unlink(weight.0);
        self.push(weight.0);
    }

    fn remove(&mut self, weight: WeightId) {
        self.unlink(weight.0);
    }

    fn victim(
        &mut self,
        _incoming: WeightId,
        _purpose: Purpose,
        evictable: &mut dyn FnMut(WeightId) -> bool,
    ) -> Option<WeightId> {
        let mut at = self.oldest;
        while at != NONE {
            if evictable(WeightId(at)) {
                return Some(WeightId(at));
            }
            at = self.links[at as usize].newer;
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn oldest_evictable_goes_first() {
        let mut lru = Lru::new();
        lru.grow(4);
        for w in 0..4 {
            lru.insert(WeightId(w));
        }
        lru.touch(WeightId(0));
        let mut any = |_| true;
        assert_eq!(lru.victim(WeightId(9), Purpose::Demand, &mut any), Some(WeightId(1)));
        assert_eq!(lru.victim(WeightId(9), Purpose::Demand, &mut |w| w.0 != 1), Some(WeightId(2)));
        lru.remove(WeightId(1));
        lru.remove(WeightId(2));
        lru.remove(WeightId(3));
        assert_eq!(lru.victim(WeightId(9), Purpose::Demand, &mut any), Some(WeightId(0)));
        lru.remove(WeightId(0));
        assert_eq!(lru.victim(WeightId(9), Purpose::Demand, &mut any), None);
    }
}
