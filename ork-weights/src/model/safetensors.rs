//! Models as Hugging Face stores them: one safetensors file, or an index that names the file of
//! each tensor.

use super::error::ModelError;
use super::file::ModelFile;
use super::header::{self, Wrong};
use super::select::Candidate;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// An index larger than this is none; the largest public models' have a few megabytes.
const MAX_INDEX: u64 = 64 << 20;
/// Bytes of the header's length, which begins the file.
const LENGTH: u64 = 8;
/// Bytes of a header at most. The format allows a hundred million; what is read becomes several times as
/// much memory, and the headers of public models have less than one million.
const MAX_HEADER: u64 = 4 << 20;
/// Tensors that an index names at most; the largest public models' name 150,000.
const MAX_TENSORS: usize = 400_000;

#[derive(serde::Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// The files that an index names, and of each tensor the number of its.
#[derive(Default)]
struct WeightMap {
    files: Vec<String>,
    tensors: Vec<(Box<str>, u32)>,
}

impl<'de> serde::Deserialize<'de> for WeightMap {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<WeightMap, D::Error> {
        from.deserialize_map(Names)
    }
}

/// Reads names one by one: a map of them would take several times the memory.
struct Names;

impl<'de> serde::de::Visitor<'de> for Names {
    type Value = WeightMap;

    fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("an object of tensors and their files")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let (mut out, mut numbers) = (WeightMap::default(), BTreeMap::new());
        while let Some((tensor, file)) = map.next_entry::<Box<str>, String>()? {
            if out.tensors.len() >= MAX_TENSORS {
                let error = format!("more than {MAX_TENSORS} tensors");
                return Err(serde::de::Error::custom(error));
            }
            let next = numbers.len() as u32;
            let number = match numbers.get(&file) {
                Some(number) => *number,
                None => {
                    out.files.push(file.clone());
                    numbers.insert(file, next);
                    next
                }
            };
            out.tensors.push((tensor, number));
        }
        Ok(out)
    }
}

/// What an index says: its files, in order and once each, and the file of each tensor.
pub(super) struct Shards {
    pub(super) files: Vec<PathBuf>,
    /// Name of a tensor, number of its file.
    tensors: Vec<(Box<str>, u32)>,
}

impl Shards {
    /// Refuses an index that names tensors which are not in their files.
    pub(super) fn check(&self, path: &Path, found: &[Candidate]) -> Result<(), ModelError> {
        let there: std::collections::HashMap<&str, usize> =
            found.iter().map(|tensor| (&*tensor.name, tensor.shard)).collect();
        let wrong =
            |(tensor, file): &&(Box<str>, u32)| there.get(&**tensor) != Some(&(*file as usize));
        let name = |file: &u32| self.files.get(*file as usize).and_then(|file| file.file_name());
        match self.tensors.iter().find(wrong) {
            None => Ok(()),
            Some((tensor, file)) => Err(ModelError::Index {
                path: path.to_owned(),
                reason: format!(
                    "it names tensor {tensor:?} in {}, which does not hold it: index and files are of two downloads",
                    name(file).unwrap_or_default().display()
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
        return Err(refuse(format!(
            "{length} bytes are too many for an index of shards, {MAX_INDEX} are read: name the \
             model's own files"
        )));
    }
    let text = std::io::BufReader::new(file.take(MAX_INDEX));
    let index: Index = serde_json::from_reader(text).map_err(|error| {
        refuse(format!("no index of shards ({error}): name the model's file, or its folder"))
    })?;
    let WeightMap { files: names, mut tensors } = index.weight_map;
    if names.is_empty() {
        return Err(refuse("it names no file: take the index that lies beside the shards".into()));
    }
    // A shard lies beside its index; a name that leads elsewhere is an attack or an accident.
    for name in &names {
        if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
            return Err(refuse(format!(
                "{name:?} is no plain file name: shards lie beside their index, move them there and name \
                 them so"
            )));
        }
        if name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth") {
            return Err(refuse(format!(
                "it is an index of pickles of PyTorch ({name:?}), which are not read: take the model's \
                 .safetensors or .gguf files"
            )));
        }
    }
    // In the order of their names, whatever that of the tensors is.
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_unstable_by_key(|file| names.get(*file));
    let mut places = vec![0; names.len()];
    for (place, file) in order.iter().enumerate() {
        places[*file] = place as u32;
    }
    tensors.iter_mut().for_each(|(_, file)| *file = places[*file as usize]);
    let files = order.iter().map(|file| path.with_file_name(&names[*file])).collect();
    Ok(Shards { files, tensors })
}

/// Header length and tensors of one file.
pub(super) fn tensors(file: &ModelFile, shard: usize) -> Result<(u64, Vec<Candidate>), ModelError> {
    let refuse = |reason: String| ModelError::Safetensors { path: file.path.clone(), reason };
    let again = "download the file again";
    let io = |error| ModelError::io("read", &file.path)(error);
    let bytes = file.len();
    if bytes < LENGTH {
        let reason = format!("{bytes} bytes are no safetensors file, the least has 10: {again}");
        return Err(refuse(reason));
    }
    let mut length = [0; LENGTH as usize];
    file.read_at(0, &mut length).map_err(io)?;
    let header = u64::from_le_bytes(length);
    if header > MAX_HEADER {
        return Err(refuse(format!(
            "its first 8 bytes speak of a header of {header} bytes, and {MAX_HEADER} are read: it is no \
             safetensors file, or damaged: {again}"
        )));
    }
    // The data begins after the length and the header.
    let data = LENGTH + header;
    if data > bytes {
        let missing = data - bytes;
        return Err(ModelError::Incomplete { path: file.path.clone(), bytes: data, missing });
    }
    let mut text = vec![0; header as usize];
    file.read_at(LENGTH, &mut text).map_err(io)?;
    let text = std::str::from_utf8(&text)
        .map_err(|error| refuse(format!("its header is no text ({error}): {again}")))?;
    let (tensors, length) = header::read(text).map_err(|wrong| match wrong {
        Wrong::Header(reason) => refuse(format!("{reason}: {again}, or write it anew")),
        Wrong::Twice(name) => ModelError::TensorTwice { path: file.path.clone(), name },
    })?;
    let end = data.saturating_add(length);
    if end > bytes {
        let missing = end - bytes;
        return Err(ModelError::Incomplete { path: file.path.clone(), bytes: end, missing });
    }
    if end < bytes {
        let more = bytes - end;
        return Err(refuse(format!(
            "{more} bytes lie behind its last tensor, which ends at {end}: {again}"
        )));
    }
    let candidate = |tensor: header::Tensor| Candidate {
        // Theirs have the contiguous dimension last.
        dimensions: tensor.shape.iter().rev().copied().collect(),
        kind: tensor.kind(),
        shard,
        offset: data + tensor.data_offsets.0,
        bytes: tensor.bytes(),
        scaling: None,
        side: None,
        name: tensor.name,
    };
    Ok((data, tensors.into_iter().map(candidate).collect()))
}
