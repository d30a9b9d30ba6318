//! Metadata values.

use super::GgufError;
use super::cursor::Cursor;

/// Arrays of arrays are followed so deep.
const MAX_DEPTH: u32 = 4;

/// A metadata value.
///
/// ```
/// use ork_weights::model::gguf::{Array, Value};
///
/// assert_eq!(Value::Float(0.5).to_string(), "0.5");
/// let tokens = Value::Array(Array { element_type: 8, len: 32000 });
/// assert_eq!(tokens.to_string(), "[32000 elements]");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Any unsigned width.
    Unsigned(u64),
    /// Any signed width.
    Signed(i64),
    /// Any float width.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    Text(Box<str>),
    /// An array, whose elements are not kept.
    Array(Array),
}

/// What is known of an array.
///
/// ```
/// use ork_weights::model::gguf::{Array, Value};
///
/// let long = |value: &Value| matches!(value, Value::Array(Array { len: 1000.., .. }));
/// assert!(long(&Value::Array(Array { element_type: 8, len: 32000 })));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Number of its element type.
    pub element_type: u32,
    /// Elements.
    pub len: u64,
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Unsigned(number) => write!(f, "{number}"),
            Value::Signed(number) => write!(f, "{number}"),
            Value::Float(number) => write!(f, "{number}"),
            Value::Bool(truth) => write!(f, "{truth}"),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Array(array) => write!(f, "[{} elements]", array.len),
        }
    }
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

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

impl Value {
    /// The type and value that follow a key.
    pub(super) fn read(at: &mut Cursor<'_>, key: &str) -> Result<Value, GgufError> {
        let kind = at.u32("value type")?;
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(at.array("value")?).into()),
            1 => Value::Signed(i8::from_le_bytes(at.array("value")?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(at.array("value")?).into()),
            3 => Value::Signed(i16::from_le_bytes(at.array("value")?).into()),
            4 => Value::Unsigned(at.u32("value")?.into()),
            5 => Value::Signed(i32::from_le_bytes(at.array("value")?).into()),
            6 => Value::Float(f32::from_le_bytes(at.array("value")?).into()),
            7 => match at.array("value")? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(GgufError::Bool { key: key.into(), value: other }),
            },
            STRING => Value::Text(String::from_utf8_lossy(at.text("value")?).into()),
            ARRAY => Value::Array(array(at, key, 1)?),
            10 => Value::Unsigned(at.u64("value")?),
            11 => Value::Signed(i64::from_le_bytes(at.array("value")?)),
            12 => Value::Float(f64::from_le_bytes(at.array("value")?)),
            kind => return Err(GgufError::ValueType { key: key.into(), kind }),
        })
    }
}

/// Steps over an array.
fn array(at: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Array, GgufError> {
    if depth > MAX_DEPTH {
        return Err(GgufError::Depth { key: key.into(), max: MAX_DEPTH });
    }
    let element_type = at.u32("array type")?;
    let len = at.u64("array length")?;
    if let Some(width) = width(element_type) {
        let bytes = len.checked_mul(width).ok_or(GgufError::Overflow { what: "array" })?;
        at.take("array", bytes)?;
        return Ok(Array { element_type, len });
    }
    let least = match element_type {
        STRING => 8,
        ARRAY => 12,
        kind => return Err(GgufError::ValueType { key: key.into(), kind }),
    };
    for _ in 0..at.count("array elements", len, least)? {
        match element_type {
            STRING => drop(at.text("array element")?),
            _ => drop(array(at, key, depth + 1)?),
        }
    }
    Ok(Array { element_type, len })
}
