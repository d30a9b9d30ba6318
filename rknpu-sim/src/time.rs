//! The clock, the calendar, and who waits for what.

use crate::engine::Start;
use crate::state::SpaceMap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// Nanoseconds of a millisecond.
pub(crate) const MS: u64 = 1_000_000;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// A core's jobs: done, or a reset.
    Job(usize),
    /// The domain count or the current domain.
    Domain,
    /// Jobs of `rocket`: begun or ended.
    Written,
    /// A fence.
    Fence,
    /// Whatever the program's own threads tell each other.
    Notice,
    /// Only its deadline.
    Sleep,
}

/// What is due at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A core raises its interrupt, unless it was reset since.
    Interrupt {
        /// Core.
        core: usize,
        /// The start that it belongs to.
        generation: u64,
        /// Interrupt bits.
        status: u32,
    },
    /// Another process, which held the domain, lets go of it.
    LetGo,
    /// A job of `rocket` has had its time, if it still runs.
    JobTimeout {
        /// Core.
        core: usize,
        /// Which.
        job: u64,
    },
}

/// An engine's run that has not begun.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) start: Start,
    pub(crate) generation: u64,
    pub(crate) map: Arc<SpaceMap>,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) id: u64,
    pub(crate) channel: Channel,
    pub(crate) deadline: Option<u64>,
    /// Set by whoever wakes it: whether its channel, not its deadline, did.
    pub(crate) woken: Option<bool>,
}

/// Noise: what real machines do in an order of their own.
#[derive(Debug)]
pub(crate) struct Noise(u64);

impl Noise {
    /// Below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        // xorshift64; the seed is never 0.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if limit == 0 { 0 } else { (self.0 >> 11) % limit }
    }
}

/// Time, and who waits for what.
#[derive(Debug)]
pub(crate) struct Time {
    pub(crate) now: u64,
    pub(crate) serial: u64,
    pub(crate) events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) waiters: Vec<Waiter>,
    /// Waiters woken, in the order in which they go on.
    pub(crate) ready: VecDeque<u64>,
    /// Somebody's turn has come who has not been told.
    pub(crate) untold: bool,
    pub(crate) noise: Option<Noise>,
    /// Threads that are inside (or are actors) and do not wait.
    pub(crate) active: usize,
    /// Engines running.
    pub(crate) engines: usize,
    /// Threads asleep on the condition variable.
    pub(crate) asleep: usize,
    pub(crate) workers: usize,
    pub(crate) idle_workers: usize,
    pub(crate) stopping: bool,
}

impl Time {
    pub(crate) fn new(noise: Option<u64>) -> Time {
        Time {
            ready: VecDeque::new(),
            untold: false,
            noise: noise.map(|seed| Noise(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)),
            now: 0,
            serial: 0,
            events: BinaryHeap::new(),
            pending: VecDeque::new(),
            waiters: Vec::new(),
            active: 0,
            engines: 0,
            asleep: 0,
            workers: 0,
            idle_workers: 0,
            stopping: false,
        }
    }

    /// Nanoseconds since the machine was made.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Puts an event on the calendar.
    pub(crate) fn at(&mut self, when: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((when, self.serial, event)));
    }

    /// Wakes everybody who waits on a channel.
    pub(crate) fn wake(&mut self, channel: Channel) {
        for at in 0..self.waiters.len() {
            if self.waiters[at].channel == channel && self.waiters[at].woken.is_none() {
                self.make_ready(at, true);
            }
        }
    }

    pub(crate) fn make_ready(&mut self, at: usize, signalled: bool) {
        self.waiters[at].woken = Some(signalled);
        self.active += 1;
        let len = self.ready.len() as u64;
        let place = self.noise.as_mut().map_or(len, |noise| noise.below(len + 1));
        self.ready.insert(place as usize, self.waiters[at].id);
        self.untold = true;
    }

    /// A random time below `limit`; 0 on a machine without noise.
    pub(crate) fn noise(&mut self, limit: u64) -> u64 {
        self.noise.as_mut().map_or(0, |noise| noise.below(limit))
    }

    pub(crate) fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((when, ..))| *when)
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let waiting = self.waiters.iter().filter(|waiter| waiter.woken.is_none());
        waiting.filter_map(|waiter| waiter.deadline).min()
    }

    /// Wakes those whose deadline has come.
    pub(crate) fn expire(&mut self, now: u64) {
        for at in 0..self.waiters.len() {
            let waiter = &self.waiters[at];
            if waiter.woken.is_none() && waiter.deadline.is_some_and(|when| when <= now) {
                self.make_ready(at, false);
            }
        }
    }

    /// Takes a waiter off, once it is its turn: whether its channel woke it.
    pub(crate) fn turn(&mut self, id: u64) -> Option<bool> {
        if self.ready.front() != Some(&id) {
            return None;
        }
        self.ready.pop_front();
        let at = self.waiters.iter().position(|waiter| waiter.id == id)?;
        self.waiters.remove(at).woken
    }
}
