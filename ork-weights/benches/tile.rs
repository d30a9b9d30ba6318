//! Tiling against memcpy of the same bytes, on one thread.
//!
//! What bounds it: every byte is moved twice, rows to an L1 buffer and that to its place. Where
//! memory is the slower part this does not show. It does where both sides fit the caches (1024 ×
//! 1024: about 0.65 of a memcpy that runs at 20 GB/s or more), and for int4, whose runs of 16 bytes
//! are half a vector. Writing runs straight to their place is slower still: 0.2 to 0.7.

use ork_weights::tile::{rows_bytes, tile};
use ratio::Bench;
use rknpu_sys::layout::{Layout, Precision};
use std::hint::black_box;

fn main() {
    let bench = Bench::from_args();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
    let sides: &[u32] = if bench.measures() { &[1024, 4096, 11008] } else { &[1024] };
    for &k in sides {
        for &n in sides {
            compare(&bench, &pool, k, n, Precision::Int8, 0.7);
        }
    }
    compare(&bench, &pool, 4096, 4096, Precision::Fp16, 0.7);
    compare(&bench, &pool, 4096, 4096, Precision::Int4, 0.7);
}

fn compare(
    bench: &Bench,
    pool: &rayon::ThreadPool,
    k: u32,
    n: u32,
    precision: Precision,
    target: f64,
) {
    let name = format!("tile/{precision:?}/{k}x{n}/memcpy").to_lowercase();
    if !bench.wants(&name) {
        return;
    }
    let layout = Layout::new(k, n, precision).expect("multiples of 64");
    let rows: Vec<u8> = (0..rows_bytes(&layout)).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut out = vec![0; layout.bytes() as usize];
    let mut copy = vec![0; rows.len()];
    // Small weights are tiled several times a round, so that a round is long enough to time.
    let repeat = (64 << 20) / rows.len().min(64 << 20);
    pool.install(|| {
        bench.compare(
            &name,
            target,
            (rows.len() * repeat) as u64,
            || {
                for _ in 0..repeat {
                    tile(&layout, black_box(&rows), black_box(&mut out)).expect("lengths fit");
                }
            },
            || {
                for _ in 0..repeat {
                    black_box(&mut copy).copy_from_slice(black_box(&rows));
                }
            },
        )
    });
}
