//! Output stage (DPU): scaling, conversion and write-out.
//!
//! ```
//! use rknpu_sys::regs::{Format, dpu};
//!
//! // int8 in, int32 out: 0x80000000, as int8 programs have.
//! let format = dpu::DATA_FORMAT_IN_PRECISION.put(Format::Int8.code())
//!     | dpu::DATA_FORMAT_OUT_PRECISION.put(Format::Int32.code());
//! assert_eq!(format, 0x8000_0000);
//! ```

use super::Field;

/// Status.
pub const S_STATUS: u16 = 0x4000;
/// Which of the two register groups is written and run; 0x0e.
pub const S_POINTER: u16 = 0x4004;
/// Starts the block.
pub const OPERATION_ENABLE: u16 = 0x4008;
/// Burst length and where results go; 0x1e4 writes to memory.
pub const FEATURE_MODE_CFG: u16 = 0x400c;
/// Input, processing and output formats.
pub const DATA_FORMAT: u16 = 0x4010;
/// Offset of pending output.
pub const OFFSET_PEND: u16 = 0x4014;
/// IOVA of the output.
pub const DST_BASE_ADDR: u16 = 0x4020;
/// Surface stride of the output.
pub const DST_SURF_STRIDE: u16 = 0x4024;
/// Output width − 1.
pub const DATA_CUBE_WIDTH: u16 = 0x4030;
/// Output height − 1.
pub const DATA_CUBE_HEIGHT: u16 = 0x4034;
/// Atoms to skip after each output row: this is what makes row-major output.
pub const DATA_CUBE_NOTCH_ADDR: u16 = 0x4038;
/// Output channels.
pub const DATA_CUBE_CHANNEL: u16 = 0x403c;
/// Bias stage; 0x53 bypasses it.
pub const BS_CFG: u16 = 0x4040;
/// Bias stage.
pub const BS_ALU_CFG: u16 = 0x4044;
/// Bias stage.
pub const BS_MUL_CFG: u16 = 0x4048;
/// Bias stage.
pub const BS_RELUX_CMP_VALUE: u16 = 0x404c;
/// Output width of the bias stage, per output size.
pub const BS_OW_CFG: u16 = 0x4050;
/// Bias stage.
pub const BS_OW_OP: u16 = 0x4054;
/// Write-DMA channels − 1.
pub const WDMA_SIZE_0: u16 = 0x4058;
/// Write-DMA height − 1 and width − 1.
pub const WDMA_SIZE_1: u16 = 0x405c;
/// Batch-norm stage; 0x53 bypasses it.
pub const BN_CFG: u16 = 0x4060;
/// Batch-norm stage.
pub const BN_ALU_CFG: u16 = 0x4064;
/// Batch-norm stage.
pub const BN_MUL_CFG: u16 = 0x4068;
/// Batch-norm stage.
pub const BN_RELUX_CMP_VALUE: u16 = 0x406c;
/// Element-wise stage; 0x383 bypasses it.
pub const EW_CFG: u16 = 0x4070;
/// Element-wise stage.
pub const EW_CVT_OFFSET_VALUE: u16 = 0x4074;
/// Element-wise stage; 1.
pub const EW_CVT_SCALE_VALUE: u16 = 0x4078;
/// Element-wise stage.
pub const EW_RELUX_CMP_VALUE: u16 = 0x407c;
/// Output offset.
pub const OUT_CVT_OFFSET: u16 = 0x4080;
/// Output scale.
pub const OUT_CVT_SCALE: u16 = 0x4084;
/// Output shift.
pub const OUT_CVT_SHIFT: u16 = 0x4088;
/// Element-wise operands: 8 registers, 4 apart.
pub const EW_OP_VALUE_0: u16 = 0x4090;
/// Surface stride of the element-wise path.
pub const SURFACE_ADD: u16 = 0x40c0;
/// Written as 0 by all known programs.
pub const RESERVED_40C4: u16 = 0x40c4;
/// Look-up table access: 12 registers, 4 apart, up to 0x412c.
pub const LUT_ACCESS_CFG: u16 = 0x4100;

/// [`DATA_FORMAT`]: what is written ([`super::Format`]).
pub const DATA_FORMAT_OUT_PRECISION: Field = Field::new(31, 29);
/// [`DATA_FORMAT`]: what comes in ([`super::Format`]).
pub const DATA_FORMAT_IN_PRECISION: Field = Field::new(28, 26);
/// [`DATA_FORMAT`]: how it is processed ([`super::Format`]).
pub const DATA_FORMAT_PROC_PRECISION: Field = Field::new(2, 0);
/// [`DST_SURF_STRIDE`]: in atoms.
pub const DST_SURF_STRIDE_ATOMS: Field = Field::new(31, 4);
/// [`DATA_CUBE_NOTCH_ADDR`]: one half; the other repeats it.
pub const NOTCH_0: Field = Field::new(12, 0);
/// [`DATA_CUBE_NOTCH_ADDR`]: the other half.
pub const NOTCH_1: Field = Field::new(28, 16);
/// [`DATA_CUBE_CHANNEL`]: channels of the written row − 1.
pub const CHANNEL_ORIGINAL: Field = Field::new(28, 16);
/// [`DATA_CUBE_CHANNEL`]: channels of this program − 1.
pub const CHANNEL: Field = Field::new(12, 0);
/// [`WDMA_SIZE_1`]: height − 1.
pub const WDMA_SIZE_1_HEIGHT: Field = Field::new(28, 16);
/// [`WDMA_SIZE_1`]: width − 1.
pub const WDMA_SIZE_1_WIDTH: Field = Field::new(12, 0);
/// [`OUT_CVT_SCALE`]: 16-bit multiplier.
pub const OUT_CVT_SCALE_MULTIPLIER: Field = Field::new(15, 0);
/// [`OUT_CVT_SCALE`]: converts f32 results to f16.
pub const OUT_CVT_SCALE_FP32_TO_FP16: Field = Field::new(16, 16);
/// [`FEATURE_MODE_CFG`]: set, the input comes from memory; clear, from the array.
pub const FEATURE_MODE_FLYING: Field = Field::new(0, 0);
/// [`FEATURE_MODE_CFG`]: where results go; 2 is to memory.
pub const FEATURE_MODE_OUTPUT: Field = Field::new(2, 1);
/// [`FEATURE_MODE_CFG`]: burst length, which changes speed alone.
pub const FEATURE_MODE_BURST: Field = Field::new(8, 5);
/// [`BS_CFG`] and [`BN_CFG`]: the whole stage is bypassed.
pub const STAGE_BYPASS: Field = Field::new(0, 0);
/// [`EW_CFG`]: the whole stage is bypassed.
pub const EW_BYPASS: Field = Field::new(0, 0);
/// [`EW_CFG`]: the operation is bypassed.
pub const EW_OP_BYPASS: Field = Field::new(1, 1);
/// [`EW_CFG`]: 0 is the algorithm of [`EW_ALU_ALGO`], 1 a multiplication.
pub const EW_OP_TYPE: Field = Field::new(2, 2);
/// [`EW_CFG`]: 1, operands come from memory.
pub const EW_OP_SRC: Field = Field::new(6, 6);
/// [`EW_CFG`]: the look-up table is bypassed.
pub const EW_LUT_BYPASS: Field = Field::new(7, 7);
/// [`EW_CFG`]: operands are not converted.
pub const EW_OP_CVT_BYPASS: Field = Field::new(8, 8);
/// [`EW_CFG`]: no ReLU.
pub const EW_RELU_BYPASS: Field = Field::new(9, 9);
/// [`EW_CFG`]: maximum, minimum, sum, quotient, difference, from 0 on.
pub const EW_ALU_ALGO: Field = Field::new(19, 16);
/// [`EW_CFG`]: bytes of an operand, as in [`super::rdma::ERDMA_DATA_SIZE`].
pub const EW_DATA_SIZE: Field = Field::new(23, 22);
/// [`EW_CFG`]: 1, an operand for each element.
pub const EW_DATA_MODE: Field = Field::new(29, 28);
/// [`SURFACE_ADD`]: stride.
pub const SURFACE_ADD_ATOMS: Field = Field::new(31, 4);
