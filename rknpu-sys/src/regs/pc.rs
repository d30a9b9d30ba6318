//! Program counter unit: what the kernel programs at commit, and the trailer's entries.
//!
//! ```
//! use rknpu_sys::regs::{Block, Command, pc};
//!
//! // The trailer of a program that is the last of its job.
//! let trailer = [
//!     Command::new(Block::Pc, pc::BASE_ADDRESS, 0),
//!     Command::new(Block::Pc, pc::REGISTER_AMOUNTS, 0),
//!     Command::new(Block::Barrier, 0, 0),
//!     Command::new(Block::Enable, pc::OPERATION_ENABLE, pc::ENABLE_CNA_CORE_DPU),
//! ];
//! assert_eq!(trailer.len(), pc::TRAILER_COMMANDS as usize);
//! ```

use super::Field;

/// Hardware version.
pub const VERSION: u16 = 0x0000;
/// Hardware version, second word.
pub const VERSION_NUM: u16 = 0x0004;
/// Starts blocks; in a trailer, the bits of [`ENABLE_CNA_CORE_DPU`].
pub const OPERATION_ENABLE: u16 = 0x0008;
/// IOVA of the program; in a trailer, of the next one, or 0.
pub const BASE_ADDRESS: u16 = 0x0010;
/// Pairs of commands to fetch, less one; in a trailer, of the next program, or 0 at the end.
pub const REGISTER_AMOUNTS: u16 = 0x0014;
/// Interrupt bits that the kernel waits for.
pub const INTERRUPT_MASK: u16 = 0x0020;
/// Interrupt bits to clear.
pub const INTERRUPT_CLEAR: u16 = 0x0024;
/// Interrupt bits seen, masked.
pub const INTERRUPT_STATUS: u16 = 0x0028;
/// Interrupt bits seen.
pub const INTERRUPT_RAW_STATUS: u16 = 0x002c;
/// Task count and mode.
pub const TASK_CON: u16 = 0x0030;
/// Base of relative addresses; 0.
pub const TASK_DMA_BASE_ADDR: u16 = 0x0034;
/// Tasks done, in [`TASK_STATUS_COUNT`].
pub const TASK_STATUS: u16 = 0x003c;
/// Enables blocks outside a program.
pub const ENABLE_MASK: u16 = 0xf008;

/// [`TASK_STATUS`]: tasks done.
pub const TASK_STATUS_COUNT: Field = Field::new(11, 0);
/// Tasks that one commit can count; the driver chains more in chunks of this size.
pub const TASKS_PER_COMMIT: u32 = 4095;

/// [`OPERATION_ENABLE`] of a matmul program: CNA, core and DPU.
pub const ENABLE_CNA_CORE_DPU: u32 = 0x0d;
/// [`OPERATION_ENABLE`] with the DPU's second input as well.
pub const ENABLE_WITH_RDMA: u32 = 0x1d;
/// [`OPERATION_ENABLE`] of an element-wise program: the DPU and its own inputs, without the array.
pub const ENABLE_ELEMENT_WISE: u32 = 0x18;

/// Entries of the trailer.
pub const TRAILER_COMMANDS: u32 = 4;

/// [`REGISTER_AMOUNTS`] for a program of `amount` commands before its trailer: 108 gives 0x37.
///
/// The driver computes the same from `regcfg_amount` (ceil((amount + 4) / 2) − 1), confirmed by
/// recordings of it.
///
/// ```
/// use rknpu_sys::regs::pc;
///
/// assert_eq!(pc::fetch_amount(108), 0x37);
/// ```
pub const fn fetch_amount(amount: u32) -> u32 {
    (amount + TRAILER_COMMANDS).div_ceil(2) - 1
}

const _: () =
    assert!(fetch_amount(108) == 0x37 && fetch_amount(116) == 0x3b && fetch_amount(0) == 1);
