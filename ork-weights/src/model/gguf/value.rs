//! Metadata values.

use super::GgufError;
use super::array::{ARRAY, Array, STRING};
use super::cursor::Cursor;

/// A metadata value.
///
/// ```
/// use ork_weights::model::gguf::Value;
///
/// assert_eq!(Value::Float(0.5).to_string(), "0.5");
/// assert_eq!(Value::Text("llama".into()).to_string(), "\"llama\"");
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
    /// A string that is not UTF-8.
    Bytes(Box<[u8]>),
    /// An array.
    Array(Array),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Unsigned(number) => write!(f, "{number}"),
            Value::Signed(number) => write!(f, "{number}"),
            Value::Float(number) => write!(f, "{number}"),
            Value::Bool(truth) => write!(f, "{truth}"),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Bytes(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Value::Array(array) => write!(f, "[{} elements]", array.len()),
        }
    }
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
            STRING => {
                let bytes = at.text("value")?;
                match std::str::from_utf8(bytes) {
                    Ok(text) => Value::Text(text.into()),
                    Err(_) => Value::Bytes(bytes.into()),
                }
            }
            ARRAY => Value::Array(Array::read(at, key)?),
            10 => Value::Unsigned(at.u64("value")?),
            11 => Value::Signed(i64::from_le_bytes(at.array("value")?)),
            12 => Value::Float(f64::from_le_bytes(at.array("value")?)),
            kind => return Err(GgufError::ValueType { key: key.into(), kind }),
        })
    }
}
