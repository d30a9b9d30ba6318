//! Models put on a device: placed within a budget, attached to a cache.

mod page_cache;
mod placement;

use std::sync::Arc;

use rknpu::{Device, MatmulLimits, Precision};

pub use page_cache::{Access, ParseAccessError, Reading};
pub use placement::{Note, Setup, scratch_bytes};

use placement::{Placement, Rule};

use crate::cache::Cache;
use crate::environment::PolicyKind;
use crate::error::{Error, Result};
use crate::ids::{ClassId, DomainId, WeightId};
use crate::npu::{Npu, cause};
use crate::plan::{Item, Part, Placed, Plan};
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
    /// Limits of the [`rknpu::Matmul`] of a precision in domain number `domain`: with them scratch
    /// takes no more than was counted. `None` when no weight of that precision is there.
    pub fn limits(&self, domain: usize, precision: Precision) -> Option<MatmulLimits> {
        let parts = || {
            let all = self.models.iter().flat_map(|m| &m.parts);
            let here = all.filter(|p| p.domain.index() == domain).map(|p| &p.layout);
            here.filter(|l| l.precision() == precision)
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
    let Placement { rule, rows, scratch, notes } = Placement::new(device, stores, setup)?;
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
            let cache = Cache::new(lease(1)?, Limits::single(budget), policy);
            let models = stores.iter().map(|store| attach_whole(&cache, store));
            (cache.clone(), models.collect::<Result<_>>()?)
        }
    };
    let scratch = scratch.saturating_mul(cache.domains().len() as u64);
    let bytes = cache.limits().total.saturating_add(scratch);
    let reading = page_cache::choose(setup.access, stores, bytes);
    Ok(Opened { cache, models, rows, bytes, reading, notes })
}

/// Attaches whole weights that any of them may have to leave for, and describes them as a plan does.
fn attach_whole(cache: &Cache, store: &Arc<Store>) -> Result<Placed> {
    let (domain, home) = (DomainId(0), Home::Own);
    let part = |(item, i): (usize, &Item)| Part {
        weight: WeightId(item as u32),
        item,
        column: 0,
        layout: i.layout,
        domain,
        home,
    };
    let mut parts: Vec<Part> = store.items().iter().enumerate().map(part).collect();
    let specs: Vec<_> = parts.iter().map(Part::spec).collect();
    let attach = || {
        let first = cache.attach(&specs)?.0;
        parts.iter_mut().for_each(|part| part.weight.0 += first);
        Ok(Placed {
            items: (0..parts.len()).map(|i| i..i + 1).collect(),
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
