//! Which weight leaves when another needs the room.
//!
//! One file per policy. A policy sees uses, arrivals and departures, and names a victim; it never
//! sees pins, slots or bytes. For an order that repeats (dense models) there is [`PinnedRing`]; [`Lru`]
//! never hits on such an order once the model is larger than the budget. For experts there is [`Lfu`].

mod lfu;
mod lru;
mod pinned_ring;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;

pub use lfu::Lfu;
pub use lru::Lru;
pub use pinned_ring::PinnedRing;

use crate::ids::WeightId;
use crate::residency::Purpose;

/// Chooses victims.
///
/// Calls come in this order: `use` of a resident weight: [`touch`](Policy::touch). A load: any
/// number of [`victim`](Policy::victim) each followed by [`remove`](Policy::remove) of what was
/// chosen, then [`insert`](Policy::insert), and `touch` when the load was for a use (not for a
/// prefetch). A policy does no I/O, takes no time and must be deterministic.
pub trait Policy: Send + fmt::Debug {
    /// Name for reports.
    fn name(&self) -> &'static str;

    /// Ids below `weights` may occur from now on. Called before the first use of a new id.
    fn grow(&mut self, weights: usize);

    /// A resident weight is used.
    fn touch(&mut self, weight: WeightId);

    /// A weight became resident and may be a victim from now on.
    fn insert(&mut self, weight: WeightId);

    /// A weight is no longer resident.
    fn remove(&mut self, weight: WeightId);

    /// The weight to give up for `incoming`, among the inserted ones for which `evictable` holds;
    /// `None` when there is none. For a prefetch a policy may also answer `None` because
    /// `incoming` is worth less than all of them; for a demand it must not, since the caller would
    /// wait for ever.
    fn victim(
        &mut self,
        incoming: WeightId,
        purpose: Purpose,
        evictable: &mut dyn FnMut(WeightId) -> bool,
    ) -> Option<WeightId>;
}
