//! Which weights are in the NPU's window, and when: plan, residency, prefetch, experts.
//!
//! A model that is larger than the window of the NPU runs through it in passes. This crate decides
//! [where each weight is](plan), [makes it ready when it is used](Cache), and [loads the next ones
//! while the cores compute](prefetch), within a budget of bytes that exist on the device. What is
//! computed with a weight is the caller's: it is no inference engine.
//!
//! # From a pack to a pass
//!
//! ```
//! use std::sync::Arc;
//!
//! use ork_cache::npu::{self, Setup, Store};
//! use ork_cache::prefetch::Prefetcher;
//! use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
//! use rknpu::{Device, Matmul, Precision};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("small.orkpack");
//! # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
//! # for layer in 0..64 {
//! #     let name = format!("blk.{layer}.ffn_up.weight");
//! #     writer.add(&name, 64, 64, Dtype::Int8, &[layer as u8; 4096], &[0.5; 64])?;
//! # }
//! # writer.finish()?;
//! // 256 KiB of weights, and half as much device memory for them, slots and scratch.
//! let store = Arc::new(Store::from_pack(Pack::open(&path)?));
//! let device = Device::simulated(Default::default())?; // on a board: Device::open()?
//! let setup = Setup { rows: 4, ..Setup::new(128 << 10) };
//! let opened = npu::open(&device, &[store], &setup)?;
//! opened.notes.iter().for_each(|note| println!("note: {note}"));
//! let (cache, model) = (&opened.cache, &opened.models[0]);
//!
//! // The worker follows what is streamed, round and round.
//! let prefetcher = Prefetcher::new(cache)?;
//! prefetcher.follow(&model.streamed);
//!
//! let cores = device.cores()?;
//! let limits = opened.limits(0, Precision::Int8).expect("there are int8 weights");
//! let mut matmul = Matmul::int8(&cache.backend().domains()[0], &cores, limits)?;
//! let mut out = vec![0; 4 * 64];
//! for _pass in 0..3 {
//!     let mut parts = model.parts.iter().peekable();
//!     while let Some(first) = parts.peek() {
//!         // All weights of a domain in one visit: nothing touches another one meanwhile.
//!         let visit = cache.enter(first.spec.domain)?;
//!         while let Some(part) = parts.next_if(|p| p.spec.domain == visit.domain()) {
//!             let weight = visit.acquire(part.weight)?; // ready, and pinned until it is dropped
//!             matmul.run(&weight.weight_ref()?, &[1; 4 * 64], &mut out)?;
//!             assert_eq!(out[0], 64 * part.item as i32);
//!         }
//!     }
//! }
//! assert!(cache.stats().bytes_peak <= setup.budget);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The ideas
//!
//! * A [**plan**](plan::Plan) is made before anything is loaded: from the weights in order of use
//!   and a [board](plan::Board) it says which weights stay for good, in which **domain** (window)
//!   each is used, and which are streamed. It costs every pass the fewest bytes that a room of that
//!   size allows, and says how many.
//! * Streamed weights go through the **slots** of a [class](plan::Class): buffers of one size,
//!   created once and refilled for ever. A **ring** has one slot more than there are cores: while
//!   each core reads one, the next is filled.
//! * A [**use**](Cache::acquire) makes a weight ready and **pins** it. If it is not there the using
//!   thread loads it itself, at once: a **demand**. If someone loads it already, it waits for that
//!   load and shares its result or its error.
//! * A [**prefetch**](prefetch) is the same load before the use, by a worker. It takes the place
//!   of what was used, never of what was loaded and is still to be used; a demand may take either.
//! * A load is a **copy**, on the CPU at any time, and a **publish**, a memory call that switches the
//!   device to the weight's domain. [One domain is at work at a time](Cache::enter): a prefetch for
//!   another one copies, and leaves the publish to the use.
//! * A [**policy**](policy) names who leaves when room is short and a plan does not decide: with
//!   models without a plan, and among experts.
//! * **Bytes are what exists.** They are entered before the device is asked for them and struck off
//!   when it has freed them, so the budget holds at every moment, not on average.
//!
//! # Modules
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
//! The code that is checked is the code that ships: the state machine against a naive twin (proptest),
//! the concurrent part under loom, in all interleavings of two threads, with a fake device that keeps
//! its own ledger.
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
