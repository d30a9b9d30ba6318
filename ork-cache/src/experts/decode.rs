//! Decode on recorded routings: which uses of experts find their weights there.

use serde::Serialize;

use super::Predictor;
use crate::core::{Core, Home, Limits, PAGE, Purpose, Step, WeightSpec};
use crate::error::{Error, Result};
use crate::ids::{DomainId, WeightId};
use crate::policy::simulate::Trace;
use crate::policy::{NextUse, Policy};

/// What a run over routings gave; an expert counts as one weight.
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
    pub fn hit_rate(&self) -> f64 {
        if self.uses == 0 { 0.0 } else { self.hits as f64 / self.uses as f64 }
    }
}

/// The routings of a model token by token, `[token][layer][expert]`, and room for `slots` experts.
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
    /// # Errors
    /// An expert outside the model.
    pub fn run(
        &self,
        policy: Box<dyn Policy>,
        mut predictor: Option<(&mut dyn Predictor, usize)>,
    ) -> Result<DecodeReport> {
        let layers = self.tokens.first().map_or(0, Vec::len) as u32;
        let domain = DomainId(0);
        let mut core = Core::new(Limits::single(self.slots as u64 * PAGE), policy);
        let (class, slots) = core.add_class(domain, PAGE, self.slots)?;
        slots.into_iter().for_each(|s| core.slot_created(s));
        let spec = WeightSpec { bytes: PAGE, domain, home: Home::Class(class) };
        core.attach(&vec![spec; (layers * self.experts) as usize])?;
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

    /// What Belady's rule does on demand with the same slots: it knows every use to come.
    pub fn belady(&self) -> DecodeReport {
        let layers = self.tokens.first().map_or(0, Vec::len) as u32;
        let mut trace =
            Trace { bytes: vec![1; (layers * self.experts) as usize], uses: Vec::new() };
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
        DecodeReport { uses, hits, loads: uses - hits, guesses: 0 }
    }
}
