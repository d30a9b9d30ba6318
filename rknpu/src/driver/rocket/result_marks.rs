//! Marks: words in the results that only the NPU replaces. The driver says nothing of jobs that it dropped
//! or that ran out of their time; a mark that is still there after the wait does.

use std::sync::atomic::{AtomicU32, Ordering};

/// Marks count up from here. As a sum of int8 products over any K that a program takes it is out of reach, as
/// an fp32 it is next to nothing and negative.
const FIRST: u32 = 0x8000_0001;
/// How many there are: the next submission's differs, so that a result that equals one is not taken for a
/// mark twice.
const COUNT: u32 = 0x7f;

/// Gives each submission its own.
#[derive(Debug, Default)]
pub(super) struct Marks(AtomicU32);

impl Marks {
    pub(super) fn next(&self) -> u32 {
        FIRST + self.0.fetch_add(1, Ordering::Relaxed) % COUNT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    #[test]
    fn no_int8_sum_equals_a_mark_and_neighbours_differ() {
        let marks = Marks::default();
        let all: Vec<u32> = (0..300).map(|_| marks.next()).collect();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
        let least = -128 * 127 * i64::from(limits::K);
        assert!(all.iter().all(|mark| i64::from(mark.cast_signed()) < least));
    }
}
