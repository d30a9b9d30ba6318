//! The engine that decodes nothing.

use crate::engine::{Bus, Engine, Outcome, Run, Start};

/// Treats every program as one that hangs, and says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Undecoded;

impl Engine for Undecoded {
    fn run(&self, start: &Start, _: &dyn Bus) -> Run {
        let finding = format!(
            "core {}: program at IOVA {:#x} of {} commands was not decoded: no NPU model is configured",
            start.core, start.regcmd_addr, start.regcfg_amount
        );
        Run { outcome: Outcome::Hang { task_counter: 0 }, findings: vec![finding] }
    }
}
