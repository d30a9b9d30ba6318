//! From a model file's blocks to int8 tiles, on one thread: against memcpy of the int8 bytes, and
//! against the plain loop a C program would have.
//!
//! What bounds it: arithmetic. In the caches a value takes (Zen 4, best of many) 0.23 ns for Q8_0 and
//! F16, 0.27 for Q4_K, 0.30 for Q6_K, where memcpy takes 0.02 ns for a byte, and 0.1 from memory. Of
//! that a third to a half is from blocks to floats, the rest one pass for the largest magnitude and one
//! for codes. Reading the blocks twice, without rows of floats between, was no faster. Tiles that
//! exceed the last cache are written past it, for it would first read what is overwritten. The plain
//! loop gains on a large last cache, which hides most of its strides.

use ork_weights::dequant::{TensorType, dequantise};
use ork_weights::quantise::{Recipe, Rows, Tier, quantise, rotate};
use ratio::{Bench, Pages};
use rknpu_sys::layout::Layout;
use std::hint::black_box;

fn main() {
    let bench = Bench::from_args();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
    let side = if bench.measures() { 4096 } else { 256 };
    pool.install(|| {
        for (kind, target) in [
            (TensorType::Q4_K, 0.15),
            (TensorType::Q6_K, 0.15),
            (TensorType::Q8_0, 0.3),
            (TensorType::F16, 0.25),
        ] {
            against_memcpy(&bench, kind, side, target);
        }
        against_plain_loop(&bench, side);
        rotation(&bench);
    });
}

/// A weight, and where it goes.
struct Case {
    raw: Vec<u8>,
    kind: TensorType,
    layout: Layout,
    tiled: Pages,
    scales: Vec<f32>,
}

impl Case {
    fn new(kind: TensorType, side: u32) -> Case {
        let layout = Tier::Int8.layout(side, side).expect("a multiple of 32");
        let blocks = (side as usize).pow(2) / kind.block_elements();
        let mut state = 1u64;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let mut raw: Vec<u8> = (0..blocks * kind.block_bytes()).map(|_| noise()).collect();
        // Upper bytes of half floats get exponents of believable sizes.
        let halves: &[usize] = match kind {
            TensorType::Q4_K => &[1, 3],
            TensorType::Q6_K => &[209],
            _ => &[1],
        };
        for block in raw.chunks_exact_mut(kind.block_bytes()) {
            halves.iter().for_each(|&at| block[at] = block[at] & 0x83 | 0x14);
        }
        let scales = vec![0.0; side as usize];
        Case { raw, kind, layout, tiled: Pages::new(layout.bytes() as usize), scales }
    }

    fn quantise(&mut self) {
        let (k, n) = (self.layout.k(), self.layout.n());
        let rows = Rows::new(self.kind, k, n, black_box(&self.raw)).expect("whole rows");
        let recipe = Recipe::new(Tier::Int8);
        quantise(&rows, &recipe, black_box(&mut self.tiled), &mut self.scales)
            .expect("finite values");
    }
}

fn against_memcpy(bench: &Bench, kind: TensorType, side: u32, target: f64) {
    let name = format!("quantise/{kind}-int8/memcpy").to_lowercase();
    if !bench.wants(&name) {
        return;
    }
    let mut case = Case::new(kind, side);
    let (from, mut to) = (Pages::new(case.tiled.len()), Pages::new(case.tiled.len()));
    bench.compare(
        &name,
        target,
        from.len() as u64,
        || case.quantise(),
        || black_box(&mut to).copy_from_slice(black_box(&from)),
    );
}

/// The baseline is given row-major `[K][N]` codes already, and only tiles them.
fn against_plain_loop(bench: &Bench, side: u32) {
    let name = "quantise/q4_k-int8/plain tiling loop";
    if !bench.wants(name) {
        return;
    }
    let mut case = Case::new(TensorType::Q4_K, side);
    let (k, n) = (side as usize, side as usize);
    let codes: Vec<i8> = (0..k * n).map(|i| i as i8).collect();
    let mut tiled = vec![0i8; k * n];
    bench.compare(
        name,
        3.0,
        (k * n) as u64,
        || case.quantise(),
        || plain_loop(black_box(&codes), black_box(&mut tiled), k, n),
    );
    let mut row = vec![0f32; k];
    let bytes = TensorType::Q4_K.row_bytes(k as u64).unwrap_or(0) as usize;
    bench.compare(
        "dequantise/q4_k row/f32 memcpy",
        0.5,
        (k * 4) as u64,
        || dequantise(TensorType::Q4_K, black_box(&case.raw[..bytes]), &mut row).expect("fits"),
        {
            let from = vec![0f32; k];
            let mut to = vec![0f32; k];
            move || black_box(&mut to).copy_from_slice(black_box(&from))
        },
    );
}

/// Element by element in the order of the tiles, as C code for this NPU does it.
fn plain_loop(codes: &[i8], out: &mut [i8], k: usize, n: usize) {
    let mut base = 0;
    for k0 in (0..k).step_by(1024) {
        let kp = (k - k0).min(1024);
        for t in 0..n / 32 {
            for kb in 0..kp / 32 {
                for j in 0..32 {
                    for ki in 0..32 {
                        out[base + ((t * (kp / 32) + kb) * 32 + j) * 32 + ki] =
                            codes[(k0 + kb * 32 + ki) * n + t * 32 + j];
                    }
                }
            }
        }
        base += kp * n;
    }
}

/// A row of activations in the caches, against one step after the other in plain loops.
fn rotation(bench: &Bench) {
    for size in [64, 4096] {
        let mut ours: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
        let mut theirs = ours.clone();
        bench.compare(
            &format!("rotate/4096 values in blocks of {size}, against plain loops"),
            2.0,
            4 * 4096,
            || ours.chunks_exact_mut(size).for_each(|block| rotate(black_box(block))),
            || theirs.chunks_exact_mut(size).for_each(|block| plain_steps(black_box(block))),
        );
    }
}

fn plain_steps(block: &mut [f32]) {
    let mut half = 1;
    while half < block.len() {
        for pair in block.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high) {
                (*low, *high) = (*low + *high, *low - *high);
            }
        }
        half *= 2;
    }
    let norm = (1.0 / (block.len() as f64).sqrt()) as f32;
    block.iter_mut().for_each(|value| *value *= norm);
}
