//! A prefill of 128 rows by lists of products against one product after the other: the NPU's time by the
//! timing model, and submits, of one layer of two models.
//!
//! The time of a submit is what the model says of its cores, in the mean: they end together but for a tile.
//! That is the same in every run, whatever this machine's speed.
//!
//! Gemma 270M: 1.31 times as fast with rows of one int8 plane, 1.24 with two; the 1.7B model: 1.18 and 1.10. A layer is 4
//! submits of each core, where its products one by one are 5 to 7.

use std::time::Duration;

use ratio::Bench;
use rknpu::chains::Chains;
use rknpu::sim::Machine;
use rknpu::sim::config::Config;
use rknpu::sim::npu::{Npu, Timing};
use rknpu::{Device, Layout, Matmul, MatmulLimits, OpenOptions, Precision, WeightRef, driver};
use std::sync::Arc;

/// A layer's products, by the input that they share: K, and the N of each.
type Layer = [(u32, &'static [u32]); 4];

const GEMMA_270M: Layer =
    [(640, &[1024, 256, 256]), (1024, &[640]), (640, &[2048, 2048]), (2048, &[640])];
const QWEN3_1_7B: Layer =
    [(2048, &[2048, 1024, 1024]), (2048, &[2048]), (2048, &[6144, 6144]), (6144, &[2048])];

fn main() {
    let bench = Bench::from_args();
    // One plane of int8, and two, which are as many further rows.
    for (name, layer, planes, target) in [
        ("gemma 270m", GEMMA_270M, 1, 1.25),
        ("gemma 270m", GEMMA_270M, 2, 1.2),
        ("1.7b", QWEN3_1_7B, 1, 1.15),
        ("1.7b", QWEN3_1_7B, 2, 1.05),
    ] {
        let name = format!("lists/one by one ({name}, 128 rows of {planes})");
        if !bench.wants(&name) {
            continue;
        }
        let rows = if bench.measures() { 128 * planes } else { 4 };
        let seen = Chains::seen_on_boards(Precision::Int8);
        let (lists, submits) = pass(layer, rows, seen);
        let (alone, submits_alone) = pass(layer, rows, Chains::NONE);
        let ratio = alone.as_secs_f64() / lists.as_secs_f64();
        let ok = if ratio >= target || !bench.measures() { "ok" } else { "below" };
        println!(
            "{name:<44} {ratio:>8.3}  target {target:>6.2}  {ok:<5}  {submits:?} submits a core against \
             {submits_alone:?}, {:.2} ms against {:.2}",
            lists.as_secs_f64() * 1e3,
            alone.as_secs_f64() * 1e3,
        );
    }
}

/// Time and submits, by core, of a layer under these rules, when memory is no longer fresh.
fn pass(layer: Layer, rows: usize, chains: Chains) -> (Duration, [u64; 3]) {
    let engine = Arc::new(Npu::new(Timing::default()));
    let machine = Machine::new(Config { engine, ..Config::default() });
    let options = OpenOptions::new().chains(Precision::Int8, chains);
    let device = Device::with_driver(driver::simulated(&machine).unwrap(), &options).unwrap();
    let domain = device.domain(0).unwrap();
    let widest = |of: fn(&(u32, &[u32])) -> u32| layer.iter().map(of).max().unwrap();
    let k = widest(|(k, _)| *k);
    let n = widest(|(_, n)| n.iter().copied().max().unwrap());
    let limits = MatmulLimits { rows: rows as u32, k, n };
    let mut matmul = Matmul::int8(&domain, &device.cores().unwrap(), limits).unwrap();
    let buffers: Vec<Vec<_>> = layer
        .iter()
        .map(|(k, ns)| {
            let layouts = ns.iter().map(|n| Layout::new(*k, *n, Precision::Int8).unwrap());
            let alloc = |layout: Layout| domain.alloc(layout.bytes() as usize).unwrap();
            layouts.map(|layout| (layout, alloc(layout).to_device().unwrap())).collect()
        })
        .collect();
    let mut measured = (Duration::ZERO, [0; 3]);
    for _ in 0..2 {
        let starts = || machine.report().cores.map(|core| core.starts);
        let (mut time, before) = (Duration::ZERO, starts());
        for ((k, _), weights) in layer.iter().zip(&buffers) {
            let refs: Vec<_> = weights
                .iter()
                .map(|(layout, buffer)| WeightRef::new(buffer, 0, *layout).unwrap())
                .collect();
            let rows = matmul.activations().lease(rows, *k).unwrap().to_device().unwrap();
            let mut product = matmul.multiply_all(&refs, &rows).unwrap();
            while product.next_columns().unwrap().is_some() {}
            let stats = product.stats();
            time += stats.busy / stats.cores;
        }
        let after = starts();
        measured = (time, std::array::from_fn(|i| after[i] - before[i]));
    }
    measured
}
