//! From f32 rows to codes and scales, for every tier.
//!
//! A row is one output channel of K values. What a code stands for is `level × scale`, with one
//! scale per channel, or one per group of consecutive k in the rotated tiers:
//!
//! | tier | scale | code | rounding |
//! |---|---|---|---|
//! | int8 | absmax / 127 | w / scale, ±127 | to nearest, ties to even |
//! | o4n1 | absmax / 7 | w / scale, ±7 | ties to even |
//! | nf4 | absmax / 127 | nearest of 16 levels of w / absmax | midpoints go up |
//! | int4, int4-as-int8 | absmax / 7 after rotation | w / scale, −8..7 | ties to even |
//! | rotated-int8 | absmax / 127 after rotation | w / scale, ±127 | ties to even |
//! | fp16 | none | the half float | ties to even |
//!
//! absmax is at least 1e-9. Source of the rules: the C project that defined `.orkpack`, so that
//! both pack the same bytes. Where K or N does not tile, zeros stand around the matrix.
//!
//! [`quantise`] gives what the NPU reads, [`encode`] what a pack keeps; they differ for the tiers
//! that are kept smaller than they are computed.
//!
//! The work goes tile by tile: a few rows are dequantised into the cache, looked at for their
//! scale, quantised, and written straight to their place in the tile. Memory is passed over once.
//!
//! ```
//! use ork_weights::dequant::TensorType;
//! use ork_weights::quantise::{Recipe, Rows, Tier, quantise};
//!
//! // How much each tier loses of the same channels.
//! let raw: Vec<u8> =
//!     (0..64 * 64).flat_map(|i| (i as f32 * 0.7).sin().to_le_bytes()).collect();
//! let rows = Rows::new(TensorType::F32, 64, 64, &raw)?;
//! let error = |tier: Tier| {
//!     let mut tiled = vec![0; tier.layout(64, 64)?.bytes() as usize];
//!     let mut scales = vec![0.0; tier.scales(64, 64)];
//!     let recipe = Recipe { measure: true, ..Recipe::new(tier) };
//!     Ok::<_, ork_weights::quantise::QuantiseError>(
//!         quantise(&rows, &recipe, &mut tiled, &mut scales)?.relative_rms(),
//!     )
//! };
//! assert!(error(Tier::Fp16)? < error(Tier::Int8)?);
//! assert!(error(Tier::Int8)? < error(Tier::O4n1)?);
//! # Ok::<(), ork_weights::quantise::QuantiseError>(())
//! ```

mod blob;
mod clip;
mod emit;
mod float16;
mod hadamard;
mod int4;
mod int8;
mod nf4;
mod quality;
mod rows;
mod tier;
mod whole;

pub(crate) use blob::stored_layout;
pub use blob::{blob_bytes, blob_scales, encode};
pub use hadamard::{block_of, rotate};
pub use quality::Quality;
pub use rows::Rows;
pub(crate) use rows::{RowScales, length};
pub use tier::{ParseTierError, Tier};
pub use whole::quantise;

use crate::simd::Machine;
use rknpu_sys::layout::LayoutError;

/// Least absmax a scale is made of; a channel of zeros gets a scale above zero.
const LEAST_ABSMAX: f32 = 1e-9;

/// How a weight is to be quantised.
///
/// ```
/// use ork_weights::quantise::{Recipe, Tier};
/// let recipe = Recipe { measure: true, ..Recipe::new(Tier::Int8) };
/// assert_eq!(recipe.importance, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe<'a> {
    /// Codes and scales.
    pub tier: Tier,
    /// Importance of each of the K inputs; the compact tiers then choose, per channel, the
    /// clipped scale of least importance-weighted error. Other tiers ignore it.
    pub importance: Option<&'a [f32]>,
    /// Whether to measure the error, which takes another look at every row.
    pub measure: bool,
}

impl Recipe<'_> {
    /// The plain form of a tier: no importance, nothing measured.
    ///
    /// ```
    /// use ork_weights::quantise::{Recipe, Tier};
    ///
    /// let recipe = Recipe::new(Tier::Nf4);
    /// assert!(recipe.importance.is_none() && !recipe.measure);
    /// ```
    pub const fn new(tier: Tier) -> Recipe<'static> {
        Recipe { tier, importance: None, measure: false }
    }
}

/// Why a weight could not be quantised.
///
/// ```
/// use ork_weights::dequant::TensorType;
/// use ork_weights::quantise::{QuantiseError, Recipe, Rows, Tier, quantise};
///
/// let raw = f32::NAN.to_le_bytes().repeat(32 * 32);
/// let rows = Rows::new(TensorType::F32, 32, 32, &raw)?;
/// let error = quantise(&rows, &Recipe::new(Tier::Int8), &mut [0; 4096], &mut [0.0; 32]);
/// assert!(matches!(error, Err(QuantiseError::NotFinite { .. })));
/// # Ok::<(), QuantiseError>(())
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantiseError {
    /// K or N is 0, or too large.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A weight that is NaN or infinite, or in fp16 above 65,504.
    #[error(
        "channel {channel} holds a value that is not finite, or none as a half float: choose another tier than fp16, or, if that is not the cause, the model file is damaged"
    )]
    NotFinite {
        /// The output channel.
        channel: usize,
    },
    /// A buffer of another length.
    #[error("the {buffer} holds {length}, {expected} are needed")]
    Length {
        /// Which buffer.
        buffer: &'static str,
        /// Its length.
        length: usize,
        /// The length it must have.
        expected: usize,
    },
    /// Channels that a weight does not have.
    #[error("channels {} to {} of a weight that has {n}: name at least one of them, and none past the last", channels.start, channels.end)]
    Channels {
        /// Those asked for.
        channels: std::ops::Range<u32>,
        /// Channels of the weight.
        n: u32,
    },
    /// A group that does not divide K into runs of 32.
    #[error("groups of {group} do not fit K={k}: a multiple of 32 that divides K, at most 10752")]
    Group {
        /// Values of a group.
        group: u32,
        /// Inputs of the weight.
        k: u32,
    },
}

/// Largest magnitude of a row; `None` when a value is not finite.
#[inline(always)]
fn absmax(row: &[f32]) -> Option<f32> {
    // Magnitudes order like their bits, and NaN and infinity come above all finite ones.
    let mut most = 0u32;
    for value in row {
        most = most.max(value.to_bits() & 0x7fff_ffff);
    }
    let most = f32::from_bits(most);
    most.is_finite().then_some(most)
}

/// What turns values into codes: a scale, and bounds of its reciprocal where these do.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    scale: f32,
    /// Less than 1 / scale, by a few units in the last place.
    below: f32,
    /// More than that, likewise.
    above: f32,
}

impl Step {
    #[inline(always)]
    fn new(scale: f32) -> Step {
        let inverse = 1.0 / scale;
        // Both the reciprocal and these products are off by half a unit at most, which is less
        // than 2⁻²⁴ of them; 2⁻²² is more than both together.
        let margin = inverse * f32::EPSILON * 2.0;
        Step { scale, below: inverse - margin, above: inverse + margin }
    }
}

/// One rule for scales and codes.
trait Quantiser: Sync {
    /// The scale of a row, or of a group of it. `None` when a value is not finite.
    fn scale(&self, values: &[f32]) -> Option<f32>;

    /// Codes of a run.
    fn codes(&self, machine: impl Machine, values: &[f32; 32], step: Step) -> [i8; 32];

    /// Whether values are codes already, and their scales beside them.
    fn takes_codes(&self) -> bool {
        false
    }

    /// What the NPU multiplies by the scale for this code.
    #[inline(always)]
    fn level(&self, code: i8) -> i8 {
        code
    }
}
