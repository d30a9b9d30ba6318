//! Where the weights of several models go on one device, scratch included.

use std::fmt;
use std::sync::Arc;

use rknpu::Device;
use rknpu::capabilities::Domains;

use super::page_cache::Access;
use crate::environment::PolicyKind;
use crate::plan::{Board, Item, Plan, PlanError, lanes};
use crate::store::Store;
use crate::timeline::Recorder;

/// How models are to be put on a device.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of device memory for weights, slots and scratch over all domains.
    pub budget: u64,
    /// Rows of the largest batch.
    pub rows: u32,
    /// Bytes that may be mapped in one domain; see [`Board::rk3588`] for the default.
    pub domain_bytes: u64,
    /// What evicts, in one domain and without a plan; by default, and for
    /// [`PolicyKind::PinnedRing`], a plan decides what stays and what is streamed.
    pub policy: Option<PolicyKind>,
    /// A router decides which experts a batch uses. Then a plan decides where everything goes, and
    /// `policy`, LFU by default, which experts leave their slots; otherwise every pass is taken to
    /// use every expert, in order.
    pub routed: bool,
    /// How weights are read.
    pub access: Access,
    /// Where loads and memory are recorded.
    pub recorder: Option<Arc<Recorder>>,
}

impl Setup {
    /// By plan, for batches of 256 rows, within `budget` bytes.
    pub fn new(budget: u64) -> Setup {
        let Board { rows, domain_bytes, headroom, .. } = Board::rk3588("", 0);
        Setup {
            budget,
            rows,
            domain_bytes: domain_bytes - headroom,
            policy: None,
            routed: false,
            access: Access::Auto,
            recorder: None,
        }
    }
}

/// Bytes of scratch that `rows` rows of a batch at a time take on `device` in each domain that these models
/// use, or in all of those that are side by side: what [`open`](super::open) leaves beside the weights.
pub fn scratch_bytes(device: &Device, stores: &[Arc<Store>], rows: u32) -> u64 {
    let board = board(device, &Setup::new(0));
    let items = stores.iter().flat_map(|store| store.items());
    let items: Vec<Item> = items.map(|item| item.widest_lane(board.lanes)).collect();
    board.scratch(&items, rows).saturating_mul(board.lanes.into())
}

/// Something that is not as asked for, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// The driver has no domains: everything goes through one address space.
    OneDomain {
        /// Why.
        domains: Domains,
        /// Bytes that are used of it at most.
        bytes: u64,
    },
    /// The budget is small: batches are multiplied in blocks, so that scratch leaves room for weights.
    Blocks {
        /// Rows of a block.
        rows: u32,
        /// Rows asked for.
        asked: u32,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::OneDomain { domains, bytes } => {
                let why = match domains {
                    Domains::Stub => {
                        "the driver was built with stubs for domains (CONFIG_NO_GKI is not set)"
                    }
                    _ => "there is no IOMMU, or the driver is older than 0.9.8",
                };
                write!(f, "everything goes through one domain of {} MiB: {why}", bytes >> 20)
            }
            Note::Blocks { rows, asked } => write!(
                f,
                "the budget is small: batches of {asked} rows are multiplied {rows} rows at a time"
            ),
        }
    }
}

/// How the weights of several models share a device.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) rule: Rule,
    pub(super) rows: u32,
    /// Bytes in each domain.
    pub(super) scratch: u64,
    /// Domains side by side.
    pub(super) lanes: u8,
    pub(super) notes: Vec<Note>,
}

/// What decides where weights are.
#[derive(Debug)]
pub(super) enum Rule {
    /// A plan for each model, and a policy for slots that does not follow from the plan.
    Planned(Vec<Plan>, Option<PolicyKind>),
    /// A policy that evicts, in one domain with that many bytes for weights, or in each of those side by side.
    Evicting(PolicyKind, u64),
}

impl Placement {
    /// # Errors
    /// [`PlanError`]: a budget that is too small, or a model without weights.
    pub(super) fn new(
        device: &Device,
        stores: &[Arc<Store>],
        setup: &Setup,
    ) -> Result<Placement, PlanError> {
        let domains = device.capabilities().domains;
        let board = board(device, setup);
        let models: Vec<_> = stores.iter().map(|store| ("", store.items())).collect();
        let items = models.iter().flat_map(|(_, items)| items.iter());
        let items: Vec<Item> = items.map(|item| item.widest_lane(board.lanes)).collect();
        let (rule, rows) = match setup.policy.filter(|_| !setup.routed) {
            None | Some(PolicyKind::PinnedRing) => {
                let plans = Plan::several(&models, &board)?;
                let evicts = setup.routed.then(|| setup.policy.unwrap_or(PolicyKind::Lfu));
                let rows = plans.first().map_or(board.rows, |plan| plan.rows);
                (Rule::Planned(plans, evicts), rows)
            }
            Some(kind) => lanes::fit(&board, &items, |total, rows, scratch| {
                let bytes = total.min(board.domain_bytes).saturating_sub(scratch);
                let largest = items.iter().map(Item::bytes).max()?;
                (largest <= bytes).then_some((Rule::Evicting(kind, bytes), rows))
            })?,
        };
        let mut notes = Vec::new();
        if !matches!(domains, Domains::Real | Domains::Files) {
            notes.push(Note::OneDomain { domains, bytes: setup.domain_bytes });
        }
        if rows < board.rows {
            notes.push(Note::Blocks { rows, asked: setup.rows });
        }
        let lanes = board.lanes;
        Ok(Placement { rule, rows, scratch: board.scratch(&items, rows), lanes, notes })
    }
}

/// The device as a board whose memory is the budget.
fn board(device: &Device, setup: &Setup) -> Board {
    let rk3588 = Board::rk3588(device.node(), u64::MAX);
    Board {
        reserve: 0,
        headroom: 0,
        domain_bytes: setup.domain_bytes,
        domains: device.capabilities().domains.count() as u8,
        lanes: device.capabilities().spaces.lanes() as u8,
        rows: setup.rows.max(1),
        budget: Some(setup.budget),
        ..rk3588
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;
    use rknpu::{Layout, Precision};

    use super::*;

    fn models() -> impl Strategy<Value = Vec<Vec<Item>>> {
        let weight = (1u32..40, 1u32..40, 0u32..4, any::<bool>());
        let model = proptest::collection::vec(weight, 1..8);
        proptest::collection::vec(model, 1..4).prop_map(|models| {
            let item = |(i, (k, n, layer, int4)): (usize, (u32, u32, u32, bool))| {
                let precision = if int4 { Precision::Int4 } else { Precision::Int8 };
                let layout = Layout::new(k * 32, n * precision.tile_width(), precision).unwrap();
                // Some are of layers, some, as an output head, of none.
                match layer {
                    0 => Item::new(format!("output{i}.weight"), layout),
                    layer => Item::new(format!("blk.{layer}.w{i}.weight"), layout),
                }
            };
            let model = |m: Vec<_>| m.into_iter().enumerate().map(item).collect();
            models.into_iter().map(model).collect()
        })
    }

    fn policies() -> impl Strategy<Value = Option<PolicyKind>> {
        prop_oneof![3 => Just(None), 1 => Just(Some(PolicyKind::Lru))]
    }

    /// What decides, for models on a board: what [`Placement::new`] does on a device.
    fn place(
        models: &[Vec<Item>],
        board: &Board,
        policy: Option<PolicyKind>,
    ) -> Result<u32, PlanError> {
        let models: Vec<(&str, &[Item])> = models.iter().map(|items| ("", &items[..])).collect();
        match policy {
            None => Plan::several(&models, board).map(|plans| plans[0].rows),
            Some(_) => {
                let items: Vec<Item> = models.iter().flat_map(|m| m.1.iter().cloned()).collect();
                lanes::fit(board, &items, |total, rows, scratch| {
                    let bytes = total.min(board.domain_bytes).saturating_sub(scratch);
                    (items.iter().map(Item::bytes).max()? <= bytes).then_some(rows)
                })
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// The budget that an error names works, and so does a larger one; a page less does not.
        #[test]
        fn the_smallest_budget_named_is_the_smallest(
            models in models(), rows in 1u32..300, one_domain: bool, policy in policies(),
            more in 0u64..200,
        ) {
            let with = |budget| Board {
                domains: if one_domain { 1 } else { 16 },
                rows,
                ..Board { budget: Some(budget), ..Board::rk3588("", 64 << 30) }
            };
            let works = |budget| place(&models, &with(budget), policy);
            let Err(PlanError::Budget { smallest, scratch, .. }) = works(4096) else {
                return Err(TestCaseError::fail("4096 bytes are enough"));
            };
            let items: Vec<Item> = models.iter().flatten().cloned().collect();
            prop_assert_eq!(scratch, with(0).scratch(&items, 1));
            prop_assert!(works(smallest).is_ok(), "{smallest} does not");
            prop_assert!(works(smallest - 4096).is_err(), "{smallest} is not the least");
            let larger = smallest + more * 4096;
            prop_assert!(works(larger).is_ok(), "{smallest} does, {larger} not");
        }

        /// What `ork plan` says of a board and what is done on a device like it are one.
        #[test]
        fn a_device_takes_the_budgets_that_a_plan_of_its_board_does(
            model in models(), rows in 1u32..300, budget in 0u64..1 << 22,
        ) {
            let device = Device::simulated(Default::default()).unwrap();
            let setup = Setup { rows, ..Setup::new(budget) };
            let known = Board { rows, budget: Some(budget), ..Board::rk3588("", 64 << 30) };
            let on_device = board(&device, &setup);
            let planned = Plan::new("", &model[0], &known);
            let done = Plan::new("", &model[0], &on_device);
            match (planned, done) {
                (Ok(planned), Ok(done)) => prop_assert_eq!(
                    (planned.rows, planned.places, planned.cost),
                    (done.rows, done.places, done.cost)
                ),
                (planned, done) => prop_assert_eq!(planned.err(), done.err()),
            }
        }
    }
}
