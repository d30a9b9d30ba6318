//! `ork upgrade`: a pack of any version in the present form, without the model.

use ork_weights::pack::{PackError, WriterOptions, upgrade};
use serde::Serialize;

use crate::cli::UpgradeArgs;
use crate::error::{Error, Result};
use crate::input::open_pack;
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
    let progress = Progress::bytes("upgrade", pack.size());
    let summary = upgrade(&pack, output, options, |entry| progress.add(entry.stored_bytes()))
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
