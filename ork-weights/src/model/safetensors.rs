//! Models as Hugging Face stores them: one safetensors file, or an index that names the file of
//! each tensor.

use super::error::ModelError;
use super::select::Candidate;
use crate::dequant::TensorType;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An index larger than this is none; the largest public models' have a few megabytes.
const MAX_INDEX: u64 = 64 << 20;

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files an index names, in order and once each.
pub(super) fn shards(path: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let refuse = |reason: String| ModelError::Index { path: path.to_owned(), reason };
    let length = std::fs::metadata(path).map_err(ModelError::io("look at", path))?.len();
    if length > MAX_INDEX {
        return Err(refuse(format!("{length} bytes are too many for an index of shards")));
    }
    let text = std::fs::read(path).map_err(ModelError::io("read", path))?;
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
    Ok(names.into_iter().map(|name| path.with_file_name(name)).collect())
}

/// Header length and tensors of one file.
pub(super) fn tensors(
    path: &Path,
    bytes: &[u8],
    shard: usize,
) -> Result<(u64, Vec<Candidate>), ModelError> {
    let refuse = |source| ModelError::Safetensors { path: path.to_owned(), source };
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(refuse)?;
    // The data begins after the length and the header; both were found to lie in the file.
    let data = 8 + header as u64;
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
                    other => Err(format!("{other:?}")),
                },
                shard,
                offset: data + start as u64,
                bytes: (end - start) as u64,
            }
        })
        .collect();
    out.sort_by_key(|tensor| tensor.offset);
    Ok((data, out))
}
