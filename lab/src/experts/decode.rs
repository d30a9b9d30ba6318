//! Decode on recorded routings: which uses of experts find their weights there.

use ork_cache::experts::{Predictor, RoutingError};
use ork_cache::internals::{Home, Limits, PAGE, Policy, Purpose, Residency, Step, WeightSpec};
use ork_cache::{DomainId, Error, WeightId};

use crate::Result;
use crate::policies::{NextUse, Trace};

/// What a run over routings gave; an expert counts as one weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodeReport {
    /// Uses of experts.
    pub(crate) uses: u64,
    /// Uses that found the expert there, cached or guessed.
    pub(crate) hits: u64,
    /// Loads, guesses included.
    pub(crate) loads: u64,
    /// Guesses loaded.
    pub(crate) guesses: u64,
}

impl DecodeReport {
    /// Share of uses that hit; 0 without uses.
    pub(crate) fn hit_rate(&self) -> f64 {
        if self.uses == 0 { 0.0 } else { self.hits as f64 / self.uses as f64 }
    }
}

/// The routings of a model token by token, `[token][layer][expert]`, and room for `slots` experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decode<'a> {
    /// Routings.
    pub(crate) tokens: &'a [Vec<Vec<u32>>],
    /// Experts of a layer.
    pub(crate) experts: u32,
    /// Slots, over all layers.
    pub(crate) slots: usize,
    /// Tokens at the start that do not count.
    pub(crate) warm_up: usize,
}

impl Decode<'_> {
    /// Decodes with a policy, and a predictor of which the likeliest absent experts of each layer, up
    /// to the given number, are loaded before its router runs: the residency decides as in a live cache,
    /// and loads take no time.
    ///
    /// # Errors
    /// An expert outside the model.
    pub(crate) fn run(
        &self,
        policy: Box<dyn Policy>,
        mut predictor: Option<(&mut dyn Predictor, usize)>,
    ) -> Result<DecodeReport> {
        let weights = self.weights()?;
        let domain = DomainId(0);
        let mut residency = Residency::new(Limits::single(self.slots as u64 * PAGE), policy);
        let (class, slots) = residency.add_class(domain, PAGE, self.slots)?;
        slots.into_iter().for_each(|s| residency.slot_created(s));
        let spec = WeightSpec { bytes: PAGE, domain, home: Home::Class(class) };
        residency.attach(&vec![spec; weights])?;
        let id = |layer: usize, expert: u32| WeightId(layer as u32 * self.experts + expert);

        let (mut report, mut guesses) = (DecodeReport::default(), Vec::new());
        for (t, token) in self.tokens.iter().enumerate() {
            let counts = u64::from(t >= self.warm_up);
            for (layer, experts) in token.iter().enumerate() {
                guesses.clear();
                if let Some((predictor, most)) = &mut predictor {
                    predictor.predict(layer as u32, self.experts as usize, &mut guesses);
                    guesses.retain(|&guess| !residency.is_present(id(layer, guess)));
                    guesses.truncate(*most);
                }
                for &guess in &guesses {
                    if let Step::Load(t) =
                        residency.reserve(id(layer, guess), Purpose::Speculate)?
                    {
                        residency.complete(t, true, false);
                        report.loads += counts;
                        report.guesses += counts;
                    }
                }
                for &expert in experts {
                    report.uses += counts;
                    match residency.reserve(id(layer, expert), Purpose::Demand)? {
                        Step::Hit(_) => report.hits += counts,
                        Step::Load(ticket) => {
                            report.loads += counts;
                            residency.complete(ticket, true, true);
                        }
                        _ => return Err("fewer slots than one layer uses at once".into()),
                    }
                }
                for &expert in experts {
                    residency.unpin(id(layer, expert));
                }
                for &guess in &guesses {
                    residency.release(id(layer, guess));
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
        Ok(weights.ok_or(Error::TooManyWeights { most })?)
    }

    /// What Belady's rule does on demand with the same slots: it knows every use to come.
    ///
    /// # Errors
    /// An expert outside the model.
    pub(crate) fn belady(&self) -> Result<DecodeReport> {
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
