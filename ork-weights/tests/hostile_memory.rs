//! Memory that hostile files of the hub take before they are refused. Alone in its process, and in one
//! test, because the allocator counts for the whole program.

use ork_weights::model::{Model, OpenOptions};
use std::path::Path;

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

const MOST: u64 = 64 << 20;

/// Opens what is at `path`, refused or not, and says whether it was.
fn refused(path: &Path, what: &str) -> bool {
    let (opened, peak) = ratio::peak_bytes(|| Model::open(path, &OpenOptions::default()).map(drop));
    println!("{what}: {} KiB, {:?}", peak >> 10, opened.as_ref().err().map(ToString::to_string));
    assert!(peak <= MOST, "{what}: {} MiB", peak >> 20);
    opened.is_err()
}

fn tensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn hostile_files_are_refused_within_64_mib() {
    let folder = tempfile::tempdir().unwrap();
    let one = folder.path().join("model.safetensors");
    let try_one = |bytes: &[u8], what: &str| {
        std::fs::write(&one, bytes).unwrap();
        assert!(refused(&one, what), "{what} is opened");
    };
    let tensor = |name: &str, shape: &str, start: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    let up = "model.layers.0.mlp.up_proj.weight";
    let header = |tensors: &[String]| format!("{{{}}}", tensors.join(","));
    let a = tensor(up, "[32,32]", 0, 4096);
    for (parts, data, what) in [
        (vec![a.clone(), tensor("b", "[32,32]", 2048, 6144)], 6144, "tensors that share bytes"),
        (vec![a.clone(), tensor("b", "[32,32]", 5000, 9096)], 9096, "a hole"),
        (vec![a.clone(), tensor(up, "[32,32]", 4096, 8192)], 8192, "a name twice"),
        (vec![a.clone(), a.clone()], 4096, "a tensor twice"),
        (vec![tensor(up, "[1152921504606846976,1]", 0, 4096)], 4096, "2^60 values"),
        (vec![tensor(up, "[4294967296,4294967296]", 0, 4096)], 4096, "2^64 values"),
        (vec![tensor(up, "[32,32]", 4096, 0)], 4096, "an end before its start"),
        (vec![a.clone()], 4000, "a file that is cut"),
        (vec![a.clone()], 5000, "bytes behind the last tensor"),
    ] {
        try_one(&tensors(&header(&parts), data), what);
    }
    for length in [u64::MAX, 1 << 62, 100_000_000, 1 << 20, 9] {
        let mut bytes = tensors(&header(std::slice::from_ref(&a)), 4096);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        try_one(&bytes, &format!("a header of {length} bytes"));
    }
    // As many tensors as a header may hold and more, and the largest that is read.
    for most in [(4 << 20) - 100, 5 << 20, 90 << 20] {
        let mut parts = Vec::new();
        let (mut bytes, mut number) = (0, 0u32);
        while bytes < most {
            parts.push(tensor(&format!("{number:x}"), "[0]", 0, 0));
            bytes += parts.last().map_or(0, |part| part.len() + 1);
            number += 1;
        }
        try_one(&tensors(&header(&parts), 0), &format!("{number} tensors of nothing"));
    }
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    try_one(&tensors(&format!(r#"{{"a":{deep}}}"#), 0), "brackets in brackets");
    // A stack of more matrices than anybody has memory for.
    let crumbs = tensor("model.layers.0.mlp.experts.up_proj", "[4000000,1,1]", 0, 16_000_000);
    try_one(&tensors(&header(&[crumbs]), 16_000_000), "a stack of crumbs");
    std::fs::remove_file(&one).unwrap();

    let index = folder.path().join("model.safetensors.index.json");
    let shard = tensors(&header(&[a]), 4096);
    std::fs::write(folder.path().join("x.safetensors"), &shard).unwrap();
    let mut many = Vec::new();
    for number in 0..2_000_000 {
        many.push(format!(r#""{number:x}":"x.safetensors""#));
    }
    for (map, what) in [
        (many.join(","), "millions of names"),
        (r#""a":"model.safetensors.index.json""#.into(), "an index that names itself"),
        (r#""a":"../x.safetensors""#.into(), "a file elsewhere"),
        (r#""a":"/dev/zero""#.into(), "a device"),
        (format!(r#""{up}":"y.safetensors""#), "a file that is not there"),
        (r#""b":"x.safetensors""#.into(), "a tensor that is not there"),
    ] {
        std::fs::write(&index, format!(r#"{{"weight_map":{{{map}}}}}"#)).unwrap();
        assert!(refused(&index, what), "{what} is opened");
    }
}
