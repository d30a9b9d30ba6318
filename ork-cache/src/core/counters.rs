//! What the core decided, as counts.

use serde::Serialize;

/// Counts of what the core decided, since its creation.
///
/// ```
/// use ork_cache::core::Counters;
///
/// assert_eq!(Counters::default().hits, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Uses that found the weight ready.
    pub hits: u64,
    /// Uses that found the weight being loaded by someone else and waited.
    pub joins: u64,
    /// Loads begun for a use that was already waiting.
    pub demand_loads: u64,
    /// Loads begun ahead of a use.
    pub prefetch_loads: u64,
    /// Weights that lost their place to another.
    pub evictions: u64,
    /// Buffers given back to the device to make room.
    pub frees: u64,
    /// Prefetched weights that left without having been used.
    pub wasted: u64,
    /// Loads that failed.
    pub failures: u64,
    /// Buffers that the device failed to free; their bytes stay accounted.
    pub lost: u64,
}

impl Counters {
    /// Loads of both kinds.
    ///
    /// ```
    /// use ork_cache::core::Counters;
    ///
    /// let counters = Counters { demand_loads: 2, prefetch_loads: 40, ..Counters::default() };
    /// assert_eq!(counters.loads(), 42);
    /// ```
    pub fn loads(&self) -> u64 {
        self.demand_loads + self.prefetch_loads
    }
}
