//! fp16 weights with f32 activations: the exact form.
//!
//! The NPU adds half floats in an order of its own, so these products are the CPU's alone.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use rknpu_sys::layout::{K_BLOCK, Precision};

use crate::kernel::{self, Isa, Work, parts};
use crate::weight::TiledWeight;

/// Channels of a tile.
const TILE: usize = Precision::Fp16.tile_width() as usize;
/// Consecutive inputs of a channel that lie together.
const RUN: usize = K_BLOCK as usize;
/// Sums of a result, one for each of so many neighbouring inputs.
const LANES: usize = 8;
/// Rows that one walk over a tile serves.
const ROWS: usize = 8;

/// Fills `out`, `[tile][M][channel]`, from tile number `first` on.
pub(crate) fn tiles(weight: &TiledWeight<'_>, rows: &[f32], first: usize, out: &mut [f32]) {
    let k = weight.layout.k() as usize;
    for (i, out) in out.chunks_mut(rows.len() / k * TILE).enumerate() {
        for (rows, out) in rows.chunks(ROWS * k).zip(out.chunks_mut(ROWS * TILE)) {
            kernel::dispatch(Tile { weight, rows, tile: first + i, out });
        }
    }
}

/// One tile by up to [`ROWS`] rows.
struct Tile<'a> {
    weight: &'a TiledWeight<'a>,
    rows: &'a [f32],
    tile: usize,
    out: &'a mut [f32],
}

impl Work for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Isa) {
        let Tile { weight, rows, tile, out } = self;
        let k = weight.layout.k() as usize;
        let mut sums = [[[0f32; LANES]; TILE]; ROWS];
        let mut values = [[0f32; RUN]; TILE];
        for (k0, blocks) in parts(&weight.layout, weight.tiles, tile) {
            for (b, block) in blocks.iter().enumerate() {
                let mut bits = [0u16; TILE * RUN];
                for (bits, bytes) in bits.iter_mut().zip(block.as_chunks::<2>().0) {
                    *bits = u16::from_le_bytes(*bytes);
                }
                bits.reinterpret_cast::<half::f16>()
                    .convert_to_f32_slice(values.as_flattened_mut());
                for (row, sums) in rows.chunks_exact(k).zip(&mut sums) {
                    let inputs = &row[k0 + b * RUN..][..RUN];
                    for (weights, sums) in values.iter().zip(sums) {
                        dot(inputs, weights, sums);
                    }
                }
            }
        }
        for (sums, out) in sums.iter().zip(out.chunks_exact_mut(TILE)) {
            for (s, out) in sums.iter().zip(out) {
                let pairs = [s[0] + s[4], s[1] + s[5], s[2] + s[6], s[3] + s[7]];
                *out = (pairs[0] + pairs[2]) + (pairs[1] + pairs[3]);
            }
        }
    }
}

#[inline(always)]
fn dot(inputs: &[f32], weights: &[f32; RUN], sums: &mut [f32; LANES]) {
    let runs = inputs.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0);
    for (inputs, weights) in runs {
        for i in 0..LANES {
            sums[i] += inputs[i] * weights[i];
        }
    }
}
