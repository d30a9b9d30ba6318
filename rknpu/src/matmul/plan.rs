//! How products of any size become programs that the NPU can run.
//!
//! K is cut into the layout's slices, whose partial results the CPU sums; M into the rows that one
//! program can take. The columns of weights that share their input lie side by side, cut into the N
//! slices of each weight: its *strips*. As many strips as a chain may hold ([`Chains`]), and of their
//! columns as many as the memory for results allows, are a group, which tiles split over the cores.
//! One submit on a core is a chain of one program for each strip, K slice and block of rows.
//!
//! Columns are cut and not rows when results do not fit: weights are read once then, and every submit
//! begins at the first row. A core that is given another address of activations than in the submit
//! before has been seen to use what it still had in CBUF; within a chain addresses may differ.

use std::ops::Range;

use rknpu_sys::layout::{Layout, N_SLICE, Precision, Slice};
use rknpu_sys::regs::CORES;

use super::MatmulLimits;
use crate::allocation::pages;
use crate::chains::Chains;
use crate::driver::PROGRAM_ENTRY;
use crate::error::{Error, Result};
use crate::limits;
use crate::program::{self, output_bytes};

/// Most bytes of activations at a time.
const INPUT_BYTES: u64 = 4 << 20;
/// Most bytes of partial results at a time on one core: what is summed soon after should still be in
/// the CPU's caches.
const OUTPUT_BYTES: u64 = 8 << 20;
/// Strips of the largest K for whose programs there is memory: q, k and v, and one more. Where K is
/// smaller, so are its programs, and there may be more.
const STRIPS: u32 = 4;

/// What the buffers of a matmul hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    precision: Precision,
    /// Cores that have memory of their own.
    pub(crate) cores: usize,
    /// Bytes of activations.
    pub(crate) input: u64,
    /// Programs of one core for one strip.
    strip: u32,
    /// Programs of one core.
    programs: u32,
    /// Bytes of partial results of one core.
    pub(crate) output: u64,
}

impl Capacity {
    /// Enough for every shape within `limits`, a row at a time if need be, on up to `cores` cores.
    pub(crate) fn new(precision: Precision, max: MatmulLimits, cores: usize) -> Result<Capacity> {
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
        let strip = (blocks * ks).clamp(ks, limits::CHAIN.max(ks));
        // Each row of int4 is a program of its own: chains are long as it is.
        let strips = if precision == Precision::Int4 { 1 } else { STRIPS };
        let programs = (strip * strips).min(limits::CHAIN.max(strip));
        let cores = cores.clamp(1, CORES);
        Ok(Capacity { precision, cores, input, strip, programs, output })
    }

    /// Rows of `k` inputs that can be multiplied at a time, at least one.
    pub(crate) fn rows(&self, k: u32) -> usize {
        let ks = u64::from(k.div_ceil(self.precision.k_slice())).max(1);
        let tile = ks * u64::from(self.precision.tile_width() * output_bytes(self.precision));
        let row = u64::from(limits::row_bytes(self.precision, k)).max(1);
        let by_program = u64::from(self.strip) / ks * u64::from(program_rows(self.precision, k));
        by_program.min(self.input / row).min(self.output / tile).max(1) as usize
    }

    /// Element type of the weights.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Programs of all cores.
    pub(crate) fn all_programs(&self) -> usize {
        self.programs as usize * self.cores
    }

    /// Bytes of the buffer with programs.
    pub(crate) fn program_buffer(&self) -> u64 {
        (self.all_programs() * program::BYTES) as u64
    }

    /// Bytes of the buffer with the task array.
    pub(crate) fn task_buffer(&self) -> u64 {
        (self.all_programs() * PROGRAM_ENTRY) as u64
    }

    /// Bytes of the buffer with partial results.
    pub(crate) fn output_buffer(&self) -> u64 {
        self.output * self.cores as u64
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

/// Products of rows and weights of one K, cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    precision: Precision,
    k: u32,
    pub(crate) m: usize,
    /// Cores that the columns are split over.
    pub(crate) cores: usize,
    /// Rows of a program.
    block: usize,
    /// Most tiles of a core in one submit.
    tiles: u32,
    /// Most strips of a core in one submit.
    strips: usize,
    /// Whether a chain may go on from one N slice of a weight to its next.
    n_slices: bool,
}

/// Columns that one submit on each core computes: neighbouring strips, of the first of them from some
/// column on, of the last to some column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColumnGroup {
    /// First column, from its weight's first.
    column: u32,
    tiles: u32,
}

/// Columns of one N slice of a weight, as far as they are in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strip {
    /// Which weight, from the group's first.
    pub(crate) weight: usize,
    pub(crate) layout: Layout,
    /// N slice.
    ns: u32,
    /// The slice's first column.
    n0: u32,
    /// From the weight's first.
    pub(crate) columns: Range<u32>,
    /// Tiles of the group before it.
    at: u32,
}

/// A core's part of a strip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// From the weight's first.
    pub(crate) columns: Range<u32>,
    /// Bytes of the core's results before it.
    pub(crate) at: usize,
}

/// Cores that products by `layouts` are worth.
pub(crate) fn cores_for(layouts: impl Iterator<Item = Layout>, m: usize, most: usize) -> usize {
    let (mut tiles, mut bytes) = (0u64, 0u64);
    for layout in layouts {
        tiles += u64::from(layout.n().min(N_SLICE) / layout.precision().tile_width());
        bytes = bytes.saturating_add(layout.bytes());
    }
    let work = bytes.saturating_mul(1 + m as u64 / 32) / limits::WORK_PER_CORE;
    (work.min(tiles / 2) as usize).clamp(1, most.max(1))
}

impl Plan {
    /// Products of `m` rows, at most [`Capacity::rows`], with `k` inputs, on `cores` cores.
    pub(crate) fn new(
        k: u32,
        m: usize,
        cores: usize,
        capacity: &Capacity,
        chains: &Chains,
    ) -> Plan {
        let (precision, tile) = (capacity.precision, capacity.precision.tile_width());
        let ks = k.div_ceil(precision.k_slice()).max(1);
        let column = u64::from(ks * output_bytes(precision)) * m.max(1) as u64;
        let block = program_rows(precision, k).max(1) as usize;
        let strip = (ks as usize * m.div_ceil(block)).max(1);
        Plan {
            precision,
            k,
            m,
            cores: cores.max(1),
            block,
            tiles: (capacity.output / column / u64::from(tile)).clamp(1, 1 << 20) as u32,
            strips: (capacity.programs as usize / strip).max(1),
            n_slices: chains.n_slices,
        }
    }

    /// The next group: it begins at `column` of the first of `layouts`, weights that a chain may hold;
    /// `None` behind its last.
    pub(crate) fn group(
        &self,
        layouts: impl Iterator<Item = Layout>,
        column: u32,
    ) -> Option<ColumnGroup> {
        let all = ColumnGroup { column, tiles: u32::MAX };
        let left: u32 = self.strips(layouts, all).map(|strip| strip.tiles(self)).sum();
        // As few as possible, and equally wide.
        let groups = left.div_ceil(self.tiles.saturating_mul(self.cores as u32));
        let tiles = left.checked_div(groups)? + u32::from(!left.is_multiple_of(groups));
        Some(ColumnGroup { column, tiles })
    }

    /// The strips of a group whose first weight is the first of `layouts`.
    pub(crate) fn strips(
        &self,
        layouts: impl Iterator<Item = Layout>,
        group: ColumnGroup,
    ) -> impl Iterator<Item = Strip> {
        let (tile, mut at) = (self.precision.tile_width(), 0);
        let slices = layouts.enumerate().flat_map(move |(weight, layout)| {
            let first = if weight == 0 { group.column } else { 0 };
            let ks = layout.k_slices();
            let slices = (first / N_SLICE..).map_while(move |ns| {
                let slice = layout.slice(ns.checked_mul(ks)?)?;
                Some((ns, slice.n0, first.max(slice.n0)..slice.n0 + slice.nc))
            });
            let slices = slices.filter(|(.., columns)| !columns.is_empty());
            slices.map(move |(ns, n0, columns)| Strip { weight, layout, ns, n0, columns, at: 0 })
        });
        // Without the rule, a weight of several slices is a group's only one.
        let most = if self.n_slices { usize::MAX } else { 1 };
        let mut last = (0, 0);
        let slices = slices.take_while(move |strip| {
            last = if strip.weight == last.0 { (last.0, last.1 + 1) } else { (strip.weight, 1) };
            last.1 <= most
        });
        slices.take(self.strips).map_while(move |mut strip| {
            let left = group.tiles.checked_sub(at).filter(|left| *left > 0)?;
            let tiles = (strip.columns.len() as u32 / tile).min(left);
            strip.columns.end = strip.columns.start + tiles * tile;
            strip.at = at;
            at += tiles;
            Some(strip)
        })
    }

    /// What the `core`-th core computes of a strip; `None` for nothing.
    pub(crate) fn share(&self, group: ColumnGroup, strip: &Strip, core: usize) -> Option<Share> {
        let edge = |i: usize| (u64::from(group.tiles) * i as u64 / self.cores as u64) as u32;
        let (first, end) = (edge(core), edge(core + 1));
        let tiles = strip.at.max(first)..(strip.at + strip.tiles(self)).min(end);
        if tiles.is_empty() {
            return None;
        }
        let tile = self.precision.tile_width();
        let column = |at: u32| strip.columns.start + (at - strip.at) * tile;
        let columns = column(tiles.start)..column(tiles.end);
        Some(Share { columns, at: self.result_bytes((tiles.start - first) * tile) })
    }

    /// Bytes of the results of so many columns.
    pub(crate) fn result_bytes(&self, columns: u32) -> usize {
        self.k_slices() as usize * self.m * (columns * output_bytes(self.precision)) as usize
    }

    /// Slices that K is cut into.
    pub(crate) fn k_slices(&self) -> u32 {
        self.k.div_ceil(self.precision.k_slice())
    }

    /// Rows of each program of a K slice.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (m, block) = (self.m, self.block.max(1));
        (0..m).step_by(block).map(move |first| first..m.min(first + block))
    }

    /// Programs of a strip on one core.
    pub(crate) fn programs(&self) -> usize {
        self.k_slices() as usize * self.m.div_ceil(self.block.max(1))
    }
}

impl Strip {
    /// The slices of the weight that it is made of, one for each K slice.
    pub(crate) fn slices(&self) -> impl Iterator<Item = Slice> + use<> {
        let (layout, ks, ns) = (self.layout, self.layout.k_slices(), self.ns);
        (ns * ks..(ns + 1) * ks).filter_map(move |index| layout.slice(index))
    }

    /// The column's tile in its slices.
    pub(crate) fn tile(&self, column: u32) -> u64 {
        u64::from((column - self.n0) / self.layout.precision().tile_width())
    }

    fn tiles(&self, plan: &Plan) -> u32 {
        self.columns.len() as u32 / plan.precision.tile_width()
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

        /// Whatever the shapes, everything is computed once and fits the buffers.
        #[test]
        fn every_plan_fits_and_covers(
            precision in precisions(),
            (max_m, max_k, max_n) in (1u32..3000, 1u32..4097, 1u32..400),
            (m, k, ns) in (1usize..3000, 1u32..4097, prop::collection::vec(1u32..400, 1..6)),
            (cores, n_slices) in (1usize..4, any::<bool>()),
        ) {
            let tile = precision.tile_width();
            let max = MatmulLimits { rows: max_m, k: max_k * 32, n: max_n * tile };
            let capacity = Capacity::new(precision, max, cores).unwrap();
            let k = k.min(max_k) * 32;
            let layout = |n: &u32| Layout::new(k, (*n).min(max_n) * tile, precision).unwrap();
            let layouts: Vec<Layout> = ns.iter().map(layout).collect();
            let m = m.min(capacity.rows(k));
            let chains = Chains { n_slices, ..Chains::NONE };
            let plan = Plan::new(k, m, cores, &capacity, &chains);
            prop_assert!(m as u64 * u64::from(limits::row_bytes(precision, k)) <= capacity.input);
            prop_assert_eq!(plan.programs() as u32, plan.blocks().count() as u32 * plan.k_slices());

            let mut next = 0;
            for rows in plan.blocks() {
                prop_assert_eq!(rows.start, next);
                next = rows.end;
                for slice in layouts[0].slices() {
                    prop_assert!(rows.len() as u32 <= limits::rows(precision, slice.kp));
                }
            }
            prop_assert_eq!(next, m);

            let (mut weight, mut column) = (0, 0);
            while weight < layouts.len() {
                // A weight of several slices has a chain to itself, unless the rule says otherwise.
                let alone = !n_slices && layouts[weight].n() > N_SLICE;
                let single = |l: &&Layout| n_slices || l.n() <= N_SLICE;
                let run = layouts[weight..].iter().take_while(single).count();
                let run = &layouts[weight..][..if alone { 1 } else { run }];
                let group = plan.group(run.iter().copied(), column).unwrap();
                let first = weight;
                let mut ends = vec![0; cores];
                let mut programs = vec![0; cores];
                for strip in plan.strips(run.iter().copied(), group) {
                    prop_assert_eq!((first + strip.weight, strip.columns.start), (weight, column));
                    prop_assert_eq!(strip.layout, layouts[weight]);
                    for core in 0..cores {
                        let Some(share) = plan.share(group, &strip, core) else { continue };
                        prop_assert_eq!((share.columns.start, share.at), (column, ends[core]));
                        column = share.columns.end;
                        ends[core] += plan.result_bytes(share.columns.len() as u32);
                        programs[core] += plan.programs();
                    }
                    prop_assert_eq!((column, (column - 1) / N_SLICE), (strip.columns.end, strip.ns));
                    if column == layouts[weight].n() {
                        (weight, column) = (weight + 1, 0);
                    }
                }
                prop_assert!(ends.iter().all(|end| *end as u64 <= capacity.output));
                prop_assert!(programs.iter().all(|count| *count <= capacity.programs as usize));
                prop_assert!(programs.iter().all(|count| *count <= 4095));
            }
            prop_assert_eq!((weight, column), (layouts.len(), 0));
        }

        /// The rows that a matmul was made for are multiplied at once, where memory for activations
        /// suffices.
        #[test]
        fn the_rows_asked_for_fit(
            precision in precisions(), rows in 1u32..600, k in 1u32..400, n in 1u32..300,
        ) {
            let max = MatmulLimits { rows, k: k * 32, n: n * precision.tile_width() };
            let capacity = Capacity::new(precision, max, CORES).unwrap();
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
        let cores = |k, n, m, most| cores_for([layout(k, n)].into_iter(), m, most);
        assert_eq!(cores(1024, 1024, 1, 3), 1);
        assert_eq!(cores(4096, 4096, 1, 3), 3);
        assert_eq!(cores(1024, 1024, 256, 3), 3);
        assert_eq!(cores(4096, 4096, 1, 1), 1);
        // Fewer than two tiles a core.
        assert_eq!(cores(131_072, 64, 64, 3), 1);
        // Together they are more.
        assert_eq!(cores_for([layout(1024, 1024); 3].into_iter(), 1, 3), 3);
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
        let max = |rows, k, n| Capacity::new(Precision::Int8, MatmulLimits { rows, k, n }, CORES);
        assert!(matches!(max(0, 32, 32), Err(Error::Shape { what: "M", .. })));
        assert!(matches!(max(1, 131_104, 32), Err(Error::Shape { what: "K", .. })));
        assert!(matches!(max(1, 33, 32), Err(Error::Layout(_))));
    }
}
