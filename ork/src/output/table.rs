//! Tables on standard output.

use std::fmt;
use std::time::Duration;

use comfy_table::{CellAlignment, presets};

/// A table whose first column is text and whose others are mostly figures.
pub struct Table {
    table: comfy_table::Table,
}

impl Table {
    /// An empty table under these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(headings);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Table { table }
    }

    /// One more row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.table.add_row(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

/// A time as people read it: three digits and a unit.
pub fn seconds(time: Duration) -> String {
    let s = time.as_secs_f64();
    match s {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}
