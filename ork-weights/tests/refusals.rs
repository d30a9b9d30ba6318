//! What is no model, or a damaged one, as people have it: each is refused in one line that names the file,
//! what it is or which tensor and numbers are wrong, and what to do.

use ork_weights::model::{Model, OpenOptions};
use std::fs;
use std::path::Path;

fn refused(path: &Path) -> String {
    let text = match Model::open(path, &OpenOptions::default()) {
        Ok(_) => panic!("{} is opened", path.display()),
        Err(error) => error.to_string(),
    };
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// A safetensors file of this header and so many bytes.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data, 0);
    out
}

fn tensor(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

const UP: &str = "model.layers.0.mlp.up_proj.weight";

#[test]
fn what_is_no_model_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut tar = vec![b'm'; 257];
    tar.extend(b"ustar");
    let files: [(&str, &[u8], &str, &str); 25] = [
        (
            "lfs.gguf",
            b"version https://git-lfs.github.com/spec/v1",
            "Git LFS pointer",
            "download the file",
        ),
        ("page.safetensors", b"<!DOCTYPE html><html>", "web page", "take the link"),
        ("error.safetensors", b"{\"error\":\"Repository not found\"}", "a text", "take the link"),
        ("error.gguf", b"Entry not found", "a text", "take the link"),
        ("empty.gguf", b"", "empty file", "download it again"),
        ("empty.safetensors", b"", "empty file", "download it again"),
        ("pytorch_model.bin", b"PK\x03\x04", "pickle of PyTorch", ".safetensors or .gguf"),
        ("old.pt", b"\x80\x02\x8a", "pickle of PyTorch", ".safetensors or .gguf"),
        ("new.pt", b"\x80\x04\x95", "pickle", ".safetensors or .gguf"),
        ("x.npy", b"\x93NUMPY", "array file", ".safetensors or .gguf"),
        ("tf.h5", b"\x89HDF\r\n", "array file", ".safetensors or .gguf"),
        ("m.tflite", b"\x1c\0\0\0TFL3", "TensorFlow Lite", ".safetensors or .gguf"),
        ("m.gguf.gz", b"\x1f\x8b\x08", "archive (gzip)", "unpack it"),
        ("m.zst", b"\x28\xb5\x2f\xfd", "archive (zstd)", "unpack it"),
        ("m.xz", b"\xfd7zXZ\0", "archive (xz)", "unpack it"),
        ("m.7z", b"7z\xbc\xaf\x27\x1c", "archive (7z)", "unpack it"),
        ("m.rar", b"Rar!\x1a", "archive (rar)", "unpack it"),
        ("m.tar", &tar, "archive (tar)", "unpack it"),
        ("ggml-model.bin", b"tjgg\x03\0\0\0", "ggml before GGUF", "take a GGUF"),
        ("m.rknn", b"RKNN\0\0\0\0", "closed runtime", ".safetensors or .gguf"),
        ("m.rkllm", b"RKLLM", "closed runtime", ".safetensors or .gguf"),
        (
            "v1.gguf",
            b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            "version 1",
            "convert the model again",
        ),
        ("big.gguf", b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0", "big-endian", "convert it"),
        ("config.json", b"{\"model_type\":\"llama\"}", "no index of shards", "or its folder"),
        ("notes.txt", b"a shopping list", "no model", "folders of the hub are read"),
    ];
    for (name, bytes, what, instead) in files {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let text = refused(&path);
        assert!(text.contains(name) && text.contains(what) && text.contains(instead), "{text}");
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_damaged_file_names_tensor_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let up = tensor(UP, "F16", "[64,64]", 0, 8192);
    let one = safetensors(&format!("{{{up}}}"), 8192);
    let two = |second: String, data| safetensors(&format!("{{{up},{second}}}"), data);
    let mut huge = one.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let files: [(Vec<u8>, &[&str]); 10] = [
        (
            b"\x01\x02\x03\x04\x05\x06\x07".to_vec(),
            &["7 bytes are no safetensors file", "download"],
        ),
        (one[..50].to_vec(), &["bytes of", "are missing", "incomplete"]),
        (one[..one.len() - 100].to_vec(), &["100 bytes of", "are missing", "incomplete"]),
        (huge, &["18446744073709551615", "download the file again"]),
        ([one, vec![0; 10]].concat(), &["10 bytes lie behind its last tensor", "download"]),
        (
            two(tensor("b", "F16", "[64,64]", 4096, 12288), 12288),
            &["\"b\"", "shares bytes", "4096", "download"],
        ),
        (
            two(tensor("b", "F16", "[64,64]", 8200, 16392), 16392),
            &["\"b\"", "hole", "8200", "8192", "download"],
        ),
        (
            two(tensor("b", "F16", "[9,9]", 8192, 8300), 8300),
            &["\"b\"", "162 bytes", "108", "download"],
        ),
        (two(tensor(UP, "F16", "[64,64]", 8192, 16384), 16384), &[UP, "twice", "download"]),
        (safetensors("[]", 0), &["header", "download"]),
    ];
    for (bytes, says) in files {
        fs::write(&path, bytes).unwrap();
        let text = refused(&path);
        assert!(text.contains("model.safetensors"), "{text}");
        says.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
    }
}

#[test]
fn what_holds_something_else_than_a_model_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter_model.safetensors");
    for (name, what) in [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "LoRA adapter"),
        ("state.0.exp_avg", "state of an optimizer"),
    ] {
        let header = format!("{{{}}}", tensor(name, "F32", "[64,64]", 0, 16384));
        fs::write(&path, safetensors(&header, 16384)).unwrap();
        let text = refused(&path);
        assert!(text.contains(what) && text.contains("adapter_model.safetensors"), "{text}");
    }
    fs::remove_file(path).unwrap();
    fs::write(folder.path().join("pytorch_model.bin"), b"PK\x03\x04").unwrap();
    assert!(refused(folder.path()).contains("pickles of PyTorch"));
    fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
    assert!(refused(folder.path()).contains("LoRA adapter"));
    let index = folder.path().join("pytorch_model.bin.index.json");
    fs::write(&index, r#"{"weight_map":{"a":"pytorch_model-00001-of-00002.bin"}}"#).unwrap();
    let text = refused(&index);
    assert!(text.contains("index of pickles") && text.contains(".safetensors or .gguf"), "{text}");
}

/// Tensors that nobody multiplies refuse no file, whatever their type.
#[test]
fn types_that_nobody_knows_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensors = [
        tensor(UP, "F16", "[64,64]", 0, 8192),
        tensor("mask", "BOOL", "[64,64]", 8192, 12288),
        tensor("count", "I64", "[]", 12288, 12296),
        tensor("later", "F5_X", "[3,7]", 12296, 12310),
        tensor("waves", "C64", "[4]", 12310, 12342),
    ];
    fs::write(&path, safetensors(&format!("{{{}}}", tensors.join(",")), 12342)).unwrap();
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(model.weights().len(), 1);
    let names: Vec<&str> = model.skipped().iter().map(|tensor| &*tensor.name).collect();
    assert_eq!(names, ["mask", "count", "later", "waves"]);
}
