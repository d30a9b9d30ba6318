//! One sample as bars and tables, for a terminal.

use std::fmt::Write as _;

use super::sample::{Sample, core_loads};
use crate::output::{Table, share};
use crate::size::Size;

/// The sample as text of several lines.
pub(super) fn picture(sample: &Sample) -> String {
    let mut text = String::new();
    let mut bar = |name: &str, load: f64| {
        let filled = (load.clamp(0.0, 100.0) / 2.5).round() as usize;
        let _ = writeln!(text, "{name:<8} {:<40} {load:>5.1} %", "█".repeat(filled));
    };
    for (core, load) in core_loads(sample).iter().enumerate() {
        bar(&format!("core {core}"), *load);
    }
    if let Some(load) = sample.loads.npu {
        bar("npu", load);
    }
    if let Some(load) = sample.loads.memory {
        bar("ddr", load);
    }
    for program in &sample.programs {
        let device = if program.simulated { ", simulated device" } else { "" };
        let _ = writeln!(
            text,
            "\n{} (process {}{device}): budget {}, {} hits, {} loads, {:.2} s stalled",
            program.title,
            program.pid,
            Size(program.budget),
            program.hits,
            program.loads,
            program.stall_seconds
        );
        let mut table = Table::new(["domain", "mapped", "of", "use"]);
        for domain in &program.domains {
            table.row([
                domain.index.to_string(),
                Size(domain.mapped).to_string(),
                Size(domain.capacity).to_string(),
                share(domain.mapped as f64, domain.capacity as f64),
            ]);
        }
        let _ = writeln!(text, "{table}");
    }
    text
}
