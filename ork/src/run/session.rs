//! Passes: every weight of a model once, in order, each multiplied with its activations.

use std::sync::Arc;
use std::time::Duration;

use ork_cache::Prefetcher;
use ork_cache::Stats;
use ork_cache::timeline::{DEMAND, PREFETCH, Recorder};
use ork_cache::{Cache, DomainId, WeightId};
use ork_cache::{Note, Opened, Reading, Setup, Store};
use rknpu::{Device, Matmul, Precision};

pub use super::model::Totals;

use super::engine::{Engine, Line};
use super::model::Model;
use super::routed::{Router, Routers};
use super::visits::{Pass, Visits};
use crate::activity::{Activity, CoreLoads, CoreTimes, DomainUse, Publisher};
use crate::error::{Error, Result};
use crate::output::html;

/// Counter of a recording: bytes of device memory that the run may take.
pub const BUDGET: &str = "budget";

/// How to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is run, for `ork top`.
    pub title: String,
    /// How the models go on the device; `routed` follows from `routers`.
    pub setup: Setup,
    /// Whether to load ahead of use.
    pub prefetch: bool,
    /// Whether to compare every output with the CPU's.
    pub verify: bool,
    /// Rows of the first model go to some of its experts, instead of every pass using all.
    pub routers: Option<Routers>,
}

impl Settings {
    /// Loads ahead of use, all experts in every pass, and nothing compared.
    pub fn new(title: impl Into<String>, setup: Setup) -> Settings {
        let title = title.into();
        Settings { title, setup, prefetch: true, verify: false, routers: None }
    }
}

/// Models on a device, ready to run.
///
/// ```
/// # use std::sync::Arc;
/// # use ork::run::session::{Session, Settings};
/// # use ork_cache::{Setup, Store};
/// # use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// # for layer in 0..32 {
/// #     let name = format!("blk.{layer}.ffn_up.weight");
/// #     writer.add(&name, 64, 64, Dtype::Int8, &[layer as u8; 4096], &[0.5; 64])?;
/// # }
/// # writer.finish()?;
/// # let store = Arc::new(Store::from_pack(Pack::open(&path)?));
/// # let device = rknpu::Device::simulated(Default::default())?;
/// let setup = Setup { rows: 2, ..Setup::new(96 << 10) }; // the weights alone take 128 KiB
/// let settings = Settings { verify: true, ..Settings::new("an example", setup) };
/// let mut session = Session::new(&device, &[store], &settings)?;
/// session.pass(0)?;
/// session.pass(0)?;
/// let totals = session.totals(0);
/// assert_eq!((totals.passes, totals.matmuls), (2, 2 * 32));
/// assert_eq!(totals.verified, 2 * 32 * 2 * 64); // every result is the CPU's
/// assert!(session.peak_mapped() <= settings.setup.budget);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    // Fields go in this order: who looks at the cache before the cache, workers before buffers.
    _publisher: Publisher,
    prefetcher: Option<Prefetcher>,
    models: Vec<Model>,
    engines: Vec<Engine>,
    /// Domains that share an engine.
    lanes: usize,
    cache: Cache,
    recorder: Option<Arc<Recorder>>,
    /// What the prefetcher will follow, once no pack is being made.
    ahead: Vec<WeightId>,
    bytes: u64,
    reading: Reading,
    notes: Vec<Note>,
}

impl Session {
    /// Attaches `stores` to `device`. The first gets its place first: a small model in front of a
    /// large one stays resident beside it.
    ///
    /// # Errors
    /// [`Error::Usage`] for a budget that cannot work, with the least that does; [`Error::Device`]
    /// and [`Error::Cache`] when the device refuses what the budget allows.
    pub fn new(device: &Device, stores: &[Arc<Store>], settings: &Settings) -> Result<Session> {
        let routed = settings.routers.is_some();
        if routed && stores.iter().any(|store| store.is_building()) {
            let text =
                "a pack is made of every weight, and routers use some: run `ork convert` first";
            return Err(Error::Usage(text.into()));
        }
        let setup = Setup { routed, ..settings.setup.clone() };
        let opened = ork_cache::open(device, stores, &setup)?;
        let cores = device.cores()?;
        if let Some(recorder) = &setup.recorder {
            let domains = opened.cache.domains().len();
            declare(recorder, cores.count(), domains, opened.bytes);
        }
        let mut engines = Vec::new();
        for (index, domains) in opened.groups().enumerate() {
            let of = |precision| opened.limits(index, precision);
            engines.push(Engine {
                int8: of(Precision::Int8)
                    .map(|limits| Matmul::side_by_side(domains, &cores, limits).map(Line::new))
                    .transpose()?,
                int4: of(Precision::Int4)
                    .map(|limits| Matmul::side_by_side(domains, &cores, limits).map(Line::new))
                    .transpose()?,
            });
        }
        let Opened { cache, models: placed, lanes, bytes, reading, notes, .. } = opened;
        let times = Arc::new(CoreTimes::default());
        let mut models: Vec<Model> = stores
            .iter()
            .zip(placed)
            .enumerate()
            .map(|(i, (store, placed))| Model::new(i, store, placed, settings, &times))
            .collect();
        if let (Some(routers), Some(model)) = (settings.routers, models.first_mut()) {
            let (store, placed) = (&model.store, &model.placed);
            let router = Router::new(&cache, store, placed, routers, settings.prefetch)?;
            model.router = Some(router);
        }
        let streamed: Vec<WeightId> = models.iter().flat_map(Model::streamed_in_order).collect();
        let prefetcher = match settings.prefetch && !streamed.is_empty() {
            true => Some(Prefetcher::new(&cache).map_err(Error::Thread)?),
            false => None,
        };
        let mut session = Session {
            _publisher: publish(&cache, device, settings, &times),
            prefetcher,
            models,
            engines,
            lanes,
            cache,
            recorder: setup.recorder,
            ahead: streamed,
            bytes,
            reading,
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
        let Session { models, engines, lanes, cache, recorder, .. } = self;
        let Some(model) = models.get_mut(model) else { return Ok(()) };
        let recorder = recorder.as_deref();
        let mut pass =
            Pass { engines, lanes: *lanes, visits: Visits { cache, recorder, visit: None } };
        if let Some(router) = &mut model.router {
            router.next_batch(model.rows);
        }
        let mut routed = None;
        for index in 0..model.placed.items.len() {
            let item = &model.store.items()[index];
            match (&model.router, item.layer, item.expert) {
                (Some(_), Some(layer), Some(_)) => {
                    if routed.replace(layer) != Some(layer) {
                        model.experts(layer, &mut pass)?;
                    }
                }
                _ => model.weight(index, model.rows, &mut pass)?,
            }
        }
        drop(pass);
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
    pub fn peak_mapped(&self) -> u64 {
        self.cache.domains().iter().map(|domain| domain.stats().peak).sum()
    }

    /// Most bytes of device memory that this session may map: never more than its budget.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How weights are read.
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// What is not as asked for.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Whether weights are loaded ahead of their use.
    pub fn prefetches(&self) -> bool {
        self.prefetcher.is_some()
    }

    /// What is where: each domain with the weights of all models.
    pub fn residency(&self) -> Vec<html::Domain> {
        let (limits, leased) = (self.cache.limits(), self.cache.domains());
        let scratch = (self.bytes.saturating_sub(limits.total)).checked_div(leased.len() as u64);
        let mut domains: Vec<html::Domain> = leased
            .iter()
            .map(|domain| html::Domain {
                capacity: domain.stats().capacity,
                scratch: scratch.unwrap_or(0),
                ..html::Domain::default()
            })
            .collect();
        for model in &self.models {
            for (item, all) in model.store.items().iter().zip(&model.placed.items) {
                let all = &model.placed.parts[all.clone()];
                for (index, domain) in domains.iter_mut().enumerate() {
                    let parts = || all.iter().filter(|part| part.domain.index() == index);
                    let Some(first) = parts().next() else { continue };
                    let bytes = parts().map(|part| part.layout.bytes()).sum();
                    let stays = first.is_resident();
                    domain.resident += if stays { bytes } else { 0 };
                    let place = match stays {
                        true => html::Place::Resident,
                        false => html::Place::Streamed(parts().count() as u32),
                    };
                    domain.cells.push(html::Cell { name: item.name.to_string(), bytes, place });
                }
            }
        }
        for (domain, limit) in domains.iter_mut().zip(limits.domains) {
            domain.slots = limit.saturating_sub(domain.resident);
        }
        domains
    }

    /// Domains in use.
    pub fn domains(&self) -> usize {
        self.cache.domains().len()
    }
}

/// The tracks of a recording in the order in which they are best seen, and its budget.
fn declare(recorder: &Recorder, cores: usize, domains: usize, budget: u64) {
    for core in 0..cores {
        recorder.track(&format!("core {core}"));
    }
    recorder.track(PREFETCH);
    recorder.track(DEMAND);
    for domain in 0..domains {
        recorder.track(&DomainId(domain as u8).to_string());
    }
    recorder.counter(BUDGET, Duration::ZERO, budget);
}

fn publish(
    cache: &Cache,
    device: &Device,
    settings: &Settings,
    times: &Arc<CoreTimes>,
) -> Publisher {
    let (cache, title, budget) = (cache.clone(), settings.title.clone(), settings.setup.budget);
    let simulated = crate::device::is_simulated(device);
    let (times, mut loads) = (times.clone(), CoreLoads::new());
    Publisher::start(move || {
        let stats = cache.stats();
        let domains = cache.domains().iter().map(|domain| {
            let now = domain.stats();
            DomainUse { index: domain.index(), mapped: now.used, capacity: now.capacity }
        });
        Activity {
            title: title.clone(),
            simulated,
            budget,
            domains: domains.collect(),
            cores: if simulated { loads.since(&times) } else { Vec::new() },
            hits: stats.hits,
            loads: stats.loads(),
            stall_seconds: stats.stall_time.as_secs_f64(),
            ..Activity::default()
        }
    })
}
