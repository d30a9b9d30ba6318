//! Multiply-accumulate array.
//!
//! ```
//! use rknpu_sys::regs::{Format, core};
//!
//! // The array computes in fp16, in quantised mode: 0x201, as fp16 programs have.
//! let fp16 = core::MISC_CFG_PROC_PRECISION.put(Format::Fp16.code()) | core::MISC_CFG_QD_EN.put(1);
//! assert_eq!(fp16, 0x201);
//! ```

use super::Field;

/// Status.
pub const S_STATUS: u16 = 0x3000;
/// Which of the two register groups is written and run.
pub const S_POINTER: u16 = 0x3004;
/// Starts the block.
pub const OPERATION_ENABLE: u16 = 0x3008;
/// Precision and modes.
pub const MISC_CFG: u16 = 0x3010;
/// Output height − 1 and width − 1.
pub const DATAOUT_SIZE_0: u16 = 0x3014;
/// Output channels − 1.
pub const DATAOUT_SIZE_1: u16 = 0x3018;
/// Truncation of the accumulator; 0.
pub const CLIP_TRUNCATE: u16 = 0x301c;
/// Written as 0 by all known programs.
pub const RESERVED_3030: u16 = 0x3030;

/// [`MISC_CFG`]: how the array computes ([`super::Format`]).
pub const MISC_CFG_PROC_PRECISION: Field = Field::new(10, 8);
/// [`MISC_CFG`]: quantised mode; row-major programs set it always, cube programs for fp16 only.
pub const MISC_CFG_QD_EN: Field = Field::new(0, 0);
/// [`DATAOUT_SIZE_0`]: output height − 1.
pub const DATAOUT_SIZE_0_HEIGHT: Field = Field::new(31, 16);
/// [`DATAOUT_SIZE_0`]: output width − 1.
pub const DATAOUT_SIZE_0_WIDTH: Field = Field::new(15, 0);
