//! Passes of a planned model in virtual time.

use std::time::Duration;

use ork_cache::plan::{Item, Part, Plan};
use ork_cache::{WeightId, internals};
use serde::Serialize;

use super::{Clock, Timing};
use crate::Result;

/// What a run in virtual time took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PassReport {
    /// From the first use to the last result.
    pub(crate) wall: Duration,
    /// Time in which the cores computed.
    pub(crate) compute: Duration,
    /// Time in which they waited for weights.
    pub(crate) stall: Duration,
    /// Loads of both kinds.
    pub(crate) loads: u64,
    /// Loads that a use had to wait for from their beginning.
    pub(crate) demand_loads: u64,
    /// Uses that found their weight ready.
    pub(crate) hits: u64,
    /// Weights that were loaded ahead and left unused.
    pub(crate) wasted: u64,
    /// Bytes loaded.
    pub(crate) bytes_loaded: u64,
    /// Most bytes of device memory at once.
    pub(crate) bytes_peak: u64,
}

impl std::ops::Sub for PassReport {
    type Output = PassReport;

    /// What lay between two reports of one run; the peak is the later one's.
    fn sub(self, earlier: PassReport) -> PassReport {
        PassReport {
            wall: self.wall - earlier.wall,
            compute: self.compute - earlier.compute,
            stall: self.stall - earlier.stall,
            loads: self.loads - earlier.loads,
            demand_loads: self.demand_loads - earlier.demand_loads,
            hits: self.hits - earlier.hits,
            wasted: self.wasted - earlier.wasted,
            bytes_loaded: self.bytes_loaded - earlier.bytes_loaded,
            bytes_peak: self.bytes_peak,
        }
    }
}

/// Runs passes of a plan.
#[derive(Debug)]
pub(crate) struct Passes {
    clock: Clock,
    uses: Vec<(WeightId, u64)>,
}

impl Passes {
    /// A cache of the plan's limits with nothing in it, batches of `rows` rows, a prefetcher that
    /// follows what is streamed.
    ///
    /// # Errors
    /// A plan whose weights do not fit its own limits.
    pub(crate) fn new(plan: &Plan, items: &[Item], timing: Timing, rows: u32) -> Result<Passes> {
        Passes::build(plan, items, timing, rows, true)
    }

    /// The same with every load on demand.
    ///
    /// # Errors
    /// As [`Passes::new`].
    pub(crate) fn without_prefetch(
        plan: &Plan,
        items: &[Item],
        timing: Timing,
        rows: u32,
    ) -> Result<Passes> {
        Passes::build(plan, items, timing, rows, false)
    }

    fn build(
        plan: &Plan,
        items: &[Item],
        timing: Timing,
        rows: u32,
        prefetching: bool,
    ) -> Result<Passes> {
        let (residency, placed) = internals::residency(plan, items)?;
        let uses = |p: &Part| (p.weight, timing.compute_ns(&p.layout, rows));
        let uses = placed.parts.iter().map(uses).collect();
        let mut clock = Clock::new(residency, timing, prefetching);
        clock.follow(&placed.streamed);
        Ok(Passes { clock, uses })
    }

    /// One pass; what it took.
    ///
    /// # Errors
    /// Room that never comes: a plan whose slots are fewer than one pass pins at once.
    pub(crate) fn run(&mut self) -> Result<PassReport> {
        let before = self.clock.report();
        for &(weight, compute_ns) in &self.uses {
            self.clock.use_weight(weight, compute_ns)?;
        }
        Ok(self.clock.report() - before)
    }
}

#[cfg(test)]
mod tests {
    use ork_cache::plan::{Board, Shape};

    use super::*;

    #[test]
    fn plans_run_in_virtual_time_and_load_what_they_said() {
        for (name, board) in [("gemma-2-27b", "rk3588-8g"), ("qwen3-235b-a22b", "rk3588-32g")] {
            let items = Shape::known(name).unwrap().items().unwrap();
            let plan = Plan::new(name, &items, &Board::known(board).unwrap()).unwrap();
            let mut passes = Passes::new(&plan, &items, Timing::default(), 256).unwrap();
            passes.run().unwrap();
            passes.run().unwrap();
            let steady = passes.run().unwrap();
            let off = steady.loads.abs_diff(plan.cost.loads_per_pass);
            let rings = 4 * plan.classes.len() as u64;
            let planned = plan.cost.loads_per_pass;
            assert!(off <= rings, "{name}: {} loads, {planned} planned", steady.loads);
            assert!(steady.bytes_peak <= plan.device_bytes());
            assert_eq!(steady.wall, steady.compute + steady.stall);
        }
    }

    #[test]
    fn loading_ahead_takes_less_time_than_on_demand() {
        let items = Shape::known("gemma-2-27b").unwrap().items().unwrap();
        let board = Board::known("rk3588-16g").unwrap();
        let plan = Plan::new("27b", &items, &board).unwrap();
        let wall = |mut passes: Passes| {
            passes.run().unwrap();
            passes.run().unwrap().wall
        };
        let timing = Timing::default();
        let ahead = wall(Passes::new(&plan, &items, timing, 2048).unwrap());
        let demand = wall(Passes::without_prefetch(&plan, &items, timing, 2048).unwrap());
        assert!(ahead < demand, "{ahead:?} {demand:?}");
    }
}
