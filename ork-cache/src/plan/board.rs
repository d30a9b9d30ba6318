//! The machine a plan is for.

use rknpu::{Layout, MatmulLimits, Precision};
use serde::{Deserialize, Serialize};

use super::item::Item;

/// A board, as far as placing weights is concerned. All sizes in bytes.
///
/// ```
/// use ork_cache::plan::Board;
///
/// // A board of yours: 8 GiB, 2 GiB of them for the system, one domain.
/// let board = Board { reserve: 2 << 30, domains: 1, ..Board::rk3588("mine", 8 << 30) };
/// assert_eq!(board.left(), 6 << 30);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// Name for reports.
    pub name: String,
    /// Memory of the machine.
    pub ram: u64,
    /// What the system, the program and the key-value cache keep of it.
    pub reserve: u64,
    /// What one domain can map.
    pub domain_bytes: u64,
    /// What stays unmapped in every domain: holes of the address allocator, and what the caller
    /// maps beside weights and scratch.
    pub headroom: u64,
    /// Domains that may be used.
    pub domains: u8,
    /// Domains that work side by side on one product: each weight is split by columns over so many, where one
    /// core works in a domain at a time ([`Spaces::lanes`](rknpu::driver::Spaces::lanes)).
    #[serde(default = "one")]
    pub lanes: u8,
    /// NPU cores.
    pub cores: u8,
    /// Rows of the largest batch, which is multiplied in blocks of fewer rows where memory is short.
    pub rows: u32,
    /// Upper bound for all device memory of the plan, scratch included; `None`: what RAM and
    /// domains allow.
    pub budget: Option<u64>,
}

impl Board {
    /// Names that [`Board::known`] takes.
    ///
    /// ```
    /// use ork_cache::plan::Board;
    ///
    /// assert!(Board::KNOWN.iter().all(|name| Board::known(name).is_some()));
    /// ```
    pub const KNOWN: [&'static str; 4] = ["rk3588-4g", "rk3588-8g", "rk3588-16g", "rk3588-32g"];

    /// An RK3588 with `ram` bytes: 16 domains of 3900 MiB (beyond that allocations were seen to
    /// fail on boards, though a domain has 4 GiB), three cores, batches of 256 rows, 1.5 GiB for
    /// system and key-value cache.
    ///
    /// ```
    /// use ork_cache::plan::Board;
    ///
    /// let board = Board::rk3588("rk3588-24g", 24 << 30);
    /// assert_eq!((board.domains, board.cores, board.rows), (16, 3, 256));
    /// ```
    pub fn rk3588(name: impl Into<String>, ram: u64) -> Board {
        Board {
            name: name.into(),
            ram,
            reserve: 3 << 29,
            domain_bytes: 3900 << 20,
            headroom: 64 << 20,
            domains: 16,
            lanes: 1,
            cores: 3,
            rows: 256,
            budget: None,
        }
    }

    /// A board by name, see [`Board::KNOWN`].
    ///
    /// ```
    /// # use ork_cache::plan::Board;
    /// assert_eq!(Board::known("rk3588-16g").map(|board| board.ram), Some(16 << 30));
    /// assert_eq!(Board::known("toaster"), None);
    /// ```
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

    /// An RK3588's cores with one domain and `budget` bytes for weights alone: how a cache with a plain
    /// budget is planned, on a machine whose memory is no limit.
    ///
    /// ```
    /// use ork_cache::plan::{Board, Item, Plan};
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// let layout = Layout::new(1024, 1024, Precision::Int8)?;
    /// let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
    /// let plan = Plan::new("16 MiB", &items, &Board::single_domain(8 << 20))?;
    /// // Room for 8 of 16 weights, 4 of them slots: 4 stay, 12 are loaded in every pass.
    /// assert_eq!(plan.cost.loads_per_pass, 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn single_domain(budget: u64) -> Board {
        Board {
            name: "one domain".into(),
            reserve: 0,
            ram: u64::MAX,
            budget: Some(budget),
            domain_bytes: u64::MAX,
            headroom: 0,
            domains: 1,
            rows: 0,
            ..Board::rk3588("", 0)
        }
    }

    /// Bytes of RAM that the system leaves.
    ///
    /// ```
    /// # use ork_cache::plan::Board;
    /// assert_eq!(Board::rk3588("mine", 8 << 30).left(), 13 << 29);
    /// ```
    pub fn left(&self) -> u64 {
        self.ram.saturating_sub(self.reserve)
    }

    /// Slots of a ring: while every core reads one, the next is filled.
    ///
    /// ```
    /// # use ork_cache::plan::Board;
    /// assert_eq!(Board::rk3588("mine", 8 << 30).ring_slots(), 4); // three cores
    /// ```
    pub fn ring_slots(&self) -> u32 {
        u32::from(self.cores) + 1
    }

    /// Bytes of all device memory at most.
    pub(crate) fn total(&self) -> u64 {
        self.left().min(self.budget.unwrap_or(u64::MAX))
    }

    /// The same board under the mainline driver: address spaces that do not exclude each other, and in which
    /// one core works at a time.
    ///
    /// ```
    /// # use ork_cache::plan::Board;
    /// let board = Board::rk3588("mine", 8 << 30).mainline();
    /// assert_eq!((board.domains, board.lanes), (15, 3)); // each weight is in three
    /// ```
    #[must_use]
    pub fn mainline(self) -> Board {
        let lanes = self.cores.max(1);
        Board { lanes, domains: self.domains / lanes * lanes, ..self }
    }

    /// Bytes of scratch in each domain for blocks of `rows` rows: what an [`rknpu::Matmul`] keeps for each
    /// precision that occurs, for the largest K and N of it.
    pub(crate) fn scratch(&self, items: &[Item], rows: u32) -> u64 {
        if rows == 0 {
            return 0;
        }
        let cores = u32::from((self.cores / self.lanes.max(1)).max(1));
        let of = |precision| {
            let these = || items.iter().map(|i| &i.layout).filter(|l| l.precision() == precision);
            let k = these().map(Layout::k).max()?.min(rknpu::limits::K);
            let limits = MatmulLimits { rows, k, n: these().map(Layout::n).max()? };
            limits.scratch_bytes(precision, cores).ok()
        };
        [Precision::Int8, Precision::Int4, Precision::Fp16].into_iter().filter_map(of).sum()
    }
}

/// What plans have that were written without lanes.
fn one() -> u8 {
    1
}
