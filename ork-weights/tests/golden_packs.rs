//! Packs of every version, written by an independent program, read to the last code.

use std::path::{Path, PathBuf};

use ork_weights::pack::{Pack, Source};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/orkpack")
}

fn sha(bytes: impl IntoIterator<Item = u8>) -> String {
    let mut hash = Sha256::new();
    bytes.into_iter().for_each(|b| hash.update([b]));
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

fn check<S: Source + Sync>(name: &str, pack: &Pack<S>, expected: &Value) {
    assert_eq!(u64::from(pack.version()), expected["version"], "{name}");
    let entries = expected["entries"].as_array().unwrap();
    assert_eq!(pack.entries().len(), entries.len(), "{name}");
    for (entry, expected) in pack.entries().iter().zip(entries) {
        let what = format!("{name}: {}", entry.name);
        assert_eq!(*entry.name, *expected["name"].as_str().unwrap(), "{what}");
        assert_eq!(entry.k, expected["K"], "{what}");
        assert_eq!(entry.n, expected["N"], "{what}");
        assert_eq!(entry.dtype.code(), expected["dtype"], "{what}");
        assert_eq!(entry.full_k_bytes(), expected["bf_bytes"], "{what}");
        let stamp = if entry.is_stamped() { 4096 } else { 0 };
        let blob = entry.blob_range();
        assert_eq!(blob.end - blob.start + stamp, expected["blob_bytes"], "{what}");
        let mut bytes = vec![0; (blob.end - blob.start + stamp) as usize];
        pack.source().read_at(blob.start - stamp, &mut bytes).unwrap();
        assert_eq!(sha(bytes), expected["blob_sha256"].as_str().unwrap(), "{what}");
        let codes = pack.codes(entry).unwrap();
        let codes = sha(codes.into_iter().map(|code| code as u8));
        assert_eq!(codes, expected["codes_row_major_n_k_sha256"].as_str().unwrap(), "{what}");
        let scales = pack.scales(entry).unwrap();
        if let Some(count) = expected["scales"].as_u64() {
            assert_eq!(scales.len() as u64, count, "{what}");
            let scales = sha(scales.iter().flat_map(|scale| scale.to_le_bytes()));
            assert_eq!(scales, expected["scale_sha256"].as_str().unwrap(), "{what}");
        }
        load_agrees_with_codes(pack, entry);
    }
}

/// Every byte that a load writes is the code of its place, or padding.
fn load_agrees_with_codes<S: Source + Sync>(pack: &Pack<S>, entry: &ork_weights::pack::Entry) {
    use rknpu_sys::layout::Precision;
    let layout = entry.layout();
    let mut tiles = vec![0xAA; layout.bytes() as usize];
    pack.load_into(entry, &mut tiles).unwrap();
    let mut parallel = vec![0xee; tiles.len()];
    pack.load_into_parallel(entry, &mut parallel).unwrap();
    assert_eq!(tiles, parallel);
    let codes = pack.codes(entry).unwrap();
    for n in 0..entry.n {
        for k in 0..entry.k {
            let (slice, element) = layout.element(k, n).unwrap();
            let at = layout.slice(slice).unwrap().offset;
            let found = match layout.precision() {
                Precision::Int4 => {
                    let byte = tiles[(at + element / 2) as usize];
                    ((byte << (4 * (1 - element % 2))) as i8) >> 4
                }
                _ => tiles[(at + element) as usize] as i8,
            };
            assert_eq!(found, codes[n as usize * entry.k as usize + k as usize]);
        }
    }
    for slice in layout.slices() {
        let pad = slice.offset + slice.bytes..slice.offset + slice.padded_bytes();
        assert!(tiles[pad.start as usize..pad.end as usize].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn every_version_reads_as_its_writer_meant() {
    let mut seen = 0;
    for file in std::fs::read_dir(folder()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "orkpack") {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let json = std::fs::read(path.with_extension("json")).unwrap();
        let expected: Value = serde_json::from_slice(&json).unwrap();
        check(&name, &Pack::open(&path).unwrap(), &expected);
        check(&name, &Pack::parse(std::fs::read(&path).unwrap()).unwrap(), &expected);
        seen += 1;
    }
    assert_eq!(seen, 8);
}
