//! The ledger of device memory: bytes that exist in each domain, not what is wanted.

use crate::ids::DomainId;

/// How much device memory may exist at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes over all domains.
    pub total: u64,
    /// Bytes of each domain; a weight lies in exactly one.
    pub domains: Vec<u64>,
}

impl Limits {
    /// One domain with a budget of `bytes`.
    pub fn single(bytes: u64) -> Limits {
        Limits { total: bytes, domains: vec![bytes] }
    }

    /// What `domain` may hold when all others are empty; 0 for an unknown domain.
    pub(crate) fn of(&self, domain: DomainId) -> u64 {
        self.domains.get(domain.index()).map_or(0, |&d| d.min(self.total))
    }
}

/// The ledger: bytes are entered before the device is asked for them and struck off after the
/// device has really freed them, so the physical sum never exceeds the limits.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) limits: Limits,
    used: Vec<u64>,
    leaving: Vec<u64>,
    total: u64,
    peak: u64,
}

impl Ledger {
    pub(super) fn new(limits: Limits) -> Ledger {
        let domains = limits.domains.len();
        Ledger { limits, used: vec![0; domains], leaving: vec![0; domains], total: 0, peak: 0 }
    }

    pub(super) fn used(&self, domain: DomainId) -> u64 {
        self.used[domain.index()]
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Bytes that can still be created in `domain` now.
    pub(super) fn left(&self, domain: DomainId) -> u64 {
        let own = self.limits.domains[domain.index()].saturating_sub(self.used(domain));
        own.min(self.limits.total.saturating_sub(self.total))
    }

    /// Bytes that can be created in `domain` once all frees under way are done.
    pub(super) fn left_soon(&self, domain: DomainId) -> u64 {
        let i = domain.index();
        let own = self.limits.domains[i].saturating_sub(self.used[i] - self.leaving[i]);
        let leaving: u64 = self.leaving.iter().sum();
        own.min(self.limits.total.saturating_sub(self.total - leaving))
    }

    pub(super) fn enter(&mut self, domain: DomainId, bytes: u64) {
        self.used[domain.index()] += bytes;
        self.total += bytes;
        self.peak = self.peak.max(self.total);
    }

    /// A free of `bytes` has begun: they still exist.
    pub(super) fn leaving(&mut self, domain: DomainId, bytes: u64) {
        self.leaving[domain.index()] += bytes;
    }

    /// The free is done.
    pub(super) fn left_for_good(&mut self, domain: DomainId, bytes: u64) {
        self.leaving[domain.index()] -= bytes;
        self.strike(domain, bytes);
    }

    /// The free failed: the bytes stay.
    pub(super) fn stays(&mut self, domain: DomainId, bytes: u64) {
        self.leaving[domain.index()] -= bytes;
    }

    /// Bytes that were entered but never came to exist.
    pub(super) fn strike(&mut self, domain: DomainId, bytes: u64) {
        self.used[domain.index()] -= bytes;
        self.total -= bytes;
    }
}
