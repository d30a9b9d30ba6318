//! Guards: a pinned weight, and a visit to a domain.

use std::fmt;
use std::ops::Deref;

use super::{Cache, Shared};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ids::{DomainId, WeightId};
use crate::sync::{Arc, lock};

/// A weight that stays where it is until this is dropped. Owns what it needs, so it may outlive
/// every [`Cache`] handle and move between threads.
///
/// ```
/// # use ork_cache::core::{Home, Limits, WeightSpec};
/// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
/// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
/// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let weight = cache.attach(&[page])?;
/// let pinned = cache.acquire(weight)?;
/// drop(cache);
/// let elsewhere = std::thread::spawn(move || pinned.content());
/// assert_eq!(elsewhere.join().unwrap(), Some(weight));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the weight is unpinned at once"]
pub struct Pinned<B: Backend> {
    /// `None` only while being dropped.
    buffer: Option<Arc<B::Buffer>>,
    shared: Arc<Shared<B>>,
    weight: WeightId,
}

impl<B: Backend> Pinned<B> {
    pub(super) fn new(
        shared: &Arc<Shared<B>>,
        buffer: Arc<B::Buffer>,
        weight: WeightId,
    ) -> Pinned<B> {
        Pinned { buffer: Some(buffer), shared: shared.clone(), weight }
    }

    /// The weight.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let weight = cache.attach(&[page])?;
    /// assert_eq!(cache.acquire(weight)?.weight(), weight);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn weight(&self) -> WeightId {
        self.weight
    }
}

impl<B: Backend> Deref for Pinned<B> {
    type Target = B::Buffer;

    fn deref(&self) -> &B::Buffer {
        // `new` puts it there, and nothing but `drop` takes it, after which nobody can dereference.
        self.buffer.as_deref().expect("the buffer is there until drop")
    }
}

impl<B: Backend> fmt::Debug for Pinned<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("weight", &self.weight).finish_non_exhaustive()
    }
}

impl<B: Backend> Drop for Pinned<B> {
    fn drop(&mut self) {
        // First the share of the buffer, then the pin: once the pin is gone another thread may
        // want the buffer for itself.
        self.buffer = None;
        self.shared.unpin(self.weight);
    }
}

/// A visit to one domain: jobs of this domain may run, nothing touches another one.
///
/// ```
/// # use ork_cache::core::{Home, Limits, WeightSpec};
/// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
/// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
/// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let first = cache.attach(&[page; 2])?;
/// let visit = cache.enter(DomainId(0))?;
/// for weight in [first, WeightId(first.0 + 1)] {
///     let pinned = visit.acquire(weight)?; // and submit the job that reads it
///     assert_eq!(pinned.content(), Some(weight));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the visit ends at once"]
pub struct Visit<B: Backend> {
    cache: Cache<B>,
    domain: DomainId,
}

impl<B: Backend> Visit<B> {
    pub(super) fn new(cache: &Cache<B>, domain: DomainId) -> Visit<B> {
        Visit { cache: cache.clone(), domain }
    }

    /// The domain visited.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// assert_eq!(cache.enter(DomainId(0))?.domain(), DomainId(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// As [`Cache::acquire`], for weights of this domain.
    ///
    /// ```
    /// use ork_cache::core::{Home, Limits, WeightSpec};
    /// use ork_cache::{Cache, DomainId, Error, fake::Fake, policy::Lru};
    ///
    /// let limits = Limits { total: 8192, domains: vec![4096; 2] };
    /// let cache = Cache::new(Fake::new(8192), limits, Box::new(Lru::new()));
    /// let far = cache.attach(&[WeightSpec { bytes: 1, domain: DomainId(1), home: Home::Own }])?;
    /// let visit = cache.enter(DomainId(0))?;
    /// assert!(matches!(visit.acquire(far), Err(Error::OtherDomain { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Cache::acquire`], and a weight of another domain: loading it would have to
    /// wait for this very visit to end.
    pub fn acquire(&self, weight: WeightId) -> Result<Pinned<B>> {
        let wanted = lock(&self.cache.shared.state).core.domain_of(weight);
        match wanted {
            Some(wanted) if wanted != self.domain => {
                Err(Error::OtherDomain { weight, wanted, visited: self.domain })
            }
            _ => self.cache.acquire(weight),
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
        if state.gate.leave() {
            self.cache.shared.wake(&mut state);
        }
    }
}
