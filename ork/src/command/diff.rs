//! `ork diff`: two packs against each other.

use std::collections::BTreeSet;

use ork_weights::pack::{Entry, Pack, PackError, PackFile};
use serde::Serialize;

use crate::cli::DiffArgs;
use crate::error::{Error, Result};
use crate::input::open_pack;
use crate::output::{Progress, Report, Table};

#[derive(Serialize)]
struct View<'a> {
    same: usize,
    differing: Vec<Difference<'a>>,
}

#[derive(Serialize)]
struct Difference<'a> {
    name: &'a str,
    what: String,
    codes_differing: Option<u64>,
    largest_code_step: Option<u8>,
    largest_scale_ratio: Option<f64>,
}

/// Runs the command.
///
/// # Errors
/// [`Error::Check`] when the packs differ; [`Error::Input`] when one cannot be read.
pub(super) fn run(args: &DiffArgs, report: Report) -> Result<()> {
    let (a, b) = (open_pack(&args.a)?, open_pack(&args.b)?);
    let names: BTreeSet<&str> =
        a.entries().iter().chain(b.entries()).map(|entry| &*entry.name).collect();
    let progress = Progress::bytes("diff", a.size());
    let mut view = View { same: 0, differing: Vec::new() };
    for name in names {
        let only =
            |path: &std::path::Path| Difference::of(name, format!("only in {}", path.display()));
        let found = match (a.get(name), b.get(name)) {
            (Some(ours), Some(theirs)) => {
                progress.add(ours.stored_bytes());
                compare((&a, ours), (&b, theirs)).map_err(Error::input(&args.a))?
            }
            (Some(_), None) => Some(only(&args.a)),
            _ => Some(only(&args.b)),
        };
        match found {
            Some(difference) => view.differing.push(difference),
            None => view.same += 1,
        }
    }
    drop(progress);
    report.print(&view, || text(&view))?;
    match view.differing.len() {
        0 => Ok(()),
        count => Err(Error::Check(format!("{count} weights differ"))),
    }
}

impl<'a> Difference<'a> {
    fn of(name: &'a str, what: String) -> Self {
        Difference {
            name,
            what,
            codes_differing: None,
            largest_code_step: None,
            largest_scale_ratio: None,
        }
    }
}

type Side<'a> = (&'a Pack<PackFile>, &'a Entry);

fn compare<'a>(
    (a, ours): Side<'a>,
    (b, theirs): Side<'_>,
) -> Result<Option<Difference<'a>>, PackError> {
    if (ours.k, ours.n) != (theirs.k, theirs.n) {
        let what = format!("K×N is {}×{} and {}×{}", ours.k, ours.n, theirs.k, theirs.n);
        return Ok(Some(Difference::of(&ours.name, what)));
    }
    if ours.dtype != theirs.dtype {
        let what = format!("storage is {} and {}", ours.dtype, theirs.dtype);
        return Ok(Some(Difference::of(&ours.name, what)));
    }
    let steps = a.codes(ours)?.into_iter().zip(b.codes(theirs)?).map(|(x, y)| x.abs_diff(y));
    let (codes, step) = steps
        .fold((0u64, 0u8), |(count, most), step| (count + u64::from(step != 0), most.max(step)));
    let (mine, other) = (a.scales(ours)?, b.scales(theirs)?);
    let ratio = mine.iter().zip(&other).map(|(x, y)| ratio(*x, *y)).fold(1.0, f64::max);
    let grouping = mine.len() != other.len();
    if codes == 0 && ratio == 1.0 && !grouping {
        return Ok(None);
    }
    let what = if grouping {
        format!("{} and {} scales", mine.len(), other.len())
    } else {
        match (codes, ratio > 1.0) {
            (0, _) => "scales".into(),
            (_, false) => "codes".into(),
            _ => "codes and scales".into(),
        }
    };
    Ok(Some(Difference {
        codes_differing: Some(codes),
        largest_code_step: Some(step),
        largest_scale_ratio: Some(ratio),
        ..Difference::of(&ours.name, what)
    }))
}

/// How far apart two scales are, 1 when they are equal.
fn ratio(x: f32, y: f32) -> f64 {
    let (low, high) = (f64::from(x.min(y)), f64::from(x.max(y)));
    if low == high { 1.0 } else { high / low.max(f64::MIN_POSITIVE) }
}

fn text(view: &View<'_>) -> String {
    let mut table = Table::new(["weight", "differs in", "codes", "largest step", "scales apart"]);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    for d in &view.differing {
        table.row([
            d.name.to_owned(),
            d.what.clone(),
            or_dash(d.codes_differing.map(|c| c.to_string())),
            or_dash(d.largest_code_step.map(|s| s.to_string())),
            or_dash(d.largest_scale_ratio.map(|r| format!("{r:.4}×"))),
        ]);
    }
    let summary = format!("{} weights are the same, {} differ", view.same, view.differing.len());
    if view.differing.is_empty() { summary } else { format!("{table}\n{summary}") }
}
