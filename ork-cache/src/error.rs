//! What can go wrong, with the numbers and the way out.

use std::sync::Arc;

use crate::experts::RoutingError;
use crate::ids::{ClassId, DomainId, WeightId};
use crate::plan::PlanError;
use crate::store::StoreError;

/// A failure of the device or of the source of a weight; shared, because every thread that waited
/// for the same load gets it.
///
/// ```
/// let cause: ork_cache::Cause = std::sync::Arc::new(std::io::Error::other("disk on fire"));
/// let error = ork_cache::Error::Load { weight: ork_cache::WeightId(3), cause };
/// assert_eq!(error.to_string(), "loading weight 3 failed: disk on fire");
/// ```
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why an operation of the cache failed.
///
/// ```
/// use std::sync::Arc;
///
/// use ork_cache::plan::PlanError;
/// use ork_cache::{Error, Setup, Store};
/// # use ork_weights::model::{Model, OpenOptions, synth::Shape};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.gguf");
/// # Shape::tiny().write(std::fs::File::create(&path)?)?;
/// # let model = Model::open(&path, &OpenOptions::default())?;
/// let store = Arc::new(Store::from_model(model, ork_weights::quantise::Tier::Int8, None)?);
/// let device = rknpu::Device::simulated(Default::default())?;
/// let error = ork_cache::open(&device, &[store.clone()], &Setup::new(4096)).unwrap_err();
/// let Error::Plan(PlanError::Budget { smallest, .. }) = error else { panic!("{error}") };
/// assert!(ork_cache::open(&device, &[store], &Setup::new(smallest)).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No weight of that number is attached.
    #[error("{weight} is unknown: {known} weights are attached")]
    UnknownWeight {
        /// The number asked for.
        weight: WeightId,
        /// How many there are.
        known: usize,
    },
    /// The domain is not one of this cache's.
    #[error("{domain} is unknown: the cache has {known} domains")]
    UnknownDomain {
        /// The domain asked for.
        domain: DomainId,
        /// How many there are.
        known: usize,
    },
    /// The slot class does not exist, or lies in another domain than the weight.
    #[error("{class} does not exist in {domain}")]
    UnknownClass {
        /// The class asked for.
        class: ClassId,
        /// Domain of the weight.
        domain: DomainId,
    },
    /// The weight does not fit even when it is alone.
    #[error(
        "{weight} needs {bytes} bytes, but {domain} may hold {limit} in all: raise the budget to at least {bytes} bytes"
    )]
    TooLarge {
        /// The weight.
        weight: WeightId,
        /// Its bytes.
        bytes: u64,
        /// Where it should go.
        domain: DomainId,
        /// Budget of the domain, or the whole budget when that is smaller.
        limit: u64,
    },
    /// The weight is larger than the slots it should go through.
    #[error(
        "{weight} needs {bytes} bytes, the slots of {class} have {slot}: plan larger slots or split the weight"
    )]
    LargerThanSlot {
        /// The weight.
        weight: WeightId,
        /// Its bytes.
        bytes: u64,
        /// The class.
        class: ClassId,
        /// Bytes of one of its slots.
        slot: u64,
    },
    /// Slots that do not fit into what the budget has left.
    #[error(
        "{count} slots of {bytes} bytes do not fit into {domain}: {left} of {limit} bytes are left, {needed} would do"
    )]
    NoRoomForSlots {
        /// Slots asked for.
        count: usize,
        /// Bytes of each.
        bytes: u64,
        /// Domain.
        domain: DomainId,
        /// Bytes not yet taken.
        left: u64,
        /// Budget of the domain, or the whole budget when that is smaller.
        limit: u64,
        /// Budget that would hold them beside what is there.
        needed: u64,
    },
    /// Everything that is resident is there for good, so nothing can make room.
    #[error(
        "no room for {weight} ({bytes} bytes) in {domain}: {held} of {limit} bytes are held by weights and slots that stay; raise the budget by {short} bytes or keep fewer resident"
    )]
    NoRoom {
        /// The weight.
        weight: WeightId,
        /// Its bytes.
        bytes: u64,
        /// Domain.
        domain: DomainId,
        /// Bytes that cannot be freed.
        held: u64,
        /// Budget.
        limit: u64,
        /// What is missing.
        short: u64,
    },
    /// A weight of another domain than the one that is being visited.
    #[error("{weight} lies in {wanted}, but the visit is to {visited}: finish the visit first")]
    OtherDomain {
        /// The weight.
        weight: WeightId,
        /// Its domain.
        wanted: DomainId,
        /// Domain of the visit.
        visited: DomainId,
    },
    /// More weights than ids can be given out for.
    #[error("a cache numbers at most {most} weights")]
    TooManyWeights {
        /// How many can be.
        most: usize,
    },
    /// A routing names an expert outside the model.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// Loading failed; every thread that waited for this load gets the same cause.
    #[error("loading {weight} failed: {cause}")]
    Load {
        /// The weight.
        weight: WeightId,
        /// What the source or the device said.
        #[source]
        cause: Cause,
    },
    /// The weights cannot be placed: the budget is too small, for one.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device refused something that the budget allows.
    #[error("cannot {what}: {cause}")]
    Device {
        /// What was tried.
        what: &'static str,
        /// What the device said.
        #[source]
        cause: Cause,
    },
    /// The device could not create a slot.
    #[error("creating a slot of {bytes} bytes in {domain} failed: {cause}")]
    Slot {
        /// Bytes of the slot.
        bytes: u64,
        /// Domain.
        domain: DomainId,
        /// What the device said.
        #[source]
        cause: Cause,
    },
}

impl Error {
    /// Whether a weight could not be had from what it comes from, a file for one: nothing is wrong with the
    /// device.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use ork_cache::{Error, StoreError, WeightId};
    ///
    /// let of = |cause: ork_cache::Cause| Error::Load { weight: WeightId(0), cause };
    /// assert!(of(Arc::new(StoreError::Unknown { item: 7, known: 3 })).is_of_store());
    /// assert!(!of(Arc::new(rknpu::Error::NoDevice { tried: Vec::new() })).is_of_store());
    /// ```
    pub fn is_of_store(&self) -> bool {
        matches!(self, Error::Load { cause, .. } if cause.is::<StoreError>())
    }
}

/// An error and its causes in one line, each said once, joined by colons: many repeat their cause's text.
///
/// ```
/// let cause = std::sync::Arc::new(std::io::Error::other("disk on fire"));
/// let error = ork_cache::Error::Load { weight: ork_cache::WeightId(3), cause };
/// assert_eq!(ork_cache::chain(&error), "loading weight 3 failed: disk on fire");
/// ```
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if more.contains(&text) {
            // It names the same file itself.
            text = more;
        } else if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

/// Result of an operation of the cache.
pub type Result<T, E = Error> = std::result::Result<T, E>;
