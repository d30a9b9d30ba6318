//! What a matmul costs the CPU besides the driver: submitting, and moving activations and results.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use ratio::Bench;
use rknpu::{Cores, Device, Layout, Matmul, MatmulLimits, OpenOptions, Precision, WeightRef};

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

fn main() {
    let bench = Bench::from_args();
    submit(&bench);
    gather_and_scatter(&bench);
}

/// A warm submit of one row: our share of the time, the driver's calls taking none.
fn submit(bench: &Bench) {
    let name = "submit/2us";
    if !bench.wants(name) {
        return;
    }
    let rounds = if bench.measures() { 20_000 } else { 10 };
    let layout = Layout::new(1024, 1024, Precision::Int8).unwrap();
    with_matmul(1, layout, 3, |matmul, weight| {
        let (row, mut out) = (vec![1i8; 1024], vec![0i32; 1024]);
        matmul.run(weight, &row, &mut out).unwrap();
        let before = ratio::allocations();
        let mut times: Vec<Duration> = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let begin = Instant::now();
            matmul.run(weight, &row, &mut out).unwrap();
            times.push(begin.elapsed());
        }
        let allocations = ratio::allocations() - before - 1;
        times.sort_unstable();
        let median = times[times.len() / 2].as_secs_f64() * 1e6;
        let ok = if median <= 2.0 && allocations == 0 { "ok" } else { "above" };
        println!(
            "{name:<44} {median:>8.3}  target <= 2.00  {ok:<5}  us of ours for M=1 K=N=1024, \
             {allocations} allocations in {rounds}"
        );
    });
}

/// All that is copied around a job, against a copy of as many bytes.
fn gather_and_scatter(bench: &Bench) {
    let (m, size) = if bench.measures() { (256, 4096) } else { (8, 1056) };
    let layout = Layout::new(size, size, Precision::Int8).unwrap();
    for cores in [1, 3] {
        let name = format!("gather_scatter/memcpy ({cores} cores)");
        if !bench.wants(&name) {
            continue;
        }
        with_matmul(m, layout, cores, |matmul, weight| {
            let activations = vec![1i8; m * size as usize];
            let mut out = vec![0i32; m * size as usize];
            // Activations once, partial results of every K slice once.
            let bytes = m * size as usize * (1 + 4 * layout.k_slices() as usize);
            let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
            bench.compare(
                &name,
                0.5,
                bytes as u64,
                || {
                    matmul.run(weight, &activations, &mut out).unwrap();
                },
                || to.copy_from_slice(&from),
            );
        });
    }
}

fn with_matmul(m: usize, layout: Layout, cores: u32, f: impl FnOnce(&mut Matmul, &WeightRef<'_>)) {
    let device = Device::with_kernel(support::NoOp::kernel(), &OpenOptions::new()).unwrap();
    let domain = device.domain(0).unwrap();
    let cores = (0..cores).map(|core| device.core(core).unwrap()).collect();
    let cores = Cores::new(cores).unwrap();
    let limits = MatmulLimits { rows: m as u32, k: layout.k(), n: layout.n() };
    let mut matmul = Matmul::int8(&domain, &cores, limits).unwrap();
    let weight = domain.alloc(layout.bytes() as usize).unwrap().to_device().unwrap();
    f(&mut matmul, &WeightRef::new(&weight, 0, layout).unwrap());
}
