//! Plans of public models on known boards.

use ork_cache::DomainId;
use ork_cache::plan::{Board, Experts, Item, Mode, Place, Plan, PlanError, Shape};
use proptest::prelude::*;
use rknpu_sys::layout::{Layout, Precision};

const GIB: u64 = 1 << 30;

fn items(shape: &str) -> Vec<Item> {
    Shape::known(shape).unwrap().items().unwrap()
}

/// `n` layers of one weight of `kib` KiB each.
fn layers(kib: &[u32]) -> Vec<Item> {
    let item = |(i, &kib): (usize, &u32)| {
        let layout = Layout::new(1024, kib, Precision::Int8).unwrap();
        Item::new(format!("blk.{i}.w"), layout)
    };
    kib.iter().enumerate().map(item).collect()
}

/// What must hold for every plan.
fn check(plan: &Plan, items: &[Item]) {
    assert_eq!(plan.places.len(), items.len());
    let board = &plan.board;
    for (i, share) in plan.domains.iter().enumerate() {
        let sum = share.resident + share.slots + share.scratch + share.headroom;
        assert!(sum <= board.domain_bytes.max(share.headroom), "domain {i}: {share:?}");
        let resident: u64 = (items.iter().zip(&plan.places))
            .filter(|(_, p)| **p == Place::Resident(DomainId(i as u8)))
            .map(|(item, _)| item.bytes())
            .sum();
        assert_eq!(resident, share.resident);
        let slots = plan.classes.iter().filter(|c| c.domain.index() == i);
        assert_eq!(slots.map(|c| c.slot * u64::from(c.slots)).sum::<u64>(), share.slots);
    }
    let limit = board.ram.saturating_sub(board.reserve).min(board.budget.unwrap_or(u64::MAX));
    assert!(plan.device_bytes() <= limit);
    // Fewer rows in a block before weights give way, down to one.
    let scratch = plan.domains.iter().map(|share| share.scratch).max().unwrap_or(0);
    assert!(plan.rows <= 1 || scratch <= limit / 4, "{scratch} of {limit} for {} rows", plan.rows);
    assert!(plan.domains.len() <= board.domains.into());
    // A pass goes through the domains in order: one switch into each.
    let domains: Vec<DomainId> = plan.places.iter().map(|p| plan.domain_of(*p)).collect();
    assert!(domains.is_sorted());
    let used = plan.domains.len() as u64;
    assert_eq!(plan.cost.switches_per_pass, if used > 1 { used } else { 0 });
    // Layers are whole.
    for pair in items.iter().zip(&domains).collect::<Vec<_>>().windows(2) {
        let ((a, da), (b, db)) = (pair[0], pair[1]);
        assert!(a.layer.is_none() || a.layer != b.layer || da == db, "{} split", a.name);
    }
}

#[test]
fn public_models_on_known_boards() {
    for (name, _) in Shape::KNOWN {
        let items = items(name);
        for board in Board::KNOWN {
            let board = Board::known(board).unwrap();
            match Plan::new(name, &items, &board) {
                Ok(plan) => {
                    check(&plan, &items);
                    println!("{plan}\n");
                    assert!(plan.cost.bytes_per_pass <= plan.cost.lru_bytes_per_pass);
                    let text = serde_json::to_string(&plan).unwrap();
                    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
                    assert_eq!(Plan::new(name, &items, &board).unwrap(), plan, "deterministic");
                }
                Err(error) => println!("{name} on {}: {error}\n", board.name),
            }
        }
    }
}

#[test]
fn a_nine_billion_model_takes_three_even_domains() {
    let items = items("gemma-2-9b");
    let plan = Plan::new("9b", &items, &Board::known("rk3588-16g").unwrap()).unwrap();
    assert_eq!(plan.mode, Mode::Resident);
    let resident: Vec<u64> = plan.domains.iter().map(|d| d.resident).collect();
    assert_eq!(resident.len(), 3);
    let (least, most) = (resident.iter().min().unwrap(), resident.iter().max().unwrap());
    assert!(most - least < GIB, "{resident:?}");
}

#[test]
fn loads_of_equal_layers_are_exactly_what_is_left_out() {
    for (n, c) in [(32u32, 16u32), (32, 24), (48, 16), (100, 90), (7, 6)] {
        let items = layers(&vec![64; n as usize]);
        let board = Board::single_domain(u64::from(c) * (64 << 10));
        let plan = Plan::new("equal", &items, &board).unwrap();
        check(&plan, &items);
        let s = board.ring_slots();
        assert_eq!(plan.cost.loads_per_pass, u64::from(n - (c - s)), "N={n} C={c} S={s}");
        assert_eq!(
            (plan.cost.weights_per_pass, plan.cost.lru_weights_per_pass),
            (u64::from(n - (c - s)), u64::from(n))
        );
    }
}

/// A domain more would hold a ring's worth more weights, and leave slots as narrow as what is over: every streamed
/// weight then goes through in several small reads and jobs, one after the other at the end of the pass.
#[test]
fn weights_of_layers_go_through_whole_slots_wherever_there_is_room_for_some() {
    for (kib, layers_of, budget) in [(4 << 10, 96, 195 << 20), (64 << 10, 96, (3836 + 100) << 20)] {
        let items = layers(&vec![kib; layers_of]);
        let board = Board { rows: 32, budget: Some(budget), ..Board::rk3588("", 64 << 30) };
        let plan = Plan::new("equal", &items, &board).unwrap();
        check(&plan, &items);
        assert_eq!((plan.domains.len(), plan.classes.len()), (1, 1), "{plan}");
        assert_eq!(plan.classes[0].slot, u64::from(kib) << 10, "{plan}");
        assert_eq!(plan.cost.loads_per_pass, plan.cost.weights_per_pass, "{plan}");
        // What stays lies between.
        let stays = |place: &&Place| matches!(place, Place::Resident(_));
        let count = plan.places.iter().filter(stays).count();
        let first_half = plan.places[..layers_of / 2].iter().filter(stays).count();
        assert!(first_half.abs_diff(count / 2) <= 1, "{first_half} of {count}");
    }
}

#[test]
fn a_board_that_is_too_small_is_told_what_would_do() {
    let items = layers(&[64; 8]);
    let error = Plan::new("small", &items, &Board::single_domain(64 << 10)).unwrap_err();
    let PlanError::Budget { smallest: budget, .. } = error else { panic!("{error}") };
    Plan::new("small", &items, &Board::single_domain(budget)).unwrap();
    assert!(Plan::new("small", &items, &Board::single_domain(budget - 1)).is_err());
    assert_eq!(Plan::new("none", &[], &Board::single_domain(1)), Err(PlanError::Empty));
}

#[test]
fn a_board_whose_memory_is_short_is_told_so_before_anything_is_loaded() {
    let items = items("gemma-2-9b");
    let board = Board::known("rk3588-8g").unwrap();
    let plan = Plan::new("9b", &items, &Board { budget: Some(64 * GIB), ..board.clone() }).unwrap();
    assert!(plan.device_bytes() <= board.left(), "what stays fits the memory, not the budget");
    let text = plan.to_string();
    assert!(
        text.contains("the budget of 64.00 GiB is more than the board has: 6.50 GiB"),
        "{text}"
    );
    let plan = Plan::new("9b", &items, &Board { budget: Some(4 * GIB), ..board.clone() }).unwrap();
    assert!(!plan.to_string().contains("more than the board has"));

    // No budget helps a board that cannot hold the ring.
    let tiny = Board { ram: board.reserve + (1 << 20), budget: Some(64 * GIB), ..board };
    let error = Plan::new("9b", &items, &tiny).unwrap_err();
    assert!(matches!(error, PlanError::Memory { need, .. } if need > 1 << 20), "{error}");
}

#[test]
fn loads_and_weights_are_told_apart() {
    // The head is larger than a slot, so it takes several loads, but it is one weight.
    for (name, board) in [("llama-3.1-70b", "rk3588-8g"), ("gemma-2-27b", "rk3588-16g")] {
        let items = items(name);
        let plan = Plan::new(name, &items, &Board::known(board).unwrap()).unwrap();
        let streamed: Vec<u32> = (plan.places.iter())
            .filter_map(|place| match place {
                Place::Slot(_, parts) => Some(*parts),
                Place::Resident(_) => None,
            })
            .collect();
        assert_eq!(plan.cost.weights_per_pass, streamed.len() as u64);
        assert_eq!(plan.cost.loads_per_pass, streamed.iter().copied().map(u64::from).sum::<u64>());
        assert!(plan.cost.weights_per_pass < plan.cost.lru_weights_per_pass);
        let text = plan.to_string();
        let weights = format!("a pass loads {} weights", plan.cost.weights_per_pass);
        assert!(text.contains(&weights), "{text}");
        let lru = format!("would load {} weights", plan.cost.lru_weights_per_pass);
        assert!(text.contains(&lru), "{text}");
    }
}

#[test]
fn the_readme_s_table_is_what_is_printed() {
    let readme = include_str!("../../README.md");
    let rows: Vec<Vec<&str>> = readme
        .lines()
        .skip_while(|line| !line.starts_with("| model | weights |"))
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let boards = ["rk3588-8g", "rk3588-16g", "rk3588-32g"];
    assert_eq!(rows[0][2..], ["8 GB board", "16 GB board", "32 GB board"]);
    assert_eq!(rows.len(), 2 + Shape::KNOWN.len());
    for (row, (name, _)) in rows[2..].iter().zip(Shape::KNOWN) {
        assert_eq!(row[0], format!("`{name}`"));
        let items = items(name);
        for (cell, board) in row[2..].iter().zip(boards) {
            let plan = Plan::new(name, &items, &Board::known(board).unwrap()).unwrap();
            let text = plan.to_string();
            assert!(text.contains(&format!(", {} in {} weights", row[1], items.len())), "{text}");
            if plan.mode == Mode::Resident {
                assert_eq!(*cell, format!("resident, {} domains", plan.domains.len()));
            } else {
                let (bytes, time) = cell.split_once(" a pass (").unwrap();
                assert!(text.contains(&format!("weights ({bytes})")), "{name}, {board}: {text}");
                // At 2 GB/s, as the README says above its table.
                let seconds = plan.cost.bytes_per_pass as f64 / 2e9;
                let digits = if seconds < 9.95 { 1 } else { 0 };
                assert_eq!(time, format!("{seconds:.digits$} s)"), "{name}, {board}");
                // What the README says of LRU.
                assert_eq!(plan.cost.lru_weights_per_pass, items.len() as u64, "{name}, {board}");
            }
        }
    }
}

/// Fewest bytes that must be streamed: exhaustive over which weights stay.
fn optimum(items: &[Item], budget: u64, ring: u64) -> Option<u64> {
    (0u32..1 << items.len())
        .filter_map(|kept| {
            let side = |keep| {
                let of = move |(i, _): &(usize, &Item)| (kept >> i & 1 == 1) == keep;
                items.iter().enumerate().filter(of).map(|(_, item)| item.bytes())
            };
            let slot = side(false).max().unwrap_or(0);
            (side(true).sum::<u64>() + ring * slot <= budget).then(|| side(false).sum())
        })
        .min()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_plan_keeps_the_rules(
        kib in proptest::collection::vec(1u32..64, 1..40),
        budget in 1u64..4096,
        window in 256u64..2048,
        domains in 1u8..6,
    ) {
        let items = layers(&kib.iter().map(|k| k * 32).collect::<Vec<_>>());
        let board = Board {
            domain_bytes: window << 15,
            domains,
            rows: 16,
            headroom: 4096,
            ..Board::single_domain(budget << 15)
        };
        if let Ok(plan) = Plan::new("random", &items, &board) {
            check(&plan, &items);
            prop_assert!(plan.cost.bytes_per_pass <= plan.cost.lru_bytes_per_pass.max(1));
        }
    }

    #[test]
    fn no_board_and_no_shape_makes_a_plan_panic(
        sizes in proptest::array::uniform7(prop_oneof![0u32..5, 0u32..9000, Just(u32::MAX)]),
        layers in prop_oneof![0u32..4, Just(u32::MAX)],
        experts in proptest::option::of(prop_oneof![0u32..9, Just(u32::MAX)]),
        dense in any::<bool>(),
        board in proptest::array::uniform5(prop_oneof![
            Just(0u64), Just(u64::MAX), 0u64..1 << 36, any::<u64>()
        ]),
        small in (any::<u8>(), any::<u8>(), any::<u32>(), any::<bool>()),
    ) {
        // Most numbers are multiples of what tiles, or nothing but refusals would be tried.
        let [hidden, heads, kv_heads, head_dim, ffn, vocab, expert] =
            sizes.map(|size| if size == u32::MAX { size } else { size * 32 });
        let shape = Shape {
            name: "random".into(),
            source: String::new(),
            layers,
            hidden,
            heads: heads / 32,
            kv_heads: kv_heads / 32,
            head_dim,
            ffn: dense.then_some(ffn),
            vocab,
            experts: experts.map(|count| Experts { count, active: count, ffn: expert }),
        };
        let [ram, reserve, window, headroom, budget] = board;
        let (domains, cores, rows, bounded) = small;
        let board = Board {
            ram,
            reserve,
            domain_bytes: window,
            headroom,
            domains,
            cores,
            rows,
            budget: bounded.then_some(budget),
            ..Board::rk3588("random", 0)
        };
        if let Ok(items) = shape.items()
            && items.len() < 2000
        {
            match Plan::new("random", &items, &board) {
                Ok(plan) => {
                    prop_assert!(plan.device_bytes() <= board.left().min(board.budget.unwrap_or(u64::MAX)));
                    prop_assert!(!plan.to_string().is_empty());
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn small_unequal_cases_are_within_two_percent_of_the_optimum(
        kib in proptest::collection::vec(1u32..16, 5..12),
        share in 0.3f64..1.0,
    ) {
        let items = layers(&kib.iter().map(|k| k * 32).collect::<Vec<_>>());
        let total: u64 = items.iter().map(Item::bytes).sum();
        let budget = (total as f64 * share) as u64;
        let best = optimum(&items, budget, 4);
        if let (Ok(plan), Some(best)) =
            (Plan::new("small", &items, &Board::single_domain(budget)), best)
        {
            let streamed = plan.cost.bytes_per_pass;
            prop_assert!(streamed as f64 <= best as f64 * 1.02, "{streamed} streamed, best {best}");
        }
    }
}
