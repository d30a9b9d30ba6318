//! Least frequently used, with counts that fade: experts that were popular long ago leave.

use super::Policy;
use crate::ids::WeightId;
use crate::residency::Purpose;

/// Evicts the resident weight with the smallest faded count of uses, the oldest of equals.
///
/// A use adds 1; every `half_life` uses of any weight halve all counts. Counts are kept for
/// weights that are gone, so one that comes back is judged by its past.
#[derive(Debug)]
pub struct Lfu {
    /// Uses of each weight, scaled by the growing `unit` instead of fading all of them.
    count: Vec<f64>,
    unit: f64,
    growth: f64,
    resident: Vec<WeightId>,
    place: Vec<usize>,
    used_at: Vec<u64>,
    now: u64,
}

const GONE: usize = usize::MAX;

impl Lfu {
    /// Counts that halve every `half_life` uses (at least 1).
    pub fn new(half_life: u32) -> Lfu {
        Lfu {
            count: Vec::new(),
            unit: 1.0,
            growth: 2f64.powf(1.0 / f64::from(half_life.max(1))),
            resident: Vec::new(),
            place: Vec::new(),
            used_at: Vec::new(),
            now: 0,
        }
    }
}

impl Policy for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn grow(&mut self, weights: usize) {
        if self.count.len() < weights {
            self.count.resize(weights, 0.0);
            self.place.resize(weights, GONE);
            self.used_at.resize(weights, 0);
        }
    }

    fn touch(&mut self, weight: WeightId) {
        self.now += 1;
        self.unit *= self.growth;
        if self.unit > 1e100 {
            let unit = std::mem::replace(&mut self.unit, 1.0);
            self.count.iter_mut().for_each(|c| *c /= unit);
        }
        self.count[weight.index()] += self.unit;
        self.used_at[weight.index()] = self.now;
    }

    fn insert(&mut self, weight: WeightId) {
        if self.place[weight.index()] == GONE {
            self.place[weight.index()] = self.resident.len();
            self.resident.push(weight);
        }
    }

    fn remove(&mut self, weight: WeightId) {
        let at = std::mem::replace(&mut self.place[weight.index()], GONE);
        if at != GONE {
            self.resident.swap_remove(at);
            if let Some(moved) = self.resident.get(at) {
                self.place[moved.index()] = at;
            }
        }
    }

    fn victim(
        &mut self,
        _incoming: WeightId,
        _purpose: Purpose,
        evictable: &mut dyn FnMut(WeightId) -> bool,
    ) -> Option<WeightId> {
        let rank = |w: WeightId| (self.count[w.index()], self.used_at[w.index()]);
        let mut best: Option<(f64, u64, WeightId)> = None;
        for &weight in &self.resident {
            let (count, used_at) = rank(weight);
            if best.is_none_or(|(c, u, _)| (count, used_at) < (c, u)) && evictable(weight) {
                best = Some((count, used_at, weight));
            }
        }
        best.map(|(.., weight)| weight)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_least_used_leaves_and_old_fame_fades() {
        let mut lfu = Lfu::new(4);
        lfu.grow(3);
        for w in [0, 1] {
            lfu.insert(WeightId(w));
        }
        for w in [0, 0, 0, 1] {
            lfu.touch(WeightId(w));
        }
        let any = &mut |_| true;
        assert_eq!(lfu.victim(WeightId(2), Purpose::Demand, any), Some(WeightId(1)));
        for _ in 0..8 {
            lfu.touch(WeightId(1));
        }
        assert_eq!(lfu.victim(WeightId(2), Purpose::Demand, any), Some(WeightId(0)));
        lfu.remove(WeightId(0));
        assert_eq!(lfu.victim(WeightId(2), Purpose::Demand, any), Some(WeightId(1)));
    }

    #[test]
    fn counts_survive_a_rescale() {
        let mut lfu = Lfu::new(1);
        lfu.grow(2);
        lfu.insert(WeightId(0));
        lfu.insert(WeightId(1));
        for _ in 0..2000 {
            lfu.touch(WeightId(0));
        }
        assert!(lfu.count[0].is_finite());
        assert_eq!(lfu.victim(WeightId(1), Purpose::Demand, &mut |_| true), Some(WeightId(1)));
    }
}
