//! Models put on a device: placed within a budget, attached to a cache.

mod page_cache;
mod placement;

use std::sync::Arc;

use rknpu::{Device, Domain, MatmulLimits, Precision};

pub use page_cache::{Access, ParseAccessError, Reading};
pub use placement::{Note, Setup, scratch_bytes};

use placement::{Placement, Rule};

use crate::cache::Cache;
use crate::environment::PolicyKind;
use crate::error::{Error, Result};
use crate::ids::{ClassId, DomainId, WeightId};
use crate::npu::{Npu, cause};
use crate::plan::{Part, Placed, Plan};
use crate::policy::{Lfu, Lru, PinnedRing, Policy};
use crate::residency::{Home, Limits};
use crate::store::Store;

/// Models on a device, see [`open`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The cache.
    pub cache: Cache,
    /// Each model's weights, in the order of the stores.
    pub models: Vec<Placed>,
    /// Domains side by side, over which each weight is split: 1, or one for each core where only one core works
    /// in a domain at a time. Every so many of the cache's domains take one
    /// [`Matmul::side_by_side`](rknpu::Matmul::side_by_side).
    pub lanes: usize,
    /// Rows of a block for which scratch is counted: those asked for, or fewer in a small budget.
    pub rows: u32,
    /// Bytes of device memory that weights, slots and scratch can take in all, never more than the
    /// budget.
    pub bytes: u64,
    /// How weights are read.
    pub reading: Reading,
    /// What is not as asked for, to be shown to the user.
    pub notes: Vec<Note>,
}

impl Opened {
    /// The domains that work on a product at the same time: each by itself, or [so many](Opened::lanes) side
    /// by side.
    pub fn groups(&self) -> impl Iterator<Item = &[Domain]> {
        self.cache.domains().chunks(self.lanes.max(1))
    }

    /// Limits of the [`rknpu::Matmul`] of a precision in [group](Opened::groups) number `group`: with them
    /// scratch takes no more than was counted. `None` when no weight of that precision is there.
    pub fn limits(&self, group: usize, precision: Precision) -> Option<MatmulLimits> {
        let parts = || {
            let all = self.models.iter().flat_map(|m| &m.parts);
            let here = all.filter(|p| p.domain.index() / self.lanes.max(1) == group);
            here.map(|p| &p.layout).filter(|l| l.precision() == precision)
        };
        let (k, n) = (parts().map(|l| l.k()).max()?, parts().map(|l| l.n()).max()?);
        Some(MatmulLimits { rows: self.rows, k, n })
    }
}

/// Puts models on a device, within one budget for weights, slots and scratch. The first gets its place
/// first: a small model in front of a large one stays resident beside it. Leases the domains that
/// are used and creates slots; loads nothing.
///
/// Where the driver has no domains (stubs, an old version, no IOMMU), everything goes into one address
/// space, and a [`Note`] says so. The [crate's front page](crate) has an example.
///
/// # Errors
/// [`PlanError::Budget`](crate::plan::PlanError::Budget) with the smallest budget that works;
/// [`Error::Device`] when the device refuses what the budget allows.
pub fn open(device: &Device, stores: &[Arc<Store>], setup: &Setup) -> Result<Opened> {
    let Placement { rule, rows, scratch, lanes, notes } = Placement::new(device, stores, setup)?;
    let lease = |count: usize| -> Result<Npu> {
        let domains = (0..count).map(|_| device.new_domain()).collect::<rknpu::Result<_>>();
        let domains =
            domains.map_err(|e| Error::Device { what: "lease a domain", cause: cause(e) })?;
        Ok(Npu::new(domains, setup.recorder.clone()))
    };
    let (cache, models) = match rule {
        Rule::Planned(plans, evicts) => {
            let domains = plans.iter().map(|plan| plan.domains.len()).max().unwrap_or(1);
            planned(lease(domains)?, stores, &plans, evicts)?
        }
        Rule::Evicting(kind, budget) => {
            let weights = stores.iter().map(|store| store.items().len()).sum();
            let policy = policy(kind, weights, &[]);
            let domains = vec![budget; lanes.into()];
            let limits = Limits { total: domains.iter().sum(), domains };
            let cache = Cache::new(lease(lanes.into())?, limits, policy);
            let models = stores.iter().map(|store| attach_whole(&cache, store, lanes));
            (cache.clone(), models.collect::<Result<_>>()?)
        }
    };
    let scratch = scratch.saturating_mul(cache.domains().len() as u64);
    let bytes = cache.limits().total.saturating_add(scratch);
    let reading = page_cache::choose(setup.access, stores, bytes);
    Ok(Opened { cache, models, lanes: lanes.into(), rows, bytes, reading, notes })
}

/// Attaches weights, each whole or split over domains side by side, that any of them may have to leave for, and
/// describes them as a plan does.
fn attach_whole(cache: &Cache, store: &Arc<Store>, lanes: u8) -> Result<Placed> {
    let (mut parts, mut items) = (Vec::new(), Vec::new());
    for (item, i) in store.items().iter().enumerate() {
        let start = parts.len();
        for lane in 0..lanes {
            let Some((column, layout)) = i.lane(lane, lanes) else { break };
            let (weight, domain) = (WeightId(parts.len() as u32), DomainId(lane));
            parts.push(Part { weight, item, column, layout, domain, home: Home::Own });
        }
        items.push(start..parts.len());
    }
    let specs: Vec<_> = parts.iter().map(Part::spec).collect();
    let attach = || {
        let first = cache.attach(&specs)?.0;
        parts.iter_mut().for_each(|part| part.weight.0 += first);
        Ok(Placed {
            items,
            streamed: parts.iter().map(|p| p.weight).collect(),
            kept: Vec::new(),
            parts,
        })
    };
    cache.backend().attach(store, attach, |placed| &placed.parts)
}

/// A cache for models, each where its plan puts it. Their budgets add up and they share the domains. `evicts`
/// chooses among what is in slots; without it the plans do.
fn planned(
    npu: Npu,
    stores: &[Arc<Store>],
    plans: &[Plan],
    evicts: Option<PolicyKind>,
) -> Result<(Cache, Vec<Placed>)> {
    let mut limits = Limits { total: 0, domains: Vec::new() };
    let (mut kept, mut weights, mut classes) = (Vec::new(), 0, 0);
    for (store, plan) in stores.iter().zip(plans) {
        let own = plan.limits();
        limits.total = limits.total.saturating_add(own.total);
        limits.domains.resize(limits.domains.len().max(own.domains.len()), 0);
        for (sum, bytes) in limits.domains.iter_mut().zip(own.domains) {
            *sum = sum.saturating_add(bytes);
        }
        let ids: Vec<ClassId> =
            (0..plan.classes.len() as u32).map(|c| ClassId(classes + c)).collect();
        let placed = plan.place(store.items(), WeightId(weights), &ids);
        kept.extend(placed.kept);
        weights += placed.parts.len() as u32;
        classes += ids.len() as u32;
    }
    let policy = policy(evicts.unwrap_or(PolicyKind::PinnedRing), weights as usize, &kept);
    let cache = Cache::new(npu, limits, policy);
    let attach = |(store, plan): (&Arc<Store>, &Plan)| {
        let attach = || plan.apply(store.items(), &cache);
        cache.backend().attach(store, attach, |placed| &placed.parts)
    };
    let placed = stores.iter().zip(plans).map(attach).collect::<Result<_>>()?;
    Ok((cache, placed))
}

/// A policy for `weights` weights, of which `kept` are best left alone.
fn policy(kind: PolicyKind, weights: usize, kept: &[WeightId]) -> Box<dyn Policy> {
    match kind {
        PolicyKind::PinnedRing => Box::new(PinnedRing::new(kept)),
        PolicyKind::Lru => Box::new(Lru::new()),
        PolicyKind::Lfu => Box::new(Lfu::new(weights.saturating_mul(4).min(1 << 20) as u32)),
    }
}
