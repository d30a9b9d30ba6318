//! Sequences of calls and reports to the cache's state machine.

use arbitrary::{Arbitrary, Unstructured};
use ork_cache::core::{
    Core, Home, Limits, LoadId, Outcome, Purpose, Stage, Step, Ticket, WeightSpec,
};
use ork_cache::policy::{Lfu, Lru, NextUse, PinnedRing, Policy, S3Fifo};
use ork_cache::{Cause, DomainId, Error, SlotId, WeightId};

const PAGE: u64 = 4096;
const WEIGHTS: u8 = 12;
const DOMAINS: [u64; 2] = [5 * PAGE, 4 * PAGE];
const TOTAL: u64 = 7 * PAGE;

/// One call or report; numbers pick among what is pending.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Op {
    Demand(u8),
    Prefetch(u8),
    Speculate(u8),
    Complete(u8, bool),
    Fail(u8, bool),
    Freed(u8),
    Lost(u8),
    Unpin(u8),
    Release(u8),
    Expect(u8),
}

/// What the callers of the core hold, and the bytes that exist by their count.
#[derive(Default)]
struct Callers {
    tickets: Vec<(Ticket, Purpose)>,
    frees: Vec<SlotId>,
    pins: Vec<(WeightId, SlotId)>,
    waits: Vec<(WeightId, LoadId)>,
    exists: u64,
}

/// Plays operations against the core and checks its promises after each: bytes within the limits,
/// one load at a time, pinned weights untouched, every waiter told of its own load.
pub fn cache_ops(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(policy) = u8::arbitrary(&mut input) else { return };
    let ids: Vec<WeightId> = (0..WEIGHTS.into()).map(WeightId).collect();
    let policy: Box<dyn Policy> = match policy % 5 {
        0 => Box::new(Lru::new()),
        1 => Box::new(Lfu::new(16)),
        2 => Box::new(S3Fifo::new()),
        3 => Box::new(PinnedRing::new(&ids[..3])),
        _ => Box::new(NextUse::cyclic(&ids)),
    };
    let limits = Limits { total: TOTAL, domains: DOMAINS.to_vec() };
    let mut core = Core::new(limits, policy);
    let Ok((class, slots)) = core.add_class(DomainId(0), PAGE, 2) else { return };
    slots.into_iter().for_each(|slot| core.slot_created(slot));
    let mut callers = Callers { exists: 2 * PAGE, ..Callers::default() };
    let spec = |i: u8| WeightSpec {
        bytes: u64::from(i % 3 + 1) * PAGE,
        domain: DomainId(i % 2),
        home: if i == 11 { Home::Fixed } else { Home::Own },
    };
    let ring = WeightSpec { bytes: PAGE, domain: DomainId(0), home: Home::Class(class) };
    let specs: Vec<_> = (0..WEIGHTS).map(|i| if i < 4 { ring } else { spec(i) }).collect();
    core.attach(&specs).expect("every weight fits alone");
    while let Ok(op) = Op::arbitrary(&mut input) {
        if input.is_empty() {
            break;
        }
        callers.play(&mut core, op);
        callers.check(&mut core);
    }
}

fn pick<T>(list: &mut Vec<T>, at: u8) -> Option<T> {
    if list.is_empty() { None } else { Some(list.swap_remove(usize::from(at) % list.len())) }
}

impl Callers {
    fn play(&mut self, core: &mut Core, op: Op) {
        match op {
            Op::Demand(w) => self.reserve(core, w, Purpose::Demand),
            Op::Prefetch(w) => self.reserve(core, w, Purpose::Prefetch),
            Op::Speculate(w) => self.reserve(core, w, Purpose::Speculate),
            Op::Complete(at, published) => {
                let Some((ticket, purpose)) = pick(&mut self.tickets, at) else { return };
                let (weight, slot) = (ticket.weight(), ticket.slot());
                if ticket.stage() == Stage::Create {
                    self.exists += core.slot(slot).1;
                }
                let pin = purpose == Purpose::Demand;
                core.complete(ticket, published || pin, pin);
                if pin {
                    self.pins.push((weight, slot));
                }
            }
            Op::Fail(at, alive) => {
                let Some((ticket, _)) = pick(&mut self.tickets, at) else { return };
                let created = ticket.stage() == Stage::Create;
                let bytes = core.slot(ticket.slot()).1;
                let alive = alive || !created;
                if created && alive {
                    self.exists += bytes;
                }
                let cause: Cause = std::sync::Arc::new(std::fmt::Error);
                self.frees.extend(core.fail(ticket, &cause, alive));
            }
            Op::Freed(at) => {
                let Some(slot) = pick(&mut self.frees, at) else { return };
                self.exists -= core.slot(slot).1;
                core.freed(slot);
            }
            Op::Lost(at) => {
                if let Some(slot) = pick(&mut self.frees, at) {
                    core.lost(slot);
                }
            }
            Op::Unpin(at) => {
                if let Some((weight, _)) = pick(&mut self.pins, at) {
                    core.unpin(weight);
                }
            }
            Op::Release(w) => drop(core.release(WeightId(w.into()))),
            Op::Expect(w) => drop(core.expect(WeightId(w.into()))),
        }
    }

    fn reserve(&mut self, core: &mut Core, weight: u8, purpose: Purpose) {
        // One id past the last is asked for, too.
        let weight = WeightId((weight % (WEIGHTS + 1)).into());
        match core.reserve(weight, purpose) {
            Ok(Step::Hit(slot)) => {
                assert_eq!(purpose, Purpose::Demand);
                self.pins.push((weight, slot));
            }
            Ok(Step::Wait(load)) => self.waits.push((weight, load)),
            Ok(Step::Load(ticket)) => {
                for (other, _) in &self.tickets {
                    assert!(other.weight() != weight && other.slot() != ticket.slot());
                }
                assert!(self.pins.iter().all(|&(_, slot)| slot != ticket.slot()));
                self.tickets.push((ticket, purpose));
            }
            Ok(Step::Free(slot)) => {
                assert!(self.pins.iter().all(|&(_, pinned)| pinned != slot));
                self.frees.push(slot);
            }
            Ok(Step::Ready) => assert_ne!(purpose, Purpose::Demand),
            Ok(Step::Full) => {}
            Err(Error::UnknownWeight { .. }) => assert_eq!(weight, WeightId(WEIGHTS.into())),
            Err(Error::NoRoom { .. }) => assert_eq!(purpose, Purpose::Demand),
            Err(other) => panic!("{other}"),
        }
    }

    fn check(&mut self, core: &mut Core) {
        assert!(core.total() <= TOTAL);
        assert!(self.exists <= core.total(), "bytes exist that are not accounted");
        for (domain, limit) in DOMAINS.iter().enumerate() {
            assert!(core.used(DomainId(domain as u8)) <= *limit);
        }
        assert!(self.pins.iter().all(|&(weight, _)| core.pins(weight) > 0));
        let loading = |weight| self.tickets.iter().any(|(t, _)| t.weight() == weight);
        self.waits.retain(|&(weight, load)| match core.outcome(weight, load) {
            Outcome::Pending => {
                assert!(loading(weight));
                true
            }
            Outcome::Over | Outcome::Failed(_) => false,
        });
    }
}
