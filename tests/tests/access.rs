//! Packs read through the page cache and past it: the same results, and what is read past it stays out of it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ork::run::session::{Session, Settings};
use ork_cache::{Access, Setup, Store};
use ork_weights::pack::{DirectReads, Dtype, Pack, PackWriter, WriterOptions};
use rknpu::Device;

const WEIGHTS: u32 = 24;
const SIDE: u32 = 512;
const BYTES: u64 = (SIDE * SIDE) as u64;
const PASSES: u64 = 3;

fn write(path: &Path) {
    let options = WriterOptions { expected: Some(WEIGHTS), ..WriterOptions::default() };
    let mut writer = PackWriter::create(path, None, options).unwrap();
    let mut codes = vec![0; BYTES as usize];
    for layer in 0..WEIGHTS {
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = (i as u32 * 31 + layer) as u8);
        let name = format!("blk.{layer}.ffn_up.weight");
        writer.add(&name, SIDE, SIDE, Dtype::Int8, &codes, &[1.0; SIDE as usize]).unwrap();
    }
    writer.finish().unwrap();
}

/// What some passes gave.
struct Run {
    digest: u64,
    loaded: u64,
    direct: bool,
    reads: Option<DirectReads>,
    /// Bytes that the disk was asked for in the last pass.
    disk: u64,
}

/// Bytes that this process had the disks read.
fn disk_reads() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.unwrap().parse().unwrap()
}

fn run(path: &Path, access: Access, budget: u64) -> Run {
    let store = Arc::new(Store::from_pack(Pack::open(path).unwrap()));
    let device = Device::simulated(Default::default()).unwrap();
    let setup = Setup { rows: 4, access, ..Setup::new(budget) };
    let mut session =
        Session::new(&device, std::slice::from_ref(&store), &Settings::new("", setup)).unwrap();
    for _ in 1..PASSES {
        session.pass(0).unwrap();
    }
    let before = disk_reads();
    session.pass(0).unwrap();
    let (disk, loaded) = (disk_reads() - before, session.stats().bytes_loaded);
    let (digest, direct) = (session.digest(0), session.reading().direct);
    drop(session);
    Run { digest, loaded, direct, reads: store.direct_reads(), disk }
}

/// One test, not two: the disk's reads are the whole process's.
#[test]
fn past_the_page_cache_the_results_are_the_same() {
    // A disk: a folder for temporary files may be memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("model.orkpack");
    write(&path);
    let all = u64::from(WEIGHTS) * BYTES;
    for budget in [2 * all, all / 2] {
        let buffered = run(&path, Access::Buffered, budget);
        assert!(!buffered.direct && buffered.reads.is_none());
        let auto = run(&path, Access::Auto, budget);
        assert_eq!(auto.digest, buffered.digest);
        assert!(!auto.direct, "6 MiB fit everywhere");

        let direct = run(&path, Access::Direct, budget);
        assert_eq!(direct.digest, buffered.digest);
        let Some(reads) = direct.reads.filter(|_| direct.direct) else {
            eprintln!("no direct reads here, nothing more was tested");
            return;
        };
        assert!(reads.refusal().is_none(), "{:?}", reads.refusal());
        // Weights of whole pages that begin at pages: all of it. What is compared with the CPU's is read
        // a second time, into memory that is aligned or not.
        assert!(reads.direct >= direct.loaded, "{reads:?} of {}", direct.loaded);
        if budget < all {
            // What was read before is not in the cache: it comes from the disk again, but for a weight or
            // two that the prefetcher has had before the pass.
            let streamed = (direct.loaded - all) / (PASSES - 1);
            assert!(direct.disk > streamed * 3 / 4, "{} of {streamed} bytes", direct.disk);
            assert!(buffered.disk < streamed / 4, "{} of {streamed} bytes", buffered.disk);
        }
    }
}
