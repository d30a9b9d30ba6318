//! One domain at a time.
//!
//! A domain belongs to the whole device: every call that names one makes the driver switch to it, and
//! wait up to 6 s, then fail, while anything of another domain is queued or running. So whoever works
//! in a domain enters it here first. Many may be in the same domain; a change of domain waits until all
//! have left. Entries are served in order, so that back-to-back work in one domain starves no other.
//!
//! Between int4 and the other precisions the NPU needs a reset, which kills what runs: a change of that
//! *mode* waits in the same way.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::memory::ToFree;

/// What the NPU has last been used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// int8 and fp16, which follow each other freely.
    Wide,
    /// int4.
    Int4,
}

/// A domain, and for jobs the mode that they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) domain: u32,
    pub(crate) mode: Option<Mode>,
}

/// How an entry went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Entered.
    Ready,
    /// Entered alone, into another domain or another mode than the last: let the NPU settle, reset it if
    /// `reset`, then call [`Scheduler::prepared`]. Everybody else waits.
    Prepare { reset: bool },
}

/// The thread that asks already holds another domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WouldDeadlock {
    pub(crate) active: u32,
}

/// What somebody inside does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// Keeps the domain active between jobs; nothing runs.
    Hold,
    /// A call to the driver or a job: ends by itself.
    Work,
}

/// Somebody inside: a thread, or work that is bound to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) thread: Option<ThreadId>,
    pub(crate) stay: Stay,
}

#[derive(Debug, Default)]
struct State {
    domain: u32,
    mode: Option<Mode>,
    inside: Vec<Inside>,
    /// Nobody may enter: the NPU is being reset, or buffers of all domains are being freed.
    closed: bool,
    queue: VecDeque<u64>,
    next_ticket: u64,
    to_free: Vec<ToFree>,
    switches: u64,
}

impl State {
    fn works(&self) -> bool {
        self.inside.iter().any(|i| i.stay == Stay::Work)
    }

    /// Whether the mode allows it: a change waits for all work to end.
    fn mode_admits(&self, want: Want) -> bool {
        want.mode.is_none_or(|mode| self.mode == Some(mode) || !self.works())
    }

    fn admits(&self, want: Want) -> bool {
        !self.closed
            && (self.inside.is_empty() || self.domain == want.domain)
            && self.mode_admits(want)
    }

    fn enter(&mut self, want: Want, inside: Inside) -> Entry {
        let switched = self.switch(want.domain);
        self.inside.push(inside);
        let reset = want.mode.is_some() && want.mode != self.mode;
        if switched || reset {
            self.closed = true;
            return Entry::Prepare { reset };
        }
        Entry::Ready
    }

    fn switch(&mut self, domain: u32) -> bool {
        let switched = self.domain != domain;
        self.domain = domain;
        self.switches += u64::from(switched);
        switched
    }
}

/// Admits to domains.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    state: Mutex<State>,
    changed: Condvar,
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the domain may be entered. `caller` asks; `inside` is what it then does there.
    pub(crate) fn enter(
        &self,
        want: Want,
        caller: ThreadId,
        inside: Inside,
    ) -> Result<Entry, WouldDeadlock> {
        let mut state = self.lock();
        if state.inside.iter().any(|i| i.thread == Some(caller)) {
            // Inside already: in the queue it could wait for itself.
            if state.domain != want.domain {
                return Err(WouldDeadlock { active: state.domain });
            }
            while state.closed || !state.mode_admits(want) {
                state = self.wait(state);
            }
            return Ok(state.enter(want, inside));
        }
        if state.queue.is_empty() && state.admits(want) {
            return Ok(state.enter(want, inside));
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.queue.push_back(ticket);
        while state.queue.front() != Some(&ticket) || !state.admits(want) {
            state = self.wait(state);
        }
        state.queue.pop_front();
        let entry = state.enter(want, inside);
        drop(state);
        // The next in the queue may want the same domain.
        self.changed.notify_all();
        Ok(entry)
    }

    /// Waits until nothing works anywhere and closes; [`Scheduler::prepared`] opens again.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        while state.closed || state.works() {
            state = self.wait(state);
        }
        state.closed = true;
    }

    /// Enters for freeing a buffer if that needs no waiting; otherwise keeps it until everybody has
    /// left.
    pub(crate) fn enter_or_keep(
        &self,
        domain: u32,
        inside: Inside,
        to_free: ToFree,
    ) -> Option<ToFree> {
        let want = Want { domain, mode: None };
        let mut state = self.lock();
        if state.admits(want) {
            // No job follows in this domain without an entry of its own.
            state.switch(domain);
            state.inside.push(inside);
            Some(to_free)
        } else {
            state.to_free.push(to_free);
            None
        }
    }

    /// The NPU has settled, and after a reset is in this mode (`Some(None)`: unknown); opens again.
    pub(crate) fn prepared(&self, mode: Option<Option<Mode>>) {
        let mut state = self.lock();
        state.mode = mode.unwrap_or(state.mode);
        state.closed = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Leaves. What had to wait until everybody has left is returned to the last: it is to be freed,
    /// then [`Scheduler::freed`] called.
    pub(crate) fn leave(&self, inside: Inside) -> Vec<ToFree> {
        let mut state = self.lock();
        if let Some(at) = state.inside.iter().position(|i| *i == inside) {
            state.inside.swap_remove(at);
        }
        if state.inside.is_empty() && !state.closed && !state.to_free.is_empty() {
            state.closed = true;
            return std::mem::take(&mut state.to_free);
        }
        drop(state);
        self.changed.notify_all();
        Vec::new()
    }

    /// What [`Scheduler::leave`] returned has been freed. Returns what came meanwhile; opens when
    /// nothing did.
    pub(crate) fn freed(&self) -> Vec<ToFree> {
        let mut state = self.lock();
        let more = std::mem::take(&mut state.to_free);
        if more.is_empty() {
            state.closed = false;
            drop(state);
            self.changed.notify_all();
        }
        more
    }

    /// Changes of domain so far.
    pub(crate) fn switches(&self) -> u64 {
        self.lock().switches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    fn me() -> ThreadId {
        thread::current().id()
    }

    fn here(stay: Stay) -> Inside {
        Inside { thread: Some(me()), stay }
    }

    fn memory(domain: u32) -> Want {
        Want { domain, mode: None }
    }

    fn jobs(domain: u32, mode: Mode) -> Want {
        Want { domain, mode: Some(mode) }
    }

    /// Enters, and lets everybody else in when that had to be alone.
    fn enter(s: &Scheduler, want: Want, stay: Stay) -> Result<Entry, WouldDeadlock> {
        let entry = s.enter(want, me(), here(stay))?;
        if let Entry::Prepare { reset } = entry {
            s.prepared(reset.then_some(want.mode));
        }
        Ok(entry)
    }

    #[test]
    fn a_thread_may_enter_its_domain_again_but_no_other() {
        let s = Scheduler::default();
        assert_eq!(enter(&s, memory(1), Stay::Hold), Ok(Entry::Prepare { reset: false }));
        assert_eq!(enter(&s, memory(1), Stay::Work), Ok(Entry::Ready));
        assert_eq!(enter(&s, memory(2), Stay::Work), Err(WouldDeadlock { active: 1 }));
        assert!(s.leave(here(Stay::Work)).is_empty());
        assert_eq!(enter(&s, memory(2), Stay::Work), Err(WouldDeadlock { active: 1 }));
        s.leave(here(Stay::Hold));
        assert_eq!(enter(&s, memory(2), Stay::Work), Ok(Entry::Prepare { reset: false }));
        assert_eq!(s.switches(), 2);
    }

    #[test]
    fn a_mode_is_prepared_once_with_nothing_running() {
        let s = Scheduler::default();
        enter(&s, memory(0), Stay::Hold).unwrap();
        assert_eq!(enter(&s, jobs(0, Mode::Wide), Stay::Work), Ok(Entry::Prepare { reset: true }));
        assert_eq!(enter(&s, jobs(0, Mode::Wide), Stay::Work), Ok(Entry::Ready));
        let prepared = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let entry = enter(&s, jobs(0, Mode::Int4), Stay::Work);
                prepared.store(1, Ordering::SeqCst);
                assert_eq!(entry, Ok(Entry::Prepare { reset: true }));
            });
            thread::sleep(Duration::from_millis(50));
            s.leave(here(Stay::Work));
            thread::sleep(Duration::from_millis(20));
            assert_eq!(prepared.load(Ordering::SeqCst), 0);
            s.leave(here(Stay::Work));
        });
        assert_eq!(prepared.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn closing_waits_for_work_but_not_for_those_who_hold() {
        let s = Scheduler::default();
        enter(&s, memory(0), Stay::Hold).unwrap();
        s.close();
        thread::scope(|scope| {
            let opened = scope.spawn(|| enter(&s, memory(0), Stay::Work));
            thread::sleep(Duration::from_millis(20));
            assert!(!opened.is_finished());
            s.prepared(None);
        });
    }

    #[test]
    fn no_two_domains_at_once_and_nobody_starves() {
        let s = Scheduler::default();
        let inside: [AtomicU32; 3] = Default::default();
        thread::scope(|scope| {
            for i in 0..6u32 {
                let (s, inside) = (&s, &inside);
                scope.spawn(move || {
                    let domain = i % 3;
                    for _ in 0..200 {
                        enter(s, memory(domain), Stay::Work).unwrap();
                        inside[domain as usize].fetch_add(1, Ordering::SeqCst);
                        for (other, count) in inside.iter().enumerate() {
                            assert!(other == domain as usize || count.load(Ordering::SeqCst) == 0);
                        }
                        inside[domain as usize].fetch_sub(1, Ordering::SeqCst);
                        s.leave(here(Stay::Work));
                    }
                });
            }
        });
        assert!(s.switches() >= 2);
    }

    #[test]
    fn a_later_entry_waits_behind_an_earlier_one_of_another_domain() {
        let s = Scheduler::default();
        enter(&s, memory(0), Stay::Work).unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for (delay, domain) in [(0, 1), (60, 0)] {
                let (s, order) = (&s, &order);
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(delay));
                    enter(s, memory(domain), Stay::Work).unwrap();
                    order.lock().unwrap().push(domain);
                    s.leave(here(Stay::Work));
                });
            }
            thread::sleep(Duration::from_millis(150));
            s.leave(here(Stay::Work));
        });
        assert_eq!(order.into_inner().unwrap(), [1, 0]);
    }
}
