//! Products on the NPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ork_cache::{Cache, DomainId, Part, Pinned, Store, Visit};
use rayon::prelude::*;
use rknpu::matmul::{Int8, Outputs, Rows, Segment};
use rknpu::{Matmul, OnDevice};
use rknpu_sys::layout::Precision;
use rknpu_sys::regs::CORES;

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
    /// Domains side by side that share a matmul.
    lanes: usize,
    /// Of each so many domains, if they have int8 weights.
    matmuls: Vec<Option<Mutex<Matmul>>>,
    /// Why it computes no more.
    failure: OnceLock<Arc<Error>>,
    said: AtomicBool,
}

impl Npu {
    pub(super) fn new(cache: Cache, lanes: usize, matmuls: Vec<Option<Matmul>>) -> Npu {
        let matmuls = matmuls.into_iter().map(|matmul| matmul.map(Mutex::new)).collect();
        Npu {
            cache,
            lanes: lanes.max(1),
            matmuls,
            failure: OnceLock::new(),
            said: AtomicBool::new(false),
        }
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

/// Products that share the rows and lie in one domain, or in those side by side.
#[derive(Default)]
pub(super) struct List<'a> {
    entries: [Option<Entry<'a>>; List::MOST],
}

impl<'a> List<'a> {
    /// More than an engine asks for at once; a chain may hold fewer.
    const MOST: usize = 8;
    /// Parts of them at most.
    const PARTS: usize = Self::MOST * CORES;

    /// Takes one more product; gives it back when there is no room, or the list is of another domain.
    pub(super) fn push(&mut self, entry: Entry<'a>) -> Option<Entry<'a>> {
        if self.domain().is_some_and(|domain| domain != entry.domain()) {
            return Some(entry);
        }
        match self.entries.iter_mut().find(|place| place.is_none()) {
            Some(place) => {
                *place = Some(entry);
                None
            }
            None => Some(entry),
        }
    }

    /// Takes all products out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry<'a>> {
        self.entries.iter_mut().map_while(Option::take)
    }

    /// Whether its products are of int8.
    pub(super) fn is_int8(&self) -> bool {
        let of = |part: &Part| part.layout.precision() == Precision::Int8;
        let of = |entry: &Entry<'_>| entry.parts().all(of);
        self.entries.iter().flatten().all(of) && self.entries[0].is_some()
    }

    fn domain(&self) -> Option<DomainId> {
        self.entries.first()?.as_ref().map(Entry::domain)
    }
}

/// A product by a part of a weight, or by those that are multiplied at the same time, each in its domain.
pub(super) struct Entry<'a> {
    first: Part,
    others: [Option<Part>; CORES - 1],
    /// Rows of a weight's results, and how wide they are.
    pub(super) rows: &'a mut [f32],
    pub(super) n: usize,
}

impl<'a> Entry<'a> {
    /// The product by parts that [are together](ork_cache::Placed::together); `None` for none.
    pub(super) fn new(parts: &[Part], rows: &'a mut [f32], n: usize) -> Option<Entry<'a>> {
        let (first, behind) = parts.split_first()?;
        let mut others = [None; CORES - 1];
        others.iter_mut().zip(behind).for_each(|(place, part)| *place = Some(*part));
        Some(Entry { first: *first, others, rows, n })
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(self.others.iter().flatten())
    }

    /// That of the first part.
    pub(super) fn domain(&self) -> DomainId {
        self.first.domain
    }

    /// Where a part's results go.
    pub(super) fn out(&mut self, part: &Part) -> Output<'_> {
        Output { rows: self.rows, n: self.n, column: part.column as usize }
    }

    /// Channels of a part that go to the results: a layout may have more than a weight.
    pub(super) fn channels(&self, part: &Part) -> usize {
        let behind = self.n.saturating_sub(part.column as usize);
        behind.min(part.layout.n() as usize)
    }
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

    /// Multiplies the rows by each entry of a list, all in one domain or those side by side; `false` when that is
    /// nothing for the NPU, for want of memory. What is ready goes as one product; a weight that is not is
    /// waited for with nothing else held, and begins the next.
    pub(super) fn multiply(
        &mut self,
        list: &mut List<'_>,
        store: &Store,
        rows: &QuantisedRows,
    ) -> Result<bool> {
        let Some(domain) = list.domain() else { return Ok(true) };
        self.leave(domain);
        let Some(stay) = self.stay(domain)? else { return Ok(false) };
        let planes = rows.depth().planes();
        let block = stay.matmul.activations().rows(rows.k()) / planes;
        if block == 0 {
            return Ok(false);
        }
        let mut entries = &mut list.entries[..];
        while let Some(Some(first)) = entries.first() {
            let mut pins = [const { None }; List::PARTS];
            let mut places = pins.iter_mut();
            for (part, pin) in first.parts().zip(&mut places) {
                *pin = Some(stay.visit.acquire(part.weight)?);
            }
            let mut ready = 1;
            'ready: for entry in entries.iter().flatten().skip(1) {
                for (part, pin) in entry.parts().zip(&mut places) {
                    *pin = stay.visit.acquire_ready(part.weight)?;
                    if pin.is_none() {
                        break 'ready;
                    }
                }
                ready += 1;
            }
            let (now, later) = entries.split_at_mut(ready);
            stay.multiply(now, &pins, store, rows, block)?;
            entries = later;
        }
        Ok(true)
    }

    /// The visit to a domain; `None` where there is no matmul.
    fn stay(&mut self, domain: DomainId) -> Result<Option<&mut Stay<'a>>> {
        if self.stay.is_none() {
            let npu = self.npu;
            let Some(Some(matmul)) = npu.matmuls.get(domain.index() / npu.lanes) else {
                return Ok(None);
            };
            let visit = npu.cache.enter(domain)?;
            // Whoever panicked with it left no rows there, and results nobody reads.
            let matmul = matmul.lock().unwrap_or_else(PoisonError::into_inner);
            self.stay = Some(Stay { visit, matmul, rows: None });
        }
        Ok(self.stay.as_mut())
    }
}

impl Stay<'_> {
    /// Multiplies the rows, `block` at a time, by the parts of a list that are pinned.
    fn multiply(
        &mut self,
        entries: &mut [Option<Entry<'_>>],
        pins: &[Option<Pinned>],
        store: &Store,
        rows: &QuantisedRows,
        block: usize,
    ) -> Result<()> {
        let Some(one) = pins.iter().flatten().next() else { return Ok(()) };
        let mut weights = [one.weight_ref()?; List::PARTS];
        // Which entry each is of, and which of its parts.
        let mut of = [(0, 0); List::PARTS];
        let all = entries.iter().flatten().enumerate();
        let all = all.flat_map(|(i, entry)| (0..entry.parts().count()).map(move |part| (i, part)));
        let mut count = 0;
        for ((weight, of), (pin, place)) in
            weights.iter_mut().zip(&mut of).zip(pins.iter().flatten().zip(all))
        {
            (*weight, *of) = (pin.weight_ref()?, place);
            count += 1;
        }
        let weights = &weights[..count];
        for first in (0..rows.m()).step_by(block) {
            let m = block.min(rows.m() - first);
            let there = match self.rows.take_if(|(start, _)| *start == first) {
                Some((_, there)) => there,
                None => {
                    // The memory for rows is leased: what was there goes first.
                    self.rows = None;
                    write(&self.matmul, rows, first, m)?
                }
            };
            let mut product = self.matmul.multiply_all(weights, &there)?;
            while let Some(outputs) = product.next_columns()? {
                let (entry, part) = of[outputs.weight()];
                let Some(Some(entry)) = entries.get_mut(entry) else { break };
                let Some(&part) = entry.parts().nth(part) else { break };
                let (n, scales) = (entry.channels(&part), scales(store, &part)?);
                read(&outputs, rows, first, m, scales, &mut entry.out(&part), n);
            }
            self.rows = Some((first, there));
        }
        Ok(())
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
