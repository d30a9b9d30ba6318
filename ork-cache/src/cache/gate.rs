//! One domain at a time: memory calls and passes of different domains never overlap.
//!
//! On the device a call that names another domain than the running one stalls until the running
//! one's jobs are done (up to 6 s, then EINVAL). Here it waits before the call is made.

use std::collections::VecDeque;

use crate::ids::DomainId;

/// Who is in which domain. A pure state; waiting is the caller's.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    at: Option<DomainId>,
    visits: u32,
    calls: u32,
    queue: VecDeque<u64>,
    tickets: u64,
}

impl Gate {
    /// Takes a place in the queue of visits.
    pub(super) fn queue(&mut self) -> u64 {
        self.tickets += 1;
        self.queue.push_back(self.tickets);
        self.tickets
    }

    /// Begins the visit of the holder of `ticket`, if it is its turn and `domain` is free.
    pub(super) fn enter(&mut self, ticket: u64, domain: DomainId) -> bool {
        if self.queue.front() != Some(&ticket) || !self.admits(domain) {
            return false;
        }
        self.queue.pop_front();
        self.at = Some(domain);
        self.visits += 1;
        true
    }

    /// Begins a memory call in `domain`, unless another domain is at work. Calls do not queue:
    /// a visitor's own calls must get through while others wait for their visit.
    pub(super) fn call(&mut self, domain: DomainId) -> bool {
        let admitted = self.admits(domain);
        if admitted {
            self.at = Some(domain);
            self.calls += 1;
        }
        admitted
    }

    /// As [`Gate::call`], for calls ahead of need: those wait for visits that are queued.
    pub(crate) fn call_ahead(&mut self, domain: DomainId) -> bool {
        (self.visits > 0 || self.queue.is_empty()) && self.call(domain)
    }

    /// Ends a memory call; `true` when the domain is left and others may come.
    pub(crate) fn end_call(&mut self) -> bool {
        self.calls -= 1;
        self.is_free()
    }

    /// Ends a visit; `true` when the domain is left and others may come.
    pub(super) fn leave(&mut self) -> bool {
        self.visits -= 1;
        self.is_free()
    }

    fn is_free(&self) -> bool {
        self.visits == 0 && self.calls == 0
    }

    /// Whether a call in `domain` could begin now.
    pub(super) fn admits(&self, domain: DomainId) -> bool {
        self.is_free() || self.at == Some(domain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DomainId = DomainId(0);
    const B: DomainId = DomainId(1);

    #[test]
    fn a_domain_is_shared_and_excludes_the_others() {
        let mut gate = Gate::default();
        let first = gate.queue();
        assert!(gate.enter(first, A));
        assert!(gate.call(A), "a visitor's own call");
        assert!(!gate.call(B));
        let other = gate.queue();
        let again = gate.queue();
        assert!(!gate.enter(other, B));
        assert!(!gate.enter(again, A), "must not overtake the one who waits");
        assert!(!gate.end_call());
        assert!(gate.leave());
        assert!(gate.enter(other, B));
        assert!(gate.leave());
        assert!(gate.enter(again, A));
    }
}
