//! Dot products of one tile: rows of input times the weights of the tile's channels.

pub(super) mod fp16;
pub(super) mod int4;
pub(super) mod int8;
mod simd;

use super::weights::K_BLOCK;

/// k of a block.
const BLOCK: usize = K_BLOCK as usize;

/// Weights as the dot products read them: blocks of 32 k, in each the 32 codes of one channel after
/// another; blocks are `block_step` bytes apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks<'a> {
    bytes: &'a [u8],
    step: usize,
    count: usize,
}

impl<'a> Blocks<'a> {
    /// `count` blocks of `step` bytes. Shorter bytes leave fewer blocks.
    pub(super) fn new(bytes: &'a [u8], step: usize, count: usize) -> Blocks<'a> {
        let count = bytes.len().checked_div(step).unwrap_or(0).min(count);
        Blocks { bytes, step, count }
    }

    /// Channels in a block.
    fn channels(&self) -> usize {
        self.step / BLOCK
    }
}
