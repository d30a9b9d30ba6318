//! How many products went where, and why not here.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

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
    left: [AtomicU64; REASONS.len()],
}

impl Tally {
    pub(crate) fn taken(&self, products: usize, rows: usize) {
        self.products.fetch_add(products as u64, Ordering::Relaxed);
        self.rows.fetch_add((products * rows) as u64, Ordering::Relaxed);
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
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (products, rows) = (self.products(), self.rows.load(Ordering::Relaxed));
        write!(f, "{products} products of {rows} rows in all")?;
        let mut first = true;
        for ((_, why), count) in REASONS.iter().zip(&self.left) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let before = if first { "; left to the CPU when asked, by reason: " } else { ", " };
                write!(f, "{before}{why}: {count} times")?;
                first = false;
            }
        }
        Ok(())
    }
}
