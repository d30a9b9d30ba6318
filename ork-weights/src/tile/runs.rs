//! Copying runs between rows and blocks.

use super::BLOCK;
use crate::simd::{Kernel, PastCaches, fetch};

/// Blocks that are assembled at a time: long enough that each row is read in whole cache lines and
/// that the copy out of the staging buffer is a large one, small enough to stay in the L1 cache.
const STAGED: usize = 8;

/// The rows of one tile into its parts; `RUN` bytes a run.
///
/// Runs go to a staging buffer first. Written straight to their places, the 32-byte pieces make
/// the processor read every destination line before it can write it; a large copy does not.
pub(super) struct Gather<'a, 'b, const RUN: usize> {
    /// The channels of the tile, `stride` bytes apart.
    pub(super) rows: &'a [u8],
    /// Bytes of a row.
    pub(super) stride: usize,
    /// The tile's part of each k-slice.
    pub(super) parts: &'a mut [&'b mut [u8]],
    /// Whether the weight is too large for the caches, so that its tiles go past them and its rows
    /// are fetched ahead.
    pub(super) large: bool,
}

impl<const RUN: usize> Kernel for Gather<'_, '_, RUN> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut staging = [[0; BLOCK]; STAGED];
        let past_caches = self.large.then(PastCaches::new);
        let mut from = 0;
        for part in self.parts {
            let (whole, rest) = part.as_chunks_mut::<BLOCK>().0.as_chunks_mut::<STAGED>();
            for out in whole {
                for (pair, rows) in self.rows.chunks_exact(2 * self.stride).enumerate() {
                    let (first, second) = rows.split_at(self.stride);
                    let wanted = from..from + STAGED * RUN;
                    if self.large {
                        let next = wanted.end..self.stride.min(wanted.end + STAGED * RUN);
                        fetch(&first[next.clone()]);
                        fetch(&second[next]);
                    }
                    let first = first[wanted.clone()].as_chunks::<RUN>().0;
                    let second = second[wanted].as_chunks::<RUN>().0;
                    for i in 0..STAGED {
                        let to = &mut staging[i][2 * pair * RUN..2 * (pair + 1) * RUN];
                        to[..RUN].copy_from_slice(&first[i]);
                        to[RUN..].copy_from_slice(&second[i]);
                    }
                }
                match &past_caches {
                    Some(way) => way.copy(staging.as_flattened(), out.as_flattened_mut()),
                    None => *out = staging,
                }
                from += STAGED * RUN;
            }
            for (j, row) in self.rows.chunks_exact(self.stride).enumerate() {
                let row = &row[from..from + rest.len() * RUN];
                for (block, run) in rest.iter_mut().zip(row.as_chunks::<RUN>().0) {
                    block[j * RUN..][..RUN].copy_from_slice(run);
                }
            }
            from += rest.len() * RUN;
        }
    }
}

/// The parts of one tile back into rows.
pub(super) struct Scatter<'a, const RUN: usize, P> {
    /// The channels of the tile, `stride` bytes apart.
    pub(super) rows: &'a mut [u8],
    /// Bytes of a row.
    pub(super) stride: usize,
    /// The tile's part of each k-slice.
    pub(super) parts: P,
}

impl<'p, const RUN: usize, P: Iterator<Item = &'p [u8]>> Kernel for Scatter<'_, RUN, P> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut to = 0;
        for part in self.parts {
            let blocks = part.as_chunks::<BLOCK>().0;
            for (j, row) in self.rows.chunks_exact_mut(self.stride).enumerate() {
                let row = &mut row[to..to + blocks.len() * RUN];
                for (block, run) in blocks.iter().zip(row.as_chunks_mut::<RUN>().0) {
                    run.copy_from_slice(&block[j * RUN..][..RUN]);
                }
            }
            to += blocks.len() * RUN;
        }
    }
}
