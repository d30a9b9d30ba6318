//! Why a program is not executed: what a board would hang on or get wrong, or what is not modelled.

use crate::engine::{BusFault, Finding, Verdict};

use super::registers::{self, Registers};

/// Each names the entry or register, where it is, what it holds and what was expected; `source`, who
/// found that a board gets it wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "entry {index} of the program at IOVA {program:#x} (itself at {:#x}) is {bits:#018x}: \
         {problem}; expected {expected}", u64::from(*.program) + 8 * u64::from(*.index)
    )]
    Entry { program: u32, index: u32, bits: u64, problem: &'static str, expected: &'static str },

    #[error(
        "program at IOVA {program:#x}: none of the {entries} entries that the fetch amount covers \
         starts the blocks; expected {:#06x} = {:#x} of block {:#06x} among them",
        rknpu_sys::regs::pc::OPERATION_ENABLE,
        rknpu_sys::regs::pc::ENABLE_CNA_CORE_DPU,
        rknpu_sys::regs::Block::Enable.id()
    )]
    NeverStarts { program: u32, entries: u32 },

    #[error(
        "program at IOVA {program:#x}: register {register:#06x} ({name}) {} {value:#x}; expected \
         {expected}{}",
        if *.written { "is" } else { "was never written since the core's reset and is taken for" },
        by(.found)
    )]
    Register {
        program: u32,
        register: u16,
        name: &'static str,
        value: u32,
        written: bool,
        expected: String,
        found: Option<&'static str>,
    },

    #[error("program at IOVA {program:#x}: {problem}{}", by(.found))]
    Shape { program: u32, problem: String, found: Option<&'static str> },

    #[error("program at IOVA {program:#x}: {what}: {fault}")]
    Access { program: u32, what: &'static str, fault: BusFault },

    #[error(
        "the chain ends after {done} of {tasks} tasks: the trailer of the program at IOVA \
         {program:#x} names no next program (seen on boards: the job times out, its counter at 0)"
    )]
    ChainEnds { program: u32, done: u32, tasks: u32 },

    #[error(
        "int_mask {mask:#x} never sees the end: the last program raises {raised:#x} and all before \
         it; expected {:#x} (recorded: the driver waits for whole pairs)",
        rknpu_sys::regs::INT_DPU
    )]
    NoInterrupt { mask: u32, raised: u32 },
}

/// Who found it.
fn by(found: &Option<&'static str>) -> String {
    found.map(|found| format!(" ({found})")).unwrap_or_default()
}

impl Refusal {
    pub(super) fn register(
        registers: &Registers,
        register: u16,
        expected: String,
        found: Option<&'static str>,
    ) -> Refusal {
        Refusal::Register {
            program: registers.at(),
            register,
            name: registers::name(register).unwrap_or("unnamed"),
            value: registers.get(register),
            written: registers.written(register).is_some(),
            expected,
            found,
        }
    }

    /// What the report says.
    pub(super) fn finding(&self) -> Finding {
        let verdict = match self {
            Refusal::Entry { .. } => Verdict::NotModelled,
            Refusal::Register { found, .. } | Refusal::Shape { found, .. } if found.is_none() => {
                Verdict::NotModelled
            }
            _ => Verdict::Wrong,
        };
        Finding { verdict, text: self.to_string() }
    }
}
