//! Where each weight of a model will be, and what a pass will cost, before anything runs.
//!
//! From the weights in order of use and a [`Board`], [`Plan::new`] decides between three modes:
//! everything resident, in as many domains as it takes; a part resident and the rest streamed
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
mod budget;
mod cost;
mod dense;
mod experts;
mod item;
mod keep;
pub(crate) mod lanes;
mod several_models;
mod show;

pub use apply::{Part, Placed};
pub use board::Board;
pub use budget::PlanError;
pub use cost::{Cost, Speeds};
pub use item::{Experts, Item, Shape, ShapeError};

use serde::{Deserialize, Serialize};

use crate::ids::{ClassId, DomainId};

/// How a model runs.
///
/// ```
/// use ork_cache::plan::{Board, Mode, Plan};
///
/// # let (items, plan) = (ork_cache::doc::items(), ork_cache::doc::plan()?);
/// assert_eq!(plan.mode, Mode::Mixed);
/// assert_eq!(Plan::new("16 MiB", &items, &Board::single_domain(16 << 20))?.mode, Mode::Resident);
/// assert_eq!(Plan::new("16 MiB", &items, &Board::single_domain(4 << 20))?.mode, Mode::Stream);
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
/// use ork_cache::plan::Place;
///
/// # let plan = ork_cache::doc::plan()?;
/// let resident = plan.places.iter().filter(|place| matches!(place, Place::Resident(_)));
/// assert_eq!(resident.count(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In a buffer of its own, for good.
    Resident(DomainId),
    /// In the slots of a class, when it is needed; in this many parts.
    Slot(ClassId, u32),
}

/// Slots of one size in one domain: the ring, or the slots of experts.
///
/// ```
/// # let plan = ork_cache::doc::plan()?;
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
/// # let plan = ork_cache::doc::plan()?;
/// let share = plan.domains[0];
/// assert_eq!((share.resident, share.slots), (4 << 20, 4 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Weights that stay.
    pub resident: u64,
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
/// use ork_cache::plan::Plan;
///
/// # let plan = ork_cache::doc::plan()?;
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
    /// Rows of a block: those of the board's largest batch, or fewer where memory is short.
    pub rows: u32,
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

impl Plan {
    /// Plans the weights `items`, given in order of use, on `board`.
    ///
    /// ```
    /// use ork_cache::plan::{Board, Place, Plan};
    ///
    /// # let items = ork_cache::doc::items();
    /// let plan = Plan::new("16 MiB", &items, &Board::single_domain(8 << 20))?;
    /// // One weight in four stays: what is streamed is spread evenly between.
    /// let stay: Vec<usize> = (0..16).filter(|&i| matches!(plan.places[i], Place::Resident(_))).collect();
    /// assert_eq!(stay.len(), 4);
    /// assert!(stay.windows(2).all(|pair| pair[1] - pair[0] == 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// No weights, or a budget or a board whose memory does not hold the smallest set of slots beside the
    /// scratch of one row.
    pub fn new(model: &str, items: &[Item], board: &Board) -> Result<Plan, PlanError> {
        let mut plans = Plan::several(&[(model, items)], board)?;
        plans.pop().ok_or(PlanError::Empty)
    }

    /// The plan in a room that may be smaller than the board; `None` when it does not hold the smallest
    /// set of slots.
    fn in_room(model: &str, items: &[Item], board: &Board, rows: u32, room: &Room) -> Option<Plan> {
        let layout = if let Some(layout) = dense::resident(items, room) {
            layout
        } else if items.iter().any(|i| i.expert.is_some()) {
            experts::place(items, room)?
        } else {
            dense::mixed(items, room)?
        };
        let Layout { domains, classes, places } = layout;
        let any = |resident| places.iter().any(|p| matches!(p, Place::Resident(_)) == resident);
        let mode = match (any(true), any(false)) {
            (_, false) => Mode::Resident,
            (true, true) => Mode::Mixed,
            (false, true) => Mode::Stream,
        };
        let blocks = board.rows.max(1).div_ceil(rows.max(1));
        let cost = Cost::of(items, &domains, &classes, &places, room.ring, blocks);
        let (model, board) = (model.to_owned(), board.clone());
        let bytes = items.iter().map(Item::bytes).sum();
        Some(Plan { model, bytes, board, rows, mode, domains, classes, places, cost })
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
        self.domains.iter().map(|d| d.resident + d.slots + d.scratch).sum()
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
            Place::Resident(domain) => domain,
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
    /// All of a board, or less: `total` bytes over all domains, `domain_bytes` in each.
    fn of(board: &Board, total: u64, domain_bytes: u64, scratch: u64) -> Room {
        Room {
            per_domain: domain_bytes.saturating_sub(board.headroom.saturating_add(scratch)),
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
        Share { resident: 0, slots: 0, scratch: self.scratch, headroom: self.headroom }
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
