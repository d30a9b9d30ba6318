//! What a path that was named for a model is: the file to open of a folder, and the names of things
//! that are no models.

use super::error::ModelError;
use std::path::{Path, PathBuf};

/// What a file's first bytes say it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gguf,
    Safetensors,
    /// JSON, as an index of shards is.
    Index,
}

/// Files of a folder of the hub, the first that is there counts.
const OF_FOLDER: [&str; 3] =
    ["model.safetensors.index.json", "model.safetensors", "consolidated.safetensors"];

/// The file to begin with: `path` itself, or the one of a folder that holds a model.
pub(super) fn first_file(path: &Path) -> Result<PathBuf, ModelError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let named = OF_FOLDER.map(|name| path.join(name)).into_iter().find(|file| file.is_file());
    if let Some(file) = named {
        return Ok(file);
    }
    let folder = |reason: String| ModelError::Folder { path: path.to_owned(), reason };
    let entries = std::fs::read_dir(path).map_err(ModelError::io("list", path))?;
    let mut models: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|e| e == "gguf" || e == "safetensors"))
        .collect();
    models.sort();
    // Of a split model any file stands for all.
    let stem = |file: &Path| {
        let name = file.file_name()?.to_str()?;
        Some(name.split("-00").next().unwrap_or(name).to_owned())
    };
    match &models[..] {
        [] if path.join("adapter_config.json").is_file() => {
            Err(folder("it holds a LoRA adapter: merge it into its model, and take what comes out".into()))
        }
        [] if pickles(path) => Err(folder(
            "its weights are pickles of PyTorch, which are not read: take the model's .safetensors or \
             .gguf files"
                .into(),
        )),
        [] => Err(folder(
            "no model.safetensors, no index of shards and no .gguf in it: name a model's file, or the folder that holds it".into(),
        )),
        [first, rest @ ..] if rest.iter().all(|file| stem(file) == stem(first)) => Ok(first.clone()),
        [first, ..] => Err(folder(format!(
            "{} models in it: name one of them, such as {}",
            models.len(),
            first.display()
        ))),
    }
}

/// Whether a folder has weights of PyTorch alone.
fn pickles(path: &Path) -> bool {
    ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"]
        .iter()
        .any(|name| path.join(name).is_file())
}

const OTHER: &str = "take the model's .safetensors or .gguf file";
const UNPACK: &str = "unpack it, and take the .safetensors or .gguf file";
const AGAIN: &str = "the download went wrong: download it again";

/// Beginnings of what is no model, what that is, and what to do.
const BEGINNINGS: [(&[u8], &str, &str); 18] = [
    (
        b"version https://git-lfs",
        "a Git LFS pointer",
        "download the file itself, with git lfs pull or from the hub",
    ),
    (b"PK\x03\x04", "a pickle of PyTorch, or a zip", OTHER),
    (b"\x80\x02", "a pickle of PyTorch, or a zip", OTHER),
    (b"\x80\x03", "a pickle", OTHER),
    (b"\x80\x04", "a pickle", OTHER),
    (b"\x80\x05", "a pickle", OTHER),
    (b"\x93NUMPY", "an array file", OTHER),
    (b"\x89HDF", "an array file", OTHER),
    (b"\x1f\x8b", "an archive (gzip)", UNPACK),
    (b"\x28\xb5\x2f\xfd", "an archive (zstd)", UNPACK),
    (b"\xfd7zXZ", "an archive (xz)", UNPACK),
    (b"7z\xbc\xaf", "an archive (7z)", UNPACK),
    (b"Rar!", "an archive (rar)", UNPACK),
    (b"lmgg", "a file of ggml before GGUF", "take a GGUF of the model"),
    (b"tjgg", "a file of ggml before GGUF", "take a GGUF of the model"),
    (b"fmgg", "a file of ggml before GGUF", "take a GGUF of the model"),
    (b"RKNN", "a model of the closed runtime", OTHER),
    (b"RKLLM", "a model of the closed runtime", OTHER),
];

/// What the first bytes of a file of `bytes` bytes say; extensions only decide where they say nothing.
pub(super) fn kind(path: &Path, start: &[u8], bytes: u64) -> Result<Kind, ModelError> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let no_model = |what: &'static str, instead: &'static str| {
        Err(ModelError::NoModel { path: path.to_owned(), what, instead })
    };
    if start.starts_with(b"GGUF") {
        return Ok(Kind::Gguf);
    }
    if let Some((_, what, instead)) = BEGINNINGS.iter().find(|(with, ..)| start.starts_with(with)) {
        return no_model(what, instead);
    }
    if start.get(257..262) == Some(b"ustar") {
        return no_model("an archive (tar)", UNPACK);
    }
    if start.get(4..8) == Some(b"TFL3") {
        return no_model("a model of TensorFlow Lite", OTHER);
    }
    if bytes == 0 {
        return no_model("an empty file", AGAIN);
    }
    let text = start.trim_ascii_start();
    if [&b"<!DOCTYPE"[..], b"<!doctype", b"<html", b"<HTML"].iter().any(|tag| text.starts_with(tag))
    {
        return no_model("a web page", "the download went wrong: take the link to the file itself");
    }
    // Servers answer with a text where a file should be.
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if matches!(extension, Some("gguf" | "safetensors")) && start.iter().all(is_text) {
        return no_model("a text", "the download went wrong: take the link to the file itself");
    }
    let header = start.first_chunk().map(|length| u64::from_le_bytes(*length));
    let opens = start.get(8) == Some(&b'{') && header.is_some_and(|length| length < bytes);
    match extension {
        Some("gguf") => Ok(Kind::Gguf),
        Some("safetensors") => Ok(Kind::Safetensors),
        _ if opens => Ok(Kind::Safetensors),
        _ if text.first() == Some(&b'{') => Ok(Kind::Index),
        _ => Err(ModelError::UnknownFormat { path: path.to_owned() }),
    }
}

/// Refuses GGUF files that hold something else than a model.
pub(super) fn is_model(path: &Path, header: &super::gguf::Gguf) -> Result<(), ModelError> {
    let no_model = |what: &'static str, instead: &'static str| {
        Err(ModelError::NoModel { path: path.to_owned(), what, instead })
    };
    match header.text("general.type") {
        Some("imatrix") => no_model("an imatrix", "give it with --imatrix, beside the model"),
        Some("adapter") => {
            no_model("a LoRA adapter", "merge it into its model first, and take what comes out")
        }
        Some("vocab") => no_model("a vocabulary alone", "take the model's own file"),
        _ if header.tensors().is_empty() && header.number("split.count").unwrap_or(1) <= 1 => {
            no_model("a vocabulary or a header alone", "take the file that holds the tensors")
        }
        _ => Ok(()),
    }
}
