//! Passes: every weight of a model once, in order, each multiplied with its activations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_cache::config::PolicyKind;
use ork_cache::npu::{self, Note, Npu, Opened, Setup, Store};
use ork_cache::plan::{Applied, Part};
use ork_cache::prefetch::Prefetcher;
use ork_cache::stats::Stats;
use ork_cache::trace::Recorder;
use ork_cache::{Cache, Visit, WeightId};
use ork_weights::reference;
use rknpu::{Device, Int4, Int8, JobStats, Layout, Matmul, Precision, WeightRef};

use super::activations::{Activations, Digest};
use crate::error::{Error, Result};
use crate::live::{DomainUse, Live, Publisher};

/// How to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is run, for `ork top`.
    pub title: String,
    /// Device memory that weights and scratch may take.
    pub budget: u64,
    /// Rows of activations.
    pub rows: u32,
    /// Whether to load ahead of use.
    pub prefetch: bool,
    /// Whether to compare every output with the CPU's.
    pub verify: bool,
    /// What evicts; by default a plan decides what stays and what is streamed.
    pub policy: Option<PolicyKind>,
}

/// Models on a device, ready to run.
#[derive(Debug)]
pub struct Session {
    // Fields go in this order: who looks at the cache before the cache, workers before buffers.
    _publisher: Publisher,
    prefetcher: Option<Prefetcher<Npu>>,
    models: Vec<Model>,
    engines: Vec<Engine>,
    cache: Cache<Npu>,
    verify: bool,
    recorder: Option<Arc<Recorder>>,
    /// What the prefetcher will follow, once no pack is being made.
    ahead: Vec<WeightId>,
    bytes: u64,
    notes: Vec<Note>,
}

#[derive(Debug)]
struct Model {
    store: Arc<Store>,
    placed: Applied,
    activations: Activations,
    out: Vec<i32>,
    /// Results of some columns, and of the CPU.
    scratch: Vec<i32>,
    digest: Digest,
    totals: Totals,
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
    /// Time in matmuls, waits for weights not counted.
    pub compute: Duration,
    /// Time in which a matmul waited for its weight: for a load of its own or of the prefetcher.
    pub waited: Duration,
    /// Results compared with the CPU's.
    pub verified: u64,
}

/// Matmuls of one domain, for each precision that occurs in it.
#[derive(Debug, Default)]
struct Engine {
    int8: Option<Matmul<Int8>>,
    int4: Option<Matmul<Int4>>,
}

impl Session {
    /// Attaches `stores` to `device`. The first gets its place first: a small model in front of a
    /// large one stays resident beside it.
    ///
    /// # Errors
    /// [`Error::Usage`] for a budget that cannot work, with the least that does; [`Error::Device`]
    /// and [`Error::Cache`] when the device refuses what the budget allows.
    pub fn new(
        device: &Device,
        stores: &[Arc<Store>],
        settings: &Settings,
        recorder: Option<Arc<Recorder>>,
    ) -> Result<Session> {
        let setup = Setup {
            rows: settings.rows,
            policy: settings.policy,
            recorder: recorder.clone(),
            ..Setup::new(settings.budget)
        };
        let opened = npu::open(device, stores, &setup)?;
        let cores = device.cores()?;
        let mut engines = Vec::new();
        for (index, domain) in opened.cache.backend().domains().iter().enumerate() {
            let of = |precision| opened.limits(index, precision);
            engines.push(Engine {
                int8: of(Precision::Int8).map(|l| Matmul::int8(domain, &cores, l)).transpose()?,
                int4: of(Precision::Int4).map(|l| Matmul::int4(domain, &cores, l)).transpose()?,
            });
        }
        let Opened { cache, models: placed, bytes, notes, .. } = opened;
        let streamed: Vec<_> = placed.iter().flat_map(|p| p.streamed.clone()).collect();
        let prefetcher = match settings.prefetch && !streamed.is_empty() {
            true => Some(Prefetcher::new(&cache).map_err(Error::Thread)?),
            false => None,
        };
        let models = stores.iter().zip(placed).map(|(s, p)| Model::new(s, p, settings.rows));
        let mut session = Session {
            _publisher: publish(&cache, device, settings),
            prefetcher,
            models: models.collect(),
            engines,
            cache,
            verify: settings.verify,
            recorder,
            ahead: streamed,
            bytes,
            notes,
        };
        session.prefetch();
        Ok(session)
    }

    /// One pass over model number `model`.
    ///
    /// # Errors
    /// [`Error::Check`] when a result is not the CPU's; [`Error::Cache`], [`Error::Device`].
    pub fn pass(&mut self, model: usize) -> Result<()> {
        let Session { models, engines, cache, recorder, .. } = self;
        let Some(model) = models.get_mut(model) else { return Ok(()) };
        let recorder = recorder.as_deref();
        let now = || recorder.map_or(Duration::ZERO, Recorder::now);
        let mut visit: Option<(Visit<Npu>, Duration)> = None;
        let leave = |visit: &mut Option<(Visit<Npu>, Duration)>| {
            if let (Some((visit, since)), Some(recorder)) = (visit.take(), recorder) {
                let track = recorder.track(&visit.domain().to_string());
                recorder.span(track, "visit", since, now().saturating_sub(since));
            }
        };
        for index in 0..model.placed.items.len() {
            for part in model.placed.items[index].clone() {
                let part = model.placed.parts[part];
                let domain = part.spec.domain;
                if visit.as_ref().is_none_or(|(visit, _)| visit.domain() != domain) {
                    leave(&mut visit);
                    visit = Some((cache.enter(domain)?, now()));
                }
                let engine = engines.get_mut(domain.index());
                if let (Some((visit, _)), Some(engine)) = (&visit, engine) {
                    model.multiply(&part, visit, engine, recorder)?;
                }
            }
            model.digest.add(&model.out);
            if self.verify {
                model.check(index)?;
            }
        }
        leave(&mut visit);
        model.totals.passes += 1;
        model.store.finish_if_whole().map_err(Error::Store)?;
        self.prefetch();
        Ok(())
    }

    /// Lets the prefetcher begin, unless loads must come in order of use.
    fn prefetch(&mut self) {
        if let Some(prefetcher) = &self.prefetcher
            && !self.ahead.is_empty()
            && !self.models.iter().any(|model| model.store.is_building())
        {
            prefetcher.follow(&std::mem::take(&mut self.ahead));
        }
    }

    /// What model number `model` has done.
    pub fn totals(&self, model: usize) -> Totals {
        self.models.get(model).map(|m| m.totals).unwrap_or_default()
    }

    /// Digest of all results of model number `model` so far.
    pub fn digest(&self, model: usize) -> u64 {
        self.models.get(model).map_or(0, |m| m.digest.value())
    }

    /// The cache's counters.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Most bytes ever mapped at once, scratch included, over all domains used.
    pub fn peak_window(&self) -> u64 {
        self.cache.backend().domains().iter().map(|domain| domain.stats().peak).sum()
    }

    /// Most bytes of device memory that this session may map: never more than its budget.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is not as asked for.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Whether weights are loaded ahead of their use.
    pub fn prefetches(&self) -> bool {
        self.prefetcher.is_some()
    }

    /// Domains in use.
    pub fn domains(&self) -> usize {
        self.cache.backend().domains().len()
    }
}

impl Model {
    fn new(store: &Arc<Store>, placed: Applied, rows: u32) -> Model {
        let layouts: Vec<Layout> = store.items().iter().map(|item| item.layout).collect();
        let widest = layouts.iter().map(Layout::n).max().unwrap_or(0);
        let results = rows as usize * widest as usize;
        Model {
            store: store.clone(),
            placed,
            activations: Activations::new(rows as usize, &layouts),
            out: Vec::with_capacity(results),
            scratch: Vec::with_capacity(results),
            digest: Digest::default(),
            totals: Totals::default(),
        }
    }

    /// Multiplies one part of a weight and puts its columns into `out`.
    fn multiply(
        &mut self,
        part: &Part,
        visit: &Visit<Npu>,
        engine: &mut Engine,
        recorder: Option<&Recorder>,
    ) -> Result<()> {
        let item = &self.store.items()[part.item];
        let inputs = self.activations.of(part.item, &item.layout);
        let rows = inputs.len() / item.layout.k() as usize;
        let (n, first) = (item.layout.n() as usize, part.column as usize);
        let columns = first..first + part.layout.n() as usize;
        let whole = part.layout == item.layout;
        self.out.resize(rows * n, 0);
        self.scratch.resize(rows * columns.len(), 0);
        let asked = Instant::now();
        let slot = visit.acquire(part.weight)?;
        let since = Instant::now();
        self.totals.waited += since.duration_since(asked);
        let target = if whole { &mut self.out } else { &mut self.scratch };
        let job = engine.run(&slot.weight_ref()?, inputs, target)?;
        self.totals.compute += since.elapsed();
        drop(slot);
        self.totals.matmuls += 1;
        self.totals.submits += u64::from(job.submits);
        if let Some(recorder) = recorder {
            let took = since.elapsed();
            let start = recorder.now().saturating_sub(took);
            for core in 0..job.cores {
                recorder.span(recorder.track(&format!("core {core}")), &*item.name, start, took);
            }
        }
        if !whole {
            let rows = self.out.chunks_exact_mut(n).zip(self.scratch.chunks_exact(columns.len()));
            rows.for_each(|(out, results)| out[columns.clone()].copy_from_slice(results));
        }
        Ok(())
    }

    /// Compares the results of weight `index` with the CPU's.
    fn check(&mut self, index: usize) -> Result<()> {
        let item = &self.store.items()[index];
        let mut tiled = vec![0; item.layout.bytes() as usize];
        self.store.load(index, 0, &item.layout, &mut tiled).map_err(Error::Store)?;
        let inputs = self.activations.of(index, &item.layout);
        self.scratch.resize(self.out.len(), 0);
        reference::sums(&item.layout, &tiled, inputs, &mut self.scratch)
            .map_err(|error| Error::Source(Arc::new(error)))?;
        let wrong = self.out.iter().zip(&self.scratch).position(|(device, cpu)| device != cpu);
        self.totals.verified += self.out.len() as u64;
        let Some(at) = wrong else { return Ok(()) };
        let n = item.layout.n() as usize;
        Err(Error::Check(format!(
            "{}: row {}, column {}: the device says {}, the CPU {}",
            item.name,
            at / n,
            at % n,
            self.out[at],
            self.scratch[at]
        )))
    }
}

impl Engine {
    fn run(&mut self, weight: &WeightRef<'_>, inputs: &[i8], out: &mut [i32]) -> Result<JobStats> {
        let job = match (weight.layout().precision(), &mut self.int8, &mut self.int4) {
            (Precision::Int8, Some(matmul), _) => matmul.run(weight, inputs, out),
            (Precision::Int4, _, Some(matmul)) => matmul.run(weight, inputs, out),
            (precision, ..) => {
                return Err(Error::Usage(format!("{precision:?} weights are not run here")));
            }
        };
        Ok(job?)
    }
}

fn publish(cache: &Cache<Npu>, device: &Device, settings: &Settings) -> Publisher {
    let (cache, title, budget) = (cache.clone(), settings.title.clone(), settings.budget);
    let simulated = device.node() == "sim";
    Publisher::start(move || {
        let stats = cache.stats();
        let domains = cache.backend().domains().iter().map(|domain| {
            let now = domain.stats();
            DomainUse { index: domain.index(), live: now.used, window: now.window }
        });
        Live {
            title: title.clone(),
            simulated,
            budget,
            domains: domains.collect(),
            hits: stats.hits,
            loads: stats.loads(),
            stall_seconds: stats.stall_time.as_secs_f64(),
            ..Live::default()
        }
    })
}
