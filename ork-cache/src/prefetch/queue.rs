//! What a prefetcher has to do next: a pure state under the cache's lock.

use std::collections::VecDeque;

use crate::ids::WeightId;
use crate::residency::Purpose;

const NOWHERE: u32 = u32::MAX;

/// An explicit queue, served first, guesses, served last, and an order to follow in between.
#[derive(Debug, Default)]
pub struct Queue {
    wanted: VecDeque<WeightId>,
    guesses: VecDeque<WeightId>,
    /// What was taken from the lists since the last replacement, each weight once.
    taken: Vec<WeightId>,
    is_taken: Vec<bool>,
    /// Scratch of a replacement: all `false` between two.
    is_kept: Vec<bool>,
    order: Order,
    stopped: bool,
}

/// A cyclic order with two positions: what will be fetched next, and what will be used next.
#[derive(Debug, Default)]
struct Order {
    weights: Vec<WeightId>,
    /// Place in `weights` by weight, [`NOWHERE`] for others.
    place: Vec<u32>,
    /// Place of the next use.
    use_next: usize,
    /// How many places the fetching is ahead of the uses; at most the whole order.
    ahead: usize,
}

impl Queue {
    /// Adds to the end of the list for that purpose.
    pub fn push(&mut self, weights: &[WeightId], purpose: Purpose) {
        let list = match purpose {
            Purpose::Speculate => &mut self.guesses,
            Purpose::Demand | Purpose::Prefetch => &mut self.wanted,
        };
        list.extend(weights);
    }

    /// Replaces both lists; `drop_old` is told what was fetched for the old ones.
    pub fn replace(&mut self, weights: &[WeightId], mut drop_old: impl FnMut(WeightId)) {
        let places = weights.iter().map(|w| w.index() + 1).max().unwrap_or(0);
        if self.is_kept.len() < places {
            self.is_kept.resize(places, false);
        }
        weights.iter().for_each(|w| self.is_kept[w.index()] = true);
        for old in self.taken.drain(..) {
            self.is_taken[old.index()] = false;
            if !self.is_kept.get(old.index()).is_some_and(|kept| *kept) {
                drop_old(old);
            }
        }
        weights.iter().for_each(|w| self.is_kept[w.index()] = false);
        self.guesses.clear();
        self.wanted.clear();
        self.wanted.extend(weights);
    }

    /// Follows an order, round and round.
    pub fn follow(&mut self, order: &[WeightId]) {
        let places = order.iter().map(|w| w.index() + 1).max().unwrap_or(0);
        let mut new = Order { place: vec![NOWHERE; places], ..Order::default() };
        for &weight in order {
            if new.place[weight.index()] == NOWHERE {
                new.place[weight.index()] = new.weights.len() as u32;
                new.weights.push(weight);
            }
        }
        self.order = new;
    }

    /// Ends the worker.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether the worker is to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The weight to fetch next, passing over those that are `present`.
    pub fn next(&mut self, present: impl Fn(WeightId) -> bool) -> Option<(WeightId, Purpose)> {
        while let Some(&weight) = self.wanted.front() {
            if !present(weight) {
                return Some((weight, Purpose::Prefetch));
            }
            self.wanted.pop_front();
        }
        if let Some(weight) = self.order.next(&present) {
            return Some((weight, Purpose::Prefetch));
        }
        while let Some(&weight) = self.guesses.front() {
            if !present(weight) {
                return Some((weight, Purpose::Speculate));
            }
            self.guesses.pop_front();
        }
        None
    }

    /// `weight`, just returned by [`Queue::next`], is being dealt with.
    pub fn pop(&mut self, weight: WeightId) {
        if self.wanted.front() == Some(&weight) {
            self.wanted.pop_front();
            self.take(weight);
        } else if self.order.fetch() == Some(weight) {
            self.order.ahead += 1;
        } else if self.guesses.front() == Some(&weight) {
            self.guesses.pop_front();
            self.take(weight);
        }
    }

    /// `weight` is looked after by this queue until the next replacement.
    pub fn take(&mut self, weight: WeightId) {
        if self.is_taken.len() <= weight.index() {
            self.is_taken.resize(weight.index() + 1, false);
        }
        if !std::mem::replace(&mut self.is_taken[weight.index()], true) {
            self.taken.push(weight);
        }
    }

    /// A use of `weight`; `skipped` is told what the uses passed over.
    pub fn used(&mut self, weight: WeightId, skipped: impl FnMut(WeightId)) {
        self.order.used(weight, skipped);
    }
}

impl Order {
    fn fetch(&self) -> Option<WeightId> {
        let n = self.weights.len();
        (self.ahead < n).then(|| self.weights[(self.use_next + self.ahead) % n])
    }

    fn next(&mut self, present: impl Fn(WeightId) -> bool) -> Option<WeightId> {
        while let Some(weight) = self.fetch() {
            if !present(weight) {
                return Some(weight);
            }
            self.ahead += 1;
        }
        None
    }

    fn used(&mut self, weight: WeightId, mut skipped: impl FnMut(WeightId)) {
        let Some(&place) = self.place.get(weight.index()).filter(|&&p| p != NOWHERE) else {
            return;
        };
        let (n, place) = (self.weights.len(), place as usize);
        let distance = (place + n - self.use_next) % n;
        for i in 0..distance.min(self.ahead) {
            skipped(self.weights[(self.use_next + i) % n]);
        }
        self.ahead = self.ahead.saturating_sub(distance + 1);
        self.use_next = (place + 1) % n;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ids(list: &[u32]) -> Vec<WeightId> {
        list.iter().copied().map(WeightId).collect()
    }

    /// Fetches until nothing is left to fetch, with room for `room` more.
    fn fetch(queue: &mut Queue, room: usize) -> Vec<u32> {
        let mut got = Vec::new();
        while got.len() < room
            && let Some((weight, _)) = queue.next(|_| false)
        {
            queue.pop(weight);
            got.push(weight.0);
        }
        got
    }

    #[test]
    fn an_order_is_followed_round_and_never_more_than_once_ahead() {
        let mut queue = Queue::default();
        queue.follow(&ids(&[5, 6, 7, 5]));
        assert_eq!(fetch(&mut queue, 9), [5, 6, 7]);
        queue.used(WeightId(5), |_| panic!());
        assert_eq!(fetch(&mut queue, 9), [5]);
        queue.used(WeightId(6), |_| panic!());
        queue.used(WeightId(7), |_| panic!());
        assert_eq!(fetch(&mut queue, 1), [6]);
    }

    #[test]
    fn uses_out_of_order_move_the_fetching_along() {
        let mut queue = Queue::default();
        queue.follow(&ids(&[0, 1, 2, 3, 4]));
        assert_eq!(fetch(&mut queue, 2), [0, 1]);
        let mut skipped = Vec::new();
        queue.used(WeightId(3), |w| skipped.push(w.0));
        assert_eq!(skipped, [0, 1]);
        assert_eq!(fetch(&mut queue, 2), [4, 0]);
        queue.used(WeightId(9), |_| panic!("not in the order"));
    }

    #[test]
    fn the_queue_goes_before_the_order_and_guesses_come_last() {
        let mut queue = Queue::default();
        queue.follow(&ids(&[0]));
        queue.push(&ids(&[8]), Purpose::Speculate);
        queue.push(&ids(&[3]), Purpose::Prefetch);
        assert_eq!(fetch(&mut queue, 9), [3, 0, 8]);
        let mut dropped = Vec::new();
        queue.replace(&ids(&[3, 4]), |w| dropped.push(w.0));
        assert_eq!(dropped, [8]);
        assert_eq!(fetch(&mut queue, 9), [3, 4]);
    }
}
