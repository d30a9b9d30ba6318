//! Plans for domains side by side: where one core works in a domain at a time, each weight is split by columns.
//!
//! All lanes are alike, so one is planned, with its share of the budget and the widest part of each weight, and
//! the others are put beside it. What a lane counts, the others count as well, though some have a tile of
//! columns less.

use rknpu_sys::layout::PAGE;

use super::{Board, Class, Cost, Item, Place, Plan, PlanError, budget};
use crate::ids::{ClassId, DomainId};

/// As [`Plan::several`], each weight over as many domains as the board has lanes.
pub(super) fn several(models: &[(&str, &[Item])], board: &Board) -> Result<Vec<Plan>, PlanError> {
    let parts = |(name, items): &(&str, &[Item])| {
        (name.to_string(), items.iter().map(|item| item.widest_lane(board.lanes)).collect())
    };
    let parts: Vec<(String, Vec<Item>)> = models.iter().map(parts).collect();
    let parts: Vec<(&str, &[Item])> =
        parts.iter().map(|(name, items)| (&**name, &**items)).collect();
    let plans = Plan::several_in_one_lane(&parts, &one(board));
    let plans = plans.map_err(|error| of_all(error, board))?;
    let beside = |(plan, (_, items)): (Plan, &(&str, &[Item]))| beside(plan, items, board);
    Ok(plans.into_iter().zip(models).map(beside).collect())
}

/// As [`budget::fit`], in one lane, of what each has of the weights.
pub(crate) fn fit<T>(
    board: &Board,
    parts: &[Item],
    place: impl Fn(u64, u32, u64) -> Option<T>,
) -> Result<T, PlanError> {
    budget::fit(&one(board), parts, place).map_err(|error| of_all(error, board))
}

/// What one lane has of a board.
fn one(board: &Board) -> Board {
    let lanes = board.lanes.max(1);
    let share = |bytes: u64| match lanes {
        1 => bytes,
        _ => bytes / u64::from(lanes) / PAGE * PAGE,
    };
    Board {
        domains: (board.domains / lanes).max(1),
        ram: if lanes == 1 { board.ram } else { share(board.left()) },
        reserve: if lanes == 1 { board.reserve } else { 0 },
        budget: board.budget.map(share),
        ..board.clone()
    }
}

/// Numbers of one lane as those of all.
fn of_all(error: PlanError, board: &Board) -> PlanError {
    let all = |bytes: u64| bytes.saturating_mul(board.lanes.max(1).into());
    match error {
        PlanError::Budget { budget, smallest, scratch } => PlanError::Budget {
            budget: board.budget.unwrap_or(all(budget)),
            smallest: all(smallest),
            scratch: all(scratch),
        },
        PlanError::Memory { need, .. } => {
            PlanError::Memory { ram: board.ram, reserve: board.reserve, need: all(need) }
        }
        error => error,
    }
}

/// The plan of one lane, with the others beside it.
fn beside(plan: Plan, items: &[Item], board: &Board) -> Plan {
    let lanes = board.lanes;
    let in_lane = |domain: DomainId, lane: u8| DomainId(domain.0 * lanes + lane);
    let classes = plan.classes.iter().flat_map(|class| {
        (0..lanes).map(move |lane| Class { domain: in_lane(class.domain, lane), ..*class })
    });
    // That of the first lane; the others follow.
    let place = |place: &Place| match *place {
        Place::Resident(domain) => Place::Resident(in_lane(domain, 0)),
        Place::Slot(class, parts) => Place::Slot(ClassId(class.0 * u32::from(lanes)), parts),
    };
    let all = |of_one: u64| of_one.saturating_mul(lanes.into());
    let cost = Cost {
        loads_per_pass: all(plan.cost.loads_per_pass),
        bytes_per_pass: all(plan.cost.bytes_per_pass),
        lru_bytes_per_pass: all(plan.cost.lru_bytes_per_pass),
        // None is left for another.
        switches_per_pass: 0,
        lru_switches_per_pass: 0,
        ..plan.cost
    };
    Plan {
        bytes: items.iter().map(Item::bytes).sum(),
        board: board.clone(),
        domains: plan.domains.iter().flat_map(|share| (0..lanes).map(|_| *share)).collect(),
        classes: classes.collect(),
        places: plan.places.iter().map(place).collect(),
        cost,
        ..plan
    }
}
