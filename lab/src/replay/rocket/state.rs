//! What the stand-ins counted: address spaces that are alive and their pages, starts, interrupts and resets.
//!
//! The recording's counters go on from scenario to scenario, and which core a job takes is a race: so what is
//! compared is what changed within a scenario, over all cores.

use super::Run;
use crate::replay::format::{Step, number};
use serde_json::Value;

/// Address spaces that belong to the idle cores.
const IDLE: u64 = 3;
/// A reset asserts two lines.
const LINES: u64 = 2;

/// Counters of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counters {
    starts: u64,
    irqs: u64,
    resets: u64,
}

/// The recorded and the simulated counters when they were last compared.
#[derive(Debug, Default)]
pub(super) struct Seen {
    last: Option<(Counters, Counters)>,
    /// Address spaces that earlier scenarios have lost.
    lost: Option<u64>,
}

impl Run<'_> {
    pub(super) fn state(&mut self, step: &Step) {
        let recorded = &step.internal_state;
        let report = self.machine.report();
        let all = |name: &str| -> u64 {
            let cores = recorded.get("cores").and_then(Value::as_array).into_iter().flatten();
            cores.filter_map(|core| core.get(name).and_then(number)).sum()
        };
        let theirs = Counters {
            starts: all("starts"),
            irqs: all("irqs"),
            resets: all("reset_asserts") / LINES,
        };
        let ours = Counters {
            starts: report.cores.iter().map(|core| core.starts).sum(),
            irqs: report.cores.iter().map(|core| core.interrupts).sum(),
            resets: report.cores.iter().map(|core| core.resets).sum(),
        };
        if let Some((their_last, our_last)) = self.seen.last.take() {
            for (name, recorded, simulated) in [
                ("starts", theirs.starts - their_last.starts, ours.starts - our_last.starts),
                ("irqs", theirs.irqs - their_last.irqs, ours.irqs - our_last.irqs),
                ("resets", theirs.resets - their_last.resets, ours.resets - our_last.resets),
            ] {
                if recorded != simulated {
                    self.differ(name, recorded, simulated);
                }
            }
        }
        self.seen.last = Some((theirs, ours));
        let running = all("running") > 0;
        if running != report.cores.iter().any(|core| core.busy) {
            self.differ("running", running, !running);
        }
        let alive = recorded.get("domains_alive").and_then(number).unwrap_or(0);
        let ours = report.domains.len() as u64 + IDLE;
        let lost = *self.seen.lost.get_or_insert(alive.saturating_sub(ours));
        if alive != ours + lost {
            self.differ("domains_alive", alive - lost.min(alive), ours);
        }
        let pages: Vec<u64> = report.domains.iter().map(|domain| domain.mapped / 4096).collect();
        let mut theirs: Vec<(u64, u64)> = Vec::new();
        for (id, pages) in
            recorded.get("pages_mapped").and_then(Value::as_object).into_iter().flatten()
        {
            theirs.extend(id.parse().ok().zip(number(pages)));
        }
        theirs.sort_unstable();
        let theirs: Vec<u64> = theirs.iter().map(|(_, pages)| *pages).collect();
        // Of thousands the recording shows the first three.
        let shown = theirs.len() as u64 == alive;
        let theirs = &theirs[theirs.len().saturating_sub(pages.len())..];
        if shown && pages != theirs {
            self.differ("pages_mapped", format!("{theirs:?}"), format!("{pages:?}"));
        }
    }
}
