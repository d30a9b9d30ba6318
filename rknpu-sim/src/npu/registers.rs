//! The registers of a core, which programs fill, and their names.
//!
//! Each block has two groups of registers, so that one can be filled while the other runs. What a
//! program does not write keeps the value that the group last had, from an earlier program or job.

use std::cell::Cell;

use rknpu_sys::regs::{Block, Field, cna, core, dpu, rdma};

use super::refusal::Refusal;

/// Lists registers by block; everything else in these blocks is undecodable.
macro_rules! names {
    ($($block:ident: $($name:ident),+;)+) => {
        /// The register's name; `None` when no known program writes it.
        pub(super) fn name(register: u16) -> Option<&'static str> {
            if !register.is_multiple_of(4) {
                return None;
            }
            Some(match register {
                $($($block::$name => stringify!($name),)+)+
                0x1140..=0x117c => "DCOMP_AMOUNT",
                0x4090..=0x40ac => "EW_OP_VALUE",
                0x4100..=0x412c => "LUT",
                _ => return None,
            })
        }
    };
}

names! {
    cna: S_POINTER, OPERATION_ENABLE, CONV_CON1, CONV_CON2, CONV_CON3, DATA_SIZE0, DATA_SIZE1,
        DATA_SIZE2, DATA_SIZE3, WEIGHT_SIZE0, WEIGHT_SIZE1, WEIGHT_SIZE2, CBUF_CON0, CBUF_CON1,
        CVT_CON0, CVT_CON1, CVT_CON2, CVT_CON3, CVT_CON4, FC_CON0, FC_CON1, PAD_CON0,
        FEATURE_DATA_ADDR, FC_CON2, DMA_CON0, DMA_CON1, DMA_CON2, FC_DATA_SIZE0, FC_DATA_SIZE1,
        CLK_GATE, DCOMP_CTRL, DCOMP_REGNUM, DCOMP_ADDR0, CVT_CON5, PAD_CON1;
    core: S_POINTER, OPERATION_ENABLE, MISC_CFG, DATAOUT_SIZE_0, DATAOUT_SIZE_1, CLIP_TRUNCATE,
        RESERVED_3030;
    dpu: S_POINTER, OPERATION_ENABLE, FEATURE_MODE_CFG, DATA_FORMAT, OFFSET_PEND, DST_BASE_ADDR,
        DST_SURF_STRIDE, DATA_CUBE_WIDTH, DATA_CUBE_HEIGHT, DATA_CUBE_NOTCH_ADDR,
        DATA_CUBE_CHANNEL, BS_CFG, BS_ALU_CFG, BS_MUL_CFG, BS_RELUX_CMP_VALUE, BS_OW_CFG, BS_OW_OP,
        WDMA_SIZE_0, WDMA_SIZE_1, BN_CFG, BN_ALU_CFG, BN_MUL_CFG, BN_RELUX_CMP_VALUE, EW_CFG,
        EW_CVT_OFFSET_VALUE, EW_CVT_SCALE_VALUE, EW_RELUX_CMP_VALUE, OUT_CVT_OFFSET, OUT_CVT_SCALE,
        OUT_CVT_SHIFT, SURFACE_ADD, RESERVED_40C4;
    rdma: S_POINTER, OPERATION_ENABLE, DATA_CUBE_WIDTH, DATA_CUBE_HEIGHT, DATA_CUBE_CHANNEL,
        SRC_BASE_ADDR, BRDMA_CFG, BS_BASE_ADDR, NRDMA_CFG, BN_BASE_ADDR, ERDMA_CFG, EW_BASE_ADDR,
        EW_SURF_STRIDE, FEATURE_MODE_CFG, SRC_DMA_CFG, SURF_NOTCH, PAD_CFG, WEIGHT, EW_SURF_NOTCH;
}

/// First register and number of registers of each block that is modelled.
const BLOCKS: [(Block, u16, usize); 4] = [
    (Block::Cna, 0x1000, 0x62),
    (Block::Core, 0x3000, 0x0d),
    (Block::Dpu, 0x4000, 0x4c),
    (Block::DpuRdma, 0x5000, 0x1c),
];
const REGISTERS: usize = BLOCKS[0].2 + BLOCKS[1].2 + BLOCKS[2].2 + BLOCKS[3].2;

/// One group of a core's registers.
///
/// After power-up and after a reset nobody knows what they hold; 0 is assumed, and
/// [`Registers::assumed`] tells what a program relied on.
#[derive(Debug)]
pub(super) struct Registers {
    program: u32,
    /// Bytes of the program.
    len: u64,
    values: [Option<u32>; REGISTERS],
    /// Which were looked at while nothing had been written to them.
    unknown: [Cell<u64>; REGISTERS.div_ceil(64)],
}

impl Default for Registers {
    fn default() -> Registers {
        Registers { program: 0, len: 0, values: [None; REGISTERS], unknown: Default::default() }
    }
}

impl Registers {
    /// The program at `program` begins to write them.
    pub(super) fn begin(&mut self, program: u32) {
        (self.program, self.len) = (program, 0);
        self.unknown = Default::default();
    }

    /// Notes that the program is `len` bytes long.
    pub(super) fn ends_after(&mut self, len: u64) {
        self.len = len;
    }

    /// Where the program lies.
    pub(super) fn program(&self) -> std::ops::Range<u64> {
        u64::from(self.program)..u64::from(self.program) + self.len
    }

    /// Whether `register` lies in `block`'s range and is known.
    pub(super) fn knows(block: Block, register: u16) -> bool {
        BLOCKS.iter().any(|&(b, first, count)| {
            b == block && (first..first + 4 * count as u16).contains(&register)
        }) && name(register).is_some()
    }

    /// The later of two writes wins.
    pub(super) fn write(&mut self, register: u16, value: u32) {
        if let Some(slot) = index(register).and_then(|i| self.values.get_mut(i)) {
            *slot = Some(value);
        }
    }

    pub(super) fn get(&self, register: u16) -> u32 {
        let Some(at) = index(register) else { return 0 };
        self.values[at].unwrap_or_else(|| {
            let word = &self.unknown[at / 64];
            word.set(word.get() | 1 << (at % 64));
            0
        })
    }

    pub(super) fn field(&self, register: u16, field: Field) -> u32 {
        field.get(self.get(register))
    }

    /// What the register holds, if anything was ever written to it.
    pub(super) fn written(&self, register: u16) -> Option<u32> {
        index(register).and_then(|i| self.values.get(i).copied().flatten())
    }

    /// Names of the registers that the program relied on and nobody has ever written.
    pub(super) fn assumed(&self) -> Vec<&'static str> {
        let unknown = |at: &usize| self.unknown[at / 64].get() >> (at % 64) & 1 == 1;
        (0..REGISTERS).filter(unknown).map(|at| name(register(at)).unwrap_or("unnamed")).collect()
    }

    /// That `register` holds exactly `value`.
    pub(super) fn expect(&self, register: u16, value: u32, why: &str) -> Result<(), Refusal> {
        if self.get(register) == value {
            return Ok(());
        }
        Err(self.unexpected(register, format!("{value:#x} ({why})")))
    }

    /// That `register` has no bits outside `fields`.
    pub(super) fn only(&self, register: u16, fields: &[Field]) -> Result<(), Refusal> {
        let known = fields.iter().fold(0, |mask, field| mask | field.mask());
        if self.get(register) & !known == 0 {
            return Ok(());
        }
        Err(self.unexpected(register, format!("only bits of {known:#010x}")))
    }

    /// That this is not modelled: what `register` holds, and what was expected.
    pub(super) fn unexpected(&self, register: u16, expected: String) -> Refusal {
        Refusal::register(self, register, expected, None)
    }

    /// That a board computes something else than asked: what `register` holds, what was expected,
    /// and who found that.
    pub(super) fn wrong(&self, register: u16, expected: String, source: &'static str) -> Refusal {
        Refusal::register(self, register, expected, Some(source))
    }

    /// That several registers together are not modelled.
    pub(super) fn shape(&self, problem: String) -> Refusal {
        Refusal::Shape { program: self.program, problem, found: None }
    }

    /// That a board computes something else, by what several registers hold together.
    pub(super) fn wrong_shape(&self, problem: String, source: &'static str) -> Refusal {
        Refusal::Shape { program: self.program, problem, found: Some(source) }
    }

    /// IOVA of the program.
    pub(super) fn at(&self) -> u32 {
        self.program
    }
}

fn index(register: u16) -> Option<usize> {
    let mut base = 0;
    for (_, first, count) in BLOCKS {
        if let Some(offset) = register.checked_sub(first).map(|o| usize::from(o) / 4)
            && offset < count
        {
            return Some(base + offset);
        }
        base += count;
    }
    None
}

/// The register at an index.
fn register(index: usize) -> u16 {
    let mut rest = index;
    for (_, first, count) in BLOCKS {
        if rest < count {
            return first + 4 * rest as u16;
        }
        rest -= count;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_register_has_a_slot_of_its_own() {
        let mut registers = Registers::default();
        let named: Vec<u16> = (0..=u16::MAX).filter(|&r| name(r).is_some()).collect();
        assert!(named.len() > 110);
        for &r in &named {
            registers.write(r, u32::from(r));
        }
        for &r in &named {
            assert_eq!(registers.get(r), u32::from(r), "{r:#x}");
            assert_eq!(index(r).map(register), Some(r));
        }
    }

    #[test]
    fn what_was_never_written_and_relied_on_is_told_once_a_program() {
        let mut registers = Registers::default();
        registers.begin(0x1000);
        registers.write(cna::CBUF_CON0, 0xb1);
        assert_eq!(registers.get(cna::CBUF_CON0), 0xb1);
        assert_eq!(registers.get(cna::PAD_CON1), 0);
        assert_eq!(registers.written(dpu::BS_CFG), None);
        assert_eq!(registers.assumed(), ["PAD_CON1"]);
        registers.begin(0x2000);
        assert!(registers.assumed().is_empty());
    }

    #[test]
    fn registers_belong_to_their_block() {
        assert!(Registers::knows(Block::Cna, cna::CBUF_CON0));
        assert!(!Registers::knows(Block::Dpu, cna::CBUF_CON0));
        assert!(!Registers::knows(Block::Cna, 0x1090 + 2));
        assert!(Registers::knows(Block::Dpu, 0x412c));
        assert!(!Registers::knows(Block::Dpu, 0x4130));
    }
}
