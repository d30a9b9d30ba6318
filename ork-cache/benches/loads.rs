//! Loads with real bytes: mapping against reading by position, and a model streamed through half of
//! its bytes against the same model resident, on the simulated device.
//!
//! `cargo bench -p ork-cache --bench loads`; `ORK_TEST_MODEL` names a model, otherwise weights of the
//! shapes of Gemma 3 270M are made up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_cache::{Opened, Prefetcher, Setup, Store};
use ork_weights::convert::{Options, TierChoice, convert};
use ork_weights::model::{Model, OpenOptions};
use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
use ork_weights::quantise::Tier;
use rknpu::{Device, Matmul, Precision};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// K and N of the weights of a layer of Gemma 3 270M.
const LAYER: [(u32, u32); 7] =
    [(640, 1024), (640, 256), (640, 256), (1024, 640), (640, 2048), (640, 2048), (2048, 640)];

fn main() -> Result<()> {
    let measures = std::env::args().any(|a| a == "--bench");
    let (layers, head, rounds, rows) =
        if measures { (18, 262_144, 9, 256) } else { (2, 4096, 1, 2) };
    let folder = tempfile::tempdir()?;
    let pack = match std::env::var_os("ORK_TEST_MODEL").filter(|_| measures) {
        Some(model) => converted(&PathBuf::from(model), folder.path())?,
        None => made_up(folder.path(), layers, head)?,
    };
    reads(&pack, rounds)?;
    streamed(&pack, rows, if measures { 5 } else { 1 })
}

fn converted(model: &Path, folder: &Path) -> Result<PathBuf> {
    let path = folder.join("model.orkpack");
    let options = Options { tiers: TierChoice::fixed(Tier::Int8), ..Options::default() };
    convert(&Model::open(model, &OpenOptions::default())?, &path, &options, |_| ())?;
    Ok(path)
}

fn made_up(folder: &Path, layers: u32, head: u32) -> Result<PathBuf> {
    let path = folder.join("model.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    let mut state = 1u32;
    let mut add = |name: &str, k: u32, n: u32| {
        let noise = (0..k * n).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let (blob, scales) = (noise.collect::<Vec<u8>>(), vec![0.01; n as usize]);
        writer.add(name, k, n, Dtype::Int8, &blob, &scales)
    };
    for layer in 0..layers {
        for (i, (k, n)) in LAYER.into_iter().enumerate() {
            add(&format!("blk.{layer}.{i}.weight"), k, n)?;
        }
    }
    add("output.weight", 640, head)?;
    writer.finish()?;
    Ok(path)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// Every weight into one buffer, warm.
fn reads(path: &Path, rounds: usize) -> Result<()> {
    let store = Store::from_pack(Pack::open(path)?);
    let most = store.items().iter().map(|i| i.bytes()).max().unwrap_or(0);
    let mut slot = vec![0; most as usize];
    let mut times = Vec::new();
    for _ in 0..=rounds {
        let start = Instant::now();
        for (item, i) in store.items().iter().enumerate() {
            store.load(item, 0, &i.layout, &mut slot)?;
        }
        times.push(start.elapsed());
    }
    // The first round warms the page cache.
    let speed = store.bytes() as f64 / median(times.split_off(1)) / 1e9;
    println!("loads into a slot, warm: {speed:.2} GB/s");
    Ok(())
}

/// One model in a budget, ready to run.
struct Run {
    opened: Opened,
    matmul: Matmul,
    rows: usize,
    _prefetcher: Prefetcher,
}

impl Run {
    fn new(device: &Device, store: &Arc<Store>, budget: u64, rows: u32) -> Result<Run> {
        let setup = Setup { rows, ..Setup::new(budget) };
        let opened = ork_cache::open(device, std::slice::from_ref(store), &setup)?;
        let limits = opened.limits(0, Precision::Int8).ok_or("no int8 weight")?;
        let domain = &opened.cache.domains()[0];
        let matmul = Matmul::int8(domain, &device.cores()?, limits)?;
        let prefetcher = Prefetcher::new(&opened.cache)?;
        prefetcher.follow(&opened.models[0].streamed);
        Ok(Run { opened, matmul, rows: rows as usize, _prefetcher: prefetcher })
    }

    fn pass(&mut self, activations: &[i8], out: &mut [i32]) -> Result<Duration> {
        let start = Instant::now();
        for part in &self.opened.models[0].parts {
            let pinned = self.opened.cache.acquire(part.weight)?;
            let (k, n) = (part.layout.k() as usize, part.layout.n() as usize);
            let (inputs, out) = (&activations[..self.rows * k], &mut out[..self.rows * n]);
            self.matmul.run(&pinned.weight_ref()?, inputs, out)?;
        }
        Ok(start.elapsed())
    }
}

/// Passes through half of the bytes against passes over resident weights, in turn.
fn streamed(path: &Path, rows: u32, rounds: usize) -> Result<()> {
    let device = Device::simulated(Default::default())?;
    let store = Arc::new(Store::from_pack(Pack::open(path)?));
    let scratch = ork_cache::scratch_bytes(&device, std::slice::from_ref(&store), rows);
    let widest = |size: fn(&rknpu::Layout) -> u32| {
        store.items().iter().map(|i| size(&i.layout)).max().unwrap_or(0) as usize * rows as usize
    };
    let activations: Vec<i8> = (0..widest(|l| l.k())).map(|i| (i * 7 % 31) as i8 - 15).collect();
    let mut out = vec![0; widest(|l| l.n())];
    // Four times the scratch, so that both run whole batches.
    let room = |weights: u64| (weights + scratch).max(4 * scratch);
    let mut resident = Run::new(&device, &store, room(store.bytes()), rows)?;
    let mut half = Run::new(&device, &store, room(store.bytes() / 2), rows)?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..=rounds {
        times[0].push(resident.pass(&activations, &mut out)?);
        times[1].push(half.pass(&activations, &mut out)?);
    }
    let [resident, streamed] = times.map(|times| median(times[1..].to_vec()));
    let loads = half.opened.cache.stats().loads() / (rounds as u64 + 1);
    println!(
        "real copies, M = {rows}, {:.0} MiB through {:.0} MiB: streamed / resident   target <= 1.10   {:.3} ({:.2} s / {:.2} s, {loads} loads a pass)",
        store.bytes() as f64 / f64::from(1 << 20),
        half.opened.bytes as f64 / f64::from(1 << 20),
        streamed / resident,
        streamed,
        resident
    );
    Ok(())
}
