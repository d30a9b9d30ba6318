//! Passes of a planned model in virtual time.

use std::time::Duration;

use serde::Serialize;

use super::{Clock, Timing};
use crate::core::{Core, WeightSpec};
use crate::error::Result;
use crate::ids::{ClassId, WeightId};
use crate::plan::{Item, Part, Plan};
use crate::policy::PinnedRing;
use crate::trace::Recorder;

/// What a run in virtual time took.
///
/// ```
/// # use ork_cache::plan::{Board, Item, Place, Plan};
/// # use rknpu_sys::layout::{Layout, Precision};
/// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
/// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
/// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
/// use ork_cache::virtual_time::{Passes, Timing};
///
/// let mut passes = Passes::new(&plan, &items, Timing::default(), 256)?;
/// let report = passes.run()?;
/// assert!(report.loads >= 16); // all of them, and some ahead for the next pass
/// assert!(report.wall >= report.compute);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PassReport {
    /// From the first use to the last result.
    pub wall: Duration,
    /// Time in which the cores computed.
    pub compute: Duration,
    /// Time in which they waited for weights.
    pub stall: Duration,
    /// Loads of both kinds.
    pub loads: u64,
    /// Loads that a use had to wait for from their beginning.
    pub demand_loads: u64,
    /// Uses that found their weight ready.
    pub hits: u64,
    /// Weights that were loaded ahead and left unused.
    pub wasted: u64,
    /// Bytes loaded.
    pub bytes_loaded: u64,
    /// Most bytes of device memory at once.
    pub bytes_peak: u64,
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
///
/// ```
/// use ork_cache::plan::{Board, Plan, Shape};
/// use ork_cache::virtual_time::{Passes, Timing};
///
/// let items = Shape::known("gemma-2-27b").expect("comes with the crate").items()?;
/// let board = Board::known("rk3588-16g").expect("comes with the crate");
/// let plan = Plan::new("27b", &items, &board)?;
/// let mut passes = Passes::new(&plan, &items, Timing::default(), 2048)?;
/// passes.run()?; // the first pass also loads what stays
/// let steady = passes.run()?;
/// // A prefetcher may be a ring ahead at either end of the pass.
/// assert!(steady.loads.abs_diff(plan.cost.loads_per_pass) <= 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Passes<'a> {
    clock: Clock<'a>,
    uses: Vec<(WeightId, u64)>,
}

impl<'a> Passes<'a> {
    /// A cache of the plan's limits with nothing in it, batches of `rows` rows, a prefetcher that
    /// follows what is streamed.
    ///
    /// # Errors
    /// A plan whose weights do not fit its own limits.
    pub fn new(plan: &Plan, items: &[Item], timing: Timing, rows: u32) -> Result<Passes<'a>> {
        Passes::build(plan, items, timing, rows, true)
    }

    /// The same with every load on demand.
    ///
    /// ```
    /// # use ork_cache::plan::{Board, Item, Place, Plan};
    /// # use rknpu_sys::layout::{Layout, Precision};
    /// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
    /// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
    /// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
    /// use ork_cache::virtual_time::{Passes, Timing};
    ///
    /// let timing = Timing::default();
    /// let wall = |mut passes: Passes<'_>| {
    ///     passes.run()?;
    ///     passes.run().map(|steady| steady.wall)
    /// };
    /// let ahead = wall(Passes::new(&plan, &items, timing, 2048)?)?;
    /// let on_demand = wall(Passes::without_prefetch(&plan, &items, timing, 2048)?)?;
    /// assert!(ahead < on_demand);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Passes::new`].
    pub fn without_prefetch(
        plan: &Plan,
        items: &[Item],
        timing: Timing,
        rows: u32,
    ) -> Result<Passes<'a>> {
        Passes::build(plan, items, timing, rows, false)
    }

    fn build(
        plan: &Plan,
        items: &[Item],
        timing: Timing,
        rows: u32,
        prefetching: bool,
    ) -> Result<Passes<'a>> {
        let ids: Vec<ClassId> = (0..plan.classes.len() as u32).map(ClassId).collect();
        let applied = plan.expand(items, WeightId(0), &ids);
        let mut core = Core::new(plan.limits(), Box::new(PinnedRing::new(&applied.kept)));
        for class in &plan.classes {
            let (_, slots) = core.add_class(class.domain, class.slot, class.slots as usize)?;
            slots.into_iter().for_each(|slot| core.slot_created(slot));
        }
        let specs: Vec<WeightSpec> = applied.parts.iter().map(|p| p.spec).collect();
        core.attach(&specs)?;
        let uses = |p: &Part| (p.weight, timing.compute_ns(&p.layout, rows));
        let uses = applied.parts.iter().map(uses).collect();
        let mut clock = Clock::new(core, timing, prefetching);
        clock.follow(&applied.streamed);
        Ok(Passes { clock, uses })
    }

    /// Records the passes that follow.
    pub fn record(&mut self, recorder: &'a Recorder) {
        self.clock.record(recorder);
    }

    /// One pass; what it took.
    ///
    /// # Errors
    /// Room that never comes: a plan whose slots are fewer than one pass pins at once.
    pub fn run(&mut self) -> Result<PassReport> {
        let before = self.clock.report();
        for &(weight, compute_ns) in &self.uses {
            self.clock.use_weight(weight, compute_ns)?;
        }
        Ok(self.clock.report() - before)
    }
}
