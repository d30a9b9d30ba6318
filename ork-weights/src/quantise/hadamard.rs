//! The rotation of the int4 tiers: a normalised Walsh–Hadamard transform.
//!
//! It spreads outliers over a block, so that four bits go further. It is its own inverse and keeps
//! dot products, so weights and activations rotated alike multiply to the same result.

use crate::simd::{Kernel, Machine, dispatch};

/// Values of a block for rows of `k`: the largest power of two that divides it.
///
/// ```
/// assert_eq!(ork_weights::quantise::block_of(11008), 256);
/// assert_eq!(ork_weights::quantise::block_of(4096), 4096);
/// ```
pub const fn block_of(k: u32) -> u32 {
    match k {
        0 => 0,
        _ => 1 << k.trailing_zeros(),
    }
}

/// Rotates a row (or a row of activations) in place, block by block. The block is
/// [`block_of`] its length; a row of 0 or an odd number of values stays as it is.
///
/// ```
/// let mut row = [1.0, 1.0, 1.0, 1.0];
/// ork_weights::quantise::rotate(&mut row);
/// assert_eq!(row, [2.0, 0.0, 0.0, 0.0]);
/// ork_weights::quantise::rotate(&mut row);
/// assert_eq!(row, [1.0; 4]);
/// ```
pub fn rotate(row: &mut [f32]) {
    let block = match row.len() {
        0 => return,
        len => 1 << len.trailing_zeros(),
    };
    dispatch(Rotate { row, block });
}

struct Rotate<'a> {
    row: &'a mut [f32],
    block: usize,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Machine) {
        let norm = (1.0 / (self.block as f64).sqrt()) as f32;
        for block in self.row.chunks_exact_mut(self.block) {
            let mut half = 1;
            while half < block.len() {
                for pair in block.chunks_exact_mut(2 * half) {
                    let (low, high) = pair.split_at_mut(half);
                    for (low, high) in low.iter_mut().zip(high) {
                        (*low, *high) = (*low + *high, *low - *high);
                    }
                }
                half *= 2;
            }
            for value in block {
                *value *= norm;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By definition: entry (i, j) of the matrix is −1 to the number of ones in i & j.
    fn naive(row: &[f32]) -> Vec<f32> {
        let size = block_of(row.len() as u32) as usize;
        let sign =
            |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let value = |(at, _): (usize, &f32)| {
            let block = &row[at / size * size..][..size];
            let sum: f64 =
                block.iter().enumerate().map(|(j, &v)| sign(at % size, j) * f64::from(v)).sum();
            (sum / (size as f64).sqrt()) as f32
        };
        row.iter().enumerate().map(value).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn it_is_the_matrix_and_its_own_inverse(
            blocks in 1usize..4, log in 0u32..9, seed in prop::collection::vec(-1f32..1.0, 1..64),
        ) {
            let len = blocks << log;
            let row: Vec<f32> = (0..len).map(|i| seed[i % seed.len()] * (1 + i % 7) as f32).collect();
            let mut rotated = row.clone();
            rotate(&mut rotated);
            for (ours, theirs) in rotated.iter().zip(naive(&row)) {
                prop_assert!((ours - theirs).abs() < 1e-4, "{} {}", ours, theirs);
            }
            rotate(&mut rotated);
            for (back, value) in rotated.iter().zip(&row) {
                prop_assert!((back - value).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn rows_without_a_block() {
        rotate(&mut []);
        let mut odd = [1.0, 2.0, 3.0];
        rotate(&mut odd);
        assert_eq!(odd, [1.0, 2.0, 3.0]);
        assert_eq!(block_of(0), 0);
    }
}
