//! `ork demo`: a model through a budget smaller than itself, in several ways that must not differ.

mod products;
mod story;

use crate::cli::DemoArgs;
use crate::error::Result;
use crate::output::Report;
use crate::temporary::{TemporaryFolder, remove_left_behind};
use crate::text::check_text_model;

/// What the names of this command's folders begin with.
const PREFIX: &str = "ork-demo-";

/// Runs the command.
///
/// # Errors
/// [`Error::Check`](crate::error::Error::Check) when the ways give different results.
pub(super) fn run(args: &DemoArgs, report: Report) -> Result<()> {
    let shape = args.size.map(products::shape).transpose()?;
    if let Some(path) = &args.model {
        // Before a device is looked for: it is what a user is likelier to have mistyped.
        check_text_model(path)?;
    }
    let device = args.device.device.open(report)?;
    for left in remove_left_behind(PREFIX) {
        report.note(format!(
            "note: {} was left behind by a run that was killed: removed",
            left.display()
        ));
    }
    let folder = TemporaryFolder::new(PREFIX)?;
    match shape {
        Some(shape) => products::run(args, shape, folder.path(), &device, report),
        None => story::run(args, folder.path(), &device, report),
    }
}
