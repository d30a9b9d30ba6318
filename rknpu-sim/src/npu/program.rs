//! Fetching a program: entries up to the one that starts the blocks, and where the chain goes on.

use rknpu_sys::regs::{Block, Command, pc};

use super::refusal::Refusal;
use super::registers::Registers;
use crate::engine::{Bus, Unit};

/// Bytes of one entry.
const ENTRY: usize = 8;
/// A program starts on a multiple of what is fetched at once: a pair of entries.
const ALIGNMENT: u32 = 16;

/// Where the trailer says that the chain goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) iova: u32,
    /// As register 0x14 has it: pairs of entries to fetch, less one.
    pub(super) amount: u32,
}

/// A program as it stands when the blocks start.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) registers: Registers,
    pub(super) next: Option<Next>,
}

/// Fetches and decodes the program at `at`.
///
/// What follows the entry that starts the blocks is not decoded: some programs in the field state
/// an amount that reaches into the next program's first entries.
pub(super) fn fetch(bus: &dyn Bus, at: Next) -> Result<Program, Refusal> {
    let program = at.iova;
    if !program.is_multiple_of(ALIGNMENT) {
        let problem = format!("it must start on a multiple of {ALIGNMENT}");
        return Err(Refusal::Shape { program, problem });
    }
    let entries = u64::from(at.amount) * 2 + 2;
    let bytes = bus
        .read(Unit::Pc, u64::from(program), entries * ENTRY as u64)
        .map_err(|fault| Refusal::Access { program, what: "fetching its entries", fault })?;
    let mut registers = Registers::new(program);
    let mut next = Next { iova: 0, amount: 0 };
    let mut barrier = false;
    for (index, entry) in bytes.as_chunks::<ENTRY>().0.iter().enumerate() {
        let command = Command::from_bits(u64::from_le_bytes(*entry));
        let reject = |problem, expected| Refusal::Entry {
            program,
            index: index as u32,
            bits: command.bits(),
            problem,
            expected,
        };
        if command == Command::EMPTY {
            continue;
        }
        match Block::from_id(command.block) {
            Some(block @ (Block::Cna | Block::Core | Block::Dpu)) => {
                if !Registers::knows(block, command.register) {
                    return Err(reject(
                        "this block has no such register",
                        "CNA 0x1000..=0x1184, core 0x3000..=0x3030 or DPU 0x4000..=0x412c",
                    ));
                }
                registers.write(command.register, command.value);
            }
            Some(Block::Pc) => match command.register {
                pc::BASE_ADDRESS => next.iova = command.value,
                pc::REGISTER_AMOUNTS => next.amount = command.value,
                _ => {
                    return Err(reject(
                        "a program must not write this register of the PC",
                        "0x10 (next program) or 0x14 (its amount)",
                    ));
                }
            },
            // Without the enable bit 0x10 this block stays idle, whatever its registers hold.
            Some(Block::DpuRdma) => {}
            Some(Block::Barrier) => barrier = true,
            Some(Block::Enable) => {
                if command.register != pc::OPERATION_ENABLE
                    || command.value != pc::ENABLE_CNA_CORE_DPU
                {
                    return Err(reject(
                        "these blocks together are not a matmul",
                        "register 0x08 = 0x0d (CNA, core and DPU)",
                    ));
                }
                if !barrier {
                    return Err(reject("no barrier before it", "block 0x0041 = 0 first"));
                }
                registers.ends_after(((index + 1) * ENTRY) as u64);
                return Ok(Program { registers, next: (next.iova != 0).then_some(next) });
            }
            None => {
                return Err(reject(
                    "there is no such block",
                    "block 0x0101, 0x0201, 0x0801, 0x1001, 0x2001, 0x0041 or 0x0081, or all zero",
                ));
            }
        }
    }
    Err(Refusal::NeverStarts { program, entries: u32::try_from(entries).unwrap_or(u32::MAX) })
}
