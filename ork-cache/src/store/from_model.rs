//! Weights made of a model when they are used, and the pack that may be made of them on the way.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ork_weights::model::{Model, Weight};
use ork_weights::pack::{Pack, PackError, PackFile, PackWriter, Summary, WeightHeader};
use ork_weights::quantise::{Recipe, Tier};
use rknpu_sys::layout::Layout;

use super::copy_columns::copy_columns;
use super::{Expected, StoreError};

/// A model whose weights are quantised at every load.
#[derive(Debug)]
pub(super) struct FromModel {
    pub(super) model: Model,
    tier: Tier,
    /// The pack that is being made.
    writer: Mutex<Option<PackWriter>>,
    /// Why it is made no more, until somebody is told.
    stopped: Mutex<Option<PackError>>,
    /// The pack that was made, once it is whole.
    pub(super) made: OnceLock<Pack<PackFile>>,
    pub(super) evict: bool,
}

/// Where the bytes of a load came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// From the model's values.
    Packed,
    /// From what had been written to the pack.
    Loaded,
}

impl FromModel {
    pub(super) fn new(model: Model, tier: Tier, writer: Option<PackWriter>) -> FromModel {
        let (writer, stopped, made) = (Mutex::new(writer), Mutex::default(), OnceLock::new());
        FromModel { model, tier, writer, stopped, made, evict: false }
    }

    /// A whole weight, which the pack gets, too, if it is being made and does not have it.
    pub(super) fn quantise(
        &self,
        item: usize,
        expected: Expected<'_>,
        out: &mut [u8],
    ) -> Result<Made, StoreError> {
        let weight = self.weight(item)?;
        let mut scales = vec![0f32; self.tier.scales(weight.k, weight.n)];
        self.model.quantise(weight, &self.tier, out, &mut scales)?;
        self.has_been_read(weight)?;
        let added = match self.writer().as_mut() {
            Some(writer) if !writer.contains(&weight.name) => {
                let dtype = expected.form.dtype;
                writer.add(&weight.name, weight.k, weight.n, dtype, out, &scales).map(drop)
            }
            _ => Ok(()),
        };
        added.unwrap_or_else(|error| self.stop(error));
        let _ = expected.form.scales.set(scales.into());
        Ok(Made::Packed)
    }

    /// Some columns of a weight that may be larger than all slots together, without holding the
    /// others. A pack that is being made gets all of it with the first of its columns, and is read
    /// for the others: the model is read once.
    pub(super) fn quantise_columns(
        &self,
        item: usize,
        expected: Expected<'_>,
        column: u32,
        layout: &Layout,
        out: &mut [u8],
    ) -> Result<Made, StoreError> {
        let (weight, whole) = (self.weight(item)?, &expected.item.layout);
        let made = if self.add_or_stop(item, expected)? { Made::Packed } else { Made::Loaded };
        if let Some(writer) = self.writer().as_ref()
            && let Some(entry) = writer.get(&weight.name).filter(|entry| expected.is(entry))
        {
            let start = entry.blob_range().start;
            copy_columns(whole, column, layout, out, |at, to| writer.read_at(start + at, to))?;
            return Ok(made);
        }
        let mut scales = vec![0f32; self.tier.scales(layout.k(), layout.n())];
        let recipe = Recipe::new(self.tier);
        self.model.quantise_channels(
            weight,
            expected.channels(column, layout),
            &recipe,
            out,
            &mut scales,
        )?;
        self.has_been_read(weight)?;
        Ok(Made::Packed)
    }

    /// Makes the scales of a weight known, and the weight itself for a pack that is being made.
    pub(super) fn scales(&self, item: usize, expected: Expected<'_>) -> Result<(), StoreError> {
        if !self.add_or_stop(item, expected)? {
            let scales = self.in_pieces(self.weight(item)?, |_, _| Ok(()))?;
            let _ = expected.form.scales.set(scales.into());
        }
        Ok(())
    }

    /// Adds a weight to the pack that is being made, a piece at a time; `false` when none is, or
    /// it has the weight.
    pub(super) fn add_missing(
        &self,
        item: usize,
        expected: Expected<'_>,
    ) -> Result<bool, StoreError> {
        let weight = self.weight(item)?;
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

    /// As [`FromModel::add_missing`]; a pack that takes no more is given up, and the model serves on.
    fn add_or_stop(&self, item: usize, expected: Expected<'_>) -> Result<bool, StoreError> {
        match self.add_missing(item, expected) {
            Err(StoreError::Pack(error)) => {
                self.stop(error);
                Ok(false)
            }
            done => done,
        }
    }

    /// Makes no pack any more: its disk is full, for one. What it has stays for another run.
    fn stop(&self, error: PackError) {
        *self.writer() = None;
        self.stopped().get_or_insert(error);
    }

    /// Why the pack is made no more.
    pub(super) fn stopped(&self) -> MutexGuard<'_, Option<PackError>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pack that is being made. After an error the writer is as before the call, so a panic in
    /// between loses nothing.
    pub(super) fn writer(&self) -> MutexGuard<'_, Option<PackWriter>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finishes the pack and reads from it from now on.
    pub(super) fn complete(&self, writer: PackWriter) -> Result<Summary, StoreError> {
        // Weights of a file that became another one on the way are of neither.
        if let Err(changed) = self.model.check() {
            writer.abandon()?;
            return Err(changed.into());
        }
        let summary = writer.finish()?;
        let pack = Pack::open(&summary.path)?;
        if self.model.direct_reads().is_some() {
            // A file system that can't has the pack read through the cache.
            let _ = pack.source().read_directly();
        }
        // Nobody else sets it: there is one writer, and it was taken under its lock.
        let _ = self.made.set(pack);
        Ok(summary)
    }

    /// The weight of an item: these were made of the model's, in order.
    fn weight(&self, item: usize) -> Result<&Weight, StoreError> {
        let known = self.model.weights().len();
        self.model.weights().get(item).ok_or(StoreError::Unknown { item, known })
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
}
