//! Which token comes next.

use crate::error::{Error, Result};
use crate::math::exp;

/// Chooses tokens from logits.
///
/// A choice depends on the seed, the place in the text, and the logits, and on nothing else: chance
/// is drawn for each place and token, not in the order of calls. So a draft and its verifier draw the
/// same chances, agree wherever their opinions allow it, and the text is the one that the verifier
/// would have written alone.
///
/// ```
/// use ork_llm::Sampler;
///
/// let logits = [0.5, 2.0, 1.0];
/// assert_eq!(Sampler::greedy().choose(&logits, 0), 1);
///
/// let sampler = Sampler::new(0.8, 0.95, 42)?;
/// assert_eq!(sampler.choose(&logits, 7), sampler.choose(&logits, 7));
/// assert!((0..100).any(|place| sampler.choose(&logits, place) != 1));
/// # Ok::<(), ork_llm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    temperature: f32,
    top_p: f32,
    seed: u64,
}

/// Candidates that are sorted at first; they hold most of the share in most texts.
const SORTED: usize = 256;

impl Sampler {
    /// The most likely token every time.
    pub fn greedy() -> Sampler {
        Sampler { temperature: 0.0, top_p: 1.0, seed: 0 }
    }

    /// Draws from the shares of logits divided by `temperature`, 0 for the most likely token, among
    /// the most likely tokens that together have a share of `top_p`.
    ///
    /// # Errors
    /// [`Error::Setting`] for a temperature that is negative or not finite, a share outside (0, 1].
    pub fn new(temperature: f32, top_p: f32, seed: u64) -> Result<Sampler> {
        let refuse = |setting, value: f32, range| {
            Err(Error::Setting { setting, value: value.into(), range })
        };
        if !(0.0..=f32::MAX).contains(&temperature) {
            return refuse(
                "temperature",
                temperature,
                "0 (the most likely token) or more is possible",
            );
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return refuse("top-p", top_p, "more than 0 and at most 1 is possible");
        }
        Ok(Sampler { temperature, top_p, seed })
    }

    /// The token for place `place` of a text, 0 being its first.
    pub fn choose(&self, logits: &[f32], place: usize) -> u32 {
        if self.temperature == 0.0 {
            return most_likely(logits);
        }
        // Each token waits for a time that is exponential with its share as rate; the first wins. That
        // is a draw by shares, with a chance for each token that does not depend on the others.
        let mut best = (f64::INFINITY, most_likely(logits));
        for (token, share) in self.candidates(logits) {
            let chance = self.chance(place, token);
            let share = f64::from(share);
            // −ln(c) is at least 1 − c: most logarithms need not be taken.
            if share > 0.0 && 1.0 - chance < best.0 * share {
                let time = -libm::log(chance) / share;
                if time < best.0 {
                    best = (time, token);
                }
            }
        }
        best.1
    }

    /// Tokens that may be chosen and their shares, which are not normalised.
    pub(crate) fn candidates(&self, logits: &[f32]) -> Vec<(u32, f32)> {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let share = |logit: f32| match exp((logit - most) / self.temperature) {
            share if share > 0.0 => share,
            _ => 0.0, // NaN too
        };
        let mut all: Vec<(u32, f32)> =
            (0..).zip(logits.iter().map(|logit| share(*logit))).collect();
        if self.top_p >= 1.0 {
            return all;
        }
        let total: f64 = all.iter().map(|candidate| f64::from(candidate.1)).sum();
        let enough = total * f64::from(self.top_p);
        let by_share = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let mut sorted = SORTED;
        loop {
            if sorted < all.len() {
                all.select_nth_unstable_by(sorted, by_share);
            }
            let end = sorted.min(all.len());
            all[..end].sort_unstable_by(by_share);
            let mut sum = 0f64;
            let reached = all[..end].iter().position(|candidate| {
                sum += f64::from(candidate.1);
                sum >= enough
            });
            match reached {
                Some(last) => all.truncate(last + 1),
                None if end < all.len() => {
                    sorted *= 8;
                    continue;
                }
                None => {}
            }
            return all;
        }
    }

    /// A number in (0, 1) for a place and a token.
    fn chance(&self, place: usize, token: u32) -> f64 {
        let bits = mix(mix(mix(self.seed).wrapping_add(place as u64)).wrapping_add(token.into()));
        ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }
}

/// The finaliser of SplitMix64, after its step: every bit of the result depends on every bit of `x`.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The token with the largest logit, the first of equals; 0 when none is a number.
pub(crate) fn most_likely(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (token, logit) in (0u32..).zip(logits) {
        if *logit > best.0 {
            best = (*logit, token);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// χ² of draws against shares; of 7 degrees of freedom, 24.3 is exceeded once in a thousand.
    fn chi_squared(shares: &[f64], draws: usize, draw: impl Fn(usize) -> u32) -> f64 {
        let mut counts = vec![0f64; shares.len()];
        (0..draws).for_each(|place| counts[draw(place) as usize] += 1.0);
        let expected = |share: &f64| share * draws as f64;
        counts
            .iter()
            .zip(shares)
            .filter(|(_, share)| **share > 0.0)
            .map(|(count, share)| (count - expected(share)).powi(2) / expected(share))
            .sum()
    }

    const LOGITS: [f32; 8] = [0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -2.0, 0.25];

    fn shares(temperature: f64, kept: usize) -> Vec<f64> {
        let mut order: Vec<usize> = (0..8).collect();
        order.sort_by(|a, b| LOGITS[*b].total_cmp(&LOGITS[*a]));
        let mut shares = [0f64; 8];
        order[..kept].iter().for_each(|i| shares[*i] = (f64::from(LOGITS[*i]) / temperature).exp());
        let sum: f64 = shares.iter().sum();
        shares.iter().map(|share| share / sum).collect()
    }

    #[test]
    fn draws_have_the_shares_they_should() {
        for (temperature, top_p, kept) in
            [(1.0, 1.0, 8), (0.7, 1.0, 8), (1.5, 1.0, 8), (1.0, 0.7, 3)]
        {
            let sampler = Sampler::new(temperature, top_p, 3).unwrap();
            let wanted = shares(temperature.into(), kept);
            let found = chi_squared(&wanted, 100_000, |place| sampler.choose(&LOGITS, place));
            assert!(found < 24.3, "{temperature} {top_p}: {found}");
            // The test sees what is off by little.
            let off = shares(f64::from(temperature) * 1.05, kept);
            assert!(chi_squared(&off, 100_000, |place| sampler.choose(&LOGITS, place)) > 24.3);
        }
    }

    #[test]
    fn top_p_keeps_the_fewest_that_reach_it() {
        for count in [100usize, 300, 5000] {
            // Equal shares: half of them are half.
            let logits = vec![1.0; count];
            let kept = Sampler::new(1.0, 0.5, 0).unwrap().candidates(&logits);
            assert_eq!(kept.len(), count / 2);
        }
        assert_eq!(Sampler::new(1.0, 1e-6, 0).unwrap().candidates(&LOGITS), [(2, 1.0)]);
    }

    #[test]
    fn numbers_that_are_none_do_no_harm() {
        let sampler = Sampler::new(1.0, 0.9, 1).unwrap();
        assert_eq!(sampler.choose(&[f32::NAN, 1.0, f32::NEG_INFINITY], 0), 1);
        assert_eq!(Sampler::greedy().choose(&[f32::NAN, -1.0], 0), 1);
        for logits in [&[][..], &[f32::NAN; 3], &[f32::INFINITY; 2], &[f32::NEG_INFINITY; 2]] {
            assert!(sampler.choose(logits, 0) <= 1);
        }
        for (temperature, top_p) in [(-1.0, 1.0), (f32::NAN, 1.0), (1.0, 0.0), (1.0, f32::NAN)] {
            assert!(matches!(Sampler::new(temperature, top_p, 0), Err(Error::Setting { .. })));
        }
    }
}
