//! Products on the CPU, on one thread: single rows against memcpy of the weights, batches against
//! single rows.
//!
//! What bounds a single row: memory, as it does memcpy, which also writes. In two planes, and with a
//! few rows, the multiplications do.

use ork_linear::{Cpu, Depth, Output, QuantisedRows, TiledWeight, Transform};
use ratio::{Bench, Pages};
use rknpu_sys::layout::{Layout, Precision};
use std::hint::black_box;

fn main() {
    let bench = Bench::from_args();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
    pool.install(|| {
        // Larger than any cache, and one that a second-level cache holds.
        let large = if bench.measures() { (8192, 28672) } else { (1024, 1024) };
        single(&bench, "large", large, Depth::Bits8, 0.6);
        single(&bench, "large", large, Depth::Bits16, 0.6);
        single(&bench, "cached", (1024, 1024), Depth::Bits8, 0.6);
        for rows in [4, 16] {
            // A walk over the weights serves four rows of codes.
            batch(&bench, rows, Depth::Bits8, rows as f64 / 4.0);
            batch(&bench, rows, Depth::Bits16, rows as f64 / 8.0);
        }
    });
}

struct Product {
    layout: Layout,
    tiles: Pages,
    scales: Vec<f32>,
    cpu: Cpu,
}

impl Product {
    fn new((k, n): (u32, u32)) -> Product {
        let layout = Layout::new(k, n, Precision::Int8).expect("multiples of 32");
        let mut tiles = Pages::new(layout.bytes() as usize);
        tiles.iter_mut().enumerate().for_each(|(i, byte)| *byte = ((i * 31) >> 3) as u8);
        Product { layout, tiles, scales: vec![1e-4; n as usize], cpu: Cpu::default() }
    }

    fn run(&mut self, rows: &QuantisedRows, out: &mut [f32]) {
        let n = self.layout.n() as usize;
        let weight =
            TiledWeight::new(self.layout, black_box(&self.tiles), &self.scales, Transform::None);
        let out = Output { rows: black_box(out), n, column: 0 };
        self.cpu.multiply(&weight.expect("lengths fit"), rows, out).expect("shapes fit");
    }
}

fn rows(m: usize, k: u32, depth: Depth) -> QuantisedRows {
    let values: Vec<f32> = (0..m * k as usize).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut rows = QuantisedRows::new(depth);
    rows.quantise(&values, k, Transform::None).expect("whole rows");
    rows
}

fn single(bench: &Bench, name: &str, shape: (u32, u32), depth: Depth, target: f64) {
    let name = format!("one row/{name}/{depth} bits/memcpy");
    if !bench.wants(&name) {
        return;
    }
    let mut product = Product::new(shape);
    let mut copy = Pages::new(product.tiles.len());
    let from = product.tiles.to_vec();
    let rows = rows(1, shape.0, depth);
    let mut out = vec![0.0; shape.1 as usize];
    let repeat = (64 << 20) / from.len().min(64 << 20);
    bench.compare(
        &name,
        target,
        (from.len() * repeat) as u64,
        || (0..repeat).for_each(|_| product.run(&rows, &mut out)),
        || (0..repeat).for_each(|_| black_box(&mut copy).copy_from_slice(black_box(&from))),
    );
}

/// The speed of `m` rows at once in that of one; as bytes, the weights they would read alone.
fn batch(bench: &Bench, m: usize, depth: Depth, target: f64) {
    let name = format!("{m} rows/{depth} bits/one row each");
    if !bench.wants(&name) {
        return;
    }
    let shape = if bench.measures() { (4096, 11008) } else { (256, 256) };
    let (mut product, mut alone) = (Product::new(shape), Product::new(shape));
    let (rows, row) = (rows(m, shape.0, depth), rows(1, shape.0, depth));
    let (mut out, mut out_row) = (vec![0.0; m * shape.1 as usize], vec![0.0; shape.1 as usize]);
    let bytes = product.tiles.len() * m;
    bench.compare(
        &name,
        target,
        bytes as u64,
        || product.run(&rows, &mut out),
        || (0..m).for_each(|_| alone.run(&row, &mut out_row)),
    );
}
