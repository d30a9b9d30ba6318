//! Results where the NPU wrote them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use zerocopy::FromBytes;

use super::element::{Element, result_bytes, sum};
use super::plan::{ColumnGroup, Plan, Strip};
use crate::error::{Error, Result};

/// Results of some columns of a product, read in place.
///
/// Each core has written its columns into a region of its own, and there the partial results of each
/// K slice ([`Segment`]), which the CPU sums as it reads. Results are wider than activations in
/// every precision, so they cannot be the rows of a following matmul as they are: requantise from
/// here straight into [`Rows`](super::Rows).
///
/// ```
/// # let (mut matmul, weight, rows) = rknpu::doc::product()?; // of ones and each channel's number
/// # let weight = weight.get()?;
/// let mut product = matmul.multiply(&weight, &rows)?;
/// if let Some(outputs) = product.next_columns()? {
///     let row: Vec<i32> = outputs.row(1).flat_map(|segment| segment.iter()).collect();
///     assert_eq!(row[..3], [0, 64, 128]);
/// }
/// # Ok::<(), rknpu::Error>(())
/// ```
pub struct Outputs<'a, E: Element> {
    /// The buffer with results.
    bytes: &'a [u8],
    /// Bytes of a core's region.
    region: usize,
    plan: Plan,
    group: ColumnGroup,
    strip: Strip,
    /// Number of its weight.
    weight: usize,
    element: PhantomData<fn() -> E>,
}

impl<'a, E: Element> Outputs<'a, E> {
    /// Results of a strip of weight number `weight`.
    pub(super) fn new(
        bytes: &'a [u8],
        region: usize,
        plan: Plan,
        group: ColumnGroup,
        strip: Strip,
        weight: usize,
    ) -> Outputs<'a, E> {
        Outputs { bytes, region, plan, group, strip, weight, element: PhantomData }
    }

    /// Which of the weights that are multiplied these columns are of, from 0.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// The columns of the weight that these are.
    pub fn columns(&self) -> Range<u32> {
        self.strip.columns.clone()
    }

    /// Rows, as many as there were activations.
    pub fn rows(&self) -> usize {
        self.plan.m
    }

    /// Results of a row, first column to last; nothing for a row that does not exist.
    pub fn row(&self, row: usize) -> impl Iterator<Item = Segment<'a, E>> + use<'a, '_, E> {
        (0..self.plan.cores).filter_map(move |core| self.segment(core, row))
    }

    /// Copies the sums to their places in `out`, row-major `[M][N]` with N that of the weight.
    ///
    /// ```
    /// # let (mut matmul, weight, rows) = rknpu::doc::product()?; // of ones and each channel's number
    /// # let weight = weight.get()?;
    /// let mut product = matmul.multiply(&weight, &rows)?;
    /// let mut out = [0; 2 * 32];
    /// while let Some(outputs) = product.next_columns()? {
    ///     outputs.copy_to(&mut out)?;
    /// }
    /// assert_eq!(out[32 + 5], 64 * 5);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`].
    pub fn copy_to(&self, out: &mut [E::Output]) -> Result<()> {
        let (m, n, k) = (self.rows(), self.strip.layout.n(), self.strip.layout.k());
        if out.len() != m * n as usize {
            let (got, want) = (out.len(), m * n as usize);
            return Err(Error::Length { what: "out", got, want, m: m as u64, k, n });
        }
        // A core's region after the other: each is read from its start to its end.
        for core in 0..self.plan.cores {
            for (row, out) in out.chunks_exact_mut(n as usize).enumerate() {
                let Some(segment) = self.segment(core, row) else { break };
                let columns = segment.columns.start as usize..segment.columns.end as usize;
                segment.sum_into(out.get_mut(columns).unwrap_or_default())?;
            }
        }
        Ok(())
    }

    fn segment(&self, core: usize, row: usize) -> Option<Segment<'a, E>> {
        let share = self.plan.share(self.group, &self.strip, core)?;
        let (width, m) = (share.columns.len(), self.plan.m);
        if row >= m {
            return None;
        }
        let slices = self.plan.k_slices() as usize;
        let apart = m * width;
        let start = core * self.region + share.at + row * width * result_bytes::<E>();
        let len = ((slices - 1) * apart + width) * result_bytes::<E>();
        let parts = <[E::Partial]>::ref_from_bytes(self.bytes.get(start..start + len)?).ok()?;
        Some(Segment { columns: share.columns, parts, apart, slices })
    }
}

impl<E: Element> fmt::Debug for Outputs<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outputs({} rows, columns {:?})", self.rows(), self.columns())
    }
}

/// Columns that [`Segment::sums`] gives at a time: few kilobytes of stack.
const PIECE: usize = 512;

/// Results of neighbouring columns of one row, in device memory.
///
/// ```
/// use rknpu::{Device, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
///
/// let device = Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
/// // K = 2048 inputs are two slices for the NPU.
/// let layout = Layout::new(2048, 64, Precision::Int8)?;
/// let mut weight = domain.alloc(layout.bytes() as usize)?;
/// reference::tile_i8(layout, |_, n| n as i8, weight.as_mut_slice());
/// let weight = weight.to_device()?;
/// let limits = MatmulLimits { rows: 1, k: 2048, n: 64 };
/// let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
///
/// let mut rows = matmul.activations().lease(1, 2048)?;
/// rows.write_row(0, &[1; 2048])?;
/// let rows = rows.to_device()?;
/// let mut product = matmul.multiply(&WeightRef::new(&weight, 0, layout)?, &rows)?;
/// while let Some(outputs) = product.next_columns()? {
///     for segment in outputs.row(0) {
///         for (column, value) in segment.columns().zip(segment.iter()) {
///             assert_eq!(value, 2048 * column as i32);
///         }
///         assert_eq!((segment.slices(), segment.partials(1)[3]), (2, 1024 * 3));
///     }
/// }
/// # Ok::<(), rknpu::Error>(())
/// ```
pub struct Segment<'a, E: Element> {
    columns: Range<u32>,
    /// From the row's first element of the first slice to its last of the last.
    parts: &'a [E::Partial],
    /// Elements from a slice's to the next's.
    apart: usize,
    slices: usize,
}

impl<'a, E: Element> Segment<'a, E> {
    /// The columns of the weight that these are.
    pub fn columns(&self) -> Range<u32> {
        self.columns.clone()
    }

    /// K slices: as many partial results are to be summed for each column.
    pub fn slices(&self) -> usize {
        self.slices
    }

    /// The partial results of one K slice, one a column; empty for a slice that does not exist.
    pub fn partials(&self, slice: usize) -> &'a [E::Partial] {
        let from = self.parts.get(slice.saturating_mul(self.apart)..);
        from.and_then(|from| from.get(..self.columns.len())).unwrap_or_default()
    }

    /// Gives the results to `f`, some neighbouring columns at a time: summed as fast as a copy would
    /// be, into a piece of the stack.
    ///
    /// ```
    /// # fn f(segment: &rknpu::matmul::Segment<'_, rknpu::matmul::Int8>, scales: &[f32], out: &mut [f32]) {
    /// segment.sums(|columns, sums| {
    ///     let columns = columns.start as usize..columns.end as usize;
    ///     for ((to, sum), scale) in out[columns.clone()].iter_mut().zip(sums).zip(&scales[columns]) {
    ///         *to = *sum as f32 * scale;
    ///     }
    /// });
    /// # }
    /// ```
    pub fn sums(&self, mut f: impl FnMut(Range<u32>, &[E::Output])) {
        let mut piece = [E::Output::default(); PIECE];
        for first in (0..self.columns.len()).step_by(PIECE) {
            let len = PIECE.min(self.columns.len() - first);
            let Some(out) = piece.get_mut(..len) else { return };
            sum::<E>(self.parts.get(first..).unwrap_or_default(), self.apart, self.slices, out);
            let start = self.columns.start + first as u32;
            f(start..start + out.len() as u32, out);
        }
    }

    /// The results, summed one by one as they are read.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = E::Output> + use<'a, E> {
        let (parts, apart) = (self.parts, self.apart);
        (0..self.columns.len()).map(move |column| {
            let of_slices = parts.get(column..).unwrap_or_default().iter().step_by(apart.max(1));
            of_slices.fold(E::Output::default(), |sum, part| E::add(sum, *part))
        })
    }

    /// Writes the results into `out`.
    ///
    /// # Errors
    /// [`Error::Length`] unless `out` has an element for each column.
    pub(crate) fn sum_into(&self, out: &mut [E::Output]) -> Result<()> {
        let (got, want) = (out.len(), self.columns.len());
        if got != want {
            let n = want as u32;
            return Err(Error::Length { what: "out", got, want, m: 1, k: 0, n });
        }
        sum::<E>(self.parts, self.apart, self.slices, out);
        Ok(())
    }
}

impl<E: Element> fmt::Debug for Segment<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment(columns {:?} of {} slices)", self.columns, self.slices)
    }
}
