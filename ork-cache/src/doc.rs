//! What the examples start from, so that each shows only what it is about. No part of the interface.

use rknpu::{Layout, Precision};

use crate::plan::{Board, Item, Plan};

/// Sixteen weights of 1 MiB each, in the order of a pass.
pub fn items() -> Vec<Item> {
    let layout = Layout::new(1024, 1024, Precision::Int8);
    layout.map_or_else(
        |_| Vec::new(),
        |layout| (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect(),
    )
}

/// The plan of [`items`] in 8 MiB: a part resident, the rest streamed.
///
/// # Errors
/// Those of [`Plan::new`].
pub fn plan() -> Result<Plan, crate::plan::PlanError> {
    Plan::new("16 MiB", &items(), &Board::single_domain(8 << 20))
}
