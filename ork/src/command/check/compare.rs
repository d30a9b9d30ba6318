//! What differs between two reports.

use std::path::Path;

use serde::Serialize;

use super::record::Record;
use crate::error::Result;
use crate::output::{Report, Table};

#[derive(Serialize)]
struct Difference {
    what: String,
    one: String,
    other: String,
}

pub(super) fn run(one: &Path, other: &Path, report: Report) -> Result<()> {
    let differences = differences(&Record::read(one)?, &Record::read(other)?);
    report.print(&differences, || {
        if differences.is_empty() {
            return "both found the same".to_owned();
        }
        let (one, other) = (one.display().to_string(), other.display().to_string());
        let mut table = Table::new(["", &*one, &*other]);
        for found in &differences {
            table.row([found.what.clone(), found.one.clone(), found.other.clone()]);
        }
        table.to_string()
    })
}

/// What both looked at and found otherwise, and whether what is believed holds; figures differ always.
fn differences(one: &Record, other: &Record) -> Vec<Difference> {
    let none = || "-".to_owned();
    let mut all: Vec<(String, String, String)> = Vec::new();
    let looks = one.looks.iter().chain(&other.looks).map(|look| &look.what);
    for what in looks {
        let of = |record: &Record| record.look(what).map_or_else(none, str::to_owned);
        all.push((what.clone(), of(one), of(other)));
    }
    let steps = one.steps.iter().chain(&other.steps).map(|done| &done.name);
    for name in steps {
        let short = |record: &Record| match record.verdict(name) {
            Some(verdict) if verdict.holds() => "yes".to_owned(),
            Some(verdict) => verdict.to_string(),
            None => none(),
        };
        all.push((name.clone(), short(one), short(other)));
    }
    let mut seen = std::collections::HashSet::new();
    all.into_iter()
        .filter(|(what, one, other)| one != other && seen.insert(what.clone()))
        .map(|(what, one, other)| Difference { what, one, other })
        .collect()
}
