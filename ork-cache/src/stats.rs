//! What a cache has done so far, as plain numbers.

use std::time::Duration;

use serde::Serialize;

/// A snapshot of what a cache did and holds; differences of two snapshots describe what lay between.
///
/// ```
/// let stats = ork_cache::Stats { demand_loads: 2, prefetch_loads: 40, ..Default::default() };
/// assert_eq!(stats.loads(), 42);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
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
    /// Buffers that the device failed to free; their bytes stay counted.
    pub lost: u64,
    /// Bytes copied into device memory.
    pub bytes_loaded: u64,
    /// Bytes of device memory that exist now.
    pub bytes_now: u64,
    /// The most that ever existed at once.
    pub bytes_peak: u64,
    /// Time spent in loads, over all threads.
    pub load_time: Duration,
    /// Time in which uses were not served at once, over all threads: loads of their own, waits for
    /// those of others and for room.
    pub stall_time: Duration,
}

impl Stats {
    /// Loads on demand and ahead of use.
    pub fn loads(&self) -> u64 {
        self.demand_loads + self.prefetch_loads
    }
}
