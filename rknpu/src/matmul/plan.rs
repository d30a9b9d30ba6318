//! How a matmul of any size becomes programs that the NPU can run.
//!
//! M is cut into blocks of rows, N into the layout's slices and each of those by tiles over the cores, K
//! into the layout's slices, whose partial results the CPU sums. One submit on a core is a chain of
//! one program for each K slice (for int4, for each row and K slice).

use std::ops::Range;

use rknpu_sys::layout::{Layout, N_SLICE, Precision, Slice};
use rknpu_sys::regs::CORES;

use super::MatmulLimits;
use crate::buffer::pages;
use crate::error::{Error, Result};
use crate::limits;
use crate::program::{self, output_bytes};

/// Most bytes of activations in a block.
const INPUT_BYTES: u64 = 4 << 20;
/// Most bytes of partial results in a block on one core: what is summed soon after should still be in
/// the CPU's caches.
const OUTPUT_BYTES: u64 = 8 << 20;
/// Programs start on multiples of this.
const PROGRAM_ALIGN: u64 = 64;

/// What the scratch buffers of a matmul hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
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
        let chain = match precision {
            Precision::Int4 => rows as u32 * ks,
            Precision::Int8 | Precision::Fp16 => ks,
        };
        let line = u64::from(ks * n.min(N_SLICE) * output_bytes(precision));
        let output = pages((rows * line).min(OUTPUT_BYTES).max(line));
        Ok(Capacity { input, programs: chain.clamp(ks, limits::CHAIN.max(ks)), output })
    }

    /// Bytes of the buffer with activations and the programs behind them.
    pub(crate) fn input_buffer(&self) -> u64 {
        self.input + u64::from(self.programs) * (CORES * program::BYTES) as u64 + PROGRAM_ALIGN
    }

    /// Bytes of the buffer with the task array.
    pub(crate) fn task_buffer(&self) -> u64 {
        u64::from(self.programs) * (CORES * size_of::<rknpu_sys::uapi::Task>()) as u64
    }

    /// Bytes of the buffer with partial results.
    pub(crate) fn output_buffer(&self) -> u64 {
        self.output * CORES as u64
    }

    /// Bytes that all three take of the window, in whole pages.
    pub(crate) fn mapped(&self) -> u64 {
        pages(self.input_buffer()) + pages(self.task_buffer()) + pages(self.output_buffer())
    }
}

/// One matmul, cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    pub(crate) m: usize,
    /// Rows of a block.
    pub(crate) block: usize,
    /// Cores that the columns are split over.
    pub(crate) cores: usize,
}

/// Cores that a matmul is worth.
pub(crate) fn cores_for(layout: &Layout, m: usize, most: usize) -> usize {
    let tiles = layout.n().min(N_SLICE) / layout.precision().tile_width();
    let work = layout.bytes().saturating_mul(1 + m as u64 / 32) / limits::WORK_PER_CORE;
    let useful = (work as usize).min(tiles as usize / 2);
    useful.clamp(1, most.max(1))
}

impl Plan {
    /// A matmul of `m` rows on `cores` cores with scratch of this capacity.
    pub(crate) fn new(layout: Layout, m: usize, cores: usize, capacity: &Capacity) -> Plan {
        let precision = layout.precision();
        let ks = u64::from(layout.k_slices());
        let columns = u64::from(widest(&layout, cores));
        let row = u64::from(limits::row_bytes(precision, layout.k()));
        let line = ks * columns * u64::from(output_bytes(precision));
        let by_program = match precision {
            // Each row is a program of its own.
            Precision::Int4 => u64::from(capacity.programs) / ks,
            Precision::Int8 | Precision::Fp16 => {
                limits::rows(precision, layout.k().min(precision.k_slice())).into()
            }
        };
        let block = by_program.min(capacity.input / row).min(capacity.output / line);
        Plan { layout, m, block: m.min(block.max(1) as usize), cores }
    }

    /// Blocks of rows.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (m, block) = (self.m, self.block.max(1));
        (0..m).step_by(block).map(move |first| first..m.min(first + block))
    }

    /// K slices of an N slice.
    pub(crate) fn k_slices(&self, ns: u32) -> impl Iterator<Item = Slice> + use<> {
        let layout = self.layout;
        let ks = layout.k_slices();
        (ns * ks..(ns + 1) * ks).filter_map(move |index| layout.slice(index))
    }

    /// Columns of an N slice that the `i`-th core computes, counted from the slice's first; empty where
    /// a narrow last slice has fewer tiles than there are cores.
    pub(crate) fn columns(&self, ns: u32, i: usize) -> Range<u32> {
        let width = self.layout.slice(ns * self.layout.k_slices()).map_or(0, |slice| slice.nc);
        split(width, self.layout.precision(), i, self.cores)
    }

    /// Programs of a submit on one core.
    pub(crate) fn programs(&self, rows: usize) -> usize {
        let ks = self.layout.k_slices() as usize;
        match self.layout.precision() {
            Precision::Int4 => rows * ks,
            Precision::Int8 | Precision::Fp16 => ks,
        }
    }

    /// First byte of the programs, behind the activations of a block.
    pub(crate) fn programs_at(&self, rows: usize) -> u64 {
        let row = u64::from(limits::row_bytes(self.layout.precision(), self.layout.k()));
        (rows as u64 * row).next_multiple_of(PROGRAM_ALIGN)
    }
}

/// Columns of the `i`-th of `parts` equal parts, in whole tiles.
fn split(width: u32, precision: Precision, i: usize, parts: usize) -> Range<u32> {
    let tile = precision.tile_width();
    let tiles = u64::from(width / tile);
    let edge = |i: usize| (tiles * i as u64 / parts.max(1) as u64) as u32 * tile;
    edge(i)..edge(i + 1)
}

/// Most columns that one of `parts` cores gets.
fn widest(layout: &Layout, parts: usize) -> u32 {
    let tile = layout.precision().tile_width();
    (layout.n().min(N_SLICE) / tile).div_ceil(parts.max(1) as u32) * tile
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

        /// Whatever the shape, everything is computed once and fits the scratch.
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
            let plan = Plan::new(layout, m, cores, &capacity);

            let mut next = 0;
            for rows in plan.blocks() {
                prop_assert_eq!(rows.start, next);
                next = rows.end;
                let count = plan.programs(rows.len());
                prop_assert!(count <= capacity.programs as usize);
                prop_assert!(count <= 4095);
                let programs_end = plan.programs_at(rows.len())
                    + (count * CORES * program::BYTES) as u64;
                prop_assert!(programs_end <= capacity.input_buffer());
                for slice in plan.k_slices(0) {
                    if precision != Precision::Int4 {
                        prop_assert!(rows.len() as u32 <= limits::rows(precision, slice.kp));
                    }
                }
                for ns in 0..layout.n_slices() {
                    let mut column = 0;
                    for core in 0..cores {
                        let columns = plan.columns(ns, core);
                        prop_assert_eq!(columns.start, column);
                        column = columns.end;
                        let bytes = u64::from(layout.k_slices()) * rows.len() as u64
                            * u64::from(columns.len() as u32 * output_bytes(precision));
                        prop_assert!(bytes <= capacity.output, "{bytes} {capacity:?} {plan:?}");
                    }
                    prop_assert_eq!(Some(column), plan.k_slices(ns).next().map(|s| s.nc));
                }
            }
            prop_assert_eq!(next, m);
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
    fn limits_beyond_the_npu_are_refused() {
        let max = |rows, k, n| Capacity::new(Precision::Int8, MatmulLimits { rows, k, n });
        assert!(matches!(max(0, 32, 32), Err(Error::Shape { what: "M", .. })));
        assert!(matches!(max(1, 131_104, 32), Err(Error::Shape { what: "K", .. })));
        assert!(matches!(max(1, 33, 32), Err(Error::Layout(_))));
    }
}
