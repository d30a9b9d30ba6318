//! What buffers hold: a model's file, weights that only memory has, or anything else.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ork_cache::{BlockWeight, Store};
use ork_weights::dequant::TensorType;

use crate::engine::{ComputeError, Engine, Matrix, Model, Place};
use crate::memory::{HostBlocks, HostMemory, Name, SharedBlocks, View};
use crate::plugin::Plugin;

/// A buffer of this library's.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) plugin: &'static Plugin,
    pub(crate) memory: HostMemory,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    /// Part of a model's file, from an offset on.
    File { model: Arc<Model>, file: usize, offset: u64 },
    /// Tensors that were declared, by offset.
    Loose(Mutex<Loose>),
}

#[derive(Debug, Default)]
struct Loose {
    tensors: BTreeMap<usize, Declared>,
    opened: Option<(Arc<Model>, Arc<HostBlocks>)>,
}

/// A tensor that can be a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Declared {
    name: Name,
    kind: TensorType,
    k: u32,
    n: u32,
    count: usize,
    bytes: usize,
}

impl Held {
    /// A part of a file that is mapped at `memory`.
    pub(crate) fn of_file(
        plugin: &'static Plugin,
        memory: HostMemory,
        model: Arc<Model>,
        file: usize,
        offset: u64,
    ) -> Held {
        Held { plugin, memory, contents: Contents::File { model, file, offset } }
    }

    /// Memory whose tensors are told one by one.
    pub(crate) fn loose(plugin: &'static Plugin, memory: HostMemory) -> Held {
        Held { plugin, memory, contents: Contents::Loose(Mutex::default()) }
    }

    /// Takes note of a tensor that lies in the buffer.
    pub(crate) fn declare(&self, tensor: &View<'_>) {
        let Contents::Loose(loose) = &self.contents else { return };
        if let (Some(offset), Some(declared)) =
            (self.memory.offset(tensor.address()), Declared::of(tensor))
        {
            let mut loose = lock(loose);
            if loose.tensors.get(&offset) != Some(&declared) {
                loose.close();
                loose.tensors.insert(offset, declared);
            }
        }
    }

    /// The host has written here: what was made of it is of yesterday.
    pub(crate) fn written(&self) {
        if let Contents::Loose(loose) = &self.contents {
            lock(loose).close();
        }
    }

    /// Whether there is a weight at a tensor's place, of its type and shape.
    pub(crate) fn has(&self, tensor: &View<'_>) -> bool {
        match (&self.contents, Declared::of(tensor)) {
            (Contents::File { model, file, offset }, Some(wanted)) => {
                let place = self.place(tensor, *file, *offset);
                place.and_then(|place| model.find(place)).is_some_and(|found| wanted.is(found))
            }
            (Contents::Loose(loose), Some(wanted)) => {
                let offset = self.memory.offset(tensor.address());
                offset.is_some_and(|offset| lock(loose).tensors.get(&offset) == Some(&wanted))
            }
            (_, None) => false,
        }
    }

    /// The model and the matrices at a tensor's place.
    pub(crate) fn find(
        &self,
        tensor: &View<'_>,
    ) -> Result<Option<(Arc<Model>, Matrix)>, ComputeError> {
        let Some(wanted) = Declared::of(tensor) else { return Ok(None) };
        match &self.contents {
            Contents::File { model, file, offset } => {
                let found = self.place(tensor, *file, *offset).and_then(|p| model.find(p));
                let found = found.filter(|found| wanted.is(found));
                Ok(found.map(|found| (model.clone(), *found)))
            }
            Contents::Loose(loose) => {
                let Some(offset) = self.memory.offset(tensor.address()) else { return Ok(None) };
                let mut loose = lock(loose);
                if loose.tensors.get(&offset) != Some(&wanted) {
                    return Ok(None);
                }
                let model = loose.model(self)?;
                let place = Place { file: 0, offset: offset as u64 };
                let found = model.find(place).filter(|found| wanted.is(found)).copied();
                Ok(found.map(|found| (model, found)))
            }
        }
    }

    /// Whether products have used weights that only its memory has.
    pub(crate) fn is_multiplied_with(&self) -> bool {
        match &self.contents {
            Contents::File { .. } => false,
            Contents::Loose(loose) => lock(loose).opened.is_some(),
        }
    }

    fn place(&self, tensor: &View<'_>, file: usize, offset: u64) -> Option<Place> {
        let here = self.memory.offset(tensor.address())?;
        Some(Place { file, offset: offset.checked_add(here as u64)? })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.written();
    }
}

impl Declared {
    /// `None` for a tensor that cannot be a weight.
    fn of(tensor: &View<'_>) -> Option<Declared> {
        let (kind, k, n, count) = weight_shape(tensor)?;
        let row = usize::try_from(kind.row_bytes(k.into())?).ok()?;
        let bytes = row.checked_mul(n as usize)?.checked_mul(count)?;
        Some(Declared { name: tensor.name(), kind, k, n, count, bytes })
    }

    fn is(&self, matrix: &Matrix) -> bool {
        (self.kind, self.k, self.n, self.count) == (matrix.kind, matrix.k, matrix.n, matrix.count)
    }
}

/// Type, K, N and number of matrices of a tensor that lies as files have weights; `None` for one that does
/// not, or whose type is not known.
pub(crate) fn weight_shape(tensor: &View<'_>) -> Option<(TensorType, u32, u32, usize)> {
    let kind = TensorType::from_ggml(u32::try_from(tensor.kind()).ok()?)?;
    let [k, n, count, more] = tensor.shape()?;
    let (k, n) = (u32::try_from(k).ok()?, u32::try_from(n).ok()?);
    let [first, row, matrix, _] = tensor.strides();
    let row_bytes = usize::try_from(kind.row_bytes(k.into())?).ok()?;
    let lies = first == kind.block_bytes() && row == row_bytes;
    let stacked = count == 1 || matrix == row_bytes.checked_mul(n as usize)?;
    (lies && stacked && more == 1).then_some((kind, k, n, count))
}

impl Loose {
    /// Gives up what was opened: weights leave the device, then nobody reads the memory any more.
    fn close(&mut self) {
        if let Some((model, blocks)) = self.opened.take() {
            drop(model);
            blocks.end();
        }
    }

    fn model(&mut self, held: &Held) -> Result<Arc<Model>, ComputeError> {
        if let Some((model, _)) = &self.opened {
            return Ok(model.clone());
        }
        let (mut weights, mut ranges, mut places) = (Vec::new(), Vec::new(), HashMap::new());
        for (offset, declared) in &self.tensors {
            let Declared { kind, k, n, count, bytes, .. } = *declared;
            let place = Place { file: 0, offset: *offset as u64 };
            places.insert(place, Matrix { first: weights.len(), count, k, n, kind });
            let each = bytes / count;
            for i in 0..count {
                let name = match count {
                    1 => declared.name.text().into(),
                    _ => format!("{}#{i}", declared.name.text()).into_boxed_str(),
                };
                weights.push(BlockWeight { name, k, n, kind });
                let start = offset + i * each;
                ranges.push(Range { start, end: start + each });
            }
        }
        let blocks = HostBlocks::new(&held.memory, &ranges);
        let blocks = Arc::new(blocks.ok_or(ComputeError::Tensors("a weight leaves its buffer"))?);
        let engine = &held.plugin.engine;
        let shared = Box::new(SharedBlocks(blocks.clone()));
        let store = Store::from_blocks(weights, engine.settings.tier, shared);
        let store = store.map_err(ork_linear::Error::Store)?;
        let model = engine.of_memory("weights in memory", store, places);
        let model = model.map_err(|reason| ComputeError::NoPlace(format!("a buffer: {reason}")))?;
        self.opened = Some((model.clone(), blocks));
        Ok(model)
    }
}

fn lock(loose: &Mutex<Loose>) -> MutexGuard<'_, Loose> {
    loose.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file behind `size` bytes at an address, opened as a model; else memory whose tensors are told.
pub(crate) fn behind(plugin: &'static Plugin, memory: HostMemory, size: usize) -> Held {
    let found = crate::maps::behind(memory.start() as usize, size);
    let Some((mapping, offset)) = found else { return Held::loose(plugin, memory) };
    match plugin.engine.of_file(&mapping) {
        Ok((model, file)) => Held::of_file(plugin, memory, model, file, offset),
        Err(reason) => {
            plugin.left(&mapping.path.display().to_string(), &reason);
            Held::loose(plugin, memory)
        }
    }
}

/// A store of matrices that are used once.
pub(crate) fn once(
    engine: &Engine,
    kind: TensorType,
    k: u32,
    n: u32,
    matrices: Vec<Vec<u8>>,
) -> Result<Store, ComputeError> {
    let name = |i: usize| format!("matrix {i}").into_boxed_str();
    let weights = (0..matrices.len()).map(|i| BlockWeight { name: name(i), k, n, kind });
    let store =
        Store::from_blocks(weights.collect(), engine.settings.tier, Box::new(Copies(matrices)));
    Ok(store.map_err(ork_linear::Error::Store)?)
}

#[derive(Debug)]
struct Copies(Vec<Vec<u8>>);

impl ork_cache::Blocks for Copies {
    fn with(&self, weight: usize, work: &mut dyn FnMut(&[u8])) -> bool {
        let matrix = self.0.get(weight);
        matrix.inspect(|matrix| work(matrix)).is_some()
    }
}
