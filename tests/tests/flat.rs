//! What is loaded and freed again and again, and run again and again, leaves nothing behind.
//!
//! The full size, 26 GB in 100 cycles and 10,000 passes, is run with `ORK_FLAT=full`; without, a tenth
//! of the bytes and of the passes. With the vendor's driver, or with `ORK_FLAT_DRIVER=rocket` the mainline one;
//! what is counted is the whole process's, so each has its own.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use ork::memory::resident;
use ork_cache::{Setup, Store};
use ork_tests::bench::session;
use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
use rknpu::Device;
use rknpu::sim::Machine;
use rknpu::sim::config::{Config, Driver, Form, Mode};

/// Memory of the process may differ by as much: the allocator keeps what it likes.
const TOLERANCE: u64 = 8 << 20;

/// What must stay as it was.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    handles: usize,
    objects: usize,
    mappings: u32,
    live: u64,
    mapped: u64,
    taken: u64,
    largest_gap: u64,
    files: usize,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { handles, objects, mappings, live, mapped, taken, largest_gap, files } = self;
        write!(
            f,
            "{handles} handles, {objects} objects, {mappings} mappings, {live} bytes live, {mapped} mapped, {taken} addresses taken, largest gap {largest_gap}, {files} open files"
        )
    }
}

fn held(machine: &Machine) -> Held {
    let report = machine.report();
    Held {
        handles: report.handles,
        objects: report.objects,
        mappings: report.mappings,
        live: report.live,
        mapped: report.domains.iter().map(|d| d.mapped).sum(),
        taken: report.domains.iter().map(|d| d.taken).sum(),
        largest_gap: report.domains.iter().map(|d| d.largest_gap).min().unwrap_or(0),
        files: fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
    }
}

/// Does `work` `times` times; after a tenth of them nothing may grow any more.
fn flat(what: &str, machine: &Machine, times: u32, mut work: impl FnMut()) {
    let warm = times.div_ceil(10).max(2);
    (0..warm).for_each(|_| work());
    let (before, rss) = (held(machine), resident().unwrap());
    (warm..times).for_each(|_| work());
    let (after, end) = (held(machine), resident().unwrap());
    println!("{what}, {times} times");
    println!("  after {warm:>5}: {before}, {:.1} MiB resident", rss as f64 / f64::from(1 << 20));
    println!("  after {times:>5}: {after}, {:.1} MiB resident", end as f64 / f64::from(1 << 20));
    assert!(before == after, "{what}: {before} became {after}");
    assert!(end <= rss + TOLERANCE, "{what}: {rss} bytes resident became {end}");
}

fn pack(path: &Path, weights: u32, k: u32, n: u32) -> Arc<Store> {
    let options = WriterOptions { expected: Some(weights), ..WriterOptions::default() };
    let mut writer = PackWriter::create(path, None, options).unwrap();
    let mut codes = vec![0; (k * n) as usize];
    for layer in 0..weights {
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = (i as u32 * 31 + layer) as u8);
        let name = format!("blk.{layer}.ffn_up.weight");
        writer.add(&name, k, n, Dtype::Int8, &codes, &vec![1.0; n as usize]).unwrap();
    }
    writer.finish().unwrap();
    Arc::new(Store::from_pack(Pack::open(path).unwrap()))
}

/// One test, not two: what is counted is the whole process's.
#[test]
fn nothing_grows() {
    let full = std::env::var("ORK_FLAT").is_ok_and(|size| size == "full");
    let folder = tempfile::tempdir().unwrap();
    let rocket = std::env::var("ORK_FLAT_DRIVER").is_ok_and(|driver| driver == "rocket");
    let driver = if rocket { Driver::Rocket(Form::Later) } else { Driver::Rknpu };
    let machine = Machine::new(Config { driver, mode: Mode::Strict, ..Config::default() });

    // 26 weights of 10 MiB, or of 1 MiB: packed, loaded and freed.
    let n = if full { 10 << 10 } else { 1 << 10 };
    let path = folder.path().join("large.orkpack");
    let store = pack(&path, 26, 1024, n);
    let bytes = store.bytes();
    let cycles = if full { 100 } else { 20 };
    flat(&format!("{bytes} bytes loaded and freed"), &machine, cycles, || {
        let device = Device::simulated_on(&machine).unwrap();
        let setup = Setup { rows: 1, ..Setup::new(bytes + (16 << 20)) };
        let opened = ork_cache::open(&device, std::slice::from_ref(&store), &setup).unwrap();
        for part in &opened.models[0].parts {
            drop(opened.cache.acquire(part.weight).unwrap());
        }
        assert_eq!(opened.cache.stats().bytes_peak, bytes);
        drop(opened);
        assert!(device.health().is_good());
    });

    // A tiny model, through less memory than it takes.
    let store = pack(&folder.path().join("tiny.orkpack"), 12, 64, 64);
    let device = Device::simulated_on(&machine).unwrap();
    let mut session = session(&device, store, 128 << 10, true).unwrap();
    let passes = if full { 10_000 } else { 1_000 };
    flat("passes of a tiny model", &machine, passes, || session.pass(0).unwrap());
    assert_eq!(session.totals(0).passes, u64::from(passes));
    drop(session);
    assert!(device.health().is_good());
    drop(device);
    let report = machine.report();
    assert_eq!((report.handles, report.live, report.files), (0, 0, 0));
    assert!(report.hazards.is_empty(), "{:?}", report.hazards);
}
