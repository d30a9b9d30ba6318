//! Which tier each weight gets.

use crate::model::{Model, Weight};
use crate::pattern::matches;
use crate::quantise::{ParseTierError, Tier};
use rknpu_sys::layout::{Layout, Precision};

/// Below so many bits a source has no more to give than int4 holds.
const INT4_BELOW_BITS: f32 = 5.0;
/// From so many bits on, a source is fine enough for uneven levels to pay.
const NF4_FROM_BITS: f32 = 16.0;

/// Rules by name, first match first, and a default.
///
/// ```
/// use ork_weights::convert::TierChoice;
/// use ork_weights::quantise::Tier;
///
/// let mut choice = TierChoice::fixed(Tier::Int8);
/// choice.add("blk.*.ffn_*=nf4")?;
/// assert_eq!(choice.by_name("blk.3.ffn_up.weight"), Some(Tier::Nf4));
/// assert_eq!(choice.by_name("blk.3.attn_q.weight"), None);
/// # Ok::<(), ork_weights::convert::RuleError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TierChoice {
    rules: Vec<(String, Tier)>,
    default: Option<Tier>,
}

/// Why a rule is refused.
///
/// ```
/// use ork_weights::convert::{RuleError, TierChoice};
///
/// let mut choice = TierChoice::default();
/// assert!(matches!(choice.add("blk.*"), Err(RuleError::NoTier { .. })));
/// assert!(matches!(choice.add("blk.*=int9"), Err(RuleError::Tier(_))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Not of the form `PATTERN=TIER`.
    #[error("{rule:?} is no rule: PATTERN=TIER, as in blk.*.ffn_*=nf4")]
    NoTier {
        /// The rule.
        rule: Box<str>,
    },
    /// What follows the `=` names no tier.
    #[error(transparent)]
    Tier(#[from] ParseTierError),
}

impl TierChoice {
    /// `tier` for all.
    ///
    /// ```
    /// use ork_weights::{convert::TierChoice, quantise::Tier};
    ///
    /// assert_eq!(TierChoice::fixed(Tier::default()), TierChoice::default());
    /// ```
    pub const fn fixed(tier: Tier) -> TierChoice {
        TierChoice { rules: Vec::new(), default: Some(tier) }
    }

    /// By the bits of each source: int8, but a compact int4 for sources of fewer than 5 bits and for
    /// all feed-forward matrices of a model with experts; NF4 where the model has experts or the
    /// source 16 bits or more.
    ///
    /// ```
    /// use ork_weights::{convert::TierChoice, quantise::Tier};
    ///
    /// # use ork_weights::model::{Model, OpenOptions};
    /// # let file = ork_weights::doc::model()?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    /// // Four bits have no more to give than int4 holds: 4.5 bits a value in the file.
    /// let choice = TierChoice::by_source();
    /// let q4 = model.weight("blk.0.attn_q.weight").ok_or("no such weight")?;
    /// let q8 = model.weight("blk.0.attn_v.weight").ok_or("no such weight")?;
    /// assert_eq!((choice.of(&model, q4), choice.of(&model, q8)), (Tier::O4n1, Tier::Int8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn by_source() -> TierChoice {
        TierChoice { rules: Vec::new(), default: None }
    }

    /// Adds a rule `PATTERN=TIER`, after those there are; `*` stands for any characters.
    ///
    /// ```
    /// use ork_weights::convert::TierChoice;
    ///
    /// let mut choice = TierChoice::by_source();
    /// assert!(choice.add("output.weight=int8").is_ok());
    /// assert!(choice.add("output.weight=int9").is_err());
    /// ```
    ///
    /// # Errors
    /// [`RuleError`] when it has no `=`, or what follows it names no tier.
    pub fn add(&mut self, rule: &str) -> Result<(), RuleError> {
        let (pattern, tier) =
            rule.rsplit_once('=').ok_or_else(|| RuleError::NoTier { rule: rule.into() })?;
        self.rules.push((pattern.to_owned(), tier.parse()?));
        Ok(())
    }

    /// The tier a rule gives.
    ///
    /// ```
    /// use ork_weights::{convert::TierChoice, quantise::Tier};
    ///
    /// let mut choice = TierChoice::by_source();
    /// choice.add("*.attn_*=int8")?;
    /// choice.add("*=nf4")?;
    /// assert_eq!(choice.by_name("blk.0.attn_q.weight"), Some(Tier::Int8)); // the first that matches
    /// assert_eq!(choice.by_name("output.weight"), Some(Tier::Nf4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn by_name(&self, name: &str) -> Option<Tier> {
        self.rules.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, tier)| *tier)
    }

    /// Patterns that decide the tier of no weight of `model`: none fits, or earlier rules do.
    ///
    /// ```
    /// use ork_weights::convert::TierChoice;
    /// use ork_weights::model::{Model, OpenOptions, synth::Shape};
    ///
    /// let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
    /// Shape::tiny().write(file.as_file())?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    ///
    /// let mut choice = TierChoice::default();
    /// choice.add("*ffn_up*=nf4")?;
    /// choice.add("*fnn_down*=nf4")?; // a slip of the fingers
    /// assert_eq!(choice.unused(&model), ["*fnn_down*"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unused(&self, model: &Model) -> Vec<&str> {
        let mut used = vec![false; self.rules.len()];
        for weight in model.weights() {
            if let Some(rule) = self.rules.iter().position(|rule| matches(&rule.0, &weight.name)) {
                used[rule] = true;
            }
        }
        let unused = self.rules.iter().zip(used).filter(|(_, used)| !used);
        unused.map(|((pattern, _), _)| &**pattern).collect()
    }

    /// The tier of a weight of `model`. What tiles as int8 only, without padding, becomes int8.
    pub fn of(&self, model: &Model, weight: &Weight) -> Tier {
        let tier = self
            .by_name(&weight.name)
            .or(self.default)
            .unwrap_or_else(|| by_source(weight, model.has_experts()));
        let precision = match tier {
            Tier::Int4AsInt8 { .. } => Precision::Int4,
            _ => tier.precision(),
        };
        let tiles = |precision| Layout::new(weight.k, weight.n, precision).is_ok();
        match tiles(precision) || !tiles(Precision::Int8) {
            true => tier,
            false => Tier::Int8,
        }
    }

    /// The tier of all weights, if no rule can give one another.
    pub(super) fn only(&self) -> Option<Tier> {
        self.default.filter(|_| self.rules.is_empty())
    }
}

impl Default for TierChoice {
    /// [`Tier::default`] for all.
    fn default() -> TierChoice {
        TierChoice::fixed(Tier::default())
    }
}

fn by_source(weight: &Weight, experts: bool) -> Tier {
    let bits = weight.kind.bits();
    let feed_forward = weight.name.contains("ffn") || weight.name.contains("mlp");
    match bits < INT4_BELOW_BITS || experts && feed_forward {
        false => Tier::Int8,
        true if experts || bits >= NF4_FROM_BITS => Tier::Nf4,
        true => Tier::O4n1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_tried_in_order() {
        let mut choice = TierChoice::by_source();
        choice.add("*ffn_down*=int8").unwrap();
        choice.add("*=int4:32").unwrap();
        assert_eq!(choice.by_name("blk.0.ffn_down.weight"), Some(Tier::Int8));
        assert_eq!(choice.by_name("x"), Some(Tier::Int4 { group: Some(32) }));
        assert!(choice.add("no rule").is_err());
        assert!(choice.add("a=b").is_err());
    }
}
