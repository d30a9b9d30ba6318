//! A backend for ggml that an unmodified llama.cpp loads by one environment variable: linear layers on
//! the RK3588's NPU, also of models that are larger than what the NPU can address.
//!
//! ```sh
//! cargo build --release -p ggml-ork
//! GGML_BACKEND_PATH=$PWD/target/release/libggml_ork.so llama-server -m model.gguf
//! ```
//!
//! It takes products with a model's weights from 32 rows on (prompts, drafts that are verified) and leaves
//! the rest to ggml's CPU backend, which reads the same mapping of the file. Weights, packs, budgets and
//! products are those of `ork-cache` and `ork-linear`: this crate translates.
//!
//! # How it is built
//!
//! | | |
//! |---|---|
//! | `ggml` | ggml's tables as they lie in memory |
//! | `host`, `cpu_backend`, `memory`, `tables`, `computing` | the only unsafe code: ggml's functions, its memory, the callbacks |
//! | `graph` | which nodes are taken, and lists of products from them |
//! | `buffers`, `engine` | from a tensor to a weight of a model that is on the device |
//! | `keep` | packs |
//! | `settings`, `say`, `tally`, `guard` | the environment, the log, the counts, panics |
#![deny(unsafe_code)]

mod buffers;
mod computing;
mod cpu_backend;
mod engine;
#[doc(hidden)]
pub mod ggml;
mod graph;
mod guard;
mod host;
mod keep;
mod maps;
mod memory;
mod plugin;
mod say;
mod settings;
#[doc(hidden)]
pub mod tables;
mod tally;

pub use host::{Refusal, Resolve};
pub use settings::{DeviceChoice, Settings};
