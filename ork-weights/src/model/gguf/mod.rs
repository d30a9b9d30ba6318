//! GGUF headers, versions 2 and 3: metadata and where the tensors lie.
//!
//! Everything a header says is checked against the bytes there are before memory is taken for it:
//! counts, lengths, dimensions, offsets, alignment, overlaps, names. Arrays (vocabularies of 100,000
//! strings) are kept as the file has them, in one piece each.
//!
//! ```
//! # let file = ork_weights::doc::llama()?;
//! let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
//! let tensor = gguf.tensor("output.weight").ok_or("no such tensor")?;
//! let bytes = &file[tensor.range().start as usize..tensor.range().end as usize];
//! assert_eq!(bytes.len() as u64, tensor.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod array;
mod cursor;
mod error;
mod tensors;
mod value;

pub use array::Array;
pub use error::GgufError;
pub use tensors::Tensors;
pub(super) use tensors::files;
pub use value::Value;

use crate::dequant::TensorType;
use cursor::Cursor;
use std::io;
use std::ops::Range;

/// Alignment of tensor data where the file names none.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Dimensions of a tensor at most.
const MAX_DIMENSIONS: u32 = 4;
/// Bytes of a tensor's name at most.
const MAX_NAME: u64 = 64 * 1024;
/// Least bytes of a tensor's entry: length of the name, number of dimensions, one dimension, type,
/// offset.
const LEAST_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;
/// Least bytes of a metadata entry: length of the key, type, a value of one byte.
const LEAST_ENTRY: u64 = 8 + 4 + 1;
/// Bytes of a file that are read at first; those of most headers.
const FIRST_READ: u64 = 8 << 20;
/// Bytes of a header at most; the largest vocabularies take 20 MiB.
const MAX_HEADER: u64 = 256 << 20;

/// A parsed header.
///
/// ```
/// use ork_weights::model::gguf::Gguf;
/// use ork_weights::model::synth::Shape;
///
/// let mut file = Vec::new();
/// Shape::tiny().write(&mut file)?;
/// let gguf = Gguf::parse(&file)?;
/// assert_eq!(gguf.version(), 3);
/// assert_eq!(gguf.text("general.architecture"), Some("llama"));
/// assert!(gguf.tensors().iter().any(|t| &*t.name == "blk.0.ffn_up.weight"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    version: u32,
    alignment: u64,
    data: u64,
    metadata: Vec<(Box<str>, Value)>,
    tensors: Vec<Tensor>,
}

/// Where a tensor lies and what it is.
///
/// ```
/// # let file = ork_weights::doc::llama()?;
/// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
/// let tensor = gguf.tensor("blk.0.ffn_up.weight").ok_or("no such tensor")?;
/// assert_eq!(tensor.dimensions, [256, 512]); // 512 channels of 256 inputs
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: Box<str>,
    /// Its dimensions, the contiguous one first; none of them is 0.
    pub dimensions: Vec<u64>,
    /// Number of its type.
    pub ggml_type: u32,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes; 0 when the type is unknown and its size with it.
    pub bytes: u64,
}

impl Tensor {
    /// Its type; `None` when its values cannot be read.
    ///
    /// ```
    /// use ork_weights::dequant::TensorType;
    ///
    /// # let file = ork_weights::doc::llama()?;
    /// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
    /// let tensor = gguf.tensor("output.weight").ok_or("no such tensor")?;
    /// assert_eq!(tensor.kind(), Some(TensorType::Q6_K));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn kind(&self) -> Option<TensorType> {
        TensorType::from_ggml(self.ggml_type)
    }

    /// Its bytes in the file.
    ///
    /// ```
    /// # let file = ork_weights::doc::llama()?;
    /// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
    /// let tensor = &gguf.tensors()[0];
    /// assert!(tensor.range().start >= gguf.data_start());
    /// assert!(tensor.range().end <= file.len() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }
}

impl Gguf {
    /// Parses the header at the start of `file`, which is the whole file.
    ///
    /// ```
    /// use ork_weights::model::gguf::Gguf;
    ///
    /// # let mut file = ork_weights::doc::llama()?;
    /// assert!(Gguf::parse(&file).is_ok());
    /// file.truncate(1000);
    /// assert!(Gguf::parse(&file).is_err()); // cut short
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`GgufError`] for everything that is not a GGUF, or one that contradicts itself or its length.
    pub fn parse(file: &[u8]) -> Result<Gguf, GgufError> {
        Gguf::parse_start(file, file.len() as u64)
    }

    /// Reads as much of a file of `bytes` bytes as its header takes; `read_at` fills a buffer from an
    /// offset on.
    pub(crate) fn read(
        bytes: u64,
        mut read_at: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Result<Gguf, GgufError>> {
        let (mut start, mut wanted) = (Vec::new(), FIRST_READ);
        loop {
            let had = start.len();
            start.resize(wanted.min(bytes) as usize, 0);
            read_at(had as u64, &mut start[had..])?;
            match Gguf::parse_start(&start, bytes) {
                // Not cut short, only not read so far yet.
                Err(GgufError::Truncated { at, bytes: more, .. }) if wanted < bytes => {
                    let needed = at.saturating_add(more).min(bytes);
                    if needed > MAX_HEADER {
                        return Ok(Err(GgufError::HeaderTooLarge {
                            bytes: needed,
                            max: MAX_HEADER,
                        }));
                    }
                    wanted = needed.max(2 * wanted);
                }
                parsed => return Ok(parsed),
            }
        }
    }

    /// Parses the header in `start`, what a file of `file` bytes begins with.
    fn parse_start(start: &[u8], file: u64) -> Result<Gguf, GgufError> {
        let mut at = Cursor::new(start, file);
        let magic: [u8; 4] = at.array("magic")?;
        if magic != *b"GGUF" {
            return Err(GgufError::Magic { found: magic });
        }
        let version = at.u32("version")?;
        match version {
            2 | 3 => {}
            // A small number read from the wrong end.
            _ if version.swap_bytes() < 0x100 => return Err(GgufError::BigEndian),
            _ => return Err(GgufError::Version { version }),
        }
        let tensor_count = at.u64("tensor count")?;
        let entry_count = at.u64("metadata count")?;
        let entry_count = at.count("metadata entries", entry_count, LEAST_ENTRY)?;
        let mut metadata: Vec<(Box<str>, Value)> = at.list(entry_count, LEAST_ENTRY);
        for _ in 0..entry_count {
            let key = at.string("metadata key")?;
            let value = Value::read(&mut at, key)?;
            metadata.push((key.into(), value));
        }
        unique(metadata.iter().map(|entry| &*entry.0))
            .map_err(|key| GgufError::DuplicateKey { key })?;
        let alignment = alignment(&metadata)?;
        let tensor_count = at.count("tensors", tensor_count, LEAST_TENSOR)?;
        let mut tensors = at.list(tensor_count, LEAST_TENSOR);
        for _ in 0..tensor_count {
            tensors.push(tensor(&mut at, alignment)?);
        }
        unique(tensors.iter().map(|tensor| &*tensor.name))
            .map_err(|name| GgufError::DuplicateTensor { name })?;
        let data = at
            .position()
            .checked_next_multiple_of(alignment)
            .ok_or(GgufError::Overflow { what: "start of the data" })?;
        place(&mut tensors, data, file)?;
        Ok(Gguf { version, alignment, data, metadata, tensors })
    }

    /// Version of the container.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensors, in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// First byte of tensor data; everything before it is header.
    ///
    /// ```
    /// # let file = ork_weights::doc::llama()?;
    /// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
    /// assert_eq!(gguf.data_start(), gguf.tensors()[0].offset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn data_start(&self) -> u64 {
        self.data
    }

    /// Keys and values in the order of the file.
    pub fn metadata(&self) -> &[(Box<str>, Value)] {
        &self.metadata
    }

    /// The value of `key`.
    ///
    /// ```
    /// use ork_weights::model::gguf::Value;
    ///
    /// # let file = ork_weights::doc::llama()?;
    /// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
    /// assert_eq!(gguf.get("llama.block_count"), Some(&Value::Unsigned(2)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|entry| &*entry.0 == key).map(|entry| &entry.1)
    }

    /// The value of `key` if it is a string.
    ///
    /// ```
    /// # let file = ork_weights::doc::llama()?;
    /// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
    /// assert_eq!(gguf.text("general.name"), Some("synthetic"));
    /// assert_eq!(gguf.text("llama.block_count"), None); // a number
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value of `key` if it is a whole number that is not negative.
    ///
    /// ```
    /// # let file = ork_weights::doc::llama()?;
    /// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
    /// assert_eq!(gguf.number("llama.embedding_length"), Some(256));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn number(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The value of `key` if it is a number, whole or not.
    ///
    /// ```
    /// # let file = ork_weights::doc::llama()?;
    /// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
    /// assert_eq!(gguf.float("llama.block_count"), Some(2.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Float(number) => Some(*number),
            Value::Unsigned(number) => Some(*number as f64),
            Value::Signed(number) => Some(*number as f64),
            _ => None,
        }
    }

    /// The value of `key` if it is a truth value.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        }
    }

    /// The value of `key` if it is an array.
    pub fn array(&self, key: &str) -> Option<&Array> {
        match self.get(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// Tensors in the order of the file's list.
    ///
    /// ```
    /// # let file = ork_weights::doc::llama()?;
    /// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
    /// assert_eq!(&*gguf.tensors()[0].name, "token_embd.weight");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of this name.
    ///
    /// ```
    /// # let file = ork_weights::doc::llama()?;
    /// let gguf = ork_weights::model::gguf::Gguf::parse(&file)?; // of a small llama
    /// assert!(gguf.tensor("blk.1.ffn_down.weight").is_some());
    /// assert!(gguf.tensor("blk.2.ffn_down.weight").is_none()); // two layers
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| &*tensor.name == name)
    }
}

/// The alignment of tensor data; llama.cpp demands a power of two where the specification asks for
/// a multiple of 8, so only powers of two occur.
fn alignment(metadata: &[(Box<str>, Value)]) -> Result<u64, GgufError> {
    let Some((_, value)) = metadata.iter().find(|entry| &*entry.0 == "general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value {
        Value::Unsigned(bytes) if bytes.is_power_of_two() && *bytes <= 1 << 30 => Ok(*bytes),
        other => Err(GgufError::Alignment { value: other.clone() }),
    }
}

/// An entry of the tensor list; its offset is still relative to the data.
fn tensor(at: &mut Cursor<'_>, alignment: u64) -> Result<Tensor, GgufError> {
    let name = at.string("tensor name")?;
    if name.is_empty() || name.len() as u64 > MAX_NAME {
        return Err(GgufError::NameLength { bytes: name.len() as u64, max: MAX_NAME });
    }
    let refuse = |reason: String| GgufError::Tensor { name: name.into(), reason };
    let count = at.u32("dimension count")?;
    if count == 0 || count > MAX_DIMENSIONS {
        return Err(refuse(format!("{count} dimensions; 1 to {MAX_DIMENSIONS} are possible")));
    }
    let mut dimensions = Vec::with_capacity(count as usize);
    let mut elements = 1u64;
    for _ in 0..count {
        let dimension = at.u64("dimension")?;
        elements = elements
            .checked_mul(dimension)
            .ok_or_else(|| refuse("more elements than 64 bits can count".into()))?;
        dimensions.push(dimension);
    }
    if elements == 0 {
        return Err(refuse("a dimension is 0".into()));
    }
    let ggml_type = at.u32("tensor type")?;
    let offset = at.u64("tensor offset")?;
    if !offset.is_multiple_of(alignment) {
        return Err(refuse(format!("offset {offset} is no multiple of {alignment}")));
    }
    let bytes = match TensorType::from_ggml(ggml_type) {
        None => 0,
        Some(kind) => {
            let row = dimensions[0];
            let row_bytes = kind.row_bytes(row).ok_or_else(|| {
                refuse(format!(
                    "rows of {row} values are no whole blocks of {kind} ({} values)",
                    kind.block_elements()
                ))
            })?;
            row_bytes
                .checked_mul(elements / row)
                .ok_or_else(|| refuse("more bytes than 64 bits can count".into()))?
        }
    };
    Ok(Tensor { name: name.into(), dimensions, ggml_type, offset, bytes })
}

/// Makes offsets absolute and checks that tensors lie in the file and apart from each other.
fn place(tensors: &mut [Tensor], data: u64, file: u64) -> Result<(), GgufError> {
    for tensor in tensors.iter_mut() {
        let offset = tensor.offset.checked_add(data);
        let end = offset.and_then(|offset| offset.checked_add(tensor.bytes));
        match (offset, end) {
            (Some(offset), Some(end)) if end <= file => tensor.offset = offset,
            _ => {
                return Err(GgufError::PastEnd {
                    name: tensor.name.clone(),
                    bytes: tensor.bytes,
                    offset: tensor.offset,
                    data,
                    file,
                });
            }
        }
    }
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_unstable_by_key(|tensor| (tensor.offset, tensor.bytes));
    for pair in order.windows(2) {
        if pair[0].range().end > pair[1].offset {
            return Err(GgufError::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
            });
        }
    }
    Ok(())
}

/// The first name that occurs twice.
fn unique<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Result<(), Box<str>> {
    let mut seen = std::collections::HashSet::with_capacity(names.len());
    for name in names {
        if !seen.insert(name) {
            return Err(name.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
