//! Where the weights of a program lie: tiles of output channels, in them blocks of 32 consecutive k,
//! in a block the 32 values of one channel after another.

use super::matmul::Kind;

/// Consecutive k that lie together.
pub(super) const K_BLOCK: u32 = 32;

/// The weights that a program reads: one gapless range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weights {
    /// IOVA of the first tile.
    pub(super) base: u32,
    /// Output channels.
    pub(super) channels: u32,
    /// Bytes of one channel over all k.
    pub(super) channel_bytes: u32,
    /// Channels of a tile.
    pub(super) tile_channels: u32,
    /// Whether CBUF still holds them from the program before.
    pub(super) resident: bool,
}

impl Weights {
    /// Channels of a tile, by what the array computes. Measured by public drivers.
    pub(super) fn tile_channels(kind: Kind) -> u32 {
        match kind {
            Kind::Fp16ToFp32 | Kind::Fp16ToFp16 | Kind::Bf16ToFp32 => 16,
            Kind::Int8ToInt32 | Kind::Int8ToInt8(_) => 32,
            Kind::Int4ToInt16 => 64,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.channels) * u64::from(self.channel_bytes)
    }

    /// Bytes of one tile.
    pub(super) fn tile_bytes(&self) -> usize {
        self.tile_channels as usize * self.channel_bytes as usize
    }
}
