//! Device memory for the weight cache: buffers of the NPU's domains, filled from a source.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ork_cache::backend::Backend;
use ork_cache::trace::Recorder;
use ork_cache::{Cause, DomainId, WeightId};
use rknpu::buffer::{Device as OnDevice, Host};
use rknpu::{Buffer, Domain, Layout, WeightRef};

use super::columns::Columns;
use super::placement::Placed;
use super::source::Source;
use crate::error::Error;

/// Name of the prefetcher's thread, by which its loads are told from those on demand.
const PREFETCH_THREAD: &str = "ork-prefetch";

/// Track of loads by the prefetcher.
pub const PREFETCH: &str = "prefetch";
/// Track of loads by a job that had to wait for its weight.
pub const DEMAND: &str = "loads on demand";
/// Counter of bytes of device memory that weights take.
pub const MEMORY: &str = "weights in device memory";

/// Domains of one device, and where each weight of the cache comes from.
#[derive(Debug)]
pub struct Npu {
    /// By the cache's number.
    domains: Vec<Domain>,
    /// By the cache's number.
    weights: OnceLock<Vec<Origin>>,
    /// Bytes that weights take now.
    bytes: AtomicU64,
    recorder: Option<Arc<Recorder>>,
}

/// Where a weight of the cache comes from.
#[derive(Debug)]
struct Origin {
    source: Arc<Source>,
    index: usize,
    columns: Columns,
}

/// A piece of device memory. Empty only while it is being handed over, and after a failure in which
/// the driver kept it.
#[derive(Debug, Default)]
pub enum Slot {
    /// The CPU's.
    Host(Buffer<Host>),
    /// The NPU's.
    Device(Buffer<OnDevice>),
    /// Nobody's.
    #[default]
    Gone,
}

/// A slot that a failed call has left without a buffer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the device memory of this weight is gone after an earlier failure")]
struct Lost;

impl Slot {
    fn len(&self) -> u64 {
        match self {
            Slot::Host(buffer) => buffer.len() as u64,
            Slot::Device(buffer) => buffer.len() as u64,
            Slot::Gone => 0,
        }
    }

    /// The weight in this slot.
    ///
    /// # Errors
    /// [`Error::Device`] when it is larger than the slot; [`Error::Source`] when the slot is not the
    /// NPU's.
    pub fn weight(&self, layout: Layout) -> Result<WeightRef<'_>, Error> {
        match self {
            Slot::Device(buffer) => Ok(WeightRef::new(buffer, 0, layout)?),
            Slot::Host(_) | Slot::Gone => Err(Error::Source(cause(Lost))),
        }
    }
}

impl Npu {
    /// Domains in the cache's order.
    pub fn new(domains: Vec<Domain>, recorder: Option<Arc<Recorder>>) -> Npu {
        Npu { domains, weights: OnceLock::new(), bytes: AtomicU64::new(0), recorder }
    }

    /// Says where the weights come from that were attached to the cache. To be called once, before
    /// any is acquired.
    pub fn assign(&self, sources: &[Arc<Source>], placed: &[Placed]) {
        let mut weights = Vec::new();
        for (source, placed) in sources.iter().zip(placed) {
            for (index, pieces) in placed.weights.iter().enumerate() {
                weights.extend(pieces.iter().map(|piece| {
                    (piece.weight, Origin { source: source.clone(), index, columns: piece.columns })
                }));
            }
        }
        weights.sort_by_key(|(weight, _)| *weight);
        // A second call would be about the same weights.
        let _ = self.weights.set(weights.into_iter().map(|(_, origin)| origin).collect());
    }

    /// The domains.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    fn record(&self, bytes: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.counter(MEMORY, recorder.now(), bytes);
        }
    }
}

impl Backend for Npu {
    type Buffer = Slot;

    fn create(&self, domain: DomainId, bytes: u64) -> Result<Slot, Cause> {
        let domain = self.domains.get(domain.index()).ok_or_else(|| cause(Lost))?;
        let buffer = domain.alloc(usize::try_from(bytes).map_err(cause)?).map_err(cause)?;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.record(before + bytes);
        Ok(Slot::Host(buffer))
    }

    fn copy(&self, slot: &mut Slot, weight: WeightId) -> Result<(), Cause> {
        let since = self.recorder.as_ref().map(|recorder| recorder.now());
        let origin = self.weights.get().and_then(|all| all.get(weight.index()));
        let Origin { source, index, columns } = origin.ok_or_else(|| cause(Lost))?;
        let mut buffer = match std::mem::take(slot) {
            Slot::Host(buffer) => buffer,
            // Its old contents are of no use to anyone.
            Slot::Device(buffer) => buffer.reclaim(),
            Slot::Gone => return Err(cause(Lost)),
        };
        let loaded = source.load(*index, columns, buffer.as_mut_slice());
        *slot = Slot::Host(buffer);
        if let (Some(recorder), Some(since)) = (&self.recorder, since) {
            let ahead = std::thread::current().name() == Some(PREFETCH_THREAD);
            let track = recorder.track(if ahead { PREFETCH } else { DEMAND });
            let name = source.items().get(*index).map_or("", |item| &item.name);
            recorder.span(track, name, since, recorder.now().saturating_sub(since));
        }
        loaded
    }

    fn publish(&self, slot: &mut Slot) -> Result<(), Cause> {
        match std::mem::take(slot) {
            Slot::Host(buffer) => match buffer.to_device() {
                Ok(buffer) => *slot = Slot::Device(buffer),
                Err(unchanged) => {
                    *slot = Slot::Host(unchanged.buffer);
                    return Err(cause(unchanged.error));
                }
            },
            other => *slot = other,
        }
        Ok(())
    }

    fn free(&self, slot: Slot) -> Result<(), Cause> {
        // What the driver says to a failed free is kept in the device's health.
        let bytes = slot.len();
        drop(slot);
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.record(before.saturating_sub(bytes));
        Ok(())
    }
}

fn cause(error: impl std::error::Error + Send + Sync + 'static) -> Cause {
    Arc::new(error)
}
