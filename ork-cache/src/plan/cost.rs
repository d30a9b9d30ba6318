//! What a pass costs, by the plan and by LRU on the same bytes.

use serde::{Deserialize, Serialize};

use super::{Class, Item, Place, Share};
use crate::ids::{DomainId, WeightId};
use crate::policy::{Lru, Policy};
use crate::residency::Purpose;

/// Loads and switches of one pass once the model runs, every weight used once.
///
/// For a mixture that is a prefill whose tokens reach every expert; at decode only the experts
/// that were routed to are used.
///
/// ```
/// # let plan = ork_cache::doc::plan()?;
/// let cost = plan.cost;
/// assert_eq!((cost.weights_per_pass, cost.bytes_per_pass), (12, 12 << 20));
/// assert_eq!((cost.lru_weights_per_pass, cost.lru_bytes_per_pass), (16, 16 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Weights loaded, each counted once.
    pub weights_per_pass: u64,
    /// Loads: one for each of these weights, or for each part of one that is larger than a slot.
    pub loads_per_pass: u64,
    /// Bytes loaded.
    pub bytes_per_pass: u64,
    /// Changes of the domain that is at work.
    pub switches_per_pass: u64,
    /// Jobs of one core: one for each weight, or part of one, and block of rows. Chains make fewer of them.
    #[serde(default)]
    pub submits_per_pass: u64,
    /// Weights that LRU would load, whole, with the same bytes in the same domains.
    pub lru_weights_per_pass: u64,
    /// Bytes that LRU would load.
    pub lru_bytes_per_pass: u64,
    /// Changes of domain under LRU.
    pub lru_switches_per_pass: u64,
}

/// What a board needs for a pass's loads and submits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// Bytes a second that the disk gives to streamed weights.
    pub disk_bytes_per_second: f64,
    /// What a submit costs, whatever it does.
    pub submit_seconds: f64,
}

impl Default for Speeds {
    /// As long as nobody has measured: an NVMe disk of 2 GB/s, and the most that the C project has seen a submit cost.
    fn default() -> Speeds {
        Speeds { disk_bytes_per_second: 2e9, submit_seconds: 365e-6 }
    }
}

impl Cost {
    pub(super) fn of(
        items: &[Item],
        shares: &[Share],
        classes: &[Class],
        places: &[Place],
        ring: u32,
        blocks: u32,
    ) -> Cost {
        let jobs = places.iter().map(|place| match place {
            Place::Resident(_) => 1,
            Place::Slot(_, parts) => u64::from(*parts),
        });
        let submits_per_pass = jobs.sum::<u64>().saturating_mul(blocks.into());
        let mut cost = Cost { submits_per_pass, ..Cost::default() };
        let mut experts = vec![(0u64, 0u64); classes.len()];
        let mut last = None;
        for (item, place) in items.iter().zip(places) {
            let domain = match *place {
                Place::Resident(domain) => domain,
                Place::Slot(class, parts) => {
                    if item.expert.is_some() && parts == 1 {
                        experts[class.index()].0 += 1;
                        experts[class.index()].1 = item.bytes();
                    } else {
                        cost.weights_per_pass += 1;
                        cost.loads_per_pass += u64::from(parts);
                        cost.bytes_per_pass += item.bytes();
                    }
                    classes[class.index()].domain
                }
            };
            cost.switches_per_pass += u64::from(last.replace(domain).is_some_and(|d| d != domain));
        }
        // A pass over all experts of a class keeps all but a ring's worth of its slots.
        for (class, (uses, bytes)) in classes.iter().zip(experts) {
            let stay = u64::from(class.slots.saturating_sub(ring)).min(uses);
            let loads = if u64::from(class.slots) >= uses { 0 } else { uses - stay };
            cost.weights_per_pass += loads;
            cost.loads_per_pass += loads;
            cost.bytes_per_pass += loads * bytes;
        }
        if shares.len() > 1 {
            cost.switches_per_pass += 1; // back to the first domain for the next pass
        }
        cost.lru(items, shares);
        cost
    }

    /// Seconds that the disk needs for what a pass loads.
    ///
    /// ```
    /// use ork_cache::plan::Speeds;
    ///
    /// # let plan = ork_cache::doc::plan()?;
    /// let speeds = Speeds { disk_bytes_per_second: 12e6, ..Speeds::default() };
    /// assert_eq!(plan.cost.disk_seconds(&speeds), f64::from(12 << 20) / 12e6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn disk_seconds(&self, speeds: &Speeds) -> f64 {
        self.bytes_per_pass as f64 / speeds.disk_bytes_per_second
    }

    /// Seconds that submits cost a pass, at most.
    ///
    /// ```
    /// use ork_cache::plan::Speeds;
    ///
    /// # let plan = ork_cache::doc::plan()?;
    /// let speeds = Speeds { submit_seconds: 0.25, ..Speeds::default() };
    /// assert_eq!(plan.cost.submit_seconds(&speeds), 16.0 * 0.25);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_seconds(&self, speeds: &Speeds) -> f64 {
        self.submits_per_pass as f64 * speeds.submit_seconds
    }

    /// Two passes of LRU: the second is the steady state of a scan.
    fn lru(&mut self, items: &[Item], shares: &[Share]) {
        let mut free: Vec<u64> = shares.iter().map(|s| s.resident + s.slots).collect();
        let mut lru = Lru::new();
        lru.grow(items.len());
        let mut at: Vec<Option<usize>> = vec![None; items.len()];
        let mut cursor = 0;
        let mut last = None;
        for pass in 0..2 {
            for (i, item) in items.iter().enumerate() {
                let (weight, bytes) = (WeightId(i as u32), item.bytes());
                if at[i].is_none() {
                    if pass == 1 {
                        self.lru_weights_per_pass += 1;
                        self.lru_bytes_per_pass += bytes;
                    }
                    if free.iter().all(|&f| f < bytes) && free.len() > 1 {
                        // Room is made where the oldest lies.
                        let oldest = lru.victim(weight, Purpose::Demand, &mut |_| true);
                        cursor = oldest.and_then(|w| at[w.index()]).unwrap_or(cursor);
                    } else if free[cursor] < bytes {
                        cursor = free.iter().position(|&f| f >= bytes).unwrap_or(cursor);
                    }
                    while free[cursor] < bytes {
                        let here = &mut |w: WeightId| at[w.index()] == Some(cursor);
                        let Some(victim) = lru.victim(weight, Purpose::Demand, here) else { break };
                        lru.remove(victim);
                        at[victim.index()] = None;
                        free[cursor] += items[victim.index()].bytes();
                    }
                    if free[cursor] >= bytes {
                        free[cursor] -= bytes;
                        at[i] = Some(cursor);
                        lru.insert(weight);
                    }
                } else {
                    lru.touch(weight);
                }
                let domain = DomainId(at[i].unwrap_or(cursor) as u8);
                let switched = last.replace(domain).is_some_and(|d| d != domain);
                self.lru_switches_per_pass += u64::from(switched && pass == 1);
            }
        }
    }
}
