//! The DPU's own inputs (DPU_RDMA): a matrix that takes the array's place, and second operands.
//!
//! ```
//! use rknpu_sys::regs::{Format, rdma};
//!
//! // fp16 operands that come from memory, as element-wise programs state them.
//! let format = Format::Fp16.code();
//! let mode = rdma::FEATURE_MODE_IN_PRECISION.put(format)
//!     | rdma::FEATURE_MODE_PROC_PRECISION.put(format)
//!     | rdma::FEATURE_MODE_FP16_TO_FP32.put(1)
//!     | rdma::FEATURE_MODE_FLYING.put(1);
//! assert_eq!(mode | 0x7800, 0x17849); // with bursts of 15
//! ```

use super::Field;

/// Status.
pub const S_STATUS: u16 = 0x5000;
/// Which of the two register groups is written and run.
pub const S_POINTER: u16 = 0x5004;
/// Starts the block.
pub const OPERATION_ENABLE: u16 = 0x5008;
/// Width − 1.
pub const DATA_CUBE_WIDTH: u16 = 0x500c;
/// Height − 1.
pub const DATA_CUBE_HEIGHT: u16 = 0x5010;
/// Channels − 1.
pub const DATA_CUBE_CHANNEL: u16 = 0x5014;
/// IOVA of the matrix that takes the array's place.
pub const SRC_BASE_ADDR: u16 = 0x5018;
/// Operands of the bias stage: which are read.
pub const BRDMA_CFG: u16 = 0x501c;
/// IOVA of the bias stage's operands.
pub const BS_BASE_ADDR: u16 = 0x5020;
/// Operands of the batch-norm stage: which are read.
pub const NRDMA_CFG: u16 = 0x5028;
/// IOVA of the batch-norm stage's operands.
pub const BN_BASE_ADDR: u16 = 0x502c;
/// Operands of the element-wise stage.
pub const ERDMA_CFG: u16 = 0x5034;
/// IOVA of the element-wise stage's operands.
pub const EW_BASE_ADDR: u16 = 0x5038;
/// Surface stride of the element-wise stage's operands.
pub const EW_SURF_STRIDE: u16 = 0x5040;
/// Formats, and what is read.
pub const FEATURE_MODE_CFG: u16 = 0x5044;
/// Line notch of the source.
pub const SRC_DMA_CFG: u16 = 0x5048;
/// Surface notch of the source.
pub const SURF_NOTCH: u16 = 0x504c;
/// Padding.
pub const PAD_CFG: u16 = 0x5064;
/// Weights of the four readers on the bus.
pub const WEIGHT: u16 = 0x5068;
/// Surface notch of the element-wise stage's operands.
pub const EW_SURF_NOTCH: u16 = 0x506c;

/// [`ERDMA_CFG`]: nothing is read.
pub const ERDMA_DISABLE: Field = Field::new(0, 0);
/// [`ERDMA_CFG`]: bytes of an operand: 1 is one, 2 is two, 3 is four.
pub const ERDMA_DATA_SIZE: Field = Field::new(3, 2);
/// [`ERDMA_CFG`]: 1, an operand for each element.
pub const ERDMA_DATA_MODE: Field = Field::new(31, 30);
/// [`FEATURE_MODE_CFG`]: set, the source is read from memory; clear, it comes from the array.
pub const FEATURE_MODE_FLYING: Field = Field::new(0, 0);
/// [`FEATURE_MODE_CFG`]: halves are widened on the way in.
pub const FEATURE_MODE_FP16_TO_FP32: Field = Field::new(3, 3);
/// [`FEATURE_MODE_CFG`]: how it is processed ([`super::Format`]).
pub const FEATURE_MODE_PROC_PRECISION: Field = Field::new(7, 5);
/// [`FEATURE_MODE_CFG`]: burst length, which changes speed alone.
pub const FEATURE_MODE_BURST: Field = Field::new(14, 11);
/// [`FEATURE_MODE_CFG`]: what comes in ([`super::Format`]).
pub const FEATURE_MODE_IN_PRECISION: Field = Field::new(17, 15);
