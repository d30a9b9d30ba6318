//! The product under way behind `Matmul::multiply`: its results come column by column.

use std::fmt;
use std::marker::PhantomData;

use super::activations::Rows;
use super::element::Element;
use super::outputs::Outputs;
use super::plan::{Plan, cores_for};
use super::scratch::{Failure, JobFailure, Work};
use super::{JobStats, Matmul, WeightRef};
use crate::buffer::OnDevice;
use crate::error::{Error, Result};
use crate::health::{PostMortem, Recovery};

/// A product of a weight and rows in device memory, see [`Matmul::multiply`].
///
/// It keeps neither domain nor cores between calls: others work while its results are read.
///
/// ```
/// # use rknpu::{Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
/// # let device = rknpu::Device::simulated(Default::default())?;
/// # let domain = device.domain(0)?;
/// # let layout = Layout::new(64, 32, Precision::Int8)?;
/// # let mut buffer = domain.alloc(layout.bytes() as usize)?;
/// # reference::tile_i8(layout, |_, n| n as i8, buffer.as_mut_slice());
/// # let buffer = buffer.to_device()?;
/// # let weight = WeightRef::new(&buffer, 0, layout)?; // each channel's number
/// # let limits = MatmulLimits { rows: 2, k: 64, n: 32 };
/// # let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
/// # let mut rows = matmul.activations().lease(2, 64)?;
/// # for row in 0..2 { rows.write_row(row, &[1; 64])?; }
/// # let rows = rows.to_device()?; // of ones
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
    weight: WeightRef<'a>,
    rows: &'a Rows<E, OnDevice>,
    /// First column that has not been multiplied yet.
    column: u32,
    stats: JobStats,
}

impl<'a, E: Element> Product<'a, E> {
    pub(super) fn new(
        matmul: &'a mut Matmul<E>,
        weight: WeightRef<'a>,
        rows: &'a Rows<E, OnDevice>,
    ) -> Product<'a, E> {
        Product { matmul, weight, rows, column: 0, stats: JobStats::default() }
    }

    /// Multiplies the next columns, as many as there is memory for their results, and gives those to be
    /// read in place until the next call; `None` after the last.
    ///
    /// Waits until the domain may be entered and a core is free. When the NPU does not run the job, it is
    /// reset and the job run once more.
    ///
    /// ```
    /// # use rknpu::{Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
    /// # let device = rknpu::Device::simulated(Default::default())?;
    /// # let domain = device.domain(0)?;
    /// # let layout = Layout::new(64, 32, Precision::Int8)?;
    /// # let mut buffer = domain.alloc(layout.bytes() as usize)?;
    /// # reference::tile_i8(layout, |_, n| n as i8, buffer.as_mut_slice());
    /// # let buffer = buffer.to_device()?;
    /// # let weight = WeightRef::new(&buffer, 0, layout)?; // each channel's number
    /// # let limits = MatmulLimits { rows: 2, k: 64, n: 32 };
    /// # let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    /// # let mut rows = matmul.activations().lease(2, 64)?;
    /// # for row in 0..2 { rows.write_row(row, &[1; 64])?; }
    /// # let rows = rows.to_device()?; // of ones
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
        let layout = self.weight.layout;
        if self.column >= layout.n() {
            return Ok(None);
        }
        let mut failures = 0;
        let (plan, group) = loop {
            let Matmul { domain, cores, scratch, .. } = &mut *self.matmul;
            let device = domain.device();
            let seen = device.resets();
            let entered = device.enter_for_jobs(domain.index(), E::PRECISION, true)?;
            let mut taken = cores.take(cores_for(&layout, self.rows.m(), cores.count()))?;
            let plan = Plan::new(layout, self.rows.m(), taken.count(), scratch.capacity());
            let Some(group) = plan.group(self.column) else { return Ok(None) };
            let (input, rows, weight) = (self.rows.iova(), self.rows.object(), self.weight);
            let work = Work { plan, group, input, rows, weight };
            let failure = match scratch.multiply(&work, &mut taken, &entered) {
                Ok(stats) => {
                    self.stats.add(&JobStats { retries: failures, ..stats });
                    break (plan, group);
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
        self.column = group.columns().end;
        let (bytes, region) = self.matmul.scratch.results();
        Ok(Some(Outputs { bytes, region, plan, group, element: PhantomData }))
    }

    /// Brings the NPU back for the repetition of a job; an error when there is to be none.
    #[cold]
    fn recover(&self, failure: &JobFailure, seen: u64, failures: u32) -> Result<()> {
        let domain = &self.matmul.domain;
        let device = domain.device();
        let recovery = device.recover(seen);
        let report = PostMortem {
            operation: "matmul",
            precision: Some(E::PRECISION),
            m: self.rows.m() as u64,
            k: self.weight.layout.k(),
            n: self.weight.layout.n(),
            weights_iova: self.weight.iova(),
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
    /// # use rknpu::{Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
    /// # let device = rknpu::Device::simulated(Default::default())?;
    /// # let domain = device.domain(0)?;
    /// # let layout = Layout::new(64, 32, Precision::Int8)?;
    /// # let mut buffer = domain.alloc(layout.bytes() as usize)?;
    /// # reference::tile_i8(layout, |_, n| n as i8, buffer.as_mut_slice());
    /// # let buffer = buffer.to_device()?;
    /// # let weight = WeightRef::new(&buffer, 0, layout)?; // each channel's number
    /// # let limits = MatmulLimits { rows: 2, k: 64, n: 32 };
    /// # let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    /// # let mut rows = matmul.activations().lease(2, 64)?;
    /// # for row in 0..2 { rows.write_row(row, &[1; 64])?; }
    /// # let rows = rows.to_device()?; // of ones
    /// let mut product = matmul.multiply(&weight, &rows)?;
    /// product.next_columns()?;
    /// assert_eq!((product.stats().cores, product.stats().programs > 0), (1, true));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn stats(&self) -> JobStats {
        self.stats
    }
}

impl<E: Element> fmt::Debug for Product<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (column, n, rows) = (self.column, self.weight.layout.n(), self.rows);
        write!(f, "Product({rows:?}, {column} of {n} columns multiplied)")
    }
}
