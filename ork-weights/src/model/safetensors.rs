//! Models as Hugging Face stores them: one safetensors file, or an index that names the file of
//! each tensor.

use super::error::ModelError;
use super::file::ModelFile;
use super::select::Candidate;
use crate::dequant::TensorType;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// An index larger than this is none; the largest public models' have a few megabytes.
const MAX_INDEX: u64 = 64 << 20;
/// Bytes of the header's length, which begins the file.
const LENGTH: u64 = 8;
/// Bytes of a header at most, as the format says.
const MAX_HEADER: u64 = 100_000_000;

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// What an index says: its files, in order and once each, and the file of each tensor.
pub(super) struct Shards {
    pub(super) files: Vec<PathBuf>,
    /// Name of a tensor, name of its file.
    tensors: BTreeMap<String, String>,
}

impl Shards {
    /// Refuses an index that names tensors which are not in their files.
    pub(super) fn check(&self, path: &Path, found: &[Candidate]) -> Result<(), ModelError> {
        let file =
            |tensor: &Candidate| self.files.get(tensor.shard).and_then(|file| file.file_name());
        let there: std::collections::HashMap<&str, _> =
            found.iter().map(|tensor| (&*tensor.name, file(tensor))).collect();
        let wrong = |(tensor, file): &(&String, &String)| {
            there
                .get(tensor.as_str())
                .is_none_or(|there| *there != Some(std::ffi::OsStr::new(file)))
        };
        match self.tensors.iter().find(wrong) {
            None => Ok(()),
            Some((tensor, file)) => Err(ModelError::Index {
                path: path.to_owned(),
                reason: format!(
                    "it names tensor {tensor:?} in {file}, which does not hold it: index and files are of two downloads"
                ),
            }),
        }
    }
}

/// Reads an index.
pub(super) fn shards(path: &Path) -> Result<Shards, ModelError> {
    let refuse = |reason: String| ModelError::Index { path: path.to_owned(), reason };
    let (file, stat) = crate::regular_file::open(path).map_err(ModelError::io("open", path))?;
    let length = stat.len();
    if length > MAX_INDEX {
        return Err(refuse(format!("{length} bytes are too many for an index of shards")));
    }
    let mut text = Vec::new();
    file.take(MAX_INDEX).read_to_end(&mut text).map_err(ModelError::io("read", path))?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| refuse(format!("no index of shards: {error}")))?;
    let mut names: Vec<&String> = index.weight_map.values().collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Err(refuse("it names no file".into()));
    }
    // A shard lies beside its index; a name that leads elsewhere is an attack or an accident.
    for name in &names {
        if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
            return Err(refuse(format!("{name:?} is no plain file name")));
        }
    }
    let files = names.into_iter().map(|name| path.with_file_name(name)).collect();
    Ok(Shards { files, tensors: index.weight_map })
}

/// Header length and tensors of one file.
pub(super) fn tensors(file: &ModelFile, shard: usize) -> Result<(u64, Vec<Candidate>), ModelError> {
    let refuse = |source| ModelError::Safetensors { path: file.path.clone(), source };
    let io = |error| ModelError::io("read", &file.path)(error);
    if file.len() < LENGTH {
        return Err(refuse(SafeTensorError::HeaderTooSmall));
    }
    let mut length = [0; LENGTH as usize];
    file.read_at(0, &mut length).map_err(io)?;
    let header = u64::from_le_bytes(length);
    if header > MAX_HEADER {
        return Err(refuse(SafeTensorError::HeaderTooLarge));
    }
    // The data begins after the length and the header.
    let data = LENGTH + header;
    if data > file.len() {
        return Err(refuse(SafeTensorError::InvalidHeaderLength));
    }
    let mut text = vec![0; header as usize];
    file.read_at(LENGTH, &mut text).map_err(io)?;
    let text = std::str::from_utf8(&text).map_err(|e| refuse(SafeTensorError::InvalidHeader(e)))?;
    let metadata: Metadata = serde_json::from_str(text)
        .map_err(|error| refuse(SafeTensorError::InvalidHeaderDeserialization(error)))?;
    let bytes = data.saturating_add(metadata.data_len() as u64);
    if bytes > file.len() {
        let missing = bytes - file.len();
        return Err(ModelError::Incomplete { path: file.path.clone(), bytes, missing });
    }
    if bytes != file.len() {
        return Err(refuse(SafeTensorError::MetadataIncompleteBuffer));
    }
    let mut out: Vec<Candidate> = metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| {
            let (start, end) = info.data_offsets;
            Candidate {
                name: name.into_boxed_str(),
                // Theirs have the contiguous dimension last.
                dimensions: info.shape.iter().rev().map(|&d| d as u64).collect(),
                kind: match info.dtype {
                    Dtype::F32 => Ok(TensorType::F32),
                    Dtype::F16 => Ok(TensorType::F16),
                    Dtype::BF16 => Ok(TensorType::BF16),
                    Dtype::F8_E4M3 => Ok(TensorType::F8_E4M3),
                    Dtype::I8 => Ok(TensorType::I8),
                    other => Err(format!("{other:?}")),
                },
                shard,
                offset: data + start as u64,
                bytes: (end - start) as u64,
                scaling: None,
                side: None,
            }
        })
        .collect();
    out.sort_by_key(|tensor| tensor.offset);
    Ok((data, out))
}
