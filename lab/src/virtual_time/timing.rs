//! How long things take on a board.

use rknpu_sys::layout::Layout;
use serde::{Deserialize, Serialize};

/// Speeds of a board. The defaults were measured on RK3588 boards by the C project, except where
/// noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Timing {
    /// Nanoseconds of a submit that computes nothing.
    pub(crate) submit_ns: u64,
    /// int8 operations a second of one core, a multiply-add counted as two (data sheet: 6 TOPS on
    /// three cores).
    pub(crate) ops_per_second: u64,
    /// Bytes of weights a second that all cores together read.
    pub(crate) weight_bytes_per_second: u64,
    /// Bytes a second of a load into a slot: an NVMe disk behind a large read-ahead.
    pub(crate) load_bytes_per_second: u64,
    /// Nanoseconds of a load beyond its bytes: one sync.
    pub(crate) load_ns: u64,
    /// Nanoseconds of freeing a buffer (0.5–2 ms were seen).
    pub(crate) free_ns: u64,
    /// Cores.
    pub(crate) cores: u32,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            submit_ns: 167_000,
            ops_per_second: 2_000_000_000_000,
            weight_bytes_per_second: 28_500_000_000,
            load_bytes_per_second: 3_200_000_000,
            load_ns: 50_000,
            free_ns: 1_000_000,
            cores: 3,
        }
    }
}

impl Timing {
    /// Nanoseconds of a matmul of `rows` rows with a weight, its columns split over the cores: the
    /// longer of computing and reading the weight, and a submit for each run of 8192 columns.
    pub(crate) fn compute_ns(&self, layout: &Layout, rows: u32) -> u64 {
        let ops = 2 * u128::from(rows) * u128::from(layout.k()) * u128::from(layout.n());
        let cores = u128::from(self.cores.max(1));
        let busy = ns(ops, u128::from(self.ops_per_second) * cores);
        let read = ns(layout.bytes().into(), self.weight_bytes_per_second.into());
        u64::from(layout.n_slices()).saturating_mul(self.submit_ns).saturating_add(busy.max(read))
    }

    /// Nanoseconds of a load.
    pub(crate) fn load_ns(&self, bytes: u64) -> u64 {
        self.load_ns.saturating_add(ns(bytes.into(), self.load_bytes_per_second.into()))
    }
}

/// A speed of 0 counts as unlimited.
fn ns(amount: u128, per_second: u128) -> u64 {
    if per_second == 0 {
        return 0;
    }
    amount.saturating_mul(1_000_000_000).div_ceil(per_second).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rknpu_sys::layout::Precision;

    use super::*;

    #[test]
    fn the_longer_of_computing_and_reading_counts() {
        let layout = Layout::new(4096, 4096, Precision::Int8).unwrap();
        let timing = Timing::default();
        let read = (4096.0 * 4096.0 / 28.5f64).round() as u64;
        assert_eq!(timing.compute_ns(&layout, 1), 167_000 + read + 1);
        assert_eq!(timing.compute_ns(&layout, 3000), 167_000 + 16_777_216);
        let free = Timing { load_bytes_per_second: 0, load_ns: 3, ..timing };
        assert_eq!(free.load_ns(1 << 40), 3);
    }
}
