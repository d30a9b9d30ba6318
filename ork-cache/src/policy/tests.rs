//! Every policy against its definition.

use proptest::prelude::*;

use super::{Lfu, Lru, PinnedRing, Policy};
use crate::ids::WeightId;
use crate::residency::Purpose;

/// Loads of the uses from number `from` on, on demand, with room for so many weights of equal size.
fn loads(policy: &mut dyn Policy, uses: &[u32], room: usize, from: usize) -> u64 {
    let (mut resident, mut loads) = (Vec::<WeightId>::new(), 0);
    policy.grow(uses.iter().map(|u| *u as usize + 1).max().unwrap_or(0));
    for (i, &weight) in uses.iter().enumerate() {
        let weight = WeightId(weight);
        if !resident.contains(&weight) {
            loads += u64::from(i >= from);
            if resident.len() == room {
                let here = &mut |w| resident.contains(&w);
                let victim =
                    policy.victim(weight, Purpose::Demand, here).expect("nothing is pinned");
                policy.remove(victim);
                resident.retain(|&w| w != victim);
            }
            resident.push(weight);
            policy.insert(weight);
        }
        policy.touch(weight);
    }
    loads
}

#[test]
fn a_scan_loads_what_theory_says() {
    for (n, c, s) in [(32u32, 16u32, 4u32), (32, 24, 4), (48, 16, 4), (100, 90, 4), (7, 5, 2)] {
        let uses: Vec<u32> = (0..10).flat_map(|_pass| 0..n).collect();
        let from = (n * 5) as usize;
        let in_room = |policy: &mut dyn Policy| loads(policy, &uses, c as usize, from);
        assert_eq!(in_room(&mut Lru::new()), u64::from(5 * n));
        let pinned: Vec<WeightId> = (0..c - s).map(WeightId).collect();
        assert_eq!(in_room(&mut PinnedRing::new(&pinned)), u64::from(5 * (n - (c - s))));
    }
}

/// Who leaves, by the plainest rules.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Lru,
    Fifo,
    Lfu(u32),
}

/// Loads of a rule on equal sizes, from its definition: everything is looked for in the past.
fn twin(rule: Rule, uses: &[u32], room: usize) -> u64 {
    let (mut resident, mut loads) = (Vec::<(u32, usize)>::new(), 0);
    for (now, &w) in uses.iter().enumerate() {
        if resident.iter().any(|&(r, _)| r == w) {
            continue;
        }
        loads += 1;
        if resident.len() == room {
            let last_use = |r: u32| uses[..now].iter().rposition(|&u| u == r).unwrap();
            // A use counts half as much after each half-life.
            let count = |r: u32, half_life: u32| -> f64 {
                let past = (0..now).filter(|&at| uses[at] == r);
                past.map(|at| 0.5f64.powf((now - at) as f64 / f64::from(half_life))).sum()
            };
            let at = (0..room).min_by(|&a, &b| {
                let ((a, a_in), (b, b_in)) = (resident[a], resident[b]);
                match rule {
                    Rule::Lru => last_use(a).cmp(&last_use(b)),
                    Rule::Fifo => a_in.cmp(&b_in),
                    Rule::Lfu(half_life) => {
                        let (a_count, b_count) = (count(a, half_life), count(b, half_life));
                        // Sums in another order differ in the last digits.
                        if (a_count - b_count).abs() < 1e-9 {
                            last_use(a).cmp(&last_use(b))
                        } else {
                            a_count.total_cmp(&b_count)
                        }
                    }
                }
            });
            resident.remove(at.unwrap());
        }
        resident.push((w, now));
    }
    loads
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_policy_does_what_its_definition_says(
        uses in proptest::collection::vec(0u32..8, 1..120),
        room in 1usize..7,
        half_life in 1u32..40,
    ) {
        let by = |policy: &mut dyn Policy| loads(policy, &uses, room, 0);
        prop_assert_eq!(by(&mut Lru::new()), twin(Rule::Lru, &uses, room));
        prop_assert_eq!(by(&mut PinnedRing::new(&[])), twin(Rule::Fifo, &uses, room));
        prop_assert_eq!(by(&mut Lfu::new(half_life)), twin(Rule::Lfu(half_life), &uses, room));
    }
}
