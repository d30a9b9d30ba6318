//! The simulated core's int8 matmul against a plain triple loop.
//!
//! The subject is all that a job costs: fetching and decoding the program, checking it, multiplying,
//! writing results. The baseline multiplies only, its weights as `[n][k]` so that both operands are
//! read in order. `bytes` is operations (a multiply-add is two), so read GB/s as GOP/s.

#[path = "../tests/npu/encode.rs"]
#[allow(dead_code, reason = "only the row-major int8 program is measured")]
mod encode;
#[path = "../tests/npu/memory.rs"]
#[allow(dead_code, reason = "results are compared once, in the tests")]
mod memory;

use std::hint::black_box;

use encode::{Shape, Types};
use memory::Memory;
use ratio::Bench;
use rknpu_sim::engine::{Engine, Outcome, Start};
use rknpu_sim::npu::{Npu, Timing};

const PROGRAM: u32 = 0x1000_0000;
const INPUT: u32 = 0x2000_0000;
const WEIGHTS: u32 = 0x4000_0000;
const OUTPUT: u32 = 0x8000_0000;

fn main() {
    let bench = Bench::from_args();
    for m in [1, 32, 256] {
        compare(&bench, m);
    }
}

fn compare(bench: &Bench, m: u32) {
    let (k, n) = if bench.measures() { (1024, 1024) } else { (64, 64) };
    let m = if bench.measures() { m } else { m.min(2) };
    let types = Types::Int8Int32;
    let s = Shape { types, m, k, n, input: INPUT, weights: WEIGHTS, output: OUTPUT };
    let listing = encode::row_major(s, n);
    let codes = |count: u32| (0..count).map(|i| (i * 37 % 255) as u8).collect::<Vec<u8>>();
    let (a, b) = (codes(m * k), codes(k * n));
    let mut memory = Memory::default();
    memory
        .map(PROGRAM, listing.bytes(None))
        .map(INPUT, a.clone())
        .map(WEIGHTS, b.clone())
        .map(OUTPUT, vec![0; (4 * m * n) as usize]);
    let start = Start {
        core: 0,
        regcmd_addr: PROGRAM,
        regcfg_amount: listing.0.len() as u32,
        tasks: 1,
        dma_base: 0,
        int_mask: 0x300,
        ping_pong: true,
        fresh: true,
    };
    let npu = Npu::new(Timing::instant());
    let mut c = vec![0i32; (m * n) as usize];
    bench.compare(
        &format!("int8_{m}x{k}x{n}/triple_loop"),
        4.0,
        2 * u64::from(m) * u64::from(k) * u64::from(n),
        || {
            memory.forget();
            let run = npu.run(black_box(&start), &mut &memory);
            assert!(matches!(run.outcome, Outcome::Done { .. }), "{run:?}");
        },
        || triple_loop(black_box(&a), black_box(&b), k as usize, &mut c),
    );
    black_box(&c);
}

#[inline(never)]
fn triple_loop(a: &[u8], b: &[u8], k: usize, c: &mut [i32]) {
    let n = b.len() / k;
    for (row, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
        for (channel, c) in b.chunks_exact(k).zip(c) {
            let mut sum = 0;
            for (a, b) in row.iter().zip(channel) {
                sum += i32::from(*a as i8) * i32::from(*b as i8);
            }
            *c = sum;
        }
    }
}
