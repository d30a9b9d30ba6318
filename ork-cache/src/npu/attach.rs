//! Models put on a device: placed within a budget, attached to a cache.

use std::sync::{Arc, PoisonError};

use rknpu::{Device, Domain, MatmulLimits, Precision};

use super::placement::{Note, Placement, Setup, Way};
use super::{Npu, Origin, Store, cause};
use crate::cache::Cache;
use crate::config::PolicyKind;
use crate::core::{Home, Limits, WeightSpec};
use crate::error::{Error, Result};
use crate::ids::{ClassId, DomainId, WeightId};
use crate::plan::{Applied, Item, Part, Plan};
use crate::policy::{Lfu, Lru, NextUse, PinnedRing, Policy, S3Fifo};

/// Models on a device, see [`open`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The cache; its backend has the domains.
    pub cache: Cache<Npu>,
    /// Each model's weights, in the order of the stores.
    pub models: Vec<Applied>,
    /// Rows of a block for which scratch is counted: those asked for, or fewer in a small budget.
    pub rows: u32,
    /// Bytes of device memory that weights, slots and scratch can take in all, never more than the
    /// budget.
    pub bytes: u64,
    /// What is not as asked for, to be shown to the user.
    pub notes: Vec<Note>,
}

impl Opened {
    /// Limits of the [`rknpu::Matmul`] of a precision in domain number `domain`: with them scratch
    /// takes no more than was counted. `None` when no weight of that precision is there.
    pub fn limits(&self, domain: usize, precision: Precision) -> Option<MatmulLimits> {
        let parts = || {
            let all = self.models.iter().flat_map(|m| &m.parts);
            let here = all.filter(|p| p.spec.domain.index() == domain).map(|p| &p.layout);
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
/// Where the driver has no domains (stubs, an old version, no IOMMU), everything goes into one window,
/// and a [`Note`] says so.
///
/// # Errors
/// [`Error::Budget`] with the smallest budget that works; [`Error::Device`] when the device
/// refuses what the budget allows.
pub fn open(device: &Device, stores: &[Arc<Store>], setup: &Setup) -> Result<Opened> {
    let Placement { way, rows, scratch, notes } = Placement::new(device, stores, setup)?;
    let lease = |count: usize| -> Result<Npu> {
        let domains = (0..count).map(|_| device.new_domain()).collect::<rknpu::Result<_>>();
        let domains =
            domains.map_err(|e| Error::Device { what: "lease a domain", cause: cause(e) })?;
        Ok(Npu::new(domains).with_recorder(setup.recorder.clone()))
    };
    let (cache, models, domains) = match way {
        Way::Planned(plans, evicts) => {
            let domains = plans.iter().map(|plan| plan.domains.len()).max().unwrap_or(1);
            let models: Vec<_> = stores.iter().zip(&plans).collect();
            let (cache, applied) = over(lease(domains)?, &models, evicts)?;
            (cache, applied, domains)
        }
        Way::Evicting(policy, limit) => {
            let weights = stores.iter().map(|store| store.items().len()).sum();
            let cache = evicting(lease(1)?, limit, policy, weights);
            let models = stores.iter().map(|s| attach_whole(&cache, s, DomainId(0)));
            (cache.clone(), models.collect::<Result<_>>()?, 1)
        }
    };
    let limits = cache.limits();
    let bytes = limits.total.saturating_add(scratch.saturating_mul(domains as u64));
    Ok(Opened { cache, models, rows, bytes, notes })
}

/// Attaches without a plan, and describes the result as a plan's.
fn attach_whole(cache: &Cache<Npu>, store: &Arc<Store>, domain: DomainId) -> Result<Applied> {
    let first = attach_on_demand(cache, store, domain)?;
    let part = |(item, i): (usize, &Item)| {
        let spec = WeightSpec { bytes: i.bytes(), domain, home: Home::Own };
        Part { weight: WeightId(first.0 + item as u32), item, column: 0, layout: i.layout, spec }
    };
    let parts: Vec<Part> = store.items().iter().enumerate().map(part).collect();
    Ok(Applied {
        items: (0..parts.len()).map(|i| i..i + 1).collect(),
        streamed: parts.iter().map(|p| p.weight).collect(),
        kept: Vec::new(),
        classes: Vec::new(),
        parts,
    })
}

/// A cache for one or more models, each where its plan puts it, all in the same `domains`: budgets
/// add up, domains are shared, and a prefetch of one model never disturbs a pass of another. Loads
/// nothing.
///
/// # Errors
/// A plan with more domains than are given, or a device that refuses the slots.
pub fn open_planned(
    domains: Vec<Domain>,
    models: &[(&Arc<Store>, &Plan)],
) -> Result<(Cache<Npu>, Vec<Applied>)> {
    over(Npu::new(domains), models, None)
}

/// `evicts` chooses among what is in slots; without it the plans do.
fn over(
    npu: Npu,
    models: &[(&Arc<Store>, &Plan)],
    evicts: Option<PolicyKind>,
) -> Result<(Cache<Npu>, Vec<Applied>)> {
    let known = npu.domains.len();
    let mut limits = Limits { total: 0, domains: vec![0; known] };
    let (mut kept, mut weights, mut classes) = (Vec::new(), 0, 0);
    for (store, plan) in models {
        let own = plan.limits();
        if own.domains.len() > known {
            let domain = DomainId(known as u8);
            return Err(Error::UnknownDomain { domain, known });
        }
        limits.total = limits.total.saturating_add(own.total);
        for (sum, bytes) in limits.domains.iter_mut().zip(own.domains) {
            *sum = sum.saturating_add(bytes);
        }
        let ids: Vec<ClassId> =
            (0..plan.classes.len() as u32).map(|c| ClassId(classes + c)).collect();
        let expanded = plan.expand(store.items(), WeightId(weights), &ids);
        kept.extend(expanded.kept);
        weights += expanded.parts.len() as u32;
        classes += ids.len() as u32;
    }
    let policy = match evicts {
        Some(kind) => evicting_policy(kind, weights as usize),
        None => Box::new(PinnedRing::new(&kept)),
    };
    let cache = Cache::new(npu, limits, policy);
    let applied = models.iter().map(|(store, plan)| attach(&cache, store, plan));
    let applied = applied.collect::<Result<_>>()?;
    Ok((cache, applied))
}

/// Attaches the weights of `store` where `plan` puts them and creates the plan's slots. The plan
/// must have been made of [`Store::items`]. Loads nothing.
///
/// # Errors
/// What does not fit into the cache, or a device that refuses the slots.
pub fn attach(cache: &Cache<Npu>, store: &Arc<Store>, plan: &Plan) -> Result<Applied> {
    let npu = cache.backend();
    let _ids = npu.attaching.lock().unwrap_or_else(PoisonError::into_inner);
    let applied = plan.apply(store.items(), cache)?;
    for part in &applied.parts {
        let (item, column, layout) = (part.item, part.column, part.layout);
        npu.register(part.weight, Origin { store: store.clone(), item, column, layout });
    }
    Ok(applied)
}

/// Attaches the weights of `store` to `domain` without a plan: each has a buffer of its own and
/// leaves when the policy says so. The ids follow each other from the returned one.
///
/// # Errors
/// A weight larger than the budget: both numbers.
pub fn attach_on_demand(
    cache: &Cache<Npu>,
    store: &Arc<Store>,
    domain: DomainId,
) -> Result<WeightId> {
    let npu = cache.backend();
    let _ids = npu.attaching.lock().unwrap_or_else(PoisonError::into_inner);
    let items = store.items();
    let spec = |i: &Item| WeightSpec { bytes: i.bytes(), domain, home: Home::Own };
    let first = cache.attach(&items.iter().map(spec).collect::<Vec<_>>())?;
    for (item, Item { layout, .. }) in items.iter().enumerate() {
        let origin = Origin { store: store.clone(), item, column: 0, layout: *layout };
        npu.register(WeightId(first.0 + item as u32), origin);
    }
    Ok(first)
}

/// A cache of `budget` bytes in one domain for [`attach_on_demand`]; `weights` is how many one
/// model has, for the policies that know its order.
pub fn cache_on_demand(
    domain: Domain,
    budget: u64,
    policy: PolicyKind,
    weights: usize,
) -> Cache<Npu> {
    evicting(Npu::new(vec![domain]), budget, policy, weights)
}

fn evicting(npu: Npu, budget: u64, policy: PolicyKind, weights: usize) -> Cache<Npu> {
    Cache::new(npu, Limits::single(budget), evicting_policy(policy, weights))
}

/// A policy for `weights` weights, used in order where it needs to know.
fn evicting_policy(kind: PolicyKind, weights: usize) -> Box<dyn Policy> {
    match kind {
        // Without a plan nothing is pinned by name; on a known order this is the same optimum.
        PolicyKind::PinnedRing | PolicyKind::NextUse => {
            let order: Vec<WeightId> = (0..weights as u32).map(WeightId).collect();
            Box::new(NextUse::cyclic(&order))
        }
        PolicyKind::Lru => Box::new(Lru::new()),
        PolicyKind::Lfu => Box::new(Lfu::new(weights.saturating_mul(4).min(1 << 20) as u32)),
        PolicyKind::S3Fifo => Box::new(S3Fifo::new()),
    }
}
