//! What a program may do, and which memory it makes the NPU read and write.

use rknpu_sys::regs::{ATOM_BYTES, Block, Command, Format, cna, core as mac, dpu};

use crate::buffer::{Buffer, OnDevice};
use crate::program::ProgramError;

/// What a program makes the NPU read and write, from the last write to each register.
struct Extents<'a> {
    program: usize,
    commands: &'a [Command],
}

impl Extents<'_> {
    fn value(&self, register: u16) -> Result<u32, ProgramError> {
        let written = self.commands.iter().rev().find(|c| c.register == register);
        written.map(|c| c.value).ok_or(ProgramError::Missing { program: self.program, register })
    }

    /// Name, address and bytes of input, weights and output.
    fn all(&self) -> Result<[(&'static str, u64, u64); 3], ProgramError> {
        let con1 = self.value(cna::CONV_CON1)?;
        let size = self.value(cna::DATA_SIZE0)?;
        let channels = cna::DATA_SIZE1_CHANNEL_REAL.get(self.value(cna::DATA_SIZE1)?) + 1;
        let points = u64::from(cna::DATA_SIZE0_WIDTH.get(size))
            * u64::from(cna::DATA_SIZE0_HEIGHT.get(size));
        let row = u64::from(channels) * bits(cna::CONV_CON1_IN_PRECISION.get(con1)) / 8;
        let line = u64::from(cna::DMA_CON1_LINE_STRIDE.get(self.value(cna::DMA_CON1)?));
        let input = match cna::CONV_CON1_ROW_MAJOR.get(con1) {
            1 => points.saturating_sub(1) * (line * u64::from(ATOM_BYTES)).max(row) + row,
            _ => points * row.next_multiple_of(ATOM_BYTES.into()),
        };

        let format = self.value(dpu::DATA_FORMAT)?;
        let out_bits = bits(dpu::DATA_FORMAT_OUT_PRECISION.get(format));
        let width = u64::from(self.value(dpu::DATA_CUBE_WIDTH)?) + 1;
        let height = u64::from(self.value(dpu::DATA_CUBE_HEIGHT)?) + 1;
        let channel = self.value(dpu::DATA_CUBE_CHANNEL)?;
        let columns = dpu::CHANNEL_ORIGINAL.get(channel).max(dpu::CHANNEL.get(channel)) + 1;
        // Batches of int4 rows spread their results over four times the space.
        let spread = if out_bits == 16 && points > 1 { 4 } else { 1 };
        let output = width * height * u64::from(columns) * out_bits / 8 * spread;

        Ok([
            ("input", self.value(cna::FEATURE_DATA_ADDR)?.into(), input),
            (
                "weights",
                self.value(cna::DCOMP_ADDR0)?.into(),
                self.value(cna::WEIGHT_SIZE0)?.into(),
            ),
            ("output", self.value(dpu::DST_BASE_ADDR)?.into(), output),
        ])
    }
}

/// Bits of an element; the widest for numbers that no format has.
fn bits(format: u32) -> u64 {
    match Format::from_code(format) {
        Some(Format::Int4) => 4,
        Some(Format::Int8) => 8,
        Some(Format::Int16 | Format::Fp16) => 16,
        Some(Format::Int32 | Format::Fp32) | None => 32,
    }
}

/// Refuses a program with a command that may not stand in it, or whose input, weights or output are not
/// inside `buffers`.
pub(super) fn check(
    program: usize,
    commands: &[Command],
    buffers: &[Buffer<OnDevice>],
) -> Result<(), ProgramError> {
    for (index, command) in commands.iter().enumerate() {
        if let Some(why) = forbidden(command) {
            let Command { block, register, .. } = *command;
            return Err(ProgramError::Command { program, command: index, block, register, why });
        }
    }
    for (what, address, len) in (Extents { program, commands }).all()? {
        if address == 0 || !address.is_multiple_of(ATOM_BYTES.into()) {
            return Err(ProgramError::Address { what, address });
        }
        let end = address + len;
        let covers = |b: &Buffer<OnDevice>| b.iova() <= address && end <= b.iova() + b.len() as u64;
        if len == 0 || !buffers.iter().any(covers) {
            return Err(ProgramError::Outside { program, what, address, len });
        }
    }
    Ok(())
}

/// Why a command may not stand in a job's program.
fn forbidden(command: &Command) -> Option<&'static str> {
    let Command { block, register, value } = *command;
    if *command == Command::EMPTY {
        return None;
    }
    let inside = match Block::from_id(block) {
        Some(Block::Cna) => (cna::CONV_CON1..=cna::PAD_CON1).contains(&register),
        Some(Block::Core) => (mac::MISC_CFG..=mac::RESERVED_3030).contains(&register),
        Some(Block::Dpu) => {
            register == dpu::S_POINTER || (dpu::FEATURE_MODE_CFG..=0x412c).contains(&register)
        }
        Some(Block::DpuRdma) => return Some("the second input's addresses are not checked"),
        Some(Block::Pc | Block::Barrier | Block::Enable) => {
            return Some("chaining and starting are added with the trailer");
        }
        None => return Some("no such block"),
    };
    if !inside {
        return Some("the register is not one of the block's configuration");
    }
    if register == cna::DCOMP_CTRL && value != 0 {
        return Some("compressed weights have no known size");
    }
    None
}
