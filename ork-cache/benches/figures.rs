//! The figures that the cache is judged by, each beside its target. Times are printed, never
//! asserted: a loaded machine is no error of the code.
//!
//! `cargo bench -p ork-cache`; without `--bench` (as `cargo test --benches` runs it) small sizes
//! show that it works.

use std::alloc::{GlobalAlloc, Layout as AllocLayout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ork_cache::backend::Backend;
use ork_cache::core::{Core, Home, Limits, WeightSpec};
use ork_cache::experts::{
    Decode, ExpertTable, LastUsed, Popularity, Predictor, Routing, Traffic, Transition,
};
use ork_cache::fake::Fake;
use ork_cache::plan::{Board, Experts, Item, Plan, Shape};
use ork_cache::policy::simulate::Trace;
use ork_cache::policy::{Lfu, Lru, NextUse, PinnedRing, Policy, S3Fifo};
use ork_cache::prefetch::Prefetcher;
use ork_cache::virtual_time::{Clock, PassReport, Passes, Timing};
use ork_cache::{Cache, Cause, DomainId, WeightId};
use rknpu_sys::layout::{Layout, Precision};

/// Counts allocations of the whole process.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: AllocLayout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: AllocLayout) {
        // SAFETY: `at` came from `System.alloc` with this layout, as the caller promises of `alloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const D0: DomainId = DomainId(0);

fn figure(name: &str, target: &str, value: impl std::fmt::Display) {
    println!("{name:<72} target {target:<16} {value}");
}

fn main() {
    let measures = std::env::args().any(|a| a == "--bench");
    scans();
    acquire(if measures { 2_000_000 } else { 1000 });
    plan_experts();
    dense_virtual();
    dense_threads(if measures { 5 } else { 1 });
    experts_prefill();
    experts_decode(if measures { 400 } else { 40 });
    large_plans();
}

/// Loads of a pass: N equal layers, room for C, a ring of 4.
fn scans() {
    for (n, c) in [(32u64, 16u64), (32, 24), (48, 16), (100, 90)] {
        let trace = Trace::scan(vec![1; n as usize], 40);
        let from = (n * 20) as usize;
        let pinned: Vec<WeightId> = (0..c as u32 - 4).map(WeightId).collect();
        let mut policies: Vec<Box<dyn Policy>> = vec![
            Box::new(PinnedRing::new(&pinned)),
            Box::new(NextUse::cyclic(&trace.uses[..n as usize])),
            Box::new(Lru::new()),
            Box::new(Lfu::new(64)),
            Box::new(S3Fifo::new()),
        ];
        for row in trace.compare(&mut policies, c, from) {
            let loads = row.outcome.loads() as f64 / 20.0;
            let target =
                if row.policy == "pinned_ring" { format!("= {}", n - (c - 4)) } else { "-".into() };
            let belady = row.belady.loads() as f64 / 20.0;
            figure(
                &format!("loads per pass, N={n} C={c} S=4, {}", row.policy),
                &target,
                format!("{loads:.1} (Belady on demand {belady:.1})"),
            );
        }
    }
}

/// `acquire` of a resident weight by one thread.
fn acquire(times: u32) {
    for (name, policy, home) in [
        ("fixed", Box::new(PinnedRing::new(&[])) as Box<dyn Policy>, Home::Fixed),
        ("own, LRU", Box::new(Lru::new()), Home::Own),
    ] {
        let cache = Cache::new(Fake::new(1 << 20), Limits::single(1 << 20), policy);
        let spec = WeightSpec { bytes: 4096, domain: D0, home };
        let first = cache.attach(&[spec; 64]).expect("fits");
        for i in 0..64 {
            drop(cache.acquire(WeightId(first.0 + i)).expect("loads"));
        }
        let mut held = Vec::with_capacity(64);
        let (mut acquire, mut release) = (f64::MAX, f64::MAX);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..times / 64 + 1 {
            let start = Instant::now();
            held.extend((0..64).map(|i| cache.acquire(WeightId(i)).expect("resident")));
            acquire = acquire.min(start.elapsed().as_nanos() as f64 / 64.0);
            let start = Instant::now();
            black_box(&mut held).clear();
            release = release.min(start.elapsed().as_nanos() as f64 / 64.0);
        }
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        let name = format!("resident, hot, {name}");
        figure(&format!("acquire, {name}"), "<= 150 ns", format!("{acquire:.0} ns"));
        figure(&format!("release, {name}"), "-", format!("{release:.0} ns"));
        figure("allocations in all of them", "0", allocations);
    }
}

/// 30,720 expert weights: 40 layers of 256 experts.
fn plan_experts() {
    let shape = Shape {
        name: "35b-a3b".into(),
        source: "sizes of a pack of 30,720 experts".into(),
        layers: 40,
        hidden: 2048,
        heads: 16,
        kv_heads: 2,
        head_dim: 256,
        ffn: None,
        vocab: 151_936,
        experts: Some(Experts { count: 256, active: 8, ffn: 512 }),
    };
    let items = shape.items().expect("tiles");
    let experts = items.iter().filter(|i| i.expert.is_some()).count();
    for board in ["rk3588-8g", "rk3588-16g", "rk3588-32g"] {
        let board = Board::known(board).expect("known");
        let run = |_| {
            let start = Instant::now();
            black_box(Plan::new(&shape.name, &items, &board).is_ok());
            start.elapsed()
        };
        let time = (0..5).map(run).min().unwrap_or_default();
        figure(
            &format!("plan of {experts} experts on {}", board.name),
            "<= 50 ms",
            format!("{:.1} ms", time.as_secs_f64() * 1e3),
        );
    }
}

/// 32 layers of one weight of 16 MiB.
fn layers() -> Vec<Item> {
    let layout = Layout::new(4096, 4096, Precision::Int8).expect("tiles");
    (0..32).map(|i| Item::new(format!("blk.{i}.ffn_up.weight"), layout)).collect()
}

/// A timing in which a load takes `ratio` times as long as computing with what it loads.
fn timing(ratio: f64, compute_ns: u64, bytes: u64) -> Timing {
    let load_ns = compute_ns as f64 * ratio;
    let speed = (bytes as f64 / load_ns * 1e9) as u64;
    Timing { load_bytes_per_second: speed, load_ns: 0, ..Timing::default() }
}

/// Half of the bytes stay; wall time against resident and against the bound.
fn dense_virtual() {
    let items = layers();
    let total: u64 = items.iter().map(Item::bytes).sum();
    let plan = Plan::new("dense", &items, &Board::single_window(total / 2)).expect("fits");
    let rows = 512;
    for (ratio, target) in [(0.8, "<= 1.03"), (2.0, "-")] {
        let compute = Timing::default().compute_ns(&items[0].layout, rows);
        let timing = timing(ratio, compute, items[0].bytes());
        let steady = |mut passes: Passes<'_>| {
            (0..3).for_each(|_| drop(passes.run()));
            (0..10)
                .filter_map(|_| passes.run().ok())
                .fold((Duration::ZERO, 0), |(wall, loads), r| (wall + r.wall / 10, loads + r.loads))
        };
        let resident = compute * items.len() as u64;
        let streamed = steady(Passes::new(&plan, &items, timing, rows).expect("fits"));
        let demand = steady(Passes::without_prefetch(&plan, &items, timing, rows).expect("fits"));
        let load = timing.load_ns(items[0].bytes()) * streamed.1 / 10;
        let bound = resident.max(load) as f64;
        let of = |wall: Duration, base: f64| format!("{:.3}", wall.as_nanos() as f64 / base);
        let name = format!("virtual time, budget half, T_load = {ratio} T_compute:");
        figure(&format!("{name} streamed / resident"), target, of(streamed.0, resident as f64));
        figure(&format!("{name} streamed / bound"), "<= 1.02", of(streamed.0, bound));
        figure(&format!("{name} without prefetch / resident"), "-", of(demand.0, resident as f64));
    }
}

/// A device whose copies take time without using the CPU.
struct Slow {
    fake: Fake,
    copy: Duration,
}

impl Backend for Slow {
    type Buffer = ork_cache::fake::FakeBuffer;

    fn create(&self, domain: DomainId, bytes: u64) -> Result<Self::Buffer, Cause> {
        self.fake.create(domain, bytes)
    }

    fn copy(&self, buffer: &mut Self::Buffer, weight: WeightId) -> Result<(), Cause> {
        std::thread::sleep(self.copy);
        self.fake.copy(buffer, weight)
    }

    fn publish(&self, buffer: &mut Self::Buffer) -> Result<(), Cause> {
        self.fake.publish(buffer)
    }

    fn free(&self, buffer: Self::Buffer) -> Result<(), Cause> {
        self.fake.free(buffer)
    }
}

/// The same with the real cache, worker and locks; copies and cores sleep.
fn dense_threads(passes: u32) {
    let items = layers();
    let total: u64 = items.iter().map(Item::bytes).sum();
    let plan = Plan::new("dense", &items, &Board::single_window(total / 2)).expect("fits");
    let compute = Duration::from_millis(4);
    for (ratio, target) in [(0.8, "<= 1.03"), (2.0, "-")] {
        let copy = compute.mul_f64(ratio);
        let run = |prefetch: bool| {
            let device = Slow { fake: Fake::new(plan.limits().total), copy };
            let cache = Cache::new(device, plan.limits(), Box::new(PinnedRing::new(&[])));
            let applied = plan.apply(&items, &cache).expect("fits");
            let prefetcher = Prefetcher::new(&cache).expect("a thread");
            if prefetch {
                prefetcher.follow(&applied.streamed);
            }
            let pass = || {
                for part in &applied.parts {
                    let _pinned = cache.acquire(part.weight).expect("loads");
                    std::thread::sleep(compute);
                }
            };
            pass();
            let start = Instant::now();
            let before = cache.stats();
            (0..passes).for_each(|_| pass());
            (
                start.elapsed() / passes,
                (cache.stats().loads() - before.loads()) as f64 / f64::from(passes),
            )
        };
        let resident = {
            // What a sleep really takes on this machine is part of the baseline.
            let start = Instant::now();
            (0..passes * 32).for_each(|_| std::thread::sleep(compute));
            start.elapsed() / passes
        };
        let ((streamed, loads), (demand, _)) = (run(true), run(false));
        let of = |a: Duration, b: Duration| format!("{:.3}", a.as_secs_f64() / b.as_secs_f64());
        let name = format!("threads, budget half, T_load = {ratio} T_compute:");
        figure(&format!("{name} streamed / resident"), target, of(streamed, resident));
        figure(
            &format!("{name} streamed / bound"),
            "<= 1.02",
            of(streamed, resident.max(copy.mul_f64(loads))),
        );
        figure(&format!("{name} without prefetch / resident"), "-", of(demand, resident));
    }
}

/// Layers of the mixture for prefill, and experts of each.
const MIXTURE: (u32, u32) = (12, 128);

/// Prefill of a mixture through slots for a quarter of its experts.
fn experts_prefill() {
    let (layers, experts) = MIXTURE;
    for zipf in [0.6, 1.0] {
        let (stickiness, coupling) = (0.3, 0.3);
        let traffic = Traffic { layers, experts, active: 8, zipf, stickiness, coupling, seed: 11 };
        let batches: Vec<_> = traffic.tokens(256 * 4).chunks(256).map(<[_]>::to_vec).collect();
        for ratio in [1.0, 0.5] {
            // LFU is what routed models get; 28 of 128 pinned leave a ring of 48 slots.
            let due = |w: &u32| (w + 1) * 28 / 128 > w * 28 / 128;
            let pinned: Vec<WeightId> = (0..layers * experts).filter(due).map(WeightId).collect();
            let policies: [Box<dyn Policy>; 2] =
                [Box::new(Lfu::new(layers * experts * 4)), Box::new(PinnedRing::new(&pinned))];
            for policy in policies {
                let name = policy.name();
                let report = prefill(&batches, ratio, policy);
                let share = report.stall.as_secs_f64() / report.compute.as_secs_f64();
                let uses = report.hits + report.demand_loads;
                figure(
                    &format!(
                        "experts, prefill, Zipf {zipf}, cache 25 %, {name}, T_load = {ratio} mean T_compute: stall"
                    ),
                    "<= 0.03",
                    format!("{share:.4} ({} loads, {uses} uses)", report.loads),
                );
            }
        }
    }
}

/// All batches but the first, in virtual time. A row takes an expert 125 µs, so that it computes for
/// 2 ms on average; a load takes `ratio` times as long.
fn prefill(batches: &[Vec<Vec<Vec<u32>>>], ratio: f64, policy: Box<dyn Policy>) -> PassReport {
    const ROW_NS: u64 = 125_000;
    let (layers, experts) = MIXTURE;
    let layout = Layout::new(2048, 768, Precision::Int8).expect("tiles");
    let load = (2e6 * ratio) as u64;
    let speed = layout.bytes() * 1_000_000_000 / load;
    let timing = Timing { load_bytes_per_second: speed, load_ns: 0, ..Timing::default() };
    let slots = (layers * experts / 4) as usize;
    let mut core = Core::new(Limits::single(slots as u64 * layout.bytes()), policy);
    let (class, list) = core.add_class(D0, layout.bytes(), slots).expect("fits");
    list.into_iter().for_each(|s| core.slot_created(s));
    let spec = WeightSpec { bytes: layout.bytes(), domain: D0, home: Home::Class(class) };
    core.attach(&vec![spec; (layers * experts) as usize]).expect("fits");
    let id = |layer: u32, expert: u32| WeightId(layer * experts + expert);
    let mut table = ExpertTable::default();
    for (layer, expert) in (0..layers * experts).map(|i| (i / experts, i % experts)) {
        table.add(layer, expert, &[id(layer, expert)]);
    }
    let mut popularity = Popularity::new(experts, 0.9);
    let mut clock = Clock::new(core, timing, true);
    let mut warm = None;
    for batch in batches {
        for layer in 0..layers {
            let routing = Routing::of_tokens(batch.iter().map(|t| &t[layer as usize][..]));
            let mut needed = Vec::new();
            let mut remaining = table
                .remaining(layer, &routing, |w| clock.presence(w), &mut needed)
                .expect("in the model");
            clock.replace(&needed);
            let used: Vec<u32> = routing.rows().iter().map(|r| r.0).collect();
            popularity.observe(layer, &used);
            let (next, mut guesses) = ((layer + 1) % layers, Vec::new());
            popularity.predict(next, experts as usize, &mut guesses);
            clock.speculate(&guesses.iter().map(|e| id(next, *e)).collect::<Vec<_>>());
            while let Some((expert, rows)) = remaining.next(&table, |w| clock.presence(w)) {
                clock.use_weight(id(layer, expert), u64::from(rows) * ROW_NS).expect("slots");
            }
        }
        warm.get_or_insert(clock.report());
    }
    clock.report() - warm.unwrap_or_default()
}

/// Decode: hit rates of predictors and policies against Belady's.
fn experts_decode(tokens: usize) {
    for (zipf, stickiness, coupling) in
        [(0.6, 0.0, 0.0), (1.0, 0.0, 0.0), (0.6, 0.3, 0.3), (1.0, 0.3, 0.3)]
    {
        let traffic =
            Traffic { layers: 24, experts: 128, active: 8, zipf, stickiness, coupling, seed: 5 };
        let list = traffic.tokens(tokens);
        let decode =
            Decode { tokens: &list, experts: 128, slots: 24 * 128 / 4, warm_up: tokens / 4 };
        let belady = decode.belady().expect("routings of the model").hit_rate();
        let mut best = (0.0, String::new());
        for (name, policy) in [("lru", 0), ("lfu", 1), ("s3fifo", 2)] {
            let make = || -> Box<dyn Policy> {
                match policy {
                    0 => Box::new(Lru::new()),
                    1 => Box::new(Lfu::new(24 * 8 * 64)),
                    _ => Box::new(S3Fifo::new()),
                }
            };
            let mut predictors: [Option<Box<dyn Predictor>>; 4] = [
                None,
                Some(Box::<LastUsed>::default()),
                Some(Box::new(Popularity::new(128, 0.98))),
                Some(Box::new(Transition::new(128, 0.98))),
            ];
            for predictor in &mut predictors {
                let label = predictor.as_ref().map_or("no guesses", |p| p.name());
                let guess = predictor.as_mut().map(|p| (p.as_mut() as &mut dyn Predictor, 16));
                let report = decode.run(make(), guess).expect("in the model");
                let rate = report.hit_rate();
                if rate > best.0 {
                    let loads = report.loads as f64 / report.uses as f64;
                    best = (rate, format!("{name} + {label}, {loads:.2} loads a use"));
                }
            }
        }
        figure(
            &format!(
                "experts, decode, Zipf {zipf}, stickiness {stickiness}, coupling {coupling}: hits / Belady"
            ),
            ">= 0.85",
            format!("{:.3} / {belady:.3} = {:.3} ({})", best.0, best.0 / belady, best.1),
        );
    }
}

/// Passes of models that no machine here holds.
fn large_plans() {
    for (name, board) in [("gemma-2-27b", "rk3588-8g"), ("qwen3-235b-a22b", "rk3588-32g")] {
        let items = Shape::known(name).and_then(|s| s.items().ok()).expect("known");
        let board = Board::known(board).expect("known");
        let plan = Plan::new(name, &items, &board).expect("fits");
        let start = Instant::now();
        let mut passes = Passes::new(&plan, &items, Timing::default(), 512).expect("fits");
        let first = passes.run().expect("runs");
        let steady = passes.run().expect("runs");
        figure(
            &format!("{name} on {}, a pass of 512 rows in virtual time", board.name),
            "seconds",
            format!(
                "{:.2} s to simulate; first pass {:.1} s, then {:.1} s ({} loads)",
                start.elapsed().as_secs_f64(),
                first.wall.as_secs_f64(),
                steady.wall.as_secs_f64(),
                steady.loads
            ),
        );
    }
}
