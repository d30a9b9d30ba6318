//! The stand-in for the cores of these recordings.

use super::super::standin::done;
use rknpu_sim::engine::{Bus, Engine, Outcome, Run, Start, Unit};

/// Bytes of an instruction of the little programs: three words.
const INSTRUCTION: u64 = 12;
/// Longer than any recorded program.
const MOST: u64 = 64;

/// Executes a `regcmd` instead of what lies there, as the head of each recording says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StandIn;

impl Engine for StandIn {
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run {
        let low = start.regcmd_addr & 0x0fff_ffff;
        let done = |int_status, us| done(start, int_status, us);
        let outcome = match start.regcmd_addr >> 28 {
            0x8 => done(start.int_mask, low),
            0x9 => Outcome::Hang { task_counter: 0 },
            0xA | 0xC => done(low & 0x1_ffff, 200),
            0xB => match program(bus, low.into()) {
                Some(us) => done(start.int_mask, us),
                None => Outcome::Hang { task_counter: 0 },
            },
            _ => done(start.int_mask, 200),
        };
        Run { outcome, findings: Vec::new() }
    }
}

/// Runs a program of words at an address: how long it takes, if everything that it touches is mapped.
fn program(bus: &mut dyn Bus, at: u64) -> Option<u32> {
    let mut us = 200;
    for step in 0..MOST {
        let bytes = bus.read(Unit::Pc, at + step * INSTRUCTION, INSTRUCTION).ok()?;
        let word = |n: usize| bytes.get(4 * n..4 * n + 4)?.try_into().ok().map(u32::from_le_bytes);
        let (code, first, second) = (word(0)?, word(1)?, word(2)?);
        match code {
            0 => return Some(us),
            1 => bus.write(Unit::DpuWrite, first.into(), &second.to_le_bytes()).ok()?,
            2 => {
                let word = bus.read(Unit::CnaFeature, second.into(), 4).ok()?.to_vec();
                bus.write(Unit::DpuWrite, first.into(), &word).ok()?;
            }
            3 => us = first,
            _ => return None,
        }
    }
    None
}
