//! What can go wrong.

use ork_weights::pack::Dtype;
use ork_weights::quantise::Tier;
use rknpu_sys::layout::Precision;

/// Why a product could not be computed.
///
/// ```
/// use ork_linear::{Depth, Error, QuantisedRows, Transform};
///
/// let mut rows = QuantisedRows::new(Depth::Bits8);
/// let error = rows.quantise(&[1.0; 33], 32, Transform::None);
/// assert!(matches!(error, Err(Error::Length { what: "rows", got: 33, .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice of another length.
    #[error("{what} hold {got} values, {want} are needed")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length it must have.
        want: usize,
    },
    /// Rows that were prepared for other weights.
    #[error(
        "rows of K={rows_k}, transform {rows_transform}, meet a weight of K={k}, transform {transform}"
    )]
    Rows {
        /// Inputs of a row.
        rows_k: u32,
        /// How the rows were transformed.
        rows_transform: super::Transform,
        /// Inputs of the weight.
        k: u32,
        /// How the weight was transformed.
        transform: super::Transform,
    },
    /// Weights of a precision that the function does not take.
    #[error("weights in {got:?} are not multiplied here, but those in {want:?}")]
    Precision {
        /// That of the weights.
        got: Precision,
        /// That which is taken.
        want: Precision,
    },
    /// A tier whose products the CPU does not compute as the NPU does.
    #[error(
        "weights of tier {0} are not multiplied: convert the model to int8, rotated-int8 or fp16"
    )]
    Tier(Tier),
    /// A weight of a pack whose products are not computed.
    #[error("{name:?} is stored as {dtype}: convert the model to int8, rotated-int8 or fp16")]
    Stored {
        /// Its name.
        name: Box<str>,
        /// How it is stored.
        dtype: Dtype,
    },
    /// A weight that a model does not have.
    #[error("weight {weight} of {known} does not exist")]
    Unknown {
        /// Its number.
        weight: usize,
        /// How many there are.
        known: usize,
    },
    /// The cache could not place a model or make a weight ready.
    #[error(transparent)]
    Cache(#[from] ork_cache::Error),
    /// A weight could not be read from its pack or model.
    #[error(transparent)]
    Store(#[from] ork_cache::StoreError),
    /// The device.
    #[error(transparent)]
    Device(#[from] rknpu::Error),
    /// The system.
    #[error("cannot start the thread that loads weights ahead: {0}")]
    Thread(#[from] std::io::Error),
}

impl Error {
    /// Whether a weight could not be had from its pack or model: nothing is wrong with the NPU.
    pub(crate) fn is_of_store(&self) -> bool {
        match self {
            Error::Store(_) => true,
            Error::Cache(error) => error.is_of_store(),
            _ => false,
        }
    }
}

/// What a call gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Checks a length.
pub(crate) fn length(what: &'static str, got: usize, want: usize) -> Result<()> {
    if got == want { Ok(()) } else { Err(Error::Length { what, got, want }) }
}
