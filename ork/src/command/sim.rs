//! `ork sim replay`: recordings of the real driver against the simulated one.

use rknpu_sim::replay;

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
    match results.totals() {
        (_, 0) => Ok(()),
        (steps, unequal) => {
            Err(Error::Check(format!("{unequal} of {steps} steps are not as recorded")))
        }
    }
}
