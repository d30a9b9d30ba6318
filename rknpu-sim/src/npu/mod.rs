//! The NPU: executes register-command programs as an RK3588 core does, for matmuls.
//!
//! [`Npu`] fetches a program through the job's [`Bus`], writes its entries to the core's registers, checks
//! what a board would hang on or get wrong, and computes. It knows no encoder: which encoding a program
//! uses, row-major or 16-byte channel planes, follows from its registers. What it cannot vouch for it does
//! not compute: the run ends as a hang with a finding that names the entry or register, what it holds and
//! what was expected. A finding says one of three things, [`Verdict`].
//!
//! Modelled: int8 to int32 and to requantised int8, fp16 to fp32 and to fp16, bf16 to fp32, int4 to int16
//! (also in batches), rows in the height, the width or both; halves element by element. Integer results are
//! exact; fp16 products are added in fp32 in the order of k.
//!
//! Registers keep what was written to them from program to program and job to job, each of the two groups
//! for itself, until the core is reset. What they hold then is not known: 0 is assumed, and a finding says
//! which of them a program relied on. Stages that are bypassed are not looked at.
//!
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
mod element_wise;
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

use element_wise::ElementWise;
use execute::Scratch;
use matmul::Matmul;
use program::{Next, Starts};
use refusal::Refusal;
use registers::Registers;
use rknpu_sys::regs::{CORES, rdma};

pub use timing::Timing;

use crate::engine::{Bus, BusFault, Engine, Finding, Outcome, Run, Start, Verdict};

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
///     fresh: true,
/// };
/// let run = Npu::new(Timing::default()).run(&start, &mut Unmapped);
/// assert_eq!(run.outcome, Outcome::Hang { task_counter: 0 });
/// assert!(run.findings[0].text.contains("0xfffff000"));
/// ```
#[derive(Debug)]
pub struct Npu {
    timing: Timing,
    cores: [Mutex<Core>; CORES],
}

/// What a core keeps from job to job.
#[derive(Debug, Default)]
struct Core {
    groups: [Registers; 2],
    scratch: Scratch,
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
        Npu { timing, cores: Default::default() }
    }

    /// Runs the chain; on a fault also says how many tasks were done.
    fn chain(
        &self,
        start: &Start,
        bus: &mut dyn Bus,
        findings: &mut Vec<Finding>,
    ) -> Result<u64, (u32, Refusal)> {
        let slot = &self.cores[start.core % CORES];
        // A panic leaves registers as a program that broke off does, and scratch is no state.
        let mut core = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if start.fresh {
            core.groups = Default::default();
        }
        let mut at = Next {
            iova: start.regcmd_addr,
            amount: start.regcfg_amount.saturating_add(4).div_ceil(2) - 1,
        };
        let mut before: Option<Matmul> = None;
        let mut busy_ns = self.timing.submit_floor_ns;
        if start.dma_base != 0 {
            let problem = format!("task_base_addr is {:#x}; expected 0", start.dma_base);
            return Err((0, Refusal::Shape { program: at.iova, problem, found: None }));
        }
        for done in 0..start.tasks {
            let fail = |fault| (done, fault);
            let Core { groups, scratch } = &mut *core;
            // With ping-pong, programs take turns with the groups, beginning with the first.
            let group = if start.ping_pong { done as usize % groups.len() } else { 0 };
            let registers = &mut groups[group];
            let program = program::fetch(&*bus, at, registers).map_err(fail)?;
            let run = self.program(program.starts, registers, &mut before, scratch, bus, findings);
            busy_ns = busy_ns.saturating_add(run.map_err(fail)?);
            doubts(registers, program.past, findings);
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

    /// Runs one program whose entries are in `registers`: nanoseconds that it takes.
    fn program(
        &self,
        starts: Starts,
        registers: &Registers,
        before: &mut Option<Matmul>,
        scratch: &mut Scratch,
        bus: &mut dyn Bus,
        findings: &mut Vec<Finding>,
    ) -> Result<u64, Refusal> {
        match starts {
            Starts::Array => {}
            Starts::ArrayAndInputs => inputs_idle(registers)?,
            Starts::ElementWise => {
                let work = ElementWise::decode(registers)?;
                work.execute(bus, registers.at())?;
                return Ok(self.timing.element_wise_ns(work.elements()));
            }
        }
        let mut matmul = Matmul::decode(registers, before.as_ref())?;
        scratch.execute(&matmul, bus, registers.at())?;
        findings.extend(matmul.lost.take().map(|lost| lost.finding));
        let ns = self.timing.program_ns(&matmul);
        *before = Some(matmul);
        Ok(ns)
    }
}

/// What a program that ran relied on.
fn doubts(registers: &Registers, past: Option<BusFault>, findings: &mut Vec<Finding>) {
    let mut doubt = |what: String| {
        let text = format!("program at IOVA {:#x}: {what}", registers.at());
        findings.push(Finding { verdict: Verdict::Doubtful, text });
    };
    if let Some(fault) = past {
        doubt(format!("its fetch amount reaches past its buffer, {fault}"));
    }
    let assumed = registers.assumed();
    if !assumed.is_empty() {
        doubt(format!(
            "it relies on registers that nobody has written since the core's reset, and what they hold then \
             is not known (0, and stages bypassed, are assumed): {}",
            assumed.join(", ")
        ));
    }
}

/// That the output stage's own inputs bring nothing into a product, though they are started.
fn inputs_idle(r: &Registers) -> Result<(), Refusal> {
    for register in [rdma::BRDMA_CFG, rdma::NRDMA_CFG, rdma::ERDMA_CFG] {
        // Nothing written, nothing read: the bit says so, or no stage takes it.
        let disabled = r.field(register, rdma::ERDMA_DISABLE) == 1;
        if !disabled && r.get(register) != 0 {
            return Err(r.unexpected(register, "0 or bit 0 set (no operands)".into()));
        }
    }
    Ok(())
}

impl Default for Npu {
    /// An RK3588 board's times.
    fn default() -> Npu {
        Npu::new(Timing::default())
    }
}

impl Engine for Npu {
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run {
        let mut findings = Vec::new();
        let outcome = match self.chain(start, bus, &mut findings) {
            Ok(busy_ns) => interrupt::raise(start, busy_ns, &mut findings),
            Err((task_counter, fault)) => {
                findings.push(fault.finding());
                Outcome::Hang { task_counter }
            }
        };
        Run { outcome, findings }
    }
}
