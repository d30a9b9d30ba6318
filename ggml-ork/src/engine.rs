//! The device and the models on it.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ork_cache::{Store, chain, profile};
use ork_linear::{Layers, Product, Setup};
use ork_weights::dequant::TensorType;
use ork_weights::model::{Model as ModelFile, OpenOptions};

use crate::ggml::Level;
use crate::keep;
use crate::maps::Mapping;
use crate::say::Say;
use crate::settings::{DeviceChoice, Settings};

/// The NPU, and every model that has weights for it.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) say: Say,
    /// Opened with the first model, so that a program that only lists devices takes none.
    device: OnceLock<Result<rknpu::Device, Arc<str>>>,
    models: Mutex<Vec<Weak<Model>>>,
}

/// A model whose weights are multiplied with.
#[derive(Debug)]
pub(crate) struct Model {
    /// The files that it was read from: device, inode and second of change of each.
    files: Vec<FileId>,
    store: Arc<Store>,
    places: HashMap<Place, Matrix>,
    /// `None` while the models of the device are placed anew, and for one that has no room.
    layers: Mutex<Option<Layers>>,
    say: Say,
    name: String,
}

/// A file as the system names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    modified: i64,
    size: u64,
}

/// Where a matrix begins: number of the file, or none, and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) offset: u64,
}

/// A weight, or a stack of them, as the file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Number in the store, of the first expert of a stack.
    pub(crate) first: usize,
    /// Matrices that follow each other.
    pub(crate) count: usize,
    pub(crate) k: u32,
    pub(crate) n: u32,
    pub(crate) kind: TensorType,
}

/// What a product did not give.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ComputeError {
    #[error(transparent)]
    Linear(#[from] ork_linear::Error),
    #[error("the weights of {0} have no place on the device")]
    NoPlace(String),
    #[error("{0}")]
    Tensors(&'static str),
    #[error("the NPU cannot be used: {0}")]
    NoDevice(Arc<str>),
}

impl ComputeError {
    /// Whether the CPU can compute what the NPU did not: weights or the NPU are at fault, not what was asked.
    pub(crate) fn leaves_to_cpu(&self) -> bool {
        !matches!(self, ComputeError::Tensors(_))
    }
}

impl Engine {
    pub(crate) fn new(settings: Settings, say: Say) -> Engine {
        Engine { settings, say, device: OnceLock::new(), models: Mutex::default() }
    }

    /// The device; why there is none is said once.
    pub(crate) fn device(&self) -> Result<&rknpu::Device, ComputeError> {
        let opened = self.device.get_or_init(|| {
            let opened = self.open_device();
            if let Err(reason) = &opened {
                let line = format!("the NPU cannot be used, the CPU computes all: {reason}");
                self.say.line(Level::Warn, &line);
            }
            opened
        });
        opened.as_ref().map_err(|reason| ComputeError::NoDevice(reason.clone()))
    }

    fn open_device(&self) -> Result<rknpu::Device, Arc<str>> {
        let simulated =
            |driver| rknpu::Device::simulated(rknpu_sim::Config { driver, ..Default::default() });
        let opened = match &self.settings.device {
            DeviceChoice::Simulator(driver) => simulated(*driver),
            DeviceChoice::Path(path) => {
                profile::open(Some(path), &rknpu::OpenOptions::new()).map(|(device, _)| device)
            }
            DeviceChoice::Auto => {
                match profile::open(None, &rknpu::OpenOptions::new()).map(|(device, _)| device) {
                    Err(rknpu::Error::NoDevice { .. }) => {
                        let line = "there is no NPU here, so it is simulated, which is slow \
                                (ORK_DEVICE=sim does that without looking)";
                        self.say.line(Level::Warn, line);
                        simulated(Default::default())
                    }
                    found => found,
                }
            }
        };
        opened.map_err(|error| chain(&error).into())
    }

    /// The model in the file behind a mapping, and the number of that file in it.
    ///
    /// # Errors
    /// Why its weights are left to the CPU.
    pub(crate) fn of_file(&self, mapping: &Mapping) -> Result<(Arc<Model>, usize), String> {
        self.device().map_err(|error| error.to_string())?;
        let path = &mapping.path;
        let options = OpenOptions::default();
        let file = ModelFile::open(path, &options).map_err(|error| chain(&error))?;
        let files = file.paths().map(FileId::of).collect::<Result<Vec<_>, _>>();
        let files = files.map_err(|error| chain(&error))?;
        let number = files.iter().position(|file| file.inode == mapping.inode);
        let number = number.ok_or("another file stands under its name now")?;

        let mut models = self.models();
        let mut live = models.iter().filter_map(Weak::upgrade);
        if let Some(known) = live.find(|model| model.files == files) {
            return Ok((known, number));
        }
        drop(live);
        let name = path.display().to_string();
        let mut matrices = HashMap::new();
        let mut names = Vec::new();
        for weight in file.weights() {
            let place = Place { file: weight.file(), offset: weight.range().start };
            names.push((weight.name.clone(), place, (weight.k, weight.n, weight.kind)));
        }
        let store = keep::store(file, path, &self.settings, &self.say)?;
        let numbers: HashMap<&str, usize> =
            store.items().iter().enumerate().map(|(i, item)| (&*item.name, i)).collect();
        for (name, place, (k, n, kind)) in &names {
            let Some(first) = numbers.get(&**name).copied() else { continue };
            let item = store.items().get(first);
            if item.is_none_or(|item| (item.k, item.n) != (*k, *n)) {
                continue;
            }
            // Experts of a stack follow each other in the file as in the store.
            let stem = name.strip_suffix("#0");
            let count = stem.map_or(1, |stem| {
                let is_next = |i: &usize| {
                    let item = store.items().get(first + i);
                    item.is_some_and(|item| *item.name == *format!("{stem}#{i}"))
                };
                (0..).take_while(is_next).count()
            });
            matrices.insert(*place, Matrix { first, count, k: *k, n: *n, kind: *kind });
        }
        let model = Arc::new(Model {
            files,
            store: Arc::new(store),
            places: matrices,
            layers: Mutex::default(),
            say: self.say.clone(),
            name,
        });
        self.add(&mut models, &model)?;
        Ok((model, number))
    }

    /// A model of weights that no file is known for.
    pub(crate) fn of_memory(
        &self,
        name: &str,
        store: Store,
        places: HashMap<Place, Matrix>,
    ) -> Result<Arc<Model>, String> {
        self.device().map_err(|error| error.to_string())?;
        let model = Arc::new(Model {
            files: Vec::new(),
            store: Arc::new(store),
            places,
            layers: Mutex::default(),
            say: self.say.clone(),
            name: name.into(),
        });
        self.add(&mut self.models(), &model)?;
        Ok(model)
    }

    /// Gives a model its place among the others.
    fn add(&self, models: &mut Vec<Weak<Model>>, model: &Arc<Model>) -> Result<(), String> {
        models.retain(|model| model.strong_count() > 0);
        models.push(Arc::downgrade(model));
        self.place(models, model)
    }

    /// Layers of weights that are used once.
    pub(crate) fn once(&self, store: Store) -> Result<Layers, ComputeError> {
        let setup = Setup { npu_rows: 1, ..self.setup(&[]) };
        let opened = ork_linear::open(self.device()?, &[Arc::new(store)], &setup)?;
        opened.into_iter().next().ok_or(ComputeError::Tensors("no weight"))
    }

    /// What the cache did since the models were placed, if one of them is there.
    pub(crate) fn stats(&self) -> Option<ork_cache::Stats> {
        let live: Vec<_> = self.models().iter().filter_map(Weak::upgrade).collect();
        live.iter().find_map(|model| Some(model.layers().as_ref()?.cache().stats()))
    }

    fn models(&self) -> MutexGuard<'_, Vec<Weak<Model>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn setup(&self, stores: &[Arc<Store>]) -> Setup {
        let mut setup = Setup::new(self.settings.environment.budget);
        setup.depth = self.settings.depth;
        setup.cores = self.settings.cores;
        setup.npu_rows = if self.settings.take_all { 1 } else { self.settings.min_rows };
        setup.cache.policy = self.settings.environment.policy;
        setup.cache.access = self.settings.environment.access;
        let routed = |store: &Arc<Store>| store.items().iter().any(|item| item.expert.is_some());
        setup.cache.routed = stores.iter().any(routed);
        setup
    }

    /// Puts all models on the device, small ones first: a draft stays in memory beside a model that is
    /// streamed. Where `new` has no room beside the others, those stay as they were.
    fn place(&self, models: &[Weak<Model>], new: &Arc<Model>) -> Result<(), String> {
        let mut live: Vec<Arc<Model>> = models.iter().filter_map(Weak::upgrade).collect();
        let size = |model: &Model| model.files.iter().map(|file| file.size).sum::<u64>();
        live.sort_by_key(|model| (model.store.bytes(), size(model)));
        match self.place_all(&live) {
            Ok(()) => Ok(()),
            Err(error) => {
                live.retain(|model| !Arc::ptr_eq(model, new));
                if let Err(error) = self.place_all(&live) {
                    let line = format!("models that were there have lost their place: {error}");
                    self.say.line(Level::Warn, &line);
                }
                Err(error)
            }
        }
    }

    fn place_all(&self, live: &[Arc<Model>]) -> Result<(), String> {
        // Products wait meanwhile.
        let mut places: Vec<_> = live.iter().map(|model| model.layers()).collect();
        places.iter_mut().for_each(|layers| **layers = None);
        if live.is_empty() {
            return Ok(());
        }
        let stores: Vec<Arc<Store>> = live.iter().map(|model| model.store.clone()).collect();
        let device = self.device().map_err(|error| error.to_string())?;
        let opened = ork_linear::open(device, &stores, &self.setup(&stores));
        let opened = opened.map_err(|error| chain(&error))?;
        for layers in opened.iter().take(1) {
            let reading = Some(layers.reading()).filter(|reading| reading.bytes > 0);
            let lines = layers.notes().iter().map(ToString::to_string);
            for line in lines.chain(reading.map(ToString::to_string)) {
                self.say.line(Level::Info, &line);
            }
        }
        for ((model, place), layers) in live.iter().zip(&mut places).zip(opened) {
            **place = Some(layers);
            let Some(layers) = place.as_ref().filter(|_| !model.files.is_empty()) else { continue };
            let streamed = layers.placed().streamed_bytes();
            self.say.line(
                Level::Info,
                &format!(
                    "{}: {} MiB of weights stay on the device, {} MiB are streamed in every pass",
                    model.name,
                    model.store.bytes().saturating_sub(streamed) >> 20,
                    streamed >> 20
                ),
            );
        }
        Ok(())
    }
}

impl Model {
    /// The matrix that begins at a place.
    pub(crate) fn find(&self, place: Place) -> Option<&Matrix> {
        self.places.get(&place)
    }

    fn layers(&self) -> MutexGuard<'_, Option<Layers>> {
        // Whoever panicked in a product left layers that start every product anew.
        self.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the layers; tells what has happened to them.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut Layers) -> Result<T, ComputeError>,
    ) -> Result<T, ComputeError> {
        let mut place = self.layers();
        let layers = place.as_mut().ok_or_else(|| ComputeError::NoPlace(self.name.clone()))?;
        let done = work(layers)?;
        if let Some(failure) = layers.npu_failure() {
            let reason = chain(&*failure);
            let line =
                format!("the NPU has failed, the CPU goes on with the same results: {reason}");
            self.say.line(Level::Warn, &line);
        }
        drop(place);
        if self.store.is_building() {
            keep::finish_if_whole(&self.store, &self.say);
        }
        Ok(done)
    }

    /// Multiplies rows by some weights.
    pub(crate) fn multiply<'a>(
        &self,
        m: usize,
        input: &[f32],
        products: impl IntoIterator<Item = Product<'a>>,
    ) -> Result<(), ComputeError> {
        self.with(|layers| Ok(layers.multiply(m, input, products)?))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Weights leave the device before what they came from.
        drop(self.layers().take());
        keep::finish(&self.store, &self.say);
    }
}

impl FileId {
    fn of(path: &std::path::Path) -> Result<FileId, std::io::Error> {
        let metadata = path.metadata()?;
        Ok(FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: metadata.mtime(),
            size: metadata.size(),
        })
    }
}
