//! Why a pack is refused, could not be written, or does not belong to a model.

use std::io;
use std::path::{Path, PathBuf};

use rknpu_sys::layout::LayoutError;

/// Result of the pack module.
pub type Result<T, E = PackError> = std::result::Result<T, E>;

/// A part of a weight on disk.
///
/// ```
/// use ork_weights::pack::Part;
///
/// assert_eq!(Part::FullK.to_string(), "full-K copy");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The tiled or compact codes.
    Blob,
    /// The second copy, tiled over the full K, that versions 4 to 7 may carry.
    FullK,
    /// The scales beside the blob.
    Scales,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Part::Blob => "blob",
            Part::FullK => "full-K copy",
            Part::Scales => "scales",
        })
    }
}

/// Everything that can be wrong with a pack, its use or its writing.
///
/// ```
/// use ork_weights::pack::{Pack, PackError};
///
/// let error = Pack::parse(&[0; 100][..]).unwrap_err();
/// assert!(matches!(error, PackError::NoMagic { bytes: 100 }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    // The container.
    /// Shorter than the smallest footer.
    #[error("{bytes} bytes are too few for an .orkpack, whose footer alone takes {needed}")]
    TooShort {
        /// Length of the file.
        bytes: u64,
        /// Least length.
        needed: u64,
    },
    /// No magic where a footer would end.
    #[error(
        "no .orkpack magic at the end of the {bytes} bytes: the file is something else, cut short, or has bytes after its footer"
    )]
    NoMagic {
        /// Length of the file.
        bytes: u64,
    },
    /// A footer whose version no reader knows, or which that footer form never has.
    #[error("pack version {version} is unknown (1 to 8 are read): convert the model again")]
    Version {
        /// The version field.
        version: u32,
    },
    /// A tile layout this library does not know.
    #[error(
        "pack format token {token} is unknown (only 0 exists): the tiles may be laid out differently"
    )]
    FormatToken {
        /// The token field of the footer.
        token: u32,
    },
    /// The index does not lie before the footer.
    #[error("the index starts at byte {index}, at or past the footer at {footer}")]
    IndexRange {
        /// Start of the index.
        index: u64,
        /// Start of the footer.
        footer: u64,
    },
    /// An index region larger than any real pack's.
    #[error("{bytes} bytes from the index to the footer are more than the {max} a reader holds")]
    IndexTooLarge {
        /// Bytes between the start of the index and the footer.
        bytes: u64,
        /// Most that is read.
        max: u64,
    },
    /// More entries than the bytes before the footer could hold.
    #[error("{entries} entries cannot fit the {room} bytes between the index and the footer")]
    EntryCount {
        /// Entries the footer promises.
        entries: u32,
        /// Bytes there are.
        room: u64,
    },
    /// The index ends inside an entry.
    #[error("the index runs into the footer within entry {entry}")]
    IndexTruncated {
        /// Number of the entry in the file.
        entry: u32,
    },
    /// Bytes behind the index that nothing accounts for.
    #[error("{bytes} bytes between the end of the index and the footer belong to nothing")]
    StrayBytes {
        /// How many.
        bytes: u64,
    },
    /// A name longer than the limit.
    #[error("entry {entry} has a name of {bytes} bytes, more than {max}")]
    NameLength {
        /// Number of the entry in the file.
        entry: u32,
        /// Its length field.
        bytes: u32,
        /// Longest name that is read or written.
        max: u32,
    },
    /// A name of no bytes.
    #[error("entry {entry} has an empty name")]
    NameEmpty {
        /// Number of the entry in the file.
        entry: u32,
    },
    /// A name that holds a NUL or another control character: readers in C end it there.
    #[error(
        "the name of entry {entry}, {name:?}, holds a control character: other readers see another name; convert the model again with a name that has none"
    )]
    NameControl {
        /// Place of the entry.
        entry: u32,
        /// The name.
        name: Box<str>,
    },
    /// A name that is no UTF-8.
    #[error("the name of entry {entry} is not UTF-8")]
    NameNotUtf8 {
        /// Number of the entry in the file.
        entry: u32,
    },
    /// Two weights of one name.
    #[error("weight {name:?} occurs twice")]
    DuplicateName {
        /// The name.
        name: Box<str>,
    },
    /// A storage form this library does not know.
    #[error("weight {name:?} has the unknown dtype {dtype}")]
    DtypeUnknown {
        /// The weight.
        name: Box<str>,
        /// The dtype field.
        dtype: u32,
    },
    /// Marked as padded, which a shape that tiles is not.
    #[error(
        "weight {name:?} is marked as padded, and K={k} N={n} needs no padding: the index is damaged"
    )]
    Padding {
        /// The weight.
        name: Box<str>,
        /// Inputs.
        k: u32,
        /// Channels.
        n: u32,
    },
    /// K or N is 0, or does not tile and is not marked as padded.
    #[error("weight {name:?}: {source}")]
    Shape {
        /// The weight.
        name: Box<str>,
        /// K, N and the rule.
        source: LayoutError,
    },
    /// A part whose size is not what K, N and dtype give.
    #[error("weight {name:?}: its {part} has {bytes} bytes where K, N and dtype give {expected}")]
    Size {
        /// The weight.
        name: Box<str>,
        /// Which part.
        part: Part,
        /// Bytes there are.
        bytes: u64,
        /// Bytes there must be (4096 more when stamped).
        expected: u64,
    },
    /// A scale count that is neither per channel nor per group.
    #[error(
        "weight {name:?}: {count} scales for K={k}, N={n} and dtype {dtype} are neither one per channel nor one per group of K and channel"
    )]
    ScaleCount {
        /// The weight.
        name: Box<str>,
        /// Scales there are.
        count: u64,
        /// Rows.
        k: u32,
        /// Channels.
        n: u32,
        /// Its storage form.
        dtype: super::Dtype,
    },
    /// A part that does not lie wholly before the index.
    #[error(
        "weight {name:?}: its {part}, {bytes} bytes at {offset}, does not lie before the index at {limit}"
    )]
    Range {
        /// The weight.
        name: Box<str>,
        /// Which part.
        part: Part,
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
        /// Start of the index.
        limit: u64,
    },
    /// Two parts that share bytes.
    #[error("{second:?} starts at byte {offset}, inside {first:?}")]
    Overlap {
        /// What starts first.
        first: Box<str>,
        /// What starts inside it.
        second: Box<str>,
        /// Where.
        offset: u64,
    },
    /// A metadata section that does not lie before the index.
    #[error(
        "the metadata section, {bytes} bytes at {offset}, does not lie before the index at {limit}"
    )]
    MetadataRange {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
        /// Start of the index.
        limit: u64,
    },
    /// A metadata section that contradicts itself.
    #[error("the metadata section is damaged: {reason}")]
    Metadata {
        /// What contradicts what.
        reason: String,
    },
    /// A calibration block that does not lie between the index and the footer.
    #[error(
        "the calibration block, {rows} rows at {offset}, does not lie between the index's end at {index_end} and the footer at {footer}"
    )]
    CalibrationRange {
        /// First byte.
        offset: u64,
        /// Rows.
        rows: u32,
        /// End of the index.
        index_end: u64,
        /// Start of the footer.
        footer: u64,
    },

    // The extension section.
    /// An extension section of a later version of this format.
    #[error("the extension section has version {version}, this library reads 1: use a newer one")]
    ExtensionVersion {
        /// Version of the section.
        version: u32,
    },
    /// Tiles laid out for another chip or by other rules.
    #[error(
        "the tiles have layout {found:#010x}, this library uses {expected:#010x}: convert again"
    )]
    LayoutId {
        /// The pack's layout id.
        found: u32,
        /// This library's.
        expected: u32,
    },
    /// An extension section that contradicts itself or the file.
    #[error("the extension section is damaged: {reason}; convert again, or verify the disk")]
    Extension {
        /// What contradicts what.
        reason: String,
    },
    /// A pack with fewer weights than its writer meant it to have.
    #[error(
        "the pack is incomplete: {present} of {expected} weights; convert again, it goes on where it stopped"
    )]
    Incomplete {
        /// Weights there are.
        present: u32,
        /// Weights the writer promised.
        expected: u32,
    },

    // A weight's bytes.
    /// A stamp page that does not fit the weight, the chip or the layout.
    #[error(
        "weight {name:?}: the stamp's {field} is {found:#x} where {expected:#x} is needed; the blob was made for another layout, weight or chip"
    )]
    Stamp {
        /// The weight.
        name: Box<str>,
        /// Field of the stamp.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The value it must have.
        expected: u64,
    },
    /// A compact int4 blob whose header does not fit the weight.
    #[error(
        "weight {name:?}: the compact blob's {field} is {found:#x} where {expected:#x} is needed"
    )]
    O4n1 {
        /// The weight.
        name: Box<str>,
        /// Field of the header.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The value it must have (the largest one for ranges).
        expected: u64,
    },
    /// A scale that is negative or not finite.
    #[error("weight {name:?}: scale {index} is {value}, which no quantiser gives")]
    ScaleValue {
        /// The weight.
        name: Box<str>,
        /// Its place.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// Bytes that are not those written.
    #[error(
        "weight {name:?}: its {part} has checksum {found:016x}, written was {expected:016x}; convert again, and check the disk"
    )]
    Checksum {
        /// The weight.
        name: Box<str>,
        /// Which part.
        part: Part,
        /// Checksum of what was read.
        found: u64,
        /// Checksum that was stored.
        expected: u64,
    },
    /// Bytes between the parts of a pack that are not as they were written.
    #[error(
        "the byte at {offset} lies between two weights and is not zero; something wrote into the file: convert again, and check the disk"
    )]
    Gap {
        /// The first such byte.
        offset: u64,
    },
    /// A buffer that is not the weight's size.
    #[error("weight {name:?} takes {expected} bytes, the buffer has {bytes}")]
    OutputLength {
        /// The weight.
        name: Box<str>,
        /// Bytes of the buffer.
        bytes: u64,
        /// Bytes of the layout.
        expected: u64,
    },
    /// The file is no longer the one that was opened.
    #[error("{} changed while it was open: {what}; open it again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },

    // Identity.
    /// The pack was made from another model.
    #[error(
        "the pack belongs to another model: its {field} is {pack}, the model's is {model}; use the model it was made of, or convert this one (ork convert, with --replace over this pack)"
    )]
    OtherModel {
        /// What differs.
        field: &'static str,
        /// The pack's value.
        pack: String,
        /// The model's value.
        model: String,
    },

    // Writing.
    /// Somebody else writes the same pack.
    #[error("{} is being written by another process: wait for it, or choose another target", path.display())]
    Locked {
        /// The partial file that is locked.
        path: PathBuf,
    },
    /// A file stands at the target that must not be overwritten unasked.
    #[error("{} already exists and {what}: overwrite it with --replace (ork convert, ork upgrade), or choose another target", path.display())]
    TargetExists {
        /// The target.
        path: PathBuf,
        /// How it differs from what is to be written.
        what: String,
    },
    /// A weight that was rotated by other blocks than this library rotates activations by.
    #[error(
        "weight {name:?} was rotated in blocks of {rotation}, {} are known: convert the model again, or use a newer ork",
        known.map_or("none".into(), |block| format!("blocks of {block}"))
    )]
    Rotation {
        /// The weight.
        name: Box<str>,
        /// The block in the pack.
        rotation: u32,
        /// The block that K and the form give; `None` for a form that is not rotated.
        known: Option<u32>,
    },
    /// Codes were asked of a weight that has none.
    #[error("weight {name:?} is kept as {dtype}, which has values and no codes: load its tiles")]
    NoCodes {
        /// The weight.
        name: Box<str>,
        /// Its form.
        dtype: super::Dtype,
    },
    /// An interrupted conversion of something else stands at the target.
    #[error("{} is an interrupted conversion of {what}: start over with --replace (ork convert, ork upgrade), or choose another target", path.display())]
    PartialDiffers {
        /// The partial file.
        path: PathBuf,
        /// How it differs.
        what: String,
    },
    /// A version that is read but not written.
    #[error("pack version {version} cannot be written: choose 2, 3, 5 or 7")]
    WriteVersion {
        /// The version asked for.
        version: u32,
    },
    /// A call of the operating system failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl PackError {
    /// For `map_err`: adds operation and path to an I/O error.
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PackError {
        move |source| PackError::Io { operation, path: path.to_owned(), source }
    }
}
