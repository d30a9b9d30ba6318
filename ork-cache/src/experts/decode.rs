//! Decode on recorded routings: which uses of experts find their weights there.

use serde::Serialize;

use super::{Predictor, RoutingError};
use crate::core::{Core, Home, Limits, PAGE, Purpose, Step, WeightSpec};
use crate::error::{Error, Result};
use crate::ids::{DomainId, WeightId};
use crate::policy::simulate::Trace;
use crate::policy::{NextUse, Policy};

/// What a run over routings gave; an expert counts as one weight.
///
/// ```
/// use ork_cache::experts::DecodeReport;
///
/// let report = DecodeReport { uses: 8, hits: 6, loads: 2, guesses: 0 };
/// assert_eq!(report.hit_rate(), 0.75);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DecodeReport {
    /// Uses of experts.
    pub uses: u64,
    /// Uses that found the expert there, cached or guessed.
    pub hits: u64,
    /// Loads, guesses included.
    pub loads: u64,
    /// Guesses loaded.
    pub guesses: u64,
}

impl DecodeReport {
    /// Share of uses that hit; 0 without uses.
    ///
    /// ```
    /// # use ork_cache::experts::DecodeReport;
    /// assert_eq!(DecodeReport::default().hit_rate(), 0.0);
    /// ```
    pub fn hit_rate(&self) -> f64 {
        if self.uses == 0 { 0.0 } else { self.hits as f64 / self.uses as f64 }
    }
}

/// The routings of a model token by token, `[token][layer][expert]`, and room for `slots` experts.
///
/// ```
/// use ork_cache::experts::Decode;
/// use ork_cache::policy::Lru;
///
/// // Two tokens through one layer of four experts, two of them for each token, room for two.
/// let tokens = [vec![vec![0, 1]], vec![vec![1, 2]]];
/// let decode = Decode { tokens: &tokens, experts: 4, slots: 2, warm_up: 0 };
/// let report = decode.run(Box::new(Lru::new()), None)?;
/// assert_eq!((report.uses, report.hits), (4, 1));
/// # Ok::<(), ork_cache::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Decode<'a> {
    /// Routings.
    pub tokens: &'a [Vec<Vec<u32>>],
    /// Experts of a layer.
    pub experts: u32,
    /// Slots, over all layers.
    pub slots: usize,
    /// Tokens at the start that do not count.
    pub warm_up: usize,
}

impl Decode<'_> {
    /// Decodes with a policy, and a predictor of which the likeliest absent experts of each layer, up
    /// to the given number, are loaded before its router runs: the core decides as in a live cache,
    /// and loads take no time.
    ///
    /// ```
    /// use ork_cache::experts::{Decode, LastUsed};
    /// use ork_cache::policy::Lru;
    ///
    /// let tokens = vec![vec![vec![0, 1], vec![2, 3]]; 8];
    /// let decode = Decode { tokens: &tokens, experts: 4, slots: 4, warm_up: 1 };
    /// let report = decode.run(Box::new(Lru::new()), Some((&mut LastUsed::default(), 2)))?;
    /// assert_eq!(report.hit_rate(), 1.0); // every token is like the one before
    /// let outside = [vec![vec![4]]];
    /// assert!(Decode { tokens: &outside, ..decode }.run(Box::new(Lru::new()), None).is_err());
    /// # Ok::<(), ork_cache::Error>(())
    /// ```
    ///
    /// # Errors
    /// An expert outside the model.
    pub fn run(
        &self,
        policy: Box<dyn Policy>,
        mut predictor: Option<(&mut dyn Predictor, usize)>,
    ) -> Result<DecodeReport> {
        let weights = self.weights()?;
        let domain = DomainId(0);
        let mut core = Core::new(Limits::single(self.slots as u64 * PAGE), policy);
        let (class, slots) = core.add_class(domain, PAGE, self.slots)?;
        slots.into_iter().for_each(|s| core.slot_created(s));
        let spec = WeightSpec { bytes: PAGE, domain, home: Home::Class(class) };
        core.attach(&vec![spec; weights])?;
        let id = |layer: usize, expert: u32| WeightId(layer as u32 * self.experts + expert);

        let (mut report, mut guesses) = (DecodeReport::default(), Vec::new());
        for (t, token) in self.tokens.iter().enumerate() {
            let counts = u64::from(t >= self.warm_up);
            for (layer, experts) in token.iter().enumerate() {
                guesses.clear();
                if let Some((predictor, most)) = &mut predictor {
                    predictor.predict(layer as u32, self.experts as usize, &mut guesses);
                    guesses.retain(|&guess| !core.is_present(id(layer, guess)));
                    guesses.truncate(*most);
                }
                for &guess in &guesses {
                    if let Step::Load(t) = core.reserve(id(layer, guess), Purpose::Speculate)? {
                        core.complete(t, true, false);
                        report.loads += counts;
                        report.guesses += counts;
                    }
                }
                for &expert in experts {
                    report.uses += counts;
                    match core.reserve(id(layer, expert), Purpose::Demand)? {
                        Step::Hit(_) => report.hits += counts,
                        Step::Load(ticket) => {
                            report.loads += counts;
                            core.complete(ticket, true, true);
                        }
                        _ => return Err(Error::Stuck),
                    }
                }
                for &expert in experts {
                    core.unpin(id(layer, expert));
                }
                for &guess in &guesses {
                    core.release(id(layer, guess));
                }
                if let Some((predictor, _)) = &mut predictor {
                    predictor.observe(layer as u32, experts);
                }
            }
        }
        Ok(report)
    }

    /// Experts of all layers.
    fn weights(&self) -> Result<usize> {
        let layers = self.tokens.iter().map(Vec::len).max().unwrap_or(0);
        for (layer, routed) in self.tokens.iter().flat_map(|token| token.iter().enumerate()) {
            if let Some(&expert) = routed.iter().find(|&&expert| expert >= self.experts) {
                let (layer, experts) = (layer as u32, self.experts);
                return Err(RoutingError::Expert { layer, expert, experts }.into());
            }
        }
        let most = u32::MAX as usize;
        let weights = layers.checked_mul(self.experts as usize).filter(|&n| n < most);
        weights.ok_or(Error::TooManyWeights { most })
    }

    /// What Belady's rule does on demand with the same slots: it knows every use to come.
    ///
    /// ```
    /// use ork_cache::experts::Decode;
    /// use ork_cache::policy::Lru;
    ///
    /// let tokens = [0, 1, 2, 0, 1, 2].map(|expert| vec![vec![expert]]);
    /// let decode = Decode { tokens: &tokens, experts: 3, slots: 2, warm_up: 0 };
    /// assert_eq!(decode.run(Box::new(Lru::new()), None)?.hits, 0);
    /// assert_eq!(decode.belady()?.hits, 2);
    /// # Ok::<(), ork_cache::Error>(())
    /// ```
    ///
    /// # Errors
    /// An expert outside the model.
    pub fn belady(&self) -> Result<DecodeReport> {
        let mut trace = Trace { bytes: vec![1; self.weights()?], uses: Vec::new() };
        let mut from = 0;
        for (t, token) in self.tokens.iter().enumerate() {
            if t == self.warm_up {
                from = trace.uses.len();
            }
            for (layer, experts) in token.iter().enumerate() {
                let id = |e: &u32| WeightId(layer as u32 * self.experts + e);
                trace.uses.extend(experts.iter().map(id));
            }
        }
        let mut policy = NextUse::once(&trace.uses);
        let outcome = trace.run_from(&mut policy, self.slots as u64, from);
        let (uses, hits) = (outcome.uses, outcome.hits);
        Ok(DecodeReport { uses, hits, loads: uses - hits, guesses: 0 })
    }
}
