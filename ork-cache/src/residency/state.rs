//! The states a weight and a slot can be in, and what a caller is told to do.

use crate::error::Cause;
use crate::ids::{ClassId, DomainId, SlotId, WeightId};

/// A weight as the residency needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Bytes of device memory, before rounding to pages.
    pub bytes: u64,
    /// Domain in which it is used.
    pub domain: DomainId,
    /// What kind of place it takes.
    pub home: Home,
}

/// What kind of place a weight takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// A buffer of its own size that others may take the room of.
    Own,
    /// A buffer of its own, never evicted once loaded: the resident part of a plan.
    Fixed,
    /// One of the slots of a class: the ring, or the slots of experts.
    Class(ClassId),
}

/// Why a weight is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Someone needs it now and gets a pin.
    Demand,
    /// It will be needed; what is ready but not yet used is not evicted for it.
    Prefetch,
    /// It may be needed; takes a place only while another is left for a demand.
    Speculate,
}

/// Whether a weight can be used at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Neither there nor on its way.
    Absent,
    /// On its way.
    Loading,
    /// There, and not yet used since it was loaded.
    Fresh,
    /// There, and used since it was loaded.
    Used,
}

impl Presence {
    /// Whether a use would not have to wait for a load.
    pub fn is_ready(self) -> bool {
        matches!(self, Presence::Fresh | Presence::Used)
    }
}

/// One load of one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadId(pub(super) u64);

/// What a load still has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Create the memory, copy, sync for the device.
    Create,
    /// Copy into the memory that is there, sync for the device.
    Refill,
    /// Sync for the device: the bytes are already there.
    Sync,
}

/// The right and the duty to load one weight into one slot; given back through
/// [`Residency::complete`](super::Residency::complete) or [`Residency::fail`](super::Residency::fail).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a load that is neither completed nor failed blocks its weight for ever"]
pub struct Ticket {
    pub(super) weight: WeightId,
    pub(super) slot: SlotId,
    pub(super) load: LoadId,
    pub(super) stage: Stage,
}

impl Ticket {
    /// The weight to load.
    pub fn weight(&self) -> WeightId {
        self.weight
    }

    /// The slot it goes into.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// What is left to do.
    pub fn stage(&self) -> Stage {
        self.stage
    }
}

/// What the caller must do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The weight is ready in this slot and pinned.
    Hit(SlotId),
    /// Nothing: the weight is ready or being loaded (never the answer to a demand).
    Ready,
    /// Someone loads it: wait for a change, then ask [`Residency::outcome`](super::Residency::outcome).
    Wait(LoadId),
    /// No room at present: wait for a change, then ask again.
    Full,
    /// Load it.
    Load(Ticket),
    /// Free this slot's buffer, report [`Residency::freed`](super::Residency::freed), ask again.
    Free(SlotId),
}

#[derive(Debug)]
pub(super) struct Weight {
    pub(super) bytes: u64,
    pub(super) domain: DomainId,
    pub(super) home: Home,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    Absent,
    Loading {
        load: LoadId,
        waiters: u32,
    },
    /// `expected`: a use is to come, so no prefetch may take its place. `used`: since it was loaded.
    Ready {
        slot: SlotId,
        pins: u32,
        expected: bool,
        used: bool,
        /// Whether the NPU has been handed the bytes.
        synced: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) bytes: u64,
    pub(super) domain: DomainId,
    pub(super) class: Option<ClassId>,
    pub(super) state: SlotState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Does not exist on the device; the id may be given out again.
    Gone,
    /// Exists, holds nothing.
    Empty,
    /// Being created, filled, synced or freed.
    Busy,
    /// Holds a ready weight.
    Holds(WeightId),
    /// The device failed to free it: its bytes are gone until the device is reset.
    Lost,
}

#[derive(Debug)]
pub(super) struct Class {
    pub(super) bytes: u64,
    pub(super) domain: DomainId,
    pub(super) slots: usize,
    pub(super) empty: Vec<SlotId>,
}

/// A failed load that some of its waiters have not yet heard of.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) load: LoadId,
    pub(super) cause: Cause,
    pub(super) remaining: u32,
}
