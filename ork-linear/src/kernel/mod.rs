//! Exact sums over a tile, by the instructions that the processor has.
//!
//! One loop, written once over an [`Isa`]; the sums are those of whole numbers modulo 2³², so every
//! order and every instruction gives the same bits.

// Every aarch64 processor has NEON: there it is what NEON is tested against.
#[cfg(any(test, not(target_arch = "aarch64")))]
mod plain;
mod simd;

use rknpu_sys::layout::{K_BLOCK, Layout, N_SLICE, Precision};

pub(crate) use simd::dispatch;
#[cfg(test)]
pub(crate) use simd::each;

/// Channels of an int8 tile.
pub(crate) const TILE: usize = Precision::Int8.tile_width() as usize;
/// Consecutive inputs of a channel that lie together.
pub(crate) const RUN: usize = K_BLOCK as usize;
/// Bytes of such runs of all channels of a tile, whatever the precision.
pub(crate) const BLOCK: usize = TILE * RUN;
/// Rows that one walk over a tile serves at most.
pub(crate) const ROWS: usize = 4;
/// Running sums that a walk keeps in registers.
const SUMS: usize = 8;

/// What sums of products are made of. A value is the proof that the processor has the instructions.
pub(crate) trait Isa: Copy {
    /// 32 weights of one channel.
    type Weights: Copy;
    /// 32 inputs of one row.
    type Inputs: Copy;
    /// Sums that add up to one.
    type Sum: Copy;
    /// What each weight is taken larger by: a sum comes out larger by that times the inputs' sum.
    const BIAS: i32;

    /// Weights, as a tile holds them.
    fn weights(self, codes: &[u8; RUN]) -> Self::Weights;
    /// Inputs.
    fn inputs(self, codes: &[i8; RUN]) -> Self::Inputs;
    /// Nothing yet.
    fn zero(self) -> Self::Sum;
    /// `sum` and the products of weights and inputs.
    fn add(self, sum: Self::Sum, weights: Self::Weights, inputs: Self::Inputs) -> Self::Sum;
    /// Each of the sums as one number.
    fn totals(self, sums: [Self::Sum; SUMS]) -> [i32; SUMS];
}

/// Work that is compiled once for each instruction set. `run` and what it calls in its inner loops
/// must be `#[inline(always)]`.
pub(crate) trait Work {
    /// What it answers.
    type Output;

    /// The work.
    fn run(self, isa: impl Isa) -> Self::Output;
}

/// The sums of up to [`ROWS`] rows of codes with one tile.
pub(crate) struct TileSums<'a> {
    /// Layout of the weight.
    pub(crate) layout: &'a Layout,
    /// The weight.
    pub(crate) tiles: &'a [u8],
    /// Number of the tile: its first channel is 32 times that.
    pub(crate) tile: usize,
    /// Rows, one after the other.
    pub(crate) codes: &'a [i8],
    /// The sum of each row's codes.
    pub(crate) row_sums: &'a [i32],
}

impl Work for TileSums<'_> {
    type Output = [[i32; TILE]; ROWS];

    #[inline(always)]
    fn run(self, isa: impl Isa) -> [[i32; TILE]; ROWS] {
        let mut out = [[0; TILE]; ROWS];
        match self.row_sums.len() {
            0 => {}
            1 => self.walk::<_, 1, 8>(isa, &mut out),
            2 => self.walk::<_, 2, 4>(isa, &mut out),
            // The rows that are missing repeat the last.
            _ => self.walk::<_, 4, 2>(isa, &mut out),
        }
        out
    }
}

impl TileSums<'_> {
    /// R rows and C channels at a time, which are [`SUMS`] together.
    #[inline(always)]
    fn walk<I: Isa, const R: usize, const C: usize>(&self, isa: I, out: &mut [[i32; TILE]; ROWS]) {
        let k = self.layout.k() as usize;
        for (k0, blocks) in parts(self.layout, self.tiles, self.tile) {
            let mut rows: [&[[i8; RUN]]; R] = [&[]; R];
            for (r, row) in rows.iter_mut().enumerate() {
                let start = r.min(self.row_sums.len() - 1) * k + k0;
                *row = self.codes[start..start + blocks.len() * RUN].as_chunks().0;
            }
            for group in 0..TILE / C {
                let mut sums = [isa.zero(); SUMS];
                for (b, block) in blocks.iter().enumerate() {
                    let block = block.as_chunks::<RUN>().0;
                    let mut inputs = [isa.inputs(&rows[0][b]); R];
                    for r in 1..R {
                        inputs[r] = isa.inputs(&rows[r][b]);
                    }
                    for c in 0..C {
                        let weights = isa.weights(&block[group * C + c]);
                        for r in 0..R {
                            sums[r * C + c] = isa.add(sums[r * C + c], weights, inputs[r]);
                        }
                    }
                }
                let totals = isa.totals(sums);
                for r in 0..R {
                    for c in 0..C {
                        let out = &mut out[r][group * C + c];
                        *out = out.wrapping_add(totals[r * C + c]);
                    }
                }
            }
        }
        if I::BIAS != 0 {
            for (out, sum) in out.iter_mut().zip(self.row_sums) {
                let too_much = sum.wrapping_mul(I::BIAS);
                out.iter_mut().for_each(|out| *out = out.wrapping_sub(too_much));
            }
        }
    }
}

/// The blocks of each K slice of a tile, each of 32 inputs, and the slice's first input. A tile is as
/// wide as its blocks of [`BLOCK`] bytes make it.
#[inline(always)]
pub(crate) fn parts<'a>(
    layout: &Layout,
    tiles: &'a [u8],
    tile: usize,
) -> impl Iterator<Item = (usize, &'a [[u8; BLOCK]])> {
    let layout = *layout;
    let (slices, width) = (layout.k_slices(), layout.precision().tile_width());
    let per_slice = (N_SLICE / width) as usize;
    let first = (tile / per_slice) as u32 * slices;
    (first..first + slices).filter_map(move |index| {
        let slice = layout.slice(index)?;
        let bytes = slice.kp as usize * RUN;
        let start = slice.offset as usize + tile % per_slice * bytes;
        Some((slice.k0 as usize, tiles.get(start..start + bytes)?.as_chunks().0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use ork_weights::reference;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Every instruction set gives what the plain reference over the layout gives, for all codes.
        #[test]
        fn sums_are_the_references(
            k in 1u32..70, n in 1u32..4, m in 1usize..=ROWS, wide: bool, extreme: bool, seed: u64,
        ) {
            // Wide ones reach into the second N slice.
            let n = if wide { n + 255 } else { n };
            let k = if wide { k % 3 + 1 } else { k };
            let layout = Layout::new(k * 32, n * 32, Precision::Int8).unwrap();
            let mut noise = Noise::new(seed);
            let mut code = || match (extreme, noise.next_code()) {
                (false, code) => code,
                (true, code) if code % 3 == 0 => 127,
                (true, _) => -128,
            };
            let tiles: Vec<u8> = (0..layout.bytes()).map(|_| code() as u8).collect();
            let codes: Vec<i8> = (0..m * k as usize * 32).map(|_| code()).collect();
            let sum = |row: &[i8]| row.iter().map(|code| i32::from(*code)).sum();
            let row_sums: Vec<i32> = codes.chunks(k as usize * 32).map(sum).collect();
            let mut want = vec![0; m * n as usize * TILE];
            reference::sums(&layout, &tiles, &codes, &mut want).unwrap();
            for tile in [0, n as usize / 2, n as usize - 1] {
                let work = || TileSums {
                    layout: &layout, tiles: &tiles, tile, codes: &codes, row_sums: &row_sums,
                };
                for (name, got) in each(work) {
                    for (row, got) in got.iter().take(m).enumerate() {
                        let want = &want[row * n as usize * TILE + tile * TILE..][..TILE];
                        prop_assert_eq!(got, want, "{} row {} tile {}", name, row, tile);
                    }
                }
            }
        }
    }

    #[test]
    fn sums_wrap_as_i32() {
        // 131,072 products of 16,384 are 2³¹.
        let layout = Layout::new(131_072, 32, Precision::Int8).unwrap();
        let tiles = vec![0x80; layout.bytes() as usize];
        let codes = vec![-128; 131_072];
        let row_sums = [-128 * 131_072];
        let work = || TileSums {
            layout: &layout,
            tiles: &tiles,
            tile: 0,
            codes: &codes,
            row_sums: &row_sums,
        };
        for (name, got) in each(work) {
            assert_eq!(got[0], [i32::MIN; TILE], "{name}");
        }
    }
}
