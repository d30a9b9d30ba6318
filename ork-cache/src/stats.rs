//! What a cache has done so far, as plain numbers.

use std::time::Duration;

use serde::Serialize;

use crate::core::Counters;

/// A snapshot of what a cache did and holds; differences of two snapshots describe what lay between.
///
/// ```
/// use ork_cache::core::{Home, Limits, WeightSpec};
/// use ork_cache::{Cache, DomainId, fake::Fake, policy::Lru};
///
/// let cache = Cache::new(Fake::new(8192), Limits::single(8192), Box::new(Lru::new()));
/// let weight = cache.attach(&[WeightSpec { bytes: 5000, domain: DomainId(0), home: Home::Own }])?;
/// drop(cache.acquire(weight)?); // loads
/// drop(cache.acquire(weight)?); // hits
/// let stats = cache.stats();
/// assert_eq!((stats.counters.demand_loads, stats.counters.hits), (1, 1));
/// assert_eq!((stats.bytes_loaded, stats.bytes_now), (8192, 8192)); // whole pages
/// let json = serde_json::to_value(stats)?;
/// assert_eq!((&json["hits"], &json["bytes_now"]), (&1.into(), &8192.into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// What the cache decided; flat beside the others when serialised.
    #[serde(flatten)]
    pub counters: Counters,
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
    /// Loads of both kinds.
    ///
    /// ```
    /// let stats = ork_cache::stats::Stats::default();
    /// assert_eq!(stats.loads(), stats.counters.loads());
    /// ```
    pub fn loads(&self) -> u64 {
        self.counters.loads()
    }
}
