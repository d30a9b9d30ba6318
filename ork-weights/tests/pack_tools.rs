//! Upgrading packs that another program wrote.

mod common;

use std::path::{Path, PathBuf};

use common::same_weights;
use ork_weights::pack::{Pack, PackError, Source, WriterOptions, upgrade, verify};

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
        for version in [2, 3, 5, 7] {
            let path = folder.path().join(format!("{name}-{version}.orkpack"));
            let options = WriterOptions { version, ..WriterOptions::default() };
            let mut seen = 0;
            let summary = upgrade(&old, &path, options, |_| seen += 1).unwrap();
            assert_eq!((seen, summary.weights as usize), (old.entries().len(), seen));
            let new = Pack::open(&path).unwrap();
            assert_eq!(new.version(), version);
            assert!(same_weights(&old, &new), "{name} to {version}");
            let report = verify(&new, &|_| {});
            assert!(report.is_sound() && report.checksummed == seen);
            if version > 3 {
                assert_eq!(new.signature(), old.signature());
            }
            // The embedded GGUF survives in every version, byte for byte.
            assert_eq!(embedded(&old), embedded(&new), "{name} to {version}");
        }
    }
}

/// The embedded parts of the source, as the pack holds them.
fn embedded<S: Source>(pack: &Pack<S>) -> Option<Vec<u8>> {
    let range = pack.metadata_range()?;
    let mut bytes = vec![0; (range.end - range.start) as usize];
    pack.source().read_at(range.start, &mut bytes).unwrap();
    Some(bytes)
}

#[test]
fn embedded_parts_are_a_header_and_tensors_with_their_places() {
    for name in ["v6.orkpack", "v7.orkpack"] {
        let pack = Pack::open(golden(name)).unwrap();
        let metadata = pack.metadata().unwrap().unwrap();
        // A header of 96 bytes, then the kept tensor: 0 to 31 as f32.
        assert_eq!(metadata.source_bytes, 96 + 32 * 4);
        let read = |range: std::ops::Range<u64>| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            pack.source().read_at(range.start, &mut bytes).unwrap();
            bytes
        };
        assert!(read(metadata.header).starts_with(b"GGUF\x03"));
        let [kept] = &metadata.kept[..] else { panic!("{:?}", metadata.kept) };
        assert_eq!(kept.source_offset, 96);
        let tensor = read(kept.range.clone());
        let floats = tensor.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
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
