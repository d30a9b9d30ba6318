//! A preloadable library that puts the simulated NPU under unmodified programs.
//!
//! ```text
//! LD_PRELOAD=target/release/librknpu_sim_preload.so ./program
//! ```
//!
//! The program finds `/dev/dri/card1` and `/dev/dri/renderD129` with the rknpu driver behind them,
//! `/dev/dma_heap/system`, and the driver's text files in debugfs, procfs and devfreq; every other
//! path and file is the system's. At exit a report goes to stderr: calls by kind, jobs, bytes, what
//! was left behind, syncs that were missing, and whatever would have hurt a real kernel.
//!
//! Settings are environment variables that begin with `RKNPU_SIM_`; a wrong one ends the process with
//! the list of all. What the program finds, the settings and the limits: [`_preload`].
//!
//! What answers its calls is the driver model of [`rknpu_sim`].
//!
//! Unsafe code is in five files: `real` (the C library's functions), and `hooks`, `exec`, `paths` and `pinning`
//! (the functions that replace them).

#[cfg(doc)]
#[doc = include_str!("../../docs/preload.md")]
pub mod _preload {}

mod exec;
mod exit;
mod hooks;
mod listing;
mod load;
mod nodes;
mod paths;
mod pinning;
mod process;
mod ranges;
mod real;
mod settings;
mod table;
mod text;
