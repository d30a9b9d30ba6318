//! Which weights are in the NPU's window, and when: plan, residency, prefetch, experts

pub mod backend;
mod cache;
pub mod config;
pub mod core;
pub mod error;
pub mod fake;
mod ids;
pub mod plan;
pub mod policy;
pub mod prefetch;
pub mod stats;
mod sync;
pub mod trace;
pub mod virtual_time;

pub use cache::{Cache, Pinned, Visit};
pub use error::{Cause, Error, Result};
pub use ids::{ClassId, DomainId, SlotId, WeightId};
