//! The linear layers of a model: on the NPU where that pays, on the CPU elsewhere.

mod npu;
mod open;
mod routed;

use std::collections::HashMap;
use std::sync::Arc;

use ork_cache::plan::Item;
use ork_cache::{Note, Part, Placed, Prefetcher, Reading, Store, WeightId};
use rknpu_sys::layout::Precision;

pub use open::{NPU_ROWS, Setup, open};

use crate::cpu::{Cpu, Output};
use crate::error::{Error, Result, length};
use crate::rows::{QuantisedRows, Transform, pad};
use crate::weight::TiledWeight;
use npu::{Entry, List, Npu, Run};
use routed::Routed;

/// One of the products of a list, which share their input.
///
/// ```no_run
/// # fn f(layers: &mut ork_linear::Layers, input: &[f32]) -> ork_linear::Result<()> {
/// use ork_linear::Product;
///
/// let (mut gate, mut up) = (vec![0.0; 1536], vec![0.0; 1536]);
/// layers.multiply(1, input, [
///     Product { weight: 4, out: &mut gate },
///     Product { weight: 5, out: &mut up },
/// ])
/// # }
/// ```
#[derive(Debug)]
pub struct Product<'a> {
    /// Number of the weight in its model.
    pub weight: usize,
    /// Where its rows go, row-major `[M][N]`.
    pub out: &'a mut [f32],
}

/// The linear layers of one model on a device, see [`open`].
#[derive(Debug)]
pub struct Layers {
    npu: Arc<Npu>,
    store: Arc<Store>,
    placed: Placed,
    /// By name.
    numbers: HashMap<Box<str>, usize>,
    transforms: Vec<Transform>,
    /// From how many rows on the NPU computes.
    npu_rows: usize,
    notes: Arc<[Note]>,
    reading: Arc<Reading>,
    prefetcher: Option<Prefetcher>,
    routed: Option<Routed>,
    rows: QuantisedRows,
    /// Rows with zeros behind them, for half floats.
    padded: Vec<f32>,
    cpu: Cpu,
    /// A weight that the device could not hold any more.
    tiles: Vec<u8>,
}

impl Layers {
    /// Number of the weight of this name: that of the tensor, for an expert `name#index`.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }

    /// Inputs and outputs of a weight.
    pub fn shape(&self, weight: usize) -> Option<(u32, u32)> {
        self.store.items().get(weight).map(|item| (item.k, item.n))
    }

    /// Where the weights come from.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Where they are.
    pub fn placed(&self) -> &Placed {
        &self.placed
    }

    /// The cache that they are in, with the other models of the device.
    pub fn cache(&self) -> &ork_cache::Cache {
        self.npu.cache()
    }

    /// What is not as asked for.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// How the weights of all models that were opened together are read.
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Why the NPU computes no more: the CPU has gone on, with the same results. Said once for all
    /// models of a device.
    pub fn npu_failure(&self) -> Option<Arc<Error>> {
        self.npu.failure()
    }

    /// A router has chosen experts for `rows` rows: one weight of each. What is missing of them is loaded
    /// ahead; for a single token also what the next layer's router may choose. What is used in the same order
    /// in every pass needs no word.
    pub fn route(&mut self, rows: usize, weights: impl IntoIterator<Item = usize>) {
        if let Some(routed) = &mut self.routed {
            routed.route(rows, weights.into_iter());
        }
    }

    /// Says which weights the next calls will name, in order: they are loaded ahead. For some of the weights
    /// of experts; whole ones are [routed](Layers::route).
    pub fn expect(&self, weights: impl IntoIterator<Item = usize>) {
        let Some(prefetcher) = &self.prefetcher else { return };
        let items = weights.into_iter().filter_map(|weight| self.placed.items.get(weight).cloned());
        let parts = items.flat_map(|parts| self.placed.parts.get(parts).unwrap_or_default());
        prefetcher.queue(&parts.map(|part| part.weight).collect::<Vec<WeightId>>());
    }

    /// Which of some groups of weights to use next, experts that were [routed](Layers::route) or
    /// [expected](Layers::expect): the first whose weights are all loaded, else the first.
    pub fn next_ready<W: IntoIterator<Item = usize>>(
        &self,
        groups: impl IntoIterator<Item = W>,
    ) -> usize {
        let parts = |weight: usize| self.placed.parts.get(self.placed.items.get(weight)?.clone());
        let is_ready = |weight| {
            let mut parts = parts(weight).unwrap_or_default().iter();
            parts.all(|part| self.cache().is_ready(part.weight))
        };
        groups.into_iter().position(|group| group.into_iter().all(is_ready)).unwrap_or(0)
    }

    /// Multiplies `m` rows of `input`, row-major `[M][K]`, by the weight of each product.
    ///
    /// Products that are ready and share a domain are one submit on each core, as far as a chain may hold
    /// them. The results do not depend on the other rows, on the other products, on where weights are, nor
    /// on who computes. The CPU's part runs on the threads of the current rayon pool.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Length`]; [`Error::Store`] when a weight cannot be read. When the NPU
    /// fails, that is no error: see [`Layers::npu_failure`].
    pub fn multiply<'a>(
        &mut self,
        m: usize,
        input: &[f32],
        products: impl IntoIterator<Item = Product<'a>>,
    ) -> Result<()> {
        let npu = Arc::clone(&self.npu);
        let (mut run, mut list) = (Run::new(&npu), List::default());
        let mut fresh = false;
        for Product { weight, out } in products {
            let known = self.store.items().len();
            let items = self.store.items();
            let Item { k, n, layout, .. } =
                *items.get(weight).ok_or(Error::Unknown { weight, known })?;
            let (inputs, n) = (k as usize, n as usize);
            length("rows", input.len(), m.saturating_mul(inputs))?;
            length("results", out.len(), m.saturating_mul(n))?;
            let int8 = layout.precision() == Precision::Int8;
            let transform = self.transforms[weight];
            if int8 && (!fresh || self.rows.are_for(layout.k(), transform).is_err()) {
                self.finish(&mut list, input, &mut run)?;
                self.rows.quantise(input, k, transform)?;
                run.rows_changed();
                fresh = true;
            }
            if !int8 && k != layout.k() {
                self.padded.clear();
                pad(input, inputs, layout.k() as usize, &mut self.padded);
            }
            if int8 && m >= self.npu_rows && self.placed.together(weight).count() == 1 {
                let parts = self.placed.together(weight).next().unwrap_or_default();
                let Some(entry) = Entry::new(parts, out, n) else { continue };
                if let Some(entry) = list.push(entry) {
                    self.finish(&mut list, input, &mut run)?;
                    list.push(entry);
                }
                continue;
            }
            // Parts of one weight write the same rows, and are wide: one after the other, but for those that
            // lie side by side.
            self.finish(&mut list, input, &mut run)?;
            for index in 0..self.placed.together(weight).count() {
                let parts = self.placed.together(weight).nth(index).unwrap_or_default();
                let mut alone = List::default();
                if let Some(entry) = Entry::new(parts, out, n) {
                    alone.push(entry);
                }
                self.finish(&mut alone, input, &mut run)?;
            }
        }
        self.finish(&mut list, input, &mut run)
    }

    /// Computes what is on a list, and empties it.
    fn finish(&mut self, list: &mut List<'_>, input: &[f32], run: &mut Run<'_>) -> Result<()> {
        if list.is_int8() && self.rows.m() >= self.npu_rows && run.is_working() {
            match run.multiply(list, &self.store, &self.rows) {
                Ok(true) => {
                    *list = List::default();
                    return Ok(());
                }
                // Too many planes for the little memory that there is.
                Ok(false) => {}
                // Neither can the CPU read it, and will say so; the NPU is sound.
                Err(error) if error.is_of_store() => {}
                Err(error) => {
                    self.npu.fail(error);
                    (self.prefetcher, self.routed) = (None, None);
                }
            }
        }
        for mut entry in list.drain() {
            // While a domain is visited, weights of others would wait for the visit to end.
            run.leave(entry.domain());
            for index in 0..entry.parts().count() {
                let Some(&part) = entry.parts().nth(index) else { break };
                let n = entry.channels(&part);
                self.on_cpu(&part, n, entry.out(&part), input)?;
            }
        }
        Ok(())
    }

    /// Multiplies by the first `n` channels of one part of a weight on the CPU.
    fn on_cpu(&mut self, part: &Part, n: usize, out: Output<'_>, input: &[f32]) -> Result<()> {
        let pinned = self.npu.cache().acquire(part.weight);
        let tiles = match &pinned {
            Ok(pinned) => pinned.tiles()?,
            Err(_) => {
                // The device takes no more weights; memory does.
                self.tiles.resize(part.layout.bytes() as usize, 0);
                self.store.load(part.item, part.column, &part.layout, &mut self.tiles)?;
                &self.tiles
            }
        };
        let transform = self.transforms[part.item];
        let scales = scales(&self.store, part)?;
        let weight = TiledWeight::new(part.layout, tiles, scales, transform)?.cut_to(n);
        let inputs = self.store.items().get(part.item).map(|item| item.k);
        let input = if inputs == Some(part.layout.k()) { input } else { &self.padded };
        match part.layout.precision() {
            Precision::Fp16 => self.cpu.multiply_halves(&weight, input, out),
            _ => self.cpu.multiply(&weight, &self.rows, out),
        }
    }
}

/// The scales of a part's channels.
fn scales<'a>(store: &'a Store, part: &Part) -> Result<&'a [f32]> {
    let scales = store.scales(part.item)?;
    if part.layout.precision() == Precision::Fp16 {
        return Ok(&[]);
    }
    let (start, n) = (part.column as usize, part.layout.n() as usize);
    let short = Error::Length { what: "scales", got: scales.len(), want: start + n };
    scales.get(start..start + n).ok_or(short)
}
