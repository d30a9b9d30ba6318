//! The residency against a naive twin that only knows the rules.

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

/// LRU that keeps a list of its own of who is there, and holds the residency to it.
#[derive(Debug)]
struct Exact {
    lru: Lru,
    here: std::collections::BTreeSet<WeightId>,
}

impl Exact {
    fn boxed() -> Box<dyn Policy> {
        Box::new(Exact { lru: Lru::new(), here: Default::default() })
    }
}

impl Policy for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn grow(&mut self, weights: usize) {
        self.lru.grow(weights);
    }

    fn touch(&mut self, weight: WeightId) {
        assert!(self.here.contains(&weight), "{weight} is used and not there");
        self.lru.touch(weight);
    }

    fn insert(&mut self, weight: WeightId) {
        assert!(self.here.insert(weight), "{weight} comes twice");
        self.lru.insert(weight);
    }

    fn remove(&mut self, weight: WeightId) {
        assert!(self.here.remove(&weight), "{weight} goes and is not there");
        self.lru.remove(weight);
    }

    fn victim(
        &mut self,
        incoming: WeightId,
        purpose: Purpose,
        evictable: &mut dyn FnMut(WeightId) -> bool,
    ) -> Option<WeightId> {
        self.lru.victim(incoming, purpose, evictable)
    }
}

/// What a caller holds and knows: tickets, frees it owes, pins, loads it waits for.
#[derive(Default)]
struct Caller {
    tickets: Vec<(Ticket, Purpose, u64)>,
    frees: Vec<(SlotId, u64)>,
    pins: Vec<(WeightId, SlotId)>,
    waits: Vec<(WeightId, LoadId)>,
    failed: Vec<LoadId>,
    /// Bytes that exist, counted apart from the residency.
    exists: u64,
}

impl Caller {
    fn step(&mut self, residency: &mut Residency, op: &Op) {
        let pick = |i: usize, len: usize| (len > 0).then(|| i % len);
        match *op {
            Op::Reserve(w, purpose) => self.reserve(residency, WeightId(w), purpose),
            Op::Complete(i, synced) => {
                let Some(i) = pick(i, self.tickets.len()) else { return };
                let (ticket, purpose, bytes) = self.tickets.swap_remove(i);
                let (weight, slot) = (ticket.weight(), ticket.slot());
                if ticket.stage() == Stage::Create {
                    self.exists += bytes;
                }
                let pin = purpose == Purpose::Demand;
                residency.complete(ticket, synced || pin, pin);
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
                if let Some(slot) = residency.fail(ticket, &cause, alive) {
                    self.frees.push((slot, residency.slot(slot).1));
                }
            }
            Op::Freed(i) => {
                let Some(i) = pick(i, self.frees.len()) else { return };
                let (slot, bytes) = self.frees.swap_remove(i);
                self.exists -= bytes;
                residency.freed(slot);
            }
            Op::Lost(i) => {
                let Some(i) = pick(i, self.frees.len()) else { return };
                residency.lost(self.frees.swap_remove(i).0);
            }
            Op::Unpin(i) => {
                let Some(i) = pick(i, self.pins.len()) else { return };
                residency.unpin(self.pins.swap_remove(i).0);
            }
            Op::Release(w) => {
                residency.release(WeightId(w));
            }
            Op::Expect(w) => {
                residency.expect(WeightId(w));
            }
        }
    }

    fn reserve(&mut self, residency: &mut Residency, weight: WeightId, purpose: Purpose) {
        let step = match residency.reserve(weight, purpose) {
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
                let bytes = residency.slot(ticket.slot()).1;
                self.tickets.push((ticket, purpose, bytes));
            }
            Step::Free(slot) => {
                assert!(self.pins.iter().all(|&(_, s)| s != slot), "frees a pin");
                self.frees.push((slot, residency.slot(slot).1));
            }
            Step::Ready => assert_ne!(purpose, Purpose::Demand),
            Step::Full => {}
        }
    }

    /// Each waiter hears of its own load, once, and only what happened to it.
    fn hear(&mut self, residency: &mut Residency) {
        let under_way: Vec<LoadId> = self.tickets.iter().map(|(t, ..)| t.load).collect();
        for (weight, load) in std::mem::take(&mut self.waits) {
            match residency.outcome(weight, load) {
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

    fn check(&self, residency: &Residency) {
        assert!(residency.total() <= PAGES * PAGE, "over budget");
        assert!(self.exists <= residency.total(), "bytes exist that are not accounted");
        for &(weight, slot) in &self.pins {
            assert!(residency.pins(weight) > 0);
            assert_eq!(residency.slots[slot.index()].state, SlotState::Holds(weight));
        }
    }
}

fn residency(pages: u64) -> Residency {
    Residency::new(Limits::single(pages * PAGE), Box::new(Lru::new()))
}

fn own(pages: u64) -> WeightSpec {
    WeightSpec { bytes: pages * PAGE, domain: DomainId(0), home: Home::Own }
}

fn load(residency: &mut Residency, weight: WeightId, purpose: Purpose) -> Ticket {
    match residency.reserve(weight, purpose).unwrap() {
        Step::Load(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_resident_for_good_is_no_victim() {
    let mut residency = residency(2);
    let fixed = residency.attach(&[WeightSpec { home: Home::Fixed, ..own(1) }]).unwrap();
    let ticket = load(&mut residency, fixed, Purpose::Demand);
    residency.complete(ticket, true, true);
    residency.unpin(fixed);
    // There is room for one other page, and never for two.
    let large = residency.attach(&[own(2)]).unwrap();
    assert!(matches!(residency.reserve(large, Purpose::Demand), Err(Error::NoRoom { .. })));
}

#[test]
fn a_full_cache_waits_for_a_pin_and_takes_over_its_memory() {
    let mut residency = residency(2);
    residency.attach(&[own(1); 3]).unwrap();
    let mut stages = Vec::new();
    for weight in [0, 1].map(WeightId) {
        let ticket = load(&mut residency, weight, Purpose::Demand);
        stages.push(ticket.stage());
        residency.complete(ticket, true, true);
    }
    assert_eq!(residency.reserve(WeightId(2), Purpose::Demand).unwrap(), Step::Full);
    residency.unpin(WeightId(0));
    let ticket = load(&mut residency, WeightId(2), Purpose::Demand);
    stages.push(ticket.stage());
    assert_eq!(stages, [Stage::Create, Stage::Create, Stage::Refill]);
    residency.complete(ticket, true, true);
}

#[test]
fn a_weight_goes_from_absent_to_used() {
    let mut residency = residency(2);
    let weight = residency.attach(&[own(1)]).unwrap();
    assert_eq!(residency.presence(WeightId(9)), Presence::Absent);
    assert!(!residency.expect(weight), "nothing to keep");
    let ticket = load(&mut residency, weight, Purpose::Prefetch);
    assert_eq!(residency.presence(weight), Presence::Loading);
    assert!(matches!(residency.reserve(weight, Purpose::Prefetch), Ok(Step::Ready)));
    residency.complete(ticket, true, false);
    assert_eq!((residency.presence(weight), residency.pins(weight)), (Presence::Fresh, 0));
    assert!(residency.release(weight) && residency.expect(weight));
    assert!(matches!(residency.reserve(weight, Purpose::Demand), Ok(Step::Hit(_))));
    assert_eq!((residency.presence(weight), residency.pins(weight)), (Presence::Used, 1));
}

#[test]
fn a_failed_load_is_told_to_those_who_wait_and_its_bytes_count_until_they_are_freed() {
    let mut residency = residency(2);
    let weight = residency.attach(&[own(1)]).unwrap();
    let ticket = load(&mut residency, weight, Purpose::Demand);
    let Ok(Step::Wait(waited)) = residency.reserve(weight, Purpose::Demand) else { panic!() };
    assert_eq!(residency.total(), PAGE, "counted before the device is asked");
    let cause: Cause = std::sync::Arc::new(std::io::Error::other("disk"));
    let slot = residency.fail(ticket, &cause, true).expect("memory of its own");
    assert!(matches!(residency.outcome(weight, waited), Outcome::Failed(_)));
    assert!(matches!(residency.outcome(weight, waited), Outcome::Over), "once");
    assert_eq!(residency.total(), PAGE);
    residency.freed(slot);
    assert_eq!(residency.total(), 0);
}

#[test]
fn a_class_that_lost_all_its_slots_is_an_error_and_no_wait() {
    let mut residency = residency(2);
    let (class, slots) = residency.add_class(DomainId(0), PAGE, 1).unwrap();
    residency.slot_created(slots[0]);
    residency.attach(&[WeightSpec { home: Home::Class(class), ..own(1) }; 2]).unwrap();
    let ticket = load(&mut residency, WeightId(0), Purpose::Demand);
    let cause: Cause = std::sync::Arc::new(std::fmt::Error);
    assert_eq!(residency.fail(ticket, &cause, false), None);
    assert!(matches!(
        residency.reserve(WeightId(1), Purpose::Demand),
        Err(Error::NoRoom { held: 0, .. })
    ));
}

/// A load whose sync for the device failed holds nothing that a use could hit: the policy does not know it
/// any more, and its slot is there for others.
#[test]
fn a_failed_sync_leaves_no_trace_in_the_policy() {
    let mut residency = Residency::new(Limits::single(PAGE), Exact::boxed());
    let (class, slots) = residency.add_class(DomainId(0), PAGE, 1).unwrap();
    residency.slot_created(slots[0]);
    let weight = residency.attach(&[WeightSpec { home: Home::Class(class), ..own(1) }; 2]).unwrap();
    for _ in 0..2 {
        // Copied while another domain was at work, so that the sync is left to the use.
        let ticket = load(&mut residency, weight, Purpose::Prefetch);
        residency.complete(ticket, false, false);
        let ticket = load(&mut residency, weight, Purpose::Demand);
        assert_eq!(ticket.stage(), Stage::Sync);
        let cause: Cause = std::sync::Arc::new(std::fmt::Error);
        assert_eq!(residency.fail(ticket, &cause, true), None);
        assert_eq!(residency.presence(weight), Presence::Absent);
    }
    let ticket = load(&mut residency, WeightId(weight.0 + 1), Purpose::Demand);
    residency.complete(ticket, true, true);
}

#[test]
fn a_guess_leaves_the_last_free_slot() {
    let mut residency = Residency::new(Limits::single(4 * PAGE), Exact::boxed());
    let (class, slots) = residency.add_class(DomainId(0), PAGE, 4).unwrap();
    slots.into_iter().for_each(|slot| residency.slot_created(slot));
    residency.attach(&[WeightSpec { home: Home::Class(class), ..own(1) }; 5]).unwrap();
    for weight in (0..3).map(WeightId) {
        let ticket = load(&mut residency, weight, Purpose::Speculate);
        residency.complete(ticket, true, false);
    }
    assert_eq!(residency.reserve(WeightId(3), Purpose::Speculate).unwrap(), Step::Full);
    // It is a demand's.
    let ticket = load(&mut residency, WeightId(4), Purpose::Demand);
    residency.complete(ticket, true, true);
    assert_eq!(residency.stats().evictions, 0);
}

/// Guesses take free slots but one, and of the others at most a sixteenth.
#[test]
fn guesses_hold_a_sixteenth_of_the_slots() {
    const SLOTS: u32 = 48;
    let bytes = u64::from(SLOTS) * PAGE;
    let mut residency = Residency::new(Limits::single(bytes), Exact::boxed());
    let (class, slots) = residency.add_class(DomainId(0), PAGE, SLOTS as usize).unwrap();
    slots.into_iter().for_each(|slot| residency.slot_created(slot));
    let home = Home::Class(class);
    residency.attach(&vec![WeightSpec { home, ..own(1) }; 2 * SLOTS as usize]).unwrap();
    for weight in (0..SLOTS).map(WeightId) {
        let ticket = load(&mut residency, weight, Purpose::Demand);
        residency.complete(ticket, true, true);
        residency.unpin(weight);
    }
    let mut guessed = 0;
    for weight in (SLOTS..2 * SLOTS).map(WeightId) {
        match residency.reserve(weight, Purpose::Speculate).unwrap() {
            Step::Load(ticket) => {
                residency.complete(ticket, true, false);
                guessed += 1;
            }
            step => assert_eq!(step, Step::Full),
        }
    }
    assert_eq!(guessed, SLOTS / 16);
    let used = (0..SLOTS).map(WeightId).filter(|weight| residency.is_present(*weight));
    assert_eq!(used.count() as u32, SLOTS - SLOTS / 16);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_order_of_reports_keeps_the_rules(ops in proptest::collection::vec(op(), 1..200)) {
        let mut residency = Residency::new(Limits::single(PAGES * PAGE), Exact::boxed());
        let d = DomainId(0);
        let (class, slots) = residency.add_class(d, PAGE, 2).unwrap();
        let mut caller = Caller { exists: 2 * PAGE, ..Caller::default() };
        slots.into_iter().for_each(|s| residency.slot_created(s));
        let own = |pages: u64| WeightSpec { bytes: pages * PAGE, domain: d, home: Home::Own };
        let slot = WeightSpec { bytes: PAGE, domain: d, home: Home::Class(class) };
        let fixed = WeightSpec { bytes: PAGE, domain: d, home: Home::Fixed };
        residency.attach(&[own(1), own(1), own(2), own(3), own(2), slot, slot, slot, fixed]).unwrap();
        for op in &ops {
            caller.step(&mut residency, op);
            caller.hear(&mut residency);
            caller.check(&residency);
        }
        // Everything is given back in the end, but for what the device lost.
        while let Some((ticket, ..)) = caller.tickets.pop() {
            residency.complete(ticket, true, false);
        }
        caller.hear(&mut residency);
        prop_assert!(caller.waits.is_empty());
        prop_assert!(residency.failures.is_empty(), "every waiter heard of its failure");
    }
}
