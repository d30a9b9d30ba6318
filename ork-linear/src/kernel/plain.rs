//! Without instructions of any kind: the twin that the others are tested against.

use super::{Isa, RUN, SUMS};

/// Any processor.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Isa for Plain {
    type Weights = [i32; RUN];
    type Inputs = [i32; RUN];
    type Sum = i32;
    const BIAS: i32 = 0;

    #[inline(always)]
    fn weights(self, codes: &[u8; RUN]) -> [i32; RUN] {
        codes.map(|code| i32::from(code as i8))
    }

    #[inline(always)]
    fn inputs(self, codes: &[i8; RUN]) -> [i32; RUN] {
        codes.map(i32::from)
    }

    #[inline(always)]
    fn zero(self) -> i32 {
        0
    }

    #[inline(always)]
    fn add(self, sum: i32, weights: [i32; RUN], inputs: [i32; RUN]) -> i32 {
        let products = weights.iter().zip(&inputs).map(|(w, x)| w * x);
        products.fold(sum, i32::wrapping_add)
    }

    #[inline(always)]
    fn totals(self, sums: [i32; SUMS]) -> [i32; SUMS] {
        sums
    }
}
