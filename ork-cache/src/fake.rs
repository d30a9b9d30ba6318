//! A device without a device: it keeps its own ledger and checks its caller.
//!
//! Used by tests, loom models, examples and wherever the cache should run without bytes. The
//! ledger shares nothing with the cache's accounting, so a cache that frees late or creates early
//! is caught here and not believed.

use crate::backend::Backend;
use crate::error::Cause;
use crate::ids::{DomainId, WeightId};
use crate::sync::{Arc, Mutex, MutexGuard, lock};

/// What the fake device has seen.
///
/// ```
/// # use ork_cache::core::{Home, Limits, WeightSpec};
/// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
/// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
/// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let weight = cache.attach(&[page])?;
/// drop(cache.acquire(weight)?);
/// let watch = cache.backend().watch();
/// drop(cache);
/// let ledger = watch.ledger();
/// assert_eq!((ledger.created, ledger.freed, ledger.live), (1, 1, 0));
/// assert_eq!(ledger.closed, [0]); // once, and after the last buffer
/// assert!(ledger.broken.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Bytes that exist.
    pub live: u64,
    /// The most that existed at once.
    pub peak: u64,
    /// Buffers created.
    pub created: u64,
    /// Buffers freed.
    pub freed: u64,
    /// Copies made.
    pub copies: u64,
    /// How often the device was closed, and how many bytes existed then.
    pub closed: Vec<u64>,
    /// Rules that the caller broke, in words.
    pub broken: Vec<String>,
    budget: u64,
    working: Option<DomainId>,
    failing: Vec<(WeightId, u32)>,
    refuse_create: u32,
    refuse_free: u32,
    slow: bool,
    /// Domains of memory calls under way.
    calls: Vec<DomainId>,
}

/// A fake device with a budget; a handle, clones share the ledger but only the first closes it.
///
/// ```
/// use ork_cache::DomainId;
/// use ork_cache::backend::Backend;
/// use ork_cache::fake::Fake;
///
/// let device = Fake::new(4096);
/// let _first = device.create(DomainId(0), 4096);
/// let _more = device.create(DomainId(0), 4096); // a cache that does this is found out
/// assert_eq!(device.watch().ledger().broken, ["8192 bytes exist of 4096"]);
/// ```
#[derive(Debug)]
pub struct Fake {
    ledger: Watch,
}

/// A view of the ledger that outlives the device.
///
/// ```
/// # use ork_cache::core::{Home, Limits, WeightSpec};
/// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
/// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
/// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let watch = cache.backend().watch();
/// drop(cache);
/// assert_eq!(watch.ledger().closed.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Watch(Arc<Mutex<Ledger>>);

/// A buffer of a [`Fake`].
///
/// ```
/// # use ork_cache::core::{Home, Limits, WeightSpec};
/// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
/// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
/// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let weight = cache.attach(&[page])?;
/// let pinned = cache.acquire(weight)?;
/// assert_eq!((pinned.content(), pinned.bytes()), (Some(weight), 4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FakeBuffer {
    domain: DomainId,
    bytes: u64,
    copied: Option<WeightId>,
    published: bool,
}

/// The failure a [`Fake`] was told to answer with.
#[derive(Debug, thiserror::Error)]
#[error("the fake device was told to fail: {0}")]
pub struct Told(&'static str);

impl Fake {
    /// A device of `budget` bytes over all domains.
    pub fn new(budget: u64) -> Fake {
        let ledger = Ledger { budget, ..Ledger::default() };
        Fake { ledger: Watch(Arc::new(Mutex::new(ledger))) }
    }

    /// The same device, whose memory calls take a while: [`Watch::work`] meets those under way.
    ///
    /// ```
    /// use ork_cache::fake::Fake;
    ///
    /// let device = Fake::new(4096).with_slow_calls();
    /// assert!(device.watch().ledger().broken.is_empty());
    /// ```
    pub fn with_slow_calls(self) -> Fake {
        lock(&self.ledger.0).slow = true;
        self
    }

    /// Begins a memory call; what it returns ends it.
    fn call(&self, domain: DomainId) -> MutexGuard<'_, Ledger> {
        let mut ledger = lock(&self.ledger.0);
        ledger.memory_call(domain);
        if !ledger.slow {
            return ledger;
        }
        ledger.calls.push(domain);
        drop(ledger);
        let mut ledger = lock(&self.ledger.0);
        if let Some(at) = ledger.calls.iter().position(|&call| call == domain) {
            ledger.calls.swap_remove(at);
        }
        ledger
    }

    /// A view of the ledger, to be read after the cache is gone or while it works.
    pub fn watch(&self) -> Watch {
        self.ledger.clone()
    }
}

impl Watch {
    /// The ledger as of now.
    pub fn ledger(&self) -> Ledger {
        lock(&self.0).clone()
    }

    /// The next `times` copies of `weight` fail.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let weight = cache.attach(&[page])?;
    /// cache.backend().watch().fail_copies(weight, 1);
    /// assert!(cache.acquire(weight).is_err());
    /// assert!(cache.acquire(weight).is_ok()); // the next try is another load
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fail_copies(&self, weight: WeightId, times: u32) {
        lock(&self.0).failing.push((weight, times));
    }

    /// The next `times` creates fail.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let weight = cache.attach(&[page])?;
    /// cache.backend().watch().refuse_creates(1);
    /// assert!(cache.acquire(weight).is_err());
    /// assert_eq!(cache.stats().bytes_now, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refuse_creates(&self, times: u32) {
        lock(&self.0).refuse_create = times;
    }

    /// The next `times` frees fail; the bytes stay.
    pub fn refuse_frees(&self, times: u32) {
        lock(&self.0).refuse_free = times;
    }

    /// Jobs of `domain` run from now on (`None`: no jobs): memory calls of others are wrong.
    ///
    /// ```
    /// # use ork_cache::core::{Home, Limits, WeightSpec};
    /// # use ork_cache::{Cache, DomainId, WeightId, fake::Fake, policy::Lru};
    /// # let cache = Cache::new(Fake::new(16384), Limits::single(16384), Box::new(Lru::new()));
    /// # let page = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
    /// let weight = cache.attach(&[page])?;
    /// let watch = cache.backend().watch();
    /// watch.work(Some(DomainId(1)));
    /// drop(cache.acquire(weight)?); // nobody told the cache, so it calls
    /// assert_eq!(watch.ledger().broken.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn work(&self, domain: Option<DomainId>) {
        let mut ledger = lock(&self.0);
        if let Some(working) = domain
            && let Some(&call) = ledger.calls.iter().find(|&&call| call != working)
        {
            ledger.broken.push(format!("{working} begins to work during a memory call in {call}"));
        }
        ledger.working = domain;
    }
}

impl Ledger {
    fn memory_call(&mut self, domain: DomainId) {
        if let Some(working) = self.working.filter(|&w| w != domain) {
            self.broken.push(format!("memory call in {domain} while {working} works"));
        }
    }
}

impl FakeBuffer {
    /// The weight whose bytes were copied in last and handed to the NPU.
    pub fn content(&self) -> Option<WeightId> {
        self.copied.filter(|_| self.published)
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Backend for Fake {
    type Buffer = FakeBuffer;

    fn create(&self, domain: DomainId, bytes: u64) -> Result<FakeBuffer, Cause> {
        let mut ledger = self.call(domain);
        if ledger.refuse_create > 0 {
            ledger.refuse_create -= 1;
            return Err(std::sync::Arc::new(Told("create")));
        }
        ledger.live += bytes;
        ledger.peak = ledger.peak.max(ledger.live);
        ledger.created += 1;
        if ledger.live > ledger.budget {
            let text = format!("{} bytes exist of {}", ledger.live, ledger.budget);
            ledger.broken.push(text);
        }
        Ok(FakeBuffer { domain, bytes, copied: None, published: false })
    }

    fn copy(&self, buffer: &mut FakeBuffer, weight: WeightId) -> Result<(), Cause> {
        buffer.published = false;
        buffer.copied = None;
        let mut ledger = lock(&self.ledger.0);
        ledger.copies += 1;
        if let Some((_, times)) =
            ledger.failing.iter_mut().find(|(w, times)| *w == weight && *times > 0)
        {
            *times -= 1;
            return Err(std::sync::Arc::new(Told("copy")));
        }
        buffer.copied = Some(weight);
        Ok(())
    }

    fn publish(&self, buffer: &mut FakeBuffer) -> Result<(), Cause> {
        drop(self.call(buffer.domain));
        buffer.published = true;
        Ok(())
    }

    fn free(&self, buffer: FakeBuffer) -> Result<(), Cause> {
        let mut ledger = self.call(buffer.domain);
        if ledger.refuse_free > 0 {
            ledger.refuse_free -= 1;
            return Err(std::sync::Arc::new(Told("free")));
        }
        ledger.live -= buffer.bytes;
        ledger.freed += 1;
        Ok(())
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let mut ledger = lock(&self.ledger.0);
        let live = ledger.live;
        ledger.closed.push(live);
    }
}
