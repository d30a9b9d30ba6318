//! `lab replay FOLDER`.

use crate::replay::{Fatal, Totals, folder};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of recorded scenarios.
    pub folder: PathBuf,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Replays and prints what came of it. The exit code is 1 when a field of a step is not as recorded
/// or a death of the kernel passed without a hazard, 3 when the folder holds no recordings.
pub fn run(args: &Args) -> ExitCode {
    let results = match folder(&args.folder) {
        Ok(results) => results,
        Err(error) => {
            eprintln!("error: {}: {error}", args.folder.display());
            return ExitCode::from(3);
        }
    };
    let text = if args.json {
        serde_json::to_string_pretty(&results).unwrap_or_else(|error| error.to_string())
    } else {
        results.to_string()
    };
    // A reader that has seen enough has closed standard output.
    let _ = writeln!(std::io::stdout().lock(), "{}", text.trim_end());
    if results.all_equal() {
        return ExitCode::SUCCESS;
    }
    let Totals { steps, unequal, .. } = results.totals();
    let deaths = results.scenarios.iter().filter_map(|scenario| scenario.fatal.as_ref());
    let silent = deaths.filter(|fatal| Fatal::is_silent(fatal)).count();
    eprintln!(
        "error: {unequal} of {steps} steps are not as recorded; {silent} deaths of the kernel passed \
         without a hazard"
    );
    ExitCode::from(1)
}
