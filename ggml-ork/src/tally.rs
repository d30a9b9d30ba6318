//! How many products went where, and why not here.

use std::sync::atomic::{AtomicU64, Ordering};

use ork_cache::Stats;

/// Why a product is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Fewer rows than pay.
    Rows,
    /// What it multiplies with is no weight of a model.
    NoWeight,
    /// Types or shapes that are not multiplied here.
    Shape,
    /// A product that is told to be something else.
    Hint,
    /// Another operation.
    Other,
}

const REASONS: [(Left, &str); 4] = [
    (Left::Rows, "too few rows (ORK_MIN_ROWS)"),
    (Left::NoWeight, "no weight of a model on the device"),
    (Left::Shape, "a type or shape that is not taken"),
    (Left::Hint, "a Hadamard transform"),
];

/// Counts of a process.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    products: AtomicU64,
    rows: AtomicU64,
    /// Experts that somebody chose, and all there were, over the products of mixtures.
    chosen: AtomicU64,
    experts: AtomicU64,
    left: [AtomicU64; REASONS.len()],
}

impl Tally {
    pub(crate) fn taken(&self, products: usize, rows: usize) {
        self.products.fetch_add(products as u64, Ordering::Relaxed);
        self.rows.fetch_add((products * rows) as u64, Ordering::Relaxed);
    }

    /// A product of a mixture: `chosen` of its experts were computed.
    pub(crate) fn experts(&self, chosen: usize, of: usize) {
        self.chosen.fetch_add(chosen as u64, Ordering::Relaxed);
        self.experts.fetch_add(of as u64, Ordering::Relaxed);
    }

    /// A question that was answered with no.
    pub(crate) fn left(&self, why: Left) {
        let counters = REASONS.iter().zip(&self.left).find(|((reason, _), _)| *reason == why);
        if let Some((_, count)) = counters {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn products(&self) -> u64 {
        self.products.load(Ordering::Relaxed)
    }

    /// What was done, with what the cache did for it.
    pub(crate) fn line(&self, stats: Option<Stats>) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (chosen, experts) = (count(&self.chosen), count(&self.experts));
        let mut line =
            format!("{} products of {} rows in all", count(&self.products), count(&self.rows));
        if experts > 0 {
            line += &format!(", {chosen} of {experts} experts chosen");
        }
        if let Some(stats) = stats {
            line +=
                &format!(", {} loads of weights, {} MiB", stats.loads(), stats.bytes_loaded >> 20);
        }
        let mut before = "; left to the CPU when asked, by reason: ";
        for ((_, why), left) in REASONS.iter().zip(&self.left) {
            if count(left) > 0 {
                line += &format!("{before}{why}: {} times", count(left));
                before = ", ";
            }
        }
        line
    }
}
