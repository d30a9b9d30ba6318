//! `ork demo`: a model through a budget smaller than itself.

use std::fs::File;
use std::io::BufWriter;
use std::time::Duration;

use ork_weights::model::OpenOptions;
use ork_weights::model::synth::Shape;
use serde::Serialize;

use crate::cli::DemoArgs;
use crate::demo::{Outcome, Scenario, Way, run as run_scenario};
use crate::error::{Error, Result};
use crate::input::open_model;
use crate::output::{Report, Table, recovered, seconds};
use crate::size::Size;
use crate::temporary::{TemporaryFolder, check_room, remove_left_behind};

/// What the names of this command's folders begin with.
const PREFIX: &str = "ork-demo-";

#[derive(Serialize)]
struct View<'a> {
    model: String,
    device: String,
    identical: bool,
    reload_speedup_first_pass: f64,
    reload_speedup_loads: f64,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// Runs the command.
///
/// # Errors
/// [`Error::Check`] when the ways give different results.
pub(super) fn run(args: &DemoArgs, report: Report) -> Result<()> {
    let shape = shape(args.size)?;
    if let Some(path) = &args.model {
        // Before a device is looked for: it is what a user is likelier to have mistyped.
        open_model(path, &OpenOptions::default())?;
    }
    let device = args.device.device.open(report)?;
    for left in remove_left_behind(PREFIX) {
        report.note(format!(
            "note: {} was left behind by a run that was killed: removed",
            left.display()
        ));
    }
    let folder = TemporaryFolder::new(PREFIX)?;
    let model = match &args.model {
        Some(path) => path.clone(),
        None => {
            // Int8 codes, of which the pack is made, take a little more than the mixed model.
            let both = shape.bytes().saturating_mul(17) / 8;
            check_room(folder.path(), "a model of that size with its pack", both)?;
            let path = folder.path().join("demo.gguf");
            report.note(format!(
                "making a model of {} layers, {}, in {}",
                shape.layers,
                Size(shape.bytes()),
                path.display()
            ));
            let file = File::create(&path).map_err(Error::file("create", &path))?;
            shape.write(BufWriter::new(file)).map_err(Error::file("write", &path))?;
            path
        }
    };
    let scenario = Scenario {
        model: model.clone(),
        folder: folder.path().to_owned(),
        budget: args.budget.map(|size| size.0),
        rows: args.rows,
        passes: args.passes,
    };
    let outcome = run_scenario(&device, &scenario)?;
    for note in &outcome.notes {
        report.note(format!("note: {note}"));
    }
    let speedup = |time: fn(&crate::demo::Row) -> Duration| {
        let of = |way| outcome.row(way).map_or(0.0, |row| time(row).as_secs_f64());
        of(Way::Convert) / of(Way::Reload).max(f64::MIN_POSITIVE)
    };
    let view = View {
        model: args
            .model
            .as_ref()
            .map_or("a made-up model".into(), |path| path.display().to_string()),
        device: device.node().to_owned(),
        identical: outcome.is_identical(),
        reload_speedup_first_pass: speedup(|row| row.first_pass),
        reload_speedup_loads: speedup(|row| row.first_loads),
        outcome: &outcome,
    };
    report.print(&view, || text(&view))?;
    match view.identical {
        true => Ok(()),
        false => {
            Err(Error::Check("the digests differ: not every way gives the CPU's results".into()))
        }
    }
}

/// The model to make: about `size` bytes, which the smallest possible must not exceed.
fn shape(size: Size) -> Result<Shape> {
    let least = Shape::sized(0).bytes();
    if size.0 < least {
        return Err(Error::Usage(format!(
            "no model of {size} can be made: the smallest has {} ({least} bytes)",
            Size(least)
        )));
    }
    Ok(Shape::sized(size.0))
}

fn label(way: Way) -> &'static str {
    match way {
        Way::Resident => "resident",
        Way::Convert => "convert: packed on the way",
        Way::Reload => "reload from the pack",
        Way::Prefetch => "reload, loaded ahead",
        Way::TwoModels => "beside a second model",
    }
}

fn text(view: &View<'_>) -> String {
    let outcome = view.outcome;
    let mut table = Table::new([
        "", "wall", "1st pass", "loaded", "packed", "evicted", "weights", "mapped", "RSS", "digest",
    ]);
    for row in &outcome.rows {
        table.row([
            label(row.way).into(),
            seconds(row.wall),
            seconds(row.first_pass),
            row.loaded.to_string(),
            row.packed.to_string(),
            row.evicted.to_string(),
            Size(row.peak_weights).to_string(),
            Size(row.peak_mapped).to_string(),
            row.peak_rss.map_or("-".into(), |bytes| Size(bytes).to_string()),
            format!("{:016x}", row.digest),
        ]);
    }
    let mut text = format!(
        "{} weights of {}, {} packed, through {} on {}\n{table}\n",
        outcome.weights,
        view.model,
        Size(outcome.packed_bytes),
        Size(outcome.budget),
        view.device
    );
    if let Some(reason) = &outcome.resident_left_out {
        text.push_str(&format!("resident: left out, {reason}\n"));
    }
    text.push_str("weights, mapped and RSS are peaks; mapped is weights and scratch memory, and RSS holds a simulated device's\n");
    text.push_str(&match view.identical {
        true if outcome.cpu_digest.is_some() => {
            format!("All {} digests are identical, and the CPU's.\n", outcome.rows.len())
        }
        true => format!(
            "All {} digests are identical, and {} single results are the CPU's.\n",
            outcome.rows.len(),
            outcome.verified()
        ),
        false => "The digests DIFFER.\n".into(),
    });
    text.push_str(&recovered(outcome.recovered_jobs));
    text.push_str(&format!(
        "From the pack, weights are ready {:.1}× as fast as from the model, and the first pass takes 1/{:.1} of the time.\n",
        view.reload_speedup_loads, view.reload_speedup_first_pass
    ));
    text
}
