//! Large weights in pieces: some channels at a time, and where their bytes belong in the blob.

use super::stage::Work;
use crate::pack::o4n1_header;
use crate::quantise::stored_layout;
use rknpu_sys::layout::{Layout, N_SLICE, PAGE};
use std::ops::Range;

/// Bytes of a piece, in the model and in the pack, that are not exceeded without need.
const PIECE: u64 = 16 << 20;

/// Channels of the smallest piece. So many tiles of any precision fill whole pages in every
/// k-slice, so that only the last piece of an n-slice has padding: the n-slice's own.
const LEAST: u32 = 256;

/// The channels of each piece of a weight, in order. They depend on the weight alone, and with them
/// all that is summed over a piece.
pub(super) fn pieces(work: &Work<'_>) -> impl Iterator<Item = Range<u32>> + use<> {
    let n = work.weight.n;
    let largest = work.blob.max(work.weight.bytes);
    let mut step = n.max(1);
    if largest > 2 * PIECE {
        // A power of two up to a whole n-slice, which it therefore divides.
        step = N_SLICE;
        while step > LEAST && largest.saturating_mul(step.into()) / u64::from(n.max(1)) > PIECE {
            step /= 2;
        }
    }
    (0..n).step_by(step as usize).map(move |start| start..n.min(start.saturating_add(step)))
}

/// A part of a piece's blob, and its place in the weight's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) from: Range<usize>,
    pub(super) to: u64,
}

/// Where the blob that `channels` have as a weight of their own belongs in that of the whole.
pub(super) fn parts(work: &Work<'_>, channels: &Range<u32>) -> Vec<Part> {
    let (k, n) = (work.weight.k, work.weight.n);
    let count = channels.end - channels.start;
    if let Some(codebook) = work.tier.codebook() {
        let header = o4n1_header(k, n, codebook).len();
        let (scales, row) = (4 * count as usize, k as usize / 2);
        let codes = header + scales..header + scales + row * count as usize;
        let whole = header as u64 + 4 * u64::from(n);
        return vec![
            Part {
                from: header..codes.start,
                to: header as u64 + 4 * u64::from(channels.start),
            },
            Part { from: codes, to: whole + row as u64 * u64::from(channels.start) },
        ];
    }
    let layouts = (stored_layout(work.tier, k, n), stored_layout(work.tier, k, count));
    // The plan has sized both the weight and its tiles, so there are layouts.
    let (Ok(whole), Ok(piece)) = layouts else { return Vec::new() };
    let first = channels.start / N_SLICE * whole.k_slices();
    let tiles = |layout: &Layout| u64::from(channels.start % N_SLICE / layout.precision().tile_width());
    (first..).map_while(|slice| whole.slice(slice)).zip(piece.slices()).map(|(to, from)| Part {
        from: from.offset as usize..(from.offset + from.padded_bytes()) as usize,
        to: to.offset + tiles(&whole) * whole.precision().tile_bytes(to.kp),
    }).collect()
}

/// The blob's start that no piece brings: the header of a compact weight.
pub(super) fn header(work: &Work<'_>) -> Option<[u8; 20]> {
    let codebook = work.tier.codebook()?;
    Some(o4n1_header(work.weight.k, work.weight.n, codebook))
}
