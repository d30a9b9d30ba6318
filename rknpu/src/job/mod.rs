//! Jobs of register programs that the caller wrote (those of [`Matmul`](crate::Matmul) are in `matmul`).

mod allowed_registers;
mod extents;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use rknpu_sys::layout::Precision;
use rknpu_sys::regs::Command;

use crate::allocation::{Allocation, Request};
use crate::buffer::{Buffer, OnDevice};
use crate::cores::Core;
use crate::domain::Domain;
use crate::driver::{Completion, Program, Submission, Usage, Uses};
use crate::error::{Error, Result};
use crate::health::{JobFailure, Recovery};
use crate::limits;
use crate::matmul::JobStats;
use crate::program::{ProgramError, trailer};
use allowed_registers::Registers;

/// Programs start on multiples of this many bytes.
const ALIGN: usize = 64;
/// Commands of a program at most, trailer not counted.
const COMMANDS: usize = 4096;

/// Register programs, chained, with every buffer that they touch.
///
/// This is the layer below [`Matmul`](crate::Matmul), for programs that it does not write. Every command is
/// looked at before the NPU is: a program writes every register of the convolution, array and output blocks
/// and no other, and the ranges that they make the NPU read and write lie in the job's own buffers. Values
/// whose effect on addresses is not known are refused. The trailer that chains and starts a program is added
/// here.
///
/// ```
/// use rknpu::program::MatmulProgram;
/// use rknpu::{Device, Job, Layout, Precision, reference};
///
/// let device = Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
/// let layout = Layout::new(32, 32, Precision::Int8)?;
/// let mut weights = domain.alloc(layout.bytes() as usize)?;
/// reference::tile_i8(layout, |k, n| (k == n) as i8, weights.as_mut_slice());
/// let mut input = domain.alloc(32)?;
/// input.as_mut_slice().fill(5);
/// let buffers = vec![
///     input.to_device()?,
///     weights.to_device()?,
///     domain.alloc(32 * 4)?.to_device()?,
/// ];
/// let program = MatmulProgram {
///     precision: Precision::Int8,
///     m: 1, k: 32, n: 32,
///     input: buffers[0].iova(), weights: buffers[1].iova(), output: buffers[2].iova(),
///     next: None,
/// };
/// let commands = program.encode()?;
/// let job = Job::new(&domain, &[&commands[..108]], buffers)?;
/// let (job, stats) = job.run(&mut device.core(0)?)?;
/// assert_eq!(stats.programs, 1);
/// let output = job.into_buffers().remove(2).to_host()?;
/// assert_eq!(output.as_slice()[..4], 5i32.to_le_bytes());
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// A buffer that the CPU may write is not taken:
///
/// ```compile_fail,E0308
/// let device = rknpu::Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
/// let buffer = domain.alloc(4096)?; // a `Buffer<Host>`
/// let job = rknpu::Job::new(&domain, &[], vec![buffer])?;
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// and a core takes one job at a time:
///
/// ```compile_fail,E0382
/// # fn two(a: rknpu::Job, b: rknpu::Job, core: rknpu::Core) -> Result<(), rknpu::Error> {
/// let running = a.submit(core)?;
/// let second = b.submit(core)?; // the core has gone with the first job
/// # Ok(()) }
/// ```
///
/// ```
/// # fn two(a: rknpu::Job, b: rknpu::Job, core: rknpu::Core) -> Result<(), rknpu::Error> {
/// let (core, a) = a.submit(core)?.wait();
/// let (core, b) = b.submit(core)?.wait();
/// # Ok(()) }
/// ```
pub struct Job(Box<Parts>);

struct Parts {
    domain: Domain,
    list: Allocation,
    programs: Allocation,
    count: u32,
    buffers: Vec<Buffer<OnDevice>>,
}

/// A job that was not made, or did not run: what it owned, and why.
///
/// ```
/// use rknpu::{Device, Error, Job};
///
/// let device = Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
/// let buffers = vec![domain.alloc(4096)?.to_device()?];
/// let rejected = Job::new(&domain, &[], buffers).unwrap_err();
/// assert!(matches!(rejected.error, Error::Program(_))); // no programs
/// assert_eq!(rejected.kept.len(), 1); // nothing was lost
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Rejected<T: fmt::Debug> {
    /// The buffers, or the job.
    pub kept: T,
    /// Why.
    #[source]
    pub error: Error,
}

impl<T: fmt::Debug> From<Rejected<T>> for Error {
    /// Drops what was kept.
    fn from(rejected: Rejected<T>) -> Error {
        rejected.error
    }
}

impl Job {
    /// A job of `programs`, each without trailer, run in order on one core.
    ///
    /// ```
    /// use rknpu::Job;
    ///
    /// # let (domain, buffers, program) = rknpu::doc::identity()?;
    /// # let programs = &[&program[..]];
    /// let job = Job::new(&domain, programs, buffers)?;
    /// assert_eq!(format!("{job:?}"), "Job(1 programs on 3 buffers in 0)");
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The buffers back and the reason: [`Error::Program`] for a program that must not run,
    /// [`Error::ForeignDomain`] for a buffer of another domain, what allocating meets.
    pub fn new(
        domain: &Domain,
        programs: &[&[Command]],
        buffers: Vec<Buffer<OnDevice>>,
    ) -> Result<Job, Rejected<Vec<Buffer<OnDevice>>>> {
        match assemble(domain, programs, &buffers) {
            Ok((list, memory)) => Ok(Job(Box::new(Parts {
                domain: domain.clone(),
                list,
                programs: memory,
                count: programs.len() as u32,
                buffers,
            }))),
            Err(error) => Err(Rejected { kept: buffers, error }),
        }
    }

    /// The buffers, in the order in which they were given.
    ///
    /// ```
    /// use rknpu::Job;
    ///
    /// # let (domain, buffers, program) = rknpu::doc::identity()?;
    /// # let programs = &[&program[..]];
    /// let job = Job::new(&domain, programs, buffers)?;
    /// assert_eq!(job.buffers()[2].len(), 128); // the output
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn buffers(&self) -> &[Buffer<OnDevice>] {
        &self.0.buffers
    }

    /// Gives the buffers back.
    ///
    /// ```
    /// use rknpu::Job;
    ///
    /// # let (domain, buffers, program) = rknpu::doc::identity()?;
    /// # let programs = &[&program[..]];
    /// let (job, _) = Job::new(&domain, programs, buffers)?.run(&mut domain.device().core(0)?)?;
    /// let output = job.into_buffers().remove(2).to_host()?;
    /// assert_eq!(output.as_slice()[..4], 5i32.to_le_bytes());
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn into_buffers(self) -> Vec<Buffer<OnDevice>> {
        self.0.buffers
    }

    /// Runs it on the calling thread.
    ///
    /// ```
    /// use rknpu::Job;
    ///
    /// # let (domain, buffers, program) = rknpu::doc::identity()?;
    /// # let programs = &[&program[..]];
    /// let (job, stats) = Job::new(&domain, programs, buffers)?.run(&mut domain.device().core(0)?)?;
    /// assert_eq!((stats.programs, stats.retries), (1, 0));
    /// let (_job, _) = job.run(&mut domain.device().core(1)?)?; // again, on another core
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The job back and [`Error::JobFailed`] when the NPU did not run it: it has been reset, what
    /// the job's buffers hold is unspecified, and it may be tried again. When the reset did not help, which the
    /// error tells, every later call is answered [`Error::Wedged`].
    pub fn run(self, core: &mut Core) -> Result<(Job, JobStats), Rejected<Job>> {
        let seen = core.device().resets();
        let (submission, entered) = match self.prepare(core, true) {
            Ok(ready) => ready,
            Err(error) => return Err(Rejected { kept: self, error }),
        };
        let completion = core.run(submission);
        drop(entered);
        match self.conclude(&completion, core.index(), seen) {
            Ok(stats) => Ok((self, stats)),
            Err(error) => Err(Rejected { kept: self, error }),
        }
    }

    /// Whether the driver was built with fences: runs the job with one.
    pub(crate) fn fences(&self, core: &Core) -> Result<bool> {
        let (submission, _entered) = self.prepare(core, true)?;
        let fences = core.device().driver().fences(&submission);
        fences.map_err(|refused| refused.on(self.0.domain.index(), 0))
    }

    /// Starts it on the core's own thread and returns at once. The domain stays active until it has ended.
    ///
    /// ```
    /// use rknpu::Job;
    ///
    /// # let (domain, buffers, program) = rknpu::doc::identity()?;
    /// # let programs = &[&program[..]];
    /// let running = Job::new(&domain, programs, buffers)?.submit(domain.device().core(0)?)?;
    /// // ... this thread does something else ...
    /// let (_core, finished) = running.wait();
    /// assert_eq!(finished?.1.programs, 1);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// Job and core back, and the reason.
    pub fn submit(self, mut core: Core) -> Result<Running, Rejected<(Job, Core)>> {
        let seen = core.device().resets();
        let (submission, entered) = match self.prepare(&core, false) {
            Ok(ready) => ready,
            Err(error) => return Err(Rejected { kept: (self, core), error }),
        };
        match core.start(submission, Some(entered)) {
            Ok(()) => Ok(Running { core, job: self, seen }),
            Err(error) => Err(Rejected { kept: (self, core), error }),
        }
    }

    fn prepare(&self, core: &Core, bound: bool) -> Result<(Submission, crate::device::Entered)> {
        let Parts { domain, list, programs, count, buffers } = &*self.0;
        let (device, want) = (domain.device(), domain.index());
        if !core.device().is(device) {
            return Err(Error::ForeignDomain { what: "another device's core", got: want, want });
        }
        core.check()?;
        let entered = device.enter_for_jobs(want, Precision::Int8, bound)?;
        let size = list.size();
        let list = list.object().cloned().ok_or(Error::Range { offset: 0, len: 0, size })?;
        // Which of them are only read is not known here.
        let written = buffers.iter().filter_map(Buffer::object).map(|o| (o.clone(), Usage::Write));
        let read = programs.object().map(|object| (object.clone(), Usage::Read));
        let submission = Submission {
            list,
            first: 0,
            count: *count,
            core: core.index(),
            timeout_ms: device.timeout_ms(),
            uses: Arc::new(Uses(read.into_iter().chain(written).collect())),
        };
        Ok((submission, entered))
    }

    fn conclude(&self, completion: &Completion, core: u32, seen: u64) -> Result<JobStats> {
        let Parts { domain, programs, count, .. } = &*self.0;
        let Some(failure) = JobFailure::of(completion, *count, core, programs.iova()) else {
            let (programs, busy) = (*count, completion.busy);
            return Ok(JobStats { cores: 1, submits: 1, programs, busy, retries: 0 });
        };
        let device = domain.device();
        let mut report = failure.report(device, Some(domain));
        report.recovery = device.recover(seen);
        device.record().failed(&report);
        if report.recovery != Recovery::Reset {
            device.record().wedge(&report);
        }
        Err(Error::JobFailed(Box::new(report)))
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { count, buffers, domain, .. } = &*self.0;
        write!(f, "Job({count} programs on {} buffers in {})", buffers.len(), domain.index())
    }
}

/// A job on its way. Dropping it waits for the job; forgetting it keeps the core and leaks the job's
/// memory, which is never freed under the NPU.
///
/// ```
/// use rknpu::Job;
///
/// # let (domain, buffers, program) = rknpu::doc::identity()?;
/// # let programs = &[&program[..]];
/// let running = Job::new(&domain, programs, buffers)?.submit(domain.device().core(0)?)?;
/// assert!(domain.device().core(0).is_err()); // the core is with the job
/// drop(running.wait());
/// assert!(domain.device().core(0).is_ok());
/// # Ok::<(), rknpu::Error>(())
/// ```
#[must_use = "dropping a running job waits for it and loses its outcome"]
#[derive(Debug)]
pub struct Running {
    // In this order: a core that is dropped waits for what it runs, and sees to it that it has ended, and only
    // then may the job's memory go.
    core: Core,
    job: Job,
    seen: u64,
}

impl Running {
    /// Waits for the end, at most the device's timeout and what a reset takes.
    ///
    /// ```
    /// use rknpu::Job;
    ///
    /// # let (domain, buffers, program) = rknpu::doc::identity()?;
    /// # let programs = &[&program[..]];
    /// let (core, finished) = Job::new(&domain, programs, buffers)?.submit(domain.device().core(2)?)?.wait();
    /// let (job, _stats) = finished?;
    /// assert_eq!((core.index(), job.buffers().len()), (2, 3)); // for the next job
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn wait(self) -> (Core, Result<(Job, JobStats), Rejected<Job>>) {
        let Running { mut core, job, seen } = self;
        let completion = core.finish();
        let result = match job.conclude(&completion, core.index(), seen) {
            Ok(stats) => Ok((job, stats)),
            Err(error) => Err(Rejected { kept: job, error }),
        };
        (core, result)
    }

    /// The core that it runs on.
    ///
    /// ```
    /// use rknpu::Job;
    ///
    /// # let (domain, buffers, program) = rknpu::doc::identity()?;
    /// # let programs = &[&program[..]];
    /// let running = Job::new(&domain, programs, buffers)?.submit(domain.device().core(1)?)?;
    /// assert_eq!(running.core(), 1);
    /// # drop(running.wait());
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn core(&self) -> u32 {
        self.core.index()
    }
}

/// Checks programs, and writes them and their tasks.
fn assemble(
    domain: &Domain,
    programs: &[&[Command]],
    buffers: &[Buffer<OnDevice>],
) -> Result<(Allocation, Allocation)> {
    for buffer in buffers {
        let (got, want) = (buffer.domain().index(), domain.index());
        if !buffer.domain().is(domain) {
            return Err(Error::ForeignDomain { what: "a buffer", got, want });
        }
    }
    let limit = limits::CHAIN as usize;
    if !(1..=limit).contains(&programs.len()) {
        let what = "programs in a job";
        return Err(ProgramError::Count { what, got: programs.len(), limit }.into());
    }
    let mut extents = Vec::with_capacity(programs.len());
    for (index, commands) in programs.iter().enumerate() {
        if !(1..=COMMANDS).contains(&commands.len()) {
            let (what, got) = ("commands in a program", commands.len());
            return Err(ProgramError::Count { what, got, limit: COMMANDS }.into());
        }
        extents.push(extents::check(&Registers::read(index, commands)?, buffers)?);
    }

    let stride = |commands: &[Command]| ((commands.len() + 4) * 8).next_multiple_of(ALIGN);
    let bytes: usize = programs.iter().map(|commands| stride(commands)).sum();
    let mut memory = Allocation::create(domain, &Request::new(bytes as u64))?;
    let mut list = Allocation::create(domain, &Request::programs(programs.len()))?;

    let mut at = 0;
    let base = memory.iova();
    for (index, commands) in programs.iter().enumerate() {
        let end = at + stride(commands);
        let next = programs.get(index + 1).map(|next| (base + end as u64, next.len() as u32));
        let out = memory.bytes_mut().get_mut(at..end).unwrap_or_default();
        for (word, command) in out.chunks_exact_mut(8).zip(commands.iter().chain(&trailer(next))) {
            word.copy_from_slice(&command.bits().to_le_bytes());
        }
        let (iova, commands) = (base + at as u64, commands.len() as u32);
        let mark = extents.get(index).and_then(|of| extents::mark(of, &extents));
        list.write_program(index, &Program { iova, commands, mark });
        at = end;
    }
    memory.sync_for_device(0..bytes as u64)?;
    Ok((list, memory))
}
