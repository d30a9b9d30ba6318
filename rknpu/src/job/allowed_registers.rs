//! What a program of the caller's may write: each register that it must set, and what that may hold.
//!
//! Every register of the three blocks is here, and a program writes each of them: one that it left out would
//! hold what another program, perhaps of another process, put there. A register whose effect on addresses is
//! known may hold anything of the bits that are known, and [`extents`](super::extents) counts on it. Every
//! other register holds what all known programs write.

use rknpu_sys::regs::{Block, Command, Field, cna, core, dpu};

use crate::program::ProgramError;
use Rule::{Fields, Only};

/// What a register may hold.
enum Rule {
    /// This value: what all known programs write.
    Only(u32),
    /// Any value of these fields, and 0 elsewhere.
    Fields(&'static [Field]),
}

/// A whole register.
const ALL: Field = Field::new(31, 0);
/// [`cna::DATA_SIZE2`]: output width.
const OUTPUT_WIDTH: Field = Field::new(10, 0);
/// [`cna::DATA_SIZE3`]: output atoms.
const OUTPUT_ATOMS: Field = Field::new(21, 0);
/// Which register group is written, and that the groups take turns.
const S_POINTER: u32 = 0x0e;

/// Block, first register, number of registers, what they may hold; in the order of their offsets.
const RULES: &[(Block, u16, u16, Rule)] = &[
    (
        Block::Cna,
        cna::CONV_CON1,
        1,
        Fields(&[
            cna::CONV_CON1_PROC_PRECISION,
            cna::CONV_CON1_IN_PRECISION,
            cna::CONV_CON1_ROW_MAJOR,
        ]),
    ),
    (Block::Cna, cna::CONV_CON2, 1, Fields(&[cna::CONV_CON2_FEATURE_GRAINS])),
    (Block::Cna, cna::CONV_CON3, 1, Only(9)),
    (Block::Cna, cna::DATA_SIZE0, 1, Fields(&[cna::DATA_SIZE0_WIDTH, cna::DATA_SIZE0_HEIGHT])),
    (
        Block::Cna,
        cna::DATA_SIZE1,
        1,
        Fields(&[cna::DATA_SIZE1_CHANNEL_REAL, cna::DATA_SIZE1_CHANNEL]),
    ),
    (Block::Cna, cna::DATA_SIZE2, 1, Fields(&[OUTPUT_WIDTH])),
    (Block::Cna, cna::DATA_SIZE3, 1, Fields(&[OUTPUT_ATOMS])),
    (Block::Cna, cna::WEIGHT_SIZE0, 2, Fields(&[ALL])),
    (
        Block::Cna,
        cna::WEIGHT_SIZE2,
        1,
        Fields(&[cna::WEIGHT_SIZE2_WIDTH, cna::WEIGHT_SIZE2_HEIGHT, cna::WEIGHT_SIZE2_KERNELS]),
    ),
    (
        Block::Cna,
        cna::CBUF_CON0,
        1,
        Fields(&[
            cna::CBUF_CON0_DATA_BANK,
            cna::CBUF_CON0_WEIGHT_BANK,
            cna::CBUF_CON0_DATA_REUSE,
            cna::CBUF_CON0_WEIGHT_REUSE,
        ]),
    ),
    (Block::Cna, cna::CBUF_CON1, 1, Fields(&[ALL])),
    (Block::Cna, cna::CVT_CON0, 1, Only(0x0b)),
    (Block::Cna, cna::CVT_CON1, 4, Only(0x1_0000)),
    (Block::Cna, cna::FC_CON0, 1, Only(0)),
    (Block::Cna, cna::FC_CON1, 1, Only(0)),
    (Block::Cna, cna::PAD_CON0, 1, Only(0)),
    (Block::Cna, cna::FEATURE_DATA_ADDR, 1, Fields(&[ALL])),
    (Block::Cna, cna::FC_CON2, 1, Only(0)),
    (Block::Cna, cna::DMA_CON0, 1, Only(0x000f_000f)),
    (Block::Cna, cna::DMA_CON1, 1, Fields(&[cna::DMA_CON1_LINE_STRIDE])),
    (Block::Cna, cna::DMA_CON2, 1, Fields(&[cna::DMA_CON2_SURF_STRIDE])),
    (Block::Cna, cna::FC_DATA_SIZE0, 1, Fields(&[cna::DATA_SIZE0_WIDTH, cna::DATA_SIZE0_HEIGHT])),
    (Block::Cna, cna::FC_DATA_SIZE1, 1, Fields(&[cna::DATA_SIZE1_CHANNEL])),
    (Block::Cna, cna::DCOMP_CTRL, 2, Only(0)),
    (Block::Cna, cna::DCOMP_ADDR0, 1, Fields(&[ALL])),
    (Block::Cna, cna::DCOMP_AMOUNT0, 16, Only(0)),
    (Block::Cna, cna::CVT_CON5, 1, Only(0)),
    (Block::Cna, cna::PAD_CON1, 1, Only(0)),
    (
        Block::Core,
        core::MISC_CFG,
        1,
        Fields(&[core::MISC_CFG_PROC_PRECISION, core::MISC_CFG_QD_EN]),
    ),
    (
        Block::Core,
        core::DATAOUT_SIZE_0,
        1,
        Fields(&[core::DATAOUT_SIZE_0_HEIGHT, core::DATAOUT_SIZE_0_WIDTH]),
    ),
    (Block::Core, core::DATAOUT_SIZE_1, 1, Fields(&[ALL])),
    (Block::Core, core::CLIP_TRUNCATE, 1, Only(0)),
    (Block::Core, core::RESERVED_3030, 1, Only(0)),
    (Block::Dpu, dpu::S_POINTER, 1, Only(S_POINTER)),
    (Block::Dpu, dpu::FEATURE_MODE_CFG, 1, Only(0x1e4)),
    (
        Block::Dpu,
        dpu::DATA_FORMAT,
        1,
        Fields(&[
            dpu::DATA_FORMAT_OUT_PRECISION,
            dpu::DATA_FORMAT_IN_PRECISION,
            dpu::DATA_FORMAT_PROC_PRECISION,
        ]),
    ),
    (Block::Dpu, dpu::OFFSET_PEND, 1, Only(0)),
    (Block::Dpu, dpu::DST_BASE_ADDR, 1, Fields(&[ALL])),
    (Block::Dpu, dpu::DST_SURF_STRIDE, 1, Fields(&[dpu::DST_SURF_STRIDE_ATOMS])),
    (Block::Dpu, dpu::DATA_CUBE_WIDTH, 2, Fields(&[ALL])),
    (Block::Dpu, dpu::DATA_CUBE_NOTCH_ADDR, 1, Fields(&[dpu::NOTCH_0, dpu::NOTCH_1])),
    (Block::Dpu, dpu::DATA_CUBE_CHANNEL, 1, Fields(&[dpu::CHANNEL_ORIGINAL, dpu::CHANNEL])),
    (Block::Dpu, dpu::BS_CFG, 1, Only(0x53)),
    (Block::Dpu, dpu::BS_ALU_CFG, 3, Only(0)),
    (Block::Dpu, dpu::BS_OW_CFG, 1, Fields(&[ALL])),
    (Block::Dpu, dpu::BS_OW_OP, 1, Only(0)),
    (Block::Dpu, dpu::WDMA_SIZE_0, 1, Fields(&[ALL])),
    (Block::Dpu, dpu::WDMA_SIZE_1, 1, Fields(&[dpu::WDMA_SIZE_1_HEIGHT, dpu::WDMA_SIZE_1_WIDTH])),
    (Block::Dpu, dpu::BN_CFG, 1, Only(0x53)),
    (Block::Dpu, dpu::BN_ALU_CFG, 3, Only(0)),
    (Block::Dpu, dpu::EW_CFG, 1, Only(0x383)),
    (Block::Dpu, dpu::EW_CVT_OFFSET_VALUE, 1, Only(0)),
    (Block::Dpu, dpu::EW_CVT_SCALE_VALUE, 1, Only(1)),
    (Block::Dpu, dpu::EW_RELUX_CMP_VALUE, 1, Only(0)),
    // Offset, scale and shift of the results change what is written, not where.
    (Block::Dpu, dpu::OUT_CVT_OFFSET, 3, Fields(&[ALL])),
    (Block::Dpu, dpu::EW_OP_VALUE_0, 8, Only(0)),
    (Block::Dpu, dpu::SURFACE_ADD, 1, Fields(&[dpu::SURFACE_ADD_ATOMS])),
    (Block::Dpu, dpu::RESERVED_40C4, 1, Only(0)),
    (Block::Dpu, dpu::LUT_ACCESS_CFG, 12, Only(0)),
];

/// Registers of all rules.
const REGISTERS: usize = {
    let (mut count, mut rule) = (0, 0);
    while rule < RULES.len() {
        count += RULES[rule].2 as usize;
        rule += 1;
    }
    count
};

/// What each register holds when the program's blocks start.
#[derive(Debug)]
pub(super) struct Registers {
    /// The program's number in its job.
    program: usize,
    /// In the order of [`RULES`].
    values: [u32; REGISTERS],
}

impl Registers {
    /// Reads a program; the last write to a register counts.
    ///
    /// # Errors
    /// A command that may not stand in a job's program, a register that it does not write, a value whose
    /// effect on addresses is not known.
    pub(super) fn read(program: usize, commands: &[Command]) -> Result<Registers, ProgramError> {
        let mut values = [None; REGISTERS];
        let mut first = true;
        for (index, command) in commands.iter().enumerate() {
            if *command == Command::EMPTY {
                continue;
            }
            let place = place(command).and_then(|place| match command.register {
                // Whatever came before would have gone into another group of registers.
                dpu::S_POINTER if !first => Err("the register group is chosen first, and once"),
                _ => Ok(place),
            });
            first = false;
            let Command { block, register, value } = *command;
            let place = place.map_err(|why| ProgramError::Command {
                program,
                command: index,
                block,
                register,
                why,
            })?;
            if let Some(slot) = values.get_mut(place) {
                *slot = Some(value);
            }
        }
        let mut registers = Registers { program, values: [0; REGISTERS] };
        let all = RULES
            .iter()
            .flat_map(|(_, first, count, rule)| (0..*count).map(move |i| (first + 4 * i, rule)));
        let slots = registers.values.iter_mut().zip(values);
        for ((register, rule), (slot, value)) in all.zip(slots) {
            let value = value.ok_or(ProgramError::Missing { program, register })?;
            if !rule.allows(value) {
                let why = match rule {
                    Only(_) => {
                        "no known program writes it, and what it does to addresses is not known"
                    }
                    Fields(_) => "it has bits of no known field",
                };
                return Err(ProgramError::Value { program, register, value, why });
            }
            *slot = value;
        }
        Ok(registers)
    }

    /// The program's number in its job.
    pub(super) fn program(&self) -> usize {
        self.program
    }

    /// What a register holds.
    pub(super) fn get(&self, register: u16) -> u32 {
        let mut base = 0;
        for &(_, first, count, _) in RULES {
            if (first..first + 4 * count).contains(&register) {
                let place = base + usize::from((register - first) / 4);
                return self.values.get(place).copied().unwrap_or(0);
            }
            base += usize::from(count);
        }
        0
    }

    /// What a field of a register holds.
    pub(super) fn field(&self, register: u16, field: Field) -> u32 {
        field.get(self.get(register))
    }

    /// The error that a register's value is, for a reason that lies in other registers.
    pub(super) fn refuse(&self, register: u16, why: &'static str) -> ProgramError {
        ProgramError::Value { program: self.program, register, value: self.get(register), why }
    }
}

impl Rule {
    fn allows(&self, value: u32) -> bool {
        match self {
            Only(only) => value == *only,
            Fields(fields) => {
                value & !fields.iter().fold(0, |mask, field| mask | field.mask()) == 0
            }
        }
    }
}

/// Where a command's value goes, or why it may not stand in a job's program.
fn place(command: &Command) -> Result<usize, &'static str> {
    let block = match Block::from_id(command.block) {
        Some(block @ (Block::Cna | Block::Core | Block::Dpu)) => block,
        Some(Block::DpuRdma) => return Err("the second input's addresses are not checked"),
        Some(Block::Ppu | Block::PpuRdma) => return Err("pooling is no part of a product"),
        Some(Block::Pc | Block::Barrier | Block::Enable) => {
            return Err("chaining and starting are added with the trailer");
        }
        None => return Err("no such block"),
    };
    let mut base = 0;
    for &(owner, first, count, _) in RULES {
        if let Some(offset) = command.register.checked_sub(first)
            && owner == block
            && offset < 4 * count
            && offset.is_multiple_of(4)
        {
            return Ok(base + usize::from(offset / 4));
        }
        base += usize::from(count);
    }
    Err("the register is not one of the block's configuration")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AMOUNT, MatmulProgram};
    use rknpu_sys::layout::Precision;

    fn encoded(precision: Precision) -> Vec<Command> {
        let (input, weights, output) = (0xffff_0000, 0xfff0_0000, 0xffe0_0000);
        let matmul =
            MatmulProgram { precision, m: 1, k: 64, n: 64, input, weights, output, next: None };
        matmul.encode().unwrap()[..AMOUNT as usize].to_vec()
    }

    #[test]
    fn the_table_is_what_the_encoder_writes() {
        for precision in [Precision::Int8, Precision::Fp16, Precision::Int4] {
            let commands = encoded(precision);
            let registers = Registers::read(0, &commands).unwrap();
            let mut written: Vec<u16> = commands.iter().map(|c| c.register).collect();
            written.sort_unstable();
            written.dedup();
            assert_eq!(written.len(), REGISTERS, "each register once in the table");
            for register in written {
                let value = commands.iter().rev().find(|c| c.register == register).unwrap().value;
                assert_eq!(registers.get(register), value, "{register:#x}");
            }
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let commands = encoded(Precision::Int8);
        for (index, command) in commands.iter().enumerate() {
            // The only write of a register, left out.
            if commands.iter().filter(|c| c.register == command.register).count() == 1 {
                let mut without = commands.clone();
                without.remove(index);
                let (program, register) = (7, command.register);
                let missing = ProgramError::Missing { program, register };
                assert_eq!(Registers::read(7, &without).unwrap_err(), missing);
            }
        }
        let fixed = RULES.iter().filter(|(.., rule)| matches!(rule, Only(_)));
        for (block, first, count, _) in fixed {
            for register in (0..*count).map(|i| first + 4 * i) {
                let mut changed = commands.clone();
                let last = changed.iter().rposition(|c| c.register == register).unwrap();
                changed[last] = Command::new(*block, register, changed[last].value ^ 1 << 20);
                let error = Registers::read(0, &changed).unwrap_err();
                let ProgramError::Value { register: named, .. } = error else { panic!("{error}") };
                assert_eq!(named, register);
            }
        }
        let mut unknown = commands.clone();
        unknown.push(Command::new(Block::Cna, cna::CONV_CON2, 1 << 20));
        assert!(matches!(Registers::read(0, &unknown), Err(ProgramError::Value { .. })));
    }

    #[test]
    fn registers_go_to_the_group_that_is_chosen_first() {
        let commands = encoded(Precision::Int8);
        assert_eq!(commands[0].register, dpu::S_POINTER);
        for late in [
            [&commands[1..2], &commands[..1], &commands[2..]].concat(),
            [&commands[..], &commands[..1]].concat(),
        ] {
            let error = Registers::read(0, &late).unwrap_err();
            assert!(matches!(error, ProgramError::Command { register: dpu::S_POINTER, .. }));
        }
        // Empty entries before it are none.
        let padded = [&[Command::EMPTY], &commands[..]].concat();
        assert!(Registers::read(0, &padded).is_ok());
    }
}
