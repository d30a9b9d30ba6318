//! Importance of inputs, as llama.cpp's `llama-imatrix` measures it.

use super::ConvertError;
use crate::dequant::TensorType;
use crate::model::gguf::{Gguf, Tensor};
use crate::model::{self, ModelError, ModelFile, Read, Weight};
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3Default;

/// An imatrix file in GGUF form: for each tensor the sums of squared inputs and how often it was
/// used, with a row per expert for stacks.
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
    header: Gguf,
    hash: u64,
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
        let header = file.gguf()?.map_err(|error| refuse(error.to_string()))?;
        if !header.tensors().iter().any(|tensor| tensor.name.ends_with(".in_sum2")) {
            return Err(refuse("no tensor ends with .in_sum2; older forms are not read".into()));
        }
        let mut every = Xxh3Default::new();
        model::hash(&file, 0..file.len(), &mut every)?;
        Ok(Imatrix { file, header, hash: every.digest() })
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
        match std::iter::once(first).chain(weights).any(|weight| self.sums(weight).is_some()) {
            true => Ok(()),
            false => refuse("it has measured none of the model's weights: it is of another model"),
        }
    }

    /// The tensor of a weight's sums.
    fn sums(&self, weight: &Weight) -> Option<&Tensor> {
        let tensor = weight.name.split('#').next()?;
        self.header.tensor(&format!("{tensor}.in_sum2"))
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
        let find = |part: &str| self.header.tensor(&format!("{tensor}.{part}"));
        let (Some(sums), Some(counts)) = (find("in_sum2"), find("counts")) else { return Ok(None) };
        let k = u64::from(weight.k);
        if sums.dimensions[0] != k {
            return Err(refuse(format!(
                "sums of {} inputs, the weight has {k}; the file is of another model",
                sums.dimensions[0]
            )));
        }
        let missing = || refuse(format!("no row {row} of f32 sums and counts"));
        let sums = self.floats(sums, row * k..(row + 1) * k)?.ok_or_else(missing)?;
        let count = self.floats(counts, row..row + 1)?.ok_or_else(missing)?;
        let count = count.first().copied().unwrap_or(0.0);
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
    fn floats(&self, tensor: &Tensor, range: Range<u64>) -> Result<Option<Vec<f32>>, ModelError> {
        if tensor.kind() != Some(TensorType::F32) || range.end > tensor.bytes / 4 {
            return Ok(None);
        }
        let start = tensor.offset + range.start * 4;
        let mut bytes = vec![0; (range.end - range.start) as usize * 4];
        self.file
            .read_at(start, &mut bytes)
            .map_err(|error| self.file.failed(&*tensor.name, start, error))?;
        Ok(Some(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }
}
