//! Packs read through the page cache and past it: the same results, and what is read past it stays out of it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ork::run::session::{Session, Settings};
use ork_cache::{Access, Setup, Store};
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, OpenOptions};
use ork_weights::pack::{DirectReads, Dtype, Pack, PackWriter, WriterOptions};
use ork_weights::quantise::Tier;
use rknpu::Device;
use rknpu::sim::config::Config;
use rknpu::sim::{Fault, Machine};

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
    run_on(&Machine::new(Config::default()), path, access, budget)
}

/// Of a pack, or of a model that is quantised on the way.
fn run_on(machine: &Machine, path: &Path, access: Access, budget: u64) -> Run {
    let store = Arc::new(match path.extension().is_some_and(|extension| extension == "gguf") {
        true => {
            let model = Model::open(path, &OpenOptions::default()).unwrap();
            Store::from_model(model, Tier::Int8, None).unwrap()
        }
        false => Store::from_pack(Pack::open(path).unwrap()),
    });
    let device = Device::simulated_on(machine).unwrap();
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
    a_model_is_read_past_the_cache_in_every_pass(&folder.path().join("model.gguf"));
    memory_that_the_kernel_does_not_pin(&path, all / 2);
    nothing_is_lost_while_the_process_forks(&path, all / 2);
}

/// A model that is quantised on the way, of which half is made anew in every pass.
fn a_model_is_read_past_the_cache_in_every_pass(path: &Path) {
    let shape = Shape { embedding: 512, feed_forward: 1024, layers: 6, ..Shape::tiny() };
    shape.write(fs::File::create(path).unwrap()).unwrap();
    let model = Model::open(path, &OpenOptions::default()).unwrap();
    let bytes: u64 = model.weights().iter().map(|weight| weight.bytes).sum();
    let all: u64 = model.weights().iter().map(|w| u64::from(w.k) * u64::from(w.n)).sum();
    drop(model);
    let buffered = run(path, Access::Buffered, all / 2);
    let direct = run(path, Access::Direct, all / 2);
    assert_eq!(direct.digest, buffered.digest);
    let reads = direct.reads.unwrap();
    assert!(direct.direct && reads.refusal().is_none(), "{reads:?}");
    // Heads and tails are read with the blocks around them.
    assert!(reads.direct > bytes && reads.buffered < reads.direct / 100, "{reads:?} of {bytes}");
    assert!(direct.disk > bytes / 4, "{} of {bytes} bytes", direct.disk);
    assert!(buffered.disk < bytes / 8, "{} of {bytes} bytes", buffered.disk);
}

/// EFAULT for contiguous objects, as all are without an IOMMU, and for what a fault makes so.
fn memory_that_the_kernel_does_not_pin(path: &Path, budget: u64) {
    let buffered = run(path, Access::Buffered, budget);
    let none = Machine::new(Config { iommu: false, ..Config::default() });
    let some = Machine::new(Config::default());
    // The large buffer of what is resident, or that of the slots, and not the other.
    some.inject(Fault::Unpinned { after: 1, times: 1 });
    for (machine, all) in [(&none, true), (&some, false)] {
        let direct = run_on(machine, path, Access::Direct, budget);
        assert_eq!(direct.digest, buffered.digest);
        let reads = direct.reads.unwrap();
        if reads.refusal().is_none() {
            eprintln!("no memory here that can't be pinned: nothing was refused");
            continue;
        }
        assert_eq!(reads.refusal().unwrap().raw_os_error(), Some(14), "EFAULT");
        assert!(reads.buffered > 0 && (!all || reads.buffered >= direct.loaded), "{reads:?}");
        assert!(all || reads.direct > 0, "{reads:?}");
    }
}

/// Children that are forked while the disk writes into device memory.
fn nothing_is_lost_while_the_process_forks(path: &Path, budget: u64) {
    let buffered = run(path, Access::Buffered, budget);
    let (done, forks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let user = rustix::process::geteuid().as_raw();
            while !done.load(Ordering::Relaxed) {
                // With a user of its own a child is forked, not spawned.
                let child = Command::new("true").uid(user).status().unwrap();
                assert!(child.success());
                forks.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..4 {
            let direct = run(path, Access::Direct, budget);
            assert_eq!(direct.digest, buffered.digest, "after {forks:?} forks");
            assert!(direct.reads.is_some_and(|reads| reads.direct > 0));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(forks.into_inner() > 0);
}
