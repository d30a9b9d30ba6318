//! Turns at the NPU: who is in which domain and which mode (int4 or not), and who waits, first come first served.
//!
//! Whoever works in a domain enters it here first, and waits for its turn by the rule of [`DomainTurns`].
//!
//! Between int4 and the other precisions the NPU needs a reset, which kills what runs: a change of that
//! *mode* waits in the same way.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::allocation::ToFree;
use crate::domain_turns::DomainTurns;

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
    /// `reset`, then call [`Turns::prepared`]. Everybody else waits.
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

#[derive(Debug)]
struct State {
    rule: DomainTurns,
    mode: Option<Mode>,
    /// And whether each is a visit by the rule, or a call.
    inside: Vec<(Inside, bool)>,
    /// Nobody may enter: the NPU is being reset, or buffers of all domains are being freed.
    closed: bool,
    to_free: Vec<ToFree>,
    switches: u64,
}

impl State {
    fn works(&self) -> bool {
        self.inside.iter().any(|(inside, _)| inside.stay == Stay::Work)
    }

    /// Whether everything but the rule allows it: a change of mode waits for all work to end.
    fn is_open_for(&self, mode: Option<Mode>) -> bool {
        !self.closed && mode.is_none_or(|mode| self.mode == Some(mode) || !self.works())
    }

    /// The domain that the driver is in.
    fn domain(&self) -> u32 {
        self.rule.current().unwrap_or(0)
    }

    /// Somebody has come in by the rule, who was in domain `before`.
    fn entered(&mut self, want: Want, inside: Inside, visit: bool, before: u32) -> Entry {
        let switched = self.rule.is_exclusive() && before != want.domain;
        self.switches += u64::from(switched);
        self.inside.push((inside, visit));
        let reset = want.mode.is_some() && want.mode != self.mode;
        if switched || reset {
            self.closed = true;
            return Entry::Prepare { reset };
        }
        Entry::Ready
    }
}

/// Admits to domains.
#[derive(Debug)]
pub(crate) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

impl Turns {
    pub(crate) fn new(exclusive: bool) -> Turns {
        let state = State {
            rule: DomainTurns::new(exclusive),
            mode: None,
            inside: Vec::new(),
            closed: false,
            to_free: Vec::new(),
            switches: 0,
        };
        Turns { state: Mutex::new(state), changed: Condvar::new() }
    }

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
        if state.inside.iter().any(|(inside, _)| inside.thread == Some(caller)) {
            // Inside already: in the queue it could wait for itself.
            if !state.rule.admits(want.domain) {
                return Err(WouldDeadlock { active: state.domain() });
            }
            while !state.is_open_for(want.mode) {
                state = self.wait(state);
            }
            let before = state.domain();
            if !state.rule.call(want.domain) {
                return Err(WouldDeadlock { active: before });
            }
            return Ok(state.entered(want, inside, false, before));
        }
        let ticket = state.rule.queue();
        let (mut before, mut waited) = (state.domain(), false);
        while !state.is_open_for(want.mode) || !state.rule.visit(&ticket, want.domain) {
            state = self.wait(state);
            (before, waited) = (state.domain(), true);
        }
        let entry = state.entered(want, inside, true, before);
        drop(state);
        if waited {
            // The next in the queue may want the same domain.
            self.changed.notify_all();
        }
        Ok(entry)
    }

    /// Waits until nothing works anywhere and closes; [`Turns::prepared`] opens again.
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
        let mut state = self.lock();
        let before = state.domain();
        if state.is_open_for(None) && state.rule.call(domain) {
            // No job follows in this domain without an entry of its own.
            state.switches += u64::from(state.rule.is_exclusive() && before != domain);
            state.inside.push((inside, false));
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
    /// then [`Turns::freed`] called.
    pub(crate) fn leave(&self, inside: Inside) -> Vec<ToFree> {
        let mut state = self.lock();
        if let Some(at) = state.inside.iter().position(|(other, _)| *other == inside) {
            let (_, visit) = state.inside.swap_remove(at);
            if visit {
                state.rule.leave()
            } else {
                state.rule.end_call()
            };
        }
        if state.inside.is_empty() && !state.closed && !state.to_free.is_empty() {
            state.closed = true;
            return std::mem::take(&mut state.to_free);
        }
        drop(state);
        self.changed.notify_all();
        Vec::new()
    }

    /// What [`Turns::leave`] returned has been freed. Returns what came meanwhile; opens when
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
    fn enter(s: &Turns, want: Want, stay: Stay) -> Result<Entry, WouldDeadlock> {
        let entry = s.enter(want, me(), here(stay))?;
        if let Entry::Prepare { reset } = entry {
            s.prepared(reset.then_some(want.mode));
        }
        Ok(entry)
    }

    #[test]
    fn a_thread_may_enter_its_domain_again_but_no_other() {
        let s = Turns::new(true);
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
        let s = Turns::new(true);
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
        let s = Turns::new(true);
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
        let s = Turns::new(true);
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
        let s = Turns::new(true);
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
