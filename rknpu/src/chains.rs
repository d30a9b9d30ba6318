//! What one chain of register programs may hold: what boards have shown, so that a board can correct it.
//!
//! A submit costs the same whatever it does, so products that share their input go as one chain on each
//! core where that is known to work. These rules are all that this crate believes about it; everything
//! that is not known to work is off.
//!
//! | chain over | int8 | fp16 | int4 | source |
//! |---|---|---|---|---|
//! | K slices of a weight, in one buffer | works | works | works | the C project, on boards |
//! | several weights of one N slice each | works | not known | not known | the same; in buffers of their own |
//! | N slices of a weight, in several buffers | failed | failed | failed | the same, precision not said: a timeout |
//! | N slices of a weight, in one buffer | not known | not known | not known | |
//! | another address of activations than the program before | works | works | works | the same |
//! | that, from one submit to the next | stale data | stale data | stale data | the same |
//!
//! The last two have no rule here: a chain begins at the first row, always.

use rknpu_sys::layout::{N_SLICE, Precision};

use crate::matmul::WeightRef;

/// What one chain may hold besides the K slices of a weight; see the [module](self).
///
/// ```
/// use rknpu::{Precision, chains::Chains};
///
/// let rules = Chains::seen_on_boards(Precision::Int8);
/// assert!(rules.weights > 1 && rules.buffers && !rules.n_slices);
/// assert_eq!(Chains::seen_on_boards(Precision::Fp16), Chains::NONE);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chains {
    /// Weights at most; 1 or less: each is submitted by itself.
    pub weights: u32,
    /// Whether these may lie in several buffers.
    pub buffers: bool,
    /// Whether a chain may go on from one N slice of a weight to the next, or to another weight.
    pub n_slices: bool,
}

impl Chains {
    /// A weight's K slices only, one N slice at a time.
    pub const NONE: Chains = Chains { weights: 1, buffers: false, n_slices: false };

    /// What has been seen to work.
    pub const fn seen_on_boards(precision: Precision) -> Chains {
        match precision {
            Precision::Int8 => Chains { weights: 8, buffers: true, n_slices: false },
            Precision::Fp16 | Precision::Int4 => Chains::NONE,
        }
    }

    /// How many of `weights`, from the first on, one chain may hold.
    pub(crate) fn run<'a, W>(&self, weights: impl Fn() -> W) -> usize
    where
        W: Iterator<Item = &'a WeightRef<'a>>,
    {
        let Some(first) = weights().next() else { return 0 };
        let whole = |weight: &WeightRef<'_>| self.n_slices || weight.layout().n() <= N_SLICE;
        let near = |weight: &WeightRef<'_>| self.buffers || weight.shares_buffer(first);
        let most = self.weights.max(1) as usize;
        let fits = |weight: &&WeightRef<'_>| whole(first) && whole(weight) && near(weight);
        weights().take(most).take_while(fits).count().max(1)
    }
}

/// The rules of each precision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainRules {
    int8: Chains,
    fp16: Chains,
    int4: Chains,
}

impl Default for ChainRules {
    fn default() -> ChainRules {
        let [int8, fp16, int4] = [Precision::Int8, Precision::Fp16, Precision::Int4];
        let seen = Chains::seen_on_boards;
        ChainRules { int8: seen(int8), fp16: seen(fp16), int4: seen(int4) }
    }
}

impl ChainRules {
    pub(crate) fn of(&self, precision: Precision) -> &Chains {
        match precision {
            Precision::Int8 => &self.int8,
            Precision::Fp16 => &self.fp16,
            Precision::Int4 => &self.int4,
        }
    }

    pub(crate) fn set(&mut self, precision: Precision, chains: Chains) {
        match precision {
            Precision::Int8 => self.int8 = chains,
            Precision::Fp16 => self.fp16 = chains,
            Precision::Int4 => self.int4 = chains,
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::{Device, Layout};

    #[test]
    fn rules_decide_which_weights_share_a_chain() {
        let device = Device::simulated(Default::default()).unwrap();
        let domain = device.domain(0).unwrap();
        let small = Layout::new(32, 32, Precision::Int8).unwrap();
        let wide = Layout::new(32, N_SLICE + 32, Precision::Int8).unwrap();
        let one = domain.alloc(1 << 20).unwrap().to_device().unwrap();
        let other = domain.alloc(1 << 20).unwrap().to_device().unwrap();
        let [a, b] = [0, 4096].map(|at| WeightRef::new(&one, at, small).unwrap());
        let c = WeightRef::new(&other, 0, small).unwrap();
        let d = WeightRef::new(&other, 4096, wide).unwrap();

        let seen = Chains::seen_on_boards(Precision::Int8);
        for (rules, weights, want) in [
            (seen, &[][..], 0),
            (seen, &[a, b, c], 3),
            (Chains { weights: 2, ..seen }, &[a, b, c], 2),
            (Chains { weights: 0, ..seen }, &[a, b], 1),
            (Chains { buffers: false, ..seen }, &[a, b, c], 2),
            // A weight of several N slices is alone, before and behind others.
            (seen, &[a, d, b], 1),
            (seen, &[d, a, b], 1),
            (Chains { n_slices: true, ..seen }, &[a, d, b], 3),
            (Chains::NONE, &[a, b], 1),
        ] {
            assert_eq!(rules.run(|| weights.iter()), want, "{rules:?} {weights:?}");
        }
    }
}
