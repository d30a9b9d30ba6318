//! The cache on a device: buffers in IOMMU domains, filled from packs and models.

mod columns;
mod store;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rknpu::{Buffer, Domain, Host, Layout, WeightRef, buffer::Device};

pub use store::{Given, Store, StoreError};

use crate::backend::Backend;
use crate::cache::{Cache, Pinned};
use crate::config::PolicyKind;
use crate::core::{Home, Limits, WeightSpec};
use crate::error::{Cause, Error, Result};
use crate::ids::{ClassId, DomainId, WeightId};
use crate::plan::{Applied, Item, Plan};
use crate::policy::{Lfu, Lru, NextUse, PinnedRing, Policy, S3Fifo};

/// Domains of one device, and where the weights of each attached model come from.
///
/// ```
/// use std::sync::Arc;
///
/// use ork_cache::npu::{self, Store};
/// use ork_cache::plan::{Board, Plan};
/// use ork_weights::pack::{Access, Dtype, Pack, PackWriter, WriterOptions};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// # for layer in 0..6 {
/// #     let name = format!("blk.{layer}.ffn_up.weight");
/// #     writer.add(&name, 64, 64, Dtype::Int8, &[layer as u8; 4096], &[0.5; 64])?;
/// # }
/// # writer.finish()?;
/// // A pack of six weights of 4 KiB, and room for five: one stays, four slots are the ring.
/// let store = Arc::new(Store::from_pack(Pack::open_with(&path, Access::Pread)?));
/// let items = store.items();
/// let plan = Plan::new("small", &items, &Board::single_window(5 * 4096))?;
///
/// let device = rknpu::Device::simulated(Default::default())?;
/// let (cache, applied) = npu::open(vec![device.new_domain()?], &[(&store, &plan)])?;
/// let mut matmul = rknpu::Matmul::int8(
///     &cache.backend().domains()[0],
///     &device.cores()?,
///     rknpu::MatmulLimits { rows: 4, k: 64, n: 64 },
/// )?;
/// let mut out = vec![0; 4 * 64];
/// for part in &applied[0].parts {
///     let pinned = cache.acquire(part.weight)?;
///     matmul.run(&pinned.weight_ref()?, &[1; 4 * 64], &mut out)?;
///     assert_eq!(out[0], 64 * part.item as i32);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Npu {
    domains: Vec<Domain>,
    origins: RwLock<Vec<Option<Origin>>>,
    /// Held while ids are given out, so that ids and origins agree.
    attaching: Mutex<()>,
}

/// Where one weight of the cache comes from.
#[derive(Clone, Debug)]
struct Origin {
    store: Arc<Store>,
    item: usize,
    column: u32,
    layout: Layout,
}

/// Device memory of a cache: the CPU's while it is filled, the NPU's afterwards.
#[derive(Debug)]
pub struct NpuBuffer {
    state: State,
    layout: Option<Layout>,
}

#[derive(Debug)]
enum State {
    Host(Buffer<Host>),
    Device(Buffer<Device>),
    /// Between two states; a panic in the device's code leaves it so.
    Gone,
}

/// A buffer that is not where it should be.
#[derive(Debug, thiserror::Error)]
#[error("the buffer was lost in a change of state")]
struct Lost;

/// A weight that was attached to the cache but not to the device.
#[derive(Debug, thiserror::Error)]
#[error("{0} has no source: attach models through ork_cache::npu")]
struct NoOrigin(WeightId);

impl Npu {
    /// Over `domains`, which the cache numbers in this order.
    pub fn new(domains: Vec<Domain>) -> Npu {
        Npu { domains, origins: RwLock::default(), attaching: Mutex::default() }
    }

    /// The domains.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    fn domain(&self, domain: DomainId) -> std::result::Result<&Domain, Cause> {
        let known = self.domains.len();
        self.domains
            .get(domain.index())
            .ok_or_else(|| Arc::new(Error::UnknownDomain { domain, known }) as Cause)
    }

    fn origin(&self, weight: WeightId) -> Option<Origin> {
        let origins = self.origins.read().unwrap_or_else(PoisonError::into_inner);
        origins.get(weight.index()).cloned().flatten()
    }

    fn register(&self, weight: WeightId, origin: Origin) {
        let mut origins = self.origins.write().unwrap_or_else(PoisonError::into_inner);
        if origins.len() <= weight.index() {
            origins.resize(weight.index() + 1, None);
        }
        origins[weight.index()] = Some(origin);
    }
}

fn cause(error: impl std::error::Error + Send + Sync + 'static) -> Cause {
    Arc::new(error)
}

impl Backend for Npu {
    type Buffer = NpuBuffer;

    fn create(&self, domain: DomainId, bytes: u64) -> std::result::Result<NpuBuffer, Cause> {
        let len = usize::try_from(bytes).map_err(cause)?;
        let buffer = self.domain(domain)?.alloc(len).map_err(cause)?;
        Ok(NpuBuffer { state: State::Host(buffer), layout: None })
    }

    fn copy(&self, buffer: &mut NpuBuffer, weight: WeightId) -> std::result::Result<(), Cause> {
        let origin = self.origin(weight).ok_or_else(|| cause(NoOrigin(weight)))?;
        buffer.layout = None;
        let mut host = match std::mem::replace(&mut buffer.state, State::Gone) {
            State::Host(host) => host,
            State::Device(device) => device.reclaim(),
            State::Gone => return Err(cause(Lost)),
        };
        let Origin { store, item, column, layout } = origin;
        let loaded = store.load(item, column, &layout, host.as_mut_slice());
        buffer.state = State::Host(host);
        loaded.map_err(cause)?;
        buffer.layout = Some(layout);
        Ok(())
    }

    fn publish(&self, buffer: &mut NpuBuffer) -> std::result::Result<(), Cause> {
        let host = match std::mem::replace(&mut buffer.state, State::Gone) {
            State::Host(host) => host,
            State::Device(device) => {
                buffer.state = State::Device(device);
                return Ok(());
            }
            State::Gone => return Err(cause(Lost)),
        };
        let written = buffer.layout.map_or(host.len() as u64, |l| l.bytes());
        match host.to_device_up_to(written) {
            Ok(device) => {
                buffer.state = State::Device(device);
                Ok(())
            }
            Err(unchanged) => {
                buffer.state = State::Host(unchanged.buffer);
                Err(cause(unchanged.error))
            }
        }
    }

    fn free(&self, buffer: NpuBuffer) -> std::result::Result<(), Cause> {
        let domain = match &buffer.state {
            State::Host(host) => host.domain().clone(),
            State::Device(device) => device.domain().clone(),
            State::Gone => return Err(cause(Lost)),
        };
        // Inside the domain a drop frees at once; outside it might be put off.
        let active = domain.enter().map_err(cause)?;
        let before = domain.device().health().leaked_bytes;
        drop(buffer);
        drop(active);
        let leaked = domain.device().health().leaked_bytes > before;
        if leaked { Err(cause(Lost)) } else { Ok(()) }
    }

    fn ahead(&self, weight: WeightId) {
        if let Some(Origin { store, item, .. }) = self.origin(weight) {
            store.will_need(item);
        }
    }
}

impl Pinned<Npu> {
    /// The weight as a matmul takes it.
    ///
    /// # Errors
    /// A buffer that was lost in a change of state; never while loads succeed.
    pub fn weight_ref(&self) -> Result<WeightRef<'_>> {
        let lost = |cause: Cause| Error::Load { weight: self.weight(), cause };
        match (&self.state, self.layout) {
            (State::Device(buffer), Some(layout)) => {
                WeightRef::new(buffer, 0, layout).map_err(|e| lost(cause(e)))
            }
            _ => Err(lost(cause(Lost))),
        }
    }
}

/// A cache for one or more models, each where its plan puts it, all in the same `domains`: budgets
/// add up, domains are shared, and a prefetch of one model never disturbs a pass of another. Loads
/// nothing.
///
/// # Errors
/// A plan with more domains than are given, or a device that refuses the slots.
pub fn open(
    domains: Vec<Domain>,
    models: &[(&Arc<Store>, &Plan)],
) -> Result<(Cache<Npu>, Vec<Applied>)> {
    let mut limits = Limits { total: 0, domains: vec![0; domains.len()] };
    let (mut kept, mut weights, mut classes) = (Vec::new(), 0, 0);
    for (store, plan) in models {
        let own = plan.limits();
        let known = domains.len();
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
        let expanded = plan.expand(&store.items(), WeightId(weights), &ids);
        kept.extend(expanded.kept);
        weights += expanded.parts.len() as u32;
        classes += ids.len() as u32;
    }
    let cache = Cache::new(Npu::new(domains), limits, Box::new(PinnedRing::new(&kept)));
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
    let applied = plan.apply(&store.items(), cache)?;
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
    let order: Vec<WeightId> = (0..weights as u32).map(WeightId).collect();
    let policy: Box<dyn Policy> = match policy {
        // Without a plan nothing is pinned by name; on a known order this is the same optimum.
        PolicyKind::PinnedRing | PolicyKind::NextUse => Box::new(NextUse::cyclic(&order)),
        PolicyKind::Lru => Box::new(Lru::new()),
        PolicyKind::Lfu => Box::new(Lfu::new(weights.saturating_mul(4).min(1 << 20) as u32)),
        PolicyKind::S3Fifo => Box::new(S3Fifo::new()),
    };
    Cache::new(Npu::new(vec![domain]), Limits::single(budget), policy)
}
