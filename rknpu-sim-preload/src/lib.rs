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
//! the list of all.
//!
//! Limits. Programs that make system calls without the C library are not seen. A child of fork has a
//! copy of the machine: what it creates and destroys its parent does not see, though buffers share
//! their memory; its mappings are gone, as the driver's are. Directories that the system has not are
//! listed by opendir alone. The text files can be written to without effect. Simulated descriptors are
//! numbered below 65536.
//!
//! Unsafe code is in three files: `real` (the C library's functions), and `hooks` and `paths` (the
//! functions that replace them).

mod exit;
mod hooks;
mod listing;
mod load;
mod nodes;
mod paths;
mod process;
mod ranges;
mod real;
mod settings;
mod table;
mod text;
