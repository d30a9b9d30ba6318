//! What residency, plans and prefetching promise.

use super::{integration, model, unit};
use crate::promises::Promise;

const CRATE: &str = "ork-cache";

pub(super) const PROMISES: &[Promise] = &[
    Promise {
        says: "guesses hold at most a sixteenth of the slots",
        file: "ork-cache/src/residency/make_room.rs",
        right: "(slots / 16).max(1)",
        wrong: "(slots / 2).max(1)",
        test: unit(CRATE, "residency::tests::guesses_hold_a_sixteenth_of_the_slots"),
    },
    Promise {
        says: "a guess never takes the last free slot",
        file: "ork-cache/src/residency/make_room.rs",
        right: "if empty.len() > 1 { empty.pop() }",
        wrong: "if !empty.is_empty() { empty.pop() }",
        test: unit(CRATE, "residency::tests::a_guess_leaves_the_last_free_slot"),
    },
    Promise {
        says: "what is expected gives its place to a demand, never to a prefetch",
        file: "ork-cache/src/residency/make_room.rs",
        right: "            None if purpose == Purpose::Demand => pick(true),",
        wrong: "            None => pick(true),",
        test: model(CRATE, "cache::loom::what_was_loaded_ahead_stays_until_its_use"),
    },
    Promise {
        says: "a pinned weight is neither evicted nor overwritten",
        file: "ork-cache/src/residency/make_room.rs",
        right: "                State::Ready { slot, pins: 0, expected, .. } => {\n                    (!expected",
        wrong: "                State::Ready { slot, expected, .. } => {\n                    (!expected",
        test: unit(CRATE, "residency::tests::any_order_of_reports_keeps_the_rules"),
    },
    Promise {
        says: "bytes are entered before the device is asked for them",
        file: "ork-cache/src/residency/make_room.rs",
        right: "            self.ledger.enter(domain, need);",
        wrong: "            let _ = domain;",
        test: unit(CRATE, "residency::tests::any_order_of_reports_keeps_the_rules"),
    },
    Promise {
        says: "bytes count until the device has really freed them",
        file: "ork-cache/src/residency/mod.rs",
        right: "        self.ledger.stays(domain, bytes);",
        wrong: "        self.ledger.left_for_good(domain, bytes);",
        test: unit(CRATE, "cache::tests::a_failed_free_keeps_its_bytes_accounted"),
    },
    Promise {
        says: "a sync that failed leaves no weight in the policy's books",
        file: "ork-cache/src/residency/mod.rs",
        right: "            self.policy.remove(weight);\n        }\n        let before",
        wrong: "        }\n        let before",
        test: unit(CRATE, "residency::tests::a_failed_sync_leaves_no_trace_in_the_policy"),
    },
    Promise {
        says: "the error of a load reaches each of those who waited for it",
        file: "ork-cache/src/residency/mod.rs",
        right: "            self.failures.push(Failure { load, cause: cause.clone(), remaining });",
        wrong: "            let _ = (load, remaining);",
        test: unit(
            CRATE,
            "residency::tests::a_failed_load_is_told_to_those_who_wait_and_its_bytes_count_until_they_are_freed",
        ),
    },
    Promise {
        says: "a load ahead copies beside another domain's work and never waits for it",
        file: "ork-cache/src/cache/load.rs",
        right: "        if purpose != Purpose::Demand && !state.turns.admits(domain.0.into()) {",
        wrong: "        if false {",
        test: unit(CRATE, "cache::tests::a_load_ahead_never_waits_for_another_domain"),
    },
    Promise {
        says: "no shutdown waits for a domain that somebody else visits",
        file: "ork-cache/src/cache/load.rs",
        right: "        if purpose != Purpose::Demand && !state.turns.admits(domain.0.into()) {",
        wrong: "        if false {",
        test: model(CRATE, "cache::loom::shutdown_while_a_copy_for_another_domain_is_under_way"),
    },
    Promise {
        says: "the share of the memory goes before the pin",
        file: "ork-cache/src/cache/guards.rs",
        right: "        self.memory = None;\n        self.shared.unpin(self.weight);",
        wrong: "        self.shared.unpin(self.weight);\n        self.memory = None;",
        test: model(CRATE, "cache::loom::a_pinned_weight_is_never_freed"),
    },
    Promise {
        says: "a weight is loaded by one caller at a time",
        file: "ork-cache/src/residency/mod.rs",
        right: "                *waiters += 1;\n                self.stats.joins += 1;\n                Ok(Step::Wait(*load))",
        wrong: "                let _ = waiters;\n                let _ = load;\n                self.place(weight, purpose)",
        test: unit(CRATE, "residency::tests::any_order_of_reports_keeps_the_rules"),
    },
    Promise {
        says: "a load on demand takes all threads, one ahead none of the pool's",
        file: "ork-cache/src/store/mod.rs",
        right: "                    Purpose::Demand => Pack::load_into_parallel,\n                    Purpose::Prefetch | Purpose::Speculate => Pack::load_into,",
        wrong: "                    Purpose::Demand => Pack::load_into,\n                    Purpose::Prefetch | Purpose::Speculate => Pack::load_into_parallel,",
        test: integration(
            CRATE,
            "loading_threads",
            "loads_on_demand_take_the_pool_and_loads_ahead_take_nobodys_thread",
        ),
    },
    Promise {
        says: "scratch takes at most a quarter of a budget unless nothing else works",
        file: "ork-cache/src/plan/budget.rs",
        right: "scratch <= total / SCRATCH_SHARE;",
        wrong: "scratch <= total;",
        test: integration(CRATE, "plan", "every_plan_keeps_the_rules"),
    },
    Promise {
        says: "a budget that is too small is answered with the smallest that works",
        file: "ork-cache/src/plan/budget.rs",
        right: "if works(middle * PAGE) { high = middle }",
        wrong: "if works(middle * PAGE) && middle > 0 { high = middle + 1; if high - low < 3 { break } }",
        test: unit(CRATE, "open::placement::tests::the_smallest_budget_named_is_the_smallest"),
    },
    Promise {
        says: "what goes through the ring leaves in the order in which it came",
        file: "ork-cache/src/policy/pinned_ring.rs",
        right: "self.ring.iter().copied().find(",
        wrong: "self.ring.iter().rev().copied().find(",
        test: unit(CRATE, "policy::pinned_ring::tests::the_ring_turns_and_the_pinned_stay"),
    },
    Promise {
        says: "what is planned to stay is loaded once",
        file: "ork-cache/src/residency/mod.rs",
        right: "                if matches!(entry.home, Home::Fixed) {\n                    return Ok(Step::Hit(slot));",
        wrong: "                if matches!(entry.home, Home::Fixed) && false {\n                    return Ok(Step::Hit(slot));",
        test: unit(CRATE, "residency::tests::any_order_of_reports_keeps_the_rules"),
    },
];
