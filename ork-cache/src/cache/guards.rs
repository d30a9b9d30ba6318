//! Guards that callers hold: a pinned weight, and a visit to a domain.

use std::fmt;

use super::{Cache, Shared};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ids::{DomainId, WeightId};
use crate::npu::Npu;
use crate::sync::{Arc, lock};

/// A weight that stays where it is until this is dropped. Owns what it needs, so it may outlive
/// every [`Cache`] handle and move between threads.
#[must_use = "the weight is unpinned at once"]
pub struct Pinned<B: Backend = Npu> {
    /// `None` only while being dropped.
    memory: Option<Arc<B::Device>>,
    shared: Arc<Shared<B>>,
    weight: WeightId,
}

impl<B: Backend> Pinned<B> {
    pub(super) fn new(
        shared: &Arc<Shared<B>>,
        memory: Arc<B::Device>,
        weight: WeightId,
    ) -> Pinned<B> {
        Pinned { memory: Some(memory), shared: shared.clone(), weight }
    }

    /// The weight.
    pub(crate) fn weight(&self) -> WeightId {
        self.weight
    }

    /// Its memory; `None` only while this is being dropped.
    pub(crate) fn memory(&self) -> Option<&B::Device> {
        self.memory.as_deref()
    }
}

impl<B: Backend> fmt::Debug for Pinned<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("weight", &self.weight).finish_non_exhaustive()
    }
}

impl<B: Backend> Drop for Pinned<B> {
    fn drop(&mut self) {
        // First the share of the memory, then the pin: once the pin is gone another thread may
        // want the memory for itself.
        self.memory = None;
        self.shared.unpin(self.weight);
    }
}

/// A visit to one domain: jobs of this domain may run, nothing touches another one.
#[must_use = "the visit ends at once"]
pub struct Visit<B: Backend = Npu> {
    cache: Cache<B>,
    domain: DomainId,
}

impl<B: Backend> Visit<B> {
    pub(super) fn new(cache: &Cache<B>, domain: DomainId) -> Visit<B> {
        Visit { cache: cache.clone(), domain }
    }

    /// The domain visited.
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// As [`Cache::acquire`], for weights of this domain.
    ///
    /// # Errors
    /// Those of [`Cache::acquire`], and a weight of another domain: loading it would have to
    /// wait for this very visit to end.
    pub fn acquire(&self, weight: WeightId) -> Result<Pinned<B>> {
        self.check(weight)?;
        self.cache.acquire(weight)
    }

    /// As [`Visit::acquire`], where that would not wait for a load; else `None`. Whoever holds pins takes
    /// more weights in this way: waiting for room could be waiting for themselves.
    ///
    /// # Errors
    /// Those of [`Visit::acquire`].
    pub fn acquire_ready(&self, weight: WeightId) -> Result<Option<Pinned<B>>> {
        self.check(weight)?;
        self.cache.acquire_ready(weight)
    }

    fn check(&self, weight: WeightId) -> Result<()> {
        let state = lock(&self.cache.shared.state);
        match state.residency.domain_of(weight) {
            Some(wanted) if wanted != self.domain && state.turns.is_exclusive() => {
                Err(Error::OtherDomain { weight, wanted, visited: self.domain })
            }
            _ => Ok(()),
        }
    }
}

impl<B: Backend> fmt::Debug for Visit<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visit").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl<B: Backend> Drop for Visit<B> {
    fn drop(&mut self) {
        let mut state = lock(&self.cache.shared.state);
        if state.turns.leave() {
            self.cache.shared.wake(&mut state);
        }
    }
}
