//! Packs: loaded where they are, made on the way where they are asked for.

use std::path::Path;

use ork_cache::kept::{Kept, Way};
use ork_cache::{Store, chain};
use ork_weights::model::Model as ModelFile;

use crate::ggml::Level;
use crate::say::Say;
use crate::settings::Settings;

/// The weights of a model: those of its pack if there is one, else quantised as they are used, and added to
/// a pack if one is asked for.
///
/// # Errors
/// Why they are left to the CPU.
pub(crate) fn store(
    model: ModelFile,
    path: &Path,
    settings: &Settings,
    say: &Say,
) -> Result<Store, String> {
    let kept = Kept::new(None, &settings.environment);
    let evict = settings.environment.evict_source;
    let opened = kept.open(model, settings.tier).map_err(|error| chain(&error))?;
    let (store, shown) = (opened.store, path.display());
    let line = match &opened.way {
        Way::Made => format!(
            "{shown}: weights are quantised anew in every run; with ORK_PERSIST=1, {} MiB are kept and the next \
             run loads them",
            store.bytes() >> 20
        ),
        Way::Building(pack) => {
            format!("{shown}: weights are kept for the next run: {}", pack.display())
        }
        Way::Loaded { pack, names_model, touched } => {
            let mut line = format!("{shown}: weights are those of {}", pack.display());
            if !names_model {
                line += ", which does not say of which model it is";
            }
            if *touched {
                line += ", made of it when its file had another time";
            }
            let mut dtypes = (0..store.items().len()).filter_map(|item| store.dtype(item));
            if let Some(dtype) = dtypes.find(|dtype| *dtype != settings.tier.dtype()) {
                line += &format!("; it holds {dtype}, and they are used as they are");
            }
            line
        }
    };
    say.line(Level::Info, &line);
    Ok(store.evict_source(evict))
}

/// Completes a pack that has every weight.
pub(crate) fn finish_if_whole(store: &Store, say: &Say) {
    said(store.finish_if_whole(), say);
}

/// Completes a pack, with the weights that were never used.
pub(crate) fn finish(store: &Store, say: &Say) {
    if store.is_building() && store.given().packed > 0 {
        said(store.finish(), say);
    }
}

fn said(done: Result<Option<ork_weights::pack::Summary>, ork_cache::StoreError>, say: &Say) {
    match done {
        Ok(None) => {}
        Ok(Some(summary)) => {
            let line = format!("{} is complete: the next run loads it", summary.path.display());
            say.line(Level::Info, &line);
        }
        Err(error) => {
            say.line(Level::Warn, &format!("the pack could not be completed: {}", chain(&error)));
        }
    }
}
