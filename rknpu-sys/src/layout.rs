//! Where the NPU expects each weight of a matrix `W[K][N]` (K inputs, N output channels).
//!
//! The matrix is cut into **slices**: K into runs of [`Precision::k_slice`], N into runs of
//! [`N_SLICE`] channels, N outer and K inner, each slice padded to a page. A slice is a row of
//! **tiles** of [`Precision::tile_width`] channels, each `32 × kp` bytes long whatever the
//! precision. In a tile, blocks of 32 consecutive k follow each other; in a block, the 32 values of
//! one channel lie together. With k and n local to the slice, `kp` its rows and T the tile width:
//!
//! ```text
//! element = ((n / T * (kp / 32) + k / 32) * T + n % T) * 32 + k % 32
//! ```
//!
//! Source: public C drivers for the RK3588, checked by them on boards. The order of the two int4
//! nibbles (even element low) is inferred; [`LOW_NIBBLE_FIRST`] is the one place that says so.
//!
//! ```
//! use rknpu_sys::layout::{Layout, Precision};
//!
//! let layout = Layout::new(1056, 64, Precision::Int8)?;
//! assert_eq!(layout.slices().count(), 2); // k 0..1024 and 1024..1056
//! assert_eq!(layout.bytes(), 1024 * 64 + 4096); // the second, 2048 bytes, padded to a page
//! assert_eq!(layout.element(1024, 0), Some((1, 0)));
//! # Ok::<(), rknpu_sys::layout::LayoutError>(())
//! ```

use core::fmt;

/// Slices start on multiples of this many bytes.
pub const PAGE: u64 = 4096;
/// Channels of a slice at most; a program for 16384 is silently wrong on a board.
pub const N_SLICE: u32 = 8192;
/// Consecutive k that lie together.
pub const K_BLOCK: u32 = 32;
/// int4: the element with the even index is in the low nibble.
pub const LOW_NIBBLE_FIRST: bool = true;

/// How a weight is stored.
///
/// ```
/// use rknpu_sys::layout::Precision;
///
/// // Whatever the precision, the 32 k of all channels of a tile are 1 KiB.
/// for p in [Precision::Int8, Precision::Fp16, Precision::Int4] {
///     assert_eq!(p.tile_width() * 32 * p.bits() / 8, 1024);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 8-bit codes.
    Int8,
    /// IEEE half floats.
    Fp16,
    /// Two 4-bit codes a byte.
    Int4,
}

impl Precision {
    /// Rows of a slice at most.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// let layout = Layout::new(4096, 32, Precision::Int8)?;
    /// assert_eq!(Precision::Int8.k_slice(), 1024);
    /// assert_eq!(layout.k_slices(), 4);
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub const fn k_slice(self) -> u32 {
        match self {
            Precision::Int8 => 1024,
            Precision::Fp16 => 2048,
            Precision::Int4 => 10752,
        }
    }

    /// Channels of a tile; N must be a multiple.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// assert_eq!(Precision::Int4.tile_width(), 64);
    /// assert!(Layout::new(32, 96, Precision::Int4).is_err()); // a tile and a half
    /// ```
    pub const fn tile_width(self) -> u32 {
        match self {
            Precision::Int8 => 32,
            Precision::Fp16 => 16,
            Precision::Int4 => 64,
        }
    }

    /// Bits of one element.
    ///
    /// ```
    /// use rknpu_sys::layout::Precision;
    ///
    /// let bytes = |p: Precision| 4096 * 4096 * p.bits() as u64 / 8;
    /// assert_eq!(bytes(Precision::Fp16), 32 << 20);
    /// assert_eq!(bytes(Precision::Int4), 8 << 20);
    /// ```
    pub const fn bits(self) -> u32 {
        match self {
            Precision::Int8 => 8,
            Precision::Fp16 => 16,
            Precision::Int4 => 4,
        }
    }

    /// Bytes of one tile of `kp` rows.
    ///
    /// ```
    /// use rknpu_sys::layout::Precision;
    ///
    /// // Columns are split between cores by tiles: where tile 3 of a slice of 1024 rows begins.
    /// assert_eq!(3 * Precision::Int8.tile_bytes(1024), 0x18000);
    /// ```
    pub const fn tile_bytes(self, kp: u32) -> u64 {
        kp as u64 * 32
    }
}

/// A shape that cannot be tiled.
///
/// ```
/// use rknpu_sys::layout::{Layout, LayoutError, Precision};
///
/// let error = Layout::new(100, 32, Precision::Int8).unwrap_err();
/// assert_eq!(error, LayoutError { k: 100, n: 32, precision: Precision::Int8 });
/// assert!(error.to_string().contains("K must be a multiple of 32"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutError {
    /// Rows.
    pub k: u32,
    /// Channels.
    pub n: u32,
    /// Precision that was asked for.
    pub precision: Precision,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "K={} N={} does not tile as {:?}: K must be a multiple of {K_BLOCK} and N of {}, both above 0",
            self.k,
            self.n,
            self.precision,
            self.precision.tile_width()
        )
    }
}

impl core::error::Error for LayoutError {}

/// One slice: `nc` channels from `n0`, `kp` rows from `k0`.
///
/// ```
/// use rknpu_sys::layout::{Layout, Precision, Slice};
///
/// // 8256 channels are a slice of 8192 and one of 64, which starts on a page.
/// let layout = Layout::new(32, 8256, Precision::Int8)?;
/// let last = Slice { n0: 8192, nc: 64, k0: 0, kp: 32, offset: 8192 * 32, bytes: 64 * 32 };
/// assert_eq!(layout.slices().last(), Some(last));
/// # Ok::<(), rknpu_sys::layout::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// First channel.
    pub n0: u32,
    /// Channels.
    pub nc: u32,
    /// First row.
    pub k0: u32,
    /// Rows.
    pub kp: u32,
    /// First byte in the tiled weight; a multiple of [`PAGE`].
    pub offset: u64,
    /// Bytes of its tiles, without padding.
    pub bytes: u64,
}

impl Slice {
    /// Bytes with the padding to a whole page.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// let layout = Layout::new(32, 64, Precision::Int8)?;
    /// let only = layout.slice(0).map(|s| (s.bytes, s.padded_bytes()));
    /// assert_eq!(only, Some((2048, 4096)));
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub const fn padded_bytes(&self) -> u64 {
        self.bytes.div_ceil(PAGE) * PAGE
    }
}

/// The layout of one weight matrix.
///
/// ```
/// use rknpu_sys::layout::{Layout, Precision};
///
/// // Writes W[k][n] = k + n where the NPU looks for it.
/// let layout = Layout::new(64, 32, Precision::Int8)?;
/// let mut tiled = vec![0i8; layout.bytes() as usize];
/// for k in 0..64 {
///     for n in 0..32 {
///         let (slice, element) = layout.element(k, n).expect("inside the matrix");
///         let offset = layout.slice(slice).expect("has this element").offset;
///         tiled[(offset + element) as usize] = (k + n) as i8;
///     }
/// }
/// assert_eq!(&tiled[..3], &[0, 1, 2]); // consecutive k of channel 0
/// assert_eq!(tiled[32], 1); // channel 1
/// assert_eq!(tiled[32 * 32], 32); // the next 32 k of channel 0
/// # Ok::<(), rknpu_sys::layout::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    k: u32,
    n: u32,
    precision: Precision,
}

impl Layout {
    /// The layout of `k` rows and `n` channels.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, LayoutError, Precision};
    ///
    /// const LAYOUT: Result<Layout, LayoutError> = Layout::new(2048, 96, Precision::Int8);
    /// assert!(LAYOUT.is_ok());
    /// assert!(Layout::new(2048, 90, Precision::Int8).is_err());
    /// ```
    ///
    /// # Errors
    /// [`LayoutError`] when K is no multiple of 32 or N none of the tile width, or one is 0.
    pub const fn new(k: u32, n: u32, precision: Precision) -> Result<Layout, LayoutError> {
        if k == 0
            || n == 0
            || !k.is_multiple_of(K_BLOCK)
            || !n.is_multiple_of(precision.tile_width())
        {
            return Err(LayoutError { k, n, precision });
        }
        Ok(Layout { k, n, precision })
    }

    /// The layout that holds a matrix of any shape: K and N rounded up to what tiles. What it has more
    /// than the matrix must be zeros, which change no sum.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// let layout = Layout::padded(2730, 32_003, Precision::Int8)?;
    /// assert_eq!((layout.k(), layout.n()), (2752, 32_032));
    /// assert_eq!(Layout::padded(64, 64, Precision::Int4), Layout::new(64, 64, Precision::Int4));
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// [`LayoutError`] when K or N is 0, or so near to 2^32 that there is nothing to round up to.
    pub const fn padded(k: u32, n: u32, precision: Precision) -> Result<Layout, LayoutError> {
        let wide = (
            k.checked_next_multiple_of(K_BLOCK),
            n.checked_next_multiple_of(precision.tile_width()),
        );
        match wide {
            (Some(wide_k), Some(wide_n)) if k != 0 && n != 0 => {
                Layout::new(wide_k, wide_n, precision)
            }
            _ => Err(LayoutError { k, n, precision }),
        }
    }

    /// Rows (inputs).
    pub const fn k(&self) -> u32 {
        self.k
    }

    /// Channels (outputs).
    pub const fn n(&self) -> u32 {
        self.n
    }

    /// Element type.
    pub const fn precision(&self) -> Precision {
        self.precision
    }

    /// Slices in K.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// assert_eq!(Layout::new(1056, 32, Precision::Int8)?.k_slices(), 2);
    /// assert_eq!(Layout::new(1056, 32, Precision::Fp16)?.k_slices(), 1);
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub const fn k_slices(&self) -> u32 {
        self.k.div_ceil(self.precision.k_slice())
    }

    /// Slices in N.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, N_SLICE, Precision};
    ///
    /// assert_eq!(Layout::new(32, N_SLICE, Precision::Int8)?.n_slices(), 1);
    /// assert_eq!(Layout::new(32, N_SLICE + 32, Precision::Int8)?.n_slices(), 2);
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub const fn n_slices(&self) -> u32 {
        self.n.div_ceil(N_SLICE)
    }

    /// Slice `index` = n-slice × [`Layout::k_slices`] + k-slice; `None` past the last.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// let layout = Layout::new(2048, 8256, Precision::Int8)?;
    /// let slice = layout.slice(3).expect("two by two"); // the second half of K, the last channels
    /// assert_eq!((slice.k0, slice.n0), (1024, 8192));
    /// assert_eq!(layout.slice(4), None);
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub const fn slice(&self, index: u32) -> Option<Slice> {
        let (ns, ks) = (index / self.k_slices(), index % self.k_slices());
        if ns >= self.n_slices() {
            return None;
        }
        let (n0, k0) = (ns * N_SLICE, ks * self.precision.k_slice());
        let nc = if self.n - n0 < N_SLICE { self.n - n0 } else { N_SLICE };
        let full = self.precision.k_slice();
        let kp = if self.k - k0 < full { self.k - k0 } else { full };
        // Before it: whole n-slices, then the k-slices of this one, all of full height.
        let before = self.row_of_slices(N_SLICE).saturating_mul(ns as u64);
        let offset = before.saturating_add(self.pages(full, nc) * ks as u64);
        Some(Slice { n0, nc, k0, kp, offset, bytes: self.plain(kp, nc) })
    }

    /// All slices, in the order in which they lie in memory.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, PAGE, Precision};
    ///
    /// let layout = Layout::new(1056, 64, Precision::Int8)?;
    /// let mut end = 0;
    /// for slice in layout.slices() {
    ///     assert_eq!(slice.offset, end);
    ///     assert_eq!(slice.offset % PAGE, 0);
    ///     end += slice.padded_bytes();
    /// }
    /// assert_eq!(end, layout.bytes());
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub fn slices(&self) -> impl Iterator<Item = Slice> + '_ {
        (0..self.k_slices().saturating_mul(self.n_slices())).filter_map(|i| self.slice(i))
    }

    /// Bytes of the whole weight, each slice padded; `u64::MAX` for more than there are numbers.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// assert_eq!(Layout::new(4096, 4096, Precision::Int8)?.bytes(), 16 << 20);
    /// assert_eq!(Layout::new(32, 32, Precision::Int8)?.bytes(), 4096); // 1 KiB, padded
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub const fn bytes(&self) -> u64 {
        let last = self.n - (self.n_slices() - 1) * N_SLICE;
        let before = self.row_of_slices(N_SLICE).saturating_mul((self.n_slices() - 1) as u64);
        before.saturating_add(self.row_of_slices(last))
    }

    /// Slice index and element index inside it of `W[k][n]`; `None` outside the matrix.
    ///
    /// ```
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// let layout = Layout::new(1056, 64, Precision::Int8)?;
    /// assert_eq!(layout.element(1, 0), Some((0, 1)));
    /// assert_eq!(layout.element(0, 32), Some((0, 1024 * 32))); // the next tile
    /// assert_eq!(layout.element(1024, 0), Some((1, 0))); // the next slice
    /// assert_eq!(layout.element(1056, 0), None);
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub const fn element(&self, k: u32, n: u32) -> Option<(u32, u64)> {
        if k >= self.k || n >= self.n {
            return None;
        }
        let index = n / N_SLICE * self.k_slices() + k / self.precision.k_slice();
        let Some(slice) = self.slice(index) else { return None };
        let (k, n, t) = (k - slice.k0, n - slice.n0, self.precision.tile_width());
        let block = (n / t) as u64 * (slice.kp / K_BLOCK) as u64 + (k / K_BLOCK) as u64;
        Some((index, (block * t as u64 + (n % t) as u64) * K_BLOCK as u64 + (k % K_BLOCK) as u64))
    }

    const fn plain(&self, kp: u32, nc: u32) -> u64 {
        self.precision.tile_bytes(kp) * (nc / self.precision.tile_width()) as u64
    }

    const fn pages(&self, kp: u32, nc: u32) -> u64 {
        self.plain(kp, nc).div_ceil(PAGE) * PAGE
    }

    /// Bytes of all k-slices of an n-slice of `nc` channels.
    const fn row_of_slices(&self, nc: u32) -> u64 {
        let full = self.precision.k_slice();
        let whole = self.k / full;
        let rest = self.k % full;
        let tail = if rest == 0 { 0 } else { self.pages(rest, nc) };
        self.pages(full, nc) * whole as u64 + tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_shapes_have_sizes() {
        for precision in [Precision::Int8, Precision::Fp16, Precision::Int4] {
            let layout = Layout::new(u32::MAX - 31, u32::MAX - 63, precision).unwrap();
            assert!(layout.bytes() >= 1 << 62 && layout.slice(u32::MAX).is_some());
            for (k, n) in [(u32::MAX, 64), (64, u32::MAX), (0, 64), (64, 0)] {
                assert_eq!(Layout::padded(k, n, precision), Err(LayoutError { k, n, precision }));
            }
        }
    }

    #[test]
    fn padding_is_less_than_a_tile() {
        for precision in [Precision::Int8, Precision::Fp16, Precision::Int4] {
            for (k, n) in [(1, 1), (31, 65), (2730, 32_003), (768, 30_522), (64, 64)] {
                let layout = Layout::padded(k, n, precision).unwrap();
                assert!((k..k + 32).contains(&layout.k()));
                assert!((n..n + precision.tile_width()).contains(&layout.n()));
            }
        }
    }

    #[test]
    fn offsets_follow_the_padded_slices() {
        for precision in [Precision::Int8, Precision::Fp16, Precision::Int4] {
            for (k, n) in [(32, 64), (1056, 64), (2080, 8256), (10784, 16448), (4096, 8192)] {
                let layout = Layout::new(k, n, precision).unwrap();
                let mut at = 0;
                for slice in layout.slices() {
                    assert_eq!(slice.offset, at);
                    at += slice.padded_bytes();
                }
                assert_eq!(layout.bytes(), at);
            }
        }
    }

    #[test]
    fn elements_are_a_permutation() {
        let layout = Layout::new(1056, 96, Precision::Int8).unwrap();
        let mut seen: [[bool; 96]; 1056] = [[false; 96]; 1056];
        let bytes: [u64; 2] = [1024 * 96, 32 * 96];
        for k in 0..1056 {
            for n in 0..96 {
                let (slice, element) = layout.element(k, n).unwrap();
                assert!(element < bytes[slice as usize]);
                let flat = (element + if slice == 1 { bytes[0] } else { 0 }) as usize;
                assert!(!core::mem::replace(&mut seen[flat / 96][flat % 96], true));
            }
        }
        assert_eq!(layout.element(1056, 0), None);
        assert_eq!(layout.element(0, 96), None);
    }

    #[test]
    fn shapes_that_do_not_tile_are_refused() {
        for (k, n, p) in [
            (0, 32, Precision::Int8),
            (32, 0, Precision::Int8),
            (33, 32, Precision::Int8),
            (32, 48, Precision::Int8),
            (32, 24, Precision::Fp16),
            (32, 96, Precision::Int4),
        ] {
            assert_eq!(Layout::new(k, n, p), Err(LayoutError { k, n, precision: p }));
        }
    }
}
