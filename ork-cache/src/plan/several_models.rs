//! Models that share a board.

use super::budget::{PlanError, fit, smallest};
use super::{Board, Item, Plan, Room, lanes};

impl Plan {
    /// A plan for each of several models, given by name, that share a board's memory and domains. The first
    /// gets its place first: a small model in front of a large one stays resident beside it.
    ///
    /// # Errors
    /// As [`Plan::new`], for all of them together.
    pub(crate) fn several(
        models: &[(&str, &[Item])],
        board: &Board,
    ) -> Result<Vec<Plan>, PlanError> {
        if models.iter().any(|(_, items)| items.is_empty()) {
            return Err(PlanError::Empty);
        }
        match board.lanes {
            0 | 1 => Plan::several_in_one_lane(models, board),
            _ => lanes::several(models, board),
        }
    }

    /// As [`Plan::several`], of weights that are whole in a domain.
    pub(super) fn several_in_one_lane(
        models: &[(&str, &[Item])],
        board: &Board,
    ) -> Result<Vec<Plan>, PlanError> {
        let all: Vec<Item> = models.iter().flat_map(|(_, items)| items.iter().cloned()).collect();
        fit(board, &all, |total, rows, scratch| {
            let greedy = one_after_the_other(models, board, total, rows, scratch, |_| 0);
            if greedy.is_some() || models.len() == 1 {
                return greedy;
            }
            // The first took all: the others' least is kept for them.
            one_after_the_other(models, board, total, rows, scratch, |items| {
                let bytes = items.iter().map(Item::bytes).sum();
                smallest(bytes, |total| {
                    let room = Room::of(board, total, board.domain_bytes, 0);
                    Plan::in_room("", items, board, rows, &room).is_some()
                })
            })
        })
    }
}

/// `least` bytes are kept for each model that follows.
fn one_after_the_other(
    models: &[(&str, &[Item])],
    board: &Board,
    total: u64,
    rows: u32,
    scratch: u64,
    least: impl Fn(&[Item]) -> u64,
) -> Option<Vec<Plan>> {
    let mut plans: Vec<Plan> = Vec::with_capacity(models.len());
    for (i, (name, items)) in models.iter().enumerate() {
        let taken: u64 = plans.iter().map(|plan| plan.limits().total).sum();
        // A plan counts scratch in each of its own domains; those of earlier plans beyond its first
        // are counted here.
        let domains = plans.iter().map(|plan| plan.domains.len()).max().unwrap_or(1) as u64;
        let elsewhere = scratch.saturating_mul(domains - 1);
        let kept: u64 = models[i + 1..].iter().map(|(_, items)| least(items)).sum();
        let total = total.saturating_sub(taken + elsewhere + kept);
        let fullest = (0..domains as usize)
            .map(|d| plans.iter().filter_map(|p| p.limits().domains.get(d).copied()).sum::<u64>());
        let domain_bytes = board.domain_bytes.saturating_sub(fullest.max().unwrap_or(0));
        let room = Room::of(board, total, domain_bytes, scratch);
        plans.push(Plan::in_room(name, items, board, rows, &room)?);
    }
    Some(plans)
}
