//! `ork verify`: every byte of a pack against its checksums.

use std::time::Instant;

use ork_cache::chain;
use ork_weights::model::OpenOptions;
use serde::Serialize;

use crate::cli::VerifyArgs;
use crate::error::{Error, Result};
use crate::input::{check_model, open_model, open_pack};
use crate::output::{Progress, Report, seconds};
use crate::size::Size;

#[derive(Serialize)]
struct View {
    weights: usize,
    checksummed: usize,
    hashed_bytes: u64,
    seconds: f64,
    megabytes_per_second: f64,
    problems: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// [`Error::Check`] when something is wrong with the pack; [`Error::Input`] when it cannot even be
/// opened, or was made from another model.
pub(super) fn run(args: &VerifyArgs, report: Report) -> Result<()> {
    let start = Instant::now();
    let pack = open_pack(&args.pack)?;
    if let Some(path) = &args.model {
        let model = open_model(path, &OpenOptions::default())?;
        check_model(&pack, &args.pack, &model, report)?;
    }
    let progress = Progress::bytes("verify", pack.size());
    let verified = ork_weights::pack::verify(&pack, &|bytes| progress.add(bytes));
    drop(progress);
    let took = start.elapsed();
    let view = View {
        weights: verified.weights,
        checksummed: verified.checksummed,
        hashed_bytes: verified.hashed,
        seconds: took.as_secs_f64(),
        megabytes_per_second: verified.hashed as f64 / 1e6 / took.as_secs_f64().max(1e-9),
        problems: verified.problems.iter().map(|problem| chain(problem)).collect(),
    };
    report.print(&view, || {
        let mut text = format!(
            "{} weights, {} with checksums: {} in {}, {:.0} MB/s\n",
            view.weights,
            view.checksummed,
            Size(view.hashed_bytes),
            seconds(took),
            view.megabytes_per_second
        );
        for problem in &view.problems {
            text.push_str(&format!("wrong: {problem}\n"));
        }
        text
    })?;
    if view.checksummed < view.weights {
        report.note(format!(
            "note: {} weights have no checksum, so only their shape and scales were checked; `ork upgrade {}` adds checksums",
            view.weights - view.checksummed,
            args.pack.display()
        ));
    }
    match view.problems.len() {
        0 => Ok(()),
        count => Err(Error::Check(format!(
            "{} of {} weights in {} are wrong: convert the model again",
            count,
            view.weights,
            args.pack.display()
        ))),
    }
}
