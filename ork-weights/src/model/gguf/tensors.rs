//! All tensors of a GGUF model, to be read as f32 or as they are: norms, biases and tables, which no
//! pack has, and weights for whoever multiplies without one.

use super::{Gguf, Tensor};
use crate::dequant::{TensorType, dequantise};
use crate::model::file::{ModelFile, Read};
use crate::model::{ModelError, shards};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// The files of a model that begins with `first`, in order, each with its header.
pub(in crate::model) fn files(
    first: ModelFile,
    read: Read,
) -> Result<Vec<(ModelFile, Gguf)>, ModelError> {
    let parse = |file: &ModelFile| {
        file.gguf()?.map_err(|source| ModelError::Gguf { path: file.path.clone(), source })
    };
    let header = parse(&first)?;
    let paths = shards::files(&first.path, &header)?;
    if paths.len() == 1 {
        return Ok(vec![(first, header)]);
    }
    let mut files = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let file = ModelFile::open(path, read)?;
        let header = parse(&file)?;
        shards::check(path, &header, index, paths.len())?;
        files.push((file, header));
    }
    shards::belong_together(files.iter().map(|(file, header)| (&*file.path, header)))?;
    Ok(files)
}

/// An open GGUF model, in one file or several.
///
/// ```
/// use ork_weights::model::{gguf::Tensors, synth::Shape};
///
/// let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
/// Shape::tiny().write(file.as_file())?;
/// let tensors = Tensors::open(file.path())?;
///
/// let mut row = vec![0.0; 256];
/// tensors.read("token_embd.weight", 7..8, &mut row)?; // the eighth token's embedding
/// assert!(row.iter().any(|value| *value != 0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tensors {
    files: Vec<ModelFile>,
    header: Gguf,
    /// File and entry of each name.
    index: HashMap<Box<str>, (usize, Tensor)>,
}

impl Tensors {
    /// Opens the model at `path`, any one file of a split one.
    ///
    /// # Errors
    /// [`ModelError`]: no file, no GGUF, damaged, or one of its files missing.
    pub fn open(path: impl AsRef<Path>) -> Result<Tensors, ModelError> {
        let read = Read::Buffered;
        let first = ModelFile::open(path.as_ref(), read)?;
        let (mut files_, mut first_header, mut index) = (Vec::new(), None, HashMap::new());
        for (number, (file, header)) in files(first, read)?.into_iter().enumerate() {
            for tensor in header.tensors() {
                let entry = (number, tensor.clone());
                if index.insert(tensor.name.clone(), entry).is_some() {
                    let path = file.path.clone();
                    return Err(ModelError::DuplicateTensor { path, name: tensor.name.clone() });
                }
            }
            files_.push(file);
            first_header.get_or_insert(header);
        }
        let none = || ModelError::UnknownFormat { path: path.as_ref().to_owned() };
        Ok(Tensors { files: files_, header: first_header.ok_or_else(none)?, index })
    }

    /// The header; of a split model, that of its first file.
    pub fn header(&self) -> &Gguf {
        &self.header
    }

    /// Every tensor, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Tensor> {
        let mut all: Vec<&Tensor> = self.index.values().map(|entry| &entry.1).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all.into_iter()
    }

    /// The tensor of this name.
    ///
    /// ```
    /// # use ork_weights::model::{gguf::Tensors, synth::Shape};
    /// # let file = ork_weights::doc::model()?;
    /// let tensors = Tensors::open(file.path())?;
    /// assert_eq!(tensors.get("output_norm.weight").map(|t| &*t.dimensions), Some(&[256][..]));
    /// assert!(tensors.get("rope_freqs.weight").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).map(|entry| &entry.1)
    }

    /// Reads some rows of a tensor as f32. A row has as many values as the first dimension says; the
    /// rows of a stack of matrices are counted through.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] for a tensor or rows that are not there, or an `out` of another length;
    /// [`ModelError::UnsupportedType`]; [`ModelError::Shortened`] or [`ModelError::Io`] when the file
    /// cannot be read any more.
    pub fn read(&self, name: &str, rows: Range<u64>, out: &mut [f32]) -> Result<(), ModelError> {
        self.with(name, rows, |kind, raw| {
            dequantise(kind, raw, out).map_err(|error| ModelError::Tensor {
                name: name.into(),
                reason: error.to_string(),
            })
        })?
    }

    /// Hands the blocks of some rows of a tensor to `work`, see [`read`](Tensors::read).
    ///
    /// ```
    /// # use ork_weights::model::{gguf::Tensors, synth::Shape};
    /// # let file = ork_weights::doc::model()?;
    /// let tensors = Tensors::open(file.path())?;
    /// let blocks = tensors.with("output.weight", 0..2, |kind, raw| (kind.name(), raw.len()))?;
    /// assert_eq!(blocks, ("Q6_K", 2 * 210));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn with<T>(
        &self,
        name: &str,
        rows: Range<u64>,
        work: impl FnOnce(TensorType, &[u8]) -> T,
    ) -> Result<T, ModelError> {
        let refuse = |reason: String| ModelError::Tensor { name: name.into(), reason };
        let entry = self.index.get(name).and_then(|(file, t)| Some((self.files.get(*file)?, t)));
        let (file, tensor) = entry.ok_or_else(|| refuse("is not in the model".into()))?;
        let kind = tensor.kind().ok_or_else(|| ModelError::UnsupportedType {
            name: name.into(),
            kind: TensorType::describe(tensor.ggml_type),
        })?;
        // None of these overflows: the header's reader has multiplied them.
        let count: u64 = tensor.dimensions.iter().skip(1).product();
        if rows.start > rows.end || rows.end > count {
            let Range { start, end } = rows;
            return Err(refuse(format!("rows {start}..{end} of {count} are not there")));
        }
        let row = tensor.bytes / count;
        let start = tensor.offset + row * rows.start;
        let range = start..start + row * (rows.end - rows.start);
        file.with(range, |raw| work(kind, raw))
            .map_err(|error| file.failed(format!("tensor {name:?}"), start, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, OpenOptions, synth::Shape};

    #[test]
    fn every_tensor_is_read_as_the_file_has_it() {
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        let shape = Shape { experts: 3, ..Shape::tiny() };
        shape.write(file.as_file()).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        let tensors = Tensors::open(file.path()).unwrap();
        assert_eq!(tensors.header().tensors().len(), tensors.index.len());
        for tensor in tensors.header().tensors() {
            let rows: u64 = tensor.dimensions[1..].iter().product();
            let all = tensors.with(&tensor.name, 0..rows, |_, raw| raw.to_vec()).unwrap();
            assert_eq!(all, bytes[tensor.range().start as usize..tensor.range().end as usize]);
        }
        // The second expert of a stack.
        let (k, n) = (256, 512);
        let mut expert = vec![0.0; k * n];
        tensors.read("blk.1.ffn_up_exps.weight", 512..1024, &mut expert).unwrap();
        let model = Model::open(file.path(), &OpenOptions::default()).unwrap();
        let weight = model.weight("blk.1.ffn_up_exps.weight#1").unwrap();
        let raw = &bytes[weight.range().start as usize..weight.range().end as usize];
        let mut wanted = vec![0.0; k * n];
        dequantise(weight.kind, raw, &mut wanted).unwrap();
        assert_eq!(expert, wanted);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        Shape::tiny().write(file.as_file()).unwrap();
        let tensors = Tensors::open(file.path()).unwrap();
        let mut out = [0.0; 256];
        for (name, rows, length, says) in [
            ("no.such", 0..1, 256, "is not in the model"),
            ("output.weight", 320..321, 256, "320..321 of 320"),
            ("output.weight", 0..u64::MAX, 256, "of 320"),
            ("output.weight", 0..1, 255, "255 values"),
        ] {
            let error = tensors.read(name, rows, &mut out[..length]).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(name), "{error}");
        }
        file.as_file().set_len(tensors.header().data_start() + 100).unwrap();
        let cut = tensors.read("output.weight", 0..1, &mut out);
        assert!(matches!(cut, Err(ModelError::Shortened { .. })));
    }
}
