//! fp16 × fp16 → fp32, added in the order of k, so that a plain loop gives the same bits.
//!
//! A product of two halves is exact in fp32, so it does not matter whether a machine fuses the
//! addition.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{BLOCK, simd};

/// Channels of a tile.
pub(super) const CHANNELS: usize = 16;
/// Rows at a time: their sums stay in registers.
const ROWS: usize = 4;

/// Appends little-endian halves as floats.
pub(in super::super) fn widen(halves: &[u8], floats: &mut Vec<f32>) {
    const CHUNK: usize = 64;
    for bytes in halves.chunks(2 * CHUNK) {
        let mut values = [f16::ZERO; CHUNK];
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f16::from_le_bytes(*bytes);
        }
        let mut wide = [0.0; CHUNK];
        values.convert_to_f32_slice(&mut wide);
        floats.extend_from_slice(&wide[..bytes.len() / 2]);
    }
}

/// Appends upper halves of floats, little-endian, as floats.
pub(in super::super) fn widen_bf16(halves: &[u8], floats: &mut Vec<f32>) {
    floats.extend(halves.as_chunks().0.iter().map(|half| bf16::from_le_bytes(*half).to_f32()));
}

/// A tile's weights as `[k][channel]`, from blocks of 32 k per channel.
pub(in super::super) fn transpose(tile: &[f32], weights: &mut Vec<f32>) {
    weights.clear();
    for block in tile.chunks_exact(CHANNELS * BLOCK) {
        for k in 0..BLOCK {
            weights.extend(block.iter().skip(k).step_by(BLOCK));
        }
    }
}

/// Sums of every row with every channel of a tile: `sums[row][channel]`.
///
/// `rows` are gapless rows of k floats, `weights` is `[k][channel]`.
pub(in super::super) fn tile(rows: &[f32], weights: &[f32], sums: &mut [f32]) {
    simd::widest(|| plain(rows, weights, sums));
}

#[inline(always)]
fn plain(rows: &[f32], weights: &[f32], sums: &mut [f32]) {
    let k = weights.len() / CHANNELS;
    let weights = weights.as_chunks::<CHANNELS>().0;
    for (rows, sums) in rows.chunks(ROWS * k).zip(sums.chunks_mut(ROWS * CHANNELS)) {
        let last = sums.len() / CHANNELS - 1;
        // A group that is not full computes its last row more than once.
        let rows: [&[f32]; ROWS] = std::array::from_fn(|r| &rows[r.min(last) * k..][..k]);
        let mut acc = [[0.0f32; CHANNELS]; ROWS];
        for (i, weights) in weights.iter().enumerate() {
            for (acc, row) in acc.iter_mut().zip(rows) {
                for (acc, weight) in acc.iter_mut().zip(weights) {
                    *acc += row[i] * weight;
                }
            }
        }
        for (sums, acc) in sums.chunks_exact_mut(CHANNELS).zip(acc) {
            sums.copy_from_slice(&acc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn a_tile_equals_a_plain_loop_to_the_bit(
            rows in 1usize..10, blocks in 1usize..5, bits in any::<u64>(),
        ) {
            let k = blocks * BLOCK;
            let mut state = bits | 1;
            let mut half = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                f16::from_f32(((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 8.0)
            };
            let a: Vec<f16> = (0..rows * k).map(|_| half()).collect();
            let w: Vec<f16> = (0..CHANNELS * k).map(|_| half()).collect();
            let bytes = |v: &[f16]| v.iter().flat_map(|h| h.to_le_bytes()).collect::<Vec<u8>>();
            let (mut wide, mut narrow, mut weights) = (Vec::new(), Vec::new(), Vec::new());
            widen(&bytes(&a), &mut wide);
            widen(&bytes(&w), &mut narrow);
            transpose(&narrow, &mut weights);
            let mut sums = vec![f32::NAN; rows * CHANNELS];
            tile(&wide, &weights, &mut sums);
            for r in 0..rows {
                for c in 0..CHANNELS {
                    let mut sum = 0.0f32;
                    for i in 0..k {
                        let at = (i / BLOCK * CHANNELS + c) * BLOCK + i % BLOCK;
                        sum += a[r * k + i].to_f32() * w[at].to_f32();
                    }
                    prop_assert_eq!(sum.to_bits(), sums[r * CHANNELS + c].to_bits());
                }
            }
        }
    }
}
