//! The NPU: executes register-command programs as an RK3588 core does, for matmuls.
//!
//! [`Npu`] fetches a program through the job's [`Bus`], decodes every entry, checks what a board
//! would hang on or get wrong, and computes. It knows no encoder: which encoding a program uses, row-
//! major or 16-byte channel planes, follows from its registers. What it cannot vouch for it does not
//! compute: the run ends as a hang with a finding that names the entry or register, what it holds
//! and what was expected.
//!
//! Modelled: int8 to int32 and to requantised int8, fp16 to fp32 and to fp16, int4 to int16 (single
//! rows and batches). Integer results are exact; fp16 products are added in fp32 in the order of k.
//! Sources: register layouts and limits as public reverse engineering and drivers found them on
//! boards; what is inferred says so where it stands.
//!
//! ```
//! use rknpu_sim::npu::{Npu, Timing};
//! use rknpu_sim::{Config, Machine};
//! use std::sync::Arc;
//!
//! // A machine whose NPU computes, and takes no time.
//! let engine = Arc::new(Npu::new(Timing::instant()));
//! let machine = Machine::new(Config { engine, ..Config::default() });
//! assert!(machine.report().is_clean());
//! ```

mod constants;
mod cube;
mod dot;
mod execute;
mod feature;
mod interrupt;
mod matmul;
mod output;
mod program;
mod refusal;
mod registers;
mod timing;
mod weights;

use std::sync::{Mutex, PoisonError};

use execute::Scratch;
use matmul::Matmul;
use program::Next;
use refusal::Refusal;
use rknpu_sys::regs::CORES;

pub use timing::Timing;

use crate::engine::{Bus, Engine, Outcome, Run, Start};

/// An RK3588's cores.
///
/// ```
/// use rknpu_sim::engine::{Bus, BusFault, Engine, Outcome, Start, Unit};
/// use rknpu_sim::npu::{Npu, Timing};
///
/// struct Unmapped;
/// impl Bus for Unmapped {
///     fn read(&self, _: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
///         Err(BusFault { iova, len, write: false, mapped: 0 })
///     }
///     fn write(&mut self, _: Unit, iova: u64, bytes: &[u8]) -> Result<(), BusFault> {
///         self.writable(iova, bytes.len() as u64)
///     }
///     fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault> {
///         Err(BusFault { iova, len, write: true, mapped: 0 })
///     }
/// }
///
/// let start = Start {
///     core: 0,
///     regcmd_addr: 0xffff_f000,
///     regcfg_amount: 108,
///     tasks: 1,
///     dma_base: 0,
///     int_mask: 0x300,
///     ping_pong: true,
/// };
/// let run = Npu::new(Timing::default()).run(&start, &mut Unmapped);
/// assert_eq!(run.outcome, Outcome::Hang { task_counter: 0 });
/// assert!(run.findings[0].contains("0xfffff000"));
/// ```
#[derive(Debug)]
pub struct Npu {
    timing: Timing,
    scratch: [Mutex<Scratch>; CORES],
}

impl Npu {
    /// Cores that take the times of `timing`.
    ///
    /// ```
    /// use rknpu_sim::npu::{Npu, Timing};
    ///
    /// // A board with slower memory.
    /// let npu = Npu::new(Timing { weight_bytes_per_second: 10_000_000_000, ..Timing::default() });
    /// assert!(format!("{npu:?}").contains("10000000000"));
    /// ```
    pub fn new(timing: Timing) -> Npu {
        Npu { timing, scratch: Default::default() }
    }

    /// Runs the chain; on a fault also says how many tasks were done.
    fn chain(&self, start: &Start, bus: &mut dyn Bus) -> Result<u64, (u32, Refusal)> {
        let slot = &self.scratch[start.core % CORES];
        // Scratch holds no state between programs, so what a panic left in it does not matter.
        let mut scratch = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = Next {
            iova: start.regcmd_addr,
            amount: start.regcfg_amount.saturating_add(4).div_ceil(2) - 1,
        };
        let mut before: Option<Matmul> = None;
        let mut busy_ns = self.timing.submit_floor_ns;
        if start.dma_base != 0 {
            let problem = format!("task_base_addr is {:#x}; expected 0", start.dma_base);
            return Err((0, Refusal::Shape { program: at.iova, problem }));
        }
        for done in 0..start.tasks {
            let fail = |fault| (done, fault);
            let program = program::fetch(&*bus, at).map_err(fail)?;
            let matmul = Matmul::decode(&program.registers, before.as_ref()).map_err(fail)?;
            scratch.execute(&matmul, bus, at.iova).map_err(fail)?;
            busy_ns = busy_ns.saturating_add(self.timing.program_ns(&matmul));
            before = Some(matmul);
            match program.next {
                Some(next) => at = next,
                None if done + 1 == start.tasks => {}
                None => {
                    let (done, tasks) = (done + 1, start.tasks);
                    // The counter goes up when the next program starts: boards show 0 here.
                    return Err((done - 1, Refusal::ChainEnds { program: at.iova, done, tasks }));
                }
            }
        }
        Ok(busy_ns)
    }
}

impl Default for Npu {
    /// An RK3588 board's times.
    fn default() -> Npu {
        Npu::new(Timing::default())
    }
}

impl Engine for Npu {
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run {
        match self.chain(start, bus) {
            Ok(busy_ns) => interrupt::raise(start, busy_ns),
            Err((task_counter, fault)) => {
                Run { outcome: Outcome::Hang { task_counter }, findings: vec![fault.to_string()] }
            }
        }
    }
}
