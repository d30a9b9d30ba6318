//! Telling one model file from another.

use super::error::ModelError;
use super::file::ModelFile;
use super::select::Candidate;
use crate::pack::Identity;
use std::ops::Range;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes looked at in each of three places of a tensor.
const SAMPLE: u64 = 1024;
/// Bytes hashed at a time when the whole file is.
const CHUNK: u64 = 1 << 20;

/// Where the bytes lie that decide whether a model is the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    /// Header bytes of each file.
    pub(super) headers: Vec<u64>,
    /// File and range of each sample of tensor data.
    ranges: Vec<(usize, Range<u64>)>,
}

impl Samples {
    /// The begin, middle and end of every tensor, so that a fine-tune that touches few is seen.
    pub(super) fn of(headers: Vec<u64>, tensors: &[Candidate]) -> Samples {
        let mut ranges = Vec::new();
        for tensor in tensors {
            let length = tensor.bytes.min(SAMPLE);
            for at in [0, (tensor.bytes - length) / 2, tensor.bytes - length] {
                let start = tensor.offset + at;
                ranges.push((tensor.shard, start..start + length));
            }
        }
        Samples { headers, ranges }
    }
}

/// The identity of a model of these files; `full` also hashes every byte.
pub(super) fn identity(
    files: &[ModelFile],
    samples: &Samples,
    full: bool,
) -> Result<Identity, ModelError> {
    let mut sample = Xxh3Default::new();
    for (file, header) in files.iter().zip(&samples.headers) {
        sample.update(&file.len().to_le_bytes());
        hash(file, 0..*header, &mut sample)?;
    }
    for (shard, range) in &samples.ranges {
        if let Some(file) = files.get(*shard) {
            hash(file, range.clone(), &mut sample)?;
        }
    }
    let full_hash = match full {
        false => None,
        true => {
            let mut every = Xxh3Default::new();
            files.iter().try_for_each(|file| hash(file, 0..file.len(), &mut every))?;
            Some(every.digest128())
        }
    };
    Ok(Identity {
        size: files.iter().map(ModelFile::len).sum(),
        modified_ns: files.iter().map(ModelFile::modified_ns).max().unwrap_or(0),
        sample_hash: sample.digest128(),
        full_hash,
    })
}

/// Adds the bytes of `range` to a hash.
pub(crate) fn hash(
    file: &ModelFile,
    mut range: Range<u64>,
    into: &mut Xxh3Default,
) -> Result<(), ModelError> {
    let mut buffer = vec![0; CHUNK.min(range.end.saturating_sub(range.start)) as usize];
    while !range.is_empty() {
        let chunk = &mut buffer[..CHUNK.min(range.end - range.start) as usize];
        file.read_at(range.start, chunk)
            .map_err(|error| file.failed("a sample", range.start, error))?;
        into.update(chunk);
        range.start += chunk.len() as u64;
    }
    Ok(())
}
