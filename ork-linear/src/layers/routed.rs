//! Experts: those that a router has chosen are loaded ahead, and computed as they become ready.

use ork_cache::experts::{Experts, Routing, Transition};
use ork_cache::{Cache, Placed, Store};

use crate::error::{Error, Result};

/// Part of what the predictor knows of an expert that remains when it is used again.
const KEEP: f32 = 0.95;

/// Experts of the next layer that are guessed for a single token. A batch's are many, and known before
/// they are needed.
const GUESSES: usize = 4;

/// The experts of a model that are not all resident.
#[derive(Debug)]
pub(super) struct Routed {
    experts: Experts,
    /// Layer and expert of each weight.
    of: Vec<Option<(u32, u32)>>,
}

impl Routed {
    /// `None` for a model without experts, or one of which nothing is streamed.
    pub(super) fn new(cache: &Cache, store: &Store, placed: &Placed) -> Result<Option<Routed>> {
        let of = store.items().iter().map(|item| item.layer.zip(item.expert));
        let of: Vec<Option<(u32, u32)>> = of.collect();
        let last = of.iter().flatten().map(|(_, expert)| *expert).max();
        let Some(last) = last.filter(|_| !placed.streamed.is_empty()) else { return Ok(None) };
        let experts = Experts::new(cache, store.items(), placed).map_err(Error::Thread)?;
        let predictor = Box::new(Transition::new(last.saturating_add(1), KEEP));
        Ok(Some(Routed { experts: experts.guessing(predictor, GUESSES), of }))
    }

    /// The experts with these weights, one of each, are to be computed for `rows` rows.
    pub(super) fn route(&mut self, rows: usize, weights: impl Iterator<Item = usize>) {
        let chosen: Vec<(u32, u32)> = weights.filter_map(|weight| self.place(weight)).collect();
        let Some((layer, _)) = chosen.first() else { return };
        self.experts.guess(if rows == 1 { GUESSES } else { 0 });
        let routing = Routing::new(chosen.iter().map(|(_, expert)| (*expert, 1)));
        // Experts of the model's own table are in it; others would be loaded when they are used.
        let _ = self.experts.route(*layer, &routing);
    }

    fn place(&self, weight: usize) -> Option<(u32, u32)> {
        self.of.get(weight).copied().flatten()
    }
}
