//! `ork demo --size`: made-up weights times made-up activations, in several ways.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

use ork_weights::model::synth::Shape;
use serde::Serialize;

use crate::cli::DemoArgs;
use crate::demo::{Outcome, Scenario, Way, run as run_scenario};
use crate::error::{Error, Result};
use crate::output::{Report, Table, recovered, seconds};
use crate::size::Size;
use crate::temporary::check_room;

#[derive(Serialize)]
struct View<'a> {
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
pub(super) fn run(
    args: &DemoArgs,
    shape: Shape,
    folder: &Path,
    device: &rknpu::Device,
    report: Report,
) -> Result<()> {
    // Int8 codes, of which the pack is made, take a little more than the mixed model.
    let both = shape.bytes().saturating_mul(17) / 8;
    check_room(folder, "a model of that size with its pack", both)?;
    let model = folder.join("demo.gguf");
    report.note(format!(
        "making a model of {} layers, {}, in {}",
        shape.layers,
        Size(shape.bytes()),
        model.display()
    ));
    let file = File::create(&model).map_err(Error::file("create", &model))?;
    shape.write(BufWriter::new(file)).map_err(Error::file("write", &model))?;
    let scenario = Scenario {
        model,
        folder: folder.to_owned(),
        budget: args.budget.map(|size| size.0),
        rows: args.rows,
        passes: args.passes,
    };
    let outcome = run_scenario(device, &scenario)?;
    for note in &outcome.notes {
        report.note(format!("note: {note}"));
    }
    let speedup = |time: fn(&crate::demo::Row) -> Duration| {
        let of = |way| outcome.row(way).map_or(0.0, |row| time(row).as_secs_f64());
        of(Way::Convert) / of(Way::Reload).max(f64::MIN_POSITIVE)
    };
    let view = View {
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
pub(super) fn shape(size: Size) -> Result<Shape> {
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
        "{} made-up weights, {} packed, through {} on {}\n{table}\n",
        outcome.weights,
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
