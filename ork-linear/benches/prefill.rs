//! A prompt of 128 rows through layers of two models: what is added beside the NPU's own time, and what
//! streaming half of the weights adds.
//!
//! The NPU's own time is the timing model's, of every start of a core, in the mean of the cores. Targets:
//!
//! * **added/NPU ≤ 0.10**: the pass once more, with cores that compute nothing and take no time, so that the
//!   simulator's work is not in it. Rows are quantised and scattered, results gathered and scaled, locks and
//!   bookkeeping; the simulated driver's calls are in it. It is this machine's time, on all its threads, against
//!   the board's, and no part of it counts as hidden behind the cores.
//! * **waited/NPU ≤ 0.10**: the same with cores that take the model's time: what is left when the CPU works beside
//!   them.
//! * **streamed/resident ≤ 1.05**: the NPU's own time at half of the weights' budget against all of it. Loads are
//!   copies beside the cores: the rate that would hide them is shown.
//! * **lists/q, k and v apart ≤ 0.95**: the NPU's own time with q, k and v as one list against one by one, as llama.cpp
//!   asks for them.
//!
//! Measured on two shared x86-64 cores (SmolLM2, Gemma, 1.7B): added 0.76, 0.73, 0.69; waited 1.31, 1.00, 0.75;
//! streamed/resident 1.00; q, k and v 0.94, 0.91, 0.94. What bounds the first two: at K = 640 the cores take 0.21 ns
//! for a sum by the timing model, and two sums of four bytes are read, joined and scaled for each result. A tenth of
//! 0.21 ns is a fifth of a byte of a memory of 10 GB/s: 0.10 is out of reach in two planes at such widths. A plain
//! copy of as many bytes as are read and written, all in cache, is shown beside. A list's results are there when its
//! chain ends, so there is little to do meanwhile; cutting a list would cost a submit, 167 µs, for each cut.
//!
//! `cargo bench -p ork-linear --bench prefill`

use std::hint::black_box;
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ork_cache::Store;
use ork_linear::{Depth, Layers, Product, Setup, open};
use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
use ratio::Bench;
use rayon::prelude::*;
use rknpu::Device;
use rknpu::sim::config::{Clock, Config};
use rknpu::sim::engine::{Bus, Engine, Outcome, Run, Start};
use rknpu::sim::npu::{Npu, Timing};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A layer's products, by the input that they share: K, and the N of each.
type Shape = [(u32, &'static [u32]); 4];

const SMOLLM2_135M: Shape =
    [(576, &[576, 192, 192]), (576, &[576]), (576, &[1536, 1536]), (1536, &[576])];
const GEMMA_270M: Shape =
    [(640, &[1024, 256, 256]), (1024, &[640]), (640, &[2048, 2048]), (2048, &[640])];
const QWEN3_1_7B: Shape =
    [(2048, &[2048, 1024, 1024]), (2048, &[2048]), (2048, &[6144, 6144]), (6144, &[2048])];

/// Cores that compute and note the time that the model gives, or do not compute.
#[derive(Debug)]
struct Metered {
    npu: Npu,
    mode: AtomicU8,
    /// Of each core, in the order of its starts in a pass.
    times: [Mutex<Vec<u64>>; 3],
    next: [AtomicUsize; 3],
    total_ns: AtomicU64,
}

const COMPUTES: u8 = 0;
const INSTANT: u8 = 1;
const PACED: u8 = 2;

impl Metered {
    fn new() -> Arc<Metered> {
        Arc::new(Metered {
            npu: Npu::new(Timing::default()),
            mode: AtomicU8::new(COMPUTES),
            times: Default::default(),
            next: Default::default(),
            total_ns: AtomicU64::new(0),
        })
    }

    /// Begins a pass.
    fn begin(&self, mode: u8) {
        self.mode.store(mode, Ordering::Relaxed);
        self.total_ns.store(0, Ordering::Relaxed);
        self.next.iter().for_each(|next| next.store(0, Ordering::Relaxed));
        if mode == COMPUTES {
            self.times.iter().for_each(|times| lock(times).clear());
        }
    }

    /// The time of the pass, in the mean of the cores.
    fn npu_time(&self) -> Duration {
        Duration::from_nanos(self.total_ns.load(Ordering::Relaxed) / 3)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine for Metered {
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run {
        let mode = self.mode.load(Ordering::Relaxed);
        if mode == COMPUTES {
            let run = self.npu.run(start, bus);
            if let Outcome::Done { busy_ns, .. } = run.outcome {
                lock(&self.times[start.core]).push(busy_ns);
                self.total_ns.fetch_add(busy_ns, Ordering::Relaxed);
            }
            return run;
        }
        let number = self.next[start.core].fetch_add(1, Ordering::Relaxed);
        let noted = lock(&self.times[start.core]).get(number).copied();
        let busy_ns = noted.filter(|_| mode == PACED).unwrap_or(0);
        self.total_ns.fetch_add(busy_ns, Ordering::Relaxed);
        let (int_status, tasks_done) = (start.int_mask, start.tasks);
        let outcome = Outcome::Done { int_status, tasks_done, busy_ns };
        Run { outcome, findings: Vec::new() }
    }
}

/// A model, its layers on a device of its own, and room for what goes in and out.
struct Model {
    engine: Arc<Metered>,
    layers: Layers,
    shape: Shape,
    blocks: usize,
    rows: usize,
    /// q, k and v one by one.
    apart: bool,
    input: Vec<f32>,
    outs: Vec<Vec<f32>>,
}

impl Model {
    fn new(
        store: &Arc<Store>,
        budget: u64,
        (shape, blocks): (Shape, usize),
        rows: usize,
        clock: Clock,
    ) -> Result<Model> {
        let engine = Metered::new();
        let config = Config { engine: engine.clone(), clock, ..Config::default() };
        let mut setup = Setup { npu_rows: 1, ..Setup::new(budget) };
        (setup.depth, setup.cache.rows) = (Depth::Bits16, rows as u32);
        let opened = open(&Device::simulated(config)?, slice::from_ref(store), &setup)?;
        let layers = opened.into_iter().next().ok_or("no model")?;
        let widest = |of: fn(&(u32, &[u32])) -> u32| shape.iter().map(of).max().unwrap_or(0);
        let k = widest(|(k, _)| *k) as usize;
        let n = widest(|(_, ns)| ns.iter().copied().max().unwrap_or(0)) as usize;
        let input = (0..rows * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let outs = vec![vec![0.0; rows * n]; 3];
        Ok(Model { engine, layers, shape, blocks, rows, apart: false, input, outs })
    }

    /// Every product once, as a decoder asks for them; gives this machine's time.
    fn pass(&mut self, mode: u8) -> Result<Duration> {
        self.engine.begin(mode);
        let begin = Instant::now();
        let mut weight = 0;
        for (number, (k, ns)) in (0..self.blocks).flat_map(|_| self.shape).enumerate() {
            let alone = self.apart && number % self.shape.len() == 0;
            for ns in ns.chunks(if alone { 1 } else { ns.len() }) {
                let input = &self.input[..self.rows * k as usize];
                let outs = self.outs.iter_mut().zip(ns).zip(weight..);
                let products = outs.map(|((out, n), weight)| Product {
                    weight,
                    out: &mut out[..self.rows * *n as usize],
                });
                self.layers.multiply(self.rows, input, products)?;
                weight += ns.len();
            }
        }
        Ok(begin.elapsed())
    }
}

fn write(path: &std::path::Path, shape: Shape, blocks: usize) -> Result<()> {
    let mut writer = PackWriter::create(path, None, WriterOptions::default())?;
    for block in 0..blocks {
        let weights = shape.iter().flat_map(|(k, ns)| ns.iter().map(move |n| (*k, *n)));
        for (number, (k, n)) in weights.enumerate() {
            let codes: Vec<u8> = (0..k * n).map(|i| (i ^ (i >> 9)) as u8).collect();
            let (name, scales) = (format!("blk.{block}.{number}"), vec![1e-4; n as usize]);
            writer.add(&name, k, n, Dtype::RotatedInt8, &codes, &scales)?;
        }
    }
    writer.finish()?;
    Ok(())
}

fn line(name: &str, ratio: f64, target: f64, measures: bool, more: &str) {
    let ok = if ratio <= target || !measures { "ok" } else { "above" };
    println!("{name:<44} {ratio:>8.3}  target <= {target:.2}  {ok:<5}  {more}");
}

fn main() -> Result<()> {
    let bench = Bench::from_args();
    let measures = bench.measures();
    let (rows, rounds) = if measures { (128, 15) } else { (2, 1) };
    let folder = tempfile::tempdir()?;
    for (name, shape, blocks) in [
        ("smollm2 135m", SMOLLM2_135M, 30),
        ("gemma 270m", GEMMA_270M, 18),
        ("1.7b", QWEN3_1_7B, 8),
    ] {
        if !bench.wants(name) {
            continue;
        }
        let blocks = if measures { blocks } else { 1 };
        let path = folder.path().join(format!("{name}.orkpack"));
        write(&path, shape, blocks)?;
        let store = Arc::new(Store::from_pack(Pack::open(&path)?));
        let scratch = ork_cache::scratch_bytes(
            &Device::simulated(Config::default())?,
            slice::from_ref(&store),
            2 * rows,
        );
        let room = |weights: u64| (weights + scratch).max(4 * scratch);

        let mut resident = Model::new(
            &store,
            4 * room(store.bytes()),
            (shape, blocks),
            rows as usize,
            Clock::Real,
        )?;
        // The first pass loads, the second makes the lists that all others make.
        resident.pass(COMPUTES)?;
        resident.pass(COMPUTES)?;
        let npu = resident.engine.npu_time();
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        // Sums are read, results written; a copy does as much of both.
        let results: usize = shape.iter().flat_map(|(_, ns)| *ns).map(|n| *n as usize).sum();
        let (from, mut to) = (vec![1u32; rows as usize * results * 3 / 2], Vec::new());
        for _ in 0..rounds {
            to.resize(from.len(), 0);
            let begin = Instant::now();
            for _ in 0..blocks {
                let chunks = to.par_chunks_mut(1 << 16).zip(from.par_chunks(1 << 16));
                chunks.for_each(|(to, from)| black_box(to).copy_from_slice(from));
            }
            times[2].push(begin.elapsed());
            times[0].push(resident.pass(INSTANT)?);
            let time = resident.pass(PACED)?;
            assert_eq!(resident.engine.npu_time(), npu, "every pass makes the same lists");
            times[1].push(time.saturating_sub(npu));
        }
        let [added, waited, copied] = times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64()
        });
        let of = npu.as_secs_f64();
        let more = format!(
            "{:.2} ms beside {:.2} of the NPU, {blocks} layers; a copy of the bytes {:.2}",
            added * 1e3,
            of * 1e3,
            copied * 1e3
        );
        line(&format!("added/NPU ({name}, {rows} rows)"), added / of, 0.1, measures, &more);
        let more = format!("{:.2} ms beside {:.2}", waited * 1e3, of * 1e3);
        line(&format!("waited/NPU ({name}, {rows} rows)"), waited / of, 0.1, measures, &more);

        resident.apart = true;
        resident.pass(COMPUTES)?;
        let apart = resident.engine.npu_time().as_secs_f64();
        let more = format!("{:.2} ms against {:.2}", of * 1e3, apart * 1e3);
        line(&format!("lists/q, k and v apart ({name})"), of / apart, 0.95, measures, &more);

        let budget = room(store.bytes() / 2);
        let mut half = Model::new(&store, budget, (shape, blocks), rows as usize, Clock::Virtual)?;
        let streamed = half.layers.placed().streamed_bytes();
        let mut times = Vec::new();
        for _ in 0..3 {
            half.pass(COMPUTES)?;
            times.push(half.engine.npu_time().as_secs_f64());
        }
        let slow = times[1..].iter().copied().fold(0.0, f64::max);
        let rate = streamed as f64 / slow / 1e9;
        let more = format!(
            "{:.1} of {:.1} MiB streamed, hidden from {rate:.1} GB/s on",
            streamed as f64 / 1048576.0,
            store.bytes() as f64 / 1048576.0
        );
        line(&format!("streamed/resident ({name}, {rows} rows)"), slow / of, 1.05, measures, &more);
    }
    Ok(())
}
