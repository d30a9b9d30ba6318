//! The cache on a device: memory in IOMMU domains, filled from packs and models.

mod large_buffers;

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rknpu::buffer::ReadOnly;
use rknpu::{Buffer, Domain, Host, Layout, WeightRef};

use large_buffers::LargeBuffer;

use crate::backend::Backend;
use crate::cache::{Cache, Pinned};
use crate::error::{Cause, Error, Result};
use crate::ids::{DomainId, WeightId};
use crate::plan::Part;
use crate::residency::{Home, PAGE, Purpose};
use crate::store::Store;
use crate::timeline::{DEMAND, MEMORY, PREFETCH, Recorder};

/// Domains of one device, and where the weights of each attached model come from.
#[derive(Debug)]
pub struct Npu {
    domains: Vec<Domain>,
    sources: RwLock<Vec<Option<Source>>>,
    /// Held while ids are given out, so that ids and sources agree.
    attaching: Mutex<()>,
    recorder: Option<Arc<Recorder>>,
}

/// Where one weight of the cache comes from.
#[derive(Clone, Debug)]
struct Source {
    store: Arc<Store>,
    part: Part,
    /// Where it will stay, for a weight that stays.
    piece: Option<Piece>,
}

/// A piece of a large buffer.
#[derive(Clone, Debug)]
struct Piece {
    large: Arc<LargeBuffer>,
    index: usize,
}

/// Memory while it is filled, and what has been written there.
#[derive(Debug)]
pub struct Filling {
    buffer: Buffer<Host>,
    layout: Option<Layout>,
    piece: Option<Piece>,
}

/// Memory with a weight that NPU and CPU may read.
#[derive(Debug)]
pub struct Filled {
    buffer: Buffer<ReadOnly>,
    layout: Layout,
    piece: Option<Piece>,
}

/// Memory that nothing was written to.
#[derive(Debug, thiserror::Error)]
#[error("nothing has been written there")]
struct Nothing;

/// A weight that was attached to the cache but not to the device.
#[derive(Debug, thiserror::Error)]
#[error("{0} has no source")]
struct NoSource(WeightId);

impl Npu {
    /// Over `domains`, which the cache numbers in this order; loads and memory are recorded.
    pub(crate) fn new(domains: Vec<Domain>, recorder: Option<Arc<Recorder>>) -> Npu {
        let (sources, attaching) = (RwLock::default(), Mutex::default());
        Npu { domains, sources, attaching, recorder }
    }

    /// Attaches the parts that `attach` makes known to the cache, all of `store`.
    pub(crate) fn attach<T>(
        &self,
        store: &Arc<Store>,
        attach: impl FnOnce() -> Result<T>,
        parts: impl FnOnce(&T) -> &[Part],
    ) -> Result<T> {
        let _ids = self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
        let attached = attach()?;
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        let parts = parts(&attached);
        for &part in parts {
            if sources.len() <= part.weight.index() {
                sources.resize(part.weight.index() + 1, None);
            }
            let store = store.clone();
            sources[part.weight.index()] = Some(Source { store, part, piece: None });
        }
        for domain in 0..self.domains.len() {
            let stays = |p: &&Part| p.home == Home::Fixed && p.domain.index() == domain;
            let here = || parts.iter().filter(stays);
            let sizes = here().map(|part| part.layout.bytes().next_multiple_of(PAGE) as usize);
            let buffers = large_buffers::large_buffers(sizes).into_iter().map(Arc::new);
            let pieces = buffers.flat_map(|large| {
                (0..large.len()).map(move |index| Piece { large: large.clone(), index })
            });
            for (part, piece) in here().zip(pieces) {
                if let Some(source) = &mut sources[part.weight.index()] {
                    source.piece = Some(piece);
                }
            }
        }
        Ok(attached)
    }

    fn domain(&self, domain: DomainId) -> std::result::Result<&Domain, Cause> {
        let known = self.domains.len();
        let unknown = || cause(Error::UnknownDomain { domain, known });
        self.domains.get(domain.index()).ok_or_else(unknown)
    }

    fn source(&self, weight: WeightId) -> std::result::Result<Source, Cause> {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        let source = sources.get(weight.index()).cloned().flatten();
        source.ok_or_else(|| cause(NoSource(weight)))
    }

    fn record_load(&self, store: &Store, item: usize, purpose: Purpose, since: Duration) {
        let Some(recorder) = &self.recorder else { return };
        let track = recorder.track(if purpose == Purpose::Demand { DEMAND } else { PREFETCH });
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

pub(crate) fn cause(error: impl std::error::Error + Send + Sync + 'static) -> Cause {
    Arc::new(error)
}

impl Backend for Npu {
    type Host = Filling;
    type Device = Filled;

    fn is_exclusive(&self) -> bool {
        let spaces = self.domains.first().map(|domain| domain.device().capabilities().spaces);
        spaces.is_none_or(|spaces| spaces.exclusive)
    }

    fn create(
        &self,
        domain: DomainId,
        bytes: u64,
        weight: WeightId,
    ) -> std::result::Result<Filling, Cause> {
        let (domain, piece) = (self.domain(domain)?, self.source(weight)?.piece);
        let buffer = match &piece {
            Some(Piece { large, index }) => large.take(domain, *index),
            None => domain.alloc(usize::try_from(bytes).map_err(cause)?),
        };
        let buffer = buffer.map_err(cause)?;
        self.record_memory();
        Ok(Filling { buffer, layout: None, piece })
    }

    fn create_slots(
        &self,
        domain: DomainId,
        bytes: u64,
        count: usize,
    ) -> (Vec<Filling>, Option<Cause>) {
        let (domain, bytes) = match (self.domain(domain), usize::try_from(bytes).map_err(cause)) {
            (Ok(domain), Ok(bytes)) => (domain, bytes),
            (Err(cause), _) | (_, Err(cause)) => return (Vec::new(), Some(cause)),
        };
        let (slots, error) = large_buffers::slots(domain, bytes, count);
        self.record_memory();
        let filling = |buffer| Filling { buffer, layout: None, piece: None };
        (slots.into_iter().map(filling).collect(), error.map(cause))
    }

    fn copy(
        &self,
        memory: &mut Filling,
        weight: WeightId,
        purpose: Purpose,
    ) -> std::result::Result<(), Cause> {
        let Source { store, part, .. } = self.source(weight)?;
        let Part { item, column, layout, home, .. } = part;
        let since = self.recorder.as_ref().map_or(Duration::ZERO, |recorder| recorder.now());
        memory.layout = None;
        let out = memory.buffer.as_mut_slice();
        let loaded = store.load_for(purpose, item, column, &layout, out);
        self.record_load(&store, item, purpose, since);
        loaded.map_err(cause)?;
        // What never leaves is not kept in the page cache a second time. Of a weight in parts, others
        // may still be read.
        let whole = store.items().get(item).is_some_and(|all| all.layout == layout);
        if home == Home::Fixed && whole {
            store.stays_loaded(item);
        }
        memory.layout = Some(layout);
        Ok(())
    }

    fn sync_for_device(&self, memory: Filling) -> std::result::Result<Filled, (Filling, Cause)> {
        let Some(layout) = memory.layout else { return Err((memory, cause(Nothing))) };
        let piece = memory.piece;
        match memory.buffer.to_read_only_up_to(layout.bytes()) {
            Ok(buffer) => Ok(Filled { buffer, layout, piece }),
            Err(unchanged) => {
                let memory = Filling { buffer: unchanged.buffer, layout: Some(layout), piece };
                Err((memory, cause(unchanged.error)))
            }
        }
    }

    fn reclaim(&self, memory: Filled) -> std::result::Result<Filling, (Filled, Cause)> {
        let Filled { buffer, layout, piece } = memory;
        match buffer.reclaim() {
            Ok(buffer) => Ok(Filling { buffer, layout: None, piece }),
            Err(unchanged) => {
                let buffer = unchanged.buffer;
                Err((Filled { buffer, layout, piece }, cause(unchanged.error)))
            }
        }
    }

    fn free(&self, memory: Filling) -> std::result::Result<(), Cause> {
        let alone = match &memory.piece {
            Some(Piece { large, index }) => large.give_back(*index, memory.buffer),
            None => Some(memory.buffer),
        };
        let freed = alone.map_or(Ok(()), Buffer::free);
        self.record_memory();
        freed.map_err(|unchanged| cause(unchanged.error))
    }

    fn will_need(&self, weight: WeightId) {
        if let Ok(Source { store, part, .. }) = self.source(weight) {
            store.will_need(part.item);
        }
    }
}

impl Cache {
    /// The domains that the cache's weights are in; [`DomainId`]s count them.
    pub fn domains(&self) -> &[Domain] {
        &self.backend().domains
    }
}

impl Pinned {
    /// The weight as a matmul takes it.
    ///
    /// # Errors
    /// None while the weight is pinned.
    pub fn weight_ref(&self) -> Result<WeightRef<'_>> {
        let load = |cause: Cause| Error::Load { weight: self.weight(), cause };
        let memory = self.memory().ok_or_else(|| load(cause(Nothing)))?;
        WeightRef::new(&memory.buffer, 0, memory.layout).map_err(|error| load(cause(error)))
    }

    /// The weight's bytes, tiled as its layout says, for the CPU: the NPU may read them meanwhile.
    ///
    /// # Errors
    /// None while the weight is pinned.
    pub fn tiles(&self) -> Result<&[u8]> {
        let load = |cause: Cause| Error::Load { weight: self.weight(), cause };
        let memory = self.memory().ok_or_else(|| load(cause(Nothing)))?;
        let len = memory.layout.bytes() as usize;
        Ok(memory.buffer.as_slice().get(..len).unwrap_or_default())
    }
}
