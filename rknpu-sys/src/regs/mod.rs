//! Blocks, registers and fields of the NPU, and how a register command is written.
//!
//! A program is a list of 64-bit commands, each "write this value to this register of this block".
//! The program counter unit (PC) fetches and executes it; the last four commands, the trailer, chain
//! to the next program and start the blocks.
//!
//! Names follow the mainline `accel/rocket` driver where it has one. Offsets, values and field
//! meanings: public reverse engineering on RK3588 boards; what is inferred says so.
//!
//! ```
//! use rknpu_sys::regs::{Block, Command, cna};
//!
//! let command = Command::new(Block::Cna, cna::FEATURE_DATA_ADDR, 0xffff_0000);
//! assert_eq!(command.bits(), 0x0201_ffff_0000_1070);
//! assert_eq!(Command::from_bits(command.bits()), command);
//! ```

pub mod cna;
pub mod core;
pub mod dpu;
pub mod pc;
pub mod rdma;

/// Bytes of CBUF, the on-chip buffer that input and weights share, in one bank.
pub const CBUF_BANK_BYTES: u32 = 32 * 1024;
/// Banks of CBUF per core.
pub const CBUF_BANKS: u32 = 12;
/// NPU cores of an RK3588.
pub const CORES: usize = 3;
/// Bytes of a feature atom: the unit in which input and output are addressed.
pub const ATOM_BYTES: u32 = 16;

/// Interrupt pair that ends a program whose last block is the DPU.
pub const INT_DPU: u32 = 0x300;
/// Interrupt pair that ends a program whose last block is the PPU.
pub const INT_PPU: u32 = 0xc00;
/// All interrupt bits, for clearing.
pub const INT_CLEAR_ALL: u32 = 0x1ffff;

/// Target of a command: the high 16 bits.
///
/// ```
/// use rknpu_sys::regs::{Block, Command, dpu};
///
/// let command = Command::new(Block::Dpu, dpu::DST_BASE_ADDR, 0xfff0_0000);
/// assert_eq!(Block::from_id(command.block), Some(Block::Dpu));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Block {
    /// Program counter unit.
    Pc = 0x0101,
    /// Convolution front end: input, weights, CBUF; registers 0x1xxx.
    Cna = 0x0201,
    /// Multiply-accumulate array; registers 0x3xxx.
    Core = 0x0801,
    /// Output stage: scaling, conversion, write-out; registers 0x4xxx.
    Dpu = 0x1001,
    /// The DPU's second input; registers 0x5xxx.
    DpuRdma = 0x2001,
    /// Pooling; registers 0x6xxx.
    Ppu = 0x4001,
    /// Pooling's input; registers 0x7xxx.
    PpuRdma = 0x8001,
    /// Trailer entry before the enable: a barrier.
    Barrier = 0x0041,
    /// Trailer entry that starts the blocks, by [`pc::OPERATION_ENABLE`].
    Enable = 0x0081,
}

impl Block {
    /// The block with this id; `None` when no program in the field uses it.
    ///
    /// ```
    /// use rknpu_sys::regs::Block;
    ///
    /// assert_eq!(Block::from_id(0x0201), Some(Block::Cna));
    /// assert_eq!(Block::from_id(0x0202), None);
    /// ```
    pub const fn from_id(id: u16) -> Option<Block> {
        Some(match id {
            0x0101 => Block::Pc,
            0x0201 => Block::Cna,
            0x0801 => Block::Core,
            0x1001 => Block::Dpu,
            0x2001 => Block::DpuRdma,
            0x4001 => Block::Ppu,
            0x8001 => Block::PpuRdma,
            0x0041 => Block::Barrier,
            0x0081 => Block::Enable,
            _ => return None,
        })
    }

    /// The id as it stands in a command.
    ///
    /// ```
    /// use rknpu_sys::regs::Block;
    ///
    /// assert_eq!(Block::Enable.id(), 0x0081);
    /// ```
    pub const fn id(self) -> u16 {
        self as u16
    }
}

/// One command: bits 63..48 block, 47..16 value, 15..0 register.
///
/// ```
/// use rknpu_sys::regs::{Block, Command, cna};
///
/// // A program in memory is the commands' bytes.
/// let program = [Command::new(Block::Cna, cna::DATA_SIZE0, 1 << 16 | 4), Command::EMPTY];
/// let bytes: Vec<u8> = program.iter().flat_map(|c| c.bits().to_le_bytes()).collect();
/// assert_eq!(bytes[..8], [0x20, 0x10, 4, 0, 1, 0, 0x01, 0x02]);
/// assert_eq!(bytes[8..], [0; 8]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command {
    /// Block id; see [`Block::from_id`].
    pub block: u16,
    /// Register offset.
    pub register: u16,
    /// Value to write.
    pub value: u32,
}

impl Command {
    /// The entry without effect that some programs put before the trailer.
    pub const EMPTY: Command = Command { block: 0, register: 0, value: 0 };

    /// A write of `value` to `register` of `block`.
    ///
    /// ```
    /// use rknpu_sys::regs::{Block, Command, cna};
    ///
    /// let weights_at = Command::new(Block::Cna, cna::DCOMP_ADDR0, 0xffe0_0000);
    /// assert_eq!(weights_at.value, 0xffe0_0000);
    /// ```
    pub const fn new(block: Block, register: u16, value: u32) -> Command {
        Command { block: block.id(), register, value }
    }

    /// The command as the NPU reads it (little-endian in memory).
    ///
    /// ```
    /// use rknpu_sys::regs::{Block, Command, pc};
    ///
    /// let start = Command::new(Block::Enable, pc::OPERATION_ENABLE, 0x0d);
    /// assert_eq!(start.bits(), 0x0081_0000_000d_0008);
    /// ```
    pub const fn bits(self) -> u64 {
        (self.block as u64) << 48 | (self.value as u64) << 16 | self.register as u64
    }

    /// The command that these bits are.
    ///
    /// ```
    /// use rknpu_sys::regs::{Block, Command};
    ///
    /// let command = Command::from_bits(0x1001_0000_01e4_400c);
    /// assert_eq!(command, Command::new(Block::Dpu, 0x400c, 0x1e4));
    /// ```
    pub const fn from_bits(bits: u64) -> Command {
        Command { block: (bits >> 48) as u16, value: (bits >> 16) as u32, register: bits as u16 }
    }
}

/// A run of bits in a register.
///
/// ```
/// use rknpu_sys::regs::cna::{DATA_SIZE0_HEIGHT, DATA_SIZE0_WIDTH};
///
/// // An input of width 1 and 33 rows, as a matmul has it.
/// let register = DATA_SIZE0_WIDTH.put(1) | DATA_SIZE0_HEIGHT.put(33);
/// assert_eq!(register, 0x0001_0021);
/// assert_eq!(DATA_SIZE0_HEIGHT.get(register), 33);
/// assert!(!DATA_SIZE0_HEIGHT.fits(2048)); // eleven bits
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Lowest bit.
    pub shift: u32,
    /// Number of bits, 1..=32.
    pub width: u32,
}

impl Field {
    /// The field from bit `high` down to bit `low`, as data sheets write it.
    ///
    /// ```
    /// use rknpu_sys::regs::Field;
    ///
    /// let field = Field::new(10, 8);
    /// assert_eq!((field.shift, field.width), (8, 3));
    /// ```
    ///
    /// # Panics
    /// When `high` is no bit of a register or below `low`; in a constant, at compile time.
    pub const fn new(high: u32, low: u32) -> Field {
        assert!(high < 32 && low <= high);
        Field { shift: low, width: high - low + 1 }
    }

    /// Bits of the field, in place.
    ///
    /// ```
    /// use rknpu_sys::regs::Field;
    ///
    /// assert_eq!(Field::new(10, 8).mask(), 0x700);
    /// ```
    pub const fn mask(self) -> u32 {
        (u32::MAX >> (32 - self.width)) << self.shift
    }

    /// The field's value in a register.
    ///
    /// ```
    /// use rknpu_sys::regs::{Format, core::MISC_CFG_PROC_PRECISION};
    ///
    /// let format = MISC_CFG_PROC_PRECISION.get(0x601);
    /// assert_eq!(Format::from_code(format), Some(Format::Int4));
    /// ```
    pub const fn get(self, register: u32) -> u32 {
        (register & self.mask()) >> self.shift
    }

    /// `value` in the field's place; bits that do not fit are cut off.
    ///
    /// ```
    /// use rknpu_sys::regs::Field;
    ///
    /// assert_eq!(Field::new(10, 8).put(6), 0x600);
    /// assert_eq!(Field::new(10, 8).put(9), 0x100); // the fourth bit is cut off
    /// ```
    pub const fn put(self, value: u32) -> u32 {
        (value << self.shift) & self.mask()
    }

    /// Whether `value` fits into the field.
    ///
    /// ```
    /// use rknpu_sys::regs::cna::WEIGHT_SIZE2_KERNELS;
    ///
    /// assert!(WEIGHT_SIZE2_KERNELS.fits(8192));
    /// assert!(!WEIGHT_SIZE2_KERNELS.fits(16384)); // why N is cut into slices
    /// ```
    pub const fn fits(self, value: u32) -> bool {
        value <= self.mask() >> self.shift
    }
}

/// Element types as the format fields number them.
///
/// ```
/// use rknpu_sys::regs::{Format, cna::CONV_CON1_IN_PRECISION};
///
/// assert_eq!(CONV_CON1_IN_PRECISION.put(Format::Fp16.code()), 0x20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Format {
    /// 8-bit integer.
    Int8 = 0,
    /// 16-bit integer.
    Int16 = 1,
    /// IEEE half.
    Fp16 = 2,
    /// The upper half of an IEEE single.
    Bf16 = 3,
    /// 32-bit integer.
    Int32 = 4,
    /// IEEE single.
    Fp32 = 5,
    /// 4-bit integer.
    Int4 = 6,
}

impl Format {
    /// The format with this number.
    ///
    /// ```
    /// use rknpu_sys::regs::Format;
    ///
    /// assert_eq!(Format::from_code(4), Some(Format::Int32));
    /// assert_eq!(Format::from_code(7), None);
    /// ```
    pub const fn from_code(code: u32) -> Option<Format> {
        Some(match code {
            0 => Format::Int8,
            1 => Format::Int16,
            2 => Format::Fp16,
            3 => Format::Bf16,
            4 => Format::Int32,
            5 => Format::Fp32,
            6 => Format::Int4,
            _ => return None,
        })
    }

    /// Its number.
    ///
    /// ```
    /// use rknpu_sys::regs::Format;
    ///
    /// assert_eq!(Format::Fp32.code(), 5);
    /// ```
    pub const fn code(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cut_and_place() {
        let f = Field::new(9, 7);
        assert_eq!(f.mask(), 0x380);
        assert_eq!(f.put(0b1_110), 0x300);
        assert_eq!(f.get(0x3ff), 7);
        assert!(f.fits(7) && !f.fits(8));
        assert_eq!(Field::new(31, 0).mask(), u32::MAX);
    }

    #[test]
    fn ids_and_codes_round_trip() {
        for id in 0..=u16::MAX {
            if let Some(block) = Block::from_id(id) {
                assert_eq!(block.id(), id);
            }
        }
        for code in 0..8 {
            if let Some(format) = Format::from_code(code) {
                assert_eq!(format.code(), code);
            }
        }
    }
}
