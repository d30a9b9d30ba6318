//! The cache on a device: buffers in IOMMU domains, filled from packs and models.

mod attach;
mod columns;
mod placement;
mod store;

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rknpu::{Buffer, Domain, Host, Layout, OnDevice, WeightRef};

pub use attach::{Opened, attach, attach_on_demand, cache_on_demand, open, open_planned};
pub use placement::{Note, Setup, scratch_bytes};
pub use store::{Given, Store, StoreError};

use crate::backend::Backend;
use crate::cache::Pinned;
use crate::error::{Cause, Error, Result};
use crate::ids::{DomainId, WeightId};
use crate::prefetch::WORKER;
use crate::trace::Recorder;

/// Track of loads by a prefetcher.
pub const PREFETCH: &str = "prefetch";
/// Track of loads by a use that had to wait for its weight.
pub const DEMAND: &str = "loads on demand";
/// Counter of bytes mapped for weights and scratch.
pub const MEMORY: &str = "device memory";

/// Domains of one device, and where the weights of each attached model come from.
///
/// ```
/// use std::sync::Arc;
///
/// use ork_cache::npu::{self, Setup, Store};
/// use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// # for layer in 0..64 {
/// #     let name = format!("blk.{layer}.ffn_up.weight");
/// #     writer.add(&name, 64, 64, Dtype::Int8, &[layer as u8; 4096], &[0.5; 64])?;
/// # }
/// # writer.finish()?;
/// // A pack of 64 weights of 4 KiB, through a budget of half as much, scratch included.
/// let store = Arc::new(Store::from_pack(Pack::open(&path)?));
/// let device = rknpu::Device::simulated(Default::default())?;
/// let setup = Setup { rows: 4, ..Setup::new(128 << 10) };
/// let opened = npu::open(&device, &[store], &setup)?;
/// let (cache, model) = (&opened.cache, &opened.models[0]);
///
/// let domain = &cache.backend().domains()[0];
/// let limits = opened.limits(0, rknpu::Precision::Int8).expect("there are int8 weights");
/// let mut matmul = rknpu::Matmul::int8(domain, &device.cores()?, limits)?;
/// let mut out = vec![0; 4 * 64];
/// for part in &model.parts {
///     let pinned = cache.acquire(part.weight)?;
///     matmul.run(&pinned.weight_ref()?, &[1; 4 * 64], &mut out)?;
///     assert_eq!(out[0], 64 * part.item as i32);
/// }
/// assert!(domain.stats().peak <= setup.budget);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Npu {
    domains: Vec<Domain>,
    origins: RwLock<Vec<Option<Origin>>>,
    /// Held while ids are given out, so that ids and origins agree.
    attaching: Mutex<()>,
    recorder: Option<Arc<Recorder>>,
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
    Device(Buffer<OnDevice>),
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
        let (origins, attaching) = (RwLock::default(), Mutex::default());
        Npu { domains, origins, attaching, recorder: None }
    }

    /// Records every load ([`PREFETCH`], [`DEMAND`]) and the memory that is mapped ([`MEMORY`]).
    pub fn with_recorder(mut self, recorder: Option<Arc<Recorder>>) -> Npu {
        self.recorder = recorder;
        self
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

    fn record_load(&self, store: &Store, item: usize, ahead: bool, since: Duration) {
        let Some(recorder) = &self.recorder else { return };
        let track = recorder.track(if ahead { PREFETCH } else { DEMAND });
        let name = store.items().get(item).map_or("", |item| &item.name);
        recorder.span(track, name, since, recorder.now().saturating_sub(since));
    }

    fn record_memory(&self) {
        if let Some(recorder) = &self.recorder {
            let used = self.domains.iter().map(|domain| domain.stats().used).sum();
            recorder.counter(MEMORY, recorder.now(), used);
        }
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
        self.record_memory();
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
        let since = self.recorder.as_ref().map_or(Duration::ZERO, |recorder| recorder.now());
        // A load ahead runs beside cores that compute and has time; one on demand, as the first of
        // every resident weight, has somebody waiting and the other threads idle.
        let ahead = std::thread::current().name() == Some(WORKER);
        let load = if ahead { Store::load } else { Store::load_parallel };
        let loaded = load(&store, item, column, &layout, host.as_mut_slice());
        self.record_load(&store, item, ahead, since);
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
        self.record_memory();
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
