//! What a router decided: which experts of a layer get how many rows of the batch.

use std::collections::VecDeque;
use std::ops::Range;

use crate::ids::WeightId;
use crate::plan::{Item, Placed};
use crate::residency::Presence;

/// A routing that does not fit the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// The layer has no experts.
    #[error("layer {layer} has no experts: the model has experts in {layers} layers")]
    Layer {
        /// The layer asked for.
        layer: u32,
        /// Layers that have experts.
        layers: usize,
    },
    /// The expert does not exist.
    #[error("layer {layer} has {experts} experts, counted from 0, and the routing names {expert}")]
    Expert {
        /// The layer.
        layer: u32,
        /// The expert named.
        expert: u32,
        /// Experts of the layer.
        experts: u32,
    },
}

/// The experts of a batch in one layer, with the rows each gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    rows: Vec<(u32, u32)>,
}

impl Routing {
    /// From pairs of expert and rows; an expert named twice gets the sum, one without rows is left
    /// out.
    pub fn new(pairs: impl IntoIterator<Item = (u32, u32)>) -> Routing {
        let mut rows: Vec<(u32, u32)> = pairs.into_iter().filter(|(_, n)| *n > 0).collect();
        rows.sort_unstable();
        rows.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 = if same { kept.1.saturating_add(next.1) } else { kept.1 };
            same
        });
        rows.sort_by_key(|&(expert, n)| (std::cmp::Reverse(n), expert));
        Routing { rows }
    }

    /// From the experts that each token goes to.
    pub fn of_tokens<'a>(tokens: impl IntoIterator<Item = &'a [u32]>) -> Routing {
        Routing::new(tokens.into_iter().flatten().map(|&expert| (expert, 1)))
    }

    /// Experts and their rows, most rows first.
    pub fn rows(&self) -> &[(u32, u32)] {
        &self.rows
    }
}

/// The weights of every expert of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertTable {
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Layer {
    /// Runs of `weights`, by expert.
    experts: Vec<Range<u32>>,
    weights: Vec<WeightId>,
}

impl ExpertTable {
    /// From a plan that was applied: every part of every weight of an expert, in order of use.
    pub fn of_plan(items: &[Item], placed: &Placed) -> ExpertTable {
        let mut by_expert = std::collections::BTreeMap::<(u32, u32), Vec<WeightId>>::new();
        for part in &placed.parts {
            let item = &items[part.item];
            if let (Some(layer), Some(expert)) = (item.layer, item.expert) {
                by_expert.entry((layer, expert)).or_default().push(part.weight);
            }
        }
        let mut table = ExpertTable::default();
        for ((layer, expert), weights) in by_expert {
            table.add(layer, expert, &weights);
        }
        table
    }

    /// Makes an expert known; experts of a layer are added in ascending order.
    pub fn add(&mut self, layer: u32, expert: u32, weights: &[WeightId]) {
        if self.layers.len() <= layer as usize {
            self.layers.resize_with(layer as usize + 1, Layer::default);
        }
        let layer = &mut self.layers[layer as usize];
        let start = layer.weights.len() as u32;
        layer.weights.extend(weights);
        if layer.experts.len() <= expert as usize {
            layer.experts.resize(expert as usize + 1, start..start);
        }
        layer.experts[expert as usize] = start..layer.weights.len() as u32;
    }

    /// Layers, those without experts included.
    pub fn layers(&self) -> u32 {
        self.layers.len() as u32
    }

    /// Experts of a layer; 0 for a layer that has none.
    pub fn experts(&self, layer: u32) -> u32 {
        self.layers.get(layer as usize).map_or(0, |l| l.experts.len() as u32)
    }

    /// The weights of an expert, in order of use.
    ///
    /// # Errors
    /// A layer or an expert outside the model.
    pub fn weights(&self, layer: u32, expert: u32) -> Result<&[WeightId], RoutingError> {
        let with_experts = || self.layers.iter().filter(|l| !l.experts.is_empty()).count();
        let known = self.layers.get(layer as usize).filter(|l| !l.experts.is_empty());
        let known = known.ok_or_else(|| RoutingError::Layer { layer, layers: with_experts() })?;
        let experts = known.experts.len() as u32;
        let range = known.experts.get(expert as usize);
        let range = range.ok_or(RoutingError::Expert { layer, expert, experts })?;
        Ok(&known.weights[range.start as usize..range.end as usize])
    }

    /// What a batch needs of a layer. The weights of all its experts are added to `needed`: what a
    /// prefetcher is given, so that it loads the absent ones, most rows first, and leaves the others
    /// alone.
    ///
    /// # Errors
    /// A layer or an expert outside the model; nothing is added then.
    pub(crate) fn remaining(
        &self,
        layer: u32,
        routing: &Routing,
        presence: impl Fn(WeightId) -> Presence,
        needed: &mut Vec<WeightId>,
    ) -> Result<Remaining, RoutingError> {
        for &(expert, _) in routing.rows() {
            self.weights(layer, expert)?;
        }
        let mut remaining = Remaining { layer, ..Remaining::default() };
        let mut stays = Vec::new();
        for &(expert, rows) in routing.rows() {
            let weights = self.weights(layer, expert)?;
            if weights.iter().all(|&w| presence(w) == Presence::Used) {
                remaining.stays.push((expert, rows));
                stays.extend(weights);
            } else {
                remaining.passing.push_back((expert, rows));
                needed.extend(weights);
            }
        }
        needed.append(&mut stays);
        Ok(remaining)
    }
}

/// The experts of a batch in one layer that have not been computed yet, see
/// `ExpertTable::remaining`.
///
/// What has just been loaded is computed first, because its slot then takes the next load. What was
/// there before is kept for the moments in which nothing else is ready, the experts with the fewest
/// rows first: the loader has its slots full while a long one computes.
#[derive(Clone, Debug, Default)]
pub struct Remaining {
    layer: u32,
    /// Were in use before the batch; most rows first.
    stays: Vec<(u32, u32)>,
    /// Were loaded for the batch or have to be; most rows first.
    passing: VecDeque<(u32, u32)>,
}

impl Remaining {
    /// The expert to compute now and its rows: one that is ready if there is one, else the one whose
    /// load was queued first. `None` when all have been given.
    pub fn next(
        &mut self,
        table: &ExpertTable,
        presence: impl Fn(WeightId) -> Presence,
    ) -> Option<(u32, u32)> {
        let ready = |&(expert, _): &(u32, u32)| {
            let weights = table.weights(self.layer, expert).unwrap_or_default();
            weights.iter().all(|&w| presence(w).is_ready())
        };
        if let Some(at) = self.passing.iter().position(ready) {
            return self.passing.remove(at);
        }
        self.stays.pop().or_else(|| self.passing.pop_front())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn table() -> ExpertTable {
        let mut table = ExpertTable::default();
        for expert in 0..3 {
            table.add(1, expert, &[WeightId(expert * 2), WeightId(expert * 2 + 1)]);
        }
        table
    }

    #[test]
    fn a_routing_outside_the_model_is_refused() {
        let table = table();
        assert_eq!(table.weights(0, 0), Err(RoutingError::Layer { layer: 0, layers: 1 }));
        assert_eq!(table.weights(9, 0), Err(RoutingError::Layer { layer: 9, layers: 1 }));
        let wrong = RoutingError::Expert { layer: 1, expert: 3, experts: 3 };
        assert_eq!(table.weights(1, 3), Err(wrong));
        assert!(wrong.to_string().contains("3 experts"));
        let mut needed = Vec::new();
        let routing = Routing::new([(0, 1), (3, 1)]);
        let absent = |_| Presence::Absent;
        assert_eq!(table.remaining(1, &routing, absent, &mut needed).unwrap_err(), wrong);
        assert!(needed.is_empty());
    }

    #[test]
    fn what_was_loaded_comes_first_and_what_stays_fills_gaps() {
        let mut table = ExpertTable::default();
        (0..5).for_each(|expert| table.add(1, expert, &[WeightId(expert)]));
        let routing = Routing::new([(0, 9), (1, 2), (2, 5), (1, 1), (3, 7), (4, 0)]);
        let mut needed = Vec::new();
        // 0 and 1 stay, 2 and 3 have to be loaded.
        let before = |w: WeightId| if w.0 < 2 { Presence::Used } else { Presence::Absent };
        let mut remaining = table.remaining(1, &routing, before, &mut needed).unwrap();
        assert_eq!(needed, [3, 2, 0, 1].map(WeightId));
        assert_eq!(remaining.next(&table, before), Some((1, 3)));
        let second = |w: WeightId| if w.0 == 2 { Presence::Fresh } else { before(w) };
        assert_eq!(remaining.next(&table, second), Some((2, 5)));
        assert_eq!(remaining.next(&table, before), Some((0, 9)));
        assert_eq!(remaining.next(&table, |_| Presence::Loading), Some((3, 7)));
        assert_eq!(remaining.next(&table, before), None);
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(256))]
        #[test]
        fn every_expert_is_given_once_whatever_is_ready_when(
            rows in proptest::collection::vec(0u32..20, 12), seed: u64,
        ) {
            let mut table = ExpertTable::default();
            (0..12).for_each(|e| table.add(0, e, &[WeightId(2 * e), WeightId(2 * e + 1)]));
            let routing = Routing::new((0..12).zip(rows));
            let presence = |time: u64| move |w: WeightId| {
                let mixed = (seed ^ time << 32 ^ u64::from(w.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                [Presence::Absent, Presence::Loading, Presence::Fresh, Presence::Used]
                    [(mixed >> 62) as usize]
            };
            let mut needed = Vec::new();
            let mut remaining = table.remaining(0, &routing, presence(0), &mut needed).unwrap();
            proptest::prop_assert_eq!(needed.len(), 2 * routing.rows().len());
            let mut given: Vec<_> =
                (1..).map_while(|time| remaining.next(&table, presence(time))).collect();
            given.sort_by_key(|&(expert, rows)| (std::cmp::Reverse(rows), expert));
            proptest::prop_assert_eq!(&given[..], routing.rows());
        }
    }
}
