//! Arrays of metadata: vocabularies, merges, scores, settings of each layer.

use super::GgufError;
use super::cursor::Cursor;

/// Arrays of arrays are followed so deep.
const MAX_DEPTH: u32 = 4;

pub(super) const STRING: u32 = 8;
pub(super) const ARRAY: u32 = 9;

/// Bytes of a value of a fixed size.
fn width(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// An array: checked when the header is read, kept as the file has it, read out when asked for. A
/// vocabulary of 262,144 strings costs one allocation until then.
///
/// ```
/// # let file = ork_weights::doc::llama()?;
/// use ork_weights::model::gguf::{Gguf, Value};
///
/// let gguf = Gguf::parse(&file)?;
/// if let Some(Value::Array(tokens)) = gguf.get("tokenizer.ggml.tokens") {
///     let first = tokens.strings().and_then(|mut strings| strings.next());
///     println!("{} tokens, the first {first:?}", tokens.len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Array {
    element_type: u32,
    len: u64,
    /// The elements' bytes, which `read` has walked to their end.
    raw: Box<[u8]>,
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (element_type, len) = (self.element_type, self.len);
        write!(f, "Array {{ element_type: {element_type}, len: {len} }}")
    }
}

impl Array {
    /// The type, count and elements that follow an array's type.
    pub(super) fn read(at: &mut Cursor<'_>, key: &str) -> Result<Array, GgufError> {
        let (element_type, len, raw) = step(at, key, 1)?;
        Ok(Array { element_type, len, raw: raw.into() })
    }

    /// Number of the elements' type in the file.
    pub fn element_type(&self) -> u32 {
        self.element_type
    }

    /// Elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its strings, byte for byte: pieces of characters are not UTF-8. `None` when it holds others.
    pub fn strings(&self) -> Option<impl Iterator<Item = &[u8]>> {
        let mut left = &*self.raw;
        (self.element_type == STRING).then(|| {
            std::iter::from_fn(move || {
                let (length, rest) = left.split_first_chunk()?;
                let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
                let (text, rest) = rest.split_at_checked(length)?;
                left = rest;
                Some(text)
            })
        })
    }

    /// Its whole numbers and truth values. `None` when it holds others.
    pub fn integers(&self) -> Option<impl Iterator<Item = i128>> {
        let kind = self.element_type;
        let bytes = width(kind).filter(|_| !matches!(kind, 6 | 12))? as usize;
        Some(self.raw.chunks_exact(bytes).map(move |raw| {
            let mut wide = [0; 8];
            wide[..bytes].copy_from_slice(raw);
            let value = u64::from_le_bytes(wide);
            let unused = 64 - 8 * bytes as u32;
            match kind {
                1 | 3 | 5 | 11 => i128::from((value << unused) as i64 >> unused),
                _ => i128::from(value),
            }
        }))
    }

    /// Its floats, those of 64 bits rounded. `None` when it holds others.
    pub fn floats(&self) -> Option<impl Iterator<Item = f32>> {
        let bytes = match self.element_type {
            6 => 4,
            12 => 8,
            _ => return None,
        };
        Some(self.raw.chunks_exact(bytes).map(|raw| match (raw.first_chunk(), raw.first_chunk()) {
            (_, Some(raw)) => f64::from_le_bytes(*raw) as f32,
            (Some(raw), None) => f32::from_le_bytes(*raw),
            (None, None) => 0.0,
        }))
    }
}

/// Steps over an array: its element type, its length and the bytes of its elements.
fn step<'a>(at: &mut Cursor<'a>, key: &str, depth: u32) -> Result<(u32, u64, &'a [u8]), GgufError> {
    if depth > MAX_DEPTH {
        return Err(GgufError::Depth { key: key.into(), max: MAX_DEPTH });
    }
    let element_type = at.u32("array type")?;
    let len = at.u64("array length")?;
    if let Some(width) = width(element_type) {
        let bytes = len.checked_mul(width).ok_or(GgufError::Overflow { what: "array" })?;
        return Ok((element_type, len, at.take("array", bytes)?));
    }
    let least = match element_type {
        STRING => 8,
        ARRAY => 12,
        kind => return Err(GgufError::ValueType { key: key.into(), kind }),
    };
    let start = at.position();
    for _ in 0..at.count("array elements", len, least)? {
        match element_type {
            STRING => drop(at.text("array element")?),
            _ => drop(step(at, key, depth + 1)?),
        }
    }
    Ok((element_type, len, at.since(start)))
}
