//! Where weights come from: a pack, or a model that is packed while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ork_cache::Cause;
use ork_cache::plan::Item;
use ork_weights::model::Model;
use ork_weights::pack::{Entry, Pack, PackError, PackFile, PackWriter};
use ork_weights::quantise::{Recipe, Tier};
use ork_weights::reference;
use rknpu::{Layout, Precision};

use super::columns::Columns;

/// Weights of one model, in order of use.
#[derive(Debug)]
pub struct Source {
    items: Vec<Item>,
    origin: Origin,
    /// Weights that were made of the model's values, instead of copied out of a pack.
    packed: AtomicU64,
    loaded: AtomicU64,
}

#[derive(Debug)]
enum Origin {
    Pack(Box<Pack<PackFile>>),
    Model(Box<Packing>),
}

/// A model that is packed while it runs.
#[derive(Debug)]
struct Packing {
    model: Model,
    evict: bool,
    building: Mutex<Option<PackWriter>>,
    /// The pack, once it is whole.
    done: OnceLock<Pack<PackFile>>,
}

/// The storage of weights that are packed on the way.
const TIER: Tier = Tier::Int8;

impl Source {
    /// The weights of a pack, in the order of the file, which is the order of use.
    pub fn pack(pack: Pack<PackFile>) -> Source {
        let items = pack.entries().iter().map(|e| Item::new(e.name.clone(), e.layout())).collect();
        Source::new(items, Origin::Pack(Box::new(pack)))
    }

    /// The weights of a model, quantised to int8 each time they are needed. With `building` each is
    /// also added to a pack, which serves once it is whole. With `evict` the model's pages are
    /// dropped behind.
    ///
    /// # Errors
    /// A weight that does not tile as int8; [`Model::open`] has already left those out.
    pub fn model(
        model: Model,
        building: Option<PackWriter>,
        evict: bool,
    ) -> Result<Source, rknpu::LayoutError> {
        let items = model
            .weights()
            .iter()
            .map(|w| Ok(Item::new(w.name.clone(), Layout::new(w.k, w.n, Precision::Int8)?)))
            .collect::<Result<_, rknpu::LayoutError>>()?;
        let building = Mutex::new(building);
        let packing = Packing { model, evict, building, done: OnceLock::new() };
        Ok(Source::new(items, Origin::Model(Box::new(packing))))
    }

    /// The first weights only, as many as fit `bytes`, and one at least: a small model beside the
    /// whole one.
    pub fn head(mut self, bytes: u64) -> Source {
        let mut left = bytes;
        let fitting = self.items.iter().take_while(|item| {
            let fits = item.bytes() <= left;
            left = left.saturating_sub(item.bytes());
            fits
        });
        let count = fitting.count().max(1);
        self.items.truncate(count);
        self
    }

    fn new(items: Vec<Item>, origin: Origin) -> Source {
        Source { items, origin, packed: AtomicU64::new(0), loaded: AtomicU64::new(0) }
    }

    /// The weights.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Bytes of all weights in device memory.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(Item::bytes).sum()
    }

    /// Weights, or parts of them, that were quantised so far.
    pub fn packed(&self) -> u64 {
        self.packed.load(Ordering::Relaxed)
    }

    /// Weights, or parts of them, that were copied out of a pack so far.
    pub fn loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Writes weight `index`, or some of its columns, into `out`, whose first bytes it takes.
    ///
    /// # Errors
    /// What the pack or the model says; `out` is then unspecified.
    pub fn load(&self, index: usize, columns: &Columns, out: &mut [u8]) -> Result<(), Cause> {
        let item = self.items.get(index).ok_or_else(|| cause(Missing(index)))?;
        let len = columns.layout().bytes();
        let out = usize::try_from(len).ok().and_then(|len| out.get_mut(..len));
        let out = out.ok_or_else(|| cause(TooShort { needed: len }))?;
        if columns.is_all(&item.layout) {
            return self.load_whole(index, item, out);
        }
        let mut whole = vec![0; item.layout.bytes() as usize];
        self.load_whole(index, item, &mut whole)?;
        columns.cut(&item.layout, &whole, out);
        Ok(())
    }

    /// The codes of weight `index`, row-major `[N][K]`.
    ///
    /// # Errors
    /// As [`Source::load`].
    pub fn codes(&self, index: usize) -> Result<Vec<i8>, Cause> {
        let item = self.items.get(index).ok_or_else(|| cause(Missing(index)))?;
        let mut tiled = vec![0; item.layout.bytes() as usize];
        self.load_whole(index, item, &mut tiled)?;
        reference::codes(&item.layout, &tiled).map_err(cause)
    }

    /// Whether a pack is being made: weights must then be loaded in order of use, which becomes the
    /// order of the pack.
    pub fn is_building(&self) -> bool {
        let Origin::Model(packing) = &self.origin else { return false };
        packing.building.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Ends a pass: a pack that has got all its weights is finished, and serves from now on.
    ///
    /// # Errors
    /// What [`PackWriter::finish`] says; the model serves on.
    pub fn end_of_pass(&self) -> Result<(), PackError> {
        let Origin::Model(packing) = &self.origin else { return Ok(()) };
        let mut building = packing.building.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = building.as_ref().is_some_and(|writer| writer.len() == self.items.len());
        let Some(writer) = building.take_if(|_| whole) else { return Ok(()) };
        let path = writer.finish()?.path;
        let pack = Pack::open_with(path, Default::default())?;
        // Nobody else sets it: the writer was taken under the lock.
        let _ = packing.done.set(pack);
        Ok(())
    }

    fn whole_pack(&self) -> Option<&Pack<PackFile>> {
        match &self.origin {
            Origin::Pack(pack) => Some(pack),
            Origin::Model(packing) => packing.done.get(),
        }
    }

    fn load_whole(&self, index: usize, item: &Item, out: &mut [u8]) -> Result<(), Cause> {
        if let Some(pack) = self.whole_pack() {
            let entry = pack.get(&item.name).ok_or_else(|| cause(Missing(index)))?;
            check(entry, item)?;
            pack.load_into(entry, out).map_err(cause)?;
            self.loaded.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let Origin::Model(packing) = &self.origin else { return Err(cause(Missing(index))) };
        packing.quantise(index, out)?;
        self.packed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Packing {
    fn quantise(&self, index: usize, out: &mut [u8]) -> Result<(), Cause> {
        let weight = self.model.weights().get(index).ok_or_else(|| cause(Missing(index)))?;
        let mut scales = vec![0.0; TIER.scales(weight.k, weight.n)];
        let recipe = Recipe::new(TIER);
        self.model.quantise_with(weight, &recipe, out, &mut scales).map_err(cause)?;
        if self.evict {
            self.model.evict(weight);
        }
        let mut building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(writer), Some(dtype)) = (building.as_mut(), TIER.dtype())
            && !writer.contains(&weight.name)
        {
            // int8 is stored as it is computed: these tiles are the blob.
            writer.add(&weight.name, weight.k, weight.n, dtype, out, &scales).map_err(cause)?;
        }
        Ok(())
    }
}

/// A pack that changed its shapes would give wrong results, not an error further on.
fn check(entry: &Entry, item: &Item) -> Result<(), Cause> {
    let (found, wanted) = (entry.layout(), item.layout);
    if found == wanted {
        return Ok(());
    }
    Err(cause(OtherShape { name: item.name.clone(), found, wanted }))
}

#[derive(Debug, thiserror::Error)]
#[error("{name:?} is K={} N={} {:?} in the pack, K={} N={} {:?} is needed: convert the model again",
    found.k(), found.n(), found.precision(), wanted.k(), wanted.n(), wanted.precision())]
struct OtherShape {
    name: Box<str>,
    found: Layout,
    wanted: Layout,
}

#[derive(Debug, thiserror::Error)]
#[error("weight number {0} is not in the source")]
struct Missing(usize);

#[derive(Debug, thiserror::Error)]
#[error("a buffer is too short for a weight of {needed} bytes")]
struct TooShort {
    needed: u64,
}

fn cause(error: impl std::error::Error + Send + Sync + 'static) -> Cause {
    Arc::new(error)
}
