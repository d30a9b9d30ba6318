//! Four-bit codes to the bytes they stand for.

use rayon::prelude::*;
use rknpu_sys::layout::{Layout, Precision};

use super::format::o4n1::Codebook;
use crate::tile::{Columns, Threads, gather, past_caches};

/// Both values of each byte, low nibble first.
type Pairs = [[u8; 2]; 256];

static UNIFORM: Pairs = pairs(Codebook::Uniform);
static NF4: Pairs = pairs(Codebook::Nf4);

const fn pairs(codebook: Codebook) -> Pairs {
    let levels = codebook.levels();
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [levels[byte & 15] as u8, levels[byte >> 4] as u8];
        byte += 1;
    }
    pairs
}

/// Codes, two a byte, to values; `out` is twice as long as `codes`.
pub(crate) fn inflate(codebook: Codebook, codes: &[u8], out: &mut [u8]) {
    let pairs = match codebook {
        Codebook::Uniform => &UNIFORM,
        Codebook::Nf4 => &NF4,
    };
    for (to, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
        *to = pairs[usize::from(*code)];
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
    let past = past_caches(out.len());
    let mut columns = Columns::split(layout, out);
    let tiles = columns.par_tiles().zip(rows.par_chunks_exact(per_tile / 2));
    tiles.with_min_len(threads.least()).for_each_init(
        || vec![0; per_tile],
        |tile, (parts, codes)| {
            inflate(codebook, codes, tile);
            gather(Precision::Int8, tile, k, parts, past);
        },
    );
}
