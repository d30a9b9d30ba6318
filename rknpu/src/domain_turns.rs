//! The rule "nothing of domain B while A works", without the waiting.
//!
//! On an exclusive driver a call that names another domain than the one at work stalls for up to 6 s and then
//! fails. So domains take turns: any number of callers may be in one, a change waits until all have left, and
//! who came first goes first. [`Device`](crate::Device) keeps to it for everything that it does; whoever orders
//! work above it, a cache for instance, keeps a [`DomainTurns`] under a lock of its own and never runs into that
//! wait with a lock held.
//!
//! ```
//! use rknpu::domain_turns::DomainTurns;
//! use std::sync::{Condvar, Mutex};
//!
//! let (rule, changed) = (Mutex::new(DomainTurns::new(true)), Condvar::new());
//! let work = |domain| {
//!     let mut state = rule.lock().unwrap();
//!     let ticket = state.queue();
//!     while !state.visit(&ticket, domain) {
//!         state = changed.wait(state).unwrap();
//!     }
//!     drop(state);
//!     changed.notify_all(); // the next in the queue may want the same domain
//!     // ... work in it ...
//!     if rule.lock().unwrap().leave() {
//!         changed.notify_all();
//!     }
//! };
//! std::thread::scope(|scope| {
//!     scope.spawn(|| work(1));
//!     work(2);
//! });
//! ```

use std::collections::VecDeque;

/// Who is in which domain. A pure state: waiting is the caller's.
#[derive(Debug)]
pub struct DomainTurns {
    exclusive: bool,
    current: Option<u32>,
    visits: u32,
    calls: u32,
    queue: VecDeque<u64>,
    tickets: u64,
}

/// A place in the queue of visits.
#[derive(Debug)]
#[must_use = "the queue waits for whoever holds it"]
pub struct Ticket(u64);

impl DomainTurns {
    /// Nobody is anywhere. Of a driver that is not `exclusive`, every domain admits everybody; see
    /// [`Spaces`](crate::driver::Spaces).
    pub fn new(exclusive: bool) -> DomainTurns {
        let queue = VecDeque::new();
        DomainTurns { exclusive, current: None, visits: 0, calls: 0, queue, tickets: 0 }
    }

    /// Takes the last place in the queue.
    pub fn queue(&mut self) -> Ticket {
        self.tickets += 1;
        self.queue.push_back(self.tickets);
        Ticket(self.tickets)
    }

    /// Gives a place up.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.queue.retain(|place| *place != ticket.0);
    }

    /// Begins the visit of whoever holds `ticket`, when it is first in the queue and `domain` admits it.
    pub fn visit(&mut self, ticket: &Ticket, domain: u32) -> bool {
        if self.queue.front() != Some(&ticket.0) || !self.admits(domain) {
            return false;
        }
        self.queue.pop_front();
        self.current = Some(domain);
        self.visits += 1;
        true
    }

    /// Begins a call in `domain`, unless another is at work. Calls do not queue: a visitor's own must get
    /// through while others wait for their visit.
    pub fn call(&mut self, domain: u32) -> bool {
        let admitted = self.admits(domain);
        if admitted {
            self.current = Some(domain);
            self.calls += 1;
        }
        admitted
    }

    /// As [`DomainTurns::call`], for calls ahead of need, which let queued visits go first.
    pub fn call_ahead(&mut self, domain: u32) -> bool {
        (self.visits > 0 || self.queue.is_empty()) && self.call(domain)
    }

    /// Ends a call; `true` when the domain is left and others may come.
    pub fn end_call(&mut self) -> bool {
        self.calls = self.calls.saturating_sub(1);
        self.is_free()
    }

    /// Ends a visit; `true` when the domain is left and others may come.
    pub fn leave(&mut self) -> bool {
        self.visits = self.visits.saturating_sub(1);
        self.is_free()
    }

    /// Whether nobody is anywhere.
    pub(crate) fn is_free(&self) -> bool {
        self.visits == 0 && self.calls == 0
    }

    /// Whether a call in `domain` could begin now.
    pub fn admits(&self, domain: u32) -> bool {
        !self.exclusive || self.is_free() || self.current == Some(domain)
    }

    /// Whether only one domain is at work at a time.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// The domain that was entered last.
    pub(crate) fn current(&self) -> Option<u32> {
        self.current
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_shared_and_excludes_the_others() {
        let mut rule = DomainTurns::new(true);
        let first = rule.queue();
        assert!(rule.visit(&first, 0));
        assert!(rule.call(0), "a visitor's own call");
        assert!(!rule.call(1));
        let (other, again) = (rule.queue(), rule.queue());
        assert!(!rule.visit(&other, 1));
        assert!(!rule.visit(&again, 0), "must not overtake the one who waits");
        assert!(!rule.end_call());
        assert!(rule.leave());
        assert!(!rule.call_ahead(0), "what is ahead of need lets the queue go first");
        assert!(rule.visit(&other, 1));
        assert!(rule.call_ahead(1) && !rule.end_call());
        assert!(rule.leave());
        assert!(rule.visit(&again, 0));
        assert_eq!(rule.current(), Some(0));
    }

    #[test]
    fn a_place_that_is_given_up_holds_nobody_up() {
        let mut rule = DomainTurns::new(true);
        let (first, second) = (rule.queue(), rule.queue());
        rule.cancel(first);
        assert!(rule.visit(&second, 3));
    }

    #[test]
    fn spaces_that_are_not_exclusive_are_entered_side_by_side() {
        let mut rule = DomainTurns::new(false);
        let (first, second) = (rule.queue(), rule.queue());
        assert!(rule.visit(&first, 0) && rule.visit(&second, 1) && rule.call(2));
        assert!(!rule.leave() && !rule.leave() && rule.end_call());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    struct World {
        rule: Mutex<DomainTurns>,
        changed: Condvar,
        inside: [AtomicUsize; 2],
    }

    impl World {
        /// In a domain: nobody is in the other.
        fn work(&self, domain: u32) {
            let (own, other) = (domain as usize, 1 - domain as usize);
            self.inside[own].fetch_add(1, Ordering::SeqCst);
            assert_eq!(self.inside[other].load(Ordering::SeqCst), 0, "both domains at work");
            self.inside[own].fetch_sub(1, Ordering::SeqCst);
        }

        fn visit(&self, domain: u32) {
            let mut state = self.rule.lock().unwrap();
            let ticket = state.queue();
            while !state.visit(&ticket, domain) {
                state = self.changed.wait(state).unwrap();
            }
            drop(state);
            self.changed.notify_all();
            self.work(domain);
            // Its own call gets through, whoever waits.
            assert!(self.rule.lock().unwrap().call(domain));
            self.work(domain);
            self.rule.lock().unwrap().end_call();
            if self.rule.lock().unwrap().leave() {
                self.changed.notify_all();
            }
        }

        fn call(&self, domain: u32) {
            let mut state = self.rule.lock().unwrap();
            while !state.call(domain) {
                state = self.changed.wait(state).unwrap();
            }
            drop(state);
            self.work(domain);
            if self.rule.lock().unwrap().end_call() {
                self.changed.notify_all();
            }
        }
    }

    /// Visits and calls of two domains on three threads: never both at work, and everybody gets through.
    #[test]
    fn never_two_domains_and_nobody_is_left_waiting() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let world = Arc::new(World {
                rule: Mutex::new(DomainTurns::new(true)),
                changed: Condvar::new(),
                inside: [AtomicUsize::new(0), AtomicUsize::new(0)],
            });
            let threads = [0u32, 1].map(|domain| {
                let world = world.clone();
                thread::spawn(move || if domain == 0 { world.visit(0) } else { world.call(1) })
            });
            world.visit(1);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(world.rule.lock().unwrap().is_free());
        });
    }
}
