//! One model run in several ways, whose results must not differ by a bit.

use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_cache::{Setup, Store};
use ork_weights::model::{Model, OpenOptions};
use ork_weights::pack::{PackWriter, WriterOptions};
use rknpu::Device;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::input::{model_store, open_model, open_pack};
use crate::memory::PeakRss;
use crate::output::{Progress, as_seconds};
use crate::run::cpu;
use crate::run::session::{Session, Settings};
use crate::temporary::check_room;

/// Products of a byte of weights and an activation that the CPU computes all of, to compare: some seconds'
/// worth.
const CPU_WORK: u64 = 20_000_000_000;

/// What to run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The model.
    pub model: PathBuf,
    /// Where the pack is made.
    pub folder: PathBuf,
    /// Device memory for weights and scratch; `None` takes 40 % of the packed weights, and scratch.
    pub budget: Option<u64>,
    /// Rows of activations.
    pub rows: u32,
    /// Passes of each way.
    pub passes: u32,
}

/// One way of running the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// All weights in device memory at once.
    Resident,
    /// Within the budget, each weight quantised when it is needed; a pack is written on the way.
    Convert,
    /// Within the budget, each weight copied out of the pack when it is needed.
    Reload,
    /// As [`Way::Reload`], copied ahead of need.
    Prefetch,
    /// As [`Way::Prefetch`], beside a second, small model that stays resident.
    TwoModels,
}

/// How one way went.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub way: Way,
    /// Device memory that weights and scratch were allowed, or could need where that is less.
    pub budget: u64,
    /// All passes.
    #[serde(rename = "wall_seconds", serialize_with = "as_seconds")]
    pub wall: Duration,
    /// The first pass.
    #[serde(rename = "first_pass_seconds", serialize_with = "as_seconds")]
    pub first_pass: Duration,
    /// Time in which weights were made ready in the first pass, over all threads.
    #[serde(rename = "first_loads_seconds", serialize_with = "as_seconds")]
    pub first_loads: Duration,
    /// Weights copied out of the pack.
    pub loaded: u64,
    /// Weights made from the model's values.
    pub packed: u64,
    /// Weights that lost their place to others.
    pub evicted: u64,
    /// Most bytes mapped for the NPU at once, scratch included.
    pub peak_mapped: u64,
    /// Most bytes that weights took at once.
    pub peak_weights: u64,
    /// Most resident memory of the process during this way, simulated device memory included.
    pub peak_rss: Option<u64>,
    /// Digest of all results of all passes.
    pub digest: u64,
    /// Results that were compared with the CPU's one by one.
    pub verified: u64,
}

/// How the scenario went.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Weights of the model.
    pub weights: usize,
    /// Their bytes in device memory.
    pub packed_bytes: u64,
    /// The budget of all ways but the resident one.
    pub budget: u64,
    /// Each way, in the order in which they ran.
    pub rows: Vec<Row>,
    /// Digest of the same results computed on the CPU; absent when that would take too long.
    pub cpu_digest: Option<u64>,
    /// Jobs that failed at first and ran after a reset of the NPU.
    pub recovered_jobs: u64,
    /// Why the resident way was left out, if it was.
    pub resident_left_out: Option<String>,
    /// What was not as asked for, in any of the ways.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Whether every way gave the same results, those of the CPU where they have been computed.
    pub fn is_identical(&self) -> bool {
        let mut digests = self.rows.iter().map(|row| row.digest).chain(self.cpu_digest);
        let first = digests.next();
        digests.all(|digest| Some(digest) == first)
    }

    /// Results that were compared with the CPU's one by one.
    pub fn verified(&self) -> u64 {
        self.rows.iter().map(|row| row.verified).sum()
    }

    /// A way, if it ran.
    pub fn row(&self, way: Way) -> Option<&Row> {
        self.rows.iter().find(|row| row.way == way)
    }
}

/// Runs the model in every way.
///
/// # Errors
/// What stops a run. Results that differ are no error here: see [`Outcome::is_identical`].
pub fn run(device: &Device, scenario: &Scenario) -> Result<Outcome> {
    let recovered = device.health().recovered;
    let first = open(&scenario.model)?;
    let weights = first.weights().len();
    let identity = first.identity(false).map_err(Error::input(&scenario.model))?;
    let resident = Arc::new(source(&scenario.model, first, None)?);
    let total = resident.bytes();
    let scratch = ork_cache::scratch_bytes(device, slice::from_ref(&resident), scenario.rows);
    let budget = scenario.budget.unwrap_or(total / 5 * 2 + scratch);
    let mut outcome = Outcome {
        weights,
        packed_bytes: total,
        budget,
        rows: Vec::new(),
        cpu_digest: None,
        recovered_jobs: 0,
        resident_left_out: too_large(device, total),
        notes: Vec::new(),
    };
    // Seven ways' worth of bytes, of which progress is counted by pass.
    let progress = Progress::bytes("demo", total * u64::from(scenario.passes) * 5);
    let mut runner = Runner { device, scenario, progress, notes: Vec::new() };
    // The pack's index and scales come on top of the weights.
    check_room(&scenario.folder, "the pack", total.saturating_add(total / 64))?;

    if outcome.resident_left_out.is_none() {
        outcome.rows.push(runner.run(Way::Resident, &[resident], u64::MAX, false)?);
    }
    let pack = scenario.folder.join("demo.orkpack");
    let options = WriterOptions { expected: Some(weights as u32), ..WriterOptions::default() };
    let writer = PackWriter::create(&pack, &identity, options).map_err(Error::input(&pack))?;
    let converting = Arc::new(source(&scenario.model, open(&scenario.model)?, Some(writer))?);
    outcome.rows.push(runner.run(Way::Convert, &[converting], budget, false)?);

    let packed = || Ok::<_, Error>(Arc::new(Store::from_pack(open_pack(&pack)?)));
    outcome.rows.push(runner.run(Way::Reload, &[packed()?], budget, false)?);
    outcome.rows.push(runner.run(Way::Prefetch, &[packed()?], budget, true)?);
    let draft = Store::from_pack(open_pack(&pack)?).head(budget / 4);
    outcome.rows.push(runner.run(Way::TwoModels, &[Arc::new(draft), packed()?], budget, true)?);
    outcome.cpu_digest = match total.saturating_mul(scenario.rows.into()) <= CPU_WORK {
        true => Some(cpu::digest(&*packed()?, scenario.rows, scenario.passes)?),
        false => None,
    };
    let recovered_jobs = device.health().recovered - recovered;
    Ok(Outcome { notes: runner.notes, recovered_jobs, ..outcome })
}

struct Runner<'a> {
    device: &'a Device,
    scenario: &'a Scenario,
    progress: Progress,
    notes: Vec<String>,
}

impl Runner<'_> {
    /// Runs all passes; of several models in turn, and the row is about the last.
    fn run(
        &mut self,
        way: Way,
        sources: &[Arc<Store>],
        budget: u64,
        prefetch: bool,
    ) -> Result<Row> {
        let setup = Setup { rows: self.scenario.rows, ..Setup::new(budget) };
        let settings = Settings { prefetch, ..Settings::new(format!("demo, {way:?}"), setup) };
        let rss = PeakRss::start();
        let start = Instant::now();
        let mut session = Session::new(self.device, sources, &settings)?;
        for note in session.notes().iter().map(ToString::to_string) {
            // The same is said of one way after the other.
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        let (mut first_pass, mut first_loads) = (Duration::ZERO, Duration::ZERO);
        for pass in 0..self.scenario.passes {
            for (model, source) in sources.iter().enumerate() {
                session.pass(model)?;
                self.progress.add(source.bytes());
            }
            if pass == 0 {
                (first_pass, first_loads) = (start.elapsed(), session.stats().load_time);
            }
        }
        let stats = session.stats();
        Ok(Row {
            way,
            budget: session.bytes().min(budget),
            wall: start.elapsed(),
            first_pass,
            first_loads,
            loaded: sources.iter().map(|source| source.given().loaded).sum(),
            packed: sources.iter().map(|source| source.given().packed).sum(),
            evicted: stats.evictions,
            peak_mapped: session.peak_mapped(),
            peak_weights: stats.bytes_peak,
            peak_rss: rss.bytes(),
            digest: session.digest(sources.len().saturating_sub(1)),
            verified: (0..sources.len()).map(|model| session.totals(model).verified).sum(),
        })
    }
}

fn open(path: &Path) -> Result<Model> {
    open_model(path, &OpenOptions::default())
}

fn source(path: &Path, model: Model, building: Option<PackWriter>) -> Result<Store> {
    Ok(model_store(model, building).map_err(Error::input(path))?.evict_source(true))
}

/// Why a resident run of `total` bytes is not possible; `None` when it is.
fn too_large(device: &Device, total: u64) -> Option<String> {
    // What the placement would refuse: a quarter of a domain is kept for everything else.
    let domains = u64::from(device.capabilities().domains.count());
    let room = domains * (rknpu::limits::DOMAIN / 4 * 3);
    if total > room {
        return Some(format!("{total} bytes do not fit the {domains} domains of this device"));
    }
    let free = rknpu::probe::available_memory()?;
    (total > free / 4 * 3).then(|| format!("{total} bytes are too many for {free} bytes of RAM"))
}
