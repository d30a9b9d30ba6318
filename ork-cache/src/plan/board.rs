//! The machine a plan is for.

use rknpu::{Layout, MatmulLimits, Precision};
use serde::{Deserialize, Serialize};

use super::item::Item;

/// A board, as far as placing weights is concerned. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// Name for reports.
    pub name: String,
    /// Memory of the machine.
    pub ram: u64,
    /// What the system, the program and the key-value cache keep of it.
    pub reserve: u64,
    /// What one domain can map.
    pub window: u64,
    /// What stays unmapped in every domain: holes of the address allocator, and what the caller
    /// maps beside weights and scratch.
    pub headroom: u64,
    /// Domains that may be used.
    pub domains: u8,
    /// NPU cores.
    pub cores: u8,
    /// Rows of the largest batch: scratch buffers are made for it.
    pub rows: u32,
    /// Upper bound for all device memory of the plan, scratch included; `None`: what RAM and
    /// windows allow.
    pub budget: Option<u64>,
}

impl Board {
    /// Names that [`Board::known`] takes.
    pub const KNOWN: [&'static str; 4] = ["rk3588-4g", "rk3588-8g", "rk3588-16g", "rk3588-32g"];

    /// An RK3588 with `ram` bytes: 16 domains of 3900 MiB (beyond that allocations were seen to
    /// fail on boards, though the window is 4 GiB), three cores, batches of 256 rows, 1.5 GiB for
    /// system and key-value cache.
    pub fn rk3588(name: impl Into<String>, ram: u64) -> Board {
        Board {
            name: name.into(),
            ram,
            reserve: 3 << 29,
            window: 3900 << 20,
            headroom: 64 << 20,
            domains: 16,
            cores: 3,
            rows: 256,
            budget: None,
        }
    }

    /// A board by name, see [`Board::KNOWN`].
    pub fn known(name: &str) -> Option<Board> {
        let gib = match name {
            "rk3588-4g" => 4,
            "rk3588-8g" => 8,
            "rk3588-16g" => 16,
            "rk3588-32g" => 32,
            _ => return None,
        };
        Some(Board::rk3588(name, gib << 30))
    }

    /// The same board with one domain and `budget` bytes for weights alone: how a cache with a
    /// plain budget is planned.
    pub fn single_window(budget: u64) -> Board {
        Board {
            name: "one window".into(),
            reserve: 0,
            ram: budget,
            window: budget,
            headroom: 0,
            domains: 1,
            rows: 0,
            ..Board::rk3588("", 0)
        }
    }

    /// Slots of a ring: while every core reads one, the next is filled.
    pub fn ring_slots(&self) -> u32 {
        u32::from(self.cores) + 1
    }

    /// Bytes of scratch in each domain for the given weights: what an [`rknpu::Matmul`] keeps for
    /// each precision that occurs, for the largest K and N of it.
    pub(crate) fn scratch(&self, items: &[Item]) -> u64 {
        if self.rows == 0 {
            return 0;
        }
        let of = |precision| {
            let these = || items.iter().map(|i| &i.layout).filter(|l| l.precision() == precision);
            let k = these().map(Layout::k).max()?.min(rknpu::limits::K);
            let limits = MatmulLimits { rows: self.rows, k, n: these().map(Layout::n).max()? };
            limits.scratch_bytes(precision).ok()
        };
        [Precision::Int8, Precision::Int4, Precision::Fp16].into_iter().filter_map(of).sum()
    }
}
