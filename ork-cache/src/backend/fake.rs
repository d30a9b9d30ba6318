//! A device without a device: it keeps its own ledger and checks its caller.
//!
//! The ledger shares nothing with the cache's accounting, so a cache that frees late or creates early
//! is caught here and not believed.

use crate::backend::Backend;
use crate::cache::Pinned;
use crate::error::Cause;
use crate::ids::{DomainId, WeightId};
use crate::residency::Purpose;
use crate::sync::{Arc, Mutex, MutexGuard, lock};

/// What the fake device has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// Bytes that exist.
    pub(crate) live: u64,
    /// The most that existed at once.
    pub(crate) peak: u64,
    /// Buffers created.
    pub(crate) created: u64,
    /// Buffers freed.
    pub(crate) freed: u64,
    /// Copies made.
    pub(crate) copies: u64,
    /// How often the device was closed, and how many bytes existed then.
    pub(crate) closed: Vec<u64>,
    /// Rules that the caller broke, in words.
    pub(crate) broken: Vec<String>,
    budget: u64,
    working: Option<DomainId>,
    failing: Vec<(WeightId, u32)>,
    refuse_create: u32,
    refuse_free: u32,
    refuse_sync: u32,
    slow: bool,
    /// Domains of memory calls under way.
    calls: Vec<DomainId>,
}

/// A fake device with a budget; a handle, clones share the ledger but only the first closes it.
#[derive(Debug)]
pub(crate) struct Fake {
    ledger: Watch,
}

/// A view of the ledger that outlives the device.
#[derive(Clone, Debug)]
pub(crate) struct Watch(Arc<Mutex<Ledger>>);

/// Memory of a [`Fake`].
#[derive(Debug)]
pub(crate) struct FakeMemory {
    domain: DomainId,
    bytes: u64,
    copied: Option<WeightId>,
}

/// The same once the NPU has been handed it.
#[derive(Debug)]
pub(crate) struct Synced(FakeMemory);

/// The failure a [`Fake`] was told to answer with.
#[derive(Debug, thiserror::Error)]
#[error("the fake device was told to fail: {0}")]
pub(crate) struct Told(&'static str);

impl Fake {
    /// A device of `budget` bytes over all domains.
    pub(crate) fn new(budget: u64) -> Fake {
        let ledger = Ledger { budget, ..Ledger::default() };
        Fake { ledger: Watch(Arc::new(Mutex::new(ledger))) }
    }

    /// The same device, whose memory calls take a while: [`Watch::work`] meets those under way.
    #[cfg(loom)]
    pub(crate) fn with_slow_calls(self) -> Fake {
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
    pub(crate) fn watch(&self) -> Watch {
        self.ledger.clone()
    }
}

impl Watch {
    /// The ledger as of now.
    pub(crate) fn ledger(&self) -> Ledger {
        lock(&self.0).clone()
    }

    /// The next `times` copies of `weight` fail.
    pub(crate) fn fail_copies(&self, weight: WeightId, times: u32) {
        lock(&self.0).failing.push((weight, times));
    }

    /// The next `times` creates fail.
    pub(crate) fn refuse_creates(&self, times: u32) {
        lock(&self.0).refuse_create = times;
    }

    /// The next `times` syncs for the device fail.
    pub(crate) fn refuse_syncs(&self, times: u32) {
        lock(&self.0).refuse_sync = times;
    }

    /// The next `times` frees fail; the bytes stay.
    pub(crate) fn refuse_frees(&self, times: u32) {
        lock(&self.0).refuse_free = times;
    }

    /// Jobs of `domain` run from now on (`None`: no jobs): memory calls of others are wrong.
    pub(crate) fn work(&self, domain: Option<DomainId>) {
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

impl Pinned<Fake> {
    /// The weight whose bytes were copied in last and handed to the NPU.
    pub(crate) fn content(&self) -> Option<WeightId> {
        self.memory()?.0.copied
    }

    /// Bytes of its memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory().map_or(0, |memory| memory.0.bytes)
    }
}

impl Backend for Fake {
    type Host = FakeMemory;
    type Device = Synced;

    fn create(&self, domain: DomainId, bytes: u64, _weight: WeightId) -> Result<FakeMemory, Cause> {
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
        Ok(FakeMemory { domain, bytes, copied: None })
    }

    fn create_slots(
        &self,
        domain: DomainId,
        bytes: u64,
        count: usize,
    ) -> (Vec<FakeMemory>, Option<Cause>) {
        let mut slots = Vec::new();
        for _ in 0..count {
            match self.create(domain, bytes, WeightId(0)) {
                Ok(slot) => slots.push(slot),
                Err(cause) => return (slots, Some(cause)),
            }
        }
        (slots, None)
    }

    fn copy(
        &self,
        memory: &mut FakeMemory,
        weight: WeightId,
        _purpose: Purpose,
    ) -> Result<(), Cause> {
        memory.copied = None;
        let mut ledger = lock(&self.ledger.0);
        ledger.copies += 1;
        if let Some((_, times)) =
            ledger.failing.iter_mut().find(|(w, times)| *w == weight && *times > 0)
        {
            *times -= 1;
            return Err(std::sync::Arc::new(Told("copy")));
        }
        memory.copied = Some(weight);
        Ok(())
    }

    fn sync_for_device(&self, memory: FakeMemory) -> Result<Synced, (FakeMemory, Cause)> {
        let mut ledger = self.call(memory.domain);
        if ledger.refuse_sync > 0 {
            ledger.refuse_sync -= 1;
            return Err((memory, std::sync::Arc::new(Told("sync"))));
        }
        Ok(Synced(memory))
    }

    fn reclaim(&self, memory: Synced) -> Result<FakeMemory, (Synced, Cause)> {
        Ok(memory.0)
    }

    fn free(&self, memory: FakeMemory) -> Result<(), Cause> {
        let mut ledger = self.call(memory.domain);
        if ledger.refuse_free > 0 {
            ledger.refuse_free -= 1;
            return Err(std::sync::Arc::new(Told("free")));
        }
        ledger.live -= memory.bytes;
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
