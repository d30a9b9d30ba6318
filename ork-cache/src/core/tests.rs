//! The core against a naive twin that only knows the rules.

use proptest::prelude::*;

use super::*;
use crate::policy::Lru;

const PAGES: u64 = 6;

#[derive(Clone, Debug)]
enum Op {
    Reserve(u32, Purpose),
    Complete(usize, bool),
    Fail(usize, bool),
    Freed(usize),
    Lost(usize),
    Unpin(usize),
    Release(u32),
    Expect(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let purpose = prop_oneof![
        4 => Just(Purpose::Demand),
        2 => Just(Purpose::Prefetch),
        1 => Just(Purpose::Speculate)
    ];
    prop_oneof![
        8 => (0..9u32, purpose).prop_map(|(w, p)| Op::Reserve(w, p)),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(i, p)| Op::Complete(i, p)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(i, a)| Op::Fail(i, a)),
        3 => any::<usize>().prop_map(Op::Freed),
        1 => any::<usize>().prop_map(Op::Lost),
        4 => any::<usize>().prop_map(Op::Unpin),
        1 => (0..9u32).prop_map(Op::Release),
        1 => (0..9u32).prop_map(Op::Expect),
    ]
}

/// What a caller holds and knows: tickets, frees it owes, pins, loads it waits for.
#[derive(Default)]
struct Caller {
    tickets: Vec<(Ticket, Purpose, u64)>,
    frees: Vec<(SlotId, u64)>,
    pins: Vec<(WeightId, SlotId)>,
    waits: Vec<(WeightId, LoadId)>,
    failed: Vec<LoadId>,
    /// Bytes that exist, counted apart from the core.
    exists: u64,
}

impl Caller {
    fn step(&mut self, core: &mut Core, op: &Op) {
        let pick = |i: usize, len: usize| (len > 0).then(|| i % len);
        match *op {
            Op::Reserve(w, purpose) => self.reserve(core, WeightId(w), purpose),
            Op::Complete(i, published) => {
                let Some(i) = pick(i, self.tickets.len()) else { return };
                let (ticket, purpose, bytes) = self.tickets.swap_remove(i);
                let (weight, slot) = (ticket.weight(), ticket.slot());
                if ticket.stage() == Stage::Create {
                    self.exists += bytes;
                }
                let pin = purpose == Purpose::Demand;
                core.complete(ticket, published || pin, pin);
                if pin {
                    self.pins.push((weight, slot));
                }
            }
            Op::Fail(i, alive) => {
                let Some(i) = pick(i, self.tickets.len()) else { return };
                let (ticket, _, bytes) = self.tickets.swap_remove(i);
                let load = ticket.load;
                let created = ticket.stage() == Stage::Create;
                let alive = alive || !created;
                let cause: Cause = std::sync::Arc::new(std::fmt::Error);
                self.failed.push(load);
                if created && alive {
                    self.exists += bytes;
                }
                if let Some(slot) = core.fail(ticket, &cause, alive) {
                    self.frees.push((slot, core.slot(slot).1));
                }
            }
            Op::Freed(i) => {
                let Some(i) = pick(i, self.frees.len()) else { return };
                let (slot, bytes) = self.frees.swap_remove(i);
                self.exists -= bytes;
                core.freed(slot);
            }
            Op::Lost(i) => {
                let Some(i) = pick(i, self.frees.len()) else { return };
                core.lost(self.frees.swap_remove(i).0);
            }
            Op::Unpin(i) => {
                let Some(i) = pick(i, self.pins.len()) else { return };
                core.unpin(self.pins.swap_remove(i).0);
            }
            Op::Release(w) => {
                core.release(WeightId(w));
            }
            Op::Expect(w) => {
                core.expect(WeightId(w));
            }
        }
    }

    fn reserve(&mut self, core: &mut Core, weight: WeightId, purpose: Purpose) {
        let step = match core.reserve(weight, purpose) {
            Ok(step) => step,
            Err(Error::NoRoom { .. }) => return,
            Err(other) => panic!("{other}"),
        };
        match step {
            Step::Hit(slot) => {
                assert_eq!(purpose, Purpose::Demand);
                self.pins.push((weight, slot));
            }
            Step::Wait(load) => {
                assert!(self.tickets.iter().any(|(t, ..)| t.load == load), "no such load");
                self.waits.push((weight, load));
            }
            Step::Load(ticket) => {
                assert!(self.tickets.iter().all(|(t, ..)| t.weight() != weight), "two loads");
                assert!(self.tickets.iter().all(|(t, ..)| t.slot() != ticket.slot()));
                assert!(self.pins.iter().all(|&(_, s)| s != ticket.slot()), "overwrites a pin");
                let bytes = core.slot(ticket.slot()).1;
                self.tickets.push((ticket, purpose, bytes));
            }
            Step::Free(slot) => {
                assert!(self.pins.iter().all(|&(_, s)| s != slot), "frees a pin");
                self.frees.push((slot, core.slot(slot).1));
            }
            Step::Ready => assert_ne!(purpose, Purpose::Demand),
            Step::Full => {}
        }
    }

    /// Each waiter hears of its own load, once, and only what happened to it.
    fn hear(&mut self, core: &mut Core) {
        let under_way: Vec<LoadId> = self.tickets.iter().map(|(t, ..)| t.load).collect();
        for (weight, load) in std::mem::take(&mut self.waits) {
            match core.outcome(weight, load) {
                Outcome::Pending => {
                    assert!(under_way.contains(&load));
                    self.waits.push((weight, load));
                }
                Outcome::Failed(_) => assert!(self.failed.contains(&load)),
                Outcome::Over => {
                    assert!(!under_way.contains(&load) && !self.failed.contains(&load));
                }
            }
        }
    }

    fn check(&self, core: &Core) {
        assert!(core.total() <= PAGES * PAGE, "over budget");
        assert!(self.exists <= core.total(), "bytes exist that are not accounted");
        for &(weight, slot) in &self.pins {
            assert!(core.pins(weight) > 0);
            assert_eq!(core.slots[slot.index()].state, SlotState::Holds(weight));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_order_of_reports_keeps_the_rules(ops in proptest::collection::vec(op(), 1..200)) {
        let mut core = Core::new(Limits::single(PAGES * PAGE), Box::new(Lru::new()));
        let d = DomainId(0);
        let (class, slots) = core.add_class(d, PAGE, 2).unwrap();
        let mut caller = Caller { exists: 2 * PAGE, ..Caller::default() };
        slots.into_iter().for_each(|s| core.slot_created(s));
        let own = |pages: u64| WeightSpec { bytes: pages * PAGE, domain: d, home: Home::Own };
        let slot = WeightSpec { bytes: PAGE, domain: d, home: Home::Class(class) };
        let fixed = WeightSpec { bytes: PAGE, domain: d, home: Home::Fixed };
        core.attach(&[own(1), own(1), own(2), own(3), own(2), slot, slot, slot, fixed]).unwrap();
        for op in &ops {
            caller.step(&mut core, op);
            caller.hear(&mut core);
            caller.check(&core);
        }
        // Everything is given back in the end, but for what the device lost.
        while let Some((ticket, ..)) = caller.tickets.pop() {
            core.complete(ticket, true, false);
        }
        caller.hear(&mut core);
        prop_assert!(caller.waits.is_empty());
        prop_assert!(core.failures.is_empty(), "every waiter heard of its failure");
    }
}
