//! Sequences of calls and reports to the cache's state machine.

use arbitrary::{Arbitrary, Unstructured};
use ork_cache::internals::{
    Home, Lfu, Limits, LoadId, Lru, Outcome, PinnedRing, Policy, Purpose, Residency, SlotId, Stage,
    Step, Ticket, WeightSpec,
};
use ork_cache::{Cause, DomainId, Error, WeightId};

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

/// What its callers hold, and the bytes that exist by their count.
#[derive(Default)]
struct Callers {
    tickets: Vec<(Ticket, Purpose)>,
    frees: Vec<SlotId>,
    pins: Vec<(WeightId, SlotId)>,
    waits: Vec<(WeightId, LoadId)>,
    exists: u64,
}

/// Plays operations against the residency and checks its promises after each: bytes within the limits,
/// one load at a time, pinned weights untouched, every waiter told of its own load.
pub fn cache_ops(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(policy) = u8::arbitrary(&mut input) else { return };
    let ids: Vec<WeightId> = (0..WEIGHTS.into()).map(WeightId).collect();
    let policy: Box<dyn Policy> = match policy % 3 {
        0 => Box::new(Lru::new()),
        1 => Box::new(Lfu::new(16)),
        _ => Box::new(PinnedRing::new(&ids[..3])),
    };
    let limits = Limits { total: TOTAL, domains: DOMAINS.to_vec() };
    let mut residency = Residency::new(limits, policy);
    let Ok((class, slots)) = residency.add_class(DomainId(0), PAGE, 2) else { return };
    slots.into_iter().for_each(|slot| residency.slot_created(slot));
    let mut callers = Callers { exists: 2 * PAGE, ..Callers::default() };
    let spec = |i: u8| WeightSpec {
        bytes: u64::from(i % 3 + 1) * PAGE,
        domain: DomainId(i % 2),
        home: if i == 11 { Home::Fixed } else { Home::Own },
    };
    let ring = WeightSpec { bytes: PAGE, domain: DomainId(0), home: Home::Class(class) };
    let specs: Vec<_> = (0..WEIGHTS).map(|i| if i < 4 { ring } else { spec(i) }).collect();
    residency.attach(&specs).expect("every weight fits alone");
    while let Ok(op) = Op::arbitrary(&mut input) {
        if input.is_empty() {
            break;
        }
        callers.play(&mut residency, op);
        callers.check(&mut residency);
    }
}

fn pick<T>(list: &mut Vec<T>, at: u8) -> Option<T> {
    if list.is_empty() { None } else { Some(list.swap_remove(usize::from(at) % list.len())) }
}

impl Callers {
    fn play(&mut self, residency: &mut Residency, op: Op) {
        match op {
            Op::Demand(w) => self.reserve(residency, w, Purpose::Demand),
            Op::Prefetch(w) => self.reserve(residency, w, Purpose::Prefetch),
            Op::Speculate(w) => self.reserve(residency, w, Purpose::Speculate),
            Op::Complete(at, synced) => {
                let Some((ticket, purpose)) = pick(&mut self.tickets, at) else { return };
                let (weight, slot) = (ticket.weight(), ticket.slot());
                if ticket.stage() == Stage::Create {
                    self.exists += residency.slot(slot).1;
                }
                let pin = purpose == Purpose::Demand;
                residency.complete(ticket, synced || pin, pin);
                if pin {
                    self.pins.push((weight, slot));
                }
            }
            Op::Fail(at, alive) => {
                let Some((ticket, _)) = pick(&mut self.tickets, at) else { return };
                let created = ticket.stage() == Stage::Create;
                let bytes = residency.slot(ticket.slot()).1;
                let alive = alive || !created;
                if created && alive {
                    self.exists += bytes;
                }
                let cause: Cause = std::sync::Arc::new(std::fmt::Error);
                self.frees.extend(residency.fail(ticket, &cause, alive));
            }
            Op::Freed(at) => {
                let Some(slot) = pick(&mut self.frees, at) else { return };
                self.exists -= residency.slot(slot).1;
                residency.freed(slot);
            }
            Op::Lost(at) => {
                if let Some(slot) = pick(&mut self.frees, at) {
                    residency.lost(slot);
                }
            }
            Op::Unpin(at) => {
                if let Some((weight, _)) = pick(&mut self.pins, at) {
                    residency.unpin(weight);
                }
            }
            Op::Release(w) => drop(residency.release(WeightId(w.into()))),
            Op::Expect(w) => drop(residency.expect(WeightId(w.into()))),
        }
    }

    fn reserve(&mut self, residency: &mut Residency, weight: u8, purpose: Purpose) {
        // One id past the last is asked for, too.
        let weight = WeightId((weight % (WEIGHTS + 1)).into());
        match residency.reserve(weight, purpose) {
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

    fn check(&mut self, residency: &mut Residency) {
        assert!(residency.total() <= TOTAL);
        assert!(self.exists <= residency.total(), "bytes exist that are not accounted");
        for (domain, limit) in DOMAINS.iter().enumerate() {
            assert!(residency.used(DomainId(domain as u8)) <= *limit);
        }
        assert!(self.pins.iter().all(|&(weight, _)| residency.pins(weight) > 0));
        let loading = |weight| self.tickets.iter().any(|(t, _)| t.weight() == weight);
        self.waits.retain(|&(weight, load)| match residency.outcome(weight, load) {
            Outcome::Pending => {
                assert!(loading(weight));
                true
            }
            Outcome::Over | Outcome::Failed(_) => false,
        });
    }
}
