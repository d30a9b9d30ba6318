//! Loading on one thread and on all.

use std::fs::File;
use std::path::Path;

use ork_weights::Mapping;
use ork_weights::pack::{Codebook, Dtype, Pack, PackError, PackWriter, o4n1_header};

fn noise(bytes: usize, mut state: u64) -> Vec<u8> {
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// A plain weight of several pieces and a part of one, and both forms of a compact one.
fn write(path: &Path) {
    const N: u32 = 1024 + 32;
    let mut writer = PackWriter::create(path, None, Default::default()).unwrap();
    writer
        .add("plain", 1024, N, Dtype::Int8, &noise(1024 * N as usize, 1), &[1.0; N as usize])
        .unwrap();
    for (name, book) in [("uniform", Codebook::Uniform), ("nf4", Codebook::Nf4)] {
        let mut blob = o4n1_header(1024, N, book).to_vec();
        blob.extend([1f32.to_le_bytes(); N as usize].as_flattened());
        blob.extend(noise(512 * N as usize, 2));
        writer.add(name, 1024, N, Dtype::O4n1, &blob, &[]).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn all_threads_load_what_one_loads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    write(&path);
    let read = Pack::open(&path).unwrap();
    // SAFETY: the folder is this test's alone.
    let mapped = Pack::parse(unsafe { Mapping::open(&path).unwrap() }).unwrap();
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for entry in read.entries() {
            let bytes = entry.layout().bytes() as usize;
            let mut loaded = [0x11, 0x22, 0x33].map(|fill| vec![fill; bytes]);
            let [one, all, in_place] = &mut loaded;
            read.load_into(entry, one).unwrap();
            pool.install(|| read.load_into_parallel(entry, all)).unwrap();
            pool.install(|| mapped.load_into_parallel(entry, in_place)).unwrap();
            assert!(one == all && one == in_place, "{}, {threads} threads", entry.name);
        }
    }
}

#[test]
fn all_threads_report_what_one_reports() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    write(&path);
    let pack = Pack::open(&path).unwrap();
    let entry = pack.get("plain").unwrap();
    let bytes = entry.layout().bytes() as usize;
    for wrong in [bytes - 1, bytes + 1, 0] {
        let error = pack.load_into_parallel(entry, &mut vec![0; wrong]).unwrap_err();
        assert!(matches!(error, PackError::OutputLength { .. }), "{error}");
    }
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let error = pack.load_into_parallel(entry, &mut vec![0; bytes]).unwrap_err();
    assert!(matches!(error, PackError::Changed { .. }), "{error}");
}
