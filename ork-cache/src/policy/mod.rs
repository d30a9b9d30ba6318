//! Which weight leaves when another needs the room.
//!
//! One file per policy. A policy sees uses, arrivals and departures, and names a victim; it never
//! sees pins, slots or bytes. For an order that repeats (dense models) take [`PinnedRing`] or
//! [`NextUse`]; [`Lru`] never hits on such an order once the model is larger than the budget.
//! For experts the differences are small and knowing the future is worth more than any of them.

mod lfu;
mod lru;
mod next_use;
mod pinned_ring;
mod s3fifo;
pub mod simulate;

use std::fmt;

pub use lfu::Lfu;
pub use lru::Lru;
pub use next_use::NextUse;
pub use pinned_ring::PinnedRing;
pub use s3fifo::S3Fifo;

use crate::core::Purpose;
use crate::ids::WeightId;

/// Chooses victims.
///
/// Calls come in this order: `use` of a resident weight: [`touch`](Policy::touch). A load: any
/// number of [`victim`](Policy::victim) each followed by [`remove`](Policy::remove) of what was
/// chosen, then [`insert`](Policy::insert), and `touch` when the load was for a use (not for a
/// prefetch). A policy does no I/O, takes no time and must be deterministic.
///
/// ```
/// use ork_cache::WeightId;
/// use ork_cache::core::Purpose;
/// use ork_cache::policy::{Policy, simulate::Trace};
///
/// /// The newest leaves: a pinned set that nobody had to choose.
/// #[derive(Debug, Default)]
/// struct Newest(Vec<WeightId>);
///
/// impl Policy for Newest {
///     fn name(&self) -> &'static str {
///         "newest"
///     }
///     fn grow(&mut self, _weights: usize) {}
///     fn touch(&mut self, _weight: WeightId) {}
///     fn insert(&mut self, weight: WeightId) {
///         self.0.push(weight);
///     }
///     fn remove(&mut self, weight: WeightId) {
///         self.0.retain(|&w| w != weight);
///     }
///     fn victim(
///         &mut self,
///         _incoming: WeightId,
///         _purpose: Purpose,
///         evictable: &mut dyn FnMut(WeightId) -> bool,
///     ) -> Option<WeightId> {
///         self.0.iter().rev().copied().find(|&w| evictable(w))
///     }
/// }
///
/// let trace = Trace::scan(vec![1; 8], 10);
/// assert_eq!(trace.run(&mut Newest::default(), 5).hits, 9 * 4);
/// ```
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
