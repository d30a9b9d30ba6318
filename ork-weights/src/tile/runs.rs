//! Copying runs between rows and blocks.

use super::BLOCK;
use crate::simd::{Cached, Kernel, LINE, Machine, NonTemporal, Store, fetch};

/// Blocks that are filled side by side. The more, the longer the piece of a row that is read at
/// once: fewer would come back to a row's cache lines when rows a power of two apart have driven
/// them out.
const TOGETHER: usize = 8;

/// As many as that when stores go past the caches: each block has a line open, and a processor
/// gathers the pieces of few lines only.
const TOGETHER_NON_TEMPORAL: usize = 2;

/// Bytes of a row that are fetched ahead. Rows are read a piece at a time, in turn, which no
/// processor foresees.
const AHEAD: usize = 256;

/// The rows of one tile into its parts; `RUN` bytes a run, of `ROWS` rows in a cache line of a
/// block. A line is written whole, and once.
pub(super) struct Gather<'a, 'b, const RUN: usize, const ROWS: usize> {
    /// The channels of the tile, `stride` bytes apart.
    pub(super) rows: &'a [u8],
    /// Bytes of a row.
    pub(super) stride: usize,
    /// The tile's part of each k-slice.
    pub(super) parts: &'a mut [&'b mut [u8]],
    /// Whether to write past the caches.
    pub(super) non_temporal: bool,
}

impl<const RUN: usize, const ROWS: usize> Kernel for Gather<'_, '_, RUN, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Machine) {
        if self.non_temporal {
            self.copy::<TOGETHER_NON_TEMPORAL>(&NonTemporal::new());
        } else {
            self.copy::<TOGETHER>(&Cached);
        }
    }
}

impl<const RUN: usize, const ROWS: usize> Gather<'_, '_, RUN, ROWS> {
    #[inline(always)]
    fn copy<const BLOCKS: usize>(self, way: &impl Store) {
        const { assert!(RUN * ROWS == LINE) };
        let Gather { rows, stride, parts, .. } = self;
        let mut from = 0;
        for part in parts {
            let (whole, rest) = part.as_chunks_mut::<BLOCK>().0.as_chunks_mut::<BLOCKS>();
            for blocks in whole {
                fill::<RUN, ROWS, BLOCKS>(rows, stride, from, blocks, way);
                from += BLOCKS * RUN;
            }
            for block in rest {
                fill::<RUN, ROWS, 1>(rows, stride, from, std::array::from_mut(block), way);
                from += RUN;
            }
        }
    }
}

/// Fills blocks with the runs of the rows from byte `from` of each on.
#[inline(always)]
fn fill<const RUN: usize, const ROWS: usize, const BLOCKS: usize>(
    rows: &[u8],
    stride: usize,
    from: usize,
    blocks: &mut [[u8; BLOCK]; BLOCKS],
    way: &impl Store,
) {
    let wanted = from..from + BLOCKS * RUN;
    let ahead = stride.min(from + AHEAD)..stride.min(wanted.end + AHEAD);
    for (line, rows) in (0..BLOCK / LINE).zip(rows.chunks_exact(ROWS * stride)) {
        let runs: [&[[u8; RUN]]; ROWS] = std::array::from_fn(|j| {
            let row = &rows[j * stride..(j + 1) * stride];
            fetch(&row[ahead.clone()]);
            row[wanted.clone()].as_chunks::<RUN>().0
        });
        for (i, block) in blocks.iter_mut().enumerate() {
            let line = &mut block.as_chunks_mut::<LINE>().0[line];
            for (to, runs) in line.as_chunks_mut::<RUN>().0.iter_mut().zip(runs) {
                way.store(&runs[i], to);
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
    fn run(self, _: impl Machine) {
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
