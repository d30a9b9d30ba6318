//! Where the bytes of weights come from: a pack, a model that is quantised as it is used, or both.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use ork_weights::model::{Model, ModelError, Weight};
use ork_weights::pack::{
    Dtype, Entry, Pack, PackError, PackFile, PackWriter, Source, Summary, WeightHeader,
};
use ork_weights::quantise::{QuantiseError, Recipe, Tier};
use rknpu_sys::layout::Layout;
use rustix::fs::{Advice, fadvise};

use super::columns::copy_columns;
use crate::plan::Item;

/// Where weights come from.
///
/// Every load compares name, K, N and storage form with what was attached. When the pack does not
/// have the weight as it should be and there is a model, the weight is quantised again; without
/// a model it is an error. Wrong weights are never the answer.
#[derive(Debug)]
pub struct Store {
    items: Vec<Item>,
    /// Of each item.
    forms: Vec<Form>,
    pack: Option<Pack<PackFile>>,
    origin: Option<Origin>,
    drop_behind: bool,
    loaded: AtomicU64,
    packed: AtomicU64,
}

/// What an item is stored as.
#[derive(Debug)]
struct Form {
    dtype: Dtype,
    scales: OnceLock<Box<[f32]>>,
}

/// What a load needs to know about an item.
#[derive(Clone, Copy, Debug)]
struct Expected<'a> {
    item: &'a Item,
    form: &'a Form,
}

/// [`Pack::load_into`], or the one on all threads.
type LoadWhole = fn(&Pack<PackFile>, &Entry, &mut [u8]) -> Result<(), PackError>;

#[derive(Debug)]
struct Origin {
    model: Model,
    tier: Tier,
    /// The pack that is being built.
    writer: Mutex<Option<PackWriter>>,
    /// The pack that was built, once it is whole.
    built: OnceLock<Pack<PackFile>>,
    evict: bool,
}

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
    /// A pack can be built while its model runs only in the plain int8 form.
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
        let items = pack.entries().iter().map(|e| Item::new(e.name.clone(), e.layout())).collect();
        let forms = pack.entries().iter().map(|e| Form::new(e.dtype)).collect();
        Store { items, forms, pack: Some(pack), ..Store::empty() }
    }

    /// The weights of a model, quantised at every load.
    ///
    /// # Errors
    /// A weight whose shape does not suit the tier, or a tier that is no plain int8.
    pub fn from_model(model: Model, tier: Tier) -> Result<Store, StoreError> {
        Store::new(model, tier, None, None)
    }

    /// The weights of a model, each added to the pack that is being built when it is first loaded.
    /// [`Store::finish`] completes the pack, from which they are read afterwards.
    ///
    /// Weights stand in the pack in the order in which they were first loaded: load in order of use.
    ///
    /// # Errors
    /// As [`Store::from_model`].
    pub fn building(model: Model, tier: Tier, writer: PackWriter) -> Result<Store, StoreError> {
        Store::new(model, tier, None, Some(writer))
    }

    /// The weights of a model, read from `pack` where it has them as they should be and quantised
    /// where not; `writer` then gets them all.
    ///
    /// # Errors
    /// As [`Store::from_model`].
    pub fn repairing(
        pack: Pack<PackFile>,
        model: Model,
        tier: Tier,
        writer: Option<PackWriter>,
    ) -> Result<Store, StoreError> {
        Store::new(model, tier, Some(pack), writer)
    }

    fn new(
        model: Model,
        tier: Tier,
        pack: Option<Pack<PackFile>>,
        writer: Option<PackWriter>,
    ) -> Result<Store, StoreError> {
        let Some(dtype) = tier.dtype().filter(|d| *d == Dtype::Int8) else {
            return Err(StoreError::Build(tier));
        };
        let mut items = Vec::with_capacity(model.weights().len());
        for weight in model.weights() {
            let layout = tier.layout(weight.k, weight.n);
            let layout =
                layout.map_err(|source| StoreError::Tier { name: weight.name.clone(), source })?;
            items.push(Item::new(weight.name.clone(), layout));
        }
        let forms = items.iter().map(|_| Form::new(dtype)).collect();
        let (writer, built) = (Mutex::new(writer), OnceLock::new());
        let origin = Some(Origin { model, tier, writer, built, evict: false });
        Ok(Store { items, forms, pack, origin, ..Store::empty() })
    }

    fn empty() -> Store {
        Store {
            items: Vec::new(),
            forms: Vec::new(),
            pack: None,
            origin: None,
            drop_behind: false,
            loaded: AtomicU64::new(0),
            packed: AtomicU64::new(0),
        }
    }

    /// Drops pages of the model once a weight has been made of them (`ORK_EVICT_SRC`).
    pub fn evict_source(mut self, evict: bool) -> Store {
        if let Some(origin) = &mut self.origin {
            origin.evict = evict;
        }
        self
    }

    /// Drops the pack's pages from the page cache behind every load, so that it does not grow with
    /// the model. Worth it when the pack is larger than the memory that is left; otherwise later
    /// passes would read the disk in vain.
    pub fn drop_behind(mut self, drop: bool) -> Store {
        self.drop_behind = drop;
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

    /// Bytes of all weights on the device.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(Item::bytes).sum()
    }

    /// Weights given out so far.
    pub fn given(&self) -> Given {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Given { loaded: get(&self.loaded), packed: get(&self.packed) }
    }

    /// Writes the columns from `column` on, as many as `layout` has, of weight `item` into `out`,
    /// tiled as `layout` says. What the pack holds is read by the calling thread alone; a weight that
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
        self.load_by(Pack::load_into, item, column, layout, out)
    }

    /// As [`Store::load`], with whole weights read by all threads of the current rayon pool: for a
    /// load that somebody waits for.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub fn load_parallel(
        &self,
        item: usize,
        column: u32,
        layout: &Layout,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        self.load_by(Pack::load_into_parallel, item, column, layout, out)
    }

    fn load_by(
        &self,
        whole_weight: LoadWhole,
        item: usize,
        column: u32,
        layout: &Layout,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        let expected = self.expected(item)?;
        let Some(out) = out.get_mut(..layout.bytes() as usize) else {
            let (need, have) = (layout.bytes(), out.len() as u64);
            return Err(StoreError::Length { name: expected.item.name.clone(), need, have });
        };
        match self.in_pack(expected) {
            Ok((pack, entry)) => {
                let whole = &expected.item.layout;
                if layout == whole {
                    whole_weight(pack, entry, out)?;
                } else if entry.dtype.is_plain() {
                    pack.source().check()?;
                    let start = entry.blob_range().start;
                    copy_columns(whole, column, layout, out, |at, to| {
                        pack.source().read_at(start + at, to)
                    })?;
                } else {
                    // Compact forms are inflated as a whole.
                    cut(whole, column, layout, out, |all| Ok(whole_weight(pack, entry, all)?))?;
                }
                self.loaded.fetch_add(1, Ordering::Relaxed);
                if self.drop_behind {
                    advise(pack, entry, Advice::DontNeed);
                }
                Ok(())
            }
            Err(not_in_pack) => {
                let Some(origin) = &self.origin else { return Err(not_in_pack) };
                if *layout == expected.item.layout {
                    return self.quantise(origin, item, expected, out);
                }
                self.quantise_columns(origin, item, expected, column, layout, out)
            }
        }
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
        let scales = match self.in_pack(expected) {
            Ok((pack, entry)) => pack.scales(entry)?,
            Err(not_in_pack) => {
                let Some(origin) = &self.origin else { return Err(not_in_pack) };
                let weight = origin.weight(item)?;
                if !origin.add_missing(weight, expected)? {
                    let scales = origin.in_pieces(weight, |_, _| Ok(()))?;
                    let _ = expected.form.scales.set(scales.into());
                }
                self.packed.fetch_add(1, Ordering::Relaxed);
                return Ok(expected.form.scales.get().map_or(&[], |s| s));
            }
        };
        Ok(expected.form.scales.get_or_init(|| scales.into()))
    }

    /// Tells the system that a weight will be read soon.
    pub(super) fn will_need(&self, item: usize) {
        let Ok(expected) = self.expected(item) else { return };
        if let Ok((pack, entry)) = self.in_pack(expected) {
            advise(pack, entry, Advice::WillNeed);
        }
    }

    /// Whether a pack is being built: weights should then be loaded in order of use.
    pub fn is_building(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.writer().is_some())
    }

    /// Completes the pack that was being built: weights never used are quantised now. `None` when
    /// none was being built. From now on weights are read from it.
    ///
    /// # Errors
    /// The model's or the writer's; nothing then stands under the pack's name that did not before, and
    /// the model serves on.
    pub fn finish(&self) -> Result<Option<Summary>, StoreError> {
        let Some(origin) = &self.origin else { return Ok(None) };
        for (i, (item, form)) in self.items.iter().zip(&self.forms).enumerate() {
            if origin.add_missing(origin.weight(i)?, Expected { item, form })? {
                self.packed.fetch_add(1, Ordering::Relaxed);
            }
        }
        let writer = origin.writer().take();
        writer.map(|writer| origin.complete(writer)).transpose()
    }

    /// As [`Store::finish`], but only when every weight has been used; `None` when not. For the end of
    /// a pass.
    ///
    /// # Errors
    /// As [`Store::finish`].
    pub fn finish_if_whole(&self) -> Result<Option<Summary>, StoreError> {
        let Some(origin) = &self.origin else { return Ok(None) };
        let writer = origin.writer().take_if(|writer| writer.len() >= self.items.len());
        writer.map(|writer| origin.complete(writer)).transpose()
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
        let built = self.origin.as_ref().and_then(|origin| origin.built.get());
        let pack = built.or(self.pack.as_ref());
        match pack.and_then(|p| Some((p, p.get(&item.name)?))) {
            Some((pack, e)) if expected.is(e) => Ok((pack, e)),
            other => {
                let found = other.map_or(String::new(), |(_, e)| {
                    format!(", but a {} one of K={} N={}", e.dtype, e.k, e.n)
                });
                let (name, k, n) = (item.name.clone(), item.layout.k(), item.layout.n());
                Err(StoreError::NotInPack { name, k, n, dtype: form.dtype, found })
            }
        }
    }

    fn quantise(
        &self,
        origin: &Origin,
        item: usize,
        expected: Expected<'_>,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        let weight = origin.weight(item)?;
        let mut scales = vec![0f32; origin.tier.scales(weight.k, weight.n)];
        origin.model.quantise(weight, &origin.tier, out, &mut scales)?;
        origin.has_been_read(weight)?;
        if let Some(writer) = origin.writer().as_mut()
            && !writer.contains(&weight.name)
        {
            writer.add(&weight.name, weight.k, weight.n, expected.form.dtype, out, &scales)?;
        }
        let _ = expected.form.scales.set(scales.into());
        self.packed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes some columns of a weight that may be larger than all slots together, without holding
    /// the others. A pack that is being built gets all of it with the first of its columns, and is
    /// read for the others: the model is read once.
    fn quantise_columns(
        &self,
        origin: &Origin,
        item: usize,
        expected: Expected<'_>,
        column: u32,
        layout: &Layout,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        let (weight, whole) = (origin.weight(item)?, &expected.item.layout);
        let from = match origin.add_missing(weight, expected)? {
            true => &self.packed,
            false => &self.loaded,
        };
        if let Some(writer) = origin.writer().as_ref()
            && let Some(entry) = writer.get(&weight.name).filter(|entry| expected.is(entry))
        {
            let start = entry.blob_range().start;
            copy_columns(whole, column, layout, out, |at, to| writer.read_at(start + at, to))?;
            from.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let channels = column..column.saturating_add(layout.n());
        let mut scales = vec![0f32; origin.tier.scales(layout.k(), layout.n())];
        let recipe = Recipe::new(origin.tier);
        origin.model.quantise_channels(weight, channels, &recipe, out, &mut scales)?;
        origin.has_been_read(weight)?;
        self.packed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Expected<'_> {
    /// Whether `entry` is what it should be.
    fn is(&self, entry: &Entry) -> bool {
        entry.dtype == self.form.dtype && entry.layout() == self.item.layout
    }
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

/// Advice about a weight's bytes in the pack. It is only that: a file system that does not take it
/// loses speed, nothing else.
fn advise(pack: &Pack<PackFile>, entry: &Entry, advice: Advice) {
    let range = entry.blob_range();
    let len = std::num::NonZeroU64::new(range.end - range.start);
    let _ = fadvise(pack.source().file(), range.start, len, advice);
}

impl Form {
    fn new(dtype: Dtype) -> Form {
        Form { dtype, scales: OnceLock::new() }
    }
}

impl Origin {
    fn writer(&self) -> std::sync::MutexGuard<'_, Option<PackWriter>> {
        // After an error the writer is as before the call, so a panic in between loses nothing.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The weight of an item: these were made of the model's, in order.
    fn weight(&self, item: usize) -> Result<&Weight, StoreError> {
        let known = self.model.weights().len();
        self.model.weights().get(item).ok_or(StoreError::Unknown { item, known })
    }

    /// Adds a weight to the pack that is being built, a piece at a time; `false` when none is, or
    /// it has the weight.
    fn add_missing(&self, weight: &Weight, expected: Expected<'_>) -> Result<bool, StoreError> {
        let mut writer = self.writer();
        let missing = |writer: &&mut PackWriter| !writer.contains(&weight.name);
        let Some(writer) = writer.as_mut().filter(missing) else { return Ok(false) };
        let Weight { name, k, n, .. } = weight;
        let header = WeightHeader { name, k: *k, n: *n, dtype: expected.form.dtype };
        let mut out = writer.begin(header)?;
        let scales = self.in_pieces(weight, |at, tiles| Ok(out.write_at(at, tiles)?))?;
        out.finish(&scales, None)?;
        let _ = expected.form.scales.set(scales.into());
        Ok(true)
    }

    /// Quantises a weight a piece at a time: `take` gets each and its place; returns its scales.
    fn in_pieces(
        &self,
        weight: &Weight,
        take: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
    ) -> Result<Vec<f32>, StoreError> {
        let mut scales = vec![0f32; self.tier.scales(weight.k, weight.n)];
        self.model.quantise_in_pieces(weight, &Recipe::new(self.tier), &mut scales, take)?;
        self.has_been_read(weight)?;
        Ok(scales)
    }

    /// What was made of a weight counts only if the model's files are still what they were; its pages
    /// are no longer needed.
    fn has_been_read(&self, weight: &Weight) -> Result<(), StoreError> {
        self.model.check()?;
        if self.evict {
            self.model.evict(weight);
        }
        Ok(())
    }

    /// Finishes the pack and reads from it from now on.
    fn complete(&self, writer: PackWriter) -> Result<Summary, StoreError> {
        // Weights of a file that became another one on the way are of neither.
        if let Err(changed) = self.model.check() {
            writer.abandon()?;
            return Err(changed.into());
        }
        let summary = writer.finish()?;
        let pack = Pack::open(&summary.path)?;
        // Nobody else sets it: there is one writer, and it was taken under its lock.
        let _ = self.built.set(pack);
        Ok(summary)
    }
}
