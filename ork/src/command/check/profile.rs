//! What a report means for other programs.

use ork_cache::profile::{ChainRules, Profile};
use rknpu::chains::Chains;

use super::measures::{CROSSOVER, DISK, SUBMIT};
use super::record::{Record, Verdict};
use crate::error::{Error, Result};

/// Keeps the profile that follows from a report, for this user; `None` where there is no folder for settings.
pub(super) fn keep(record: &Record) -> Result<Option<Profile>> {
    let Some(driver) = record.look("driver").and_then(|found| found.split(' ').next()) else {
        return Ok(None);
    };
    let simulated = record.look("node") == Some("simulated");
    let profile = of(record, driver, simulated);
    let Some(path) = Profile::path(simulated, std::env::var_os) else { return Ok(None) };
    profile.save(&path).map_err(Error::file("write", &path))?;
    Ok(Some(profile))
}

/// What was tried decides; for all else the careful defaults hold.
fn of(record: &Record, driver: &str, simulated: bool) -> Profile {
    let careful = Profile::careful(driver);
    let rules = |careful: ChainRules, precision: &str| {
        let tried = |what: &str| match record.verdict(&format!("chain-{what}-{precision}")) {
            None | Some(Verdict::Skipped | Verdict::Running | Verdict::NoDevice { .. }) => None,
            Some(verdict) => Some(verdict.holds()),
        };
        let weights = match tried("weights") {
            None => careful.weights,
            Some(true) => careful.weights.max(8),
            Some(false) => Chains::NONE.weights,
        };
        ChainRules {
            weights,
            buffers: weights > 1 && tried("buffers").unwrap_or(careful.buffers),
            n_slices: tried("n-slices").unwrap_or(careful.n_slices),
        }
    };
    // Times of a simulator are those of its CPU.
    let figure = |step, name| record.figure(step, name).filter(|_| !simulated);
    Profile {
        int8: rules(careful.int8, "int8"),
        fp16: rules(careful.fp16, "fp16"),
        int4: rules(careful.int4, "int4"),
        npu_rows: figure("rows", CROSSOVER).map(|rows| rows as u32),
        submit_seconds: figure("submit", SUBMIT),
        disk_bytes_per_second: figure("disk", DISK),
        ..careful
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::check::record::Outcome;
    use crate::command::check::steps;

    fn record(found: &[(&str, bool)]) -> Record {
        let mut record = Record::new(&"sim".parse().unwrap());
        let folder = tempfile::tempdir().unwrap();
        for (name, holds) in found {
            let outcome = Outcome { holds: *holds, ..Outcome::default() };
            let step = steps::find(name).unwrap();
            let path = folder.path().join("report.json");
            record.begins(step, &path).unwrap();
            record.ends(step, Verdict::Found { outcome }, &path).unwrap();
        }
        record
    }

    #[test]
    fn what_was_not_tried_is_as_careful_as_before() {
        let careful = Profile::careful("rknpu");
        assert_eq!(of(&record(&[]), "rknpu", false), careful);
        let wrong = of(&record(&[("chain-weights-int8", false)]), "rknpu", false);
        assert_eq!((wrong.int8.weights, wrong.int8.buffers), (1, false));
        assert_eq!(wrong.fp16, careful.fp16);
        let apart = record(&[("chain-weights-int8", true), ("chain-buffers-int8", false)]);
        let apart = of(&apart, "rknpu", false);
        assert_eq!((apart.int8.weights, apart.int8.buffers), (8, false));
        let seen = of(&record(&[("chain-weights-fp16", true)]), "rknpu", false);
        assert_eq!((seen.fp16.weights, seen.fp16.buffers), (8, false));
        let slices = of(&record(&[("chain-n-slices-int8", true)]), "rknpu", false);
        assert!(slices.int8.n_slices);
    }

    #[test]
    fn a_simulator_s_times_are_no_board_s() {
        let mut record = record(&[("rows", true)]);
        let Verdict::Found { outcome } = &mut record.steps[0].verdict else { panic!() };
        outcome.figures.insert(CROSSOVER.to_owned(), 48.0);
        assert_eq!(of(&record, "rknpu", false).npu_rows, Some(48));
        assert_eq!(of(&record, "rknpu", true).npu_rows, None);
    }
}
