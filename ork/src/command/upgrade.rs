//! `ork upgrade`: a pack of any version in the present form, without the model.

use std::path::Path;

use ork_weights::model::OpenOptions;
use ork_weights::pack::{Identity, Pack, PackError, PackFile, WriterOptions, upgrade_of};
use serde::Serialize;

use crate::cli::UpgradeArgs;
use crate::error::{Error, Result};
use crate::input::{open_model, open_pack};
use crate::output::{Progress, Report};
use crate::size::Size;
use crate::target::check_pack_output;

#[derive(Serialize)]
struct View {
    output: String,
    from_version: u32,
    to_version: u32,
    weights: u32,
    bytes: u64,
}

/// Runs the command. The old pack stays as it is until the new one is whole and checked.
///
/// # Errors
/// [`Error::Input`] when the pack cannot be read or the new one not be written.
pub(super) fn run(args: &UpgradeArgs, report: Report) -> Result<()> {
    let pack = open_pack(&args.pack)?;
    let output = args.output.as_ref().unwrap_or(&args.pack);
    if args.output.is_some() {
        check_pack_output(output, &args.pack)?;
    }
    let options = WriterOptions {
        version: args.pack_version,
        // Without -o the user has asked for just this.
        replace: args.replace || args.output.is_none(),
        ..WriterOptions::default()
    };
    let identity =
        args.model.as_deref().map(|path| identity(&pack, &args.pack, path)).transpose()?;
    let progress = Progress::bytes("upgrade", pack.size());
    let summary = upgrade_of(&pack, identity.as_ref(), output, options, |entry| {
        progress.add(entry.stored_bytes());
    })
    .map_err(|error: PackError| Error::input(output)(error))?;
    drop(progress);
    let view = View {
        output: summary.path.display().to_string(),
        from_version: pack.version(),
        to_version: args.pack_version,
        weights: summary.weights,
        bytes: summary.bytes,
    };
    report.print(&view, || {
        format!(
            "{}: version {} to {}, {} weights, {}",
            view.output,
            view.from_version,
            view.to_version,
            view.weights,
            Size(view.bytes)
        )
    })
}

/// The identity of the model that `pack` is said to be of, if names and shapes do not say otherwise.
fn identity(pack: &Pack<PackFile>, pack_path: &Path, path: &Path) -> Result<Identity> {
    let model = open_model(path, &OpenOptions::default())?;
    for entry in pack.entries() {
        let what = match model.weight(&entry.name) {
            Some(weight) if (weight.k, weight.n) == (entry.k, entry.n) => continue,
            Some(weight) => format!(
                "weight {:?} is K={} N={} in it, K={} N={} in the pack",
                entry.name, weight.k, weight.n, entry.k, entry.n
            ),
            None => format!("it has no weight {:?}, the pack has", entry.name),
        };
        return Err(Error::Usage(format!(
            "{} is not the model of {}: {what}",
            path.display(),
            pack_path.display()
        )));
    }
    let full = pack.identity().is_some_and(|identity| identity.full_hash.is_some());
    model.identity(full).map_err(Error::input(path))
}
