//! Where the weights of several models go on one device.

use std::ops::Range;
use std::sync::Arc;

use ork_cache::config::PolicyKind;
use ork_cache::core::{Home, Limits, WeightSpec};
use ork_cache::plan::{Board, Item, Part, Plan, PlanError};
use ork_cache::policy::{Lfu, Lru, NextUse, PinnedRing, Policy, S3Fifo};
use ork_cache::{Cache, ClassId, DomainId, WeightId};
use rknpu::{Device, Domain};

use super::backend::Npu;
use super::columns::Columns;
use super::source::Source;
use crate::error::{Error, Result};

/// What a domain maps beside weights: commands, activations and results, and the holes between.
const HEADROOM: u64 = 256 << 20;

/// Half-life of the frequency policy, in uses.
const LFU_HALF_LIFE: u32 = 4096;

/// A weight, or a range of its columns, in one place of the cache.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// In the cache.
    pub weight: WeightId,
    /// Where it is used.
    pub domain: DomainId,
    /// What it is of its weight.
    pub columns: Columns,
}

/// One model in the cache.
#[derive(Debug, Default)]
pub struct Placed {
    /// Pieces of each weight, in order of use; most have one.
    pub weights: Vec<Vec<Piece>>,
    /// What is loaded in every pass, in order of use.
    pub streamed: Vec<WeightId>,
}

/// How the weights of several models share a device.
#[derive(Debug)]
pub enum Placement {
    /// By a plan for each model; the first gets its place first.
    Planned(Vec<Plan>),
    /// In one window, by a policy that evicts.
    Evicting(PolicyKind, u64),
}

impl Placement {
    /// Places `sources` within `budget` bytes of weights, by plan, or by the policy asked for.
    ///
    /// # Errors
    /// [`Error::Usage`] with the least budget that works.
    pub fn new(
        device: &Device,
        sources: &[Arc<Source>],
        budget: u64,
        policy: Option<PolicyKind>,
    ) -> Result<Placement> {
        match policy {
            None | Some(PolicyKind::PinnedRing) => {
                Placement::plan(device, sources, budget).map(Placement::Planned)
            }
            Some(kind) => {
                let limit = budget.min(rknpu::limits::WINDOW - HEADROOM);
                let most = sources.iter().flat_map(|s| s.items()).map(Item::bytes).max();
                match most.filter(|most| *most > limit) {
                    Some(most) => Err(Error::too_small(budget, most)),
                    None => Ok(Placement::Evicting(kind, limit)),
                }
            }
        }
    }

    fn plan(device: &Device, sources: &[Arc<Source>], budget: u64) -> Result<Vec<Plan>> {
        let window = Board::rk3588("", 0).window;
        let (mut left, mut taken) = (budget, 0);
        let mut plans = Vec::new();
        for source in sources {
            let board = if budget <= window - HEADROOM {
                Board::single_window(left)
            } else {
                Board {
                    name: device.node().into(),
                    ram: left,
                    reserve: 0,
                    window: window - taken,
                    headroom: HEADROOM,
                    domains: device.capabilities().domains.count() as u8,
                    rows: 0,
                    ..Board::rk3588("", 0)
                }
            };
            let plan = Plan::new("", source.items(), &board).map_err(|error| match error {
                PlanError::TooSmall { budget: needed, .. } => {
                    Error::too_small(budget, needed + (budget - left))
                }
                error => Error::Usage(error.to_string()),
            })?;
            left = left.saturating_sub(plan.device_bytes());
            taken += plan.domains.iter().map(|d| d.pinned + d.slots).max().unwrap_or(0);
            plans.push(plan);
        }
        Ok(plans)
    }

    /// Leases the domains it needs.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn lease(&self, device: &Device) -> Result<Vec<Domain>> {
        let domains = self.limits().domains.len();
        (0..domains).map(|_| Ok(device.new_domain()?)).collect()
    }

    /// Limits of the cache.
    pub fn limits(&self) -> Limits {
        match self {
            Placement::Evicting(_, bytes) => Limits::single(*bytes),
            Placement::Planned(plans) => {
                let mut domains = Vec::new();
                for limits in plans.iter().map(Plan::limits) {
                    domains.resize(domains.len().max(limits.domains.len()), 0);
                    for (total, bytes) in domains.iter_mut().zip(limits.domains) {
                        *total += bytes;
                    }
                }
                Limits { total: domains.iter().sum(), domains }
            }
        }
    }

    /// What evicts, where anything may be evicted: uses are `passes` over each model in turn.
    pub fn policy(&self, sources: &[Arc<Source>]) -> Box<dyn Policy> {
        let weights: u32 = sources.iter().map(|s| s.items().len() as u32).sum();
        let order: Vec<WeightId> = (0..weights).map(WeightId).collect();
        match self {
            Placement::Planned(plans) => Box::new(PinnedRing::new(&kept(plans, sources))),
            Placement::Evicting(kind, _) => match kind {
                PolicyKind::PinnedRing => Box::new(PinnedRing::new(&[])),
                PolicyKind::NextUse => Box::new(NextUse::cyclic(&order)),
                PolicyKind::Lru => Box::new(Lru::new()),
                PolicyKind::Lfu => Box::new(Lfu::new(LFU_HALF_LIFE)),
                PolicyKind::S3Fifo => Box::new(S3Fifo::new()),
            },
        }
    }

    /// Creates the slots and attaches the weights.
    ///
    /// # Errors
    /// [`Error::Cache`]: the device refuses memory that the plan counts on.
    pub fn apply(&self, sources: &[Arc<Source>], cache: &Cache<Npu>) -> Result<Vec<Placed>> {
        match self {
            Placement::Planned(plans) => {
                plans.iter().zip(sources).map(|(plan, s)| planned(plan, s, cache)).collect()
            }
            Placement::Evicting(..) => sources.iter().map(|s| evicting(s, cache)).collect(),
        }
    }
}

/// Experts that are best kept in their slots, by the ids that they will have.
fn kept(plans: &[Plan], sources: &[Arc<Source>]) -> Vec<WeightId> {
    let (mut first, mut kept) = (0, Vec::new());
    for (plan, source) in plans.iter().zip(sources) {
        let classes = vec![ClassId(0); plan.classes.len()];
        let applied = plan.expand(source.items(), WeightId(first), &classes);
        first += applied.parts.len() as u32;
        kept.extend(applied.kept);
    }
    kept
}

fn planned(plan: &Plan, source: &Source, cache: &Cache<Npu>) -> Result<Placed> {
    let applied = plan.apply(source.items(), cache)?;
    let piece = |part: &Part| Piece {
        weight: part.weight,
        domain: part.spec.domain,
        columns: Columns::new(part.column, part.layout),
    };
    let parts = |range: &Range<usize>| applied.parts.get(range.clone()).unwrap_or_default();
    let weights = applied.items.iter().map(|item| parts(item).iter().map(piece).collect());
    Ok(Placed { weights: weights.collect(), streamed: applied.streamed.clone() })
}

fn evicting(source: &Source, cache: &Cache<Npu>) -> Result<Placed> {
    let domain = DomainId(0);
    let spec = |item: &Item| WeightSpec { bytes: item.bytes(), domain, home: Home::Own };
    let specs: Vec<WeightSpec> = source.items().iter().map(spec).collect();
    let first = cache.attach(&specs)?;
    let ids = (first.0..).map(WeightId);
    let piece = |(item, weight): (&Item, WeightId)| {
        vec![Piece { weight, domain, columns: Columns::all(item.layout) }]
    };
    let weights: Vec<Vec<Piece>> = source.items().iter().zip(ids).map(piece).collect();
    let streamed = weights.iter().flatten().map(|piece| piece.weight).collect();
    Ok(Placed { weights, streamed })
}
