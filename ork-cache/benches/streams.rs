//! A model of which half is streamed past the page cache, against the slower of its two bounds: a plain direct read
//! of the streamed bytes, and the same products with every weight resident.
//!
//! The cores compute nothing and take the time that the timing model gives, so that what is measured is this
//! machine's disk, and how well loads hide behind products.
//!
//! At most 1.05 times the slower bound. On a busy virtual machine, medians of three runs: 0.95 at 32 rows, 0.91 at 256,
//! 1.07 at 1024.
//!
//! `cargo bench -p ork-cache --bench streams`

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_cache::{Access, Opened, Prefetcher, Setup, Store};
use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
use ratio::Pages;
use rknpu::sim::config::{Clock, Config};
use rknpu::sim::engine::{Bus, Engine, Outcome, Run, Start};
use rknpu::sim::npu::Timing;
use rknpu::{Device, Matmul, Precision};
use rustix::fs::OFlags;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes of one plain read.
const PLAIN: usize = 8 << 20;
const TARGET: f64 = 1.05;

/// Cores that take a time and compute nothing.
#[derive(Debug)]
struct Paced {
    busy_ns: u64,
}

impl Engine for Paced {
    fn run(&self, start: &Start, _: &mut dyn Bus) -> Run {
        let (int_status, tasks_done) = (start.int_mask, start.tasks);
        let outcome = Outcome::Done { int_status, tasks_done, busy_ns: self.busy_ns };
        Run { outcome, findings: Vec::new() }
    }
}

/// A core's share of a product of `rows` rows, by the timing model.
fn busy_ns(rows: u64, side: u64) -> u64 {
    let timing = Timing::default();
    let operations = 2 * rows * side * side / 3;
    timing.submit_floor_ns + operations * 1_000_000_000 / timing.int8_ops_per_second.max(1)
}

fn write(path: &Path, side: u32, weights: u32) -> Result<()> {
    let mut writer = PackWriter::create(path, None, WriterOptions::default())?;
    let codes: Vec<u8> = (0..side * side).map(|i| (i ^ (i >> 9)) as u8).collect();
    for layer in 0..weights {
        let (name, scales) = (format!("blk.{layer}.w"), vec![1.0; side as usize]);
        writer.add(&name, side, side, Dtype::Int8, &codes, &scales)?;
    }
    writer.finish()?;
    Ok(())
}

struct Model {
    opened: Opened,
    /// One for each domain.
    matmuls: Vec<Matmul>,
    _prefetcher: Prefetcher,
}

impl Model {
    fn new(device: &Device, store: &Arc<Store>, budget: u64, rows: u32) -> Result<Model> {
        let setup = Setup { rows, access: Access::Direct, ..Setup::new(budget) };
        let opened = ork_cache::open(device, std::slice::from_ref(store), &setup)?;
        let mut matmuls = Vec::new();
        for (index, domain) in opened.cache.domains().iter().enumerate() {
            let limits = opened.limits(index, Precision::Int8).ok_or("no int8 weight")?;
            matmuls.push(Matmul::int8(domain, &device.cores()?, limits)?);
        }
        let prefetcher = Prefetcher::new(&opened.cache)?;
        prefetcher.follow(&opened.models[0].streamed);
        Ok(Model { opened, matmuls, _prefetcher: prefetcher })
    }

    fn pass(&mut self, inputs: &[i8], out: &mut [i32]) -> Result<Duration> {
        let start = Instant::now();
        for part in &self.opened.models[0].parts {
            let pinned = self.opened.cache.acquire(part.weight)?;
            let rows = inputs.len() / part.layout.k() as usize;
            let out = &mut out[..rows * part.layout.n() as usize];
            self.matmuls[part.domain.index()].run(&pinned.weight_ref()?, inputs, out)?;
        }
        Ok(start.elapsed())
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

fn main() -> Result<()> {
    let measures = std::env::args().any(|a| a == "--bench");
    let (side, weights, rounds) = if measures { (2048u32, 96, 7) } else { (256, 8, 1) };
    // Beside the sources, because a temporary folder may be memory only.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
    let path = folder.path().join("model.orkpack");
    write(&path, side, weights)?;
    let direct = File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
    let Ok(direct) = direct else {
        println!("no direct reads here");
        return Ok(());
    };
    for rows in [32u32, 256, 1024] {
        let engine = Arc::new(Paced { busy_ns: busy_ns(rows.into(), side.into()) });
        let config = Config { engine, clock: Clock::Real, ..Config::default() };
        let device = Device::simulated(config)?;
        let store = Arc::new(Store::from_pack(Pack::open(&path)?));
        let scratch = ork_cache::scratch_bytes(&device, std::slice::from_ref(&store), rows);
        let room = |weights: u64| (weights + scratch).max(4 * scratch);
        let mut resident = Model::new(&device, &store, room(store.bytes()), rows)?;
        let mut half = Model::new(&device, &store, room(store.bytes() / 2), rows)?;
        let streamed = half.opened.models[0].streamed_bytes();
        let inputs = vec![1i8; (rows * side) as usize];
        let mut out = vec![0; (rows * side) as usize];
        let mut plain = Pages::new(PLAIN);
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..=rounds {
            let start = Instant::now();
            for at in (0..streamed as usize / PLAIN * PLAIN).step_by(PLAIN) {
                direct.read_exact_at(&mut plain, at as u64)?;
            }
            times[0].push(start.elapsed());
            times[1].push(resident.pass(&inputs, &mut out)?);
            times[2].push(half.pass(&inputs, &mut out)?);
        }
        // The first round loads what stays.
        let [disk, compute, passed] = times.map(|times| median(times[1..].to_vec()));
        let ratio = passed / disk.max(compute);
        let ok = if ratio <= TARGET || !measures { "ok" } else { "above" };
        println!(
            "streamed/max(disk, compute), {rows:>4} rows {ratio:>8.3}  target {TARGET:>5.2}  {ok:<5}  {:.1} ms of \
             {} MiB streamed; disk {:.1} ms ({:.2} GB/s), resident {:.1} ms",
            passed * 1e3,
            streamed >> 20,
            disk * 1e3,
            streamed as f64 / disk / 1e9,
            compute * 1e3,
        );
    }
    Ok(())
}
