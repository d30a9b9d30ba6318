//! The writer on disks that fail, and its refusals.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::*;
use crate::pack::{Pack, verify};

const MODEL: Identity =
    Identity { size: 1 << 30, modified_ns: 77, sample_hash: 0xABCD, full_hash: None };
const OTHER: Identity = Identity { sample_hash: 0xABCE, ..MODEL };

/// A disk on which one operation fails, after half of the bytes when it is a write.
struct Failing {
    disk: Os,
    /// Operations done, shared with the test.
    done: Arc<AtomicUsize>,
    at: usize,
    kind: ErrorKind,
}

impl Failing {
    fn step(&mut self) -> io::Result<()> {
        match self.done.fetch_add(1, Relaxed) == self.at {
            true => Err(self.kind.into()),
            false => Ok(()),
        }
    }
}

impl Disk for Failing {
    fn write_at(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(error) = self.step() {
            self.disk.write_at(file, &bytes[..bytes.len() / 2], offset)?;
            return Err(error);
        }
        self.disk.write_at(file, bytes, offset)
    }
    fn set_len(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        self.step().and_then(|()| self.disk.set_len(file, bytes))
    }
    fn sync(&mut self, file: &File) -> io::Result<()> {
        self.step().and_then(|()| self.disk.sync(file))
    }
    fn rename(&mut self, from: &Path, to: &Path, fresh: bool) -> io::Result<()> {
        self.step().and_then(|()| self.disk.rename(from, to, fresh))
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.step().and_then(|()| self.disk.remove(path))
    }
}

fn weight(number: u32) -> (String, Vec<u8>, Vec<f32>) {
    let blob = (0..4096u32).map(|i| ((i * (number + 3)) >> 3) as u8).collect();
    (format!("blk.{number}.w"), blob, vec![number as f32 + 0.5; 64])
}

/// A weight as [`weight`] makes them.
fn header(name: &str) -> WeightHeader<'_> {
    WeightHeader { name, k: 64, n: 64, dtype: Dtype::Int8 }
}

/// Writes three weights, those that are not there yet, and a compact one.
fn convert(mut writer: PackWriter) -> Result<Summary> {
    for number in 0..3 {
        let (name, blob, scales) = weight(number);
        if writer.contains(&name) {
            continue;
        }
        if number == 1 {
            // In pieces, the later one first.
            let mut weight = writer.begin(header(&name))?;
            weight.write_at(1000, &blob[1000..])?;
            weight.write_at(0, &blob[..1000])?;
            weight.finish(&scales, None)?;
        } else {
            writer.add(&name, 64, 64, Dtype::Int8, &blob, &scales)?;
        }
    }
    if !writer.contains("c") {
        let mut blob = crate::pack::o4n1_header(64, 32, crate::pack::Codebook::Nf4).to_vec();
        blob.extend((0..32).flat_map(|_| 0.25f32.to_le_bytes()));
        blob.extend([0x5A; 1024]);
        writer.add("c", 64, 32, Dtype::O4n1, &blob, &[])?;
    }
    writer.finish()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn options() -> WriterOptions {
    WriterOptions { recipe: 9, ..WriterOptions::default() }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_operation_may_fail() {
    let reference = folder();
    let target = reference.path().join("m.orkpack");
    convert(PackWriter::create(&target, &MODEL, options()).unwrap()).unwrap();
    let whole = fs::read(&target).unwrap();
    assert_eq!(names(reference.path()), ["m.orkpack"]);

    for kind in [ErrorKind::StorageFull, ErrorKind::Other, ErrorKind::ReadOnlyFilesystem] {
        for old in [None, Some(whole.clone())] {
            let mut at = 0;
            loop {
                let folder = folder();
                let target = folder.path().join("m.orkpack");
                if let Some(old) = &old {
                    fs::write(&target, old).unwrap();
                }
                let done = Arc::new(AtomicUsize::new(0));
                let disk = Failing { disk: Os, done: done.clone(), at, kind };
                let written = PackWriter::on(Box::new(disk), &target, Some(&MODEL), options())
                    .and_then(convert);
                if done.load(Relaxed) <= at {
                    written.unwrap();
                    break;
                }
                // Old or new, never anything else; and a second run brings the new one.
                match fs::read(&target) {
                    Ok(bytes) => assert_eq!(bytes, whole, "operation {at}"),
                    Err(error) => assert_eq!((error.kind(), &old), (ErrorKind::NotFound, &None)),
                }
                if let Err(error) = written {
                    assert!(matches!(error, PackError::Io { .. }), "operation {at}: {error:?}");
                }
                let again = PackWriter::create(&target, &MODEL, options()).unwrap();
                convert(again).unwrap();
                assert_eq!(fs::read(&target).unwrap(), whole, "operation {at}");
                assert_eq!(names(folder.path()), ["m.orkpack"], "operation {at}");
                at += 1;
            }
            assert!(at > 20, "only {at} operations were seen");
        }
    }
}

#[test]
fn a_failed_add_leaves_the_writer_usable() {
    let reference = folder();
    let target = reference.path().join("m.orkpack");
    convert(PackWriter::create(&target, &MODEL, options()).unwrap()).unwrap();
    let whole = fs::read(&target).unwrap();
    // Operations of create: cut the partial, write and cut the journal. Then a weight's writes.
    for at in 3..6 {
        let folder = folder();
        let target = folder.path().join("m.orkpack");
        let done = Arc::new(AtomicUsize::new(0));
        let disk = Failing { disk: Os, done, at, kind: ErrorKind::StorageFull };
        let mut writer = PackWriter::on(Box::new(disk), &target, Some(&MODEL), options()).unwrap();
        let (name, blob, scales) = weight(0);
        writer.add(&name, 64, 64, Dtype::Int8, &blob, &scales).unwrap_err();
        assert!(writer.is_empty());
        convert(writer).unwrap();
        assert_eq!(fs::read(&target).unwrap(), whole);
    }
}

/// A folder with an interrupted conversion of three weights of [`MODEL`].
fn interrupted() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    let mut writer = PackWriter::create(&target, &MODEL, options()).unwrap();
    for number in 0..3 {
        let (name, blob, scales) = weight(number);
        writer.add(&name, 64, 64, Dtype::Int8, &blob, &scales).unwrap();
    }
    drop(writer);
    assert_eq!(names(folder.path()), ["m.orkpack.journal", "m.orkpack.partial"]);
    (folder, target)
}

#[test]
fn an_interrupted_conversion_goes_on() {
    let (_folder, target) = interrupted();
    let writer = PackWriter::create(&target, &MODEL, options()).unwrap();
    assert_eq!((writer.resumed(), writer.len()), (3, 3));
    assert_eq!(convert(writer).unwrap().resumed, 3);
    assert!(verify(&Pack::open(&target).unwrap(), &|_| {}).is_sound());
}

#[test]
fn only_what_is_whole_is_taken_over() {
    // A byte of the second weight's codes, of its scales; the file cut in the third.
    type Damage = fn(&mut Vec<u8>);
    let damages: [(Damage, u32); 4] = [
        (|bytes| bytes[8192 + 5] ^= 1, 1),
        (|bytes| bytes[8192 + 4096] ^= 1, 1),
        (|bytes| bytes.truncate(16384 + 100), 2),
        (Vec::clear, 0),
    ];
    for (damage, good) in damages {
        let (folder, target) = interrupted();
        let partial = folder.path().join("m.orkpack.partial");
        let mut bytes = fs::read(&partial).unwrap();
        damage(&mut bytes);
        fs::write(&partial, bytes).unwrap();
        let writer = PackWriter::create(&target, &MODEL, options()).unwrap();
        assert_eq!(writer.resumed(), good);
        convert(writer).unwrap();
        assert!(verify(&Pack::open(&target).unwrap(), &|_| {}).is_sound());
    }
}

#[test]
fn a_damaged_journal_is_good_up_to_the_damage() {
    let (folder, _) = interrupted();
    let journal = fs::read(folder.path().join("m.orkpack.journal")).unwrap();
    let length = journal.len();
    let mut seen = [0; 4];
    for at in 0..length {
        let (folder, target) = interrupted();
        let mut damaged = journal.clone();
        match at % 2 {
            0 => damaged[at] ^= 0x10,
            _ => damaged.truncate(at),
        }
        fs::write(folder.path().join("m.orkpack.journal"), damaged).unwrap();
        let writer = PackWriter::create(&target, &MODEL, options()).unwrap();
        seen[writer.resumed() as usize] += 1;
        convert(writer).unwrap();
    }
    assert!(seen[0] > 96 && seen[1] > 0 && seen[2] > 0 && seen[3] == 0, "{seen:?}");
}

#[test]
fn partial_differs() {
    let (folder, target) = interrupted();
    for (identity, options) in [
        (OTHER, options()),
        (MODEL, WriterOptions { recipe: 10, ..options() }),
        (MODEL, WriterOptions { version: 5, ..options() }),
    ] {
        let refused = PackWriter::create(&target, &identity, options.clone()).unwrap_err();
        assert!(matches!(refused, PackError::PartialDiffers { .. }), "{refused:?}");
        assert_eq!(names(folder.path()), ["m.orkpack.journal", "m.orkpack.partial"]);
    }
    let options = WriterOptions { replace: true, ..options() };
    let writer = PackWriter::create(&target, &OTHER, options).unwrap();
    assert_eq!(writer.resumed(), 0);
    writer.abandon().unwrap();
    assert!(names(folder.path()).is_empty());
}

#[test]
fn without_an_identity_nothing_is_kept() {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    let mut writer = PackWriter::create(&target, None, options()).unwrap();
    let (name, blob, scales) = weight(0);
    writer.add(&name, 64, 64, Dtype::Int8, &blob, &scales).unwrap();
    drop(writer);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn locked() {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    let first = PackWriter::create(&target, &MODEL, options()).unwrap();
    let second = PackWriter::create(&target, &MODEL, options()).unwrap_err();
    assert!(matches!(second, PackError::Locked { .. }), "{second:?}");
    drop(first);
    PackWriter::create(&target, &MODEL, options()).unwrap();
}

#[test]
fn target_exists() {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    let refused = |identity: Option<&Identity>, options: WriterOptions| {
        let before = fs::read(&target).unwrap();
        let error = PackWriter::create(&target, identity, options.clone()).unwrap_err();
        assert!(matches!(error, PackError::TargetExists { .. }), "{error:?}");
        assert_eq!(fs::read(&target).unwrap(), before);
        assert_eq!(names(folder.path()), ["m.orkpack"]);
        PackWriter::create(&target, identity, WriterOptions { replace: true, ..options }).unwrap();
    };
    fs::write(&target, "not a pack").unwrap();
    refused(Some(&MODEL), options());
    // Without identity: written by another program.
    let replace = WriterOptions { replace: true, ..options() };
    convert(PackWriter::create(&target, None, replace.clone()).unwrap()).unwrap();
    refused(Some(&MODEL), options());
    convert(PackWriter::create(&target, &MODEL, replace).unwrap()).unwrap();
    refused(Some(&OTHER), options());
    refused(None, options());
    refused(Some(&MODEL), WriterOptions { recipe: 8, ..options() });
    // The same again is no loss, at another time or in another version neither.
    let touched = Identity { modified_ns: 78, ..MODEL };
    convert(PackWriter::create(&target, &touched, options()).unwrap()).unwrap();
    let version = WriterOptions { version: 7, ..options() };
    convert(PackWriter::create(&target, &MODEL, version).unwrap()).unwrap();
    assert_eq!(Pack::open(&target).unwrap().version(), 7);
}

#[test]
fn target_exists_with_other_shapes() {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    convert(PackWriter::create(&target, &MODEL, options()).unwrap()).unwrap();
    let before = fs::read(&target).unwrap();
    let mut writer = PackWriter::create(&target, &MODEL, options()).unwrap();
    writer.add("blk.0.w", 32, 64, Dtype::Int8, &[0; 4096], &[1.0; 64]).unwrap();
    let error = writer.finish().unwrap_err();
    assert!(error.to_string().contains("K=64 N=64, the new pack as K=32 N=64"), "{error}");
    assert_eq!(fs::read(&target).unwrap(), before);
}

#[test]
fn target_exists_since_a_moment() {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    let writer = PackWriter::create(&target, &MODEL, options()).unwrap();
    fs::write(&target, "somebody's").unwrap();
    let error = convert(writer).unwrap_err();
    assert!(matches!(error, PackError::TargetExists { .. }), "{error:?}");
    assert_eq!(fs::read(&target).unwrap(), b"somebody's");
}

#[test]
fn the_kernel_refuses_to_rename_over_a_new_file() {
    let folder = folder();
    let (from, to) = (folder.path().join("a"), folder.path().join("b"));
    fs::write(&from, "new").unwrap();
    fs::write(&to, "old").unwrap();
    Os.rename(&from, &to, true).unwrap_err();
    assert_eq!(fs::read(&to).unwrap(), b"old");
    Os.rename(&from, &to, false).unwrap();
    assert_eq!(fs::read(&to).unwrap(), b"new");
}

#[test]
fn write_version() {
    let folder = folder();
    for version in [0, 1, 4, 6, 8] {
        let options = WriterOptions { version, ..options() };
        let error = PackWriter::create(folder.path().join("m"), &MODEL, options).unwrap_err();
        assert!(matches!(error, PackError::WriteVersion { .. }), "{error:?}");
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn incomplete() {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    let options = WriterOptions { expected: Some(5), ..options() };
    let error = convert(PackWriter::create(&target, &MODEL, options).unwrap()).unwrap_err();
    assert!(matches!(error, PackError::Incomplete { present: 4, expected: 5 }), "{error:?}");
    assert!(!target.exists());
}

#[test]
fn weights_that_do_not_agree_are_refused() {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    let mut writer = PackWriter::create(&target, &MODEL, options()).unwrap();
    let mut add = |name: &str, k, n, dtype, blob: usize, scales: &[f32]| {
        writer.add(name, k, n, dtype, &vec![0; blob], scales).unwrap_err()
    };
    let ones = [1.0; 64];
    use PackError as E;
    assert!(matches!(add("", 64, 64, Dtype::Int8, 4096, &ones), E::NameEmpty { .. }));
    let long = "n".repeat(4097);
    assert!(matches!(add(&long, 64, 64, Dtype::Int8, 4096, &ones), E::NameLength { .. }));
    assert!(matches!(add("w", 0, 64, Dtype::Int8, 4096, &ones), E::Shape { .. }));
    for bytes in [0, 4095, 4097, 8192] {
        assert!(matches!(add("w", 64, 64, Dtype::Int8, bytes, &ones), E::Size { .. }));
    }
    assert!(matches!(add("w", 64, 64, Dtype::Int8, 4096, &ones[1..]), E::ScaleCount { .. }));
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let mut scales = ones;
        scales[3] = bad;
        assert!(matches!(
            add("w", 64, 64, Dtype::Int8, 4096, &scales),
            E::ScaleValue { index: 3, .. }
        ));
    }
    // Compact blobs have their header and scales inside.
    let compact = [&crate::pack::o4n1_header(64, 32, crate::pack::Codebook::Nf4)[..], &[0; 1152]];
    let compact = compact.concat();
    let mut add = |blob: &[u8], n| writer.add("c", 64, n, Dtype::O4n1, blob, &[]).unwrap_err();
    assert!(matches!(add(&compact, 64), E::Size { .. }));
    let mut damaged = compact.clone();
    damaged[0] ^= 1;
    assert!(matches!(add(&damaged, 32), E::O4n1 { field: "magic", .. }));
    let mut damaged = compact.clone();
    damaged[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(matches!(add(&damaged, 32), E::ScaleValue { index: 0, .. }));
    assert!(writer.is_empty());
    writer.add("c", 64, 32, Dtype::O4n1, &compact, &[]).unwrap();

    writer.add("w", 64, 64, Dtype::Int8, &[0; 4096], &ones).unwrap();
    let again = writer.add("w", 64, 64, Dtype::Int8, &[0; 4096], &ones).unwrap_err();
    assert!(matches!(again, E::DuplicateName { .. }));
}

#[test]
fn pieces_are_the_same_pack() {
    for options in [options(), WriterOptions { version: 7, ..options() }] {
        let packs = [(1 << 20, false), (700, false), (700, true)].map(|(size, backwards)| {
            let folder = folder();
            let target = folder.path().join("m.orkpack");
            let mut writer = PackWriter::create(&target, &MODEL, options.clone()).unwrap();
            let (_, blob, scales) = weight(5);
            let mut compact =
                crate::pack::o4n1_header(64, 32, crate::pack::Codebook::Uniform).to_vec();
            compact.extend((0..32).flat_map(|_| 0.25f32.to_le_bytes()));
            compact.extend([0x5A; 1024]);
            let weights: [(&str, u32, _, &[u8], &[f32]); 3] = [
                ("a", 64, Dtype::Int8, &blob, &scales),
                ("c", 32, Dtype::O4n1, &compact, &[]),
                ("z", 64, Dtype::RotatedInt8, &blob, &scales),
            ];
            for (name, n, dtype, blob, scales) in weights {
                let header = WeightHeader { name, k: 64, n, dtype };
                let mut pieces: Vec<_> = blob.chunks(size).enumerate().collect();
                if backwards {
                    pieces.reverse();
                }
                let mut weight = writer.begin(header).unwrap();
                for (piece, bytes) in pieces {
                    weight.write_at((size * piece) as u64, bytes).unwrap();
                }
                weight.finish(scales, Some(0.5)).unwrap();
            }
            writer.finish().unwrap();
            fs::read(&target).unwrap()
        });
        assert!(packs[0] == packs[1] && packs[0] == packs[2]);
    }
}

#[test]
fn pieces_that_do_not_make_a_weight_are_refused() {
    use PackError as E;
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    let mut writer = PackWriter::create(&target, &MODEL, options()).unwrap();
    let (name, blob, scales) = weight(0);
    // Gap, overlap, missing start, missing end; with the bytes that are there up to the fault.
    let cases: [(&[Range<usize>], u64); 4] = [
        (&[0..1000, 1001..4096], 1000),
        (&[0..1000, 999..4096], 999),
        (&[1..2000, 2000..4096], 0),
        (&[0..2000, 2000..4095], 4095),
    ];
    for (pieces, found) in cases {
        let mut weight = writer.begin(header(&name)).unwrap();
        for piece in pieces {
            weight.write_at(piece.start as u64, &blob[piece.clone()]).unwrap();
        }
        let error = weight.finish(&scales, None).unwrap_err();
        let E::Size { bytes, expected: 4096, .. } = error else { panic!("{error:?}") };
        assert_eq!(bytes, found);
    }
    let mut weight = writer.begin(header(&name)).unwrap();
    assert!(matches!(weight.write_at(4000, &[0; 97]), Err(E::Size { bytes: 4097, .. })));
    assert!(matches!(weight.write_at(u64::MAX, &[0; 97]), Err(E::Size { .. })));
    weight.write_at(0, &blob).unwrap();
    assert!(matches!(weight.finish(&scales[1..], None), Err(E::ScaleCount { .. })));
    let mut weight =
        writer.begin(WeightHeader { n: 32, dtype: Dtype::O4n1, ..header(&name) }).unwrap();
    weight.write_at(0, &[0; 20 + 4 * 32 + 1024]).unwrap();
    assert!(matches!(weight.finish(&[], None), Err(E::O4n1 { field: "magic", .. })));
    assert!(matches!(writer.begin(WeightHeader { k: 0, ..header(&name) }), Err(E::Shape { .. })));
    assert!(matches!(writer.begin(header("")), Err(E::NameEmpty { .. })));
    // Nothing of all that is left.
    assert!(writer.is_empty());
    assert_eq!(writer.file.metadata().unwrap().len(), 0);
    convert(writer).unwrap();
    assert!(verify(&Pack::open(&target).unwrap(), &|_| {}).is_sound());
}

#[test]
fn io() {
    let folder = folder();
    let missing = folder.path().join("missing/m.orkpack");
    let error = PackWriter::create(&missing, &MODEL, options()).unwrap_err();
    assert!(matches!(error, PackError::Io { operation: "create", .. }), "{error:?}");
    // A folder in the place of the target.
    let error = PackWriter::create(folder.path(), &MODEL, options()).unwrap_err();
    assert!(matches!(error, PackError::Io { operation: "replace", .. }), "{error:?}");
    let error = Pack::open(&missing).unwrap_err();
    assert!(matches!(error, PackError::Io { operation: "open", .. }), "{error:?}");
    let error = Pack::open(folder.path()).unwrap_err();
    assert!(matches!(error, PackError::Io { .. }), "{error:?}");
}

#[test]
fn a_read_only_target_stays() {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    convert(PackWriter::create(&target, &MODEL, options()).unwrap()).unwrap();
    let whole = fs::read(&target).unwrap();
    let mut permissions = fs::metadata(&target).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&target, permissions).unwrap();
    for replace in [false, true] {
        let options = WriterOptions { replace, ..options() };
        let error = PackWriter::create(&target, &MODEL, options).unwrap_err();
        let PackError::Io { operation: "replace", source, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(source.kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(fs::read(&target).unwrap(), whole);
    assert_eq!(names(folder.path()), ["m.orkpack"]);
}

#[test]
fn changed() {
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    convert(PackWriter::create(&target, &MODEL, options()).unwrap()).unwrap();
    let pack = Pack::open(&target).unwrap();
    let entry = &pack.entries()[0];
    // Replacing by name is harmless: the open file is still the old one.
    convert(PackWriter::create(&target, &MODEL, options()).unwrap()).unwrap();
    pack.scales(entry).unwrap();
    // Cutting in place is not.
    let pack = Pack::open(&target).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&target).unwrap();
    file.set_len(4096).unwrap();
    let mut tiles = [0; 4096];
    let load = pack.load_into(pack.get("blk.0.w").unwrap(), &mut tiles);
    assert!(matches!(load, Err(PackError::Changed { .. })), "{load:?}");
    let scales = pack.scales(pack.get("blk.1.w").unwrap());
    assert!(matches!(scales, Err(PackError::Changed { .. })), "{scales:?}");
}

#[test]
fn a_link_is_written_where_it_points() {
    let folder = folder();
    let (real, link) = (folder.path().join("real.orkpack"), folder.path().join("link"));
    convert(PackWriter::create(&real, &MODEL, options()).unwrap()).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let summary = convert(PackWriter::create(&link, &MODEL, options()).unwrap()).unwrap();
    assert_eq!(summary.path.file_name(), real.file_name());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

/// The places of [`weight`]'s 0 to 2.
fn placed() -> WriterOptions {
    let names: Vec<String> = (0..3).map(|number| weight(number).0).collect();
    let places = Places::new(names.iter().map(|name| (header(name), 64))).unwrap();
    WriterOptions { places: Some(places), ..options() }
}

#[test]
fn weights_have_their_places_in_whatever_order_they_come() {
    let folder = folder();
    let make = |file: &str, order: &[u32], options: WriterOptions| {
        let target = folder.path().join(file);
        let mut writer = PackWriter::create(&target, &MODEL, options.clone()).unwrap();
        for (done, number) in order.iter().enumerate() {
            let (name, blob, scales) = weight(*number);
            // One that is given up leaves nothing behind.
            let mut given_up = writer.begin(header(&name)).unwrap();
            given_up.write_at(0, &[0xEE; 4096]).unwrap();
            drop(given_up);
            writer.add(&name, 64, 64, Dtype::Int8, &blob, &scales).unwrap();
            if done == 1 {
                drop(writer); // interrupted, and gone on with
                writer = PackWriter::create(&target, &MODEL, options.clone()).unwrap();
                assert_eq!((writer.resumed(), writer.len()), (2, 2));
            }
        }
        writer.finish().map(|_| fs::read(target).unwrap())
    };
    let in_order = make("0.orkpack", &[0, 1, 2], options()).unwrap();
    for (file, order) in
        [("1.orkpack", [0, 1, 2]), ("2.orkpack", [2, 0, 1]), ("3.orkpack", [1, 2, 0])]
    {
        assert!(make(file, &order, placed()).unwrap() == in_order, "{order:?}");
    }
    // A place that nobody filled would be a gap with anything in it.
    let hollow = make("4.orkpack", &[2, 0], placed());
    assert!(matches!(hollow, Err(PackError::Incomplete { present: 2, expected: 3 })), "{hollow:?}");
}

/// What a disk was asked to do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Write,
    SetLen,
    SyncFile,
    SyncFolder,
    Rename,
    Remove,
}

/// A disk that keeps what it was asked.
struct Recording {
    disk: Os,
    asked: Arc<std::sync::Mutex<Vec<Asked>>>,
}

impl Recording {
    fn note(&self, asked: Asked) {
        self.asked.lock().unwrap().push(asked);
    }
}

impl Disk for Recording {
    fn write_at(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.note(Asked::Write);
        self.disk.write_at(file, bytes, offset)
    }
    fn set_len(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        self.note(Asked::SetLen);
        self.disk.set_len(file, bytes)
    }
    fn sync(&mut self, file: &File) -> io::Result<()> {
        let folder = file.metadata()?.is_dir();
        self.note(if folder { Asked::SyncFolder } else { Asked::SyncFile });
        self.disk.sync(file)
    }
    fn rename(&mut self, from: &Path, to: &Path, fresh: bool) -> io::Result<()> {
        self.note(Asked::Rename);
        self.disk.rename(from, to, fresh)
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.note(Asked::Remove);
        self.disk.remove(path)
    }
}

/// After a power cut there is the old pack or the whole new one: bytes are on the disk before the name is
/// theirs, and the name before anything is removed.
#[test]
fn bytes_are_on_the_disk_before_the_name_and_the_name_before_the_journal_goes() {
    use Asked::*;
    let folder = folder();
    let target = folder.path().join("m.orkpack");
    let asked = Arc::default();
    let disk = Recording { disk: Os, asked: Arc::clone(&asked) };
    convert(PackWriter::on(Box::new(disk), &target, Some(&MODEL), options()).unwrap()).unwrap();
    let asked = asked.lock().unwrap();
    let last_change = asked.iter().rposition(|asked| matches!(asked, Write | SetLen)).unwrap();
    assert_eq!(asked[last_change + 1..], [SyncFile, Rename, SyncFolder, Remove]);
}

/// A disk that changes a byte of one write and says nothing.
struct Rotting {
    disk: Os,
    partial: PathBuf,
    writes: Arc<AtomicUsize>,
    at: usize,
}

impl Disk for Rotting {
    fn write_at(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let of_pack = file.metadata()?.ino() == fs::metadata(&self.partial)?.ino();
        if !of_pack || bytes.is_empty() || self.writes.fetch_add(1, Relaxed) != self.at {
            return self.disk.write_at(file, bytes, offset);
        }
        let mut rotten = bytes.to_vec();
        rotten[bytes.len() / 2] ^= 0x10;
        self.disk.write_at(file, &rotten, offset)
    }
    fn set_len(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        self.disk.set_len(file, bytes)
    }
    fn sync(&mut self, file: &File) -> io::Result<()> {
        self.disk.sync(file)
    }
    fn rename(&mut self, from: &Path, to: &Path, fresh: bool) -> io::Result<()> {
        self.disk.rename(from, to, fresh)
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
}

/// What was written is read back before it gets the name.
#[test]
fn a_write_that_the_disk_spoilt_makes_no_pack() {
    let mut at = 0;
    loop {
        let folder = folder();
        let target = folder.path().join("m.orkpack");
        let writes = Arc::new(AtomicUsize::new(0));
        let partial = folder.path().join("m.orkpack.partial");
        let disk = Rotting { disk: Os, partial, writes: writes.clone(), at };
        let writer = PackWriter::on(Box::new(disk), &target, Some(&MODEL), options()).unwrap();
        let written = convert(writer);
        if writes.load(Relaxed) <= at {
            written.unwrap();
            break;
        }
        let Err(error) = written else { panic!("write {at} was spoilt unnoticed") };
        assert!(!matches!(error, PackError::Io { .. }), "write {at}: {error}");
        assert!(!target.exists(), "write {at}");
        at += 1;
    }
    assert!(at > 5, "only {at} writes were seen");
}
