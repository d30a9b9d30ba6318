//! Telling one model file from another.

use super::file::ModelFile;
use super::select::Candidate;
use crate::pack::Identity;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes looked at in each of three places of a tensor.
const SAMPLE: u64 = 1024;
/// Bytes hashed at a time when the whole file is.
const CHUNK: usize = 4 << 20;

/// Where the bytes lie that decide whether a model is the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    /// Header bytes of each file.
    pub(super) headers: Vec<u64>,
    /// File and range of each sample of tensor data.
    ranges: Vec<(usize, std::ops::Range<u64>)>,
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
pub(super) fn identity(files: &[ModelFile], samples: &Samples, full: bool) -> Identity {
    let mut sample = Xxh3Default::new();
    let get = |shard: usize, range: std::ops::Range<u64>| -> &[u8] {
        let bytes = files.get(shard).map_or(&[][..], |file| file.mapping.as_ref());
        // Ranges were checked against the length of the mapping, which cannot change.
        bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
    };
    for (shard, header) in samples.headers.iter().enumerate() {
        sample.update(&files.get(shard).map_or(0, ModelFile::len).to_le_bytes());
        sample.update(get(shard, 0..*header));
    }
    for (shard, range) in &samples.ranges {
        sample.update(get(*shard, range.clone()));
    }
    let full_hash = match full {
        false => None,
        true => {
            let mut hash = Xxh3Default::new();
            for file in files {
                for chunk in file.mapping.as_ref().chunks(CHUNK) {
                    hash.update(chunk);
                }
            }
            Some(hash.digest128())
        }
    };
    Identity {
        size: files.iter().map(ModelFile::len).sum(),
        modified_ns: files.iter().map(|file| file.modified_ns).max().unwrap_or(0),
        sample_hash: sample.digest128(),
        full_hash,
    }
}
