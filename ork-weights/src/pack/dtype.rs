//! What the codes of a weight mean and how its blob holds them.

use rknpu_sys::layout::{Layout, LayoutError, Precision};

/// Set in the `dtype` field of a weight that is padded: its K and N are those of the matrix, its bytes
/// those of the least shape that tiles. Readers of the C project know no such number, so that none of
/// them takes one shape for the other.
pub(super) const PADDED: u32 = 512;

/// How a weight is stored and computed: the `dtype` field of an index entry.
///
/// The numbers are the format's; 0 appears in some late packs and is read as [`Dtype::Int8`] when the
/// blob has exactly the size that int8 gives. Those from 256 on are this library's: readers of the C
/// project, which look for the forms they know, pass such weights over.
///
/// ```
/// use ork_weights::pack::Dtype;
///
/// assert_eq!(Dtype::from_code(4), Some(Dtype::O4n1));
/// assert_eq!(Dtype::O4n1.code(), 4);
/// assert_eq!(Dtype::from_code(9), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Dtype {
    /// int8 codes, tiled; one scale per channel.
    Int8,
    /// Compact int4 codes with their own header and scales inside; inflated to int8 on load.
    O4n1,
    /// int4 codes of the Hadamard-rotated weight, tiled for int4 × int4; scales per channel or group.
    Int4,
    /// int8 codes of the Hadamard-rotated weight, tiled; scales per channel or group.
    RotatedInt8,
    /// The bytes of [`Dtype::Int4`], inflated to int8 on load.
    Int4AsInt8,
    /// Half floats, tiled; no scales.
    Fp16,
}

impl Dtype {
    /// Every storage form.
    pub const ALL: [Dtype; 6] =
        [Dtype::Int8, Dtype::O4n1, Dtype::Int4, Dtype::RotatedInt8, Dtype::Int4AsInt8, Dtype::Fp16];

    /// The number in an index entry.
    ///
    /// ```
    /// use ork_weights::pack::Dtype;
    ///
    /// assert_eq!(Dtype::ALL.map(Dtype::code), [1, 4, 5, 6, 7, 256]);
    /// ```
    pub const fn code(self) -> u32 {
        match self {
            Dtype::Int8 => 1,
            Dtype::O4n1 => 4,
            Dtype::Int4 => 5,
            Dtype::RotatedInt8 => 6,
            Dtype::Int4AsInt8 => 7,
            Dtype::Fp16 => 256,
        }
    }

    /// The form with this number; `None` for numbers no known packer writes.
    ///
    /// ```
    /// use ork_weights::pack::Dtype;
    ///
    /// assert_eq!(Dtype::from_code(0), Some(Dtype::Int8)); // late packs
    /// assert_eq!(Dtype::from_code(2), None);
    /// ```
    pub const fn from_code(code: u32) -> Option<Dtype> {
        match code {
            0 | 1 => Some(Dtype::Int8),
            4 => Some(Dtype::O4n1),
            5 => Some(Dtype::Int4),
            6 => Some(Dtype::RotatedInt8),
            7 => Some(Dtype::Int4AsInt8),
            256 => Some(Dtype::Fp16),
            _ => None,
        }
    }

    /// Precision of what [`Pack::load_into`](super::Pack::load_into) writes.
    ///
    /// ```
    /// use ork_weights::pack::Dtype;
    /// use rknpu_sys::layout::Precision;
    ///
    /// // Stored in four bits, computed in eight.
    /// assert_eq!(Dtype::Int4AsInt8.stored(), Some(Precision::Int4));
    /// assert_eq!(Dtype::Int4AsInt8.loaded(), Precision::Int8);
    /// ```
    pub const fn loaded(self) -> Precision {
        match self {
            Dtype::Int4 => Precision::Int4,
            Dtype::Fp16 => Precision::Fp16,
            _ => Precision::Int8,
        }
    }

    /// Layout of what [`Pack::load_into`](super::Pack::load_into) writes of a K × N weight. A shape that
    /// does not tile is padded with zeros to the least that does, on disk and on the device.
    ///
    /// ```
    /// use ork_weights::pack::Dtype;
    ///
    /// let shape = |dtype: Dtype| dtype.layout(2730, 96).map(|layout| (layout.k(), layout.n()));
    /// assert_eq!(shape(Dtype::Int8), Ok((2752, 96)));
    /// assert_eq!(shape(Dtype::Int4AsInt8), Ok((2752, 128))); // stored in tiles of 64 channels
    /// ```
    ///
    /// # Errors
    /// [`LayoutError`] when K or N is 0, or within a tile of 2^32.
    pub const fn layout(self, k: u32, n: u32) -> Result<Layout, LayoutError> {
        let stored = match self.stored() {
            Some(precision) => precision,
            None => self.loaded(),
        };
        match Layout::padded(k, n, stored) {
            Ok(wide) => Layout::new(wide.k(), wide.n(), self.loaded()),
            Err(error) => Err(error),
        }
    }

    /// Precision of the tiles on disk; `None` when the blob is not tiled.
    ///
    /// ```
    /// use ork_weights::pack::Dtype;
    ///
    /// assert_eq!(Dtype::O4n1.stored(), None); // not tiled on disk
    /// ```
    pub const fn stored(self) -> Option<Precision> {
        match self {
            Dtype::Int8 | Dtype::RotatedInt8 => Some(Precision::Int8),
            Dtype::Int4 | Dtype::Int4AsInt8 => Some(Precision::Int4),
            Dtype::Fp16 => Some(Precision::Fp16),
            Dtype::O4n1 => None,
        }
    }

    /// Whether activations must be rotated by the same Hadamard blocks.
    ///
    /// ```
    /// use ork_weights::pack::Dtype;
    ///
    /// assert!(Dtype::RotatedInt8.is_rotated() && !Dtype::Int8.is_rotated());
    /// ```
    pub const fn is_rotated(self) -> bool {
        matches!(self, Dtype::Int4 | Dtype::RotatedInt8 | Dtype::Int4AsInt8)
    }

    /// Whether a load is a copy of the blob, without any work on the codes.
    ///
    /// ```
    /// use ork_weights::pack::Dtype;
    ///
    /// assert!(Dtype::Int8.is_plain() && !Dtype::O4n1.is_plain());
    /// ```
    pub const fn is_plain(self) -> bool {
        matches!(self, Dtype::Int8 | Dtype::Int4 | Dtype::RotatedInt8 | Dtype::Fp16)
    }

    /// Name for people.
    ///
    /// ```
    /// use ork_weights::pack::Dtype;
    ///
    /// assert_eq!(Dtype::Int4AsInt8.name(), "int4-as-int8");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Int8 => "int8",
            Dtype::O4n1 => "o4n1",
            Dtype::Int4 => "int4",
            Dtype::RotatedInt8 => "rotated-int8",
            Dtype::Int4AsInt8 => "int4-as-int8",
            Dtype::Fp16 => "fp16",
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
