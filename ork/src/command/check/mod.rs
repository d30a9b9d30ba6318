//! `ork check`: what holds on this board.
//!
//! Whatever touches the NPU is a step in a process of its own, so that one which never ends, or takes the process
//! with it, is a finding. The report is on the disk before each step begins.

mod child;
mod compare;
mod experiments;
mod facts;
mod looks;
mod measures;
mod products;
mod profile;
mod record;
mod steps;

use serde_json::Value;

use crate::cli::CheckArgs;
use crate::error::{Error, Result};
use crate::output::{Report, Table};
use crate::target::check_report;

use record::{Record, Verdict};
use steps::{Danger, Kind, Step};

/// The step after which the NPU is known to be well.
const WELL: &str = "product-int8";

/// Runs the command.
///
/// # Errors
/// [`Error::Check`] for wrong products, or an NPU that is no longer well; [`Error::Usage`] for a device that cannot
/// be used; [`Error::File`].
pub(super) fn run(args: &CheckArgs, report: Report) -> Result<()> {
    if let Some([one, other]) = args.compare.as_deref() {
        return compare::run(one, other, report);
    }
    if let Some(name) = &args.step {
        return steps::run(name, args, report);
    }
    check_report(&args.report)?;
    let mut record = Record::new(&args.device.device);
    record.looks = looks::all(&args.device.device, report);
    record.write(&args.report)?;
    let mut ended = Ok(());
    for step in steps::all() {
        if step.danger == Danger::MayWedge && !args.risky {
            record.skip(step);
            continue;
        }
        record.begins(step, &args.report)?;
        let verdict = child::run(step, args)?;
        report.note(format!("{}: {verdict}", step.name));
        record.ends(step, verdict, &args.report)?;
        ended = still_well(step, &mut record, args);
        if ended.is_err() {
            break;
        }
    }
    if let Err(stopped) = &ended {
        record.stopped = Some(stopped.to_string());
    }
    record.ended = true;
    record.write(&args.report)?;
    if !args.no_profile && ended.is_ok() {
        record.profile = profile::keep(&record)?;
    }
    if report.json {
        report.print(&record, String::new)?;
    } else {
        report.print(&Value::Null, || text(&record))?;
        report.note(format!("note: the report is {}", args.report.display()));
    }
    ended?;
    let wrong = record.steps.iter().filter(|done| done.kind == Kind::Product);
    match wrong.filter(|done| !done.verdict.holds()).count() {
        0 => Ok(()),
        _ => Err(Error::Check("products are wrong on this NPU, see the report".into())),
    }
}

/// After an experiment a known product says whether the NPU is still well.
fn still_well(step: &Step, record: &mut Record, args: &CheckArgs) -> Result<()> {
    let gone = |what: String| Err(Error::Check(format!("{what} after {}", step.name)));
    match record.steps.last().map(|done| &done.verdict) {
        // It can't be ended, so it holds the device.
        Some(Verdict::Stuck) => return gone("the NPU is stuck".into()),
        Some(Verdict::NoDevice { reason }) => return gone(format!("no NPU: {reason}")),
        _ => {}
    }
    let Some(known) = steps::find(WELL).filter(|_| step.kind == Kind::Fact) else { return Ok(()) };
    let verdict = child::run(known, args)?;
    match verdict.holds() {
        true => Ok(()),
        false => gone(format!("the NPU is no longer well: {verdict}")),
    }
}

fn text(record: &Record) -> String {
    let mut looks = Table::new(["looked at", "found", "wanted"]);
    for look in &record.looks {
        looks.row([look.what.clone(), look.found.clone(), look.wanted.clone()]);
    }
    let mut text = format!("{}\n{looks}\n", record.headline());
    for done in &record.steps {
        text.push_str(&format!("{:<20} {}\n", done.name, done.verdict));
        if !done.verdict.holds() && done.kind == Kind::Fact {
            text.push_str(&format!("{:20}   believed: {}\n", "", done.says));
            text.push_str(&format!("{:20}   until then: {}\n", "", done.careful));
        }
    }
    for todo in record.looks.iter().filter_map(|look| look.todo.as_ref()) {
        text.push_str(&format!("to do: {todo}\n"));
    }
    if let Some(stopped) = &record.stopped {
        text.push_str(&format!("stopped: {stopped}\n"));
    }
    text
}
