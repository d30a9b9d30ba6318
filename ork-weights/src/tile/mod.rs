//! From row-major weights to the NPU's tiles, and back.
//!
//! A row is one output channel: K elements, little-endian, int4 two a byte with the even k in the
//! low nibble. Whatever the precision, a tile is a sequence of blocks of 1024 bytes, each holding
//! one **run** (32 consecutive k) of every channel of the tile: 32 runs of 32 bytes for int8, 16
//! of 64 for fp16, 64 of 16 for int4. So tiling copies runs and never looks at elements, and one
//! algorithm serves all three. [`rknpu_sys::layout`] says where each byte belongs.
//!
//! ```
//! use ork_weights::tile::{tile, untile};
//! use rknpu_sys::layout::{Layout, Precision};
//!
//! let layout = Layout::new(64, 32, Precision::Int8)?;
//! let rows: Vec<u8> = (0..64 * 32).map(|i| (i % 251) as u8).collect();
//! let mut tiled = vec![0; layout.bytes() as usize];
//! tile(&layout, &rows, &mut tiled)?;
//! // k 32..64 of channel 0 begin the second block.
//! assert_eq!(tiled[1024..1056], rows[32..64]);
//!
//! let mut back = vec![0; rows.len()];
//! untile(&layout, &tiled, &mut back)?;
//! assert_eq!(back, rows);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod runs;
mod tiles_mut;

pub(crate) use tiles_mut::TilesMut;

use crate::simd::dispatch;
use rayon::prelude::*;
use rknpu_sys::layout::{Layout, Precision};
use runs::{Gather, Scatter};

/// Bytes of a block: one run of every channel of a tile.
pub(crate) const BLOCK: usize = 1024;

/// A buffer that does not fit the layout.
///
/// ```
/// use ork_weights::tile::tile;
/// use rknpu_sys::layout::{Layout, Precision};
///
/// let layout = Layout::new(32, 32, Precision::Int8)?;
/// let error = tile(&layout, &[0; 1024], &mut [0; 1024]).unwrap_err();
/// assert_eq!((error.bytes, error.expected), (1024, 4096)); // a slice fills its page
/// # Ok::<(), rknpu_sys::layout::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tile K={k} N={n} {precision:?}: the {buffer} has {bytes} bytes, {expected} are needed")]
pub struct TileError {
    /// Inputs of the weight.
    pub k: u32,
    /// Channels of the weight.
    pub n: u32,
    /// Precision of the layout.
    pub precision: Precision,
    /// Which buffer.
    pub buffer: &'static str,
    /// Bytes it has.
    pub bytes: usize,
    /// Bytes it must have.
    pub expected: u64,
}

/// Bytes of a row of the layout's matrix.
pub(crate) const fn row_bytes(layout: &Layout) -> usize {
    layout.k() as usize * layout.precision().bits() as usize / 8
}

fn check(
    layout: &Layout,
    buffer: &'static str,
    bytes: usize,
    expected: u64,
) -> Result<(), TileError> {
    if bytes as u64 == expected {
        return Ok(());
    }
    let (k, n, precision) = (layout.k(), layout.n(), layout.precision());
    Err(TileError { k, n, precision, buffer, bytes, expected })
}

/// Bytes of the row-major matrix `[N][K]` that [`tile`] takes.
///
/// ```
/// use rknpu_sys::layout::{Layout, Precision};
/// let layout = Layout::new(64, 128, Precision::Int4)?;
/// assert_eq!(ork_weights::tile::rows_bytes(&layout), 64 * 128 / 2);
/// # Ok::<(), rknpu_sys::layout::LayoutError>(())
/// ```
pub const fn rows_bytes(layout: &Layout) -> u64 {
    row_bytes(layout) as u64 * layout.n() as u64
}

/// Tiles the row-major matrix `rows` (`[N][K]`, [`rows_bytes`] long) into `out`
/// ([`Layout::bytes`] long); padding becomes 0. Tiles are spread over the threads of the current
/// rayon pool.
///
/// ```
/// use ork_weights::tile::tile;
/// use rknpu_sys::layout::{Layout, Precision};
///
/// let layout = Layout::new(32, 32, Precision::Int8)?;
/// let rows: Vec<u8> = (0..1024).map(|i| (i / 32) as u8).collect(); // row c holds c
/// let mut tiled = [0xff; 4096];
/// tile(&layout, &rows, &mut tiled)?;
/// assert_eq!(tiled[..1024], rows); // one run a channel: nothing moves
/// assert_eq!(tiled[1024..], [0; 3072]); // padding
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TileError`] when a buffer has another length; `out` is then untouched.
pub fn tile(layout: &Layout, rows: &[u8], out: &mut [u8]) -> Result<(), TileError> {
    check(layout, "row-major matrix", rows.len(), rows_bytes(layout))?;
    check(layout, "tiled weight", out.len(), layout.bytes())?;
    let non_temporal = prefers_non_temporal(out.len());
    tile_checked(layout, rows, out, non_temporal);
    Ok(())
}

/// Whether a tiled weight of so many bytes is better written past the caches: where it does not stay
/// in the last one beside the rows that it is made of. Measured: up to half of that cache for both,
/// plain stores are faster, by up to 1.6 times; above it those past the caches, by up to 3 times.
pub(crate) fn prefers_non_temporal(bytes: usize) -> bool {
    cfg!(target_arch = "x86_64") && bytes > crate::last_cache::bytes() / 4
}

/// [`tile`] of buffers that fit; with `non_temporal` written past the caches.
fn tile_checked(layout: &Layout, rows: &[u8], out: &mut [u8], non_temporal: bool) {
    let stride = row_bytes(layout);
    let per_tile = stride * layout.precision().tile_width() as usize;
    TilesMut::split(layout, out)
        .par_tiles()
        .zip(rows.par_chunks_exact(per_tile))
        .for_each(|(parts, rows)| gather(layout.precision(), rows, stride, parts, non_temporal));
}

/// The inverse of [`tile`]: `tiled` back to row-major `[N][K]`. Padding is not looked at.
///
/// ```
/// use ork_weights::tile::untile;
/// use rknpu_sys::layout::{Layout, Precision};
///
/// let layout = Layout::new(64, 32, Precision::Int8)?;
/// let mut tiled = [0; 4096];
/// tiled[1024] = 9; // the first byte of the second block
/// let mut rows = [0; 64 * 32];
/// untile(&layout, &tiled, &mut rows)?;
/// assert_eq!(rows[32], 9); // k 32 of channel 0
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TileError`] when a buffer has another length; `rows` is then untouched.
pub fn untile(layout: &Layout, tiled: &[u8], rows: &mut [u8]) -> Result<(), TileError> {
    untile_on(Threads::All, layout, tiled, rows)
}

/// Who does the work on a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// The calling thread.
    One,
    /// Those of the current rayon pool.
    All,
}

impl Threads {
    /// Tiles that one of them takes at least.
    pub(crate) fn least(self) -> usize {
        match self {
            Threads::One => usize::MAX,
            Threads::All => 1,
        }
    }
}

/// [`untile`] on one thread or all.
pub(crate) fn untile_on(
    threads: Threads,
    layout: &Layout,
    tiled: &[u8],
    rows: &mut [u8],
) -> Result<(), TileError> {
    check(layout, "tiled weight", tiled.len(), layout.bytes())?;
    check(layout, "row-major matrix", rows.len(), rows_bytes(layout))?;
    let stride = row_bytes(layout);
    let per_tile = stride * layout.precision().tile_width() as usize;
    let tiles = rows.par_chunks_exact_mut(per_tile).with_min_len(threads.least());
    tiles.enumerate().for_each(|(index, rows)| {
        let parts = tiles_mut::parts(layout, tiled, index);
        match layout.precision() {
            Precision::Int4 => dispatch(Scatter::<16, _> { rows, stride, parts }),
            Precision::Int8 => dispatch(Scatter::<32, _> { rows, stride, parts }),
            Precision::Fp16 => dispatch(Scatter::<64, _> { rows, stride, parts }),
        }
    });
    Ok(())
}

/// Tiles the rows of one tile, `stride` bytes apart, into its parts of the k-slices.
/// With `non_temporal` they go past the caches.
pub(crate) fn gather(
    precision: Precision,
    rows: &[u8],
    stride: usize,
    parts: &mut [&mut [u8]],
    non_temporal: bool,
) {
    match precision {
        Precision::Int4 => dispatch(Gather::<16, 4> { rows, stride, parts, non_temporal }),
        Precision::Int8 => dispatch(Gather::<32, 2> { rows, stride, parts, non_temporal }),
        Precision::Fp16 => dispatch(Gather::<64, 1> { rows, stride, parts, non_temporal }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By the formula of the layout, element by element.
    fn naive(layout: &Layout, rows: &[u8]) -> Vec<u8> {
        let bits = layout.precision().bits() as usize;
        let nibble = |bytes: &[u8], i: usize| bytes[i / 2] >> (i % 2 * 4) & 15;
        let mut out = vec![0; layout.bytes() as usize];
        for n in 0..layout.n() {
            for k in 0..layout.k() {
                let (slice, element) = layout.element(k, n).unwrap();
                let slice = layout.slice(slice).unwrap();
                let from = n as usize * layout.k() as usize + k as usize;
                let to = slice.offset as usize * 8 / bits + element as usize;
                match bits {
                    4 => out[to / 2] |= nibble(rows, from) << (to % 2 * 4),
                    8 => out[to] = rows[from],
                    _ => out[2 * to..2 * to + 2].copy_from_slice(&rows[2 * from..2 * from + 2]),
                }
            }
        }
        out
    }

    fn noise(bytes: u64, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..bytes).map(|_| next()).collect()
    }

    fn holds(k: u32, n: u32, precision: Precision, seed: u64) {
        let layout = Layout::new(k, n, precision).unwrap();
        let rows = noise(rows_bytes(&layout), seed);
        let mut tiled = vec![0xee; layout.bytes() as usize];
        tile(&layout, &rows, &mut tiled).unwrap();
        assert_eq!(tiled, naive(&layout, &rows));
        let mut non_temporal = vec![0xee; tiled.len() + 1];
        tile_checked(&layout, &rows, &mut non_temporal[..tiled.len()], true);
        assert_eq!(non_temporal[..tiled.len()], tiled);
        tile_checked(&layout, &rows, &mut non_temporal[1..], true);
        assert_eq!(non_temporal[1..], tiled);
        let mut back = vec![0xee; rows.len()];
        untile(&layout, &tiled, &mut back).unwrap();
        assert_eq!(back, rows);
    }

    fn precision() -> impl Strategy<Value = Precision> {
        prop_oneof![Just(Precision::Int8), Just(Precision::Fp16), Just(Precision::Int4)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn tiling_is_the_layouts_formula(
            precision in precision(), k in 1u32..40, n in 1u32..4, seed: u64,
        ) {
            holds(k * 32, n * precision.tile_width(), precision, seed);
        }
    }

    #[test]
    fn slices_in_both_directions() {
        holds(1056, 32 * 1024, Precision::Int8, 7);
        holds(2080, 64, Precision::Int8, 1);
        holds(4128, 32, Precision::Fp16, 2);
        holds(10784, 64, Precision::Int4, 3);
        holds(64, 8192 + 64, Precision::Int8, 4);
        holds(32, 2 * 8192 + 64, Precision::Int4, 5);
        holds(1056, 8192 + 16, Precision::Fp16, 6);
    }

    #[test]
    fn buffers_must_fit() {
        let layout = Layout::new(32, 32, Precision::Int8).unwrap();
        let error = tile(&layout, &[0; 1023], &mut [0; 4096]).unwrap_err();
        assert_eq!((error.bytes, error.expected), (1023, 1024));
        let error = tile(&layout, &[0; 1024], &mut [0; 1024]).unwrap_err();
        assert_eq!((error.bytes, error.expected, error.buffer), (1024, 4096, "tiled weight"));
        assert!(untile(&layout, &[0; 4095], &mut [0; 1024]).is_err());
        assert!(untile(&layout, &[0; 4096], &mut [0; 1025]).is_err());
    }
}
