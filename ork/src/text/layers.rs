//! Linear layers on a device: which weights they have, where these lie, and what is said of it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use ork_cache::environment::Environment;
use ork_cache::kept::{Kept, Way};
use ork_cache::{Access, Cache, Store};
use ork_linear::{Depth, Layers, Setup};
use ork_llm::{LinearError, Linears, Product, Weight};
use ork_weights::model::OpenOptions;
use ork_weights::pack::Dtype;
use ork_weights::quantise::Tier;
use rknpu::Precision;

use crate::error::{Error, Result};
use crate::input::{open_kept, open_model};
use crate::output::{Report, counted};
use crate::size::Size;

use super::check::compare;

/// Rows of a prompt's blocks: what scratch is kept for.
const ROWS: u32 = 128;

/// In which form weights are computed with, in how much memory, and where their pack is.
pub(crate) struct Weights {
    pub(crate) tier: Tier,
    pub(crate) depth: Depth,
    /// From how many rows on the NPU computes; `usize::MAX` leaves all to the CPU.
    pub(crate) npu_rows: usize,
    /// Cores of the NPU at most.
    pub(crate) cores: usize,
    /// Device memory; by default the environment's.
    pub(crate) budget: Option<Size>,
    /// How they are read; by default the environment's.
    pub(crate) access: Option<Access>,
    pub(crate) kept: Kept,
}

/// No bound to [`Weights::cores`].
pub(crate) const ALL_CORES: usize = usize::MAX;

/// Models on a device.
pub(crate) struct Opened {
    layers: Vec<Watched>,
    /// What is not as asked for, and what lies where.
    pub(crate) notes: Vec<String>,
}

impl Opened {
    /// The layers of the last model, and those of one before it, if there is one.
    pub(crate) fn into_draft_and_model(mut self) -> Result<(Option<Watched>, Watched)> {
        let none = || Error::Usage("no model was opened".into());
        let model = self.layers.pop().ok_or_else(none)?;
        Ok((self.layers.pop(), model))
    }
}

/// The layers of one model. What happens to them is said on standard error.
pub(crate) struct Watched {
    layers: Layers,
    /// The weights while they become a pack.
    building: Option<Arc<Store>>,
    /// Whether the NPU has failed.
    on_cpu: bool,
    /// Whether the kernel has refused a direct read.
    refused: bool,
    report: Report,
}

impl Watched {
    /// Bytes of the weights in this form.
    pub(crate) fn bytes(&self) -> u64 {
        self.layers.store().bytes()
    }

    /// Where they are.
    pub(crate) fn cache(&self) -> &Cache {
        self.layers.cache()
    }

    /// Bytes of the weights that stay in device memory, and of those that every pass loads.
    pub(crate) fn placed_bytes(&self) -> (u64, u64) {
        let streamed = self.layers.placed().streamed_bytes();
        (self.bytes().saturating_sub(streamed), streamed)
    }

    /// Compares a product of each form of weights with the CPU's: of each type, whole or cut. Gives the
    /// number of forms, unless the NPU has failed.
    ///
    /// # Errors
    /// [`Error::Check`] for results that differ.
    fn check(&mut self, path: &Path) -> Result<Option<usize>> {
        let mut forms: Vec<(Dtype, bool)> = Vec::new();
        for (name, weight, form) in self.candidates() {
            if forms.contains(&form) {
                continue;
            }
            forms.push(form);
            let differs = compare(self, &name, weight).map_err(Error::input(path))?;
            if let Some(differs) = differs {
                return Err(Error::Check(differs.to_string()));
            }
        }
        Ok((!self.on_cpu && !forms.is_empty()).then_some(forms.len()))
    }

    /// What the NPU computes with; first what stays in memory, as it is loaded anyway.
    fn candidates(&self) -> Vec<(Box<str>, Weight, (Dtype, bool))> {
        let (store, placed) = (self.layers.store(), self.layers.placed());
        let streamed: HashSet<_> = placed.streamed.iter().collect();
        let mut found = Vec::new();
        for (index, item) in store.items().iter().enumerate() {
            let (Some(dtype), Some(range)) = (store.dtype(index), placed.items.get(index)) else {
                continue;
            };
            let Some(weight) = Linears::weight(&self.layers, &item.name) else { continue };
            let parts = placed.parts.get(range.clone()).unwrap_or_default();
            let streams = parts.iter().any(|part| streamed.contains(&part.weight));
            if item.layout.precision() == Precision::Int8 {
                found.push((streams, (item.name.clone(), weight, (dtype, parts.len() == 1))));
            }
        }
        found.sort_by_key(|(streams, _)| *streams);
        found.into_iter().map(|(_, candidate)| candidate).collect()
    }
}

impl Linears for Watched {
    fn weight(&self, name: &str) -> Option<Weight> {
        self.layers.weight(name)
    }

    fn multiply(
        &mut self,
        rows: usize,
        input: &[f32],
        products: &mut [Product<'_>],
    ) -> Result<(), LinearError> {
        Linears::multiply(&mut self.layers, rows, input, products)?;
        if let Some(failure) = self.layers.npu_failure() {
            self.on_cpu = true;
            let reason = ork_cache::chain(&*failure);
            self.report.note(format!(
                "warning: the NPU has failed, the CPU goes on with the same results: {reason}"
            ));
        }
        let reads = self.layers.store().direct_reads().filter(|_| !self.refused);
        if let Some(reason) = reads.and_then(|reads| reads.refusal()) {
            self.refused = true;
            self.report.note(format!(
                "note: direct reads are refused here, what they would have read comes through the page \
                 cache: {reason}"
            ));
        }
        // Complete as soon as every weight has been used once.
        let kept = self.building.as_ref().map(|store| store.finish_if_whole());
        match kept {
            Some(Ok(Some(_))) => self.building = None,
            Some(Err(error)) => {
                self.building = None;
                let reason = ork_cache::chain(&error);
                self.report.note(format!(
                    "warning: the weights are not kept for the next run, and this one goes on without: {reason}"
                ));
            }
            Some(Ok(None)) | None => {}
        }
        Ok(())
    }

    fn expect(&mut self, rows: usize, groups: &[&[Weight]]) {
        Linears::expect(&mut self.layers, rows, groups);
    }

    fn next(&mut self, waiting: &[&[Weight]]) -> usize {
        Linears::next(&mut self.layers, waiting)
    }
}

/// Puts models on a device within one budget; the first ones are the first to stay in memory. A pack is
/// kept of the last one.
///
/// # Errors
/// [`Error::Input`] for a file that cannot be used, [`Error::Usage`] for a budget that is too small,
/// [`Error::Check`] for an NPU that computes something else than the CPU.
pub(crate) fn open(
    weights: &Weights,
    models: &[&Path],
    device: &rknpu::Device,
    report: Report,
) -> Result<Opened> {
    let mut notes = Vec::new();
    let environment = Environment::read().map_err(|e| Error::Usage(e.to_string()))?;
    let mut stores = Vec::new();
    for (index, path) in models.iter().enumerate() {
        let last = index + 1 == models.len();
        let kept = if last { &weights.kept } else { &Kept::Nowhere };
        stores.push(Arc::new(store(path, weights.tier, kept, report, &mut notes)?));
    }
    let mut setup = Setup::new(weights.budget.map_or(environment.budget, |size| size.0));
    setup.depth = weights.depth;
    (setup.npu_rows, setup.cores) = (weights.npu_rows, weights.cores);
    setup.cache.rows = ROWS;
    setup.cache.access = weights.access.unwrap_or(environment.access);
    let experts = |store: &Arc<Store>| store.items().iter().any(|item| item.expert.is_some());
    setup.cache.routed = stores.iter().any(experts);
    let opened = ork_linear::open(device, &stores, &setup).map_err(failed(models))?;
    let of_device = opened.iter().take(1).flat_map(|layers| layers.notes());
    notes.extend(of_device.map(|note| format!("note: {note}")));
    // Through the page cache is as everything else is read: nothing to be told, unless it was to be otherwise.
    let reading = opened.first().map(Layers::reading);
    let reading = reading.filter(|reading| reading.direct || reading.refused.is_some());
    notes.extend(reading.map(|reading| format!("note: {reading}")));
    let watched = opened.into_iter().zip(stores).map(|(layers, store)| {
        let building = store.is_building().then_some(store);
        Watched { layers, building, on_cpu: false, refused: false, report }
    });
    let mut layers: Vec<Watched> = watched.collect();
    for (layers, path) in layers.iter_mut().zip(models) {
        let (resident, streamed) = layers.placed_bytes();
        notes.push(format!(
            "note: {} of weights resident, {} streamed in every pass",
            Size(resident),
            Size(streamed)
        ));
        if weights.npu_rows != usize::MAX
            && let Some(forms) = layers.check(path)?
        {
            let forms = counted(forms, "form");
            notes.push(format!(
                "note: the NPU gives what the CPU does: a product of each of {forms} of weights compared"
            ));
        }
    }
    Ok(Opened { layers, notes })
}

/// A model's weights: those of its pack where it is there, otherwise quantised as they are needed, and
/// added to the pack if one is named.
fn store(
    path: &Path,
    tier: Tier,
    kept: &Kept,
    report: Report,
    notes: &mut Vec<String>,
) -> Result<Store> {
    let model = open_model(path, &OpenOptions::default())?;
    let names: Vec<Box<str>> = model.weights().iter().map(|weight| weight.name.clone()).collect();
    let opened = open_kept(kept, model, path, tier, report)?;
    let store = opened.store;
    match opened.way {
        Way::Building(pack) => {
            notes.push(format!("note: the weights are kept for the next run: {}", pack.display()));
        }
        Way::Loaded { pack, .. } => {
            check_whole(&store, &pack, &names)?;
            let other = (0..store.items().len()).filter_map(|item| store.dtype(item));
            if let Some(dtype) = other.into_iter().find(|dtype| *dtype != tier.dtype())
                && !matches!(kept, Kept::In(_))
            {
                notes.push(format!(
                    "note: {} holds weights as {dtype}, and they are used as they are, not as {tier}",
                    pack.display()
                ));
            }
        }
        Way::Made => {}
    }
    Ok(store)
}

/// Refuses a pack that does not have every matrix of the model.
fn check_whole(store: &Store, pack: &Path, names: &[Box<str>]) -> Result<()> {
    let there: HashSet<&str> = store.items().iter().map(|item| &*item.name).collect();
    let missing: Vec<&str> =
        names.iter().map(|name| &**name).filter(|name| !there.contains(name)).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let reason = format!(
        "{} of {} are not in it, {first} among them; `ork convert` makes a pack of all",
        missing.len(),
        counted(names.len(), "weight")
    );
    Err(Error::input(pack)(reason))
}

fn failed(models: &[&Path]) -> impl FnOnce(ork_linear::Error) -> Error {
    let path = models.last().copied().unwrap_or(Path::new("")).to_owned();
    move |error| match error {
        ork_linear::Error::Cache(error) => error.into(),
        ork_linear::Error::Device(error) => Error::Device(error),
        ork_linear::Error::Store(error) => Error::Store(error),
        ork_linear::Error::Thread(error) => Error::Thread(error),
        other => Error::Input { path, source: other.into() },
    }
}

#[cfg(test)]
mod tests {
    use ork_weights::model::synth::Shape;
    use rknpu::Device;
    use rknpu::sim::{Fault, Machine};

    use super::*;

    /// Bits of 40 rows times every weight.
    fn bits(layers: &mut Watched) -> Vec<u32> {
        let mut bits = Vec::new();
        for (_, weight, _) in layers.candidates() {
            let input: Vec<f32> = (0..40 * weight.k).map(|i| (i % 61) as f32 - 30.0).collect();
            let mut out = vec![0.0f32; 40 * weight.n as usize];
            let product = Product { weight, out: &mut out };
            Linears::multiply(layers, 40, &input, &mut [product]).unwrap();
            bits.extend(out.iter().map(|value| value.to_bits()));
        }
        bits
    }

    #[test]
    fn an_npu_that_fails_in_the_middle_leaves_the_rest_to_the_cpu() {
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        Shape::tiny().write(file.as_file()).unwrap();
        let open = |machine: &Machine| {
            let device = Device::simulated_on(machine).unwrap();
            let weights = Weights {
                tier: Tier::default(),
                depth: Depth::Bits16,
                npu_rows: ork_linear::NPU_ROWS,
                cores: ALL_CORES,
                budget: Some(Size(64 << 20)),
                access: None,
                kept: Kept::Nowhere,
            };
            let opened = open(&weights, &[file.path()], &device, Report { json: false });
            (opened.unwrap().into_draft_and_model().unwrap().1, device)
        };
        let sound = Machine::new(Default::default());
        let (mut layers, _device) = open(&sound);
        let before = sound.report().jobs;
        assert!(before > 0, "a product is compared at the opening");
        let wanted = bits(&mut layers);
        assert!(!layers.on_cpu && sound.report().jobs > before + 3);

        for after in [0, 2] {
            let machine = Machine::new(Default::default());
            let (mut layers, _device) = open(&machine);
            machine.inject(Fault::Hang { core: None, after, times: 2 });
            assert!(bits(&mut layers) == wanted, "hang after {after}");
            assert!(layers.on_cpu, "hang after {after}");
            let jobs = machine.report().jobs;
            assert!(bits(&mut layers) == wanted && machine.report().jobs == jobs);
        }
    }
}
