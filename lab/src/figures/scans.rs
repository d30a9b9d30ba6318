//! Loads of a pass over layers of equal size, by policy.

use ork_cache::WeightId;
use ork_cache::internals::{Lfu, Lru, PinnedRing, Policy};

use super::figure;
use crate::policies::{NextUse, S3Fifo, Trace};

/// Loads of a pass: N equal layers, room for C, a ring of 4.
pub(super) fn loads() {
    for (n, c) in [(32u64, 16u64), (32, 24), (48, 16), (100, 90)] {
        let trace = Trace::scan(vec![1; n as usize], 40);
        let from = (n * 20) as usize;
        let pinned: Vec<WeightId> = (0..c as u32 - 4).map(WeightId).collect();
        let mut policies: Vec<Box<dyn Policy>> = vec![
            Box::new(PinnedRing::new(&pinned)),
            Box::new(NextUse::cyclic(&trace.uses[..n as usize])),
            Box::new(Lru::new()),
            Box::new(Lfu::new(64)),
            Box::new(S3Fifo::new()),
        ];
        for row in trace.compare(&mut policies, c, from) {
            let loads = row.outcome.loads() as f64 / 20.0;
            let target =
                if row.policy == "pinned_ring" { format!("= {}", n - (c - 4)) } else { "-".into() };
            let belady = row.belady.loads() as f64 / 20.0;
            figure(
                &format!("loads per pass, N={n} C={c} S=4, {}", row.policy),
                &target,
                format!("{loads:.1} (Belady on demand {belady:.1})"),
            );
        }
    }
}
