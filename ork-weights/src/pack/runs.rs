//! Tiles as runs of 32 codes of one channel: the unit in which every tiled form agrees.

use rknpu_sys::layout::{K_BLOCK, Layout, PAGE, Precision};

use super::format::o4n1::Codebook;

/// Codes of a run.
pub(crate) const RUN: usize = K_BLOCK as usize;

/// 32 consecutive k of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First byte in the tiled weight.
    pub(crate) at: usize,
    /// First k.
    pub(crate) k: usize,
    /// Channel.
    pub(crate) n: usize,
}

/// Every run of a layout, in the order in which they lie in memory.
pub(crate) fn runs(layout: &Layout) -> impl Iterator<Item = Run> + '_ {
    let (width, bytes) = (layout.precision().tile_width(), run_bytes(layout.precision()));
    layout.slices().flat_map(move |slice| {
        let blocks = slice.kp / K_BLOCK;
        (0..slice.nc / width).flat_map(move |tile| {
            (0..blocks).flat_map(move |block| {
                let first = (u64::from(tile) * u64::from(blocks) + u64::from(block))
                    * u64::from(width)
                    * bytes as u64;
                (0..width).map(move |lane| Run {
                    at: (slice.offset + first) as usize + lane as usize * bytes,
                    k: (slice.k0 + block * K_BLOCK) as usize,
                    n: (slice.n0 + tile * width + lane) as usize,
                })
            })
        })
    })
}

/// Bytes of 32 codes.
const fn run_bytes(precision: Precision) -> usize {
    (K_BLOCK * precision.bits() / 8) as usize
}

/// Zeroes the bytes that pad slices to pages.
fn clear_padding(layout: &Layout, out: &mut [u8]) {
    for slice in layout.slices().filter(|slice| slice.bytes % PAGE != 0) {
        let end = slice.offset + slice.bytes;
        if let Some(pad) = out.get_mut(end as usize..(slice.offset + slice.padded_bytes()) as usize)
        {
            pad.fill(0);
        }
    }
}

/// Inflates 4-bit codes, two a byte, to 8 bits.
pub(crate) fn inflate(pairs: &[[u8; 2]; 256], codes: &[u8], out: &mut [u8]) {
    for (to, code) in out.chunks_exact_mut(2).zip(codes) {
        to.copy_from_slice(&pairs[usize::from(*code)]);
    }
}

/// Channel-major 4-bit codes (K/2 bytes a channel) into int8 tiles.
pub(crate) fn tile_compact(layout: &Layout, codebook: Codebook, codes: &[u8], out: &mut [u8]) {
    let (pairs, k) = (codebook.pairs(), layout.k() as usize);
    for run in runs(layout) {
        let from = (run.n * k + run.k) / 2;
        if let (Some(to), Some(from)) =
            (out.get_mut(run.at..run.at + RUN), codes.get(from..from + RUN / 2))
        {
            inflate(&pairs, from, to);
        }
    }
    clear_padding(layout, out);
}

/// int4 tiles into the int8 tiles of the same weight; `to` is the layout of `out`.
pub(crate) fn widen(from: &Layout, to: &Layout, codes: &[u8], out: &mut [u8]) {
    let pairs = Codebook::Uniform.pairs();
    for run in runs(to) {
        let place = from.element(run.k as u32, run.n as u32);
        let place = place
            .and_then(|(slice, element)| Some((from.slice(slice)?.offset + element / 2) as usize));
        if let Some(at) = place
            && let (Some(to), Some(from)) =
                (out.get_mut(run.at..run.at + RUN), codes.get(at..at + RUN / 2))
        {
            inflate(&pairs, from, to);
        }
    }
    clear_padding(to, out);
}

/// Tiles into row-major codes [N][K], one byte each.
pub(crate) fn untile(layout: &Layout, tiles: &[u8], out: &mut [u8]) {
    let (pairs, k) = (Codebook::Uniform.pairs(), layout.k() as usize);
    let bytes = run_bytes(layout.precision());
    for run in runs(layout) {
        let at = run.n * k + run.k;
        if let (Some(to), Some(from)) =
            (out.get_mut(at..at + RUN), tiles.get(run.at..run.at + bytes))
        {
            match layout.precision() {
                Precision::Int4 => inflate(&pairs, from, to),
                _ => to.copy_from_slice(&from[..RUN]),
            }
        }
    }
}
