//! Memory that opening a pack takes, whatever the pack says of itself. Alone in its process, and in
//! one test, because the allocator counts for the whole program.

mod common;

use common::{RawEntry, RawPack};
use ork_weights::pack::{Pack, PackError};

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

/// Bytes for each byte of the file. An entry takes 44 bytes of an index and a name of one at least;
/// in memory 200 or so, its name, and its places in the tables by name and by range.
const PER_BYTE: u64 = 5;

/// Bytes whatever the file: messages, the footer.
const FIXED: u64 = 8 << 10;

/// Opens `file` and asks for all that is read on request; memory must stay within bounds.
fn bounded(file: &[u8], what: &dyn Fn() -> String) -> bool {
    let (opened, peak) = ratio::peak_bytes(|| match Pack::parse(file) {
        Ok(pack) => {
            let _ = pack.metadata();
            for entry in pack.entries().iter().take(2) {
                let _ = pack.scales(entry);
            }
            true
        }
        Err(_) => false,
    });
    let bound = PER_BYTE * file.len() as u64 + FIXED;
    assert!(peak <= bound, "{}: {peak} bytes for a file of {}", what(), file.len());
    opened
}

/// An index of `count` entries that all claim the same weight, or each its own.
fn many(count: u32, own: bool) -> RawPack {
    let mut pack = RawPack::compact(0);
    let compact: RawEntry = pack.entries[1].clone();
    let blob = pack.data[compact.blob as usize..].to_vec();
    pack.data.clear();
    pack.entries.clear();
    for i in 0..count {
        let at = pack.data.len() as u64;
        if own || i == 0 {
            pack.data.extend(&blob);
        }
        let blob = if own { at } else { 0 };
        pack.entries.push(RawEntry { name: i.to_string().into_bytes(), blob, ..compact.clone() });
    }
    pack
}

#[test]
fn memory_is_bounded_by_the_size_of_the_file() {
    // Every field of every version, in turn, as large as it can be or nearly.
    for version in 1..=7 {
        for pack in [RawPack::small(version), RawPack { version, ..RawPack::compact(1) }] {
            let sound = pack.bytes();
            assert!(bounded(&sound, &|| format!("version {version}")));
            for at in pack.index_at() as usize..sound.len() - 3 {
                for value in [u32::MAX, 0x7fff_ffff, 0x00ff_ffff, 100_000] {
                    let mut bad = sound.clone();
                    bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
                    bounded(&bad, &|| format!("version {version}, {value:#x} at {at}"));
                }
            }
        }
    }

    // Counts of entries, measurements and embedded tensors that the bytes could not hold.
    for version in 1..=7 {
        for count in [100_000, 1 << 24, u32::MAX] {
            let bad = RawPack { count: Some(count), ..RawPack::small(version) };
            assert!(!bounded(&bad.bytes(), &|| format!("version {version}, {count} entries")));
            let bad = RawPack { calibration: (4096, count), ..RawPack::small(version) };
            bounded(&bad.bytes(), &|| format!("version {version}, {count} measurements"));
            let mut bad = RawPack { metadata: (0, 4096), ..RawPack::small(version) };
            bad.data[..4].copy_from_slice(&count.to_le_bytes());
            bounded(&bad.bytes(), &|| format!("version {version}, {count} tensors"));
        }
    }

    // 100,000 entries, sound; and in a file that holds little but them.
    let sound = many(100_000, true).bytes();
    assert!(bounded(&sound, &|| "100,000 weights".into()));
    let bad = many(100_000, false).bytes();
    assert!(matches!(Pack::parse(&bad), Err(PackError::Overlap { .. })));
    bounded(&bad, &|| "100,000 names of one weight".into());

    // Read by position, the index is in memory besides, and nothing else is.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.orkpack");
    std::fs::write(&path, &bad).unwrap();
    let (opened, peak) = ratio::peak_bytes(|| Pack::open(&path).is_ok());
    assert!(!opened && peak <= (PER_BYTE + 1) * bad.len() as u64 + FIXED, "{peak} bytes");
}
