//! Where the bytes of weights come from: a pack, a model that is quantised as it is used, or memory.

mod copy_columns;
mod from_blocks;
mod from_model;

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ork_weights::model::{Model, ModelError};
use ork_weights::pack::{
    DirectReads, Dtype, Entry, Pack, PackError, PackFile, PackWriter, Source, Summary,
};
use ork_weights::quantise::{QuantiseError, Tier};
use rknpu_sys::layout::Layout;
use rustix::fs::{Advice, fadvise};

use copy_columns::copy_columns;
use from_blocks::FromBlocks;
pub use from_blocks::{BlockWeight, Blocks};
use from_model::{FromModel, Made};

use crate::plan::Item;
use crate::residency::Purpose;

/// Where weights come from.
///
/// Every load compares name, K, N and storage form with what was attached: wrong weights are never the
/// answer.
///
/// ```
/// use ork_cache::Store;
/// use ork_weights::model::{Model, OpenOptions, synth::Shape};
/// use ork_weights::quantise::Tier;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("model.gguf");
/// Shape::tiny().write(std::fs::File::create(&path)?)?; // made up; bring your own
/// let model = Model::open(&path, &OpenOptions::default())?;
/// let store = Store::from_model(model, Tier::Int8, None)?; // quantised at every load
/// let first = &store.items()[0];
/// let mut tiles = vec![0; first.bytes() as usize];
/// store.load(0, 0, &first.layout, &mut tiles)?;
/// assert_eq!((store.given().packed, store.given().loaded), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store {
    items: Vec<Item>,
    /// Of each item.
    forms: Vec<Form>,
    from: From,
    loaded: AtomicU64,
    packed: AtomicU64,
}

#[derive(Debug)]
enum From {
    Pack(Box<Pack<PackFile>>),
    Model(Box<FromModel>),
    Blocks(Box<FromBlocks>),
}

/// What an item is stored as.
#[derive(Debug)]
struct Form {
    dtype: Dtype,
    scales: OnceLock<Box<[f32]>>,
    /// Whether what a pack holds of it was compared with its checksums: before its first use.
    checked: AtomicBool,
}

/// What a load needs to know about an item.
#[derive(Clone, Copy, Debug)]
struct Expected<'a> {
    item: &'a Item,
    form: &'a Form,
}

/// [`Pack::load_into`], or the one on all threads.
type LoadWhole = fn(&Pack<PackFile>, &Entry, &mut [u8]) -> Result<(), PackError>;

/// Why a weight could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No weight of that number.
    #[error("weight {item} of {known} does not exist")]
    Unknown {
        /// The number.
        item: usize,
        /// How many there are.
        known: usize,
    },
    /// The pack does not have the weight, or not in this form, and there is no model to make it
    /// from.
    #[error(
        "the pack has no {dtype} weight {name:?} of K={k} N={n}{found}: convert the model again"
    )]
    NotInPack {
        /// Name.
        name: Box<str>,
        /// Inputs.
        k: u32,
        /// Output channels.
        n: u32,
        /// Storage form.
        dtype: Dtype,
        /// What stands under the name instead.
        found: String,
    },
    /// The buffer does not have the bytes of the layout.
    #[error("{name:?} needs {need} bytes, the slot has {have}")]
    Length {
        /// Name.
        name: Box<str>,
        /// Bytes of the layout.
        need: u64,
        /// Bytes given.
        have: u64,
    },
    /// The pack.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tier does not suit a weight, or is not one that is packed while it is used.
    #[error("{name:?}: {source}")]
    Tier {
        /// Name of the weight.
        name: Box<str>,
        /// Why.
        source: QuantiseError,
    },
    /// The memory that held the weight belongs to others again.
    #[error("{name:?} is gone: the memory that held it was given back")]
    Gone {
        /// Name of the weight.
        name: Box<str>,
    },
    /// A pack can be built while its model runs only in a form that the device reads as it is stored.
    #[error("weights of tier {0} cannot be packed while they are used: convert the model first")]
    Build(Tier),
}

/// How many weights a store has given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Read from the pack.
    pub loaded: u64,
    /// Quantised from the model.
    pub packed: u64,
}

impl Store {
    /// The weights of a pack, in the order of its file.
    pub fn from_pack(pack: Pack<PackFile>) -> Store {
        let item = |e: &Entry| Item::new(e.name.clone(), e.layout()).of_shape(e.k, e.n);
        let items = pack.entries().iter().map(item).collect();
        let forms = pack.entries().iter().map(|e| Form::new(e.dtype)).collect();
        Store::new(items, forms, From::Pack(Box::new(pack)))
    }

    /// The weights of a model, quantised at every load, or, with `pack`, added to it when they are first
    /// loaded. [`Store::finish`] completes that pack, from which they are read afterwards. They stand in it
    /// in the order in which they were first loaded, unless its writer has a place for each
    /// ([`writer_options`](ork_weights::convert::writer_options)).
    ///
    /// # Errors
    /// A weight whose shape does not suit the tier, or a tier that packs hold otherwise than devices.
    pub fn from_model(
        model: Model,
        tier: Tier,
        pack: Option<PackWriter>,
    ) -> Result<Store, StoreError> {
        let shapes = model.weights().iter().map(|weight| (&weight.name, weight.k, weight.n));
        let (items, forms) = made(tier, shapes)?;
        Ok(Store::new(items, forms, From::Model(Box::new(FromModel::new(model, tier, pack)))))
    }

    /// Weights in memory, quantised at every load; nothing of them is kept.
    ///
    /// ```
    /// use ork_cache::{BlockWeight, Blocks, Store};
    /// use ork_weights::dequant::TensorType;
    /// use ork_weights::quantise::Tier;
    ///
    /// #[derive(Debug)]
    /// struct Ones(Vec<u8>);
    ///
    /// impl Blocks for Ones {
    ///     fn with(&self, _weight: usize, work: &mut dyn FnMut(&[u8])) -> bool {
    ///         work(&self.0);
    ///         true
    ///     }
    /// }
    ///
    /// let weight = BlockWeight { name: "ones".into(), k: 32, n: 32, kind: TensorType::F32 };
    /// let blocks = Ones([1f32; 32 * 32].iter().flat_map(|one| one.to_le_bytes()).collect());
    /// let store = Store::from_blocks(vec![weight], Tier::Int8, Box::new(blocks))?;
    /// let layout = store.items()[0].layout;
    /// let mut tiles = vec![0; layout.bytes() as usize];
    /// store.load(0, 0, &layout, &mut tiles)?;
    /// assert_eq!((tiles[0], store.scales(0)?[0]), (127, 1.0 / 127.0));
    /// # Ok::<(), ork_cache::StoreError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Store::from_model`].
    pub fn from_blocks(
        weights: Vec<BlockWeight>,
        tier: Tier,
        blocks: Box<dyn Blocks>,
    ) -> Result<Store, StoreError> {
        let (items, forms) = made(tier, weights.iter().map(|w| (&w.name, w.k, w.n)))?;
        let from = FromBlocks::new(weights, tier, blocks);
        Ok(Store::new(items, forms, From::Blocks(Box::new(from))))
    }

    fn new(items: Vec<Item>, forms: Vec<Form>, from: From) -> Store {
        Store { items, forms, from, loaded: AtomicU64::new(0), packed: AtomicU64::new(0) }
    }

    /// Drops pages of the model once a weight has been made of them (`ORK_EVICT_SRC`).
    pub fn evict_source(mut self, evict: bool) -> Store {
        if let From::Model(model) = &mut self.from {
            model.evict = evict;
        }
        self
    }

    /// The first weights only, as many as take no more than `bytes` on the device, and one at least: a
    /// small model to try things with beside the whole one.
    pub fn head(mut self, bytes: u64) -> Store {
        let mut left = bytes;
        let fitting = self.items.iter().take_while(|item| {
            let fits = item.bytes() <= left;
            left = left.saturating_sub(item.bytes());
            fits
        });
        let count = fitting.count().max(1);
        self.items.truncate(count);
        self.forms.truncate(count);
        self
    }

    /// The weights, in order of use: what is planned.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// How weight `item` is stored, which says whether rows must be rotated for it.
    pub fn dtype(&self, item: usize) -> Option<Dtype> {
        self.forms.get(item).map(|form| form.dtype)
    }

    /// Bytes of all weights on the device.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(Item::bytes).sum()
    }

    /// Bytes of files that it takes to load each weight once.
    pub(crate) fn file_bytes(&self) -> u64 {
        match &self.from {
            From::Model(model) if model.made.get().is_none() => {
                model.model.weights().iter().map(|weight| weight.bytes).sum()
            }
            From::Pack(_) | From::Model(_) => self.bytes(),
            From::Blocks(_) => 0,
        }
    }

    /// Has weights read past the page cache, see [`PackFile::read_directly`] and [`Model::read_directly`]; those
    /// of a pack that is being made, too, once it is whole.
    ///
    /// # Errors
    /// Those of that; weights are then read as before.
    pub fn read_directly(&self) -> std::io::Result<()> {
        match (self.pack(), &self.from) {
            (Some(pack), _) => pack.source().read_directly(),
            (None, From::Model(model)) => model.model.read_directly(),
            (None, _) => Ok(()),
        }
    }

    /// What was read past the page cache; `None` where nothing is to be.
    pub fn direct_reads(&self) -> Option<DirectReads> {
        let model = match &self.from {
            From::Model(model) => model.model.direct_reads(),
            From::Pack(_) | From::Blocks(_) => None,
        };
        let pack = self.pack().and_then(|pack| pack.source().direct_reads());
        model.into_iter().chain(pack).reduce(DirectReads::and)
    }

    /// The pack that weights are read from.
    fn pack(&self) -> Option<&Pack<PackFile>> {
        match &self.from {
            From::Pack(pack) => Some(pack),
            From::Model(model) => model.made.get(),
            From::Blocks(_) => None,
        }
    }

    /// Weights given out so far.
    pub fn given(&self) -> Given {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Given { loaded: get(&self.loaded), packed: get(&self.packed) }
    }

    /// Writes the columns from `column` on, as many as `layout` has, of weight `item` into `out`,
    /// tiled as `layout` says. What a pack holds is read by the calling thread alone; a weight that
    /// has to be quantised is, on the threads of the current rayon pool. Not for tasks of that pool
    /// themselves: one that waits for others may be given a second load to run, which then waits
    /// for the first.
    ///
    /// # Errors
    /// [`StoreError`]; `out` then holds no weight.
    pub fn load(
        &self,
        item: usize,
        column: u32,
        layout: &Layout,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        self.load_for(Purpose::Prefetch, item, column, layout, out)
    }

    /// As [`Store::load`], not counted in [`Store::given`]: for who compares results with the CPU's.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub fn load_uncounted(
        &self,
        item: usize,
        column: u32,
        layout: &Layout,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        self.make(Purpose::Prefetch, item, column, layout, out).map(drop)
    }

    /// As [`Store::load`]; for a demand, which somebody waits for while other threads are idle, whole weights
    /// are read by all threads of the pool, too.
    pub(crate) fn load_for(
        &self,
        purpose: Purpose,
        item: usize,
        column: u32,
        layout: &Layout,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        let made = self.make(purpose, item, column, layout, out)?;
        self.count(made);
        Ok(())
    }

    fn make(
        &self,
        purpose: Purpose,
        item: usize,
        column: u32,
        layout: &Layout,
        out: &mut [u8],
    ) -> Result<Made, StoreError> {
        let expected = self.expected(item)?;
        let Some(out) = out.get_mut(..layout.bytes() as usize) else {
            let (need, have) = (layout.bytes(), out.len() as u64);
            return Err(StoreError::Length { name: expected.item.name.clone(), need, have });
        };
        let whole = &expected.item.layout;
        Ok(match (self.in_pack(expected), &self.from) {
            (Ok((pack, entry)), _) => {
                let load_whole: LoadWhole = match purpose {
                    Purpose::Demand => Pack::load_into_parallel,
                    Purpose::Prefetch | Purpose::Speculate => Pack::load_into,
                };
                if layout == whole {
                    load_whole(pack, entry, out)?;
                } else if entry.dtype.is_plain() {
                    pack.source().check()?;
                    let start = entry.blob_range().start;
                    copy_columns(whole, column, layout, out, |at, to| {
                        let past = pack.source().read_past_cache(start + at, to);
                        past.unwrap_or_else(|| pack.source().read_at(start + at, to))
                    })?;
                } else {
                    // Compact forms are inflated as a whole.
                    cut(whole, column, layout, out, |all| Ok(load_whole(pack, entry, all)?))?;
                }
                if !expected.form.checked.load(Ordering::Relaxed) {
                    pack.check(entry, (layout == whole).then_some(out))?;
                    expected.form.checked.store(true, Ordering::Relaxed);
                }
                Made::Loaded
            }
            (Err(_), From::Model(model)) if layout == whole => {
                model.quantise(item, expected, out)?
            }
            (Err(_), From::Model(model)) => {
                model.quantise_columns(item, expected, column, layout, out)?
            }
            (Err(_), From::Blocks(blocks)) => {
                blocks.quantise(item, expected, column, layout, out)?;
                Made::Packed
            }
            (Err(not_in_pack), From::Pack(_)) => return Err(not_in_pack),
        })
    }

    fn count(&self, made: Made) {
        let counter = if made == Made::Packed { &self.packed } else { &self.loaded };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Scales of a weight: per channel, or `[group][channel]`.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub fn scales(&self, item: usize) -> Result<&[f32], StoreError> {
        let expected = self.expected(item)?;
        if let Some(scales) = expected.form.scales.get() {
            return Ok(scales);
        }
        match (self.in_pack(expected), &self.from) {
            (Ok((pack, entry)), _) => {
                let scales = pack.scales(entry)?;
                Ok(expected.form.scales.get_or_init(|| scales.into()))
            }
            (Err(_), From::Model(model)) => {
                model.scales(item, expected)?;
                self.count(Made::Packed);
                Ok(expected.form.scales.get().map_or(&[], |s| s))
            }
            (Err(_), From::Blocks(blocks)) => {
                let scales = blocks.scales(item, expected)?;
                Ok(expected.form.scales.get_or_init(|| scales.into()))
            }
            (Err(not_in_pack), From::Pack(_)) => Err(not_in_pack),
        }
    }

    /// Tells the system that a weight will be read soon.
    pub(crate) fn will_need(&self, item: usize) {
        self.advise(item, Advice::WillNeed);
    }

    /// Tells the system that a weight will not be read again.
    pub(crate) fn stays_loaded(&self, item: usize) {
        self.advise(item, Advice::DontNeed);
    }

    /// Advice about a weight's pages of the pack, if it is read through them. It is only that: a file
    /// system that does not take it loses speed, nothing else.
    fn advise(&self, item: usize, advice: Advice) {
        let Ok(expected) = self.expected(item) else { return };
        if let Ok((pack, entry)) = self.in_pack(expected)
            && pack.source().direct_reads().is_none()
        {
            let range = entry.blob_range();
            let len = std::num::NonZeroU64::new(range.end - range.start);
            let _ = fadvise(pack.source().file(), range.start, len, advice);
        }
    }

    /// Whether a pack is being made, or was given up and nobody has been told.
    pub fn is_building(&self) -> bool {
        let building = |model: &FromModel| model.writer().is_some() || model.stopped().is_some();
        matches!(&self.from, From::Model(model) if building(model))
    }

    /// Completes the pack that was being made: weights never used are quantised now. `None` when
    /// none was being made. From now on weights are read from it.
    ///
    /// # Errors
    /// The model's or the writer's, also why the pack was given up while weights were used, which is said
    /// once. Nothing then stands under the pack's name that did not before, and the model serves on.
    pub fn finish(&self) -> Result<Option<Summary>, StoreError> {
        let From::Model(model) = &self.from else { return Ok(None) };
        if let Some(error) = model.stopped().take() {
            return Err(error.into());
        }
        for (i, (item, form)) in self.items.iter().zip(&self.forms).enumerate() {
            if model.add_missing(i, Expected { item, form })? {
                self.count(Made::Packed);
            }
        }
        let writer = model.writer().take();
        writer.map(|writer| model.complete(writer)).transpose()
    }

    /// As [`Store::finish`], but only when every weight has been used; `None` when not. For the end of
    /// a pass.
    ///
    /// # Errors
    /// As [`Store::finish`].
    pub fn finish_if_whole(&self) -> Result<Option<Summary>, StoreError> {
        let From::Model(model) = &self.from else { return Ok(None) };
        if let Some(error) = model.stopped().take() {
            return Err(error.into());
        }
        let writer = model.writer().take_if(|writer| writer.len() >= self.items.len());
        writer.map(|writer| model.complete(writer)).transpose()
    }

    fn expected(&self, item: usize) -> Result<Expected<'_>, StoreError> {
        let known = self.items.len();
        let both = self.items.get(item).zip(self.forms.get(item));
        let (item, form) = both.ok_or(StoreError::Unknown { item, known })?;
        Ok(Expected { item, form })
    }

    /// The pack's entry, if it is what it should be.
    fn in_pack(&self, expected: Expected<'_>) -> Result<(&Pack<PackFile>, &Entry), StoreError> {
        let Expected { item, form } = expected;
        match self.pack().and_then(|p| Some((p, p.get(&item.name)?))) {
            Some((pack, e)) if expected.is(e) => Ok((pack, e)),
            other => {
                let found = other.map_or(String::new(), |(_, e)| {
                    format!(", but a {} one of K={} N={}", e.dtype, e.k, e.n)
                });
                let (name, k, n) = (item.name.clone(), item.k, item.n);
                Err(StoreError::NotInPack { name, k, n, dtype: form.dtype, found })
            }
        }
    }
}

impl Expected<'_> {
    /// Whether `entry` is what it should be.
    fn is(&self, entry: &Entry) -> bool {
        let Item { k, n, layout, .. } = self.item;
        entry.dtype == self.form.dtype && (entry.k, entry.n, entry.layout()) == (*k, *n, *layout)
    }

    /// The channels among the columns from `column` on, as many as `layout` has: the last part has columns
    /// that are only padding.
    fn channels(&self, column: u32, layout: &Layout) -> Range<u32> {
        column..column.saturating_add(layout.n()).min(self.item.n)
    }
}

/// Items and forms of weights that are made in a tier.
fn made<'a>(
    tier: Tier,
    shapes: impl Iterator<Item = (&'a Box<str>, u32, u32)>,
) -> Result<(Vec<Item>, Vec<Form>), StoreError> {
    let dtype = tier.dtype();
    // Compact forms are made in one way for packs and in another for the device.
    if !dtype.is_plain() {
        return Err(StoreError::Build(tier));
    }
    let items = shapes.map(|(name, k, n)| {
        let layout = tier.layout(k, n);
        let layout = layout.map_err(|source| StoreError::Tier { name: name.clone(), source })?;
        Ok(Item::new(name.clone(), layout).of_shape(k, n))
    });
    let items = items.collect::<Result<Vec<_>, StoreError>>()?;
    let forms = items.iter().map(|_| Form::new(dtype)).collect();
    Ok((items, forms))
}

/// Fills `out` with columns of a weight that can only be made whole.
fn cut(
    whole: &Layout,
    column: u32,
    part: &Layout,
    out: &mut [u8],
    make: impl FnOnce(&mut [u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut all = vec![0; whole.bytes() as usize];
    make(&mut all)?;
    copy_columns(whole, column, part, out, |at, to| {
        to.copy_from_slice(&all[at as usize..at as usize + to.len()]);
        Ok(())
    })
}

impl Form {
    fn new(dtype: Dtype) -> Form {
        Form { dtype, scales: OnceLock::new(), checked: AtomicBool::new(false) }
    }
}
