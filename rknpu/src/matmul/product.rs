//! Products under way behind `Matmul::multiply`: their results come column by column.

use std::fmt;

use rknpu_sys::layout::Layout;
use rknpu_sys::regs::CORES;

use super::activations::Rows;
use super::element::Element;
use super::outputs::Outputs;
use super::plan::{ColumnGroup, Plan, Strip, cores_for};
use super::scratch::{Scratch, Work};
use super::{JobStats, Matmul, WeightRef};
use crate::buffer::OnDevice;
use crate::cores::Taken;
use crate::device::Entered;
use crate::domain::Domain;
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
    /// In each of the matmul's domains.
    progress: [Progress; CORES],
    stats: JobStats,
}

/// How far the weights of one domain are.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Weight, of those in the domain, and column that have not been multiplied yet.
    next: (usize, u32),
    /// What has been multiplied last.
    done: Option<Done>,
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

/// Those of a list of weights that lie in one domain.
#[derive(Clone, Copy)]
pub(super) struct InLane<'a> {
    weights: &'a [WeightRef<'a>],
    /// Absent where all of them do.
    domain: Option<&'a Domain>,
    /// How many of them are over.
    over: usize,
}

impl<'a> InLane<'a> {
    /// With their numbers in the list.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &'a WeightRef<'a>)> + use<'a> {
        let domain = self.domain;
        let here = move |weight: &WeightRef<'_>| domain.is_none_or(|domain| weight.is_in(domain));
        let all = self.weights.iter().enumerate();
        all.filter(move |(_, weight)| here(weight)).skip(self.over)
    }

    pub(super) fn nth(&self, index: usize) -> Option<&'a WeightRef<'a>> {
        self.iter().nth(index).map(|(_, weight)| weight)
    }

    fn layouts(&self) -> impl Iterator<Item = Layout> + use<'a> {
        self.iter().map(|(_, weight)| weight.layout)
    }

    fn after(self, over: usize) -> InLane<'a> {
        InLane { over: self.over + over, ..self }
    }
}

/// Why an attempt did not succeed.
enum Failure {
    /// Nothing is wrong with the NPU.
    Error(Error),
    /// The NPU did not run the job in this of the matmul's domains.
    Job(usize, JobFailure),
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

    /// Those in one of the matmul's domains.
    fn lane<'a>(&'a self, domains: &'a [Domain], lane: usize) -> InLane<'a> {
        let domain = if domains.len() > 1 { domains.get(lane) } else { None };
        InLane { weights: self.as_slice(), domain, over: 0 }
    }
}

impl<'a, E: Element> Product<'a, E> {
    pub(super) fn new(
        matmul: &'a mut Matmul<E>,
        weights: Weights<'a>,
        rows: &'a Rows<E, OnDevice>,
    ) -> Product<'a, E> {
        let (progress, stats) = Default::default();
        Product { matmul, weights, rows, progress, stats }
    }

    fn lane(&self, lane: usize) -> InLane<'_> {
        self.weights.lane(&self.matmul.domains, lane)
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
        let mut next = self.read_on();
        if next.is_none() {
            if !self.multiply()? {
                return Ok(None);
            }
            next = self.read_on();
        }
        let Some((lane, strip, Done { plan, group, weight, .. })) = next else { return Ok(None) };
        let number = self.lane(lane).after(weight + strip.weight).iter().next();
        let (Some((number, _)), Some(scratch)) = (number, self.matmul.scratch.get(lane)) else {
            return Ok(None);
        };
        let (bytes, region) = scratch.results();
        Ok(Some(Outputs::new(bytes, region, plan, group, strip, number)))
    }

    /// The next strip of what has been multiplied, and in which of the matmul's domains.
    fn read_on(&mut self) -> Option<(usize, Strip, Done)> {
        (0..self.matmul.domains.len()).find_map(|lane| {
            let weights = self.lane(lane);
            let done = self.progress.get(lane)?.done?;
            let layouts = weights.after(done.weight).layouts();
            let strip = done.plan.strips(layouts, done.group).nth(done.read)?;
            self.progress.get_mut(lane)?.done = Some(Done { read: done.read + 1, ..done });
            Some((lane, strip, done))
        })
    }

    /// Multiplies the next group of columns in each domain; `false` when there are no more. When the NPU does
    /// not run it, it is reset and the groups run once more, on whatever cores there are then.
    fn multiply(&mut self) -> Result<bool> {
        let open = self.progress.map(|progress| progress.next);
        self.progress.iter_mut().for_each(|progress| progress.done = None);
        let mut failures = 0;
        let done = loop {
            let Matmul { domains, cores, scratch, .. } = &mut *self.matmul;
            let (lanes, device) = (domains.len(), cores.device());
            let seen = device.resets();
            let weights = |lane: usize| {
                let (weight, column) = open.get(lane).copied().unwrap_or_default();
                (self.weights.lane(domains, lane).after(weight), column)
            };
            let chains = device.chains(E::PRECISION);
            let run = |lane| {
                let (weights, column) = weights(lane);
                let run = chains.run(|| weights.iter().map(|(_, weight)| weight));
                (weights.layouts().take(run), column)
            };
            let mut entered = [const { None }; CORES];
            let (mut works, mut open_lanes) = ([const { None }; CORES], 0);
            for ((lane, domain), entered) in domains.iter().enumerate().zip(&mut entered) {
                if weights(lane).0.iter().next().is_some() {
                    *entered = Some(device.enter_for_jobs(domain.index(), E::PRECISION, true)?);
                    open_lanes += 1;
                }
            }
            if open_lanes == 0 {
                return Ok(false);
            }
            let (k, m) = (self.rows.k(), self.rows.m());
            let want = match lanes {
                1 => cores_for(run(0).0, m, cores.count().min(device.cores_in_a_domain())),
                _ => open_lanes,
            };
            let mut taken = cores.take(want)?;
            let in_each = if lanes == 1 { taken.count() } else { 1 };
            for (lane, (work, scratch)) in works.iter_mut().zip(&*scratch).enumerate() {
                let plan = Plan::new(k, m, in_each, scratch.capacity(), chains);
                let (layouts, column) = run(lane);
                *work = plan.group(layouts, column).map(|group| {
                    let (input, rows) = (self.rows.iova(lane), self.rows.object(lane));
                    Work { plan, group, input, rows, weights: weights(lane).0 }
                });
            }
            let (lane, failure) = match attempt(scratch, &works, &mut taken, &entered) {
                Ok(stats) => {
                    self.stats.add(&JobStats { retries: failures, ..stats });
                    break works.map(|work| work.map(|work| (work.plan, work.group)));
                }
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::Job(lane, failure)) => (lane, failure),
            };
            drop((taken, entered));
            failures += 1;
            self.recover(lane, &failure, seen, failures)?;
        };
        if failures > 0 {
            self.matmul.cores.device().record().recovered();
        }
        for (lane, done) in done.into_iter().enumerate() {
            let Some((plan, group)) = done else { continue };
            let Some(((weight, _), progress)) = open.get(lane).zip(self.progress.get_mut(lane))
            else {
                continue;
            };
            let weights = self.weights.lane(&self.matmul.domains, lane).after(*weight);
            if let Some(last) = plan.strips(weights.layouts(), group).last() {
                let whole = last.columns.end >= last.layout.n();
                let (of, end) = (weight + last.weight, last.columns.end);
                progress.next = if whole { (of + 1, 0) } else { (of, end) };
            }
            progress.done = Some(Done { plan, group, weight: *weight, read: 0 });
        }
        Ok(true)
    }

    /// Brings the NPU back for the repetition of a job; an error when there is to be none.
    #[cold]
    fn recover(&self, lane: usize, failure: &JobFailure, seen: u64, failures: u32) -> Result<()> {
        let device = self.matmul.cores.device();
        let recovery = device.recover(seen);
        let next = self.progress.get(lane).map_or(0, |progress| progress.next.0);
        let report = PostMortem {
            operation: "matmul",
            precision: Some(E::PRECISION),
            m: self.rows.m() as u64,
            k: self.rows.k(),
            n: self.lane(lane).layouts().fold(0, |n, layout| layout.n().saturating_add(n)),
            weights_iova: self.lane(lane).nth(next).map_or(0, WeightRef::iova),
            attempts: failures,
            recovery,
            ..failure.report(device, self.matmul.domains.get(lane))
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

/// Runs a group in each domain on the cores taken, and lets the CPU see what they wrote.
fn attempt(
    scratch: &mut [Scratch],
    works: &[Option<Work<'_>>; CORES],
    taken: &mut Taken<'_>,
    entered: &[Option<Entered>; CORES],
) -> Result<JobStats, Failure> {
    let mut stats = JobStats { cores: taken.count() as u32, ..JobStats::default() };
    // A core's programs, and in which domain.
    let (mut all, mut count, mut rounds) = ([const { None }; CORES], 0, 1);
    let mut unwritten = None;
    let lanes =
        || works.iter().zip(entered).map(|(work, entered)| work.as_ref().zip(entered.as_ref()));
    for ((lane, scratch), at_work) in scratch.iter_mut().enumerate().zip(lanes()) {
        let Some((work, entered)) = at_work else { continue };
        let shares = match scratch.write(work, entered) {
            Ok(shares) => shares,
            Err(error) => {
                unwritten = Some(error);
                break;
            }
        };
        rounds = rounds.max(scratch.rounds(&shares));
        for share in shares.into_iter().filter(|share| !share.is_empty()) {
            if let Some(place) = all.get_mut(count) {
                *place = Some((lane, share));
                count += 1;
            }
        }
    }
    if let Some(error) = unwritten {
        // What the domains before it were to use is let go.
        scratch.iter_mut().for_each(Scratch::release);
        return Err(error.into());
    }
    let all = all.get(..count).unwrap_or_default();
    let mut result = Ok(());
    // With fewer cores than domains, one domain after the other.
    let side_by_side = taken.count().max(1);
    let waves = (0..rounds).flat_map(|_| all.chunks(side_by_side));
    for wave in waves {
        let ran = |i: usize| {
            let (lane, share) = wave.get(i)?.as_ref()?;
            scratch.get(*lane).map(|scratch| (*lane, scratch, share))
        };
        let (completions, started) = taken.run(|i, core| {
            let submission = ran(i).map(|(_, scratch, share)| scratch.submission(share, core));
            submission.transpose()
        });
        let mut failed = None;
        for ((i, completion), core) in completions.iter().enumerate().zip(taken.indices()) {
            let (Some(completion), Some((lane, scratch, share))) = (completion, ran(i)) else {
                continue;
            };
            let count = share.end - share.start;
            stats.submits += 1;
            stats.programs += count;
            stats.busy += completion.busy;
            let failure = JobFailure::of(completion, count, core, scratch.program(share.start));
            failed = failed.or(failure.map(|failure| (lane, failure)));
        }
        // A job that failed comes first: until the reset, the NPU may still write.
        result = failed.map_or(Ok(()), |(lane, failure)| Err(Failure::Job(lane, failure)));
        result = result.and_then(|()| Ok(started?));
        if result.is_err() {
            break;
        }
    }
    scratch.iter_mut().for_each(Scratch::release);
    result?;
    for (scratch, at_work) in scratch.iter_mut().zip(lanes()) {
        let Some((work, entered)) = at_work else { continue };
        scratch.read(work, entered)?;
    }
    Ok(stats)
}

impl<E: Element> fmt::Debug for Product<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.weights.as_slice().len();
        write!(f, "Product({:?} by {of} weights)", self.rows)
    }
}
