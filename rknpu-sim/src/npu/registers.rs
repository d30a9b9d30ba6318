//! The register file that a program fills, and the names of its registers.

use rknpu_sys::regs::{Block, Field, cna, core, dpu};

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
    cna: S_POINTER, CONV_CON1, CONV_CON2, CONV_CON3, DATA_SIZE0, DATA_SIZE1, DATA_SIZE2,
        DATA_SIZE3, WEIGHT_SIZE0, WEIGHT_SIZE1, WEIGHT_SIZE2, CBUF_CON0, CBUF_CON1, CVT_CON0,
        CVT_CON1, CVT_CON2, CVT_CON3, CVT_CON4, FC_CON0, FC_CON1, PAD_CON0, FEATURE_DATA_ADDR,
        FC_CON2, DMA_CON0, DMA_CON1, DMA_CON2, FC_DATA_SIZE0, FC_DATA_SIZE1, CLK_GATE, DCOMP_CTRL,
        DCOMP_REGNUM, DCOMP_ADDR0, CVT_CON5, PAD_CON1;
    core: S_POINTER, MISC_CFG, DATAOUT_SIZE_0, DATAOUT_SIZE_1, CLIP_TRUNCATE, RESERVED_3030;
    dpu: S_POINTER, FEATURE_MODE_CFG, DATA_FORMAT, OFFSET_PEND, DST_BASE_ADDR, DST_SURF_STRIDE,
        DATA_CUBE_WIDTH, DATA_CUBE_HEIGHT, DATA_CUBE_NOTCH_ADDR, DATA_CUBE_CHANNEL, BS_CFG,
        BS_ALU_CFG, BS_MUL_CFG, BS_RELUX_CMP_VALUE, BS_OW_CFG, BS_OW_OP, WDMA_SIZE_0, WDMA_SIZE_1,
        BN_CFG, BN_ALU_CFG, BN_MUL_CFG, BN_RELUX_CMP_VALUE, EW_CFG, EW_CVT_OFFSET_VALUE,
        EW_CVT_SCALE_VALUE, EW_RELUX_CMP_VALUE, OUT_CVT_OFFSET, OUT_CVT_SCALE, OUT_CVT_SHIFT,
        SURFACE_ADD, RESERVED_40C4;
}

/// First register and number of registers of each block that is modelled.
const BLOCKS: [(Block, u16, usize); 3] =
    [(Block::Cna, 0x1000, 0x62), (Block::Core, 0x3000, 0x0d), (Block::Dpu, 0x4000, 0x4c)];
const REGISTERS: usize = BLOCKS[0].2 + BLOCKS[1].2 + BLOCKS[2].2;

/// Values by register. All are 0 until written, as after a reset: what an earlier program left in
/// the same register group is never relied on.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    program: u32,
    /// Bytes of the program.
    len: u64,
    values: [Option<u32>; REGISTERS],
}

impl Registers {
    pub(super) fn new(program: u32) -> Registers {
        Registers { program, len: 0, values: [None; REGISTERS] }
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
        self.slot(register).unwrap_or(0)
    }

    pub(super) fn field(&self, register: u16, field: Field) -> u32 {
        field.get(self.get(register))
    }

    fn slot(&self, register: u16) -> Option<u32> {
        index(register).and_then(|i| self.values.get(i).copied().flatten())
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

    /// The fault that says what `register` holds and what was expected.
    pub(super) fn unexpected(&self, register: u16, expected: String) -> Refusal {
        Refusal::Register {
            program: self.program,
            register,
            name: name(register).unwrap_or("unnamed"),
            value: self.get(register),
            written: self.slot(register).is_some(),
            expected,
        }
    }

    /// The fault that says what is wrong with several registers together.
    pub(super) fn shape(&self, problem: String) -> Refusal {
        Refusal::Shape { program: self.program, problem }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_register_has_a_slot_of_its_own() {
        let mut registers = Registers::new(0);
        let named: Vec<u16> = (0..=u16::MAX).filter(|&r| name(r).is_some()).collect();
        assert!(named.len() > 90);
        for &r in &named {
            registers.write(r, u32::from(r));
        }
        for &r in &named {
            assert_eq!(registers.get(r), u32::from(r), "{r:#x}");
        }
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
