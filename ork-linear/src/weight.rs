//! Weights as the NPU reads them, for the CPU.

use ork_weights::quantise::Tier;
use rknpu_sys::layout::{Layout, Precision};

use crate::error::{Error, Result, length};
use crate::rows::Transform;

/// A weight, or some of its columns, where it lies: in device memory, in a pack's mapping, anywhere.
///
/// ```
/// use ork_linear::{Transform, TiledWeight};
/// use rknpu_sys::layout::{Layout, Precision};
///
/// let layout = Layout::new(64, 32, Precision::Int8)?;
/// let tiles = vec![1; layout.bytes() as usize];
/// let weight = TiledWeight::new(layout, &tiles, &[0.5; 32], Transform::None)?;
/// assert_eq!((weight.layout().k(), weight.transform()), (64, Transform::None));
/// assert!(TiledWeight::new(layout, &tiles, &[0.5; 31], Transform::None).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TiledWeight<'a> {
    pub(crate) layout: Layout,
    pub(crate) tiles: &'a [u8],
    pub(crate) scales: &'a [f32],
    /// Those whose results count.
    pub(crate) channels: usize,
    transform: Transform,
}

impl<'a> TiledWeight<'a> {
    /// A weight whose tiles begin `tiles`. In int8 there is a scale for each channel, in fp16 there are
    /// none and there is no transform.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Precision`] for int4.
    pub fn new(
        layout: Layout,
        tiles: &'a [u8],
        scales: &'a [f32],
        transform: Transform,
    ) -> Result<TiledWeight<'a>> {
        let scaled = match layout.precision() {
            Precision::Int8 => layout.n() as usize,
            Precision::Fp16 => 0,
            got => return Err(Error::Precision { got, want: Precision::Int8 }),
        };
        length("scales", scales.len(), scaled)?;
        let want = usize::try_from(layout.bytes()).unwrap_or(usize::MAX);
        let short = Error::Length { what: "tiles", got: tiles.len(), want };
        let tiles = tiles.get(..want).ok_or(short)?;
        let transform = if scaled == 0 { Transform::None } else { transform };
        Ok(TiledWeight { layout, tiles, scales, channels: layout.n() as usize, transform })
    }

    /// The weight without the channels from number `n` on, which only fill its last tile: they give no
    /// results.
    ///
    /// ```
    /// use ork_linear::{Cpu, Depth, Output, QuantisedRows, TiledWeight, Transform};
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// let layout = Layout::padded(60, 33, Precision::Int8)?;
    /// let tiles = vec![0; layout.bytes() as usize];
    /// let weight = TiledWeight::new(layout, &tiles, &[1.0; 64], Transform::None)?.cut_to(33);
    /// let mut rows = QuantisedRows::new(Depth::Bits8);
    /// rows.quantise(&[1.0; 60], 60, Transform::None)?;
    /// let mut out = [1.0; 33];
    /// Cpu::default().multiply(&weight, &rows, Output { rows: &mut out, n: 33, column: 0 })?;
    /// assert_eq!(out, [0.0; 33]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cut_to(self, n: usize) -> TiledWeight<'a> {
        TiledWeight { channels: self.channels.min(n), ..self }
    }

    /// How it lies there.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// What must be done to rows.
    pub fn transform(&self) -> Transform {
        self.transform
    }
}

/// Whether products with weights of a tier are computed, by NPU and CPU alike: int8 with a scale for
/// each channel, and fp16.
///
/// ```
/// use ork_linear::multiplies;
/// use ork_weights::quantise::Tier;
///
/// assert!(multiplies(Tier::RotatedInt8 { group: None }).is_ok());
/// assert!(multiplies(Tier::Int4 { group: None }).is_err());
/// ```
///
/// # Errors
/// [`Error::Tier`]: int4 sums saturate in the NPU, and scales of groups would need a sum for each.
pub fn multiplies(tier: Tier) -> Result<()> {
    // With one scale a channel there are as many as channels, whatever K.
    let per_channel = tier.scales(1 << 15, 64) <= 64;
    match tier.precision() {
        Precision::Int8 if per_channel => Ok(()),
        Precision::Fp16 => Ok(()),
        _ => Err(Error::Tier(tier)),
    }
}

/// Whether a model's weights can be quantised to a tier while it runs, and multiplied: those of
/// [`multiplies`] that are stored as the NPU reads them.
///
/// ```
/// use ork_linear::packs_on_the_way;
/// use ork_weights::quantise::Tier;
///
/// assert!(packs_on_the_way(Tier::default()));
/// assert!(!packs_on_the_way(Tier::Nf4)); // from a pack only
/// ```
pub fn packs_on_the_way(tier: Tier) -> bool {
    multiplies(tier).is_ok() && tier.dtype().is_plain()
}
