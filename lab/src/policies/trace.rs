//! Policies on recorded or made-up uses, without a device: how many loads each would need.

use std::fmt;

use ork_cache::WeightId;
use ork_cache::internals::{Policy, Purpose};
use serde::Serialize;

use super::NextUse;

/// Uses in order, and the bytes of each weight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    /// Bytes by weight id; weights beyond it have none.
    pub(crate) bytes: Vec<u64>,
    /// What was used, in order.
    pub(crate) uses: Vec<WeightId>,
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "line {line} of the trace: {what}; expected NAME BYTES at the first use of a weight, NAME after"
)]
pub(crate) struct TraceError {
    /// From 1.
    pub(crate) line: usize,
    /// What is wrong.
    pub(crate) what: &'static str,
}

/// What one policy did with a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Outcome {
    /// Uses.
    pub(crate) uses: u64,
    /// Uses that found the weight resident.
    pub(crate) hits: u64,
    /// Bytes loaded, 2^64 − 1 at most.
    pub(crate) bytes_loaded: u64,
}

/// One line of a [comparison](Trace::compare): a policy beside the optimum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Compared {
    /// Name of the policy.
    pub(crate) policy: &'static str,
    /// What it did.
    pub(crate) outcome: Outcome,
    /// What Belady's rule did on the same trace and bytes.
    pub(crate) belady: Outcome,
}

impl Trace {
    /// Reads one use per line: `NAME BYTES` where a weight is used first, `NAME` after that.
    /// Empty lines and lines that begin with `#` are passed over.
    ///
    /// # Errors
    /// The first line that says something else.
    pub(crate) fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut trace = Trace::default();
        let mut known = std::collections::BTreeMap::new();
        for (i, line) in text.lines().enumerate() {
            let wrong = |what| TraceError { line: i + 1, what };
            let mut words = line.split_whitespace();
            let Some(name) = words.next().filter(|w| !w.starts_with('#')) else { continue };
            let bytes = words.next().map(str::parse::<u64>);
            if words.next().is_some() {
                return Err(wrong("more than two words"));
            }
            let next = WeightId(trace.bytes.len() as u32);
            let &mut weight = known.entry(name).or_insert(next);
            match bytes {
                Some(Err(_)) => return Err(wrong("BYTES is not a number")),
                None if weight == next => return Err(wrong("a first use without BYTES")),
                Some(Ok(bytes)) if weight == next => trace.bytes.push(bytes),
                Some(Ok(bytes)) if bytes != trace.bytes[weight.index()] => {
                    return Err(wrong("other BYTES than at the first use"));
                }
                Some(Ok(_)) | None => {}
            }
            trace.uses.push(weight);
        }
        Ok(trace)
    }

    /// `passes` passes over weights of the given sizes, in order.
    pub(crate) fn scan(bytes: Vec<u64>, passes: usize) -> Trace {
        let pass = 0..bytes.len() as u32;
        let uses = (0..passes).flat_map(|_| pass.clone().map(WeightId)).collect();
        Trace { bytes, uses }
    }

    /// Runs the trace through `policy` with room for `capacity` bytes, loading on demand. A weight
    /// that the policy refuses, or that is larger than the room, passes through.
    #[cfg(test)]
    pub(crate) fn run(&self, policy: &mut dyn Policy, capacity: u64) -> Outcome {
        self.run_from(policy, capacity, 0)
    }

    /// As [`Trace::run`], counting from use number `from` on.
    pub(crate) fn run_from(&self, policy: &mut dyn Policy, capacity: u64, from: usize) -> Outcome {
        // A trace made by hand may use weights that it gives no bytes.
        let ids = self.uses.iter().map(|w| w.index() + 1).max().unwrap_or(0);
        let size = |w: WeightId| self.bytes.get(w.index()).copied().unwrap_or(0);
        let mut resident = vec![false; ids];
        let mut used = 0u64;
        let mut outcome = Outcome { uses: 0, hits: 0, bytes_loaded: 0 };
        policy.grow(ids);
        for (i, &weight) in self.uses.iter().enumerate() {
            let counts = u64::from(i >= from);
            let bytes = size(weight);
            outcome.uses += counts;
            if resident[weight.index()] {
                outcome.hits += counts;
                policy.touch(weight);
                continue;
            }
            outcome.bytes_loaded = outcome.bytes_loaded.saturating_add(counts * bytes);
            while bytes <= capacity && used > capacity - bytes {
                let all = &mut |w: WeightId| resident[w.index()];
                let Some(victim) = policy.victim(weight, Purpose::Demand, all) else { break };
                policy.remove(victim);
                resident[victim.index()] = false;
                used -= size(victim);
            }
            if bytes <= capacity && used <= capacity - bytes {
                used += bytes;
                resident[weight.index()] = true;
                policy.insert(weight);
            }
            policy.touch(weight);
        }
        outcome
    }

    /// What Belady's rule does: for equal sizes the fewest loads any policy can have on demand.
    pub(crate) fn belady(&self, capacity: u64, from: usize) -> Outcome {
        self.run_from(&mut NextUse::once(&self.uses), capacity, from)
    }

    /// Each policy beside Belady's rule, counting from use number `from` on.
    pub(crate) fn compare(
        &self,
        policies: &mut [Box<dyn Policy>],
        capacity: u64,
        from: usize,
    ) -> Vec<Compared> {
        let belady = self.belady(capacity, from);
        let row = |policy: &mut Box<dyn Policy>| Compared {
            policy: policy.name(),
            outcome: self.run_from(policy.as_mut(), capacity, from),
            belady,
        };
        policies.iter_mut().map(row).collect()
    }
}

impl Outcome {
    /// Loads.
    pub(crate) fn loads(&self) -> u64 {
        self.uses - self.hits
    }

    /// Share of uses that hit; 0 for an empty trace.
    pub(crate) fn hit_rate(&self) -> f64 {
        if self.uses == 0 { 0.0 } else { self.hits as f64 / self.uses as f64 }
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compared { policy, outcome, belady } = self;
        write!(
            f,
            "{policy:<12} {:>9} loads, {:5.1} % hits; Belady {:>9} loads, {:5.1} % hits",
            outcome.loads(),
            outcome.hit_rate() * 100.0,
            belady.loads(),
            belady.hit_rate() * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policies::S3Fifo;
    use ork_cache::internals::{Lfu, Lru, PinnedRing};

    #[test]
    fn a_scan_loads_what_theory_says() {
        for (n, c, s) in [(32u32, 16u32, 4u32), (32, 24, 4), (48, 16, 4), (100, 90, 4), (7, 5, 2)] {
            let trace = Trace::scan(vec![1; n as usize], 40);
            let from = (n * 20) as usize;
            let mut lru = Lru::new();
            assert_eq!(trace.run_from(&mut lru, c.into(), from).hits, 0);
            let pinned: Vec<WeightId> = (0..c - s).map(WeightId).collect();
            let ring = trace.run_from(&mut PinnedRing::new(&pinned), c.into(), from);
            assert_eq!(ring.loads(), u64::from(20 * (n - (c - s))));
            // On demand, (C − 1)/(N − 1) of the uses can hit, in the long run.
            let belady = trace.belady(c.into(), from).hit_rate();
            let bound = f64::from(c - 1) / f64::from(n - 1);
            assert!((belady - bound).abs() < 0.01, "{belady} {bound}");
        }
    }

    #[test]
    fn malformed_traces_name_the_line() {
        for (text, line, what) in [
            ("a 1\nb\n", 2, "a first use without BYTES"),
            ("a x\n", 1, "BYTES is not a number"),
            ("a 1 2\n", 1, "more than two words"),
            ("\na 1\na 2\n", 3, "other BYTES than at the first use"),
        ] {
            assert_eq!(Trace::parse(text), Err(TraceError { line, what }));
        }
    }

    /// Fewest loads over all choices of victims, and with `bypass` of letting a weight pass through:
    /// exponential, for tiny cases.
    fn fewest(uses: &[u32], resident: u32, room: u32, bypass: bool) -> u64 {
        let Some((&w, rest)) = uses.split_first() else { return 0 };
        if resident >> w & 1 == 1 {
            return fewest(rest, resident, room, bypass);
        }
        let with = resident | 1 << w;
        let passing = bypass.then(|| fewest(rest, resident, room, true));
        if resident.count_ones() < room {
            let admitted = fewest(rest, with, room, bypass);
            return 1 + passing.map_or(admitted, |passing| passing.min(admitted));
        }
        let victims = (0..8).filter(|v| resident >> v & 1 == 1);
        let replacing = victims.map(|v| fewest(rest, with & !(1 << v), room, bypass));
        1 + replacing.chain(passing).min().unwrap_or(0)
    }

    /// S3-FIFO as published, on plain lists.
    fn s3fifo_twin(uses: &[u32], room: usize) -> u64 {
        let (mut small, mut main, mut ghost) = (Vec::new(), Vec::new(), Vec::<u32>::new());
        let (mut again, mut hits) = ([0u8; 8], 0);
        for &w in uses {
            if small.contains(&w) || main.contains(&w) {
                hits += 1;
                again[w as usize] = 3.min(again[w as usize] + 1);
                continue;
            }
            let full = small.len() + main.len() == room;
            let mut from_small = full && small.len() * 10 > room;
            let mut left = !full;
            while !left {
                if from_small && small.is_empty() || !from_small && main.is_empty() {
                    from_small = !from_small;
                }
                let oldest: u32 = if from_small { small.remove(0) } else { main.remove(0) };
                let uses = &mut again[oldest as usize];
                match (from_small, *uses) {
                    (true, 0) => {
                        ghost.push(oldest);
                        if ghost.len() > main.len().max(1) {
                            ghost.remove(0);
                        }
                        left = true;
                    }
                    (true, _) => {
                        *uses = 0;
                        main.push(oldest);
                    }
                    (false, 0) => left = true,
                    (false, _) => {
                        *uses -= 1;
                        main.push(oldest);
                    }
                }
            }
            again[w as usize] = 0;
            match ghost.iter().position(|&g| g == w) {
                Some(at) => {
                    ghost.remove(at);
                    main.push(w);
                }
                None => small.push(w),
            }
        }
        hits
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn belady_is_the_fewest_and_no_policy_beats_it(
            uses in proptest::collection::vec(0u32..6, 1..14),
            room in 1u32..4,
        ) {
            let trace =
                Trace { bytes: vec![1; 6], uses: uses.iter().copied().map(WeightId).collect() };
            let best = trace.belady(room.into(), 0).loads();
            prop_assert_eq!(best, fewest(&uses, 0, room, false));
            let mut policies: [Box<dyn Policy>; 3] =
                [Box::new(Lru::new()), Box::new(Lfu::new(8)), Box::new(S3Fifo::new())];
            for row in trace.compare(&mut policies, room.into(), 0) {
                prop_assert!(row.outcome.loads() >= best, "{row}");
            }
            let bypass = trace.run(&mut NextUse::once_with_bypass(&trace.uses), room.into());
            prop_assert_eq!(bypass.loads(), fewest(&uses, 0, room, true));
        }

        #[test]
        fn s3_fifo_does_what_its_definition_says(
            uses in proptest::collection::vec(0u32..8, 1..120),
            room in 1usize..7,
        ) {
            let trace =
                Trace { bytes: vec![1; 8], uses: uses.iter().copied().map(WeightId).collect() };
            let hits = trace.run(&mut S3Fifo::new(), room as u64).hits;
            prop_assert_eq!(hits, s3fifo_twin(&uses, room));
        }
    }
}
