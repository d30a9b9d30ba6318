//! Encodes the register program of one matmul, row-major.
//!
//! 108 register writes and a trailer of four: the next program's address and amount, a barrier, and the
//! word that starts the blocks. Input and output are row-major; weights are tiled
//! ([`rknpu_sys::layout`]). Values and order are those of public programs that ran on RK3588 boards.

use rknpu_sys::layout::Precision;
use rknpu_sys::regs::{ATOM_BYTES, Block, Command, Format, cna, core, dpu, pc};

use crate::limits;

/// Register writes before the trailer: a task's `regcfg_amount`.
pub const AMOUNT: u32 = 108;
/// Commands with the trailer.
pub const COMMANDS: usize = (AMOUNT + pc::TRAILER_COMMANDS) as usize;
/// Bytes of a program.
pub const BYTES: usize = COMMANDS * 8;

/// Why a program must not reach the NPU.
///
/// ```
/// use rknpu::Precision;
/// use rknpu::program::{MatmulProgram, ProgramError};
///
/// let matmul = MatmulProgram {
///     precision: Precision::Int8,
///     m: 1, k: 1024, n: 1024,
///     input: 0xffff_0008, weights: 0xfff0_0000, output: 0xffe0_0000,
///     next: None,
/// };
/// assert!(matches!(matmul.encode(), Err(ProgramError::Address { what: "input", .. })));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A size that the registers or CBUF cannot hold.
    #[error(
        "M={m} K={k} N={n} is no {precision:?} program: at most {rows} rows at this K, K up to {k_limit} in steps of 32, N up to 8192 in steps of {n_step}"
    )]
    Shape {
        /// Rows.
        m: u32,
        /// Inputs.
        k: u32,
        /// Outputs.
        n: u32,
        /// Element type.
        precision: Precision,
        /// Rows possible.
        rows: u32,
        /// Inputs possible.
        k_limit: u32,
        /// Outputs come in steps of.
        n_step: u32,
    },
    /// An address that is 0, odd or beyond 32 bits.
    #[error(
        "the {what} address {address:#x} is not possible: above 0, below 4 GiB, a multiple of 16"
    )]
    Address {
        /// Which.
        what: &'static str,
        /// Address.
        address: u64,
    },
    /// A range that no buffer of the job covers.
    #[error(
        "program {program}: {what} of up to {len} bytes at {address:#x} lies in none of the job's buffers; give it one that covers them"
    )]
    Outside {
        /// Program, from 0.
        program: usize,
        /// Which.
        what: &'static str,
        /// First byte.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// A command that a job may not contain.
    #[error(
        "program {program}, command {command}: block {block:#06x} register {register:#06x} is not allowed: {why}"
    )]
    Command {
        /// Program, from 0.
        program: usize,
        /// Command in it, from 0.
        command: usize,
        /// Block id.
        block: u16,
        /// Register offset.
        register: u16,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A value that leaves unknown which memory the NPU would touch, or that it cannot run.
    #[error("program {program} writes {value:#x} to register {register:#06x}: {why}")]
    Value {
        /// Program, from 0.
        program: usize,
        /// Register offset.
        register: u16,
        /// What the program writes last.
        value: u32,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A register that a program must write is missing.
    #[error(
        "program {program} does not write register {register:#06x}: it would hold what an earlier program left"
    )]
    Missing {
        /// Program, from 0.
        program: usize,
        /// Register offset.
        register: u16,
    },
    /// No programs, too many, or one of an impossible length.
    #[error("{what}: {got}, possible are 1 to {limit}")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        got: usize,
        /// At most.
        limit: usize,
    },
}

/// One matmul: `C[m][n] = A[m][k] · W[k][n]`, each of the sizes within one program's limits.
///
/// ```
/// use rknpu::Precision;
/// use rknpu::program::MatmulProgram;
///
/// let matmul = MatmulProgram {
///     precision: Precision::Int8,
///     m: 1, k: 1024, n: 1024,
///     input: 0xffff_0000, weights: 0xfff0_0000, output: 0xffe0_0000,
///     next: None,
/// };
/// let program = matmul.encode()?;
/// assert_eq!(program.len(), 112);
/// # Ok::<(), rknpu::program::ProgramError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulProgram {
    /// Element type of input and weights.
    pub precision: Precision,
    /// Rows.
    pub m: u32,
    /// Inputs: a multiple of 32.
    pub k: u32,
    /// Outputs: a multiple of the tile width.
    pub n: u32,
    /// IOVA of the input, row-major `[m][k]`; int4 packs two a byte, the even k low.
    pub input: u64,
    /// IOVA of the weights' first tile.
    pub weights: u64,
    /// IOVA of the output, row-major `[m][n]` of i32 (int8), f32 (fp16) or i16 (int4).
    pub output: u64,
    /// IOVA of the program to go on with.
    pub next: Option<u64>,
}

/// Register values that depend on the precision.
struct Values {
    input: Format,
    out: Format,
    row_major: u32,
    bs_ow: u32,
    surface_add: u32,
    surf_stride: u32,
}

const fn values(precision: Precision) -> Values {
    match precision {
        Precision::Int8 => Values {
            input: Format::Int8,
            out: Format::Int32,
            row_major: 1,
            bs_ow: 0x7fc,
            surface_add: 0x80,
            surf_stride: 0,
        },
        Precision::Fp16 => Values {
            input: Format::Fp16,
            out: Format::Fp32,
            row_major: 1,
            bs_ow: 0x36e,
            surface_add: 0x40,
            surf_stride: 0,
        },
        Precision::Int4 => Values {
            input: Format::Int4,
            out: Format::Int16,
            row_major: 0,
            bs_ow: 0x7fe,
            surface_add: 0x80,
            // -3, as captured.
            surf_stride: 0x0fff_fffd,
        },
    }
}

impl MatmulProgram {
    /// The commands, trailer included.
    ///
    /// ```
    /// use rknpu::Precision;
    /// use rknpu::program::MatmulProgram;
    /// use rknpu::sys::regs::{Block, Command, dpu};
    ///
    /// let matmul = MatmulProgram {
    ///     precision: Precision::Fp16,
    ///     m: 4, k: 512, n: 64,
    ///     input: 0xffff_0000, weights: 0xfff0_0000, output: 0xffe0_0000,
    ///     next: None,
    /// };
    /// let program = matmul.encode()?;
    /// assert!(program.contains(&Command::new(Block::Dpu, dpu::DST_BASE_ADDR, 0xffe0_0000)));
    /// # Ok::<(), rknpu::program::ProgramError>(())
    /// ```
    ///
    /// # Errors
    /// [`ProgramError::Shape`] and [`ProgramError::Address`]: what the NPU would run wrongly or never
    /// end.
    pub fn encode(&self) -> Result<[Command; COMMANDS], ProgramError> {
        let mut program = [Command::EMPTY; COMMANDS];
        let mut at = 0;
        self.commands(|command| {
            program[at] = command;
            at += 1;
        })?;
        Ok(program)
    }

    /// Writes the program as the NPU reads it.
    ///
    /// # Errors
    /// As [`MatmulProgram::encode`].
    pub(crate) fn write(&self, out: &mut [u8; BYTES]) -> Result<(), ProgramError> {
        let mut words = out.chunks_exact_mut(8);
        self.commands(|command| {
            if let Some(word) = words.next() {
                word.copy_from_slice(&command.bits().to_le_bytes());
            }
        })
    }

    fn check(&self) -> Result<(u32, u32), ProgramError> {
        let MatmulProgram { precision, m, k, n, .. } = *self;
        let n_step = precision.tile_width();
        let refused = ProgramError::Shape {
            m,
            k,
            n,
            precision,
            rows: if k == 0 { 0 } else { limits::rows(precision, k) },
            k_limit: precision.k_slice(),
            n_step,
        };
        let shape = k != 0
            && k.is_multiple_of(rknpu_sys::layout::K_BLOCK)
            && k <= precision.k_slice()
            && n != 0
            && n.is_multiple_of(n_step)
            && n <= rknpu_sys::layout::N_SLICE
            && m != 0
            && m <= limits::rows(precision, k);
        let (true, Some(banks)) = (shape, limits::banks(precision, m, k)) else {
            return Err(refused);
        };
        let addresses = [("input", self.input), ("weight", self.weights), ("output", self.output)];
        for (what, address) in addresses.into_iter().chain(self.next.map(|next| ("next", next))) {
            let aligned = address.is_multiple_of(ATOM_BYTES.into());
            if address == 0 || !aligned || address > u32::MAX.into() {
                return Err(ProgramError::Address { what, address });
            }
        }
        Ok(banks)
    }

    /// Gives each command to `put`, in order: exactly [`COMMANDS`] of them.
    #[inline]
    fn commands(&self, mut put: impl FnMut(Command)) -> Result<(), ProgramError> {
        let (data_banks, weight_banks) = self.check()?;
        let MatmulProgram { precision, m, k, n, .. } = *self;
        let v = values(precision);
        let row = limits::row_bytes(precision, k);
        let format = v.input.code();
        let conv_con1 = cna::CONV_CON1_ROW_MAJOR.put(v.row_major)
            | cna::CONV_CON1_PROC_PRECISION.put(format)
            | cna::CONV_CON1_IN_PRECISION.put(format);
        let cbuf_con0 =
            cna::CBUF_CON0_WEIGHT_BANK.put(weight_banks) | cna::CBUF_CON0_DATA_BANK.put(data_banks);
        let size = cna::DATA_SIZE0_WIDTH.put(1) | cna::DATA_SIZE0_HEIGHT.put(m);
        // Rows fetched before the array starts: a hint, all rows or what two banks hold.
        let ahead = (m + 1).min(prefetch_rows(row));
        // int4 is captured with 4 atoms whatever K, for single rows.
        let line = if v.row_major == 1 { row / ATOM_BYTES } else { 4 };
        let out_bytes = output_bytes(precision);
        // What makes the output row-major: atoms to go on by after each row. int4 rows need none.
        let notch = if v.row_major == 1 { n * out_bytes / ATOM_BYTES - 1 } else { 0 };

        let cna = |register, value| Command::new(Block::Cna, register, value);
        let dpu = |register, value| Command::new(Block::Dpu, register, value);

        put(dpu(dpu::S_POINTER, S_POINTER));
        for (register, value) in [
            // The first four come again below; the later writes are those that count.
            (cna::CBUF_CON0, cbuf_con0),
            (cna::DCOMP_REGNUM, 0),
            (cna::DCOMP_CTRL, 0),
            (cna::CONV_CON1, conv_con1),
            (cna::CONV_CON1, conv_con1),
            (cna::CONV_CON2, cna::CONV_CON2_FEATURE_GRAINS.put(ahead)),
            (cna::CONV_CON3, STRIDES_1),
            (cna::DATA_SIZE0, size),
            (cna::DATA_SIZE1, cna::DATA_SIZE1_CHANNEL_REAL.put(k - 1) | k),
            (cna::DATA_SIZE2, 1),
            (cna::DATA_SIZE3, m),
            (cna::WEIGHT_SIZE0, row * n),
            (cna::WEIGHT_SIZE1, row),
            (cna::WEIGHT_SIZE2, KERNEL_1X1 | cna::WEIGHT_SIZE2_KERNELS.put(n)),
            (cna::CBUF_CON0, cbuf_con0),
            (cna::CBUF_CON1, row.div_ceil(CBUF_ENTRY)),
            (cna::CVT_CON0, CVT_BYPASS),
            (cna::CVT_CON1, CVT_SCALE_1),
            (cna::CVT_CON2, CVT_SCALE_1),
            (cna::CVT_CON3, CVT_SCALE_1),
            (cna::CVT_CON4, CVT_SCALE_1),
            (cna::FC_CON0, 0),
            (cna::FC_CON1, 0),
            (cna::PAD_CON0, 0),
            (cna::FEATURE_DATA_ADDR, self.input as u32),
            (cna::FC_CON2, 0),
            (cna::DMA_CON0, BURSTS_MAX),
            (cna::DMA_CON1, cna::DMA_CON1_LINE_STRIDE.put(line)),
            (cna::DMA_CON2, cna::DMA_CON2_SURF_STRIDE.put(v.surf_stride)),
            (cna::FC_DATA_SIZE0, size),
            (cna::FC_DATA_SIZE1, k),
            (cna::DCOMP_CTRL, 0),
            (cna::DCOMP_REGNUM, 0),
            (cna::DCOMP_ADDR0, self.weights as u32),
        ] {
            put(cna(register, value));
        }
        // Weight decompression amounts, the per-channel conversion and the padding value.
        for register in (cna::DCOMP_AMOUNT0..=cna::PAD_CON1).step_by(4) {
            put(cna(register, 0));
        }
        let proc = core::MISC_CFG_PROC_PRECISION.put(format);
        for (register, value) in [
            (core::MISC_CFG, proc | core::MISC_CFG_QD_EN.put(1)),
            (core::DATAOUT_SIZE_0, core::DATAOUT_SIZE_0_HEIGHT.put(m - 1)),
            (core::DATAOUT_SIZE_1, n - 1),
            (core::CLIP_TRUNCATE, 0),
            (core::RESERVED_3030, 0),
        ] {
            put(Command::new(Block::Core, register, value));
        }
        let data_format = dpu::DATA_FORMAT_OUT_PRECISION.put(v.out.code())
            | dpu::DATA_FORMAT_IN_PRECISION.put(format)
            | dpu::DATA_FORMAT_PROC_PRECISION.put(format);
        for (register, value) in [
            (dpu::FEATURE_MODE_CFG, TO_MEMORY),
            (dpu::DATA_FORMAT, data_format),
            (dpu::OFFSET_PEND, 0),
            (dpu::DST_BASE_ADDR, self.output as u32),
            (dpu::DST_SURF_STRIDE, dpu::DST_SURF_STRIDE_ATOMS.put(1)),
            (dpu::DATA_CUBE_WIDTH, 0),
            (dpu::DATA_CUBE_HEIGHT, m - 1),
            (dpu::DATA_CUBE_NOTCH_ADDR, dpu::NOTCH_0.put(notch) | dpu::NOTCH_1.put(notch)),
            (dpu::DATA_CUBE_CHANNEL, dpu::CHANNEL_ORIGINAL.put(n - 1) | dpu::CHANNEL.put(n - 1)),
            (dpu::BS_CFG, STAGE_BYPASS),
            (dpu::BS_ALU_CFG, 0),
            (dpu::BS_MUL_CFG, 0),
            (dpu::BS_RELUX_CMP_VALUE, 0),
            (dpu::BS_OW_CFG, v.bs_ow),
            (dpu::BS_OW_OP, 0),
            (dpu::WDMA_SIZE_0, n - 1),
            (dpu::WDMA_SIZE_1, dpu::WDMA_SIZE_1_HEIGHT.put(m - 1)),
            (dpu::BN_CFG, STAGE_BYPASS),
            (dpu::BN_ALU_CFG, 0),
            (dpu::BN_MUL_CFG, 0),
            (dpu::BN_RELUX_CMP_VALUE, 0),
            (dpu::EW_CFG, EW_BYPASS),
            (dpu::EW_CVT_OFFSET_VALUE, 0),
            (dpu::EW_CVT_SCALE_VALUE, 1),
            (dpu::EW_RELUX_CMP_VALUE, 0),
            (dpu::OUT_CVT_OFFSET, 0),
            (dpu::OUT_CVT_SCALE, 1),
            (dpu::OUT_CVT_SHIFT, 0),
        ] {
            put(dpu(register, value));
        }
        for i in 0..8 {
            put(dpu(dpu::EW_OP_VALUE_0 + 4 * i, 0));
        }
        put(dpu(dpu::SURFACE_ADD, v.surface_add));
        put(dpu(dpu::RESERVED_40C4, 0));
        for i in 0..12 {
            put(dpu(dpu::LUT_ACCESS_CFG + 4 * i, 0));
        }
        trailer(self.next.map(|next| (next, AMOUNT))).into_iter().for_each(put);
        Ok(())
    }
}

/// The four commands that end a program: where to go on (address and amount), and the start of the
/// blocks.
pub(crate) fn trailer(next: Option<(u64, u32)>) -> [Command; 4] {
    let (address, amount) =
        next.map_or((0, 0), |(address, amount)| (address as u32, pc::fetch_amount(amount)));
    [
        Command::new(Block::Pc, pc::BASE_ADDRESS, address),
        Command::new(Block::Pc, pc::REGISTER_AMOUNTS, amount),
        Command::new(Block::Barrier, 0, 0),
        Command::new(Block::Enable, pc::OPERATION_ENABLE, pc::ENABLE_CNA_CORE_DPU),
    ]
}

/// Bytes of one output element.
///
/// ```
/// use rknpu::{Precision, program::output_bytes};
///
/// assert_eq!(output_bytes(Precision::Int8), 4); // i32
/// assert_eq!(output_bytes(Precision::Int4), 2); // i16
/// ```
pub const fn output_bytes(precision: Precision) -> u32 {
    match precision {
        Precision::Int8 | Precision::Fp16 => 4,
        Precision::Int4 => 2,
    }
}

/// Rows of `row` bytes that 64 KiB hold, as a power of two.
fn prefetch_rows(row: u32) -> u32 {
    let rows = (0x1_0000 / row).max(2);
    1 << rows.ilog2()
}

/// Register groups' pointers.
const S_POINTER: u32 = 0x0e;
/// Stride 1 both ways.
const STRIDES_1: u32 = 9;
/// A kernel of 1 × 1.
const KERNEL_1X1: u32 = cna::WEIGHT_SIZE2_WIDTH.put(1) | cna::WEIGHT_SIZE2_HEIGHT.put(1);
/// Bytes of a CBUF entry.
const CBUF_ENTRY: u32 = 64;
/// No conversion of the input.
const CVT_BYPASS: u32 = 0x0b;
/// A conversion scale of 1.
const CVT_SCALE_1: u32 = 0x1_0000;
/// Longest bursts for input and weights.
const BURSTS_MAX: u32 = 0x000f_000f;
/// Results go to memory, in bursts.
const TO_MEMORY: u32 = 0x1e4;
/// The bias and batch-norm stages pass through.
const STAGE_BYPASS: u32 = 0x53;
/// The element-wise stage passes through.
const EW_BYPASS: u32 = 0x383;

#[cfg(test)]
mod tests {
    use super::*;

    fn matmul(precision: Precision, m: u32, k: u32, n: u32) -> MatmulProgram {
        let (input, weights, output) = (0xffff_0000, 0xfff0_0000, 0xffe0_0000);
        MatmulProgram { precision, m, k, n, input, weights, output, next: None }
    }

    /// The value that counts: the last write.
    fn value(program: &[Command], register: u16) -> u32 {
        program.iter().rev().find(|c| c.register == register).unwrap().value
    }

    #[test]
    fn registers_hold_the_values_known_from_boards() {
        for (precision, table) in [
            (
                Precision::Int8,
                [0x2000_0000, 0x001, 0x8000_0000, 0x7fc, 0x80, 64 / 4 - 1, 16 * 5, 256 / 16],
            ),
            (
                Precision::Fp16,
                [0x2000_0120, 0x201, 0xa800_0002, 0x36e, 0x40, 64 / 4 - 1, 16 * 5, 256 / 8],
            ),
            (Precision::Int4, [0x0000_0360, 0x601, 0x3800_0006, 0x7fe, 0x80, 0, 0x20, 4]),
        ] {
            let m = if precision == Precision::Int4 { 1 } else { 4 };
            let program = matmul(precision, m, 256, 64).encode().unwrap();
            let registers = [0x100c, 0x3010, 0x4010, 0x4050, 0x40c0, 0x4038, 0x1010, 0x107c];
            for (register, want) in registers.into_iter().zip(table) {
                let want = if register == 0x4038 { want << 16 | want } else { want };
                assert_eq!(value(&program, register), want, "{precision:?} {register:#x}");
            }
            let row = 256 * precision.bits() / 8;
            assert_eq!(value(&program, 0x1030), row * 64);
            assert_eq!(value(&program, 0x1034), row);
            assert_eq!(value(&program, 0x1024), 255 << 16 | 256);
            assert_eq!(value(&program, 0x1020), 1 << 16 | m);
            assert_eq!(value(&program, 0x403c), 63 << 16 | 63);
        }
    }

    #[test]
    fn a_program_has_108_writes_and_its_trailer() {
        let mut m = matmul(Precision::Int8, 1, 1024, 8192);
        m.next = Some(0xffd0_0000);
        let program = m.encode().unwrap();
        assert!(program.iter().all(|c| Block::from_id(c.block).is_some()));
        assert_eq!(program[0].bits(), 0x1001_0000_000e_4004);
        assert_eq!(value(&program, 0x1040), 0xb1);
        assert_eq!(program[108].bits(), 0x0101_ffd0_0000_0010);
        assert_eq!(program[109].bits(), 0x0101_0000_0037_0014);
        assert_eq!(program[110].bits(), 0x0041_0000_0000_0000);
        assert_eq!(program[111].bits(), 0x0081_0000_000d_0008);

        let mut bytes = [0u8; BYTES];
        m.write(&mut bytes).unwrap();
        for (word, command) in bytes.chunks(8).zip(&program) {
            assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), command.bits());
        }
    }

    #[test]
    fn what_the_npu_would_run_wrongly_is_refused() {
        for (m, k, n) in [
            (0, 32, 32),
            (1, 0, 32),
            (1, 48, 32),
            (1, 1056, 32),
            (1, 32, 0),
            (1, 32, 33),
            (1, 32, 8224),
            (257, 1024, 32),
        ] {
            let error = matmul(Precision::Int8, m, k, n).encode().unwrap_err();
            assert!(matches!(error, ProgramError::Shape { .. }), "{m} {k} {n}");
        }
        for address in [0, 8, 1 << 32] {
            let mut m = matmul(Precision::Int8, 1, 32, 32);
            m.output = address;
            let refused = ProgramError::Address { what: "output", address };
            assert_eq!(m.encode().unwrap_err(), refused);
        }
    }
}
