//! Upgrading, comparing and extracting, on packs that another program wrote.

mod common;

use std::io::Read;
use std::path::{Path, PathBuf};

use common::RawPack;
use ork_weights::pack::{Pack, PackError, WriterOptions, diff, upgrade, verify};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/orkpack").join(name)
}

const ALL: [&str; 8] = ["v1", "v2", "v3", "v4", "v5", "v6", "v7-plain", "v7"];

#[test]
fn every_version_upgrades_to_every_written_one() {
    let folder = tempfile::tempdir().unwrap();
    for name in ALL {
        let old = Pack::open(golden(&format!("{name}.orkpack"))).unwrap();
        assert!(old.identity().is_none());
        assert_eq!(verify(&old, &|_| {}).checksummed, 0);
        for version in [2, 5, 7] {
            let path = folder.path().join(format!("{name}-{version}.orkpack"));
            let options = WriterOptions { version, ..WriterOptions::default() };
            let mut seen = 0;
            let summary = upgrade(&old, &path, options, |_| seen += 1).unwrap();
            assert_eq!((seen, summary.weights as usize), (old.entries().len(), seen));
            let new = Pack::open(&path).unwrap();
            assert_eq!(new.version(), version);
            assert!(diff(&old, &new, |_| {}).unwrap().is_empty(), "{name} to {version}");
            let report = verify(&new, &|_| {});
            assert!(report.is_sound() && report.checksummed == seen);
            if version > 2 {
                assert_eq!(new.signature(), old.signature());
            }
            // The embedded GGUF survives in every version, byte for byte.
            assert_eq!(stub(&old), stub(&new), "{name} to {version}");
        }
    }
}

fn stub<S: ork_weights::pack::Source>(pack: &Pack<S>) -> Option<Vec<u8>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    match pack.write_stub(file.as_file()) {
        Err(PackError::NoMetadata) => return None,
        other => other.unwrap(),
    };
    let mut bytes = Vec::new();
    std::fs::File::open(file.path()).unwrap().read_to_end(&mut bytes).unwrap();
    Some(bytes)
}

#[test]
fn a_stub_has_header_and_kept_tensors_in_their_places() {
    for name in ["v6.orkpack", "v7.orkpack"] {
        let stub = stub(&Pack::open(golden(name)).unwrap()).unwrap();
        // A header of 96 bytes, then the kept tensor: 0 to 31 as f32.
        assert_eq!(stub.len(), 96 + 32 * 4);
        assert!(stub.starts_with(b"GGUF\x03"));
        let floats = stub[96..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        assert!(floats.eq((0..32u8).map(f32::from)));
    }
}

#[test]
fn upgrade_refuses_bytes_that_went_bad() {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours.orkpack");
    let old = Pack::open(golden("v2.orkpack")).unwrap();
    upgrade(&old, &ours, WriterOptions::default(), |_| {}).unwrap();
    let mut bytes = std::fs::read(&ours).unwrap();
    bytes[10] ^= 1;
    let pack = Pack::parse(bytes).unwrap();
    let target = folder.path().join("new.orkpack");
    let error = upgrade(&pack, &target, WriterOptions::default(), |_| {}).unwrap_err();
    assert!(matches!(error, PackError::Checksum { .. }), "{error:?}");
    assert!(!target.exists());
}

#[test]
fn diff_names_each_difference() {
    let first = Pack::parse(RawPack::compact(0).bytes()).unwrap();
    let same = diff(&first, &first, |_| {}).unwrap();
    assert!(same.is_empty() && same.equal == 2);

    let mut raw = RawPack::compact(0);
    raw.data[0] = 7; // one code, 3 before
    raw.data[4096..4100].copy_from_slice(&0.25f32.to_le_bytes()); // one scale, 0.5 before
    raw.entries[1].name = b"d".to_vec();
    let second = Pack::parse(raw.bytes()).unwrap();
    let found = diff(&first, &second, |_| {}).unwrap();
    assert_eq!((&*found.only_first[0], &*found.only_second[0]), ("c", "d"));
    let difference = &found.different[0];
    let (codes, scales) = (difference.codes.unwrap(), difference.scales.unwrap());
    assert_eq!((codes.different, codes.total, codes.largest), (1, 4096, 4.0));
    assert_eq!((scales.different, scales.total, scales.largest), (1, 64, 0.5));

    let mut raw = RawPack::compact(0);
    raw.entries[0].dtype = 6;
    raw.entries[1].k = 32;
    raw.entries[1].n = 64;
    raw.entries[1].blob_bytes = 20 + 4 * 64 + 32 * 64 / 2;
    raw.data.extend([0; 128]);
    let second = Pack::parse(raw.bytes()).unwrap();
    let found = diff(&first, &second, |_| {}).unwrap();
    assert_eq!(found.different[1].shape, Some([(64, 32), (32, 64)]));
    assert_eq!(found.different[0].dtype.unwrap().map(|dtype| dtype.code()), [1, 6]);
    assert_eq!((found.different[0].codes, found.different[0].scales), (None, None));
}

#[test]
fn extracted_arrays_hold_codes_and_scales() {
    let pack = Pack::parse(RawPack::compact(1).bytes()).unwrap();
    for name in ["w", "c"] {
        let entry = pack.get(name).unwrap();
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        pack.write_codes_npy(entry, &mut codes).unwrap();
        pack.write_scales_npy(entry, &mut scales).unwrap();
        let expected: Vec<u8> = pack.codes(entry).unwrap().iter().map(|code| *code as u8).collect();
        assert_eq!(codes[128..], expected);
        assert_eq!(scales[128..].len(), 4 * entry.n as usize);
        let shape = format!("'shape': ({},{},)", entry.n, entry.k);
        assert!(String::from_utf8_lossy(&codes[..128]).contains(&shape));
    }
}
