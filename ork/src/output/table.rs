//! Tables on standard output.

use std::fmt;
use std::time::Duration;

use serde::Serializer;

use super::plain;
use comfy_table::{CellAlignment, presets};

/// A table whose first column is text and whose others are mostly figures.
///
/// ```
/// let mut table = ork::output::Table::new(["weight", "bytes"]);
/// table.row(["blk.0".to_owned(), "4096".to_owned()]);
/// assert!(table.to_string().contains("4096"));
/// ```
pub struct Table {
    table: comfy_table::Table,
}

impl Table {
    /// An empty table under these headings.
    ///
    /// ```
    /// let table = ork::output::Table::new(["weight", "bytes"]);
    /// assert!(table.to_string().contains("weight"));
    /// ```
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(headings);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Table { table }
    }

    /// One more row.
    ///
    /// ```
    /// let mut table = ork::output::Table::new(["weight"]);
    /// table.row(["blk.0".to_owned()]);
    /// ```
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.table.add_row(cells.map(|cell| plain(&cell)));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

/// A part of a whole in per cent, to a tenth; of nothing it is none.
///
/// ```
/// assert_eq!(ork::output::share(1.0, 3.0), "33.3 %");
/// assert_eq!(ork::output::share(1.0, 0.0), "0.0 %");
/// ```
pub fn share(part: f64, whole: f64) -> String {
    let percent = if whole > 0.0 { part * 100.0 / whole } else { 0.0 };
    format!("{percent:.1} %")
}

/// So many things.
///
/// ```
/// assert_eq!(ork::output::counted(1, "weight"), "1 weight");
/// assert_eq!(ork::output::counted(3, "weight"), "3 weights");
/// ```
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A line about jobs that failed at first and ran after a reset; nothing when there were none.
///
/// ```
/// assert_eq!(ork::output::recovered(0), "");
/// assert_eq!(ork::output::recovered(1), "1 job failed at first, and ran after a reset of the NPU\n");
/// ```
pub fn recovered(jobs: u64) -> String {
    match jobs {
        0 => String::new(),
        jobs => {
            let jobs = counted(usize::try_from(jobs).unwrap_or(usize::MAX), "job");
            format!("{jobs} failed at first, and ran after a reset of the NPU\n")
        }
    }
}

/// A time as every `--json` has it: seconds, in a field whose name ends with that word.
///
/// # Errors
/// The serializer's.
pub fn as_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// A time as people read it: three digits and a unit.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(ork::output::seconds(Duration::from_micros(167)), "167.0 µs");
/// ```
pub fn seconds(time: Duration) -> String {
    let s = time.as_secs_f64();
    match s {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}
