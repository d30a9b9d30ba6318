//! What a matmul keeps beside its activations: register programs, their list, and results.
//!
//! The list of programs is only ever touched by CPUs and needs no cache maintenance. Each core writes into a
//! region of its own of the output buffer, which the CPU only reads, so no dirty line can land on
//! results.

use std::ops::Range;
use std::sync::Arc;

use rknpu_sys::regs::CORES;

use super::Layout;
use super::plan::{Capacity, ColumnGroup, Plan};
use super::product::InLane;
use crate::allocation::{Allocation, Request};
use crate::device::Entered;
use crate::domain::Domain;
use crate::driver::{Object, Program, Submission, Usage, Uses};
use crate::error::{Error, Result};
use crate::limits;
use crate::program::{self, output_bytes};

/// Bytes of the last word of a program's results.
const MARK_BYTES: u64 = 4;

/// Buffers of a matmul, those for activations aside.
#[derive(Debug)]
pub(super) struct Scratch {
    capacity: Capacity,
    programs: Allocation,
    /// Entries for those programs, by core.
    list: Allocation,
    output: Allocation,
    /// What the present job uses; kept for its allocation.
    uses: Arc<Uses>,
    /// Cores' regions that no job has written yet: the first submit into one is made twice, because
    /// its results have been seen to come out stale.
    fresh: [bool; CORES],
}

/// A group of columns on the cores taken.
pub(super) struct Work<'a> {
    pub(super) plan: Plan,
    pub(super) group: ColumnGroup,
    /// Address of the rows, as [`Rows`](super::Rows) has them, and the object that they lie in.
    pub(super) input: u64,
    pub(super) rows: Option<&'a Arc<Object>>,
    /// From the group's first on.
    pub(super) weights: InLane<'a>,
}

/// Which programs of the list are each core's.
pub(super) type Shares = [Range<u32>; CORES];

impl Work<'_> {
    fn layouts(&self) -> impl Iterator<Item = Layout> {
        self.weights.iter().map(|(_, weight)| weight.layout)
    }
}

impl Scratch {
    pub(super) fn new(domain: &Domain, capacity: Capacity) -> Result<Scratch> {
        let programs = Allocation::create(domain, &Request::new(capacity.program_buffer()))?;
        let list = Request::programs(capacity.all_programs());
        let list = Allocation::create(domain, &list)?;
        let output = Allocation::create(domain, &Request::new(capacity.output_buffer()))?;
        programs.sync_for_device(0..0)?;
        output.sync_for_device(0..0)?;
        let (uses, fresh) = (Arc::default(), [true; CORES]);
        Ok(Scratch { capacity, programs, list, output, uses, fresh })
    }

    pub(super) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Address of a program of the list.
    pub(super) fn program(&self, index: u32) -> u64 {
        self.programs.iova() + u64::from(index) * program::BYTES as u64
    }

    /// What the cores wrote, each in a region of its own of that many bytes.
    pub(super) fn results(&self) -> (&[u8], usize) {
        (self.output.bytes(), self.capacity.output as usize)
    }

    /// Writes the programs of a group for all cores, shows them to the NPU, and notes what they use.
    pub(super) fn write(&mut self, work: &Work<'_>, entered: &Entered) -> Result<Shares> {
        let shares = self.encode(work)?;
        let count = shares.iter().map(|share| u64::from(share.end)).max().unwrap_or(0);
        self.programs.sync_for_device_inside(0..count * program::BYTES as u64, entered)?;
        self.hold(work);
        Ok(shares)
    }

    /// How often a group is submitted: twice where a core's region is fresh.
    pub(super) fn rounds(&self, shares: &Shares) -> usize {
        let mut regions = shares.iter().zip(self.fresh);
        if regions.any(|(share, fresh)| fresh && !share.is_empty()) { 2 } else { 1 }
    }

    /// A core's programs, to be submitted.
    pub(super) fn submission(&self, share: &Range<u32>, core: u32) -> Result<Submission> {
        let size = self.list.size();
        let list = self.list.object().ok_or(Error::Range { offset: 0, len: 0, size })?;
        Ok(Submission {
            list: list.clone(),
            first: share.start,
            count: share.end - share.start,
            core,
            timeout_ms: self.list.domain().device().timeout_ms(),
            uses: self.uses.clone(),
        })
    }

    /// Lets the CPU see what the cores wrote.
    pub(super) fn read(&mut self, work: &Work<'_>, entered: &Entered) -> Result<()> {
        let Work { plan, group, .. } = work;
        for core in 0..plan.cores.min(CORES) {
            let strips = plan.strips(work.layouts(), *group);
            let shares = strips.filter_map(|strip| plan.share(*group, &strip, core));
            let columns: u32 = shares.map(|share| share.columns.len() as u32).sum();
            self.fresh[core] &= columns == 0;
            let start = core as u64 * self.capacity.output;
            let end = start + plan.result_bytes(columns) as u64;
            self.output.sync_for_cpu_inside(start..end, entered)?;
        }
        Ok(())
    }

    /// Notes what the job uses, so that it exists until the job has ended.
    fn hold(&mut self, work: &Work<'_>) {
        if Arc::get_mut(&mut self.uses).is_none() {
            self.uses = Arc::default();
        }
        let Some(uses) = Arc::get_mut(&mut self.uses) else { return };
        uses.0.clear();
        let read = [self.programs.object(), work.rows].into_iter();
        for object in read.chain(work.weights.iter().map(|(_, weight)| weight.object)).flatten() {
            // Neighbours often share a buffer.
            if !uses.0.last().is_some_and(|(last, _)| Arc::ptr_eq(last, object)) {
                uses.0.push((object.clone(), Usage::Read));
            }
        }
        uses.0.extend(self.output.object().map(|object| (object.clone(), Usage::Write)));
    }

    /// The job has ended.
    pub(super) fn release(&mut self) {
        if let Some(uses) = Arc::get_mut(&mut self.uses) {
            uses.0.clear();
        }
    }

    /// Writes the programs of a group for all cores, and their entries in the list. The first program of
    /// every core begins at the first row.
    fn encode(&mut self, work: &Work<'_>) -> Result<Shares> {
        let Work { plan, group, input, weights, .. } = work;
        let precision = self.capacity.precision();
        let rows = plan.m as u64;
        let (programs, output) = (self.programs.iova(), self.output.iova());
        let mut words = self.programs.bytes_mut().chunks_exact_mut(program::BYTES);
        let mut shares = Shares::default();
        let mut index = 0;
        for (core, programs_of) in shares.iter_mut().enumerate().take(plan.cores) {
            let strips = plan.strips(work.layouts(), *group);
            let of_core = strips.filter(|strip| plan.share(*group, strip, core).is_some());
            let end = index + of_core.count() * plan.programs();
            *programs_of = index as u32..end as u32;
            let region = output + core as u64 * self.capacity.output;
            for strip in plan.strips(work.layouts(), *group) {
                let Some(share) = plan.share(*group, &strip, core) else { continue };
                let Some(weight) = weights.nth(strip.weight) else { continue };
                let width = share.columns.end - share.columns.start;
                let line = u64::from(width * output_bytes(precision));
                let tile = strip.tile(share.columns.start);
                for (s, slice) in strip.slices().enumerate() {
                    let row = u64::from(limits::row_bytes(precision, slice.kp));
                    let inputs = input + rows * u64::from(limits::row_bytes(precision, slice.k0));
                    let weights =
                        weight.iova + slice.offset + tile * precision.tile_bytes(slice.kp);
                    for block in plan.blocks() {
                        let iova = programs + (index * program::BYTES) as u64;
                        let next = (index + 1 < end).then_some(iova + program::BYTES as u64);
                        let results =
                            share.at as u64 + (s as u64 * rows + block.start as u64) * line;
                        let matmul = program::MatmulProgram {
                            precision,
                            m: block.len() as u32,
                            k: slice.kp,
                            n: width,
                            input: inputs + block.start as u64 * row,
                            weights,
                            output: region + results,
                            next,
                        };
                        if let Some(word) = words.next().and_then(|word| word.try_into().ok()) {
                            matmul.write(word)?;
                        }
                        let end = region + results + u64::from(matmul.m) * line;
                        let mark = end.checked_sub(MARK_BYTES);
                        let entry = Program { iova, commands: program::AMOUNT, mark };
                        self.list.write_program(index, &entry);
                        index += 1;
                    }
                }
            }
        }
        Ok(shares)
    }
}
