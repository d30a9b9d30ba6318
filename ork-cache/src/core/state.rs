//! The states a weight and a slot can be in, and what a caller is told to do.

use crate::error::Cause;
use crate::ids::{ClassId, DomainId, SlotId, WeightId};

/// A weight as the core needs to know it.
///
/// ```
/// use ork_cache::DomainId;
/// use ork_cache::core::{Home, WeightSpec};
///
/// let head = WeightSpec { bytes: 917_504_000, domain: DomainId(2), home: Home::Fixed };
/// assert_eq!(head.domain, DomainId(2));
/// ```
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
///
/// ```
/// # use ork_cache::core::{Core, Home, Limits, Purpose, Stage, Step, WeightSpec};
/// # use ork_cache::policy::Lru;
/// # use ork_cache::{DomainId, WeightId};
/// # let mut core = Core::new(Limits::single(8192), Box::new(Lru::new()));
/// # let own = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let fixed = core.attach(&[WeightSpec { home: Home::Fixed, ..own }])?;
/// let Step::Load(ticket) = core.reserve(fixed, Purpose::Demand)? else { panic!() };
/// core.complete(ticket, true, true);
/// core.unpin(fixed);
/// // What is fixed is no victim: there is room for one other weight, and never for two.
/// let big = core.attach(&[WeightSpec { bytes: 8192, ..own }])?;
/// assert!(core.reserve(big, Purpose::Demand).is_err());
/// # Ok::<(), ork_cache::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// A buffer of its own size that others may take the room of.
    Own,
    /// A buffer of its own, never evicted once loaded: the pinned part of a plan.
    Fixed,
    /// One of the slots of a class: the ring, or the slots of experts.
    Class(ClassId),
}

/// Why a weight is wanted.
///
/// ```
/// # use ork_cache::core::{Core, Home, Limits, Purpose, Stage, Step, WeightSpec};
/// # use ork_cache::policy::Lru;
/// # use ork_cache::{DomainId, WeightId};
/// # let mut core = Core::new(Limits::single(8192), Box::new(Lru::new()));
/// # let own = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let weight = core.attach(&[own])?;
/// let Step::Load(ticket) = core.reserve(weight, Purpose::Prefetch)? else { panic!() };
/// core.complete(ticket, true, false);
/// assert_eq!(core.pins(weight), 0); // loaded ahead, for nobody yet
/// assert!(matches!(core.reserve(weight, Purpose::Demand)?, Step::Hit(_)));
/// assert_eq!(core.pins(weight), 1);
/// # Ok::<(), ork_cache::Error>(())
/// ```
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
///
/// ```
/// # use ork_cache::core::{Core, Limits, Presence};
/// # use ork_cache::policy::Lru;
/// # use ork_cache::WeightId;
/// let core = Core::new(Limits::single(4096), Box::new(Lru::new()));
/// assert_eq!(core.presence(WeightId(0)), Presence::Absent); // nothing is known of it
/// ```
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
///
/// ```
/// # use ork_cache::core::{Core, Home, Limits, Purpose, Stage, Step, WeightSpec};
/// # use ork_cache::policy::Lru;
/// # use ork_cache::{DomainId, WeightId};
/// # let mut core = Core::new(Limits::single(8192), Box::new(Lru::new()));
/// # let own = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let weight = core.attach(&[own])?;
/// let Step::Load(ticket) = core.reserve(weight, Purpose::Demand)? else { panic!() };
/// let Step::Wait(load) = core.reserve(weight, Purpose::Demand)? else { panic!() };
/// core.complete(ticket, true, true);
/// assert!(matches!(core.outcome(weight, load), ork_cache::core::Outcome::Over));
/// # Ok::<(), ork_cache::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadId(pub(super) u64);

/// What a load still has to do.
///
/// ```
/// # use ork_cache::core::{Core, Home, Limits, Purpose, Stage, Step, WeightSpec};
/// # use ork_cache::policy::Lru;
/// # use ork_cache::{DomainId, WeightId};
/// # let mut core = Core::new(Limits::single(8192), Box::new(Lru::new()));
/// # let own = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let first = core.attach(&[own; 3])?;
/// let mut stages = Vec::new();
/// for weight in [first, WeightId(1), WeightId(2)] {
///     let Step::Load(ticket) = core.reserve(weight, Purpose::Demand)? else { panic!() };
///     stages.push(ticket.stage());
///     core.complete(ticket, true, false);
/// }
/// // The third takes over the buffer of the first.
/// assert_eq!(stages, [Stage::Create, Stage::Create, Stage::Refill]);
/// # Ok::<(), ork_cache::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Create the buffer, copy, publish.
    Create,
    /// Copy into the buffer that is there, publish.
    Refill,
    /// Publish: the bytes are already there.
    Publish,
}

/// The right and the duty to load one weight into one slot; given back through
/// [`Core::complete`](super::Core::complete) or [`Core::fail`](super::Core::fail).
///
/// ```
/// # use ork_cache::core::{Core, Home, Limits, Purpose, Stage, Step, WeightSpec};
/// # use ork_cache::policy::Lru;
/// # use ork_cache::{DomainId, WeightId};
/// # let mut core = Core::new(Limits::single(8192), Box::new(Lru::new()));
/// # let own = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let weight = core.attach(&[own])?;
/// let Step::Load(ticket) = core.reserve(weight, Purpose::Demand)? else { panic!() };
/// let (slot, stage) = (ticket.slot(), ticket.stage());
/// assert_eq!((ticket.weight(), stage, core.slot(slot)), (weight, Stage::Create, (DomainId(0), 4096)));
/// core.complete(ticket, true, true);
/// # Ok::<(), ork_cache::Error>(())
/// ```
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
///
/// ```
/// # use ork_cache::core::{Core, Home, Limits, Purpose, Stage, Step, WeightSpec};
/// # use ork_cache::policy::Lru;
/// # use ork_cache::{DomainId, WeightId};
/// # let mut core = Core::new(Limits::single(8192), Box::new(Lru::new()));
/// # let own = WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own };
/// let weight = core.attach(&[own])?;
/// let Step::Load(ticket) = core.reserve(weight, Purpose::Demand)? else { panic!() };
/// assert!(matches!(core.reserve(weight, Purpose::Demand)?, Step::Wait(_)));
/// assert!(matches!(core.reserve(weight, Purpose::Prefetch)?, Step::Ready));
/// core.complete(ticket, true, true);
/// assert!(matches!(core.reserve(weight, Purpose::Demand)?, Step::Hit(_)));
/// # Ok::<(), ork_cache::Error>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The weight is ready in this slot and pinned.
    Hit(SlotId),
    /// Nothing: the weight is ready or being loaded (never the answer to a demand).
    Ready,
    /// Someone loads it: wait for a change, then ask [`Core::outcome`](super::Core::outcome).
    Wait(LoadId),
    /// No room at present: wait for a change, then ask again.
    Full,
    /// Load it.
    Load(Ticket),
    /// Free this slot's buffer, report [`Core::freed`](super::Core::freed), ask again.
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
        published: bool,
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
    /// Being created, filled, published or freed.
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
