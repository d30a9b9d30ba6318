//! Where each weight of a model will be, and what a pass will cost, before anything runs.
//!
//! From the weights in order of use and a [`Board`], [`Plan::new`] decides between three modes:
//! everything resident, in as many domains as it takes; a part pinned and the rest streamed
//! through a ring; or everything streamed. Layers are kept whole within a domain and the domains
//! are filled evenly, so that a pass goes through them in order and enters each once. Scratch and
//! headroom are counted in every domain. The experts of a mixture get slots of their size.
//!
//! A plan is a pure function of its input: the same model on the same board gives the same plan.
//!
//! ```
//! use ork_cache::plan::{Board, Mode, Plan, Shape};
//!
//! let shape = Shape::known("gemma-2-9b").expect("comes with the crate");
//! let board = Board::known("rk3588-16g").expect("comes with the crate");
//! let plan = Plan::new(&shape.name, &shape.items()?, &board)?;
//! assert_eq!(plan.mode, Mode::Resident);
//! assert_eq!(plan.cost.loads_per_pass, 0);
//! println!("{plan}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod apply;
mod board;
mod cost;
mod dense;
mod experts;
mod fill;
mod item;
mod show;

pub use apply::{Part, Placed};
pub use board::Board;
pub use cost::Cost;
pub use item::{Experts, Item, Parts, Shape, ShapeError};

use serde::{Deserialize, Serialize};

use crate::ids::{ClassId, DomainId};

/// How a model runs.
///
/// ```
/// # use ork_cache::plan::{Board, Item, Place, Plan};
/// # use rknpu_sys::layout::{Layout, Precision};
/// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
/// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
/// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
/// use ork_cache::plan::Mode;
///
/// assert_eq!(plan.mode, Mode::Mixed);
/// assert_eq!(Plan::new("16 MiB", &items, &Board::single_window(16 << 20))?.mode, Mode::Resident);
/// assert_eq!(Plan::new("16 MiB", &items, &Board::single_window(4 << 20))?.mode, Mode::Stream);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Everything stays; nothing is loaded after the first pass.
    Resident,
    /// A part stays, the rest is loaded every pass.
    Mixed,
    /// Everything is loaded every pass.
    Stream,
}

/// Where one weight is.
///
/// ```
/// # use ork_cache::plan::{Board, Item, Place, Plan};
/// # use rknpu_sys::layout::{Layout, Precision};
/// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
/// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
/// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
/// let pinned = plan.places.iter().filter(|place| matches!(place, Place::Pinned(_)));
/// assert_eq!(pinned.count(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In a buffer of its own, for good.
    Pinned(DomainId),
    /// In the slots of a class, when it is needed; in this many parts.
    Slot(ClassId, u32),
}

/// Slots of one size in one domain: the ring, or the slots of experts.
///
/// ```
/// # use ork_cache::plan::{Board, Item, Place, Plan};
/// # use rknpu_sys::layout::{Layout, Precision};
/// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
/// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
/// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
/// let ring = plan.classes[0];
/// assert_eq!((ring.slots, ring.slot), (4, 1 << 20)); // three cores and one to fill
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Domain.
    pub domain: DomainId,
    /// Bytes of a slot.
    pub slot: u64,
    /// Slots.
    pub slots: u32,
}

/// What one domain holds. All sizes in bytes.
///
/// ```
/// # use ork_cache::plan::{Board, Item, Place, Plan};
/// # use rknpu_sys::layout::{Layout, Precision};
/// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
/// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
/// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
/// let share = plan.domains[0];
/// assert_eq!((share.pinned, share.slots), (4 << 20, 4 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Weights that stay.
    pub pinned: u64,
    /// Slots.
    pub slots: u64,
    /// Register commands, activations and results.
    pub scratch: u64,
    /// Left free.
    pub headroom: u64,
}

/// The placement of one model on one board.
///
/// ```
/// # use ork_cache::plan::{Board, Item, Place, Plan};
/// # use rknpu_sys::layout::{Layout, Precision};
/// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
/// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
/// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
/// let text = serde_json::to_string(&plan)?;
/// assert_eq!(serde_json::from_str::<Plan>(&text)?, plan);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the model.
    pub model: String,
    /// Bytes of all weights.
    pub bytes: u64,
    /// The board.
    pub board: Board,
    /// How the model runs.
    pub mode: Mode,
    /// What each used domain holds, in the order of a pass.
    pub domains: Vec<Share>,
    /// Slots, numbered as in [`Place::Slot`].
    pub classes: Vec<Class>,
    /// Place of each weight, in order of use.
    pub places: Vec<Place>,
    /// What a pass costs.
    pub cost: Cost,
}

/// Why there is no plan.
///
/// ```
/// # use ork_cache::plan::{Board, Item, Place, Plan};
/// # use rknpu_sys::layout::{Layout, Precision};
/// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
/// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
/// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
/// use ork_cache::plan::PlanError;
///
/// let error = Plan::new("16 MiB", &items, &Board::single_window(1 << 16)).unwrap_err();
/// let PlanError::TooSmall { budget, .. } = error else { panic!("{error}") };
/// assert!(Plan::new("16 MiB", &items, &Board::single_window(budget)).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No weights.
    #[error("there is no weight to plan")]
    Empty,
    /// More bytes than any machine has.
    #[error("the weights take more than {} bytes", Plan::MOST_BYTES)]
    TooLarge,
    /// The room does not even hold the slots through which everything would have to go.
    #[error(
        "{have} bytes for weights are not enough: {slots} slots need {need} bytes; raise the budget to at least {budget} bytes"
    )]
    TooSmall {
        /// Room for weights, after scratch and headroom.
        have: u64,
        /// Slots that are needed.
        slots: u32,
        /// Bytes they need at the smallest.
        need: u64,
        /// Smallest total that works on this board, scratch included.
        budget: u64,
    },
    /// As `TooSmall`, and no budget helps: it is the board's memory that is short.
    #[error(
        "a board with {ram} bytes of memory, {reserve} of them for the system, is too small: weights and scratch need {need} bytes at the least"
    )]
    Memory {
        /// Memory of the board.
        ram: u64,
        /// What the system keeps.
        reserve: u64,
        /// Bytes that the smallest plan takes.
        need: u64,
    },
}

impl Plan {
    /// Bytes of weights that are planned at most; sums and products of plans stay far from 2^64.
    pub const MOST_BYTES: u64 = 1 << 52;

    /// Plans the weights `items`, given in order of use, on `board`.
    ///
    /// ```
    /// # use ork_cache::plan::{Board, Item, Place, Plan};
    /// # use rknpu_sys::layout::{Layout, Precision};
    /// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
    /// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
    /// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
    /// // One weight in four stays: what is streamed is spread evenly between.
    /// let stay: Vec<usize> = (0..16).filter(|&i| matches!(plan.places[i], Place::Pinned(_))).collect();
    /// assert_eq!(stay.len(), 4);
    /// assert!(stay.windows(2).all(|pair| pair[1] - pair[0] == 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// No weights, or a budget or a board whose memory does not hold the smallest set of slots.
    pub fn new(model: &str, items: &[Item], board: &Board) -> Result<Plan, PlanError> {
        let plan = Plan::with_scratch(model, items, board, board.scratch(items));
        plan.map_err(|error| match error {
            PlanError::TooSmall { budget: need, .. } if need > board.left() => {
                PlanError::Memory { ram: board.ram, reserve: board.reserve, need }
            }
            error => error,
        })
    }

    /// The same with `scratch` bytes in each domain, whatever the board's rows: models that share
    /// domains share the scratch.
    pub(crate) fn with_scratch(
        model: &str,
        items: &[Item],
        board: &Board,
        scratch: u64,
    ) -> Result<Plan, PlanError> {
        if items.is_empty() {
            return Err(PlanError::Empty);
        }
        let sum = items.iter().try_fold(0u64, |sum, item| sum.checked_add(item.bytes()));
        let bytes = sum.filter(|&sum| sum <= Plan::MOST_BYTES).ok_or(PlanError::TooLarge)?;
        let room = Room::of(board, scratch);
        let layout = if let Some(layout) = dense::resident(items, &room) {
            layout
        } else if items.iter().any(|i| i.expert.is_some()) {
            experts::place(items, &room)?
        } else {
            dense::mixed(items, &room)?
        };
        let Layout { domains, classes, places } = layout;
        let any = |pinned| places.iter().any(|p| matches!(p, Place::Pinned(_)) == pinned);
        let mode = match (any(true), any(false)) {
            (_, false) => Mode::Resident,
            (true, true) => Mode::Mixed,
            (false, true) => Mode::Stream,
        };
        let cost = Cost::of(items, &domains, &classes, &places, room.ring);
        let (model, board) = (model.to_owned(), board.clone());
        Ok(Plan { model, bytes, board, mode, domains, classes, places, cost })
    }

    /// Bytes of device memory: weights, slots and scratch.
    ///
    /// ```
    /// # use ork_cache::plan::{Board, Plan, Shape};
    /// # let items = Shape::known("gemma-2-27b").expect("comes with the crate").items()?;
    /// # let board = Board::known("rk3588-16g").expect("comes with the crate");
    /// let plan = Plan::new("27b", &items, &board)?;
    /// assert!(plan.device_bytes() <= board.left());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn device_bytes(&self) -> u64 {
        self.domains.iter().map(|d| d.pinned + d.slots + d.scratch).sum()
    }

    /// Domain in which a weight is used.
    ///
    /// ```
    /// # use ork_cache::DomainId;
    /// # use ork_cache::plan::{Board, Place, Plan, Shape};
    /// # let items = Shape::known("gemma-2-9b").expect("comes with the crate").items()?;
    /// # let board = Board::known("rk3588-16g").expect("comes with the crate");
    /// let plan = Plan::new("9b", &items, &board)?;
    /// assert_eq!(plan.domain_of(plan.places[0]), DomainId(0));
    /// // A pass goes through the domains in order.
    /// assert!(plan.places.iter().map(|&place| plan.domain_of(place)).is_sorted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn domain_of(&self, place: Place) -> DomainId {
        match place {
            Place::Pinned(domain) => domain,
            Place::Slot(class, _) => self.classes[class.index()].domain,
        }
    }
}

/// What the three placing functions return.
struct Layout {
    domains: Vec<Share>,
    classes: Vec<Class>,
    places: Vec<Place>,
}

/// The board's memory, after everything that is not weights.
struct Room {
    /// Weights and slots of one domain.
    per_domain: u64,
    /// Device memory over all domains, scratch included.
    total: u64,
    scratch: u64,
    headroom: u64,
    domains: u8,
    ring: u32,
}

impl Room {
    fn of(board: &Board, scratch: u64) -> Room {
        let total = board.left().min(board.budget.unwrap_or(u64::MAX));
        Room {
            per_domain: board.window.saturating_sub(board.headroom.saturating_add(scratch)),
            total,
            scratch,
            headroom: board.headroom,
            domains: board.domains.max(1),
            ring: board.ring_slots(),
        }
    }

    /// Bytes for weights and slots in `domains` domains.
    fn in_domains(&self, domains: u64) -> u64 {
        let by_ram = self.total.saturating_sub(domains.saturating_mul(self.scratch));
        by_ram.min(domains.saturating_mul(self.per_domain))
    }

    fn share(&self) -> Share {
        Share { pinned: 0, slots: 0, scratch: self.scratch, headroom: self.headroom }
    }

    fn too_small(&self, have: u64, slots: u32, slot: u64) -> PlanError {
        let need = slot.saturating_mul(slots.into());
        PlanError::TooSmall { have, slots, need, budget: need.saturating_add(self.scratch) }
    }
}

/// Runs of weights that belong together: the weights of a layer, or one without a layer.
fn groups(items: &[Item]) -> Vec<std::ops::Range<usize>> {
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        match groups.last_mut() {
            Some(last) if item.layer.is_some() && items[last.start].layer == item.layer => {
                last.end = i + 1;
            }
            _ => groups.push(i..i + 1),
        }
    }
    groups
}
