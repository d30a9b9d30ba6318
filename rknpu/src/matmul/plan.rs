//! How a matmul of any size becomes programs that the NPU can run.
//!
//! K is cut into the layout's slices, whose partial results the CPU sums; M into the rows that one
//! program can take. N is cut into the layout's slices, each of those into as few groups of columns
//! as the memory for results allows, and a group by tiles over the cores. One submit on a core is a chain
//! of one program for each K slice and block of rows of a group.
//!
//! Columns are cut and not rows when results do not fit: weights are read once then, and every submit
//! begins at the first row. A core that is given another address of activations than in the submit
//! before has been seen to use what it still had in CBUF; within a chain addresses may differ.

use std::ops::Range;

use rknpu_sys::layout::{Layout, N_SLICE, Precision, Slice};
use rknpu_sys::regs::CORES;

use super::MatmulLimits;
use crate::allocation::pages;
use crate::driver::PROGRAM_ENTRY;
use crate::error::{Error, Result};
use crate::limits;
use crate::program::{self, output_bytes};

/// Most bytes of activations at a time.
const INPUT_BYTES: u64 = 4 << 20;
/// Most bytes of partial results at a time on one core: what is summed soon after should still be in
/// the CPU's caches.
const OUTPUT_BYTES: u64 = 8 << 20;

/// What the buffers of a matmul hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    precision: Precision,
    /// Bytes of activations.
    pub(crate) input: u64,
    /// Programs of one core.
    pub(crate) programs: u32,
    /// Bytes of partial results of one core.
    pub(crate) output: u64,
}

impl Capacity {
    /// Enough for every shape within `limits`, a row at a time if need be.
    pub(crate) fn new(precision: Precision, max: MatmulLimits) -> Result<Capacity> {
        let MatmulLimits { rows, k, n } = max;
        Layout::new(k, n, precision)?;
        if k > limits::K {
            return Err(Error::Shape { what: "K", value: k.into(), limit: limits::K.into() });
        }
        if rows == 0 {
            return Err(Error::Shape { what: "M", value: 0, limit: 1 });
        }
        let ks = k.div_ceil(precision.k_slice());
        // A small K allows more rows than the largest one does.
        let rows = u64::from(rows).min(limits::ROWS.into());
        let row = u64::from(limits::row_bytes(precision, k));
        let input = pages((rows * row).min(INPUT_BYTES).max(row));
        let blocks = (rows as u32).div_ceil(program_rows(precision, k));
        let line = u64::from(ks * n.min(N_SLICE) * output_bytes(precision));
        let output = pages((rows * line).min(OUTPUT_BYTES).max(line));
        let programs = (blocks * ks).clamp(ks, limits::CHAIN.max(ks));
        Ok(Capacity { precision, input, programs, output })
    }

    /// Rows of `k` inputs that can be multiplied at a time, at least one.
    pub(crate) fn rows(&self, k: u32) -> usize {
        let ks = u64::from(k.div_ceil(self.precision.k_slice())).max(1);
        let tile = ks * u64::from(self.precision.tile_width() * output_bytes(self.precision));
        let row = u64::from(limits::row_bytes(self.precision, k)).max(1);
        let by_program = u64::from(self.programs) / ks * u64::from(program_rows(self.precision, k));
        by_program.min(self.input / row).min(self.output / tile).max(1) as usize
    }

    /// Bytes of the buffer with programs.
    pub(crate) fn program_buffer(&self) -> u64 {
        u64::from(self.programs) * (CORES * program::BYTES) as u64
    }

    /// Bytes of the buffer with the task array.
    pub(crate) fn task_buffer(&self) -> u64 {
        u64::from(self.programs) * (CORES * PROGRAM_ENTRY) as u64
    }

    /// Bytes of the buffer with partial results.
    pub(crate) fn output_buffer(&self) -> u64 {
        self.output * CORES as u64
    }

    /// Bytes that all buffers take of the window, in whole pages.
    pub(crate) fn mapped(&self) -> u64 {
        let buffers = [self.program_buffer(), self.task_buffer(), self.output_buffer()];
        self.input + buffers.into_iter().map(pages).sum::<u64>()
    }
}

/// Rows that one program takes at a K slice as wide as `k` allows.
fn program_rows(precision: Precision, k: u32) -> u32 {
    limits::rows(precision, k.min(precision.k_slice()))
}

/// Rows of inputs that lie one K slice after the other, each slice's rows together.
pub(crate) fn k_ranges(precision: Precision, k: u32) -> impl Iterator<Item = Range<u32>> {
    let step = precision.k_slice();
    (0..k).step_by(step as usize).map(move |first| first..k.min(first + step))
}

/// One matmul, cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    pub(crate) m: usize,
    /// Cores that the columns are split over.
    pub(crate) cores: usize,
    /// Rows of a program.
    block: usize,
    /// Most columns of a core in one submit.
    width: u32,
}

/// Columns that one submit on each core computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColumnGroup {
    /// N slice.
    pub(crate) ns: u32,
    /// The slice's first column.
    n0: u32,
    /// First column, from the slice's.
    first: u32,
    /// Columns.
    width: u32,
}

impl ColumnGroup {
    /// First column of the slice.
    pub(crate) fn n0(&self) -> u32 {
        self.n0
    }

    /// The columns, from the weight's first.
    pub(crate) fn columns(&self) -> Range<u32> {
        let first = self.n0 + self.first;
        first..first + self.width
    }
}

/// Cores that a matmul is worth.
pub(crate) fn cores_for(layout: &Layout, m: usize, most: usize) -> usize {
    let tiles = layout.n().min(N_SLICE) / layout.precision().tile_width();
    let work = layout.bytes().saturating_mul(1 + m as u64 / 32) / limits::WORK_PER_CORE;
    let useful = (work as usize).min(tiles as usize / 2);
    useful.clamp(1, most.max(1))
}

impl Plan {
    /// A matmul of `m` rows, at most [`Capacity::rows`], on `cores` cores.
    pub(crate) fn new(layout: Layout, m: usize, cores: usize, capacity: &Capacity) -> Plan {
        let (precision, tile) = (layout.precision(), layout.precision().tile_width());
        let column = u64::from(layout.k_slices() * output_bytes(precision)) * m.max(1) as u64;
        let tiles = (capacity.output / column / u64::from(tile)).clamp(1, (N_SLICE / tile).into());
        let block = program_rows(precision, layout.k()) as usize;
        Plan { layout, m, cores: cores.max(1), block, width: tiles as u32 * tile }
    }

    /// The group that begins at `column`; `None` behind the last.
    pub(crate) fn group(&self, column: u32) -> Option<ColumnGroup> {
        let (ns, tile) = (column / N_SLICE, self.layout.precision().tile_width());
        let slice = self.layout.slice(ns.checked_mul(self.layout.k_slices())?)?;
        let first = column.checked_sub(slice.n0)?;
        let left = slice.nc.checked_sub(first)? / tile;
        // As few as possible, and equally wide.
        let groups = left.div_ceil(self.width / tile * self.cores as u32);
        let width = left.checked_div(groups)? + u32::from(left % groups != 0);
        Some(ColumnGroup { ns, n0: slice.n0, first, width: width * tile })
    }

    /// K slices of an N slice.
    pub(crate) fn k_slices(&self, ns: u32) -> impl Iterator<Item = Slice> + use<> {
        let layout = self.layout;
        let ks = layout.k_slices();
        (ns * ks..(ns + 1) * ks).filter_map(move |index| layout.slice(index))
    }

    /// Columns of a group that the `i`-th core computes, counted from the slice's first; empty where
    /// a narrow group has fewer tiles than there are cores.
    pub(crate) fn columns(&self, group: &ColumnGroup, i: usize) -> Range<u32> {
        let tile = self.layout.precision().tile_width();
        let tiles = u64::from(group.width / tile);
        let edge = |i: usize| group.first + (tiles * i as u64 / self.cores as u64) as u32 * tile;
        edge(i)..edge(i + 1)
    }

    /// Rows of each program of a K slice.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (m, block) = (self.m, self.block.max(1));
        (0..m).step_by(block).map(move |first| first..m.min(first + block))
    }

    /// Programs of a submit on one core.
    pub(crate) fn programs(&self) -> usize {
        self.layout.k_slices() as usize * self.m.div_ceil(self.block.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn precisions() -> impl Strategy<Value = Precision> {
        prop_oneof![Just(Precision::Int8), Just(Precision::Fp16), Just(Precision::Int4)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        /// Whatever the shape, everything is computed once and fits the buffers.
        #[test]
        fn every_plan_fits_and_covers(
            precision in precisions(),
            (max_m, max_k, max_n) in (1u32..3000, 1u32..4097, 1u32..400),
            (m, k, n) in (1usize..3000, 1u32..4097, 1u32..400),
            cores in 1usize..4,
        ) {
            let tile = precision.tile_width();
            let max = MatmulLimits { rows: max_m, k: max_k * 32, n: max_n * tile };
            let capacity = Capacity::new(precision, max).unwrap();
            let layout = Layout::new(k.min(max_k) * 32, n.min(max_n) * tile, precision).unwrap();
            let m = m.min(capacity.rows(layout.k()));
            let plan = Plan::new(layout, m, cores, &capacity);
            prop_assert!(m as u64 * u64::from(limits::row_bytes(precision, layout.k()))
                <= capacity.input);
            prop_assert!(plan.programs() <= capacity.programs as usize);
            prop_assert!(plan.programs() <= 4095);
            prop_assert_eq!(plan.programs() as u32,
                plan.blocks().count() as u32 * layout.k_slices());

            let mut next = 0;
            for rows in plan.blocks() {
                prop_assert_eq!(rows.start, next);
                next = rows.end;
                for slice in plan.k_slices(0) {
                    prop_assert!(rows.len() as u32 <= limits::rows(precision, slice.kp));
                }
            }
            prop_assert_eq!(next, m);

            let mut column = 0;
            while let Some(group) = plan.group(column) {
                prop_assert_eq!(group.columns().start, column);
                column = group.columns().end;
                // Within one N slice, and each core's results within its region.
                prop_assert_eq!((column - 1) / N_SLICE, group.ns);
                let mut local = group.first;
                for core in 0..cores {
                    let columns = plan.columns(&group, core);
                    prop_assert_eq!(columns.start, local);
                    local = columns.end;
                    let bytes = u64::from(layout.k_slices()) * m as u64
                        * u64::from(columns.len() as u32 * output_bytes(precision));
                    prop_assert!(bytes <= capacity.output, "{bytes} {capacity:?} {plan:?}");
                }
                prop_assert_eq!(local, group.first + group.width);
            }
            prop_assert_eq!(column, layout.n());
        }

        /// The rows that a matmul was made for are multiplied at once, where memory for activations
        /// suffices.
        #[test]
        fn the_rows_asked_for_fit(
            precision in precisions(), rows in 1u32..600, k in 1u32..400, n in 1u32..300,
        ) {
            let max = MatmulLimits { rows, k: k * 32, n: n * precision.tile_width() };
            let capacity = Capacity::new(precision, max).unwrap();
            let row = u64::from(limits::row_bytes(precision, max.k));
            let chain = u64::from(limits::CHAIN / max.k.div_ceil(precision.k_slice()));
            let want = u64::from(rows.min(limits::ROWS))
                .min(INPUT_BYTES / row)
                .min(chain * u64::from(program_rows(precision, max.k)));
            prop_assert!(capacity.rows(max.k) as u64 >= want, "{} < {want}", capacity.rows(max.k));
        }
    }

    #[test]
    fn small_work_stays_on_one_core() {
        let layout = |k, n| Layout::new(k, n, Precision::Int8).unwrap();
        assert_eq!(cores_for(&layout(1024, 1024), 1, 3), 1);
        assert_eq!(cores_for(&layout(4096, 4096), 1, 3), 3);
        assert_eq!(cores_for(&layout(1024, 1024), 256, 3), 3);
        assert_eq!(cores_for(&layout(4096, 4096), 1, 1), 1);
        // Fewer than two tiles a core.
        assert_eq!(cores_for(&layout(131_072, 64), 64, 3), 1);
    }

    #[test]
    fn k_slices_of_inputs_are_those_of_weights() {
        for precision in [Precision::Int8, Precision::Fp16, Precision::Int4] {
            for k in [32, 1024, 1056, 4096, 11008, 131_072] {
                let layout = Layout::new(k, precision.tile_width(), precision).unwrap();
                let slices = layout.slices().map(|s| s.k0..s.k0 + s.kp);
                assert!(k_ranges(precision, k).eq(slices), "{precision:?} {k}");
            }
        }
    }

    #[test]
    fn limits_beyond_the_npu_are_refused() {
        let max = |rows, k, n| Capacity::new(Precision::Int8, MatmulLimits { rows, k, n });
        assert!(matches!(max(0, 32, 32), Err(Error::Shape { what: "M", .. })));
        assert!(matches!(max(1, 131_104, 32), Err(Error::Shape { what: "K", .. })));
        assert!(matches!(max(1, 33, 32), Err(Error::Layout(_))));
    }
}
