//! `ork sim replay`: recordings of the real driver against the simulated one.

use rknpu_sim::replay::{self, Totals};

use crate::cli::{ReplayArgs, SimCommand};
use crate::error::{Error, Result};
use crate::output::Report;

/// Runs the command.
///
/// # Errors
/// [`Error::Check`] when a field of a step is not as recorded; [`Error::Input`] for a folder without
/// recordings.
pub(super) fn run(command: &SimCommand, report: Report) -> Result<()> {
    let SimCommand::Replay(ReplayArgs { folder }) = command;
    let results = replay::folder(folder).map_err(Error::input(folder))?;
    report.print(&results, || results.to_string())?;
    let Totals { steps, unequal, .. } = results.totals();
    if results.all_equal() {
        return Ok(());
    }
    let deaths = results.scenarios.iter().filter_map(|scenario| scenario.fatal.as_ref());
    let silent = deaths.filter(|fatal| fatal.is_silent()).count();
    Err(Error::Check(format!(
        "{unequal} of {steps} steps are not as recorded; {silent} deaths of the kernel passed without a \
         hazard"
    )))
}
