//! What a matmul costs the CPU besides the driver: submitting, and moving activations and results or
//! leaving them where they are.

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
    in_place(&bench);
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

/// What a pass does around a product, rows quantised from floats and results scaled into floats, with
/// copies in between against in place.
fn in_place(bench: &Bench) {
    let (m, size) = if bench.measures() { (128, 4096) } else { (8, 1056) };
    for (k, n) in [(size, size), (1024, size)] {
        let name = format!("copied/in place, K={k} N={n}");
        if !bench.wants(&name) {
            continue;
        }
        let layout = Layout::new(k, n, Precision::Int8).unwrap();
        with_matmul(m, layout, 3, |matmul, weight| {
            let (k, n) = (k as usize, n as usize);
            let floats: Vec<f32> = (0..m * k).map(|i| (i % 251) as f32 - 125.0).collect();
            let (mut scaled, mut again) = (vec![0f32; m * n], vec![0f32; m * n]);
            let (mut inputs, mut out) = (vec![0i8; m * k], vec![0i32; m * n]);
            let bytes = (m * (k + 4 * n)) as u64;
            // One closure has the matmul at a time.
            let matmul = std::cell::RefCell::new(matmul);
            bench.compare(
                &name,
                1.0,
                bytes,
                || {
                    let matmul = &mut *matmul.borrow_mut();
                    let mut rows = matmul.activations().lease(m, k as u32).unwrap();
                    for (row, floats) in floats.chunks_exact(k).enumerate() {
                        for (range, run) in rows.row_mut(row).unwrap() {
                            quantise(&floats[range.start as usize..range.end as usize], run);
                        }
                    }
                    let rows = rows.to_device().unwrap();
                    let mut product = matmul.multiply(weight, &rows).unwrap();
                    while let Some(outputs) = product.next_columns().unwrap() {
                        for (row, scaled) in scaled.chunks_exact_mut(n).enumerate() {
                            for segment in outputs.row(row) {
                                segment.sums(|columns, sums| {
                                    let columns = columns.start as usize..columns.end as usize;
                                    scale(sums, &mut scaled[columns]);
                                });
                            }
                        }
                    }
                },
                || {
                    let matmul = &mut *matmul.borrow_mut();
                    quantise(&floats, &mut inputs);
                    matmul.run(weight, &inputs, &mut out).unwrap();
                    scale(&out, &mut again);
                },
            );
        });
    }
}

fn quantise(floats: &[f32], codes: &mut [i8]) {
    for (code, float) in codes.iter_mut().zip(floats) {
        *code = (float * 0.99) as i8;
    }
}

fn scale(results: &[i32], floats: &mut [f32]) {
    for (float, result) in floats.iter_mut().zip(results) {
        *float = *result as f32 * 0.01;
    }
}

fn with_matmul(m: usize, layout: Layout, cores: u32, f: impl FnOnce(&mut Matmul, &WeightRef<'_>)) {
    let device = Device::with_driver(support::NoOp::driver(), &OpenOptions::new()).unwrap();
    let domain = device.domain(0).unwrap();
    let cores = (0..cores).map(|core| device.core(core).unwrap()).collect();
    let cores = Cores::new(cores).unwrap();
    let limits = MatmulLimits { rows: m as u32, k: layout.k(), n: layout.n() };
    let mut matmul = Matmul::int8(&domain, &cores, limits).unwrap();
    let weight = domain.alloc(layout.bytes() as usize).unwrap().to_device().unwrap();
    f(&mut matmul, &WeightRef::new(&weight, 0, layout).unwrap());
}
