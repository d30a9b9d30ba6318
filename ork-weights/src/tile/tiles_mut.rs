//! A tiled weight seen tile by tile.

use super::BLOCK;
use rayon::prelude::*;
use rknpu_sys::layout::{Layout, N_SLICE};

/// The bytes of a tiled weight, split so that each tile can be written by another thread. A tile
/// has one part in each k-slice.
pub(crate) struct TilesMut<'a> {
    parts: Vec<&'a mut [u8]>,
    per_tile: usize,
}

impl<'a> TilesMut<'a> {
    /// Splits `out`, which must be [`Layout::bytes`] long, and zeroes its padding.
    pub(crate) fn split(layout: &Layout, out: &'a mut [u8]) -> TilesMut<'a> {
        let per_tile = layout.k_slices() as usize;
        let width = layout.precision().tile_width();
        let mut parts = Vec::with_capacity((layout.n() / width) as usize * per_tile);
        let mut rest = out;
        let mut slices = layout.slices().peekable();
        while slices.peek().is_some() {
            let row: Vec<_> = slices.by_ref().take(per_tile).collect();
            let mut chunks: Vec<_> = row
                .iter()
                .map(|slice| {
                    let (bytes, tail) =
                        std::mem::take(&mut rest).split_at_mut(slice.padded_bytes() as usize);
                    rest = tail;
                    let (tiles, padding) = bytes.split_at_mut(slice.bytes as usize);
                    padding.fill(0);
                    tiles.chunks_exact_mut(part_bytes(slice.kp))
                })
                .collect();
            for _ in 0..row.first().map_or(0, |slice| slice.nc / width) {
                parts.extend(chunks.iter_mut().filter_map(Iterator::next));
            }
        }
        TilesMut { parts, per_tile }
    }

    /// The tiles in order of their channels, each as its parts in order of k.
    pub(crate) fn par_tiles(
        &mut self,
    ) -> impl IndexedParallelIterator<Item = &mut [&'a mut [u8]]> + '_ {
        self.parts.par_chunks_exact_mut(self.per_tile)
    }
}

/// Bytes of a tile in a slice of `kp` rows.
fn part_bytes(kp: u32) -> usize {
    kp as usize / 32 * BLOCK
}

/// The parts of tile `index` in `tiled`, in order of k.
pub(crate) fn parts<'a>(
    layout: &Layout,
    tiled: &'a [u8],
    index: usize,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let per_slice = (N_SLICE / layout.precision().tile_width()) as usize;
    let (layout, per_tile) = (*layout, layout.k_slices());
    let first = (index / per_slice) as u32 * per_tile;
    (first..first + per_tile).filter_map(move |slice| {
        let slice = layout.slice(slice)?;
        let bytes = part_bytes(slice.kp);
        tiled.get(slice.offset as usize + index % per_slice * bytes..)?.get(..bytes)
    })
}
