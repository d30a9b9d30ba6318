//! The buffers that a matmul's jobs go through, and the jobs.
//!
//! The task array is only ever touched by CPUs and needs no cache maintenance. Each core writes into a
//! region of its own of the output buffer, which the CPU only reads, so no dirty line can land on
//! results.

use rknpu_sys::flags::SyncFlags;
use rknpu_sys::regs::{CORES, INT_CLEAR_ALL, INT_DPU, pc};
use rknpu_sys::uapi::Task as TaskEntry;
use zerocopy::IntoBytes;

use super::JobStats;
use super::plan::{Capacity, Group, Plan};
use crate::buffer::Memory;
use crate::core::Taken;
use crate::device::Entered;
use crate::domain::{Domain, Request};
use crate::error::{Error, Result};
use crate::health::{PostMortem, Recovery};
use crate::limits;
use crate::program::{self, output_bytes};
use crate::worker::{Finished, Task};

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
    /// The failure that `finished` is, unless the job ran.
    pub(crate) fn of(finished: &Finished, core: u32, program_iova: u64) -> Option<JobFailure> {
        (!finished.ran()).then(|| JobFailure {
            core,
            programs: finished.count,
            done: finished.completion.tasks_done,
            program_iova,
            errno: finished.result.err(),
            waited: finished.waited,
        })
    }

    /// A record with what is known here.
    pub(crate) fn report(&self, domain: &Domain) -> PostMortem {
        let record = domain.device().record();
        PostMortem {
            operation: "job",
            precision: None,
            m: 0,
            k: 0,
            n: 0,
            domain: domain.index(),
            core: self.core,
            programs: self.programs,
            programs_done: self.done,
            program_iova: self.program_iova,
            weights_iova: 0,
            errno: self.errno,
            waited: self.waited,
            age: record.age(),
            iova_used: domain.stats().used,
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
    programs: Memory,
    tasks: Memory,
    output: Memory,
    /// Cores' regions that no job has written yet: the first submit into one is made twice, because
    /// its results have been seen to come out stale.
    fresh: [bool; CORES],
}

impl Scratch {
    pub(crate) fn new(domain: &Domain, capacity: Capacity) -> Result<Scratch> {
        let mut programs = Memory::create(domain, &Request::new(capacity.program_buffer()))?;
        let tasks = Request { kernel_mapping: true, ..Request::new(capacity.task_buffer()) };
        let tasks = Memory::create(domain, &tasks)?;
        let mut output = Memory::create(domain, &Request::new(capacity.output_buffer()))?;
        programs.clean(0..0)?;
        output.clean(0..0)?;
        Ok(Scratch { capacity, programs, tasks, output, fresh: [true; CORES] })
    }

    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Writes the programs of a group of columns for all cores, and their tasks. Rows lie at `input`,
    /// as [`Rows`](super::Rows) has them; the first program of every core begins there.
    pub(crate) fn encode(
        &mut self,
        plan: &Plan,
        group: &Group,
        input: u64,
        weights: u64,
    ) -> Result<()> {
        let precision = plan.layout.precision();
        let (rows, count) = (plan.m as u64, plan.programs());
        let (programs, output) = (self.programs.iova(), self.output.iova());
        // Each core's programs and tasks have their places, also where another core has no columns.
        let all_programs = self.programs.bytes_mut().chunks_mut(count * program::BYTES);
        let all_tasks = self.tasks.bytes_mut().chunks_mut(count * size_of::<TaskEntry>());
        for ((core, words), tasks) in (0..plan.cores).zip(all_programs).zip(all_tasks) {
            let mut words = words.chunks_exact_mut(program::BYTES);
            let mut tasks = tasks.chunks_exact_mut(size_of::<TaskEntry>());
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
                for block in plan.blocks() {
                    let iova = programs + ((first + index) * program::BYTES) as u64;
                    index += 1;
                    let matmul = program::Matmul {
                        precision,
                        m: block.len() as u32,
                        k: slice.kp,
                        n: width,
                        input: inputs + block.start as u64 * row,
                        weights: weights + slice.offset + tile * precision.tile_bytes(slice.kp),
                        output: region + (s as u64 * rows + block.start as u64) * line,
                        next: (index < count).then_some(iova + program::BYTES as u64),
                    };
                    if let Some(word) = words.next().and_then(|word| word.try_into().ok()) {
                        matmul.write(word)?;
                    }
                    if let Some(task) = tasks.next() {
                        task.copy_from_slice(task_entry(iova).as_bytes());
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs the programs on the cores taken, waits for all of them, and lets the CPU see what they
    /// wrote.
    pub(crate) fn submit(
        &mut self,
        taken: &mut Taken<'_>,
        plan: &Plan,
        group: &Group,
        entered: &Entered,
        stats: &mut JobStats,
    ) -> Result<(), Failure> {
        let end = (plan.cores * plan.programs() * program::BYTES) as u64;
        self.programs.sync_inside(SyncFlags::TO_DEVICE, 0..end, entered)?;
        let twice = (0..plan.cores).any(|i| self.fresh[i] && !plan.columns(group, i).is_empty());
        for _ in 0..if twice { 2 } else { 1 } {
            self.submit_once(taken, plan, group, stats)?;
        }
        for core in 0..plan.cores {
            let columns = plan.columns(group, core);
            self.fresh[core] &= columns.is_empty();
            let len = plan.layout.k_slices() as u64
                * plan.m as u64
                * u64::from(columns.len() as u32 * output_bytes(plan.layout.precision()));
            let start = core as u64 * self.capacity.output;
            self.output.sync_inside(SyncFlags::FROM_DEVICE, start..start + len, entered)?;
        }
        Ok(())
    }

    /// What the cores wrote, each in a region of its own of that many bytes.
    pub(crate) fn results(&self) -> (&[u8], usize) {
        (self.output.bytes(), self.capacity.output as usize)
    }

    fn submit_once(
        &self,
        taken: &mut Taken<'_>,
        plan: &Plan,
        group: &Group,
        stats: &mut JobStats,
    ) -> Result<(), Failure> {
        let count = plan.programs();
        let device = self.tasks.domain().device();
        let size = self.tasks.size();
        let object = self.tasks.object().ok_or(Error::Range { offset: 0, len: 0, size })?;
        let task = |i: usize| Task {
            tasks: object.clone(),
            start: (i * count) as u32,
            count: count as u32,
            domain: self.tasks.domain().index(),
            timeout_ms: device.timeout_ms(),
            entered: None,
        };
        let program = |i: usize| self.programs.iova() + (i * count * program::BYTES) as u64;
        let mut failed = None;
        let mut account = |core: u32, i: usize, finished: &Finished, stats: &mut JobStats| {
            stats.submits += 1;
            stats.programs += finished.count;
            stats.busy += finished.completion.busy;
            if let Some(failure) = JobFailure::of(finished, core, program(i)) {
                failed.get_or_insert(Failure::Job(failure));
            }
        };

        let (mut spawn, mut started) = (Ok(()), [false; CORES]);
        for (i, core) in taken.cores().enumerate().skip(1) {
            if plan.columns(group, i).is_empty() || spawn.is_err() {
                continue;
            }
            spawn = core.start(task(i)).map_err(|(_, source)| Error::Os {
                what: "cannot start the thread of an NPU core",
                source,
            });
            started[i] = spawn.is_ok();
        }
        for (i, core) in taken.cores().enumerate() {
            let finished = match i {
                0 if plan.columns(group, 0).is_empty() => continue,
                0 => core.run(task(0)),
                _ if started[i] => core.finish(),
                _ => continue,
            };
            account(core.index(), i, &finished, stats);
        }
        spawn?;
        failed.map_or(Ok(()), Err)
    }
}

/// The task of a program that ends with the DPU.
pub(crate) fn task_entry(iova: u64) -> TaskEntry {
    TaskEntry {
        enable_mask: pc::ENABLE_CNA_CORE_DPU,
        int_mask: INT_DPU,
        int_clear: INT_CLEAR_ALL,
        regcfg_amount: program::AMOUNT,
        regcmd_addr: iova,
        ..Default::default()
    }
}
