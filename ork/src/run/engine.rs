//! The matmuls of one domain, on activations that are made in their memory.

use rknpu::matmul::{Int4, Int8, Outputs, Rows};
use rknpu::{Matmul, OnDevice, Precision, WeightRef};

use super::activations::{Noise, Noisy};
use super::model::Totals;
use crate::error::{Error, Result};

/// Matmuls of one domain, or of those side by side, for each precision that occurs there.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) int8: Option<Line<Int8>>,
    pub(super) int4: Option<Line<Int4>>,
}

/// A matmul, and the activations that lie in its memory.
#[derive(Debug)]
pub(super) struct Line<E: Noisy> {
    // Rows first: they belong to the matmul's memory.
    held: Option<(Inputs, Rows<E, OnDevice>)>,
    matmul: Matmul<E>,
}

/// Which activations: of a model's weight, the rows from one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inputs {
    pub(super) model: usize,
    pub(super) item: usize,
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl Engine {
    /// Multiplies the inputs by a weight, whole or its parts, and gives the results to `read`: part, row, first
    /// column of the part, sums. Says how many cores it took at most.
    pub(super) fn run(
        &mut self,
        parts: &[WeightRef<'_>],
        inputs: Inputs,
        totals: &mut Totals,
        read: impl FnMut(usize, usize, u32, &[i32]),
    ) -> Result<u32> {
        let Some(first) = parts.first() else { return Ok(0) };
        match (first.layout().precision(), &mut self.int8, &mut self.int4) {
            (Precision::Int8, Some(line), _) => line.run(parts, inputs, totals, read),
            (Precision::Int4, _, Some(line)) => line.run(parts, inputs, totals, read),
            (precision, ..) => Err(Error::Usage(format!("{precision:?} weights are not run here"))),
        }
    }
}

impl<E: Noisy> Line<E> {
    pub(super) fn new(matmul: Matmul<E>) -> Line<E> {
        Line { held: None, matmul }
    }

    fn run(
        &mut self,
        parts: &[WeightRef<'_>],
        inputs: Inputs,
        totals: &mut Totals,
        mut read: impl FnMut(usize, usize, u32, &[i32]),
    ) -> Result<u32> {
        let k = parts.first().map_or(0, |part| part.layout().k());
        let (all, mut cores) = (inputs.rows, 0);
        let block = self.matmul.activations().rows(k);
        for first in (0..all).step_by(block) {
            let inputs = Inputs { first, rows: block.min(all - first), ..inputs };
            // A weight's part before may have left its rows there.
            let rows = match self.held.take().filter(|(held, _)| *held == inputs) {
                Some((_, rows)) => rows,
                None => {
                    let mut rows = self.matmul.activations().lease(inputs.rows, k)?;
                    Noise { weight: inputs.item, row: first }.write(&mut rows)?;
                    rows.to_device().map_err(rknpu::Error::from)?
                }
            };
            let (_, rows) = self.held.insert((inputs, rows));
            let mut product = self.matmul.multiply_all(parts, rows)?;
            while let Some(outputs) = product.next_columns()? {
                read_rows(&outputs, first, &mut read);
            }
            totals.submits += u64::from(product.stats().submits);
            cores = cores.max(product.stats().cores);
        }
        Ok(cores)
    }
}

fn read_rows<E: Noisy>(
    outputs: &Outputs<'_, E>,
    first: usize,
    read: &mut impl FnMut(usize, usize, u32, &[i32]),
) {
    let part = outputs.weight();
    for row in 0..outputs.rows() {
        for segment in outputs.row(row) {
            segment.sums(|columns, sums| read(part, first + row, columns.start, sums));
        }
    }
}
