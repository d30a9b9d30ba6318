//! Which weights are in the NPU's window, and when: plan, residency, prefetch, experts.
//!
//! A model that is larger than the window of the NPU runs through it in passes. This crate decides
//! [where each weight is](plan), [makes it ready when it is used](Cache), and [loads the next ones
//! while the cores compute](prefetch), within a budget of bytes that exist on the device.
//!
//! | module | what it is |
//! |---|---|
//! | [`plan`] | from weights and a board: resident, pinned and streamed weights, domains, rings, cost of a pass |
//! | [`Cache`], [`Pinned`], [`Visit`] | acquire a weight, share loads between threads, one domain at a time |
//! | [`prefetch`] | the worker that loads ahead |
//! | [`experts`] | mixtures: routing, order of loads, predictors |
//! | [`policy`] | who leaves: pinned ring, next use (Belady), LRU, LFU, S3-FIFO; and their simulator |
//! | [`core`] | the pure state machine under all of it |
//! | [`npu`] | the cache over `rknpu` devices and `ork-weights` packs and models |
//! | [`virtual_time`] | the same decisions on a modelled board, without bytes |
//! | [`backend`], [`fake`] | the boundary to the device, and a device that checks its caller |
//! | [`config`], [`stats`], [`trace`] | settings, counters, timelines |
//!
//! The program that is checked is the program that ships: the state machine against a naive twin
//! (proptest), the concurrent part under loom with a fake device that keeps its own ledger.
//!
//! It is no inference engine: what is computed with a pinned weight is the caller's.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod cache;
pub mod config;
pub mod core;
pub mod error;
pub mod experts;
pub mod fake;
mod ids;
pub mod npu;
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
