//! Products on the NPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ork_cache::{Cache, DomainId, Part, Store, Visit};
use rayon::prelude::*;
use rknpu::matmul::{Int8, Outputs, Rows, Segment};
use rknpu::{Matmul, OnDevice};

use super::scales;
use crate::cpu::Output;
use crate::error::{Error, Result};
use crate::int8::{High, Low, Scale};
use crate::kernel::dispatch;
use crate::rows::QuantisedRows;

/// A device that several models share.
#[derive(Debug)]
pub(super) struct Npu {
    cache: Cache,
    /// In each domain, if it has int8 weights.
    matmuls: Vec<Option<Mutex<Matmul>>>,
    /// Why it computes no more.
    failure: OnceLock<Arc<Error>>,
    said: AtomicBool,
}

impl Npu {
    pub(super) fn new(cache: Cache, matmuls: Vec<Option<Matmul>>) -> Npu {
        let matmuls = matmuls.into_iter().map(|matmul| matmul.map(Mutex::new)).collect();
        Npu { cache, matmuls, failure: OnceLock::new(), said: AtomicBool::new(false) }
    }

    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Takes no more products.
    pub(super) fn fail(&self, error: Error) {
        let _ = self.failure.set(Arc::new(error));
    }

    /// The failure, the first time that somebody asks.
    pub(super) fn failure(&self) -> Option<Arc<Error>> {
        let failure = self.failure.get()?;
        (!self.said.swap(true, Ordering::Relaxed)).then(|| failure.clone())
    }
}

/// Products that follow each other: in one domain they share a visit, and the rows where the NPU reads
/// them.
pub(super) struct Run<'a> {
    npu: &'a Npu,
    stay: Option<Stay<'a>>,
}

/// A visit to a domain.
struct Stay<'a> {
    visit: Visit,
    matmul: MutexGuard<'a, Matmul>,
    /// Rows that are there, from the one of a number on.
    rows: Option<(usize, Rows<Int8, OnDevice>)>,
}

/// Bytes of results that a thread should have to read, at least.
const BYTES_PER_TASK: usize = 128 << 10;

impl<'a> Run<'a> {
    pub(super) fn new(npu: &'a Npu) -> Run<'a> {
        Run { npu, stay: None }
    }

    /// Whether the NPU computes.
    pub(super) fn is_working(&self) -> bool {
        self.npu.failure.get().is_none()
    }

    /// What the NPU has are no longer the rows.
    pub(super) fn rows_changed(&mut self) {
        if let Some(stay) = &mut self.stay {
            stay.rows = None;
        }
    }

    /// Ends the visit, unless it is to this domain.
    pub(super) fn leave(&mut self, domain: DomainId) {
        self.stay.take_if(|stay| stay.visit.domain() != domain);
    }

    /// Multiplies by the first `n` channels of a part of a weight; `false` when that is nothing for the NPU, for want of memory.
    pub(super) fn multiply(
        &mut self,
        part: &Part,
        store: &Store,
        rows: &QuantisedRows,
        out: &mut Output<'_>,
        n: usize,
    ) -> Result<bool> {
        self.leave(part.domain);
        let Some(stay) = self.stay(part.domain)? else { return Ok(false) };
        let planes = rows.depth().planes();
        let block = stay.matmul.activations().rows(rows.k()) / planes;
        if block == 0 {
            return Ok(false);
        }
        let pinned = stay.visit.acquire(part.weight)?;
        let weight = pinned.weight_ref()?;
        let scales = scales(store, part)?;
        for first in (0..rows.m()).step_by(block) {
            let m = block.min(rows.m() - first);
            let there = match stay.rows.take_if(|(start, _)| *start == first) {
                Some((_, there)) => there,
                None => {
                    // The memory for rows is leased: what was there goes first.
                    stay.rows = None;
                    write(&stay.matmul, rows, first, m)?
                }
            };
            let mut product = stay.matmul.multiply(&weight, &there)?;
            while let Some(outputs) = product.next_columns()? {
                read(&outputs, rows, first, m, scales, out, n);
            }
            stay.rows = Some((first, there));
        }
        Ok(true)
    }

    /// The visit to a domain; `None` where there is no matmul.
    fn stay(&mut self, domain: DomainId) -> Result<Option<&mut Stay<'a>>> {
        if self.stay.is_none() {
            let npu = self.npu;
            let Some(Some(matmul)) = npu.matmuls.get(domain.index()) else { return Ok(None) };
            let visit = npu.cache.enter(domain)?;
            // Whoever panicked with it left no rows there, and results nobody reads.
            let matmul = matmul.lock().unwrap_or_else(PoisonError::into_inner);
            self.stay = Some(Stay { visit, matmul, rows: None });
        }
        Ok(self.stay.as_mut())
    }
}

/// Puts `m` rows where the NPU reads them.
fn write(
    matmul: &Matmul,
    rows: &QuantisedRows,
    first: usize,
    m: usize,
) -> Result<Rows<Int8, OnDevice>> {
    let (k, planes) = (rows.k() as usize, rows.depth().planes());
    let mut there = matmul.activations().lease(m * planes, rows.k())?;
    let codes = rows.codes().chunks_exact(k).skip(first * planes);
    for (row, codes) in codes.take(m * planes).enumerate() {
        there.write_row(row, codes)?;
    }
    Ok(there.to_device().map_err(rknpu::Error::from)?)
}

/// Scales the first `n` results of each of `m` rows from `first` on to their places. The arithmetic is
/// the CPU's, in the same order.
fn read(
    outputs: &Outputs<'_, Int8>,
    rows: &QuantisedRows,
    first: usize,
    m: usize,
    scales: &[f32],
    out: &mut Output<'_>,
    n: usize,
) {
    let (planes, row_scales) = (rows.depth().planes(), &rows.scales()[first..][..m]);
    let each = (BYTES_PER_TASK / (outputs.columns().len() * 4).max(1)).max(1);
    let (column, width) = (out.column, out.n);
    let row = |(row, (out, &row_scale)): (usize, (&mut [f32], &f32))| {
        let Some(out) = out.get_mut(column..column + n) else { return };
        // What reaches past the last channel is padding.
        let place = |columns: &std::ops::Range<u32>| {
            (columns.start as usize).min(n)..(columns.end as usize).min(n)
        };
        let high = |segment: Segment<'_, Int8>| {
            segment.sums(|columns, sums| dispatch(High { sums, out: &mut out[place(&columns)] }));
        };
        if planes == 2 {
            outputs.row(2 * row).for_each(high);
        }
        outputs.row(planes * row + planes - 1).for_each(|segment| {
            segment.sums(|columns, sums| {
                let at = place(&columns);
                let (out, scales) = (&mut out[at.clone()], &scales[at]);
                match planes {
                    1 => dispatch(Scale { sums, scales, row_scale, out }),
                    _ => dispatch(Low { sums, scales, row_scale, out }),
                }
            });
        });
    };
    // One task would still go to another thread, and this one would wait for it.
    if m <= each {
        let places = out.rows.chunks_mut(width).skip(first).take(m);
        places.zip(row_scales).enumerate().for_each(row);
    } else {
        let places = out.rows.par_chunks_mut(width).skip(first).take(m).with_min_len(each);
        places.zip(row_scales).enumerate().for_each(row);
    }
}
