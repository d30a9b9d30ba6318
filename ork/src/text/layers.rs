//! Linear layers on a device: which weights they have, where these lie, and what is said of it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use ork_cache::Store;
use ork_cache::config::Environment;
use ork_linear::{Layers, Setup};
use ork_llm::{LinearError, Linears, Product, Weight};
use ork_weights::model::OpenOptions;
use ork_weights::pack::{PackWriter, WriterOptions};
use ork_weights::quantise::Tier;

use crate::cli::RunArgs;
use crate::error::{Error, Result};
use crate::input::{check_model, open_model, open_pack};
use crate::output::Report;
use crate::size::Size;

/// Rows of a prompt's blocks: what scratch is kept for.
const ROWS: u32 = 128;

/// The layers of one model. What happens to them is said on standard error.
pub(crate) struct Watched {
    layers: Layers,
    /// The weights while they become a pack.
    building: Option<Arc<Store>>,
    report: Report,
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
            let reason = crate::error::chain(&*failure);
            self.report.note(format!(
                "warning: the NPU has failed, the CPU goes on with the same results: {reason}"
            ));
        }
        // Complete as soon as every weight has been used once.
        if let Some(store) = &self.building
            && store.finish_if_whole()?.is_some()
        {
            self.building = None;
        }
        Ok(())
    }

    fn expect(&mut self, groups: &[&[Weight]]) {
        Linears::expect(&mut self.layers, groups);
    }
}

/// Puts models on a device within one budget; the first ones are the first to stay in memory. A pack is
/// kept of the last one.
pub(crate) fn open(
    args: &RunArgs,
    tier: Tier,
    models: &[&Path],
    device: &rknpu::Device,
    report: Report,
) -> Result<Vec<Watched>> {
    let environment = Environment::read().map_err(|e| Error::Usage(e.to_string()))?;
    let pack = args.persist.as_deref().or(environment.pack.as_deref());
    let mut stores = Vec::new();
    for (index, path) in models.iter().enumerate() {
        let pack = pack.filter(|_| index + 1 == models.len());
        stores.push(Arc::new(store(path, tier, pack, report)?));
    }
    let mut setup = Setup::new(args.budget.map_or(environment.budget, |size| size.0));
    setup.cache.rows = ROWS;
    let experts = |store: &Arc<Store>| store.items().iter().any(|item| item.expert.is_some());
    setup.cache.routed = stores.iter().any(experts);
    let opened = ork_linear::open(device, &stores, &setup).map_err(failed(models))?;
    for note in opened.iter().take(1).flat_map(|layers| layers.notes()) {
        report.note(format!("note: {note}"));
    }
    let watched = opened.into_iter().zip(stores).map(|(layers, store)| {
        let placed = layers.placed();
        let streamed: HashSet<_> = placed.streamed.iter().collect();
        let streamed = placed.parts.iter().filter(|part| streamed.contains(&part.weight));
        let streamed: u64 = streamed.map(|part| part.layout.bytes()).sum();
        let resident = store.bytes().saturating_sub(streamed);
        report.note(format!(
            "note: {} of weights resident, {} streamed in every pass",
            Size(resident),
            Size(streamed)
        ));
        let building = store.is_building().then_some(store);
        Watched { layers, building, report }
    });
    Ok(watched.collect())
}

/// A model's weights: those of its pack where it is there, otherwise quantised as they are needed, and
/// added to the pack if one is named.
fn store(path: &Path, tier: Tier, pack: Option<&Path>, report: Report) -> Result<Store> {
    let model = open_model(path, &OpenOptions { tied_head: true, ..OpenOptions::default() })?;
    let Some(target) = pack else {
        return Store::from_model(model, tier, None).map_err(Error::input(path));
    };
    if target.exists() {
        let pack = open_pack(target)?;
        check_model(&pack, target, &model, report)?;
        return Ok(Store::from_pack(pack));
    }
    let identity = model.identity(false).map_err(Error::input(path))?;
    let options =
        WriterOptions { expected: Some(model.weights().len() as u32), ..WriterOptions::default() };
    let writer = PackWriter::create(target, &identity, options).map_err(Error::input(target))?;
    Store::from_model(model, tier, Some(writer)).map_err(Error::input(path))
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
