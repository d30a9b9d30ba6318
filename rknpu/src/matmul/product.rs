//! Products under way behind `Matmul::multiply`: their results come column by column.

use std::fmt;

use rknpu_sys::layout::Layout;

use super::activations::Rows;
use super::element::Element;
use super::outputs::Outputs;
use super::plan::{ColumnGroup, Plan, Strip, cores_for};
use super::scratch::{Scratch, Work};
use super::{JobStats, Matmul, WeightRef};
use crate::buffer::OnDevice;
use crate::cores::Taken;
use crate::device::Entered;
use crate::error::{Error, Result};
use crate::health::{JobFailure, PostMortem, Recovery};

/// Products of one weight or several and rows in device memory, see [`Matmul::multiply`] and
/// [`Matmul::multiply_all`].
///
/// It keeps neither domain nor cores between calls: others work while its results are read.
///
/// ```
/// # let (mut matmul, weight, rows) = rknpu::doc::product()?; // of ones and each channel's number
/// # let weight = weight.get()?;
/// let mut product = matmul.multiply(&weight, &rows)?;
/// let mut out = [0; 2 * 32];
/// while let Some(outputs) = product.next_columns()? {
///     outputs.copy_to(&mut out)?; // or requantised straight into the next matmul's rows
/// }
/// assert_eq!(out[1], 64);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[must_use = "nothing is multiplied before `next_columns`"]
pub struct Product<'a, E: Element> {
    matmul: &'a mut Matmul<E>,
    weights: Weights<'a>,
    rows: &'a Rows<E, OnDevice>,
    /// Weight and column that have not been multiplied yet.
    next: (usize, u32),
    /// What has been multiplied last.
    done: Option<Done>,
    stats: JobStats,
}

/// What is multiplied by.
pub(super) enum Weights<'a> {
    One([WeightRef<'a>; 1]),
    Several(&'a [WeightRef<'a>]),
}

/// A group that the cores have computed.
#[derive(Clone, Copy)]
struct Done {
    plan: Plan,
    group: ColumnGroup,
    /// Number of its first weight.
    weight: usize,
    /// Strips that have been read.
    read: usize,
}

/// Why an attempt did not succeed.
enum Failure {
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

impl Weights<'_> {
    fn as_slice(&self) -> &[WeightRef<'_>] {
        match self {
            Weights::One(one) => one,
            Weights::Several(several) => several,
        }
    }

    fn layouts(&self, first: usize) -> impl Iterator<Item = Layout> {
        self.as_slice().iter().skip(first).map(|weight| weight.layout)
    }
}

impl<'a, E: Element> Product<'a, E> {
    pub(super) fn new(
        matmul: &'a mut Matmul<E>,
        weights: Weights<'a>,
        rows: &'a Rows<E, OnDevice>,
    ) -> Product<'a, E> {
        Product { matmul, weights, rows, next: (0, 0), done: None, stats: JobStats::default() }
    }

    /// Gives the next columns, of one weight, to be read in place until the next call; `None` after the
    /// last of the last weight. Where they have not been multiplied yet, they are, with as many behind them
    /// as there is memory for results and a chain may hold.
    ///
    /// Waits until the domain may be entered and a core is free. When the NPU does not run the job, it is
    /// reset and the job run once more.
    ///
    /// ```
    /// # let (mut matmul, weight, rows) = rknpu::doc::product()?; // of ones and each channel's number
    /// # let weight = weight.get()?;
    /// let mut product = matmul.multiply(&weight, &rows)?;
    /// assert!(product.next_columns()?.is_some());
    /// assert!(product.next_columns()?.is_none()); // those were all
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DomainBusy`] when this thread keeps another domain active; [`Error::Driver`]: a cache
    /// could not be synced. The same columns come next then. [`Error::JobFailed`]: it failed twice; the
    /// device takes no more work.
    pub fn next_columns(&mut self) -> Result<Option<Outputs<'_, E>>> {
        let mut strip = self.read_on();
        if strip.is_none() {
            if self.next.0 >= self.weights.as_slice().len() {
                return Ok(None);
            }
            self.multiply()?;
            strip = self.read_on();
        }
        let (Some(strip), Some(done)) = (strip, self.done) else { return Ok(None) };
        let (bytes, region) = self.matmul.scratch.results();
        Ok(Some(Outputs::new(bytes, region, done.plan, done.group, strip, done.weight)))
    }

    /// The next strip of what has been multiplied.
    fn read_on(&mut self) -> Option<Strip> {
        let done = self.done.as_mut()?;
        let strip =
            done.plan.strips(self.weights.layouts(done.weight), done.group).nth(done.read)?;
        done.read += 1;
        Some(strip)
    }

    /// Multiplies the next group of columns. When the NPU does not run it, it is reset and the group run
    /// once more, on whatever cores there are then.
    fn multiply(&mut self) -> Result<()> {
        self.done = None;
        let (weight, column) = self.next;
        let mut failures = 0;
        let done = loop {
            let Matmul { domain, cores, scratch, .. } = &mut *self.matmul;
            let device = domain.device();
            let seen = device.resets();
            let entered = device.enter_for_jobs(domain.index(), E::PRECISION, true)?;
            let chains = device.chains(E::PRECISION);
            let weights = self.weights.as_slice().get(weight..).unwrap_or_default();
            let run = chains.run(weights);
            let layouts = || self.weights.layouts(weight).take(run);
            let (k, m) = (self.rows.k(), self.rows.m());
            let mut taken = cores.take(cores_for(layouts(), m, cores.count()))?;
            let plan = Plan::new(k, m, taken.count(), scratch.capacity(), chains);
            let Some(group) = plan.group(layouts(), column) else { return Ok(()) };
            let (input, object) = (self.rows.iova(), self.rows.object());
            let work = Work { plan, group, input, rows: object, weights };
            let failure = match attempt(scratch, &work, &mut taken, &entered) {
                Ok(stats) => {
                    self.stats.add(&JobStats { retries: failures, ..stats });
                    break Done { plan, group, weight, read: 0 };
                }
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::Job(failure)) => failure,
            };
            drop((taken, entered));
            failures += 1;
            self.recover(&failure, seen, failures)?;
        };
        if failures > 0 {
            self.matmul.domain.device().record().recovered();
        }
        if let Some(last) = done.plan.strips(self.weights.layouts(weight), done.group).last() {
            let whole = last.columns.end >= last.layout.n();
            let (of, end) = (weight + last.weight, last.columns.end);
            self.next = if whole { (of + 1, 0) } else { (of, end) };
        }
        self.done = Some(done);
        Ok(())
    }

    /// Brings the NPU back for the repetition of a job; an error when there is to be none.
    #[cold]
    fn recover(&self, failure: &JobFailure, seen: u64, failures: u32) -> Result<()> {
        let domain = &self.matmul.domain;
        let device = domain.device();
        let recovery = device.recover(seen);
        let first = self.weights.as_slice().get(self.next.0);
        let report = PostMortem {
            operation: "matmul",
            precision: Some(E::PRECISION),
            m: self.rows.m() as u64,
            k: self.rows.k(),
            n: self.weights.layouts(0).fold(0, |n, layout| layout.n().saturating_add(n)),
            weights_iova: first.map_or(0, WeightRef::iova),
            attempts: failures,
            recovery,
            ..failure.report(device, Some(domain))
        };
        device.record().failed(&report);
        if recovery == Recovery::Reset && failures == 1 {
            return Ok(());
        }
        device.record().wedge(&report);
        Err(Error::JobFailed(Box::new(report)))
    }

    /// What it has taken so far.
    ///
    /// ```
    /// # let (mut matmul, weight, rows) = rknpu::doc::product()?; // of ones and each channel's number
    /// # let weight = weight.get()?;
    /// let mut product = matmul.multiply(&weight, &rows)?;
    /// product.next_columns()?;
    /// assert_eq!((product.stats().cores, product.stats().programs > 0), (1, true));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn stats(&self) -> JobStats {
        self.stats
    }
}

/// Runs a group on the cores taken, and lets the CPU see what they wrote.
fn attempt(
    scratch: &mut Scratch,
    work: &Work<'_>,
    taken: &mut Taken<'_>,
    entered: &Entered,
) -> Result<JobStats, Failure> {
    let shares = scratch.write(work, entered)?;
    let mut stats = JobStats { cores: taken.count() as u32, ..JobStats::default() };
    let mut result = Ok(());
    for _ in 0..scratch.rounds(&shares) {
        let (completions, started) = taken.run(|i, core| match shares.get(i) {
            Some(share) if !share.is_empty() => scratch.submission(share, core).map(Some),
            _ => Ok(None),
        });
        let mut failed = None;
        let ran = completions.iter().zip(&shares).zip(taken.indices());
        for ((completion, share), core) in ran {
            let Some(completion) = completion else { continue };
            let count = share.end - share.start;
            stats.submits += 1;
            stats.programs += count;
            stats.busy += completion.busy;
            let iova = scratch.program(share.start);
            failed = failed.or(JobFailure::of(completion, count, core, iova));
        }
        // A job that failed comes first: until the reset, the NPU may still write.
        result = failed.map_or(Ok(()), |failure| Err(Failure::Job(failure)));
        result = result.and_then(|()| Ok(started?));
        if result.is_err() {
            break;
        }
    }
    scratch.release();
    result?;
    scratch.read(work, entered)?;
    Ok(stats)
}

impl<E: Element> fmt::Debug for Product<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((weight, column), of) = (self.next, self.weights.as_slice().len());
        write!(f, "Product({:?}, next column {column} of weight {weight} of {of})", self.rows)
    }
}
