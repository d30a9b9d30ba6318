//! The rotation of the tiers that ask for it: a normalised Walsh–Hadamard transform.
//!
//! It spreads outliers over a block, so that few bits go further. It is its own inverse and keeps
//! dot products, so weights and activations rotated alike multiply to the same result. The larger
//! the block, the flatter the values, and the cost grows with its logarithm only: so blocks are as
//! large as K allows.

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
            let (eights, rest) = block.as_chunks_mut::<8>();
            let mut half = if rest.is_empty() { 8 } else { 1 };
            if half == 8 {
                // As loops: what an adapter calls is not compiled for the processor that was found.
                for eight in &mut *eights {
                    *eight = eighth(*eight);
                }
                let (squares, rest) = eights.as_chunks_mut::<8>();
                if rest.is_empty() {
                    for rows in squares {
                        square(rows);
                    }
                    half = 64;
                }
            }
            // Two steps at once pass over the block once. The sums are those of one after the other.
            while 4 * half <= block.len() {
                for four in block.chunks_exact_mut(4 * half) {
                    let (front, back) = four.split_at_mut(2 * half);
                    let (a, b) = front.split_at_mut(half);
                    let (c, d) = back.split_at_mut(half);
                    for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
                        let (ab, a_b, cd, c_d) = (*a + *b, *a - *b, *c + *d, *c - *d);
                        (*a, *b, *c, *d) = (ab + cd, a_b + c_d, ab - cd, a_b - c_d);
                    }
                }
                half *= 4;
            }
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

/// The first three steps, on values that lie side by side: as one expression, which becomes shuffles
/// and additions where loops over two or four values would stay loops.
#[inline(always)]
fn eighth(values: [f32; 8]) -> [f32; 8] {
    let [a, b, c, d, e, f, g, h] = values;
    let [a, b, c, d, e, f, g, h] = [a + b, a - b, c + d, c - d, e + f, e - f, g + h, g - h];
    let [a, b, c, d, e, f, g, h] = [a + c, b + d, a - c, b - d, e + g, f + h, e - g, f - h];
    [a + e, b + f, c + g, d + h, a - e, b - f, c - g, d - h]
}

/// The next three, on rows of eight that stay in registers.
#[inline(always)]
fn square(rows: &mut [[f32; 8]; 8]) {
    step::<1>(rows);
    step::<2>(rows);
    step::<4>(rows);
}

#[inline(always)]
fn step<const HALF: usize>(rows: &mut [[f32; 8]; 8]) {
    for pairs in rows.chunks_exact_mut(2 * HALF) {
        let (low, high) = pairs.split_at_mut(HALF);
        for (low, high) in low.iter_mut().zip(high) {
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
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

    fn in_steps(row: &[f32]) -> Vec<f32> {
        let (mut out, size) = (row.to_vec(), block_of(row.len() as u32) as usize);
        for block in out.chunks_exact_mut(size) {
            for half in (0..size.ilog2()).map(|log| 1 << log) {
                for low in (0..size).filter(|i| i & half == 0) {
                    let (a, b) = (block[low], block[low + half]);
                    (block[low], block[low + half]) = (a + b, a - b);
                }
            }
            block.iter_mut().for_each(|value| *value *= (1.0 / (size as f64).sqrt()) as f32);
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn it_is_the_matrix_and_its_own_inverse(
            blocks in 1usize..4, log in 0u32..12, seed in prop::collection::vec(-1f32..1.0, 1..64),
        ) {
            let len = blocks << log;
            let row: Vec<f32> = (0..len).map(|i| seed[i % seed.len()] * (1 + i % 7) as f32).collect();
            let mut rotated = row.clone();
            rotate(&mut rotated);
            for (ours, theirs) in rotated.iter().zip(naive(&row)) {
                prop_assert!((ours - theirs).abs() < 1e-3, "{} {}", ours, theirs);
            }
            // One step after the other, in the order that fixes the last bit.
            prop_assert_eq!(&rotated, &in_steps(&row));
            rotate(&mut rotated);
            for (back, value) in rotated.iter().zip(&row) {
                prop_assert!((back - value).abs() < 1e-3);
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
