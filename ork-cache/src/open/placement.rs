//! Where the weights of several models go on one device, scratch included.

use std::fmt;
use std::sync::Arc;

use rknpu::Device;
use rknpu::capabilities::Domains;

use crate::config::PolicyKind;
use crate::error::{Error, Result};
use crate::plan::{Board, Item, Plan, PlanError};
use crate::store::Store;
use crate::trace::Recorder;

/// How models are to be put on a device.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of device memory for weights, slots and scratch over all domains.
    pub budget: u64,
    /// Rows of the largest batch.
    pub rows: u32,
    /// Bytes that may be mapped in one domain; see [`Board::rk3588`] for the default.
    pub window: u64,
    /// What evicts, in one domain and without a plan; by default, and for
    /// [`PolicyKind::PinnedRing`], a plan decides what stays and what is streamed.
    pub policy: Option<PolicyKind>,
    /// A router decides which experts a batch uses. Then a plan decides where everything goes, and
    /// `policy`, LFU by default, which experts leave their slots; otherwise every pass is taken to
    /// use every expert, in order.
    pub routed: bool,
    /// Where loads and memory are recorded.
    pub recorder: Option<Arc<Recorder>>,
}

impl Setup {
    /// By plan, for batches of 256 rows, within `budget` bytes.
    pub fn new(budget: u64) -> Setup {
        let Board { rows, window, headroom, .. } = Board::rk3588("", 0);
        Setup {
            budget,
            rows,
            window: window - headroom,
            policy: None,
            routed: false,
            recorder: None,
        }
    }
}

/// Bytes of scratch that `rows` rows of a batch at a time take in each domain that these models use:
/// what [`open`](super::open) leaves beside the weights.
pub fn scratch_bytes(stores: &[Arc<Store>], rows: u32) -> u64 {
    let items = stores.iter().flat_map(|store| store.items()).cloned();
    Board { rows, ..Board::rk3588("", 0) }.scratch(&items.collect::<Vec<_>>())
}

/// Something that is not as asked for, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// The driver has no domains: everything goes through one window.
    OneWindow {
        /// Why.
        domains: Domains,
        /// Bytes of that window that are used at most.
        window: u64,
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
            Note::OneWindow { domains, window } => {
                let why = match domains {
                    Domains::Stub => {
                        "the driver was built with stubs for domains (CONFIG_NO_GKI is not set)"
                    }
                    _ => "there is no IOMMU, or the driver is older than 0.9.8",
                };
                write!(f, "everything goes through one window of {} MiB: {why}", window >> 20)
            }
            Note::Blocks { rows, asked } => write!(
                f,
                "the budget is small: batches of {asked} rows are multiplied {rows} rows at a time"
            ),
        }
    }
}

/// Scratch takes at most this part of a budget, unless nothing else works.
const SCRATCH_SHARE: u64 = 4;

/// How the weights of several models share a device.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) rule: Rule,
    pub(super) rows: u32,
    /// Bytes in each domain.
    pub(super) scratch: u64,
    pub(super) notes: Vec<Note>,
}

#[derive(Debug)]
pub(super) enum Rule {
    /// By a plan for each model, and a policy for slots that does not follow from the plan.
    Planned(Vec<Plan>, Option<PolicyKind>),
    /// In one window of that many bytes for weights, by a policy that evicts.
    Evicting(PolicyKind, u64),
}

impl Placement {
    /// # Errors
    /// [`Error::Budget`]; [`Error::Plan`] for a model without weights.
    pub(super) fn new(device: &Device, stores: &[Arc<Store>], setup: &Setup) -> Result<Placement> {
        let models: Vec<&[Item]> = stores.iter().map(|store| store.items()).collect();
        let domains = device.capabilities().domains;
        let mut notes = Vec::new();
        if domains != Domains::Real {
            notes.push(Note::OneWindow { domains, window: setup.window });
        }
        let board = Board {
            name: device.node().into(),
            reserve: 0,
            window: setup.window,
            headroom: 0,
            domains: domains.count() as u8,
            ..Board::rk3588("", 0)
        };
        let all: Vec<Item> = models.iter().flat_map(|items| items.iter().cloned()).collect();
        let scratch = |rows| Board { rows, ..board.clone() }.scratch(&all);
        let plan = |budget, rows| place(&models, &board, budget, scratch(rows), setup);

        // Fewer rows at a time are better than fewer weights that stay.
        let mut rows = setup.rows.max(1);
        while rows > 1
            && (scratch(rows) > setup.budget / SCRATCH_SHARE || plan(setup.budget, rows).is_err())
        {
            rows /= 2;
        }
        if rows < setup.rows {
            notes.push(Note::Blocks { rows, asked: setup.rows });
        }
        match plan(setup.budget, rows) {
            Ok(rule) => Ok(Placement { rule, rows, scratch: scratch(rows), notes }),
            Err(PlanError::TooSmall { .. }) => {
                let (budget, scratch) = (setup.budget, scratch(1));
                let smallest = least(&models, &board, scratch, setup);
                Err(Error::Budget { budget, smallest, scratch })
            }
            Err(error) => Err(Error::Plan(error)),
        }
    }
}

fn place(
    models: &[&[Item]],
    board: &Board,
    budget: u64,
    scratch: u64,
    setup: &Setup,
) -> Result<Rule, PlanError> {
    match setup.policy.filter(|_| !setup.routed) {
        None | Some(PolicyKind::PinnedRing) => {
            let greedy = plans(models, board, budget, scratch, |_| 0);
            let plans = greedy.or_else(|error| match error {
                // The first took all: the others' least is kept for them.
                PlanError::TooSmall { .. } if models.len() > 1 => {
                    plans(models, board, budget, scratch, |items| {
                        let bytes = items.iter().map(Item::bytes).sum();
                        smallest(bytes, |b| alone(items, board, b, 0).is_ok())
                    })
                }
                error => Err(error),
            });
            let evicts = setup.routed.then(|| setup.policy.unwrap_or(PolicyKind::Lfu));
            plans.map(|plans| Rule::Planned(plans, evicts))
        }
        Some(kind) => {
            let limit = budget.min(board.window).saturating_sub(scratch);
            let most = models.iter().flat_map(|items| items.iter()).map(Item::bytes).max();
            let need = most.ok_or(PlanError::Empty)?;
            if need > limit {
                let budget = need.saturating_add(scratch);
                return Err(PlanError::TooSmall { have: limit, slots: 1, need, budget });
            }
            Ok(Rule::Evicting(kind, limit))
        }
    }
}

/// The smallest budget with which these models can be placed.
fn least(models: &[&[Item]], board: &Board, scratch: u64, setup: &Setup) -> u64 {
    let bytes = models.iter().flat_map(|items| items.iter()).map(Item::bytes).sum::<u64>();
    // More domains than one take scratch in each; what works in one needs it once.
    smallest(bytes.saturating_add(scratch), |budget| {
        place(models, board, budget, scratch, setup).is_ok()
    })
}

fn alone(items: &[Item], board: &Board, ram: u64, scratch: u64) -> Result<Plan, PlanError> {
    Plan::with_scratch("", items, &Board { ram, ..board.clone() }, scratch)
}

/// A plan for each model, one after the other; `least` bytes are kept for each of those that follow.
fn plans(
    models: &[&[Item]],
    board: &Board,
    budget: u64,
    scratch: u64,
    least: impl Fn(&[Item]) -> u64,
) -> Result<Vec<Plan>, PlanError> {
    let mut plans: Vec<Plan> = Vec::with_capacity(models.len());
    for (i, items) in models.iter().enumerate() {
        let weights = |plan: &Plan| plan.limits().total;
        let taken: u64 = plans.iter().map(weights).sum();
        // A plan counts scratch in each of its own domains; those of earlier plans beyond its first
        // are counted here.
        let domains = plans.iter().map(|plan| plan.domains.len()).max().unwrap_or(1) as u64;
        let elsewhere = scratch.saturating_mul(domains - 1);
        let kept: u64 = models[i + 1..].iter().map(|items| least(items)).sum();
        let ram = budget.saturating_sub(taken + elsewhere + kept);
        let fullest = (0..domains as usize)
            .map(|d| plans.iter().filter_map(|p| p.limits().domains.get(d).copied()).sum::<u64>());
        let window = board.window.saturating_sub(fullest.max().unwrap_or(0));
        plans.push(alone(items, &Board { window, ..board.clone() }, ram, scratch)?);
    }
    Ok(plans)
}

/// The smallest number of whole pages up to `most` for which `works`, in bytes.
fn smallest(most: u64, works: impl Fn(u64) -> bool) -> u64 {
    let page = rknpu_sys::layout::PAGE;
    let (mut low, mut high) = (0, most.div_ceil(page));
    while low < high {
        let middle = low + (high - low) / 2;
        if works(middle * page) { high = middle } else { low = middle + 1 }
    }
    high * page
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rknpu::{Layout, Precision};

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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// The budget that an error names works, and so does a larger one; a page less does not.
        #[test]
        fn the_smallest_budget_named_is_the_smallest(
            models in models(), rows in 1u32..300, one_window: bool, policy in policies(),
            more in 0u64..200,
        ) {
            let device = Device::simulated(Default::default()).unwrap();
            let models: Vec<&[Item]> = models.iter().map(Vec::as_slice).collect();
            let all: Vec<Item> = models.iter().flat_map(|items| items.iter().cloned()).collect();
            let setup = Setup { rows, policy, ..Setup::new(0) };
            let window = setup.window;
            let board = Board {
                reserve: 0,
                window,
                headroom: 0,
                domains: if one_window { 1 } else { device.capabilities().domains.count() as u8 },
                ..Board::rk3588("", 0)
            };
            let scratch = Board { rows: 1, ..board.clone() }.scratch(&all);
            let works = |budget| place(&models, &board, budget, scratch, &setup);
            let named = least(&models, &board, scratch, &setup);
            prop_assert!(works(named).is_ok(), "{named} does not: {:?}", works(named));
            prop_assert!(works(named.saturating_sub(4096)).is_err(), "{named} is not the least");
            let larger = named + more * 4096;
            prop_assert!(works(larger).is_ok(), "{named} does, {larger} not: {:?}", works(larger));
        }
    }
}
