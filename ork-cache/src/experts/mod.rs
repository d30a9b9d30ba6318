//! Mixtures of experts: the router says which experts a batch needs, and exactly those are loaded.
//!
//! Expert weights live in slots of their size that are created once; an expert larger than a slot
//! goes through in parts, the next one's parts filling slots as the current one's are done. When a
//! layer has been routed, [`Experts::route`] queues what is missing, most rows first, and
//! [`Experts::next_expert`] says again and again what to compute now, so that slots are free for
//! loads and the cores seldom wait. While nothing is missing, a [`Predictor`] may guess the next
//! layer's experts.

pub(crate) mod predictor;
pub(crate) mod routing;

use std::io;

pub use predictor::{Predictor, Transition};
pub use routing::{Routing, RoutingError};

use crate::cache::Cache;
use crate::ids::WeightId;
use crate::plan::{Item, Placed};
use crate::prefetch::Prefetcher;
use crate::residency::Presence;
use routing::{ExpertTable, Remaining};

/// The experts of one model in a cache, with a prefetcher of their own.
///
/// ```
/// use std::sync::Arc;
///
/// use ork_cache::experts::{Experts, Routing, Transition};
/// use ork_cache::{Setup, Store};
/// # use ork_weights::model::{Model, OpenOptions, synth::Shape};
/// # use ork_weights::quantise::Tier;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.gguf");
/// # Shape { layers: 2, experts: 16, ..Shape::tiny() }.write(std::fs::File::create(&path)?)?;
/// # let model = Model::open(&path, &OpenOptions::default())?;
///
/// // A made-up mixture with 16 experts in a layer, through room for half of its weights.
/// let store = Arc::new(Store::from_model(model, Tier::Int8, None)?);
/// let device = rknpu::Device::simulated(Default::default())?;
/// let setup = Setup { rows: 3, routed: true, ..Setup::new(store.bytes() / 2) };
/// let opened = ork_cache::open(&device, &[store.clone()], &setup)?;
///
/// // The two likeliest experts of the next layer are guessed before its router has run.
/// let experts = Experts::new(&opened.cache, store.items(), &opened.models[0])?;
/// let mut experts = experts.guessing(Box::new(Transition::new(16, 0.95)), 2);
/// for layer in 0..2 {
///     let tokens = [[4, 0], [4, 1], [4, 0]]; // what the router says: each token goes to two experts
///     experts.route(layer, &Routing::of_tokens(tokens.iter().map(|token| &token[..])))?;
///     while let Some((expert, rows)) = experts.next_expert() {
///         assert_eq!(rows, [2, 1, 0, 0, 3][expert as usize]);
///         for &weight in experts.weights(layer, expert)? {
///             let pinned = opened.cache.acquire(weight)?;
///             let _multiply_by = pinned.weight_ref()?;
///         }
///     }
/// }
/// assert!(experts.route(0, &Routing::new([(16, 1)])).is_err()); // no such expert
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Experts {
    cache: Cache,
    prefetcher: Prefetcher,
    table: ExpertTable,
    remaining: Remaining,
    predictor: Option<(Box<dyn Predictor>, usize)>,
    needed: Vec<WeightId>,
    guessed: Vec<u32>,
    guesses: Vec<WeightId>,
}

impl Experts {
    /// The experts among `items`, which are `placed` in `cache`.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub fn new(cache: &Cache, items: &[Item], placed: &Placed) -> io::Result<Experts> {
        Ok(Experts {
            cache: cache.clone(),
            prefetcher: Prefetcher::new(cache)?,
            table: ExpertTable::of_plan(items, placed),
            remaining: Remaining::default(),
            predictor: None,
            needed: Vec::new(),
            guessed: Vec::new(),
            guesses: Vec::new(),
        })
    }

    /// Guesses ahead: the `most` likeliest experts of the next layer that are absent.
    pub fn guessing(mut self, predictor: Box<dyn Predictor>, most: usize) -> Experts {
        self.predictor = Some((predictor, most));
        self
    }

    /// How many are guessed from now on, if a predictor guesses; with 0 it only learns.
    pub fn guess(&mut self, most: usize) {
        if let Some((_, guesses)) = &mut self.predictor {
            *guesses = most;
        }
    }

    /// The router of `layer` has run: queues what is missing, for [`Experts::next_expert`] to give.
    ///
    /// # Errors
    /// A layer or an expert outside the model; nothing is queued then.
    pub fn route(&mut self, layer: u32, routing: &Routing) -> Result<(), RoutingError> {
        self.needed.clear();
        let (table, needed) = (&self.table, &mut self.needed);
        self.remaining = self
            .cache
            .with_presence(|presence| table.remaining(layer, routing, presence, needed))?;
        self.prefetcher.replace(&self.needed);
        let Some((predictor, most)) = &mut self.predictor else { return Ok(()) };
        self.guessed.clear();
        self.guessed.extend(routing.rows().iter().map(|&(expert, _)| expert));
        predictor.observe(layer, &self.guessed);
        let next = if layer + 1 < self.table.layers() { layer + 1 } else { 0 };
        self.guessed.clear();
        predictor.predict(next, self.table.experts(next) as usize, &mut self.guessed);
        self.guesses.clear();
        let (table, guesses, guessed) = (&self.table, &mut self.guesses, &self.guessed);
        self.cache.with_presence(|presence| {
            let absent = |e: &u32| {
                // A guess outside the model is no guess.
                let weights = table.weights(next, *e).unwrap_or_default();
                let missing = weights.iter().any(|&w| presence(w) == Presence::Absent);
                missing.then_some(weights)
            };
            guesses.extend(guessed.iter().filter_map(absent).take(*most).flatten());
        });
        self.prefetcher.speculate(&self.guesses);
        Ok(())
    }

    /// The expert to compute now, and its rows; `None` when all experts of the batch have been given.
    /// Ask when the one before has been computed: what is ready by then decides.
    pub fn next_expert(&mut self) -> Option<(u32, u32)> {
        let Experts { cache, table, remaining, .. } = self;
        cache.with_presence(|presence| remaining.next(table, presence))
    }

    /// The weights of an expert, in order of use.
    ///
    /// # Errors
    /// A layer or an expert outside the model.
    pub fn weights(&self, layer: u32, expert: u32) -> Result<&[WeightId], RoutingError> {
        self.table.weights(layer, expert)
    }
}
