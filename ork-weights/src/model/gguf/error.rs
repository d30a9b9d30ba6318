//! Why a GGUF header is refused.

use super::Value;

/// Everything that can be wrong with a GGUF header.
///
/// ```
/// use ork_weights::model::gguf::{Gguf, GgufError};
///
/// let error = Gguf::parse(b"PK\x03\x04").unwrap_err();
/// assert_eq!(error, GgufError::Magic { found: *b"PK\x03\x04" });
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// Not a GGUF file.
    #[error("no GGUF file: it begins with {found:02x?} instead of \"GGUF\"")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Written for a big-endian machine.
    #[error("the file is big-endian: convert it to little-endian (gguf-convert-endian)")]
    BigEndian,
    /// A version that is not read.
    #[error("GGUF version {version} is not read, 2 and 3 are: convert the model again")]
    Version {
        /// The version field.
        version: u32,
    },
    /// The file ends inside its header.
    #[error(
        "the file ends inside its header: {what} at byte {at} takes {bytes} bytes; the download is incomplete"
    )]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where.
        at: u64,
        /// Bytes it takes.
        bytes: u64,
    },
    /// A header larger than any real model's.
    #[error("the header has {bytes} bytes or more, {max} are read: the file is damaged")]
    HeaderTooLarge {
        /// Bytes it has at least.
        bytes: u64,
        /// Most that is read.
        max: u64,
    },
    /// A count larger than the rest of the file could hold.
    #[error(
        "{count} {what} cannot fit the rest of the file, which has room for {room}: the download is incomplete, or the file damaged"
    )]
    Count {
        /// What is counted.
        what: &'static str,
        /// The count.
        count: u64,
        /// How many would fit.
        room: u64,
    },
    /// A size that 64 bits cannot hold.
    #[error("the size of the {what} exceeds 64 bits")]
    Overflow {
        /// What has the size.
        what: &'static str,
    },
    /// A string that is no UTF-8.
    #[error("the {what} at byte {at} is not UTF-8")]
    NotUtf8 {
        /// Which string.
        what: &'static str,
        /// Where.
        at: u64,
    },
    /// A value type that does not exist.
    #[error("metadata key {key:?} has the unknown value type {kind}")]
    ValueType {
        /// The key.
        key: Box<str>,
        /// The type.
        kind: u32,
    },
    /// A truth value that is neither.
    #[error("metadata key {key:?} has the truth value {value}; 0 and 1 are possible")]
    Bool {
        /// The key.
        key: Box<str>,
        /// The value.
        value: u8,
    },
    /// Arrays in arrays in arrays.
    #[error("metadata key {key:?} holds arrays nested deeper than {max}")]
    Depth {
        /// The key.
        key: Box<str>,
        /// Depth that is read.
        max: u32,
    },
    /// A key that occurs twice.
    #[error("metadata key {key:?} occurs twice")]
    DuplicateKey {
        /// The key.
        key: Box<str>,
    },
    /// An alignment that is no power of two.
    #[error("general.alignment is {value}; it must be a power of two as an unsigned number")]
    Alignment {
        /// The value.
        value: Value,
    },
    /// A tensor name that is empty or absurdly long.
    #[error("a tensor name has {bytes} bytes; 1 to {max} are possible")]
    NameLength {
        /// Its length.
        bytes: u64,
        /// The longest.
        max: u64,
    },
    /// Two tensors of one name.
    #[error("tensor {name:?} occurs twice")]
    DuplicateTensor {
        /// The name.
        name: Box<str>,
    },
    /// A tensor entry that contradicts itself.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// The tensor.
        name: Box<str>,
        /// What contradicts what.
        reason: String,
    },
    /// A tensor that does not lie in the file.
    #[error(
        "tensor {name:?}, {bytes} bytes at {data} + {offset}, reaches past the file's end at {file}; the download is incomplete"
    )]
    PastEnd {
        /// The tensor.
        name: Box<str>,
        /// Its bytes.
        bytes: u64,
        /// Its offset in the data.
        offset: u64,
        /// Start of the data.
        data: u64,
        /// Length of the file.
        file: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first:?} and {second:?} share bytes")]
    Overlap {
        /// What starts first.
        first: Box<str>,
        /// What starts inside it.
        second: Box<str>,
    },
}
