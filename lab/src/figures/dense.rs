//! Layers streamed through half of their bytes, against all of them resident.

use std::time::{Duration, Instant};

use ork_cache::internals::{self, Backend, Purpose};
use ork_cache::plan::{Board, Item, Plan};
use ork_cache::{Cause, DomainId, Prefetcher, WeightId};
use rknpu_sys::layout::{Layout, Precision};

use super::figure;
use crate::Result;
use crate::virtual_time::{Passes, Timing};

/// 32 layers of one weight of 16 MiB.
fn layers() -> Vec<Item> {
    let layout = Layout::new(4096, 4096, Precision::Int8).expect("the sizes tile");
    (0..32).map(|i| Item::new(format!("blk.{i}.ffn_up.weight"), layout)).collect()
}

/// A timing in which a load takes `ratio` times as long as computing with what it loads.
fn timing(ratio: f64, compute_ns: u64, bytes: u64) -> Timing {
    let load_ns = compute_ns as f64 * ratio;
    let speed = (bytes as f64 / load_ns * 1e9) as u64;
    Timing { load_bytes_per_second: speed, load_ns: 0, ..Timing::default() }
}

/// Half of the bytes stay; wall time against resident and against the bound.
pub(super) fn in_virtual_time() -> Result<()> {
    let items = layers();
    let total: u64 = items.iter().map(Item::bytes).sum();
    let plan = Plan::new("dense", &items, &Board::single_domain(total / 2))?;
    let rows = 512;
    for (ratio, target) in [(0.8, "<= 1.03"), (2.0, "-")] {
        let compute = Timing::default().compute_ns(&items[0].layout, rows);
        let timing = timing(ratio, compute, items[0].bytes());
        let steady = |mut passes: Passes| {
            (0..3).for_each(|_| drop(passes.run()));
            (0..10)
                .filter_map(|_| passes.run().ok())
                .fold((Duration::ZERO, 0), |(wall, loads), r| (wall + r.wall / 10, loads + r.loads))
        };
        let resident = compute * items.len() as u64;
        let streamed = steady(Passes::new(&plan, &items, timing, rows)?);
        let demand = steady(Passes::without_prefetch(&plan, &items, timing, rows)?);
        let load = timing.load_ns(items[0].bytes()) * streamed.1 / 10;
        let bound = resident.max(load) as f64;
        let of = |wall: Duration, base: f64| format!("{:.3}", wall.as_nanos() as f64 / base);
        let name = format!("virtual time, budget half, T_load = {ratio} T_compute:");
        figure(&format!("{name} streamed / resident"), target, of(streamed.0, resident as f64));
        figure(&format!("{name} streamed / bound"), "<= 1.02", of(streamed.0, bound));
        figure(&format!("{name} without prefetch / resident"), "-", of(demand.0, resident as f64));
    }
    Ok(())
}

/// No memory, whose copies take time without using the CPU.
struct Slow {
    copy: Duration,
}

impl Backend for Slow {
    type Host = ();
    type Device = ();

    fn create(&self, _domain: DomainId, _bytes: u64, _weight: WeightId) -> Result<(), Cause> {
        Ok(())
    }

    fn create_slots(
        &self,
        _domain: DomainId,
        _bytes: u64,
        count: usize,
    ) -> (Vec<()>, Option<Cause>) {
        (vec![(); count], None)
    }

    fn copy(&self, _memory: &mut (), _weight: WeightId, _purpose: Purpose) -> Result<(), Cause> {
        std::thread::sleep(self.copy);
        Ok(())
    }

    fn sync_for_device(&self, _memory: ()) -> Result<(), ((), Cause)> {
        Ok(())
    }

    fn reclaim(&self, _memory: ()) -> Result<(), ((), Cause)> {
        Ok(())
    }

    fn free(&self, _memory: ()) -> Result<(), Cause> {
        Ok(())
    }
}

/// The same with the real cache, worker and locks; copies and cores sleep.
pub(super) fn on_threads(passes: u32) -> Result<()> {
    let items = layers();
    let total: u64 = items.iter().map(Item::bytes).sum();
    let plan = Plan::new("dense", &items, &Board::single_domain(total / 2))?;
    let compute = Duration::from_millis(4);
    for (ratio, target) in [(0.8, "<= 1.03"), (2.0, "-")] {
        let copy = compute.mul_f64(ratio);
        let run = |prefetch: bool| -> Result<(Duration, f64)> {
            let (cache, placed) = internals::cache(Slow { copy }, &plan, &items)?;
            let prefetcher = Prefetcher::new(&cache)?;
            if prefetch {
                prefetcher.follow(&placed.streamed);
            }
            let pass = || -> Result<()> {
                for part in &placed.parts {
                    let _pinned = cache.acquire(part.weight)?;
                    std::thread::sleep(compute);
                }
                Ok(())
            };
            pass()?;
            let start = Instant::now();
            let before = cache.stats();
            (0..passes).try_for_each(|_| pass())?;
            let loads = cache.stats().loads() - before.loads();
            Ok((start.elapsed() / passes, loads as f64 / f64::from(passes)))
        };
        let resident = {
            // What a sleep really takes on this machine is part of the baseline.
            let start = Instant::now();
            (0..passes * 32).for_each(|_| std::thread::sleep(compute));
            start.elapsed() / passes
        };
        let ((streamed, loads), (demand, _)) = (run(true)?, run(false)?);
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
    Ok(())
}
