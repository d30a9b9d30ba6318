//! One model of a session: its weights in order of use, and what they gave.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_cache::Store;
use ork_cache::timeline::Recorder;
use ork_cache::{Part, Placed};
use ork_cache::{Visit, WeightId};
use rknpu::Precision;

use super::activations::Digest;
use super::cpu;
use super::engine::{Engine, Inputs};
use super::routed::Router;
use super::session::Settings;
use super::visits::Pass;
use crate::activity::CoreTimes;
use crate::error::{Error, Result};

#[derive(Debug)]
pub(super) struct Model {
    /// Its number in the session.
    pub(super) index: usize,
    pub(super) store: Arc<Store>,
    pub(super) placed: Placed,
    pub(super) rows: usize,
    pub(super) router: Option<Router>,
    /// Whether every result is compared with the CPU's.
    verify: bool,
    /// Forms of weights of which one has been compared.
    compared: Vec<Form>,
    /// All results of a weight that is being compared.
    out: Option<Vec<i32>>,
    pub(super) digest: Digest,
    pub(super) totals: Totals,
    /// Shared by all models of a session, for `ork top`.
    times: Arc<CoreTimes>,
}

/// What makes weights go different ways to their results: what the cores compute, and whether it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    precision: Precision,
    whole: bool,
}

/// What a model has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Passes.
    pub passes: u64,
    /// Matmuls.
    pub matmuls: u64,
    /// Jobs given to the driver.
    pub submits: u64,
    /// Time in matmuls and in reading their results, waits for weights not counted.
    pub compute: Duration,
    /// Time in which a matmul waited for its weight: for a load of its own or of the prefetcher.
    pub waited: Duration,
    /// Results compared with the CPU's.
    pub verified: u64,
}

impl Model {
    pub(super) fn new(
        index: usize,
        store: &Arc<Store>,
        placed: Placed,
        settings: &Settings,
        times: &Arc<CoreTimes>,
    ) -> Model {
        Model {
            index,
            store: store.clone(),
            placed,
            rows: settings.setup.rows as usize,
            router: None,
            verify: settings.verify,
            compared: Vec::new(),
            out: None,
            digest: Digest::default(),
            totals: Totals::default(),
            times: times.clone(),
        }
    }

    /// What every pass streams in the same order: not what a router decides.
    pub(super) fn streamed_in_order(&self) -> impl Iterator<Item = WeightId> {
        let of_expert = |weight: &WeightId| {
            let part = self.placed.part(*weight);
            part.is_some_and(|part| self.store.items()[part.item].expert.is_some())
        };
        let streamed = self.placed.streamed.iter().copied();
        streamed.filter(move |weight| self.router.is_none() || !of_expert(weight))
    }

    /// Those experts of `layer` that the batch goes to.
    pub(super) fn experts(&mut self, layer: u32, pass: &mut Pass<'_>) -> Result<()> {
        let Some(mut router) = self.router.take() else { return Ok(()) };
        let routed = router.route(layer).and_then(|()| {
            while let Some((expert, rows)) = router.next_expert() {
                for &index in router.items(layer, expert) {
                    self.weight(index, rows as usize, pass)?;
                }
            }
            Ok(())
        });
        self.router = Some(router);
        routed
    }

    /// Multiplies the first `rows` rows by a weight, part by part; those in domains side by side together.
    pub(super) fn weight(&mut self, index: usize, rows: usize, pass: &mut Pass<'_>) -> Result<()> {
        let item = &self.store.items()[index];
        let (layout, n) = (item.layout, item.n as usize);
        let whole = self.placed.together(index).count() == 1;
        let form = Form { precision: layout.precision(), whole };
        // An NPU that computes nothing is seen before its results are used for anything.
        let first = !self.compared.contains(&form);
        self.out = (first || self.verify).then(|| vec![0; rows * n]);
        for wave in 0..self.placed.together(index).count() {
            let parts = self.placed.together(index).nth(wave).unwrap_or_default();
            let parts: Vec<Part> = parts.to_vec();
            let Some(domain) = parts.first().map(|part| part.domain) else { continue };
            let recorder = pass.visits.recorder;
            let visit = pass.visits.enter(domain)?;
            if let Some(engine) = pass.engines.get_mut(domain.index() / pass.lanes.max(1)) {
                self.multiply(&parts, rows, visit, engine, recorder)?;
            }
        }
        self.digest.end_weight(index);
        if first {
            self.compared.push(form);
        }
        let Some(out) = self.out.take() else { return Ok(()) };
        if self.verify {
            return self.compare(index, 0, &out);
        }
        let rows: Vec<&[i32]> = out.chunks(n).collect();
        rows.first().map_or(Ok(()), |row| self.compare(index, 0, row))?;
        rows.last().map_or(Ok(()), |row| self.compare(index, rows.len() - 1, row))
    }

    /// Multiplies by one part of a weight, or those side by side, and reads the results where they are.
    fn multiply(
        &mut self,
        parts: &[Part],
        rows: usize,
        visit: &Visit,
        engine: &mut Engine,
        recorder: Option<&Recorder>,
    ) -> Result<()> {
        let Some(first) = parts.first() else { return Ok(()) };
        let item = &self.store.items()[first.item];
        let inputs = Inputs { model: self.index, item: first.item, first: 0, rows };
        let n = u64::from(item.n);
        let asked = Instant::now();
        let slots = parts.iter().map(|part| visit.acquire(part.weight));
        let slots = slots.collect::<ork_cache::Result<Vec<_>>>()?;
        let since = Instant::now();
        self.totals.waited += since.duration_since(asked);
        let (digest, out, totals) = (&mut self.digest, &mut self.out, &mut self.totals);
        let read = |part: usize, row: usize, column: u32, sums: &[i32]| {
            let column = parts[part].column + column;
            // Columns past the last are padding.
            let left = item.n.saturating_sub(column) as usize;
            let sums = &sums[..sums.len().min(left)];
            let at = row as u64 * n + u64::from(column);
            digest.add(at, sums);
            if let Some(out) = out.as_mut().and_then(|out| out.get_mut(at as usize..)) {
                out.iter_mut().zip(sums).for_each(|(to, sum)| *to = *sum);
            }
        };
        let weights = slots.iter().map(ork_cache::Pinned::weight_ref);
        let weights = weights.collect::<ork_cache::Result<Vec<_>>>()?;
        let cores = engine.run(&weights, inputs, totals, read)?;
        let took = since.elapsed();
        self.times.add(cores as usize, took);
        self.totals.compute += took;
        drop(slots);
        self.totals.matmuls += 1;
        if let Some(recorder) = recorder {
            let start = recorder.now().saturating_sub(took);
            for core in 0..cores {
                recorder.span(recorder.track(&format!("core {core}")), &*item.name, start, took);
            }
        }
        Ok(())
    }

    /// Compares results of weight `index`, those of the rows from `first` on, with the CPU's.
    fn compare(&mut self, index: usize, first: usize, out: &[i32]) -> Result<()> {
        let item = &self.store.items()[index];
        let n = item.n as usize;
        let mut want = vec![0; out.len()];
        cpu::sums(&self.store, index, first, &mut want)?;
        let wrong = out.iter().zip(&want).position(|(device, cpu)| device != cpu);
        self.totals.verified += out.len() as u64;
        let Some(at) = wrong else { return Ok(()) };
        Err(Error::Check(format!(
            "{}: row {}, column {}: the device says {}, the CPU {}",
            item.name,
            first + at / n,
            at % n,
            out[at],
            want[at]
        )))
    }
}
