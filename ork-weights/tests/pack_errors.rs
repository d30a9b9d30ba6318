//! Every way in which a pack is refused, one test for each variant of the error.

mod common;

use common::{RawEntry, RawPack};
use ork_weights::pack::{Dtype, Pack, PackError, PackWriter, Part, WriterOptions};

/// The error of opening these bytes.
#[track_caller]
fn refused(bytes: Vec<u8>) -> PackError {
    let length = bytes.len();
    match Pack::parse(bytes) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            error
        }
        Ok(pack) => panic!("{length} bytes opened as version {}", pack.version()),
    }
}

/// The error of opening the small pack after a change.
#[track_caller]
fn changed(version: u32, change: impl FnOnce(&mut RawPack)) -> PackError {
    let mut pack = RawPack::small(version);
    Pack::parse(pack.bytes()).expect("sound before the change");
    change(&mut pack);
    refused(pack.bytes())
}

macro_rules! assert_refused {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {
        match $error {
            $pattern $(if $guard)? => {}
            other => panic!("{other:?}"),
        }
    };
}

const VERSIONS: std::ops::RangeInclusive<u32> = 1..=7;

#[test]
fn too_short() {
    for length in 0..24 {
        assert_refused!(refused(vec![0; length]), PackError::TooShort { needed: 24, .. });
    }
}

#[test]
fn no_magic() {
    assert_refused!(refused(vec![0; 24]), PackError::NoMagic { bytes: 24 });
    for version in VERSIONS {
        let bytes = RawPack::small(version).bytes();
        // Missing and trailing bytes. Four zeros more are what tells version 3 from 1.
        for cut in [1, 7, 8, 40] {
            let error = refused(bytes[..bytes.len() - cut].to_vec());
            assert_refused!(error, PackError::NoMagic { .. });
        }
        let trailing = [&bytes[..], &[0]].concat();
        assert_refused!(refused(trailing), PackError::NoMagic { .. });
    }
}

#[test]
fn version() {
    for unknown in [0, 9, 3, u32::MAX] {
        let mut bytes = RawPack::small(2).bytes();
        let at = bytes.len() - 12;
        bytes[at..at + 4].copy_from_slice(&unknown.to_le_bytes());
        assert_refused!(refused(bytes), PackError::Version { version } if version == unknown);
    }
    let mut bytes = RawPack::small(3).bytes();
    let at = bytes.len() - 20;
    bytes[at..at + 4].copy_from_slice(&6u32.to_le_bytes());
    assert_refused!(refused(bytes), PackError::Version { version: 6 });
}

#[test]
fn format_token() {
    for version in 3..=7 {
        let error = changed(version, |pack| pack.token = 5);
        assert_refused!(error, PackError::FormatToken { token: 5 });
    }
}

#[test]
fn index_range() {
    for version in VERSIONS {
        for index in [u64::MAX, 1 << 40] {
            let error = changed(version, |pack| pack.index = Some(index));
            assert_refused!(error, PackError::IndexRange { .. });
        }
        let error = changed(version, |pack| {
            pack.index = Some((pack.bytes().len() - pack.footer().len()) as u64);
        });
        assert_refused!(error, PackError::IndexRange { .. });
    }
}

#[test]
fn index_too_large() {
    /// Claims to be 2^40 bytes of zeros before a footer; only its end exists.
    struct Vast(Vec<u8>);
    impl ork_weights::pack::Source for Vast {
        fn size(&self) -> u64 {
            1 << 40
        }
        fn bytes(&self, _: std::ops::Range<u64>) -> Option<&[u8]> {
            None
        }
        fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), PackError> {
            let end = self.size() - self.0.len() as u64;
            assert!(offset >= end, "reads only the footer");
            out.copy_from_slice(&self.0[(offset - end) as usize..][..out.len()]);
            Ok(())
        }
    }
    let mut pack = RawPack::small(2);
    pack.index = Some(0);
    let tail = [vec![0; 64], pack.footer()].concat();
    let error = Pack::parse(Vast(tail)).err().unwrap();
    assert_refused!(error, PackError::IndexTooLarge { .. });
}

#[test]
fn entry_count() {
    for version in VERSIONS {
        for count in [u32::MAX, 1000, 3] {
            let error = changed(version, |pack| pack.count = Some(count));
            assert_refused!(error, PackError::EntryCount { entries, .. } if entries == count);
        }
    }
}

#[test]
fn index_truncated() {
    // Room for two entries by the count, taken by the first one's name.
    for version in VERSIONS {
        let error = changed(version, |pack| {
            pack.entries[0].name = vec![b'n'; 100];
            pack.count = Some(2);
        });
        assert_refused!(error, PackError::IndexTruncated { entry: 1 });
    }
    // A name that runs over the footer.
    let error = changed(2, |pack| {
        pack.entries[0].name = vec![b'n'; 100];
        let mut index = pack.index_bytes();
        index[0] = 200;
        pack.entries.clear();
        pack.count = Some(1);
        pack.after_index = index;
    });
    assert_refused!(error, PackError::IndexTruncated { entry: 0 });
}

#[test]
fn stray_bytes() {
    for version in VERSIONS {
        for bytes in [1, 8, 100] {
            let error = changed(version, |pack| pack.after_index = vec![0; bytes]);
            // Where several forms are tried, the first one's error is told.
            assert_refused!(error, PackError::StrayBytes { bytes: found } if found == bytes as u64);
        }
    }
    // In version 7 a calibration may have left those of the past behind.
    let mut pack = RawPack::small(7);
    pack.after_index = vec![0; 2 * 40];
    pack.calibration = (pack.index_at() + pack.index_bytes().len() as u64 + 40, 1);
    Pack::parse(pack.bytes()).unwrap();
    // Behind the extension nothing belongs either.
    let (mut bytes, _) = extended();
    bytes.splice(bytes.len() - 32..bytes.len() - 32, [0]);
    assert_refused!(refused(bytes), PackError::StrayBytes { bytes: 1 });
}

#[test]
fn name_length() {
    let error = changed(2, |pack| pack.entries[0].name = vec![b'n'; 4097]);
    assert_refused!(error, PackError::NameLength { entry: 0, bytes: 4097, max: 4096 });
}

#[test]
fn name_empty() {
    let error = changed(2, |pack| {
        pack.entries[0].name.clear();
        pack.after_index = vec![0; 8];
    });
    assert_refused!(error, PackError::NameEmpty { entry: 0 });
}

#[test]
fn name_control() {
    for name in [&b"w\0.weight"[..], b"\0", b"a\nb", b"a\x1b[2Jb", b"a\x7f", "a\u{85}b".as_bytes()]
    {
        for version in VERSIONS {
            let error = changed(version, |pack| pack.entries[0].name = name.to_vec());
            let text = error.to_string();
            assert!(!text.chars().any(char::is_control), "{text:?}");
            assert_refused!(error, PackError::NameControl { entry: 0, .. });
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.orkpack");
        let mut writer = PackWriter::create(&path, None, WriterOptions::default()).unwrap();
        let name = std::str::from_utf8(name).unwrap();
        let error = writer.add(name, 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64]).unwrap_err();
        assert_refused!(error, PackError::NameControl { entry: 0, .. });
    }
}

#[test]
fn name_not_utf8() {
    let error = changed(2, |pack| pack.entries[0].name = vec![0xFF, 0xFE]);
    assert_refused!(error, PackError::NameNotUtf8 { entry: 0 });
}

#[test]
fn duplicate_name() {
    let mut pack = RawPack::compact(0);
    pack.entries[1].name = b"w".to_vec();
    assert_refused!(refused(pack.bytes()), PackError::DuplicateName { name } if &*name == "w");
}

#[test]
fn dtype_unknown() {
    for unknown in [2, 3, 8, u32::MAX] {
        let error = changed(2, |pack| pack.entries[0].dtype = unknown);
        assert_refused!(error, PackError::DtypeUnknown { dtype, .. } if dtype == unknown);
    }
}

#[test]
fn shape() {
    for (k, n) in [(0, 64), (64, 0), (0, 0), (33, 64), (64, 33), (u32::MAX, 64), (64, u32::MAX)] {
        for dtype in [0, 1, 4, 5, 6, 7] {
            let error = changed(2, |pack| {
                pack.entries[0] = RawEntry { k, n, dtype, ..pack.entries[0].clone() };
            });
            assert_refused!(error, PackError::Shape { .. });
        }
    }
    // int4 tiles are 64 channels wide.
    for dtype in [5, 7] {
        let error = changed(2, |pack| {
            pack.entries[0] = RawEntry { n: 32, dtype, ..pack.entries[0].clone() };
        });
        assert_refused!(error, PackError::Shape { .. });
    }
}

#[test]
fn size() {
    for dtype in [0, 1, 4, 5, 6, 7] {
        for bytes in [0, 1, 4095, 4097, 4096 + 4095, 1 << 63, u64::MAX] {
            let error = changed(2, |pack| {
                pack.entries[0].dtype = dtype;
                pack.entries[0].blob_bytes = bytes;
            });
            assert_refused!(error, PackError::Size { part: Part::Blob, .. });
        }
    }
    // Shapes whose product would wrap 32 or 64 bits.
    for (k, n) in [(1 << 16, 1 << 16), (1 << 31, 1 << 31), (0xFFFF_FFE0, 0xFFFF_FFC0)] {
        for dtype in [1, 4, 5, 6, 7] {
            let error = changed(2, |pack| {
                pack.entries[0] = RawEntry { k, n, dtype, ..pack.entries[0].clone() };
            });
            assert_refused!(error, PackError::Size { part: Part::Blob, .. });
        }
    }
    // A compact blob has a header of its own and never a stamp.
    let mut pack = RawPack::compact(0);
    pack.entries[1].blob_bytes += 4096;
    assert_refused!(refused(pack.bytes()), PackError::Size { part: Part::Blob, .. });
}

#[test]
fn size_of_the_full_k_copy() {
    for version in 4..=7 {
        for full_k in [1, 4095, 4097, u64::MAX] {
            let error = changed(version, |pack| pack.entries[0].full_k = full_k);
            assert_refused!(error, PackError::Size { part: Part::FullK, expected: 4096, .. });
        }
        let error = changed(version, |pack| {
            pack.entries[0].dtype = 6;
            pack.entries[0].full_k = 4096;
        });
        assert_refused!(error, PackError::Size { part: Part::FullK, expected: 0, .. });
    }
}

#[test]
fn scale_count() {
    for (dtype, counts) in
        [(1, &[0, 1, 63, 65, 128, u32::MAX][..]), (6, &[0, 1, 63, 65, 64 * 3, 64 * 65, u32::MAX])]
    {
        for count in counts {
            let error = changed(2, |pack| {
                pack.entries[0].dtype = dtype;
                pack.entries[0].scales = *count;
            });
            assert_refused!(error, PackError::ScaleCount { .. });
        }
    }
    let mut pack = RawPack::compact(0);
    pack.entries[1].scales = 32;
    assert_refused!(refused(pack.bytes()), PackError::ScaleCount { count: 32, .. });
}

#[test]
fn range() {
    for (offset, part) in [(4352 - 4095, Part::Blob), (u64::MAX, Part::Blob), (1 << 40, Part::Blob)]
    {
        let error = changed(2, |pack| pack.entries[0].blob = offset);
        assert_refused!(error, PackError::Range { part: found, .. } if found == part);
    }
    for offset in [4097, 4352, u64::MAX - 3, u64::MAX] {
        let error = changed(2, |pack| pack.entries[0].scales_at = offset);
        assert_refused!(error, PackError::Range { part: Part::Scales, .. });
    }
    let error = changed(4, |pack| pack.entries[0].full_k = 4096);
    assert_refused!(error, PackError::Range { part: Part::FullK, offset: 4096, .. });
}

#[test]
fn overlap() {
    let error = changed(2, |pack| pack.entries[0].scales_at = 4092);
    assert_refused!(error, PackError::Overlap { offset: 4092, .. });
    let mut pack = RawPack::compact(0);
    pack.entries[1].blob -= 4;
    assert_refused!(refused(pack.bytes()), PackError::Overlap { second, .. } if &*second == "c");
    // Two weights on the same bytes.
    let mut pack = RawPack::small(2);
    pack.entries.push(RawEntry { name: b"v".to_vec(), ..pack.entries[0].clone() });
    assert_refused!(refused(pack.bytes()), PackError::Overlap { offset: 0, .. });
    // Metadata over scales.
    let error = changed(7, |pack| pack.metadata = (4300, 20));
    assert_refused!(error, PackError::Overlap { .. });
}

#[test]
fn metadata_range() {
    for metadata in [(4353, 1), (0, 4353), (u64::MAX, 1), (1, u64::MAX)] {
        for version in [6, 7] {
            let error = changed(version, |pack| pack.metadata = metadata);
            assert_refused!(error, PackError::MetadataRange { limit: 4352, .. });
        }
    }
}

/// The small pack with a metadata section: a source of 100 bytes, a header of 10, one tensor.
fn with_metadata(section: &[u8]) -> Pack<Vec<u8>> {
    let mut pack = RawPack::small(7);
    pack.metadata = (pack.index_at(), section.len() as u64);
    pack.data.extend(section);
    Pack::parse(pack.bytes()).unwrap()
}

fn metadata_section(total: u64, header: u64, count: u32, tensors: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(total.to_le_bytes());
    out.extend(header.to_le_bytes());
    out.extend(b"0123456789");
    out.extend(count.to_le_bytes());
    for (offset, bytes) in tensors {
        out.extend(offset.to_le_bytes());
        out.extend(bytes.to_le_bytes());
        out.extend(std::iter::repeat_n(9, *bytes as usize % 1000));
    }
    out
}

#[test]
fn metadata() {
    let good =
        with_metadata(&metadata_section(100, 10, 1, &[(40, 8)])).metadata().unwrap().unwrap();
    assert_eq!(good.source_bytes, 100);
    assert_eq!(good.kept.len(), 1);
    let end = good.kept[0].range.end;
    assert_eq!(good.kept[0].range, end - 8..end);
    for section in [
        metadata_section(9, 10, 0, &[]),     // header larger than the source
        metadata_section(100, 1000, 0, &[]), // header past the section
        metadata_section(100, u64::MAX, 0, &[]), // and past everything
        metadata_section(100, 10, u32::MAX, &[]), // more tensors than bytes
        metadata_section(100, 10, 2, &[(40, 8)]), // one tensor missing
        metadata_section(100, 10, 0, &[(40, 8)]), // one too many
        metadata_section(100, 10, 1, &[(93, 8)]), // tensor past the source
        metadata_section(100, 10, 1, &[(u64::MAX, 8)]),
        metadata_section(u64::MAX, 10, 1, &[(40, 1008)]), // tensor past the section
        metadata_section(100, 10, 1, &[(40, 8)])[..9].to_vec(),
        vec![0; 3],
    ] {
        let error = with_metadata(&section).metadata().unwrap_err();
        assert_refused!(error, PackError::Metadata { .. });
    }
}

#[test]
fn no_metadata() {
    let pack = Pack::parse(RawPack::small(7).bytes()).unwrap();
    assert!(pack.metadata().unwrap().is_none());
    assert_eq!(pack.metadata_range(), None);
}

#[test]
fn calibration_range() {
    let small = RawPack::small(7);
    let index_end = small.index_at() + small.index_bytes().len() as u64;
    for (offset, rows) in [(index_end - 1, 1), (index_end, 2), (u64::MAX, 1), (0, 1), (1, u32::MAX)]
    {
        let error = changed(7, |pack| {
            pack.after_index = vec![0; 24 + 16];
            pack.calibration = (offset, rows);
        });
        assert_refused!(error, PackError::CalibrationRange { .. });
    }
    let mut pack = RawPack::small(7);
    pack.after_index = vec![7; 24 + 16];
    pack.calibration = (index_end, 1);
    let pack = Pack::parse(pack.bytes()).unwrap();
    assert_eq!(pack.calibration().unwrap().rows[0].value, 0x0707_0707);
}

/// A pack of this library, as bytes, and where its extension starts.
fn extended() -> (Vec<u8>, usize) {
    use ork_weights::pack::{Identity, PackWriter, WriterOptions};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.orkpack");
    let model = Identity { size: 1, modified_ns: 2, sample_hash: 3, full_hash: Some(4) };
    let mut writer = PackWriter::create(&path, &model, WriterOptions::default()).unwrap();
    writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64]).unwrap();
    writer.finish().unwrap();
    let bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(8).position(|window| window == b"ORKEXT01").unwrap();
    (bytes, at)
}

#[test]
fn a_damaged_magic_is_no_pack_without_identity() {
    use ork_weights::pack::{PackWriter, WriterOptions};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.orkpack");
    for version in [2, 5, 7] {
        let options = WriterOptions { version, replace: true, ..WriterOptions::default() };
        let mut writer = PackWriter::create(&path, None, options).unwrap();
        writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64]).unwrap();
        writer.finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let at = whole.windows(8).position(|window| window == b"ORKEXT01").unwrap();
        for byte in 0..8 {
            let mut bytes = whole.clone();
            bytes[at + byte] ^= 0x20;
            refused(bytes.clone());
            if version == 7 {
                // A calibration takes the footer's place, and makes other bytes legal behind the index.
                let footer = bytes.split_off(bytes.len() - 48);
                let calibration = bytes.len() as u64;
                bytes.extend([0; 40]);
                bytes.extend(&footer[..24]);
                bytes.extend(calibration.to_le_bytes());
                bytes.extend(1u32.to_le_bytes());
                bytes.extend([0; 4]);
                bytes.extend(b"ORKPK01\0");
                let error = refused(bytes.clone());
                assert_refused!(&error, PackError::Extension { reason } if reason.contains("magic"));
                bytes[at + byte] ^= 0x20;
                Pack::parse(bytes).unwrap();
            }
        }
    }
}

#[test]
fn gap() {
    use ork_weights::pack::{PackWriter, WriterOptions, verify};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default()).unwrap();
    for name in ["a", "b"] {
        writer.add(name, 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64]).unwrap();
    }
    writer.finish().unwrap();
    let whole = std::fs::read(&path).unwrap();
    assert!(verify(&Pack::parse(whole.clone()).unwrap(), &|_| {}).is_sound());
    // Behind the scales of each weight, up to the next page.
    for at in [4096 + 256, 8191, 8192 + 4096 + 256, 4 * 4096 - 1] {
        let mut bytes = whole.clone();
        bytes[at] = 1;
        let problems = verify(&Pack::parse(bytes).unwrap(), &|_| {}).problems;
        assert_refused!(&problems[..], [PackError::Gap { offset }] if *offset == at as u64);
    }
    // Other programs promise nothing of that kind.
    let mut foreign = RawPack::small(2);
    foreign.data.extend([5; 100]);
    assert!(verify(&Pack::parse(foreign.bytes()).unwrap(), &|_| {}).is_sound());
}

/// Changes a field of the extension and makes its checksum fit again.
fn with_extension_field(offset: usize, value: &[u8]) -> Vec<u8> {
    let (mut bytes, at) = extended();
    bytes[at + offset..at + offset + value.len()].copy_from_slice(value);
    let end = bytes.len() - 32 - 8;
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[at..end]);
    bytes[end..end + 8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn extension_version() {
    let bytes = with_extension_field(16, &3u32.to_le_bytes());
    assert_refused!(refused(bytes), PackError::ExtensionVersion { version: 3 });
    // One that speaks of a list and has none.
    let bytes = with_extension_field(16, &2u32.to_le_bytes());
    assert_refused!(refused(bytes), PackError::Extension { .. });
}

#[test]
fn layout_id() {
    let bytes = with_extension_field(40, &[0; 4]);
    assert_refused!(refused(bytes), PackError::LayoutId { found: 0, .. });
}

#[test]
fn incomplete() {
    let bytes = with_extension_field(44, &5u32.to_le_bytes());
    assert_refused!(refused(bytes), PackError::Incomplete { present: 1, expected: 5 });
}

#[test]
fn extension() {
    let (bytes, at) = extended();
    // Any byte after the magic and the version, and any byte of the index.
    for place in (at + 20..bytes.len() - 32).chain(at - 45..at).chain(at + 8..at + 16) {
        let mut bytes = bytes.clone();
        bytes[place] ^= 0x40;
        let error = refused(bytes);
        if place >= at {
            assert_refused!(error, PackError::Extension { .. });
        }
    }
    let bytes = with_extension_field(56, &[0; 8]);
    assert_refused!(refused(bytes), PackError::Extension { .. });
}

#[test]
fn rotation() {
    // The last field of the one weight's row, in front of the checksum and the footer.
    let folder = tempfile::tempdir().unwrap();
    for (dtype, known) in [(Dtype::RotatedInt8, Some(64)), (Dtype::Int8, None)] {
        let path = folder.path().join(dtype.name());
        let mut writer = PackWriter::create(&path, None, WriterOptions::default()).unwrap();
        writer.add("w", 64, 64, dtype, &[1; 4096], &[0.5; 64]).unwrap();
        writer.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let end = bytes.len() - 32 - 8;
        let start = bytes.windows(8).rposition(|window| window == b"ORKEXT01").unwrap();
        let with = |block: u32| {
            let mut bytes = bytes.clone();
            bytes[end - 4..end].copy_from_slice(&block.to_le_bytes());
            let sum = xxhash_rust::xxh3::xxh3_64(&bytes[start..end]);
            bytes[end..end + 8].copy_from_slice(&sum.to_le_bytes());
            Pack::parse(bytes)
        };
        assert_eq!(u32::from_le_bytes(bytes[end - 4..end].try_into().unwrap()), known.unwrap_or(0));
        let pack = with(0).unwrap(); // as older versions wrote it
        assert_eq!(pack.entries()[0].rotation(), known);
        let error = with(32).unwrap_err();
        assert!(error.to_string().contains("blocks of 32"), "{error}");
        assert_refused!(error, PackError::Rotation { rotation: 32, known: k, .. } if k == known);
    }
}

#[test]
fn no_codes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default()).unwrap();
    writer.add("w", 64, 32, Dtype::Fp16, &[1; 4096], &[]).unwrap();
    writer.finish().unwrap();
    let pack = Pack::open(&path).unwrap();
    let error = pack.codes(&pack.entries()[0]).unwrap_err();
    assert_refused!(error, PackError::NoCodes { dtype: Dtype::Fp16, .. });
}

#[test]
fn stamp() {
    let mut pack = RawPack::small(7);
    let mut page = Vec::new();
    for field in [0x4B50_414F, 0, 0x5B87_5632, 1, 64, 64, 4096, 0u32] {
        page.extend(field.to_le_bytes());
    }
    page.extend(b"rk3588");
    page.resize(4096, 0);
    pack.data = [&page[..], &pack.data].concat();
    pack.entries[0].blob_bytes = 8192;
    pack.entries[0].scales_at += 4096;
    let load = |pack: &RawPack| {
        let pack = Pack::parse(pack.bytes()).unwrap();
        let entry = &pack.entries()[0];
        assert!(entry.is_stamped());
        let mut tiles = vec![0; 4096];
        pack.load_into(entry, &mut tiles).and_then(|()| pack.codes(entry)).map(|_| tiles)
    };
    assert_eq!(load(&pack).unwrap(), [3; 4096]);
    for (index, name) in
        ["magic", "format token", "capability id", "dtype", "K", "N", "header size"]
            .iter()
            .enumerate()
    {
        let mut pack = pack.clone();
        pack.data[4 * index] ^= 0x80;
        assert_refused!(load(&pack).unwrap_err(), PackError::Stamp { field, .. } if field == *name);
    }
}

#[test]
fn o4n1() {
    let load = |pack: &RawPack| {
        let pack = Pack::parse(pack.bytes()).unwrap();
        let entry = pack.get("c").unwrap();
        let loaded = pack.load_into(entry, &mut [0; 4096]);
        assert_eq!(loaded.is_err(), pack.scales(entry).is_err());
        assert_eq!(loaded.is_err(), pack.codes(entry).is_err());
        loaded
    };
    for kind in [0, 1] {
        load(&RawPack::compact(kind)).unwrap();
    }
    let pack = RawPack::compact(0);
    let at = pack.entries[1].blob as usize;
    for (index, name) in ["magic", "version", "K", "N", "quantisation kind"].iter().enumerate() {
        let mut pack = pack.clone();
        pack.data[at + 4 * index] ^= 2;
        assert_refused!(load(&pack).unwrap_err(), PackError::O4n1 { field, .. } if field == *name);
    }
    // Both versions that packers may have written.
    let mut pack = pack;
    pack.data[at + 4] = 1;
    load(&pack).unwrap();
}

#[test]
fn scale_value() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, -f32::MIN_POSITIVE] {
        let mut pack = RawPack::small(2);
        pack.data[4096 + 4 * 17..][..4].copy_from_slice(&bad.to_le_bytes());
        let pack = Pack::parse(pack.bytes()).unwrap();
        let error = pack.scales(&pack.entries()[0]).unwrap_err();
        assert_refused!(error, PackError::ScaleValue { index: 17, .. });
        let report = ork_weights::pack::verify(&pack, &|_| {});
        assert_refused!(&report.problems[..], [PackError::ScaleValue { .. }]);
    }
}

#[test]
fn checksum() {
    let (bytes, _) = extended();
    for (place, wanted) in [(0, Part::Blob), (4095, Part::Blob), (4096, Part::Scales)] {
        let mut bytes = bytes.clone();
        bytes[place] ^= 1;
        let pack = Pack::parse(bytes).unwrap();
        let report = ork_weights::pack::verify(&pack, &|_| {});
        assert_refused!(&report.problems[..], [PackError::Checksum { part, .. }] if *part == wanted);
    }
}

#[test]
fn output_length() {
    let pack = Pack::parse(RawPack::small(2).bytes()).unwrap();
    for length in [0, 4095, 4097] {
        let error = pack.load_into(&pack.entries()[0], &mut vec![0; length]).unwrap_err();
        assert_refused!(error, PackError::OutputLength { expected: 4096, .. });
    }
}

#[test]
fn dtype_0_is_int8_by_size() {
    let mut pack = RawPack::small(7);
    pack.entries[0].dtype = 0;
    let pack = Pack::parse(pack.bytes()).unwrap();
    assert_eq!(pack.entries()[0].dtype, Dtype::Int8);
    let error = changed(7, |pack| {
        pack.entries[0].dtype = 0;
        pack.entries[0].blob_bytes = 2048;
    });
    assert_refused!(error, PackError::Size { .. });
}
