//! A matmul's own buffers (programs and results), and running its jobs through them.
//!
//! The list of programs is only ever touched by CPUs and needs no cache maintenance. Each core writes into a
//! region of its own of the output buffer, which the CPU only reads, so no dirty line can land on
//! results.

use std::sync::Arc;

use rknpu_sys::regs::CORES;

use super::plan::{Capacity, ColumnGroup, Plan};
use super::{JobStats, WeightRef};
use crate::allocation::{Allocation, Request};
use crate::cores::Taken;
use crate::device::{Device, Entered};
use crate::domain::Domain;
use crate::driver::{Access, Completion, Object, Program, Submission, Uses};
use crate::error::{Error, Result};
use crate::health::{PostMortem, Recovery};
use crate::limits;
use crate::program::{self, output_bytes};

/// Why an attempt did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing is wrong with the NPU.
    Error(Error),
    /// The NPU did not run the job.
    Job(JobFailure),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

/// A job that the NPU did not run to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobFailure {
    pub(crate) core: u32,
    pub(crate) programs: u32,
    pub(crate) done: u32,
    pub(crate) program_iova: u64,
    pub(crate) errno: Option<rustix::io::Errno>,
    pub(crate) waited: std::time::Duration,
}

impl JobFailure {
    /// The failure that `completion` is, unless the job of so many programs ran.
    pub(crate) fn of(
        completion: &Completion,
        programs: u32,
        core: u32,
        program_iova: u64,
    ) -> Option<JobFailure> {
        let Completion { programs_done: done, errno, waited, .. } = *completion;
        let failure = JobFailure { core, programs, done, program_iova, errno, waited };
        (!completion.ran(programs)).then_some(failure)
    }

    /// A record with what is known here.
    pub(crate) fn report(&self, device: &Device, domain: Option<&Domain>) -> PostMortem {
        let record = device.record();
        PostMortem {
            operation: "job",
            precision: None,
            m: 0,
            k: 0,
            n: 0,
            domain: domain.map_or(0, Domain::index),
            core: self.core,
            programs: self.programs,
            programs_done: self.done,
            program_iova: self.program_iova,
            weights_iova: 0,
            errno: self.errno,
            waited: self.waited,
            age: record.age(),
            iova_used: domain.map_or(0, |domain| domain.stats().used),
            attempts: 1,
            recovery: Recovery::None,
            earlier: record.snapshot().first.map(|incident| incident.to_string()),
        }
    }
}

/// Buffers of a matmul, those for activations aside.
#[derive(Debug)]
pub(crate) struct Scratch {
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

/// One group of columns on the cores taken.
pub(super) struct Work<'a> {
    pub(super) plan: Plan,
    pub(super) group: ColumnGroup,
    /// Address of the rows, as [`Rows`](super::Rows) has them, and the object that they lie in.
    pub(super) input: u64,
    pub(super) rows: Option<&'a Arc<Object>>,
    pub(super) weight: WeightRef<'a>,
}

impl Scratch {
    pub(crate) fn new(domain: &Domain, capacity: Capacity) -> Result<Scratch> {
        let programs = Allocation::create(domain, &Request::new(capacity.program_buffer()))?;
        let list = Request::programs(CORES * capacity.programs as usize);
        let list = Allocation::create(domain, &list)?;
        let output = Allocation::create(domain, &Request::new(capacity.output_buffer()))?;
        programs.sync_for_device(0..0)?;
        output.sync_for_device(0..0)?;
        let (uses, fresh) = (Arc::default(), [true; CORES]);
        Ok(Scratch { capacity, programs, list, output, uses, fresh })
    }

    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// What the cores wrote, each in a region of its own of that many bytes.
    pub(crate) fn results(&self) -> (&[u8], usize) {
        (self.output.bytes(), self.capacity.output as usize)
    }

    /// Writes the programs of a group of columns, runs them on the cores taken, waits for all of them, and
    /// lets the CPU see what they wrote.
    pub(super) fn multiply(
        &mut self,
        work: &Work<'_>,
        taken: &mut Taken<'_>,
        entered: &Entered,
    ) -> Result<JobStats, Failure> {
        let Work { plan, group, .. } = work;
        self.encode(work)?;
        let end = (plan.cores * plan.programs() * program::BYTES) as u64;
        self.programs.sync_for_device_inside(0..end, entered)?;
        self.hold(work);
        let twice = (0..plan.cores).any(|i| self.fresh[i] && !plan.columns(group, i).is_empty());
        let mut stats = JobStats { cores: taken.count() as u32, ..JobStats::default() };
        let mut submitted = Ok(());
        for _ in 0..if twice { 2 } else { 1 } {
            submitted = submitted.and_then(|()| self.submit(work, taken, &mut stats));
        }
        if let Some(uses) = Arc::get_mut(&mut self.uses) {
            uses.0.clear();
        }
        submitted?;
        for core in 0..plan.cores {
            let columns = plan.columns(group, core);
            self.fresh[core] &= columns.is_empty();
            let len = plan.layout.k_slices() as u64
                * plan.m as u64
                * u64::from(columns.len() as u32 * output_bytes(plan.layout.precision()));
            let start = core as u64 * self.capacity.output;
            self.output.sync_for_cpu_inside(start..start + len, entered)?;
        }
        Ok(stats)
    }

    /// Submits each core's programs, the first's on this thread, and waits for all.
    fn submit(
        &self,
        work: &Work<'_>,
        taken: &mut Taken<'_>,
        stats: &mut JobStats,
    ) -> Result<(), Failure> {
        let (plan, count) = (&work.plan, work.plan.programs());
        let size = self.list.size();
        let list = self.list.object().ok_or(Error::Range { offset: 0, len: 0, size })?;
        let submission = |i: usize, core: u32| Submission {
            list: list.clone(),
            first: (i * count) as u32,
            count: count as u32,
            core,
            timeout_ms: self.list.domain().device().timeout_ms(),
            uses: self.uses.clone(),
        };
        let works = |i: usize| !plan.columns(&work.group, i).is_empty();
        let (mut spawned, mut started) = (Ok(()), [false; CORES]);
        for (i, core) in taken.cores().enumerate().skip(1).filter(|(i, _)| works(*i)) {
            if spawned.is_ok() {
                spawned = core.start(submission(i, core.index()), None);
                started[i] = spawned.is_ok();
            }
        }
        let mut failed = None;
        for (i, core) in taken.cores().enumerate() {
            let completion = match i {
                0 if works(0) => core.run(submission(0, core.index())),
                _ if started[i] => core.finish(),
                _ => continue,
            };
            stats.submits += 1;
            stats.programs += count as u32;
            stats.busy += completion.busy;
            let iova = self.programs.iova() + (i * count * program::BYTES) as u64;
            let failure = JobFailure::of(&completion, count as u32, core.index(), iova);
            failed = failed.or(failure);
        }
        spawned?;
        failed.map_or(Ok(()), |failure| Err(Failure::Job(failure)))
    }

    /// Notes what the job uses, so that it exists until the job has ended.
    fn hold(&mut self, work: &Work<'_>) {
        if Arc::get_mut(&mut self.uses).is_none() {
            self.uses = Arc::default();
        }
        let Some(uses) = Arc::get_mut(&mut self.uses) else { return };
        uses.0.clear();
        let read = [self.programs.object(), work.rows, work.weight.object];
        uses.0.extend(read.into_iter().flatten().map(|object| (object.clone(), Access::Read)));
        uses.0.extend(self.output.object().map(|object| (object.clone(), Access::Write)));
    }

    /// Writes the programs of a group of columns for all cores, and their entries in the list. The first
    /// program of every core begins at the first row.
    fn encode(&mut self, work: &Work<'_>) -> Result<()> {
        let Work { plan, group, input, weight, .. } = work;
        let precision = plan.layout.precision();
        let (rows, count) = (plan.m as u64, plan.programs());
        let (programs, output) = (self.programs.iova(), self.output.iova());
        // Each core's programs have their places, also where another core has no columns.
        let all_programs = self.programs.bytes_mut().chunks_mut(count * program::BYTES);
        for (core, words) in (0..plan.cores).zip(all_programs) {
            let mut words = words.chunks_exact_mut(program::BYTES);
            let columns = plan.columns(group, core);
            if columns.is_empty() {
                continue;
            }
            let (first, mut index) = (core * count, 0);
            let width = columns.end - columns.start;
            let line = u64::from(width * output_bytes(precision));
            let region = output + core as u64 * self.capacity.output;
            let tile = u64::from(columns.start / precision.tile_width());
            for (s, slice) in plan.k_slices(group.ns).enumerate() {
                let row = u64::from(limits::row_bytes(precision, slice.kp));
                let inputs = input + rows * u64::from(limits::row_bytes(precision, slice.k0));
                let weights = weight.iova + slice.offset + tile * precision.tile_bytes(slice.kp);
                for block in plan.blocks() {
                    let iova = programs + ((first + index) * program::BYTES) as u64;
                    let next = (index + 1 < count).then_some(iova + program::BYTES as u64);
                    let matmul = program::MatmulProgram {
                        precision,
                        m: block.len() as u32,
                        k: slice.kp,
                        n: width,
                        input: inputs + block.start as u64 * row,
                        weights,
                        output: region + (s as u64 * rows + block.start as u64) * line,
                        next,
                    };
                    if let Some(word) = words.next().and_then(|word| word.try_into().ok()) {
                        matmul.write(word)?;
                    }
                    let entry = Program { iova, commands: program::AMOUNT };
                    self.list.write_program(first + index, &entry);
                    index += 1;
                }
            }
        }
        Ok(())
    }
}
