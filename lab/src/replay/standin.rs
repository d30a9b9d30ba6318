//! The recordings' stand-in for the cores: its little instruction set is in the program's address.

use rknpu_sim::engine::{Bus, Engine, Outcome, Run, Start, Unit};

/// Executes a `regcmd_addr` instead of what lies there.
///
/// | address | meaning |
/// |---|---|
/// | 0x8… | complete with the interrupt mask after the low 28 bits in microseconds |
/// | 0x9… | hang, showing the low 12 bits as task counter |
/// | 0xA… | complete after 200 µs with the low 17 bits as interrupt status |
/// | 0xD… | write the low 28 bits to IOVA `task_base_addr`, then complete; hang when it is unmapped |
/// | other | complete after 200 µs |
///
/// ```
/// use rknpu_sim::engine::{Bus, BusFault, Engine, Outcome, Start, Unit};
/// use lab::replay::StandIn;
///
/// # struct Unmapped;
/// # impl Bus for Unmapped {
/// #     fn read(&self, _: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
/// #         Err(BusFault { iova, len, write: false, mapped: 0 })
/// #     }
/// #     fn write(&mut self, _: Unit, iova: u64, bytes: &[u8]) -> Result<(), BusFault> {
/// #         self.writable(iova, bytes.len() as u64)
/// #     }
/// #     fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault> {
/// #         Err(BusFault { iova, len, write: true, mapped: 0 })
/// #     }
/// # }
/// # let start = Start {
/// #     core: 0, regcmd_addr: 0, regcfg_amount: 100, tasks: 1, dma_base: 0, int_mask: 0x300,
/// #     ping_pong: false, fresh: true,
/// # };
/// let run = |regcmd_addr| StandIn.run(&Start { regcmd_addr, ..start }, &mut Unmapped).outcome;
/// let done = Outcome::Done { int_status: 0x300, tasks_done: 1, busy_ns: 5_000 };
/// assert_eq!(run(0x8000_0005), done);
/// assert_eq!(run(0x9000_0002), Outcome::Hang { task_counter: 2 });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct StandIn;

/// The end of all tasks of a start, after so many µs.
pub(super) fn done(start: &Start, int_status: u32, us: u32) -> Outcome {
    Outcome::Done { int_status, tasks_done: start.tasks, busy_ns: u64::from(us) * 1000 }
}

impl Engine for StandIn {
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run {
        let low = start.regcmd_addr & 0x0fff_ffff;
        let done = |int_status, us| done(start, int_status, us);
        let outcome = match start.regcmd_addr >> 28 {
            0x8 => done(start.int_mask, low),
            0x9 => Outcome::Hang { task_counter: low & 0xfff },
            0xA => done(low & 0x1_ffff, 200),
            0xD => match bus.write(Unit::DpuWrite, start.dma_base.into(), &low.to_le_bytes()) {
                Ok(()) => done(start.int_mask, 200),
                Err(_) => Outcome::Hang { task_counter: 0 },
            },
            _ => done(start.int_mask, 200),
        };
        Run { outcome, findings: Vec::new() }
    }
}
