//! A small model, its pack, and sessions over it on a machine that the test can hurt.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use ork::error::Error;
use ork::run::session::{Session, Settings};
use ork_cache::{Setup, Store};
use ork_weights::convert::{Options, convert};
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, OpenOptions};
use ork_weights::pack::{Pack, PackFile};
use rknpu::Device;
use rknpu::sim::Machine;
use rknpu::sim::config::{Config, Driver, Mode};
use rknpu::sim::report::Leaks;
use tempfile::TempDir;

/// Rows of activations.
pub const ROWS: u32 = 3;
/// Passes of a run.
pub const PASSES: u32 = 2;

/// A model and its pack, in a folder of their own.
#[derive(Debug)]
pub struct Bench {
    folder: TempDir,
}

impl Bench {
    /// Makes both files.
    ///
    /// # Panics
    /// As everything here, when what must work does not.
    pub fn new(shape: Shape) -> Bench {
        let bench = Bench { folder: tempfile::tempdir().unwrap() };
        shape.write(File::create(bench.model_path()).unwrap()).unwrap();
        convert(&bench.model(), bench.pack_path(), &Options::default(), |_| {}).unwrap();
        bench
    }

    /// Where the model is.
    pub fn model_path(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    /// Where the pack is.
    pub fn pack_path(&self) -> PathBuf {
        self.folder.path().join("model.orkpack")
    }

    /// The model.
    pub fn model(&self) -> Model {
        Model::open(self.model_path(), &OpenOptions::default()).unwrap()
    }

    /// The pack, read by position.
    pub fn pack(&self) -> Pack<PackFile> {
        Pack::open(self.pack_path()).unwrap()
    }

    /// The pack as a source of weights.
    pub fn store(&self) -> Arc<Store> {
        Arc::new(Store::from_pack(self.pack()))
    }

    /// Device memory for under half of the weights, and scratch.
    pub fn budget(&self) -> u64 {
        self.budget_on(&Device::simulated_on(&machine()).unwrap())
    }

    /// As [`Bench::budget`], on a device whose driver may need other scratch.
    pub fn budget_on(&self, device: &Device) -> u64 {
        let store = self.store();
        let scratch = ork_cache::scratch_bytes(device, std::slice::from_ref(&store), ROWS);
        store.bytes() / 5 * 2 + scratch
    }

    /// What a sound, resident run gives.
    pub fn digest(&self) -> u64 {
        let machine = machine();
        let device = Device::simulated_on(&machine).unwrap();
        let mut session = session(&device, self.store(), u64::MAX, false).unwrap();
        passes(&mut session).unwrap()
    }
}

/// A machine whose simulated driver refuses what would hurt a real kernel.
pub fn machine() -> Machine {
    machine_with(Driver::Rknpu)
}

/// The same with a driver.
pub fn machine_with(driver: Driver) -> Machine {
    Machine::new(Config { driver, mode: Mode::Strict, ..Config::default() })
}

/// A run of the weights of `store` within `budget` bytes.
///
/// # Errors
/// Those of [`Session::new`].
pub fn session(
    device: &Device,
    store: Arc<Store>,
    budget: u64,
    prefetch: bool,
) -> Result<Session, Error> {
    let setup = Setup { rows: ROWS, ..Setup::new(budget) };
    let settings = Settings { prefetch, ..Settings::new("scenario", setup) };
    Session::new(device, &[store], &settings)
}

/// All passes, and the digest of their results.
///
/// # Errors
/// Those of [`Session::pass`].
pub fn passes(session: &mut Session) -> Result<u64, Error> {
    (0..PASSES).try_for_each(|_| session.pass(0))?;
    Ok(session.digest(0))
}

/// Everything has been given back to the driver, and nothing done that would hurt it.
///
/// # Panics
/// When it has not.
pub fn assert_nothing_left(machine: &Machine, context: &str) {
    let report = machine.report();
    assert_eq!(report.leaks(), Leaks::default(), "{context}");
    assert_eq!((report.live, report.files), (0, 0), "{context}: bytes, files");
    assert!(report.hazards.is_empty(), "{context}: {:?}", report.hazards);
    assert_eq!(report.discarded, 0, "{context}: dirty bytes thrown away");
}
