//! The ways a weight can be quantised.

use super::QuantiseError;
use crate::pack::{Codebook, Dtype};
use rknpu_sys::layout::{Layout, Precision};
use std::str::FromStr;

/// How a weight is coded, stored and computed.
///
/// `group` is the number of consecutive k that share a scale, `None` for one scale a channel.
///
/// ```
/// use ork_weights::quantise::Tier;
/// let tier: Tier = "int4:128".parse()?;
/// assert_eq!(tier, Tier::Int4 { group: Some(128) });
/// assert_eq!(tier.scales(4096, 64), 32 * 64);
/// assert_eq!(tier.to_string(), "int4:128");
/// # Ok::<(), ork_weights::quantise::ParseTierError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// int8 codes, int8 activations.
    Int8,
    /// Evenly spaced int4 codes, stored compactly; int8 activations.
    O4n1,
    /// NF4 codes, stored compactly; int8 activations.
    Nf4,
    /// int4 codes of the rotated weight; int4 activations.
    Int4 {
        /// Values of a scale group.
        group: Option<u32>,
    },
    /// int8 codes of the rotated weight; int8 activations.
    RotatedInt8 {
        /// Values of a scale group.
        group: Option<u32>,
    },
    /// int4 codes of the rotated weight, stored as [`Tier::Int4`] is; int8 activations.
    Int4AsInt8 {
        /// Values of a scale group.
        group: Option<u32>,
    },
    /// Half floats of the values, and of the activations: the exact one.
    Fp16,
}

impl Tier {
    /// How a pack stores it.
    ///
    /// ```
    /// use ork_weights::{pack::Dtype, quantise::Tier};
    ///
    /// assert_eq!(Tier::Nf4.dtype(), Dtype::O4n1); // the codebook stands in the blob
    /// assert_eq!(Tier::Fp16.dtype(), Dtype::Fp16);
    /// ```
    pub const fn dtype(self) -> Dtype {
        match self {
            Tier::Int8 => Dtype::Int8,
            Tier::O4n1 | Tier::Nf4 => Dtype::O4n1,
            Tier::Int4 { .. } => Dtype::Int4,
            Tier::RotatedInt8 { .. } => Dtype::RotatedInt8,
            Tier::Int4AsInt8 { .. } => Dtype::Int4AsInt8,
            Tier::Fp16 => Dtype::Fp16,
        }
    }

    /// Precision of what the NPU reads.
    ///
    /// ```
    /// use ork_weights::quantise::Tier;
    /// use rknpu_sys::layout::Precision;
    ///
    /// assert_eq!(Tier::O4n1.precision(), Precision::Int8); // four bits on disk, eight to the NPU
    /// ```
    pub const fn precision(self) -> Precision {
        self.dtype().loaded()
    }

    /// Layout of what the NPU reads of a K × N weight: where that does not tile, of the least shape that
    /// does and holds it. What it has more are zeros.
    ///
    /// ```
    /// use ork_weights::quantise::Tier;
    ///
    /// assert_eq!(Tier::Int8.layout(1024, 64)?.bytes(), 64 << 10);
    /// assert_eq!(Tier::Int8.layout(1000, 33)?, Tier::Int8.layout(1024, 64)?);
    /// assert!(Tier::Int4 { group: Some(48) }.layout(1024, 64).is_err()); // no run of 32
    /// # Ok::<(), ork_weights::quantise::QuantiseError>(())
    /// ```
    ///
    /// # Errors
    /// [`QuantiseError::Layout`] when K or N is 0 or too large; [`QuantiseError::Group`].
    pub fn layout(self, k: u32, n: u32) -> Result<Layout, QuantiseError> {
        let layout = self.dtype().layout(k, n)?;
        self.groups(layout.k())?;
        Ok(layout)
    }

    /// Number of scales of a K × N weight: N, or groups × N, or none, with the K and N of its layout.
    ///
    /// ```
    /// use ork_weights::quantise::Tier;
    ///
    /// assert_eq!(Tier::Int8.scales(4096, 64), 64);
    /// assert_eq!(Tier::Int4 { group: Some(128) }.scales(4096, 64), 32 * 64);
    /// assert_eq!(Tier::Fp16.scales(4096, 64), 0);
    /// ```
    pub fn scales(self, k: u32, n: u32) -> usize {
        match self {
            Tier::Fp16 => 0,
            _ => {
                let layout = self.dtype().layout(k, n);
                let (k, n) = layout.map_or((k, n), |layout| (layout.k(), layout.n()));
                self.groups(k).unwrap_or(1) as usize * n as usize
            }
        }
    }

    /// The codebook of a compactly stored tier.
    pub(crate) const fn codebook(self) -> Option<Codebook> {
        match self {
            Tier::O4n1 => Some(Codebook::Uniform),
            Tier::Nf4 => Some(Codebook::Nf4),
            _ => None,
        }
    }

    /// Whether activations must be rotated as the weight was, see [`rotate`](super::rotate).
    ///
    /// ```
    /// use ork_weights::quantise::{Tier, rotate};
    ///
    /// let mut activations = [1.0, 0.0, 0.0, 0.0];
    /// if (Tier::Int4 { group: None }).is_rotated() {
    ///     rotate(&mut activations);
    /// }
    /// assert_eq!(activations, [0.5; 4]);
    /// ```
    pub const fn is_rotated(self) -> bool {
        self.dtype().is_rotated()
    }

    /// Bits of a stored code.
    ///
    /// ```
    /// use ork_weights::quantise::Tier;
    ///
    /// assert_eq!((Tier::Int8.bits(), Tier::Nf4.bits(), Tier::Fp16.bits()), (8, 4, 16));
    /// ```
    pub const fn bits(self) -> u32 {
        match self {
            Tier::Fp16 => 16,
            Tier::Int8 | Tier::RotatedInt8 { .. } => 8,
            _ => 4,
        }
    }

    /// Scale groups along the K of a layout.
    pub(crate) fn groups(self, k: u32) -> Result<u32, QuantiseError> {
        match self.group() {
            None => Ok(1),
            Some(group)
                if group != 0
                    && group.is_multiple_of(32)
                    && k.is_multiple_of(group)
                    && group <= Precision::Int4.k_slice() =>
            {
                Ok(k / group)
            }
            Some(group) => Err(QuantiseError::Group { group, k }),
        }
    }

    const fn group(self) -> Option<u32> {
        match self {
            Tier::Int4 { group } | Tier::RotatedInt8 { group } | Tier::Int4AsInt8 { group } => {
                group
            }
            _ => None,
        }
    }

    const fn may_group(self) -> bool {
        matches!(self, Tier::Int4 { .. } | Tier::RotatedInt8 { .. } | Tier::Int4AsInt8 { .. })
    }

    const fn name(self) -> &'static str {
        match self {
            Tier::Int8 => "int8",
            Tier::O4n1 => "o4n1",
            Tier::Nf4 => "nf4",
            Tier::Int4 { .. } => "int4",
            Tier::RotatedInt8 { .. } => "rotated-int8",
            Tier::Int4AsInt8 { .. } => "int4-as-int8",
            Tier::Fp16 => "fp16",
        }
    }
}

impl Default for Tier {
    /// What weights become where nobody asks for anything else: close enough to the model's own values that
    /// text is hardly another, in a byte for each.
    ///
    /// ```
    /// use ork_weights::quantise::Tier;
    ///
    /// assert_eq!(Tier::default(), Tier::RotatedInt8 { group: None });
    /// ```
    fn default() -> Tier {
        Tier::RotatedInt8 { group: None }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group() {
            None => f.pad(self.name()),
            Some(group) => f.pad(&format!("{}:{group}", self.name())),
        }
    }
}

/// A text that names no tier.
///
/// ```
/// use ork_weights::quantise::Tier;
///
/// let error = "int9".parse::<Tier>().unwrap_err();
/// assert!(error.to_string().starts_with("\"int9\" is no tier: int8, o4n1, nf4"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseTierError {
    /// Not a name of a tier, or a group that is no number.
    #[error(
        "{text:?} is no tier: int8, o4n1, nf4, int4[:GROUP], rotated-int8[:GROUP], \
         int4-as-int8[:GROUP] or fp16"
    )]
    Unknown {
        /// The text.
        text: Box<str>,
    },
    /// A group for a tier that has one scale a channel.
    #[error("tier {tier} has one scale a channel and takes no group")]
    Group {
        /// The tier.
        tier: Tier,
    },
}

impl FromStr for Tier {
    type Err = ParseTierError;

    /// A tier's name, with `:GROUP` where it may have scale groups.
    fn from_str(text: &str) -> Result<Tier, ParseTierError> {
        let unknown = || ParseTierError::Unknown { text: text.into() };
        let (name, group) = match text.split_once(':') {
            None => (text, None),
            Some((name, group)) => (name, Some(group.parse::<u32>().map_err(|_| unknown())?)),
        };
        let tier = match name {
            "int8" => Tier::Int8,
            "o4n1" => Tier::O4n1,
            "nf4" => Tier::Nf4,
            "int4" => Tier::Int4 { group },
            "rotated-int8" => Tier::RotatedInt8 { group },
            "int4-as-int8" => Tier::Int4AsInt8 { group },
            "fp16" => Tier::Fp16,
            _ => return Err(unknown()),
        };
        if group.is_some() && !tier.may_group() {
            return Err(ParseTierError::Group { tier });
        }
        Ok(tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for text in ["int8", "o4n1", "nf4", "int4", "rotated-int8:64", "int4-as-int8:32", "fp16"] {
            assert_eq!(text.parse::<Tier>().unwrap().to_string(), text);
        }
        for text in ["", "int9", "int8:32", "o4n1:32", "int4:", "int4:x", "fp16:32"] {
            assert!(text.parse::<Tier>().is_err(), "{text}");
        }
    }

    #[test]
    fn groups_must_fit() {
        let tier = |group| Tier::Int4 { group: Some(group) };
        assert_eq!(tier(64).groups(128), Ok(2));
        for (group, k) in [(0, 128), (48, 96), (64, 96), (21504, 21504)] {
            assert_eq!(tier(group).groups(k), Err(QuantiseError::Group { group, k }));
            assert!(tier(group).layout(k, 64).is_err());
        }
        let width = |tier: Tier| tier.layout(64, 32).unwrap().n();
        assert_eq!(width(Tier::Int4AsInt8 { group: None }), 64); // as it is stored
        assert_eq!(width(Tier::RotatedInt8 { group: None }), 32);
        // Groups divide the padded K.
        assert_eq!(tier(64).layout(100, 64).unwrap().k(), 128);
        assert_eq!(tier(64).scales(100, 60), 2 * 64);
    }
}
