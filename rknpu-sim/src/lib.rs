//! The rknpu kernel driver and the RK3588 NPU in software.
//!
//! A [`Machine`] is a booted system with the vendor driver: files are opened on it, ioctls and mmap
//! answer as the driver 0.9.8 on Linux 6.1 was recorded to answer, to the errno. What the driver
//! would do to the kernel when it is misused (freed memory used, domain counts gone wrong, address
//! space lost) is done to the model instead, and reported.
//!
//! * [`config`] says which driver, which kernel options, which hardware, and how strict.
//! * [`engine`] is the boundary to what executes jobs, [`npu`] the model that does by default.
//! * [`report`] is what happened: calls, leaks, hazards, missing syncs.
//! * [`hazard`] lists what would have hurt the kernel.
//! * [`fault`] makes the environment fail.
//! * [`replay`] holds recordings of the real driver against the model.
//!
//! Unsafe code is in three files: `memory` (mappings, and slices of them), `user` (the program's
//! memory) and `npu::kernel::simd` (instruction sets chosen at run time).

pub mod config;
pub mod engine;
pub mod fault;
pub mod hazard;
pub mod iova;
pub mod npu;
pub mod replay;
pub mod report;

mod bus;
mod calls;
mod domain;
mod fence;
mod files;
mod job;
mod kernel;
mod knobs;
mod machine;
mod memory;
mod object;
mod offsets;
mod physical;
mod sram;
mod state;
mod tasks;
mod user;

pub use config::Config;
pub use domain::DOMAINS;
pub use fault::Fault;
pub use fence::FenceInfo;
pub use files::Node;
pub use hazard::Hazard;
pub use job::CORES;
pub use machine::{Acting, File, Machine, Mapping, Reservation, set_cpu};
pub use report::{CallKind, Report};
