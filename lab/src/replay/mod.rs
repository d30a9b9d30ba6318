//! Recordings of the vendor driver, held against the driver model.
//!
//! A recording is a list of scenarios; each begins on a freshly booted machine and lists calls with
//! the driver's answers. [`folder`] replays all files of a folder. Every step of a recorded thread
//! runs on a thread of its own, at the recorded time on the virtual clock, so that calls overlap as
//! they did. The jobs' programs are executed by [`StandIn`], as they were when recorded.
//!
//! Of each answer every field is compared: errno, fields that changed, fields that must not have.
//! Not compared are fields that only the recording's hardware determined, times, and the driver's
//! internals. Where a scenario says that outcomes were a race, the order of waiters, the lateness of
//! timers and the length of a reset are varied, and the scenario counts as equal when one of the
//! variations gives exactly the recorded answers.
//!
//! ```no_run
//! let results = lab::replay::folder("tests/golden/driver-traces".as_ref())?;
//! println!("{results}");
//! assert!(results.all_equal());
//! # Ok::<(), lab::replay::ReplayError>(())
//! ```

mod call;
pub mod command;
mod compare;
mod descriptors;
mod fatal;
mod format;
mod layout;
mod observe;
mod open_files;
mod results;
mod rocket;
mod run;
mod script;
mod seen;
mod standin;
mod tasks;
mod version;
mod vma;

pub use fatal::Fatal;
pub use format::{Scenario, Setup, Step, Trace};
pub use results::{Difference, NotCompared, Replayed, Results, Totals};
pub use standin::StandIn;

use std::path::{Path, PathBuf};

/// Variations tried of a scenario whose outcomes were a race.
const VARIATIONS: u64 = 96;

/// Why a recording could not be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is no recording.
    #[error("{path} is no recording of the driver: {source}")]
    Format {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A folder holds no recordings.
    #[error("{path} holds no recording: expected files named *.json")]
    Empty {
        /// Which.
        path: PathBuf,
    },
}

/// Reads one file of recordings.
///
/// # Errors
/// When it cannot be read or is none.
pub fn read(path: &Path) -> Result<Trace, ReplayError> {
    let text = std::fs::read(path)
        .map_err(|source| ReplayError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text)
        .map_err(|source| ReplayError::Format { path: path.to_owned(), source })
}

/// Replays every `*.json` of a folder, in order of name.
///
/// # Errors
/// When the folder or a file cannot be read, or a file is no recording. What differs is a result,
/// no error.
pub fn folder(path: &Path) -> Result<Results, ReplayError> {
    let unread = |source| ReplayError::Read { path: path.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unread)? {
        let file = entry.map_err(unread)?.path();
        if file.extension().is_some_and(|extension| extension == "json") {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(ReplayError::Empty { path: path.to_owned() });
    }
    files.sort();
    let mut results = Results::default();
    for file in files {
        let trace = read(&file)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for scenario in &trace.scenarios {
            let mut replayed = replay(&trace, scenario);
            replayed.file.clone_from(&name);
            results.scenarios.push(replayed);
        }
    }
    Ok(results)
}

/// Replays a scenario of a file.
pub fn replay(trace: &Trace, scenario: &Scenario) -> Replayed {
    if trace.driver == rknpu_sys::rocket::DRIVER_NAME {
        return rocket::once(scenario);
    }
    let first = run::once(trace, scenario, None);
    if first.is_equal() || scenario.racy.is_none() {
        return first;
    }
    let mut best = first;
    for seed in 0..VARIATIONS {
        let next = run::once(trace, scenario, Some(seed));
        if next.unequal < best.unequal || next.is_equal() {
            best = next;
        }
        if best.is_equal() {
            break;
        }
    }
    best
}
