//! Four-bit codes to the bytes they stand for.

use rayon::prelude::*;
use rknpu_sys::layout::{Layout, Precision};

use super::format::o4n1::Codebook;
use crate::simd::{Kernel, Machine, dispatch};
use crate::tile::{Threads, TilesMut, gather, prefers_non_temporal};

/// Codes, two a byte with the even one low, to values; `out` is twice as long as `codes`.
pub(crate) fn inflate(codebook: Codebook, codes: &[u8], out: &mut [u8]) {
    let levels = codebook.levels().map(|level| level as u8);
    dispatch(Inflate { levels, codes, out });
}

struct Inflate<'a> {
    levels: [u8; 16],
    codes: &'a [u8],
    out: &'a mut [u8],
}

impl Kernel for Inflate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, machine: impl Machine) {
        let (codes, rest) = self.codes.as_chunks::<32>();
        let (out, out_rest) = self.out.as_chunks_mut::<64>();
        for (codes, out) in codes.iter().zip(out) {
            let even = machine.look_up(&self.levels, codes);
            let odd = machine.look_up(&self.levels, &codes.map(|pair| pair >> 4));
            for (i, pair) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                *pair = [even[i], odd[i]];
            }
        }
        for (pair, codes) in out_rest.as_chunks_mut::<2>().0.iter_mut().zip(rest) {
            *pair = [codes & 15, codes >> 4].map(|code| self.levels[usize::from(code)]);
        }
    }
}

/// Row-major 4-bit codes (K/2 bytes a channel) into the int8 tiles of `layout`, whose
/// [`Layout::bytes`] `out` is long; padding becomes 0.
pub(crate) fn inflate_tiled(
    layout: &Layout,
    codebook: Codebook,
    rows: &[u8],
    out: &mut [u8],
    threads: Threads,
) {
    let k = layout.k() as usize;
    let per_tile = k * layout.precision().tile_width() as usize;
    let non_temporal = prefers_non_temporal(out.len());
    let mut columns = TilesMut::split(layout, out);
    let tiles = columns.par_tiles().zip(rows.par_chunks_exact(per_tile / 2));
    tiles.with_min_len(threads.least()).for_each_init(
        || vec![0; per_tile],
        |tile, (parts, codes)| {
            inflate(codebook, codes, tile);
            gather(Precision::Int8, tile, k, parts, non_temporal);
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nibble_is_its_level() {
        for codebook in [Codebook::Uniform, Codebook::Nf4] {
            for bytes in [0, 1, 31, 32, 33, 256] {
                let codes: Vec<u8> = (0..bytes).map(|i| (i * 37 + 5) as u8).collect();
                let mut out = vec![0xee; 2 * bytes];
                inflate(codebook, &codes, &mut out);
                for (i, value) in out.iter().enumerate() {
                    let code = codes[i / 2] >> (i % 2 * 4) & 15;
                    assert_eq!(*value as i8, codebook.levels()[usize::from(code)]);
                }
            }
        }
    }
}
