//! The buffers that a matmul's jobs go through, and the jobs.
//!
//! One input buffer holds a block's activations, at an address that never changes (a core reuses what
//! it has in CBUF when only the address differs), and behind them the programs of all cores: one clean
//! covers both. The task array is only ever touched by CPUs and needs none. Each core writes into a
//! region of its own of the output buffer, which the CPU only reads, so no dirty line can land on
//! results.

use rknpu_sys::flags::SyncFlags;
use rknpu_sys::layout::{Precision, Slice};
use rknpu_sys::regs::{CORES, INT_CLEAR_ALL, INT_DPU, pc};
use rknpu_sys::uapi::Task as TaskEntry;
use zerocopy::{FromBytes, IntoBytes};

use super::JobStats;
use super::element::{Element, result_bytes};
use super::plan::{Capacity, Plan};
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

/// Buffers of a matmul.
#[derive(Debug)]
pub(crate) struct Scratch {
    capacity: Capacity,
    input: Memory,
    tasks: Memory,
    output: Memory,
    /// Cores' regions that no job has written yet: the first submit into one is made twice, because
    /// its results have been seen to come out stale.
    fresh: [bool; CORES],
    /// Bytes of the input buffer that have been written since it was last cleaned.
    dirty_from: u64,
}

impl Scratch {
    pub(crate) fn new(domain: &Domain, capacity: Capacity) -> Result<Scratch> {
        let mut input = Memory::create(domain, &Request::new(capacity.input_buffer()))?;
        let tasks = Request { kernel_mapping: true, ..Request::new(capacity.task_buffer()) };
        let tasks = Memory::create(domain, &tasks)?;
        let mut output = Memory::create(domain, &Request::new(capacity.output_buffer()))?;
        input.clean(0..0)?;
        output.clean(0..0)?;
        Ok(Scratch { capacity, input, tasks, output, fresh: [true; CORES], dirty_from: 0 })
    }

    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Writes a block's rows, each K slice's together.
    pub(crate) fn gather<E: Element>(&mut self, plan: &Plan, inputs: &[E::Input]) -> Result<()> {
        let precision = plan.layout.precision();
        let k = plan.layout.k() as usize;
        let mut out = self.input.bytes_mut();
        for slice in plan.k_slices(0) {
            let (k0, kp) = (slice.k0 as usize, slice.kp as usize);
            let row = limits::row_bytes(precision, slice.kp) as usize;
            for inputs in inputs.chunks_exact(k) {
                let (to, rest) = out.split_at_mut(row.min(out.len()));
                E::gather(&inputs[k0..k0 + kp], to);
                out = rest;
            }
        }
        self.dirty_from = 0;
        Ok(())
    }

    /// Writes the programs of an N slice for all cores, and their tasks.
    pub(crate) fn encode(&mut self, plan: &Plan, ns: u32, rows: usize, weights: u64) -> Result<()> {
        let precision = plan.layout.precision();
        let count = plan.programs(rows);
        let at = plan.programs_at(rows);
        let (input, output) = (self.input.iova(), self.output.iova());
        let bytes = self.input.bytes_mut().get_mut(at as usize..).unwrap_or_default();
        let mut words = bytes.chunks_exact_mut(program::BYTES);
        let tasks = self.tasks.bytes_mut();
        for core in 0..plan.cores {
            let columns = plan.columns(ns, core);
            if columns.is_empty() {
                continue;
            }
            let first = core * count;
            let width = columns.end - columns.start;
            let mut index = 0;
            let mut write = |mut matmul: program::Matmul| -> Result<()> {
                let iova = input + at + ((first + index) * program::BYTES) as u64;
                index += 1;
                matmul.next = (index < count).then_some(iova + program::BYTES as u64);
                if let Some(word) = words.next().and_then(|word| word.try_into().ok()) {
                    matmul.write(word)?;
                }
                let place = (first + index - 1) * size_of::<TaskEntry>();
                if let Some(task) = tasks.get_mut(place..place + size_of::<TaskEntry>()) {
                    task.copy_from_slice(task_entry(iova).as_bytes());
                }
                Ok(())
            };
            let region = output + core as u64 * self.capacity.output;
            for (s, slice) in plan.k_slices(ns).enumerate() {
                let tile = u64::from(columns.start / precision.tile_width());
                let base = program::Matmul {
                    precision,
                    m: rows as u32,
                    k: slice.kp,
                    n: width,
                    input: input + input_at(precision, rows, &slice),
                    weights: weights + slice.offset + tile * precision.tile_bytes(slice.kp),
                    output: region + (s * rows) as u64 * u64::from(width * output_bytes(precision)),
                    next: None,
                };
                if precision != Precision::Int4 {
                    write(base)?;
                    continue;
                }
                for row in 0..rows as u64 {
                    write(program::Matmul {
                        m: 1,
                        input: base.input + row * u64::from(limits::row_bytes(precision, slice.kp)),
                        output: base.output + row * u64::from(width * output_bytes(precision)),
                        ..base
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Runs the programs on the cores taken and waits for all of them.
    pub(crate) fn submit(
        &mut self,
        taken: &mut Taken<'_>,
        plan: &Plan,
        ns: u32,
        rows: usize,
        entered: &Entered,
        stats: &mut JobStats,
    ) -> Result<(), Failure> {
        let count = plan.programs(rows);
        let at = plan.programs_at(rows);
        let end = at + (plan.cores * count * program::BYTES) as u64;
        self.input.sync_inside(SyncFlags::TO_DEVICE, self.dirty_from..end, entered)?;
        // The next N slice changes programs only.
        self.dirty_from = at;

        let twice = (0..plan.cores).any(|i| self.fresh[i] && !plan.columns(ns, i).is_empty());
        for _ in 0..if twice { 2 } else { 1 } {
            self.submit_once(taken, plan, ns, count, at, stats)?;
        }
        for i in 0..plan.cores {
            self.fresh[i] &= plan.columns(ns, i).is_empty();
        }
        Ok(())
    }

    fn submit_once(
        &self,
        taken: &mut Taken<'_>,
        plan: &Plan,
        ns: u32,
        count: usize,
        at: u64,
        stats: &mut JobStats,
    ) -> Result<(), Failure> {
        let device = self.tasks.domain().device();
        let task = |i: usize| {
            let tasks = self.tasks.object()?.clone();
            let (start, count) = ((i * count) as u32, count as u32);
            let domain = self.tasks.domain().index();
            let timeout_ms = device.timeout_ms();
            Some(Task { tasks, start, count, domain, timeout_ms, cargo: None, entered: None })
        };
        let program = |i: usize| self.input.iova() + at + (i * count * program::BYTES) as u64;
        let mut failed = None;
        let mut account = |core: u32, i: usize, finished: &Finished, stats: &mut JobStats| {
            stats.submits += 1;
            stats.programs += finished.count;
            stats.busy += finished.completion.busy;
            if let Some(failure) = JobFailure::of(finished, core, program(i)) {
                failed.get_or_insert(Failure::Job(failure));
            }
        };

        let mut spawn = Ok(());
        for (i, core) in taken.cores().enumerate().skip(1) {
            if plan.columns(ns, i).is_empty() || spawn.is_err() {
                continue;
            }
            if let Some(task) = task(i) {
                spawn = core.start(task).map_err(|(_, source)| Error::Os {
                    what: "cannot start the thread of an NPU core",
                    source,
                });
            }
        }
        for (i, core) in taken.cores().enumerate() {
            let finished = if i == 0 {
                if plan.columns(ns, 0).is_empty() {
                    continue;
                }
                task(0).map(|task| core.run(task))
            } else {
                core.finish()
            };
            if let Some(finished) = finished {
                account(core.index(), i, &finished, stats);
            }
        }
        spawn?;
        failed.map_or(Ok(()), Err)
    }

    /// Sums the partial results into a block's rows of `out`.
    pub(crate) fn scatter<E: Element>(
        &mut self,
        plan: &Plan,
        ns: u32,
        rows: usize,
        entered: &Entered,
        out: &mut [E::Output],
    ) -> Result<()> {
        let slices = plan.layout.k_slices() as usize;
        let n = plan.layout.n() as usize;
        let n0 = plan.layout.slice(ns * plan.layout.k_slices()).map_or(0, |slice| slice.n0);
        for core in 0..plan.cores {
            let columns = plan.columns(ns, core);
            let width = columns.len();
            if width == 0 {
                continue;
            }
            let start = core * self.capacity.output as usize;
            let len = slices * rows * width * result_bytes::<E>();
            let range = start as u64..(start + len) as u64;
            self.output.sync_inside(SyncFlags::FROM_DEVICE, range, entered)?;
            let size = self.output.size();
            let parts = self.output.bytes().get(start..start + len);
            let Some(parts) = parts.and_then(|b| <[E::Partial]>::ref_from_bytes(b).ok()) else {
                return Err(Error::Range { offset: start as u64, len: len as u64, size });
            };
            let first = (n0 + columns.start) as usize;
            for (row, out) in out.chunks_exact_mut(n).enumerate() {
                let out = &mut out[first..first + width];
                E::scatter(&parts[row * width..], rows * width, slices, out);
            }
        }
        Ok(())
    }
}

/// First byte of a K slice's rows in the input buffer.
fn input_at(precision: Precision, rows: usize, slice: &Slice) -> u64 {
    rows as u64 * u64::from(limits::row_bytes(precision, slice.k0))
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
