//! What is below the public types, for this workspace's experiments and fuzz targets. No promises.

pub use crate::backend::Backend;
pub use crate::experts::predictor::Popularity;
pub use crate::experts::routing::{ExpertTable, Remaining};
pub use crate::policy::{Lfu, Lru, PinnedRing, Policy};
pub use crate::prefetch::{Queue, known, replace};
pub use crate::residency::{
    Home, Limits, LoadId, Outcome, PAGE, Presence, Purpose, Residency, SlotId, Stage, Step, Ticket,
    WeightSpec,
};

use crate::experts::{Routing, RoutingError};
use crate::ids::{ClassId, WeightId};
use crate::plan::{Item, Placed, Plan};
use crate::{Cache, Result};

/// A cache over any backend, with room for a plan's slots and weights, which are attached.
///
/// # Errors
/// A backend that refuses the slots.
pub fn cache<B: Backend>(backend: B, plan: &Plan, items: &[Item]) -> Result<(Cache<B>, Placed)> {
    let (_, placed) = residency(plan, items)?;
    let cache = Cache::new(backend, plan.limits(), Box::new(PinnedRing::new(&placed.kept)));
    let placed = plan.apply(items, &cache)?;
    Ok((cache, placed))
}

/// A residency with room for a plan's slots, which exist, and weights, which are attached.
///
/// # Errors
/// A plan whose weights do not fit its own limits.
pub fn residency(plan: &Plan, items: &[Item]) -> Result<(Residency, Placed)> {
    let classes: Vec<_> = (0..plan.classes.len() as u32).map(ClassId).collect();
    let placed = plan.place(items, WeightId(0), &classes);
    let mut residency = Residency::new(plan.limits(), Box::new(PinnedRing::new(&placed.kept)));
    for class in &plan.classes {
        let (_, slots) = residency.add_class(class.domain, class.slot, class.slots as usize)?;
        slots.into_iter().for_each(|slot| residency.slot_created(slot));
    }
    residency.attach(&placed.parts.iter().map(crate::Part::spec).collect::<Vec<_>>())?;
    Ok((residency, placed))
}

/// The experts that a batch needs of a layer, for a prefetcher and to be computed.
///
/// # Errors
/// A layer or an expert outside the model.
pub fn remaining(
    table: &ExpertTable,
    layer: u32,
    routing: &Routing,
    presence: impl Fn(WeightId) -> Presence,
) -> Result<(Remaining, Vec<WeightId>), RoutingError> {
    let mut needed = Vec::new();
    let remaining = table.remaining(layer, routing, presence, &mut needed)?;
    Ok((remaining, needed))
}
