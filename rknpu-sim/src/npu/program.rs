//! Fetching a program: entries up to the one that starts the blocks, and where the chain goes on.

use rknpu_sys::regs::{Block, Command, pc};

use super::refusal::Refusal;
use super::registers::Registers;
use crate::engine::{Bus, BusFault, Unit};

/// Bytes of one entry.
const ENTRY: usize = 8;
/// A program starts on a multiple of what is fetched at once: a pair of entries.
const ALIGNMENT: u32 = 16;
/// Block of an entry that does nothing, as some encoders write in front of the trailer.
const NOTHING: u16 = 0x0001;

/// Offset of each block's S_POINTER, and the bits of it that let the groups take turns.
const POINTER: u16 = 0x004;
const GROUPS_TAKE_TURNS: u32 = 0xe;
/// Offset of each block's OPERATION_ENABLE.
const START: u16 = 0x008;

/// Where the trailer says that the chain goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) iova: u32,
    /// As register 0x14 has it: pairs of entries to fetch, less one.
    pub(super) amount: u32,
}

/// Which blocks a program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Starts {
    /// The array and the output stage.
    Array,
    /// These, and the output stage's own inputs.
    ArrayAndInputs,
    /// The output stage and its own inputs.
    ElementWise,
}

/// What a program does once its entries are in the registers.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) starts: Starts,
    pub(super) next: Option<Next>,
    /// What the fetch amount reaches beyond the program, where nothing is mapped.
    pub(super) past: Option<BusFault>,
}

/// Fetches the program at `at` and writes its entries to `registers`.
///
/// What follows the entry that starts the blocks is not decoded: some programs in the field state
/// an amount that reaches into the next program's first entries, or counts entries for pairs.
pub(super) fn fetch(
    bus: &dyn Bus,
    at: Next,
    registers: &mut Registers,
) -> Result<Program, Refusal> {
    let program = at.iova;
    registers.begin(program);
    if !program.is_multiple_of(ALIGNMENT) {
        return Err(registers.shape(format!("it must start on a multiple of {ALIGNMENT}")));
    }
    let entries = u64::from(at.amount) * 2 + 2;
    let (bytes, fault) = entries_at(bus, program, entries).map_err(|fault| Refusal::Access {
        program,
        what: "fetching its entries",
        fault,
    })?;
    let mut next = Next { iova: 0, amount: 0 };
    for (index, entry) in bytes.as_chunks::<ENTRY>().0.iter().enumerate() {
        let command = Command::from_bits(u64::from_le_bytes(*entry));
        let reject = |problem, expected| Refusal::Entry {
            program,
            index: index as u32,
            bits: command.bits(),
            problem,
            expected,
        };
        if command == Command::EMPTY || (command.block, command.register) == (NOTHING, 0) {
            continue;
        }
        match Block::from_id(command.block) {
            Some(block @ (Block::Cna | Block::Core | Block::Dpu | Block::DpuRdma)) => {
                if !Registers::knows(block, command.register) {
                    return Err(reject(
                        "this block has no such register",
                        "CNA 0x1000..=0x1184, core 0x3000..=0x3030, DPU 0x4000..=0x412c or its inputs \
                         0x5000..=0x506c",
                    ));
                }
                let free = match command.register & 0xfff {
                    // Which group is written follows from the program's place in its chain.
                    POINTER => GROUPS_TAKE_TURNS,
                    START => 0,
                    _ => u32::MAX,
                };
                if command.value & !free != 0 {
                    return Err(reject(
                        "it chooses a group of registers, or starts one block alone, itself",
                        "S_POINTER with bits 3..1 alone, 0x0e, and no block started but by 0x0081",
                    ));
                }
                registers.write(command.register, command.value);
            }
            // Without its enable bits, 0x60, pooling stays idle, whatever its registers hold.
            Some(Block::Ppu | Block::PpuRdma) => {}
            Some(Block::Pc) => match command.register {
                // Version: read only.
                pc::VERSION => {}
                pc::BASE_ADDRESS => next.iova = command.value,
                pc::REGISTER_AMOUNTS => next.amount = command.value,
                _ => {
                    return Err(reject(
                        "what a program's write to this register of the PC does is not known",
                        "0x10 (next program) or 0x14 (its amount)",
                    ));
                }
            },
            Some(Block::Barrier) => {}
            Some(Block::Enable) => {
                let starts = match (command.register, command.value) {
                    (pc::OPERATION_ENABLE, pc::ENABLE_CNA_CORE_DPU) => Starts::Array,
                    (pc::OPERATION_ENABLE, pc::ENABLE_WITH_RDMA) => Starts::ArrayAndInputs,
                    (pc::OPERATION_ENABLE, pc::ENABLE_ELEMENT_WISE) => Starts::ElementWise,
                    _ => {
                        return Err(reject(
                            "what these blocks compute together is not known",
                            "register 0x08 = 0x0d (CNA, core and DPU), 0x1d (with the DPU's inputs) or \
                             0x18 (the DPU and its inputs)",
                        ));
                    }
                };
                registers.ends_after(((index + 1) * ENTRY) as u64);
                return Ok(Program { starts, next: (next.iova != 0).then_some(next), past: fault });
            }
            None => {
                return Err(reject(
                    "there is no such block",
                    "block 0x0101, 0x0201, 0x0801, 0x1001, 0x2001, 0x0041 or 0x0081, or all zero",
                ));
            }
        }
    }
    match fault {
        Some(fault) => Err(Refusal::Access { program, what: "fetching its entries", fault }),
        None => Err(Refusal::NeverStarts {
            program,
            entries: u32::try_from(entries).unwrap_or(u32::MAX),
        }),
    }
}

/// The entries of a program, or as many as are mapped, with the fault that the next one meets.
fn entries_at(
    bus: &dyn Bus,
    program: u32,
    entries: u64,
) -> Result<(&[u8], Option<BusFault>), BusFault> {
    let read = |bytes| bus.read(Unit::Pc, u64::from(program), bytes);
    match read(entries * ENTRY as u64) {
        Ok(bytes) => Ok((bytes, None)),
        Err(fault) if fault.mapped >= ENTRY as u64 => {
            read(fault.mapped / ENTRY as u64 * ENTRY as u64).map(|bytes| (bytes, Some(fault)))
        }
        Err(fault) => Err(fault),
    }
}
