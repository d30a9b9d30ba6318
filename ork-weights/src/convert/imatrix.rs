//! Importance of inputs, as llama.cpp's `llama-imatrix` measures it.

use super::ConvertError;
use crate::dequant::TensorType;
use crate::model::gguf::{Gguf, Tensor};
use crate::model::{self, ModelError, ModelFile, Read, Weight};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3Default;

/// An imatrix file, in GGUF or in the older form: for each tensor the sums of squared inputs and how
/// often it was used, with a row per expert for stacks.
///
/// ```
/// use ork_weights::convert::Imatrix;
///
/// // A model is a GGUF too, and has no sums of squared inputs.
/// # use ork_weights::model::synth::Shape;
/// # let file = ork_weights::doc::model()?;
/// let error = Imatrix::open(file.path()).unwrap_err();
/// assert!(error.to_string().contains("no tensor ends with .in_sum2"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Imatrix {
    file: ModelFile,
    form: Form,
    hash: u64,
}

#[derive(Debug)]
enum Form {
    Gguf(Gguf),
    Older(Older),
}

impl Imatrix {
    /// Opens the file.
    ///
    /// # Errors
    /// [`ConvertError::Imatrix`] when it cannot be read, is no GGUF or holds no sums.
    pub fn open(path: impl AsRef<Path>) -> Result<Imatrix, ConvertError> {
        let path = path.as_ref();
        let refuse = |reason: String| ConvertError::Imatrix { path: path.to_owned(), reason };
        let file = ModelFile::open(path, Read::Buffered)?;
        let mut start = [0; 4];
        let begins = file.len() >= 4 && file.read_at(0, &mut start).is_ok() && start == *b"GGUF";
        let form = if begins {
            let header = file.gguf()?.map_err(|error| refuse(error.to_string()))?;
            if !header.tensors().iter().any(|tensor| tensor.name.ends_with(".in_sum2")) {
                return Err(refuse("no tensor ends with .in_sum2: it is another GGUF".into()));
            }
            Form::Gguf(header)
        } else {
            Form::Older(Older::read(&file).map_err(refuse)?)
        };
        let mut every = Xxh3Default::new();
        model::hash(&file, 0..file.len(), &mut every)?;
        Ok(Imatrix { file, form, hash: every.digest() })
    }

    /// Refuses a file that a conversion would not use: `weights` are those whose tiers ask for importance.
    pub(super) fn check<'a>(
        &self,
        mut weights: impl Iterator<Item = &'a Weight>,
    ) -> Result<(), ConvertError> {
        let refuse = |reason: &str| {
            Err(ConvertError::Imatrix { path: self.file.path.clone(), reason: reason.into() })
        };
        let Some(first) = weights.next() else {
            return refuse(
                "no weight's tier uses importance; o4n1 and nf4 do: choose one, or leave it out",
            );
        };
        match std::iter::once(first).chain(weights).any(|weight| self.has(weight)) {
            true => Ok(()),
            false => refuse("it has measured none of the model's weights: it is of another model"),
        }
    }

    /// Whether it measured a weight.
    fn has(&self, weight: &Weight) -> bool {
        let tensor = weight.name.split('#').next().unwrap_or_default();
        match &self.form {
            Form::Gguf(header) => header.tensor(&format!("{tensor}.in_sum2")).is_some(),
            Form::Older(older) => older.entries.contains_key(tensor),
        }
    }

    /// Hash of the whole file, for telling conversions apart.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Mean square of each of a weight's K inputs; `None` when the file has no measurement of it.
    ///
    /// # Errors
    /// [`ConvertError::Imatrix`] when the file's numbers do not fit the weight.
    pub fn importance(&self, weight: &Weight) -> Result<Option<Vec<f32>>, ConvertError> {
        let (tensor, row) = match (weight.name.rsplit_once('#'), weight.expert) {
            (Some((tensor, _)), Some(expert)) => (tensor, u64::from(expert)),
            _ => (&*weight.name, 0),
        };
        let refuse = |reason: String| ConvertError::Imatrix {
            path: self.file.path.clone(),
            reason: format!("{tensor}: {reason}"),
        };
        let k = u64::from(weight.k);
        let other = |inputs: u64| {
            refuse(format!(
                "sums of {inputs} inputs, the weight has {k}; the file is of another model"
            ))
        };
        let missing = || refuse(format!("no row {row} of f32 sums and counts"));
        let (sums, count) = match &self.form {
            Form::Gguf(header) => {
                let find = |part: &str| header.tensor(&format!("{tensor}.{part}"));
                let (Some(sums), Some(counts)) = (find("in_sum2"), find("counts")) else {
                    return Ok(None);
                };
                let inputs = sums.dimensions.first().copied().unwrap_or(0);
                if inputs != k {
                    return Err(other(inputs));
                }
                let sums = self.of_tensor(sums, row * k..(row + 1) * k)?.ok_or_else(missing)?;
                let count = self.of_tensor(counts, row..row + 1)?.ok_or_else(missing)?;
                (sums, count.first().copied().unwrap_or(0.0))
            }
            Form::Older(older) => {
                let Some(entry) = older.entries.get(tensor) else { return Ok(None) };
                if entry.values == 0 || !entry.values.is_multiple_of(k) {
                    return Err(other(entry.values));
                }
                if (row + 1) * k > entry.values {
                    return Err(missing());
                }
                let start = entry.offset + row * k * 4;
                (self.floats(tensor, start, k as usize)?, entry.calls as f32)
            }
        };
        if count <= 0.0 {
            return Ok(None);
        }
        let importance: Vec<f32> = sums.iter().map(|sum| sum / count).collect();
        match importance.iter().all(|value| value.is_finite() && *value >= 0.0) {
            true => Ok(Some(importance)),
            false => Err(refuse("a sum that is negative or not finite".into())),
        }
    }

    /// Some values of an f32 tensor; `None` when it does not have them.
    fn of_tensor(
        &self,
        tensor: &Tensor,
        range: Range<u64>,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        if tensor.kind() != Some(TensorType::F32) || range.end > tensor.bytes / 4 {
            return Ok(None);
        }
        let count = (range.end - range.start) as usize;
        self.floats(&tensor.name, tensor.offset + range.start * 4, count).map(Some)
    }

    fn floats(&self, name: &str, start: u64, count: usize) -> Result<Vec<f32>, ModelError> {
        let mut bytes = vec![0; count * 4];
        let read = self.file.read_at(start, &mut bytes);
        read.map_err(|error| self.file.failed(name, start, error))?;
        Ok(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}

/// Where the older form (`imatrix.dat`) has its sums. Source: what llama.cpp's tools of before 2025 wrote.
#[derive(Debug)]
struct Older {
    entries: HashMap<Box<str>, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Of its first value in the file.
    offset: u64,
    values: u64,
    /// How often the tensor was used.
    calls: i32,
}

/// Bytes of a name at most.
const LONGEST_NAME: u64 = 4096;

impl Older {
    /// A count, then for each tensor: length and name, calls, a number of values, the values. What may
    /// follow says how the file was made.
    fn read(file: &ModelFile) -> Result<Older, String> {
        let mut at = 0u64;
        let number = |at: &mut u64, what: &str| {
            let mut bytes = [0; 4];
            let read = file.read_at(*at, &mut bytes);
            *at += 4;
            read.map_err(|_| {
                format!("neither a GGUF nor of the older form: it ends before {what}")
            })?;
            Ok::<i32, String>(i32::from_le_bytes(bytes))
        };
        let count = number(&mut at, "the number of its tensors")?;
        // The least that a tensor takes: three numbers and a letter.
        if count <= 0 || u64::from(count.unsigned_abs()) > file.len() / 13 {
            return Err(format!("neither a GGUF nor of the older form: {count} tensors"));
        }
        let mut entries = HashMap::new();
        for _ in 0..count {
            let length = number(&mut at, "a name")?;
            let length = u64::try_from(length).ok().filter(|len| (1..=LONGEST_NAME).contains(len));
            let length = length.ok_or("a name of no or too many letters: it is damaged")?;
            let mut name = vec![0; length as usize];
            file.read_at(at, &mut name).map_err(|_| "it ends in a name: it is damaged")?;
            let name = String::from_utf8(name).map_err(|_| "a name is no text: it is damaged")?;
            at += length;
            let calls = number(&mut at, "the calls of a tensor")?;
            let values = number(&mut at, "the number of a tensor's sums")?;
            let values = u64::try_from(values).unwrap_or(u64::MAX);
            let end = values.checked_mul(4).and_then(|bytes| bytes.checked_add(at));
            let end = end.filter(|end| *end <= file.len());
            let end =
                end.ok_or_else(|| format!("the sums of {name:?} pass its end: it is damaged"))?;
            entries.insert(name.into(), Entry { offset: at, values, calls });
            at = end;
        }
        Ok(Older { entries })
    }
}
