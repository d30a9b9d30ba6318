//! The header of a safetensors file: JSON, an object for each tensor. Tensors of types that nobody knows
//! yet are there like others, as long as their offsets say where they end.

use crate::dequant::TensorType;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// Dimensions of a tensor at most.
const MAX_DIMENSIONS: usize = 16;

/// A tensor as the header has it.
#[derive(serde::Deserialize)]
pub(super) struct Tensor {
    #[serde(skip)]
    pub(super) name: Box<str>,
    pub(super) dtype: Box<str>,
    pub(super) shape: Vec<u64>,
    /// First byte and end, behind the header.
    pub(super) data_offsets: (u64, u64),
}

/// Types of the format and their bits.
const BITS: [(&str, u64); 21] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
];

impl Tensor {
    /// The type of its values, or its name where a weight cannot be of it.
    pub(super) fn kind(&self) -> Result<TensorType, String> {
        match &*self.dtype {
            "F32" => Ok(TensorType::F32),
            "F16" => Ok(TensorType::F16),
            "BF16" => Ok(TensorType::BF16),
            "F8_E4M3" => Ok(TensorType::F8_E4M3),
            "I8" => Ok(TensorType::I8),
            other => Err(other.into()),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.data_offsets.1.saturating_sub(self.data_offsets.0)
    }

    /// What is wrong with it, if anything, for one that should begin at byte `at`.
    fn wrong(&self, at: u64) -> Option<String> {
        let (start, end) = self.data_offsets;
        if end < start {
            return Some(format!("ends at byte {end}, before its start at {start}"));
        }
        if start != at {
            let what =
                if start < at { "shares bytes with the one before it" } else { "leaves a hole" };
            return Some(format!("{what}: it begins at byte {start} of the data, not at {at}"));
        }
        if self.shape.len() > MAX_DIMENSIONS {
            let count = self.shape.len();
            return Some(format!("has {count} dimensions; {MAX_DIMENSIONS} are possible"));
        }
        let known = BITS.iter().find(|(name, _)| *name == &*self.dtype);
        let bits = known.map(|(_, bits)| *bits).or((&*self.dtype == "U64").then_some(64))?;
        let values = self.shape.iter().try_fold(1u64, |all, each| all.checked_mul(*each));
        let bytes = values.and_then(|values| values.checked_mul(bits)).map(|bits| bits.div_ceil(8));
        let (dtype, shape) = (&self.dtype, &self.shape);
        match bytes {
            Some(bytes) if bytes == end - start => None,
            Some(bytes) => Some(format!(
                "of {shape:?} {dtype} takes {bytes} bytes, and {} are its own",
                end - start
            )),
            None => Some(format!("of {shape:?} {dtype} takes more bytes than 64 bits count")),
        }
    }
}

/// The tensors of a header in the order of their bytes, and how many bytes those are; or what is wrong.
pub(super) fn read(text: &str) -> Result<(Vec<Tensor>, u64), Wrong> {
    let Tensors(mut tensors) = serde_json::from_str(text).map_err(|error| {
        Wrong::Header(format!("its header is not what the format has ({error})"))
    })?;
    tensors.sort_by(|a, b| (a.data_offsets, &a.name).cmp(&(b.data_offsets, &b.name)));
    let mut at = 0;
    for tensor in &tensors {
        if let Some(wrong) = tensor.wrong(at) {
            return Err(Wrong::Header(format!("tensor {:?} {wrong}", tensor.name)));
        }
        at = tensor.data_offsets.1;
    }
    let mut names: Vec<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Wrong::Twice(pair[0].into())),
        None => Ok((tensors, at)),
    }
}

/// Why a header is refused.
#[derive(Debug, PartialEq)]
pub(super) enum Wrong {
    Header(String),
    /// A name that it has twice; of the two, a map would keep the last and say nothing.
    Twice(Box<str>),
}

struct Tensors(Vec<Tensor>);

impl<'de> Deserialize<'de> for Tensors {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Tensors, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Tensors;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tensors, A::Error> {
                let mut out = Vec::new();
                while let Some(name) = map.next_key::<Box<str>>()? {
                    if &*name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let tensor = map.next_value::<Tensor>();
                    let tensor = tensor.map_err(|e| A::Error::custom(format!("{name:?}: {e}")))?;
                    out.push(Tensor { name, ..tensor });
                }
                Ok(Tensors(out))
            }
        }
        from.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    }

    #[test]
    fn what_a_header_may_hold() {
        let text = [
            tensor("of a later type", "F5_X", "[3,3]", 10, 16),
            r#""__metadata__":{"format":"pt"}"#.into(),
            tensor("scalar", "I64", "[]", 2, 10),
            tensor("odd", "F4", "[3]", 0, 2),
            tensor("nothing", "F32", "[0]", 2, 2),
        ];
        let (tensors, bytes) = read(&format!("{{{}}}", text.join(","))).ok().unwrap();
        let names: Vec<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
        assert_eq!((names, bytes), (vec!["odd", "nothing", "scalar", "of a later type"], 16));
        assert_eq!(tensors[3].kind(), Err("F5_X".into()));
        assert_eq!(tensors[3].bytes(), 6);
    }

    #[test]
    fn what_is_wrong_is_said_with_tensor_and_numbers() {
        let a = tensor("a", "F16", "[4]", 0, 8);
        for (second, says) in [
            (
                tensor("b", "F16", "[4]", 4, 12),
                "\"b\" shares bytes with the one before it: it begins at byte 4",
            ),
            (
                tensor("b", "F16", "[4]", 9, 17),
                "\"b\" leaves a hole: it begins at byte 9 of the data, not at 8",
            ),
            (tensor("b", "F16", "[4]", 8, 7), "\"b\" ends at byte 7, before its start at 8"),
            (tensor("b", "F16", "[4]", 8, 15), "\"b\" of [4] F16 takes 8 bytes, and 7 are its own"),
            (
                tensor("b", "U64", "[4]", 8, 16),
                "\"b\" of [4] U64 takes 32 bytes, and 8 are its own",
            ),
            (tensor("b", "F64", "[4294967296,4294967296]", 8, 16), "more bytes than 64 bits count"),
            (
                tensor("b", "X", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 8, 9),
                "17 dimensions; 16 are possible",
            ),
            (r#""b":{"dtype":"F16","shape":[4]}"#.into(), "\"b\": missing field `data_offsets`"),
            (r#""b":7"#.into(), "\"b\": invalid type: integer"),
        ] {
            match read(&format!("{{{a},{second}}}")) {
                Err(Wrong::Header(why)) => assert!(why.contains(says), "{why}"),
                _ => panic!("{says}"),
            }
        }
        let twice = read(&format!("{{{a},{}}}", tensor("a", "F16", "[4]", 8, 16)));
        assert_eq!(twice.err(), Some(Wrong::Twice("a".into())));
        assert!(read("[]").is_err() && read("").is_err());
    }
}
