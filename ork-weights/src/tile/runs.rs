//! Copying runs between rows and blocks.

use super::BLOCK;
use crate::simd::Kernel;

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
}

impl<const RUN: usize> Kernel for Gather<'_, '_, RUN> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut staging = [0; STAGED * BLOCK];
        let mut from = 0;
        for part in self.parts {
            for out in part.chunks_mut(STAGED * BLOCK) {
                let blocks = out.len() / BLOCK;
                let staged = &mut staging[..out.len()];
                for (j, row) in self.rows.chunks_exact(self.stride).enumerate() {
                    let row = &row[from..from + blocks * RUN];
                    let runs = row.as_chunks::<RUN>().0;
                    for (block, run) in staged.as_chunks_mut::<BLOCK>().0.iter_mut().zip(runs) {
                        block[j * RUN..][..RUN].copy_from_slice(run);
                    }
                }
                out.copy_from_slice(staged);
                from += blocks * RUN;
            }
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
