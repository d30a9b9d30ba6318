//! The parts of the program `ork`, which runs models on the NPU of an RK3588, also larger ones than it can address.
//!
//! | part | what it does |
//! |---|---|
//! | [`cli`] | arguments |
//! | [`command`] | one module per command: arguments in, a report out |
//! | [`error`] | why a command ends, and its exit code |
//! | [`output`] | tables for people, JSON for scripts, progress where somebody watches |
//!
//! It is a library so that the workspace's scenario tests run the very code that the program runs.
//! Other programs build on `ork-cache`, `ork-weights` and `rknpu`.
#![forbid(unsafe_code)]

pub mod activity;
pub mod cli;
pub mod command;
pub mod demo;
pub mod device;
pub mod ending;
pub mod error;
mod input;
pub mod memory;
pub mod output;
pub mod run;
pub mod sensors;
pub mod size;
mod target;
pub mod temporary;
mod text;
