//! What the driver model itself costs: addresses, buffers, empty jobs.
//!
//! The baselines are busy waits of the time that each may take at most, so the target of every line
//! is 1. `bytes` is the number of operations, so read GB/s as operations per nanosecond.

use ratio::Bench;
use rknpu_sim::config::Alignment;
use rknpu_sim::engine::{Bus, Engine, Outcome, Run, Start};
use rknpu_sim::iova::Space;
use rknpu_sim::{Config, File, Machine};
use rknpu_sys::ioctl::Request;
use rknpu_sys::uapi::{MemCreate, MemDestroy, MemMap, SubcoreTask, Submit, Task};
use std::hint::spin_loop;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Live ranges in the space.
const LIVE: usize = 10_000;

fn main() {
    let bench = Bench::from_args();
    let ops: u32 = if bench.measures() { 20_000 } else { 100 };
    addresses(&bench, "iova_aligned/2us_each", ops, false);
    addresses(&bench, "iova_unaligned/2us_each", ops, true);
    buffers(&bench, ops / 100);
    jobs(&bench, ops / 10);
}

/// Waits busily for what `ops` operations may take.
fn allow(each: Duration, ops: u32) -> impl FnMut() {
    move || {
        let end = Instant::now() + each * ops;
        while Instant::now() < end {
            spin_loop();
        }
    }
}

/// Allocations and frees among ranges of many sizes, a third of which were freed again before.
fn addresses(bench: &Bench, name: &str, ops: u32, unaligned: bool) {
    let mut space = Space::new(Alignment::PowerOfTwo);
    let size = |n: usize| 4096 * (1 + (n * 7919) as u64 % 48);
    let alloc = |space: &mut Space, bytes| {
        if unaligned { space.alloc_unaligned(bytes) } else { space.alloc_aligned(bytes, 0) }
    };
    let free = |space: &mut Space, iova, bytes| {
        if unaligned { space.free_unaligned(iova) } else { space.free_aligned(iova, bytes, 0) }
    };
    let mut live: Vec<(u64, u64)> =
        (0..LIVE * 3 / 2).filter_map(|n| Some((alloc(&mut space, size(n))?, size(n)))).collect();
    let mut kept = Vec::with_capacity(LIVE);
    for (n, (iova, bytes)) in live.drain(..).enumerate() {
        if n % 3 == 0 { free(&mut space, iova, bytes) } else { kept.push((iova, bytes)) }
    }
    let mut n = 0;
    let run = || {
        for _ in 0..ops / 2 {
            n += 1;
            let at = (n * 7907) % kept.len();
            let (iova, bytes) = kept[at];
            free(&mut space, iova, bytes);
            let bytes = size(n);
            kept[at] = (alloc(&mut space, bytes).expect("as much was just freed"), bytes);
        }
    };
    bench.compare(name, 1.0, ops.into(), run, allow(Duration::from_micros(2), ops));
}

fn call<T: Request + FromBytes + IntoBytes>(file: &File, args: &mut T) {
    file.call(args).expect("a correct call");
}

/// MEM_CREATE and MEM_DESTROY of a megabyte.
fn buffers(bench: &Bench, ops: u32) {
    let file = Machine::new(Config::default()).open();
    let run = || {
        for _ in 0..ops {
            let mut args = MemCreate { flags: 0x403, size: 1 << 20, ..MemCreate::default() };
            call(&file, &mut args);
            call(&file, &mut MemDestroy { handle: args.handle, ..MemDestroy::default() });
        }
    };
    let each = Duration::from_micros(100);
    bench.compare("mem_create_destroy/100us", 1.0, ops.into(), run, allow(each, ops));
}

#[derive(Debug)]
struct Nothing;

impl Engine for Nothing {
    fn run(&self, start: &Start, _: &mut dyn Bus) -> Run {
        let done = Outcome::Done { int_status: start.int_mask, tasks_done: 1, busy_ns: 1 };
        Run { outcome: done, findings: Vec::new() }
    }
}

/// A blocking SUBMIT whose job does nothing.
fn jobs(bench: &Bench, ops: u32) {
    let machine = Machine::new(Config { engine: Arc::new(Nothing), ..Config::default() });
    let file = machine.open();
    let mut buffer = MemCreate { flags: 0xb, size: 4096, ..MemCreate::default() };
    call(&file, &mut buffer);
    let mut map = MemMap { handle: buffer.handle, ..MemMap::default() };
    call(&file, &mut map);
    let view = file.mmap(map.offset, 4096).expect("a buffer just made");
    view.write(std::mem::offset_of!(Task, int_mask), &0x300u32.to_le_bytes());
    let run = || {
        for _ in 0..ops {
            let mut args = Submit {
                flags: 0x5,
                timeout: 1000,
                task_number: 1,
                task_obj_addr: buffer.obj_addr,
                core_mask: 1,
                fence_fd: -1,
                subcore_task: [SubcoreTask { task_start: 0, task_number: 1 }; 5],
                ..Submit::default()
            };
            call(&file, &mut args);
        }
    };
    let each = Duration::from_micros(5);
    bench.compare("submit/5us", 1.0, ops.into(), run, allow(each, ops));
}
