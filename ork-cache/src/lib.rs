//! Models in the NPU's memory, also those that are larger than it: which weights stay, which are streamed, and
//! when each is loaded.
//!
//! The NPU reads memory through IOMMU domains: up to 16 address spaces of 4 GiB each. This crate decides where each
//! weight of a model is, within a budget of device memory, makes it ready when it is used, and loads the next ones
//! while the cores compute. What is computed with a weight is the caller's: it is no inference engine.
//!
//! # From a pack to a pass
//!
//! ```
//! use std::sync::Arc;
//!
//! use ork_cache::{Prefetcher, Setup, Store};
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
//! let opened = ork_cache::open(&device, &[store], &setup)?;
//! opened.notes.iter().for_each(|note| println!("note: {note}"));
//! let (cache, model) = (&opened.cache, &opened.models[0]);
//!
//! // A thread that loads what is streamed before it is used, round and round.
//! let prefetcher = Prefetcher::new(cache)?;
//! prefetcher.follow(&model.streamed);
//!
//! let cores = device.cores()?;
//! let limits = opened.limits(0, Precision::Int8).expect("there are int8 weights");
//! let mut matmul = Matmul::int8(&cache.domains()[0], &cores, limits)?;
//! let mut out = vec![0; 4 * 64];
//! for _pass in 0..3 {
//!     let mut parts = model.parts.iter().peekable();
//!     while let Some(first) = parts.peek() {
//!         // All weights of a domain in one visit: nothing touches another domain meanwhile.
//!         let visit = cache.enter(first.domain)?;
//!         while let Some(part) = parts.next_if(|part| part.domain == visit.domain()) {
//!             let weight = visit.acquire(part.weight)?; // ready, and stays until it is dropped
//!             matmul.run(&weight.weight_ref()?, &[1; 4 * 64], &mut out)?;
//!             assert_eq!(out[0], 64 * part.item as i32);
//!         }
//!     }
//! }
//! assert!(cache.stats().bytes_peak <= setup.budget);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What there is, in the order of use
//!
//! | | |
//! |---|---|
//! | [`Store`] | where weights come from: a pack, a model that is quantised as it is used, or memory |
//! | [`kept`] | a model's pack: loaded where it is, made on the way |
//! | [`Setup`], [`open`], [`Opened`] | puts models on a device within a budget; [`Note`]s say what is not as asked for |
//! | [`Cache`], [`Visit`], [`Pinned`] | enter a domain, acquire a weight, multiply |
//! | [`Placed`], [`Part`] | a model's weights in order of use, and where each is |
//! | [`Prefetcher`] | loads ahead of use |
//! | [`experts`] | mixtures: a router names experts, and those are loaded |
//! | [`plan`] | before anything runs: what will be resident, what streamed, what a pass costs |
//! | [`Stats`], [`timeline`] | what happened: counts, and a timeline |
//! | [`environment`] | the environment variables of the C project |
//!
//! # How it works
//!
//! * A [**plan**](plan::Plan) costs every pass the fewest loaded bytes that a budget allows. A weight is **resident**,
//!   in device memory for good, or streamed through a **slot**: device memory that is created once and refilled
//!   for ever. A **ring** has one slot more than there are cores: while each core reads one, the next is filled.
//! * A [**use**](Cache::acquire) makes a weight ready and **pins** it. If it is not there the using thread loads it
//!   itself, at once. If someone loads it already, it waits for that load and shares its result or its error.
//! * A [**prefetch**](Prefetcher) is the same load before the use, by a thread of its own. It takes the place of what
//!   was used, never of what was loaded and is still to be used; a use may take either.
//! * A load is a **copy** by the CPU, at any time, and a **sync for the device**, a driver call that switches the
//!   device to the weight's domain. [One domain is at work at a time](Cache::enter): a prefetch for another one
//!   copies, and leaves the sync to the use.
//! * An **eviction** [policy](environment::PolicyKind) names who leaves when room is short and a plan does not decide:
//!   among experts, and where the caller asks for LRU.
//! * **Bytes are what exists.** They are counted before the device is asked for them and until it has freed them, so
//!   the budget holds at every moment, not on average.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod cache;
#[doc(hidden)]
pub mod doc;
pub mod environment;
mod error;
pub mod experts;
mod ids;
#[doc(hidden)]
pub mod internals;
pub mod kept;
mod npu;
mod open;
pub mod plan;
mod policy;
mod prefetch;
pub mod profile;
mod residency;
mod stats;
mod store;
mod sync;
pub mod timeline;

pub use cache::{Cache, Pinned, Visit};
pub use error::{Cause, Error, Result, chain};
pub use ids::{ClassId, DomainId, WeightId};
pub use open::{Access, Note, Opened, ParseAccessError, Reading, Setup, open, scratch_bytes};
pub use plan::{Part, Placed};
pub use prefetch::Prefetcher;
pub use residency::Limits;
pub use stats::Stats;
pub use store::{BlockWeight, Blocks, Given, Store, StoreError};
