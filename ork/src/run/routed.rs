//! Batches whose rows a router sends to a few experts of each layer.

use std::collections::BTreeMap;

use ork_cache::Cache;
use ork_cache::Placed;
use ork_cache::Store;
use ork_cache::experts::{Experts, Routing, Transition};

use super::traffic::{Tokens, Traffic};
use crate::error::{Error, Result};

/// Part of what the predictor knows of an expert that remains when it is used again.
const KEEP: f32 = 0.95;

/// How made-up routers decide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routers {
    /// Experts of each layer that a row goes to.
    pub active: u32,
    /// Exponent of Zipf's law, which popularity follows.
    pub zipf: f64,
    /// Experts of the next layer that are guessed and loaded before its router has decided.
    pub guesses: usize,
}

/// The experts of one model, and routings made up for its batches: the same whatever is loaded when.
#[derive(Debug)]
pub(super) struct Router {
    /// Loads what is missing; without it each weight is loaded when it is used.
    ahead: Option<Experts>,
    /// Weights of each layer's experts, by place in the store.
    items: BTreeMap<(u32, u32), Vec<usize>>,
    tokens: Tokens,
    /// The batch at hand: `[row][layer][active]`.
    batch: Vec<Vec<Vec<u32>>>,
    /// Experts of the layer at hand and their rows, where nothing is loaded ahead.
    unordered: Vec<(u32, u32)>,
}

impl Router {
    /// # Errors
    /// [`Error::Usage`] for a model without experts, or with fewer than a row shall go to.
    pub(super) fn new(
        cache: &Cache,
        store: &Store,
        placed: &Placed,
        routers: Routers,
        prefetch: bool,
    ) -> Result<Router> {
        let mut items = BTreeMap::<_, Vec<usize>>::new();
        for (at, item) in store.items().iter().enumerate() {
            if let (Some(layer), Some(expert)) = (item.layer, item.expert) {
                items.entry((layer, expert)).or_default().push(at);
            }
        }
        let most = |of: fn(&(u32, u32)) -> u32| items.keys().map(of).max().map_or(0, |m| m + 1);
        let (layers, experts) = (most(|key| key.0), most(|key| key.1));
        if experts < routers.active.max(1) {
            return Err(Error::Usage(format!(
                "the model has {experts} experts in a layer, and rows shall go to {}: choose --active accordingly",
                routers.active
            )));
        }
        let ahead = match prefetch {
            true => {
                let loader = Experts::new(cache, store.items(), placed).map_err(Error::Thread)?;
                Some(match routers.guesses {
                    0 => loader,
                    most => loader.guessing(Box::new(Transition::new(experts, KEEP)), most),
                })
            }
            false => None,
        };
        let tokens = Traffic::zipf(layers, experts, routers.active, routers.zipf).stream();
        Ok(Router { ahead, items, tokens, batch: Vec::new(), unordered: Vec::new() })
    }

    /// Makes up the next batch.
    pub(super) fn next_batch(&mut self, rows: usize) {
        self.batch.clear();
        self.batch.extend(self.tokens.by_ref().take(rows));
    }

    /// Decides where the rows of the batch go in `layer`, for [`Router::next_expert`] to give.
    ///
    /// # Errors
    /// None for the layers of the model.
    pub(super) fn route(&mut self, layer: u32) -> Result<()> {
        let chosen = self.batch.iter().filter_map(|row| row.get(layer as usize));
        let routing = Routing::of_tokens(chosen.map(Vec::as_slice));
        match &mut self.ahead {
            Some(experts) => {
                experts.route(layer, &routing).map_err(|error| Error::Usage(error.to_string()))?
            }
            None => self.unordered = routing.rows().to_vec(),
        }
        Ok(())
    }

    /// The expert to compute now, and its rows.
    pub(super) fn next_expert(&mut self) -> Option<(u32, u32)> {
        match &mut self.ahead {
            Some(experts) => experts.next_expert(),
            None => self.unordered.pop(),
        }
    }

    /// The weights of an expert, by place in the store.
    pub(super) fn items(&self, layer: u32, expert: u32) -> &[usize] {
        self.items.get(&(layer, expert)).map_or(&[], Vec::as_slice)
    }
}
