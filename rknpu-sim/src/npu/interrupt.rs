//! Which interrupt ends a job, given the mask that the driver set.

use rknpu_sys::regs::INT_DPU;

use super::refusal::Refusal;
use crate::engine::{Finding, Outcome, Start, Verdict};

/// Bits that a matmul raises on the way to its end, by block: input, weights, sequencer, array. Each
/// block has one bit per register group. Inferred from the driver's pairs.
const EARLIER: [u32; 4] = [0x3, 0xc, 0x30, 0xc0];
/// Bits of the first register group.
const GROUP_0: u32 = 0x555;

/// The end of a job whose programs all ran.
///
/// The driver wants the pair of the last block, [`INT_DPU`]. With a bit of an earlier block in the
/// mask, that one comes first and the driver is told before results are written; with none of the
/// bits that come, it is never told.
pub(super) fn raise(start: &Start, busy_ns: u64, findings: &mut Vec<Finding>) -> Outcome {
    // With ping-pong, programs alternate between the register groups, beginning with group 0.
    let second = start.ping_pong && start.tasks.is_multiple_of(2);
    let group = if second { GROUP_0 << 1 } else { GROUP_0 };
    let event = EARLIER
        .iter()
        .chain(&[INT_DPU])
        .map(|pair| pair & group & start.int_mask)
        .find(|bits| *bits != 0);
    let Some(int_status) = event else {
        let fault = Refusal::NoInterrupt { mask: start.int_mask, raised: INT_DPU & group };
        findings.push(fault.finding());
        return Outcome::Hang { task_counter: start.tasks };
    };
    if int_status & INT_DPU == 0 {
        findings.push(Finding {
            verdict: Verdict::Doubtful,
            text: format!(
                "int_mask {:#x} contains a bit of an earlier block: interrupt {int_status:#x} may come \
                 before the results are written (inferred); expected {INT_DPU:#x}",
                start.int_mask
            ),
        });
    } else if start.int_mask & INT_DPU != INT_DPU {
        findings.push(Finding::wrong(format!(
            "int_mask {:#x} is half of a pair: the driver compares whole pairs and never sees it; \
             expected {INT_DPU:#x} (recorded)",
            start.int_mask
        )));
    }
    Outcome::Done { int_status, tasks_done: start.tasks, busy_ns }
}
