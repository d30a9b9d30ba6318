//! Codes of the `ACTION` call, as the vendor driver 0.9.8 answers them on an RK3588.
//!
//! Codes from 26 on are refused with EINVAL; forks give codes from 0x100 on conflicting meanings.
//!
//! ```
//! use rknpu_sys::{action, uapi::Action};
//!
//! // The question, and the answer that driver 0.9.8 writes into the same struct.
//! let question = Action { flags: action::GET_DRV_VERSION, value: 0 };
//! let answer = Action { value: 908, ..question };
//! let version = (answer.value / 10_000, answer.value / 100 % 100, answer.value % 100);
//! assert_eq!(version, (0, 9, 8));
//! ```

/// Hardware version word.
pub const GET_HW_VERSION: u32 = 0;
/// Driver version: major × 10000 + minor × 100 + patch; 908 for 0.9.8.
pub const GET_DRV_VERSION: u32 = 1;
/// Clock in Hz.
pub const GET_FREQ: u32 = 2;
/// Refused (EINVAL).
pub const SET_FREQ: u32 = 3;
/// Supply in microvolts; an oops where the device tree names no supply.
pub const GET_VOLT: u32 = 4;
/// Refused (EINVAL).
pub const SET_VOLT: u32 = 5;
/// Soft reset of the whole NPU, for every process.
pub const ACT_RESET: u32 = 6;
/// Refused (EINVAL) on the RK3588, as the five that follow.
pub const GET_BW_PRIORITY: u32 = 7;
/// Refused.
pub const SET_BW_PRIORITY: u32 = 8;
/// Refused.
pub const GET_BW_EXPECT: u32 = 9;
/// Refused.
pub const SET_BW_EXPECT: u32 = 10;
/// Refused.
pub const GET_BW_TW: u32 = 11;
/// Refused.
pub const SET_BW_TW: u32 = 12;
/// Succeeds without effect, as the four that follow leave `value` untouched.
pub const ACT_CLR_TOTAL_RW_AMOUNT: u32 = 13;
/// Succeeds, value untouched.
pub const GET_DT_WR_AMOUNT: u32 = 14;
/// Succeeds, value untouched.
pub const GET_DT_RD_AMOUNT: u32 = 15;
/// Succeeds, value untouched.
pub const GET_WT_RD_AMOUNT: u32 = 16;
/// Succeeds, value untouched.
pub const GET_TOTAL_RW_AMOUNT: u32 = 17;
/// 1 when the NPU sits behind an IOMMU.
pub const GET_IOMMU_EN: u32 = 18;
/// Sets the calling thread's nice value; out-of-range values are ignored.
pub const SET_PROC_NICE: u32 = 19;
/// Refused (EINVAL) in 0.9.x.
pub const POWER_ON: u32 = 20;
/// Refused (EINVAL) in 0.9.x.
pub const POWER_OFF: u32 = 21;
/// SRAM bytes; 0 when none is configured.
pub const GET_TOTAL_SRAM_SIZE: u32 = 22;
/// Free SRAM bytes.
pub const GET_FREE_SRAM_SIZE: u32 = 23;
/// The device-wide current domain.
pub const GET_IOMMU_DOMAIN_ID: u32 = 24;
/// Switches the device-wide current domain once; claims nothing.
pub const SET_IOMMU_DOMAIN_ID: u32 = 25;
