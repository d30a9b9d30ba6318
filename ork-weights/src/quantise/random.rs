//! Random numbers for stochastic rounding.

/// A xorshift stream of one row. Rows have streams of their own, so that it does not matter which
/// thread takes which.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    state: u64,
}

impl Stream {
    /// The stream of row `row` under `seed`.
    pub(super) fn new(seed: u64, row: usize) -> Stream {
        // SplitMix64's finaliser: neighbouring rows get unrelated states, none of them 0.
        let mut z = seed ^ (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Stream { state: (z ^ (z >> 31)) | 1 }
    }

    /// The next number of [0, 1).
    #[inline(always)]
    pub(super) fn unit(&mut self) -> f32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 40) as f32 * (1.0 / (1u64 << 24) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_differ_and_means_are_even() {
        let mean = |mut s: Stream| (0..10_000).map(|_| f64::from(s.unit())).sum::<f64>() / 1e4;
        for row in 0..20 {
            assert!((mean(Stream::new(0, row)) - 0.5).abs() < 0.02);
        }
        assert_ne!(Stream::new(1, 0).unit(), Stream::new(1, 1).unit());
        assert_ne!(Stream::new(1, 0).unit(), Stream::new(2, 0).unit());
        assert_eq!(Stream::new(1, 5).unit(), Stream::new(1, 5).unit());
    }
}
