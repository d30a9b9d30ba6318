//! Mixtures of experts: the router says which experts a batch needs, and exactly those are loaded.
//!
//! Expert weights live in slots of their size that are created once; an expert larger than a slot
//! goes through in parts, the next one's parts filling slots as the current one's are done. When a
//! layer has been routed, [`Experts::route`] queues what is missing, most rows first, and
//! [`Experts::next_expert`] says again and again what to compute now, so that slots are free for
//! loads and the cores seldom wait. While nothing is missing, a [`Predictor`] may guess the next
//! layer's experts.

mod decode;
mod predictor;
mod routing;
mod traffic;

use std::io;

pub use decode::{Decode, DecodeReport};
pub use predictor::{LastUsed, Popularity, Predictor, Transition};
pub use routing::{ExpertTable, Remaining, Routing, RoutingError};
pub use traffic::{Tokens, Traffic};

use crate::backend::Backend;
use crate::cache::{Cache, Pinned};
use crate::core::Presence;
use crate::error::Result;
use crate::ids::WeightId;
use crate::prefetch::Prefetcher;

/// The experts of one model in a cache, with a prefetcher of their own.
///
/// ```
/// use ork_cache::core::{Home, Limits, WeightSpec};
/// use ork_cache::experts::{ExpertTable, Experts, Popularity, Routing};
/// use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lfu};
///
/// // Two layers of four experts, one weight each, and room for half of them.
/// let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lfu::new(64)));
/// let class = cache.add_class(DomainId(0), 4096, 4)?;
/// let spec = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(class) };
/// cache.attach(&[spec; 8])?;
/// let mut table = ExpertTable::default();
/// for (layer, expert) in (0..8).map(|i| (i / 4, i % 4)) {
///     table.add(layer, expert, &[WeightId(layer * 4 + expert)]);
/// }
/// let mut experts = Experts::new(&cache, table)?.guessing(Box::new(Popularity::new(4, 0.99)), 2);
///
/// for layer in 0..2 {
///     experts.route(layer, &Routing::new([(2, 10), (0, 3)]))?;
///     while let Some((expert, _rows)) = experts.next_expert() {
///         for weight in experts.weights(layer, expert)?.to_vec() {
///             assert_eq!(experts.acquire(weight)?.content(), Some(weight));
///         }
///     }
/// }
/// assert!(experts.route(0, &Routing::new([(9, 1)])).is_err()); // no such expert
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Experts<B: Backend> {
    cache: Cache<B>,
    prefetcher: Prefetcher<B>,
    table: ExpertTable,
    remaining: Remaining,
    predictor: Option<(Box<dyn Predictor>, usize)>,
    needed: Vec<WeightId>,
    guessed: Vec<u32>,
    guesses: Vec<WeightId>,
}

impl<B: Backend> Experts<B> {
    /// The experts of `table`, whose weights are attached to `cache`.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::experts::{ExpertTable, Experts, LastUsed, Routing};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let class = cache.add_class(DomainId(0), 4096, 4)?;
    /// # cache.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(class) }; 8])?;
    /// # let mut table = ExpertTable::default();
    /// # (0..8).for_each(|i| table.add(i / 4, i % 4, &[WeightId(i)]));
    /// let experts = Experts::new(&cache, table)?;
    /// assert_eq!(experts.weights(1, 3)?, [WeightId(7)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The system refuses another thread.
    pub fn new(cache: &Cache<B>, table: ExpertTable) -> io::Result<Experts<B>> {
        Ok(Experts {
            cache: cache.clone(),
            prefetcher: Prefetcher::new(cache)?,
            table,
            remaining: Remaining::default(),
            predictor: None,
            needed: Vec::new(),
            guessed: Vec::new(),
            guesses: Vec::new(),
        })
    }

    /// Guesses ahead: the `most` likeliest experts of the next layer that are absent.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::experts::{ExpertTable, Experts, LastUsed, Routing};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let class = cache.add_class(DomainId(0), 4096, 4)?;
    /// # cache.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(class) }; 8])?;
    /// # let mut table = ExpertTable::default();
    /// # (0..8).for_each(|i| table.add(i / 4, i % 4, &[WeightId(i)]));
    /// let mut experts = Experts::new(&cache, table)?.guessing(Box::new(LastUsed::default()), 2);
    /// experts.route(0, &Routing::new([(1, 1)]))?; // queues what layer 1 used last, once it is idle
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn guessing(mut self, predictor: Box<dyn Predictor>, most: usize) -> Experts<B> {
        self.predictor = Some((predictor, most));
        self
    }

    /// The router of `layer` has run: queues what is missing, for [`Experts::next_expert`] to give.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::experts::{ExpertTable, Experts, LastUsed, Routing};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let class = cache.add_class(DomainId(0), 4096, 4)?;
    /// # cache.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(class) }; 8])?;
    /// # let mut table = ExpertTable::default();
    /// # (0..8).for_each(|i| table.add(i / 4, i % 4, &[WeightId(i)]));
    /// let mut experts = Experts::new(&cache, table)?;
    /// experts.route(0, &Routing::new([(0, 9), (2, 1)]))?; // experts 0 and 2 are loaded
    /// assert!(experts.route(0, &Routing::new([(4, 1)])).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A layer or an expert outside the model; nothing is queued then.
    pub fn route(
        &mut self,
        layer: u32,
        routing: &Routing,
    ) -> std::result::Result<(), RoutingError> {
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
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::experts::{ExpertTable, Experts, LastUsed, Routing};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let class = cache.add_class(DomainId(0), 4096, 4)?;
    /// # cache.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(class) }; 8])?;
    /// # let mut table = ExpertTable::default();
    /// # (0..8).for_each(|i| table.add(i / 4, i % 4, &[WeightId(i)]));
    /// let mut experts = Experts::new(&cache, table)?;
    /// experts.route(0, &Routing::new([(0, 9), (2, 1)]))?;
    /// while let Some((expert, rows)) = experts.next_expert() {
    ///     assert!([(0, 9), (2, 1)].contains(&(expert, rows)));
    ///     drop(experts.acquire(experts.weights(0, expert)?[0])?); // compute
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_expert(&mut self) -> Option<(u32, u32)> {
        let Experts { cache, table, remaining, .. } = self;
        cache.with_presence(|presence| remaining.next(table, presence))
    }

    /// The weights of an expert, in order of use.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::experts::{ExpertTable, Experts, LastUsed, Routing};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let class = cache.add_class(DomainId(0), 4096, 4)?;
    /// # cache.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(class) }; 8])?;
    /// # let mut table = ExpertTable::default();
    /// # (0..8).for_each(|i| table.add(i / 4, i % 4, &[WeightId(i)]));
    /// let experts = Experts::new(&cache, table)?;
    /// assert_eq!(experts.weights(0, 2)?, [WeightId(2)]);
    /// assert!(experts.weights(0, 4).is_err() && experts.weights(2, 0).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A layer or an expert outside the model.
    pub fn weights(
        &self,
        layer: u32,
        expert: u32,
    ) -> std::result::Result<&[WeightId], RoutingError> {
        self.table.weights(layer, expert)
    }

    /// As [`Cache::acquire`].
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::experts::{ExpertTable, Experts, LastUsed, Routing};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let class = cache.add_class(DomainId(0), 4096, 4)?;
    /// # cache.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Class(class) }; 8])?;
    /// # let mut table = ExpertTable::default();
    /// # (0..8).for_each(|i| table.add(i / 4, i % 4, &[WeightId(i)]));
    /// let experts = Experts::new(&cache, table)?;
    /// assert_eq!(experts.acquire(WeightId(5))?.content(), Some(WeightId(5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Cache::acquire`].
    pub fn acquire(&self, weight: WeightId) -> Result<Pinned<B>> {
        self.cache.acquire(weight)
    }
}
