//! Large weights in pieces: some channels at a time, and where their bytes belong in the blob.

use crate::model::Weight;
use crate::pack::o4n1_header;
use crate::quantise::{Tier, stored_layout};
use rknpu_sys::layout::{Layout, N_SLICE, Slice};
use std::ops::Range;

/// Bytes of a piece, in the model and in the pack: exceeded only by the least channels of a very
/// wide weight.
pub(crate) const PIECE: u64 = 16 << 20;

/// Channels of the smallest piece. So many tiles of any precision fill whole pages in every
/// k-slice, so that only the last piece of an n-slice has padding: the n-slice's own.
const LEAST: u32 = 256;

/// The channels of each piece, in order, of a weight that becomes `packed` bytes. They depend on the
/// weight alone, and with them all that is summed over a piece.
pub(crate) fn pieces(weight: &Weight, packed: u64) -> impl Iterator<Item = Range<u32>> + use<> {
    of_bytes(weight.n, packed.max(weight.bytes), PIECE)
}

pub(crate) fn of_bytes(n: u32, bytes: u64, piece: u64) -> impl Iterator<Item = Range<u32>> + use<> {
    let mut step = n.max(1);
    if bytes > piece {
        // A power of two up to a whole n-slice, which it therefore divides.
        step = N_SLICE;
        while step > LEAST && bytes.saturating_mul(step.into()) / u64::from(n.max(1)) > piece {
            step /= 2;
        }
    }
    (0..n).step_by(step as usize).map(move |start| start..n.min(start.saturating_add(step)))
}

/// A part of a piece's blob, and its place in the weight's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) from: Range<usize>,
    pub(crate) to: u64,
}

/// Where the blob that `channels` have as a weight of their own belongs in that of the whole.
pub(crate) fn parts(tier: Tier, k: u32, n: u32, channels: &Range<u32>) -> Vec<Part> {
    let count = channels.end - channels.start;
    // Both are layouts: the plan has sized the weight, and pieces are whole tiles of it.
    let (Ok(whole), Ok(piece)) = (stored_layout(tier, k, n), stored_layout(tier, k, count)) else {
        return Vec::new();
    };
    if let Some(codebook) = tier.codebook() {
        let header = o4n1_header(whole.k(), whole.n(), codebook).len();
        let codes = header + 4 * piece.n() as usize;
        let row = u64::from(whole.k() / 2);
        let end = codes + row as usize * piece.n() as usize;
        let (start, header_end) = (u64::from(channels.start), header as u64);
        return vec![
            Part { from: header..codes, to: header_end + 4 * start },
            Part { from: codes..end, to: header_end + 4 * u64::from(whole.n()) + row * start },
        ];
    }
    tiled_parts(&whole, &piece, channels).collect()
}

/// Where the tiles that `channels` have in a layout of their own belong in those of the whole.
pub(crate) fn tiled_parts(
    whole: &Layout,
    piece: &Layout,
    channels: &Range<u32>,
) -> impl Iterator<Item = Part> {
    let first = channels.start / N_SLICE * whole.k_slices();
    let tiles = channels.start % N_SLICE / whole.precision().tile_width();
    let places = (first..).map_while(|slice| whole.slice(slice));
    let part = move |(to, from): (Slice, Slice)| Part {
        from: from.offset as usize..(from.offset + from.padded_bytes()) as usize,
        to: to.offset + u64::from(tiles) * whole.precision().tile_bytes(to.kp),
    };
    places.zip(piece.slices()).map(part)
}

/// Puts the scales of a piece that begins with channel `first`, per channel or `[group][channel]`, to
/// their places in those of all `groups`. These are held whole while the codes come in pieces: a checksum goes over all of them, and
/// with groups a piece has some of each. They are 4 bytes for each group of 32 values at most, an
/// eighth of the codes, and in most weights a thousandth.
pub(crate) fn place_scales(scales: &[f32], groups: usize, first: u32, all: &mut [f32]) {
    let (width, each) = (all.len() / groups.max(1), scales.len() / groups.max(1));
    if each == 0 {
        return; // half floats have none
    }
    for (all, scales) in all.chunks_exact_mut(width).zip(scales.chunks_exact(each)) {
        all[first as usize..][..each].copy_from_slice(scales);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequant::TensorType;
    use crate::quantise::{Recipe, Rows, blob_bytes, blob_scales, encode};

    #[test]
    fn pieces_put_together_are_the_whole() {
        // More than an n-slice, and in both directions an end that fills no page.
        quantised_in_pieces(1056, N_SLICE + 256 + 64);
    }

    #[test]
    fn padded_weights_come_in_pieces_too() {
        quantised_in_pieces(1050, N_SLICE + 256 + 1);
    }

    fn quantised_in_pieces(k: u32, n: u32) {
        let row = k as usize * 2;
        let raw: Vec<u8> = (0..row * n as usize)
            .map(|i| ((i * 31) >> 3) as u8 & if i % 2 == 0 { 255 } else { 0xbb })
            .collect();
        for tier in [
            Tier::Int8,
            Tier::O4n1,
            Tier::Nf4,
            Tier::Int4 { group: None },
            Tier::Int4 { group: Some(96) },
            Tier::RotatedInt8 { group: Some(32) },
            Tier::Int4AsInt8 { group: None },
            Tier::Fp16,
        ] {
            let recipe = Recipe::new(tier);
            let whole = tier.layout(k, n).unwrap();
            let quantised = |channels: &Range<u32>| {
                let count = channels.end - channels.start;
                let raw = &raw[row * channels.start as usize..row * channels.end as usize];
                let rows = Rows::new(TensorType::F16, k, count, raw).unwrap();
                let mut blob = vec![0xee; blob_bytes(tier, k, count).unwrap() as usize];
                let mut scales = vec![0.0; blob_scales(tier, k, count)];
                let rows = rows.starting_at(channels.start as usize);
                encode(&rows, &recipe, &mut blob, &mut scales).unwrap();
                (blob, scales)
            };
            let (blob, scales) = quantised(&(0..n));
            let (mut of_pieces, mut all) = (vec![0xdd; blob.len()], vec![0.0; scales.len()]);
            if let Some(codebook) = tier.codebook() {
                of_pieces[..20].copy_from_slice(&o4n1_header(whole.k(), whole.n(), codebook));
            }
            let groups = tier.groups(whole.k()).unwrap() as usize;
            let mut pieces = 0;
            for channels in of_bytes(n, blob.len() as u64, 512 << 10) {
                let (blob, scales) = quantised(&channels);
                for Part { from, to } in parts(tier, k, n, &channels) {
                    of_pieces[to as usize..][..from.len()].copy_from_slice(&blob[from]);
                }
                place_scales(&scales, groups, channels.start, &mut all);
                pieces += 1;
            }
            assert!(pieces > 8, "{pieces}");
            assert!(of_pieces == blob, "{tier}");
            assert_eq!(all, scales, "{tier}");
        }
    }

    #[test]
    fn pieces_are_small_and_cover_every_channel() {
        for (n, row) in [(32, 100), (11008, 4096), (262_144, 640), (8192, 28672), (64, 1 << 24)] {
            let bytes = u64::from(n) * row;
            let mut next = 0;
            for channels in of_bytes(n, bytes, PIECE) {
                assert_eq!(channels.start, next);
                let count = channels.end - channels.start;
                assert!(u64::from(count) * row <= PIECE || count <= LEAST);
                next = channels.end;
            }
            assert_eq!(next, n);
        }
    }
}
