//! S3-FIFO: a small queue that lets one-time guests out quickly, a main queue, and a memory of
//! who was let out (Yang et al., SOSP 2023).

use std::collections::VecDeque;

use ork_cache::WeightId;
use ork_cache::internals::{Policy, Purpose};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Gone,
    Small,
    Main,
    Ghost,
}

/// New weights enter the small queue, which holds a tenth; those used again there move to the
/// main queue, the others leave and are remembered. One that comes back while remembered enters
/// the main queue at once. In the main queue a use buys another round.
#[derive(Debug)]
pub(crate) struct S3Fifo {
    small: VecDeque<WeightId>,
    main: VecDeque<WeightId>,
    ghost: VecDeque<WeightId>,
    place: Vec<Place>,
    uses: Vec<u8>,
    /// A weight just inserted: the touch that follows its load is no second use.
    fresh: Option<WeightId>,
}

/// Uses that count.
const MOST: u8 = 3;

impl S3Fifo {
    /// Empty queues.
    pub(crate) fn new() -> S3Fifo {
        S3Fifo {
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghost: VecDeque::new(),
            place: Vec::new(),
            uses: Vec::new(),
            fresh: None,
        }
    }

    fn small_is_large(&self) -> bool {
        self.small.len() * 10 > self.small.len() + self.main.len()
    }

    /// Goes through the small queue once: promotes what was used, finds who leaves.
    fn leaver_of_small(&mut self, evictable: &mut dyn FnMut(WeightId) -> bool) -> Option<WeightId> {
        for _ in 0..self.small.len() {
            let weight = self.small.pop_front()?;
            if self.uses[weight.index()] > 0 {
                self.uses[weight.index()] = 0;
                self.place[weight.index()] = Place::Main;
                self.main.push_back(weight);
            } else if evictable(weight) {
                self.small.push_front(weight);
                return Some(weight);
            } else {
                self.small.push_back(weight);
            }
        }
        None
    }

    fn leaver_of_main(&mut self, evictable: &mut dyn FnMut(WeightId) -> bool) -> Option<WeightId> {
        for _ in 0..self.main.len() * (usize::from(MOST) + 1) {
            let weight = self.main.pop_front()?;
            let uses = &mut self.uses[weight.index()];
            if *uses > 0 {
                *uses -= 1;
                self.main.push_back(weight);
            } else if evictable(weight) {
                self.main.push_front(weight);
                return Some(weight);
            } else {
                self.main.push_back(weight);
            }
        }
        None
    }
}

impl Default for S3Fifo {
    fn default() -> S3Fifo {
        S3Fifo::new()
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn grow(&mut self, weights: usize) {
        if self.place.len() < weights {
            self.place.resize(weights, Place::Gone);
            self.uses.resize(weights, 0);
        }
    }

    fn touch(&mut self, weight: WeightId) {
        if self.fresh.take() != Some(weight) {
            let uses = &mut self.uses[weight.index()];
            *uses = MOST.min(*uses + 1);
        }
    }

    fn insert(&mut self, weight: WeightId) {
        let place = &mut self.place[weight.index()];
        let remembered = *place == Place::Ghost;
        *place = if remembered { Place::Main } else { Place::Small };
        if remembered {
            self.ghost.retain(|&w| w != weight);
            self.main.push_back(weight);
        } else {
            self.small.push_back(weight);
        }
        self.uses[weight.index()] = 0;
        self.fresh = Some(weight);
    }

    fn remove(&mut self, weight: WeightId) {
        let place = std::mem::replace(&mut self.place[weight.index()], Place::Gone);
        match place {
            Place::Small => {
                self.small.retain(|&w| w != weight);
                self.place[weight.index()] = Place::Ghost;
                self.ghost.push_back(weight);
                if self.ghost.len() > self.main.len().max(1)
                    && let Some(forgotten) = self.ghost.pop_front()
                {
                    self.place[forgotten.index()] = Place::Gone;
                }
            }
            Place::Main => self.main.retain(|&w| w != weight),
            Place::Gone | Place::Ghost => {}
        }
    }

    fn victim(
        &mut self,
        _incoming: WeightId,
        _purpose: Purpose,
        evictable: &mut dyn FnMut(WeightId) -> bool,
    ) -> Option<WeightId> {
        if self.small_is_large() {
            self.leaver_of_small(evictable).or_else(|| self.leaver_of_main(evictable))
        } else {
            self.leaver_of_main(evictable).or_else(|| self.leaver_of_small(evictable))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_leaves_before_a_regular_and_is_remembered() {
        let mut policy = S3Fifo::new();
        policy.grow(4);
        for w in [0, 1, 2] {
            policy.insert(WeightId(w));
            policy.touch(WeightId(w));
        }
        policy.touch(WeightId(0));
        let any = &mut |_| true;
        assert_eq!(policy.victim(WeightId(3), Purpose::Demand, any), Some(WeightId(1)));
        policy.remove(WeightId(1));
        policy.insert(WeightId(1));
        assert_eq!(policy.place[1], Place::Main);
        assert_eq!(policy.place[0], Place::Main);
    }

    #[test]
    fn what_may_not_leave_is_passed_over() {
        let mut policy = S3Fifo::new();
        policy.grow(3);
        for w in [0, 1, 2] {
            policy.insert(WeightId(w));
        }
        let victim = policy.victim(WeightId(9), Purpose::Demand, &mut |w| w.0 == 2);
        assert_eq!(victim, Some(WeightId(2)));
        assert_eq!(policy.victim(WeightId(9), Purpose::Demand, &mut |_| false), None);
    }
}
