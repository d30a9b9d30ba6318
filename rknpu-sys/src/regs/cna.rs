//! Convolution front end (CNA): where input and weights come from and how CBUF is split.
//!
//! ```
//! use rknpu_sys::regs::{CBUF_BANKS, cna};
//!
//! // A row of input in one bank leaves eleven to the weights: 0xb1, as programs for one row have.
//! let split = cna::CBUF_CON0_DATA_BANK.put(1) | cna::CBUF_CON0_WEIGHT_BANK.put(CBUF_BANKS - 1);
//! assert_eq!(split, 0xb1);
//! ```

use super::Field;

/// Status.
pub const S_STATUS: u16 = 0x1000;
/// Which of the two register groups is written and run.
pub const S_POINTER: u16 = 0x1004;
/// Starts the block.
pub const OPERATION_ENABLE: u16 = 0x1008;
/// Precision and input addressing.
pub const CONV_CON1: u16 = 0x100c;
/// Input rows to fetch before the array starts.
pub const CONV_CON2: u16 = 0x1010;
/// Strides; 9 is 1 in both directions.
pub const CONV_CON3: u16 = 0x1014;
/// Input width and height.
pub const DATA_SIZE0: u16 = 0x1020;
/// Input channels: K − 1 and K.
pub const DATA_SIZE1: u16 = 0x1024;
/// Output width.
pub const DATA_SIZE2: u16 = 0x1028;
/// Output atoms: width × height.
pub const DATA_SIZE3: u16 = 0x102c;
/// Weight bytes in total.
pub const WEIGHT_SIZE0: u16 = 0x1030;
/// Weight bytes of one output channel.
pub const WEIGHT_SIZE1: u16 = 0x1034;
/// Kernel width, height and number of output channels.
pub const WEIGHT_SIZE2: u16 = 0x1038;
/// CBUF banks.
pub const CBUF_CON0: u16 = 0x1040;
/// CBUF entries of 64 bytes for one row of input.
pub const CBUF_CON1: u16 = 0x1044;
/// Input conversion mode; 0x0b bypasses it.
pub const CVT_CON0: u16 = 0x104c;
/// Input conversion scale and offset, channel 0; the scale's 1 is 0x10000.
pub const CVT_CON1: u16 = 0x1050;
/// Channel 1.
pub const CVT_CON2: u16 = 0x1054;
/// Channel 2.
pub const CVT_CON3: u16 = 0x1058;
/// Channel 3.
pub const CVT_CON4: u16 = 0x105c;
/// Fully-connected mode.
pub const FC_CON0: u16 = 0x1060;
/// Fully-connected mode.
pub const FC_CON1: u16 = 0x1064;
/// Padding.
pub const PAD_CON0: u16 = 0x1068;
/// IOVA of the input.
pub const FEATURE_DATA_ADDR: u16 = 0x1070;
/// Fully-connected mode.
pub const FC_CON2: u16 = 0x1074;
/// Burst lengths.
pub const DMA_CON0: u16 = 0x1078;
/// Line stride of the input.
pub const DMA_CON1: u16 = 0x107c;
/// Surface stride of the input, signed.
pub const DMA_CON2: u16 = 0x1080;
/// Mirror of [`DATA_SIZE0`].
pub const FC_DATA_SIZE0: u16 = 0x1084;
/// Input channels again.
pub const FC_DATA_SIZE1: u16 = 0x1088;
/// Clock gating.
pub const CLK_GATE: u16 = 0x1090;
/// Weight decompression; 0 is none.
pub const DCOMP_CTRL: u16 = 0x1100;
/// Weight decompression.
pub const DCOMP_REGNUM: u16 = 0x1104;
/// IOVA of the weights.
pub const DCOMP_ADDR0: u16 = 0x1110;
/// Weight decompression amounts: 16 registers, 4 apart.
pub const DCOMP_AMOUNT0: u16 = 0x1140;
/// Input conversion, per-channel mode.
pub const CVT_CON5: u16 = 0x1180;
/// Padding value.
pub const PAD_CON1: u16 = 0x1184;

/// [`CONV_CON1`]: how the array computes ([`super::Format`]).
pub const CONV_CON1_PROC_PRECISION: Field = Field::new(9, 7);
/// [`CONV_CON1`]: what the input is ([`super::Format`]).
pub const CONV_CON1_IN_PRECISION: Field = Field::new(6, 4);
/// [`CONV_CON1`]: set, input rows lie row-major; clear, in planes of 16-byte atoms.
pub const CONV_CON1_ROW_MAJOR: Field = Field::new(29, 29);
/// [`CONV_CON2`]: rows fetched ahead, plus one.
pub const CONV_CON2_FEATURE_GRAINS: Field = Field::new(13, 4);
/// [`DATA_SIZE0`]: input width.
pub const DATA_SIZE0_WIDTH: Field = Field::new(26, 16);
/// [`DATA_SIZE0`]: input height, the rows M of a matmul.
pub const DATA_SIZE0_HEIGHT: Field = Field::new(10, 0);
/// [`DATA_SIZE1`]: channels less one.
pub const DATA_SIZE1_CHANNEL_REAL: Field = Field::new(29, 16);
/// [`DATA_SIZE1`]: channels.
pub const DATA_SIZE1_CHANNEL: Field = Field::new(15, 0);
/// [`WEIGHT_SIZE2`]: kernel width.
pub const WEIGHT_SIZE2_WIDTH: Field = Field::new(28, 24);
/// [`WEIGHT_SIZE2`]: kernel height.
pub const WEIGHT_SIZE2_HEIGHT: Field = Field::new(20, 16);
/// [`WEIGHT_SIZE2`]: output channels.
pub const WEIGHT_SIZE2_KERNELS: Field = Field::new(13, 0);
/// [`CBUF_CON0`]: banks for the input.
pub const CBUF_CON0_DATA_BANK: Field = Field::new(3, 0);
/// [`CBUF_CON0`]: banks for the weights.
pub const CBUF_CON0_WEIGHT_BANK: Field = Field::new(7, 4);
/// [`CBUF_CON0`]: banks for fully-connected data.
pub const CBUF_CON0_FC_DATA_BANK: Field = Field::new(10, 8);
/// [`CBUF_CON0`]: keep the input of the program before.
pub const CBUF_CON0_DATA_REUSE: Field = Field::new(12, 12);
/// [`CBUF_CON0`]: keep the weights of the program before.
pub const CBUF_CON0_WEIGHT_REUSE: Field = Field::new(13, 13);
/// [`DMA_CON1`]: line stride.
pub const DMA_CON1_LINE_STRIDE: Field = Field::new(27, 0);
/// [`DMA_CON2`]: surface stride, two's complement.
pub const DMA_CON2_SURF_STRIDE: Field = Field::new(27, 0);
