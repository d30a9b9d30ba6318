//! Tiling against memcpy of the same bytes, on one thread, from and to whole pages.
//!
//! What bounds it: memory, as it does memcpy. In the caches the runs do, 32 bytes of the 64 that a
//! store could take: 0.75 to 1 of a memcpy that runs at 30 to 45 GB/s there. For int4, whose runs of
//! 16 bytes are a quarter of that, 0.55 to 0.85. Beyond half of the last cache stores past it make
//! tiling as fast as a memcpy that does without them, or faster.

use ork_weights::tile::{rows_bytes, tile};
use ratio::{Bench, Pages};
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
    let mut rows = Pages::new(rows_bytes(&layout) as usize);
    rows.iter_mut().enumerate().for_each(|(i, byte)| *byte = ((i * 31) >> 3) as u8);
    let mut out = Pages::new(layout.bytes() as usize);
    let mut copy = Pages::new(rows.len());
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
