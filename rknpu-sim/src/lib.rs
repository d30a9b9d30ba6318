//! The rknpu kernel driver and the RK3588 NPU in software.
//!
//! A [`Machine`] is a booted system with the vendor driver: files are opened on it, ioctls and mmap
//! answer as the driver 0.9.8 on Linux 6.1 was recorded to answer, to the errno. What the driver
//! would do to the kernel when it is misused (freed memory used, domain counts gone wrong, address
//! space lost) is done to the model instead, and reported.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | which driver, which kernel options, which hardware, and how strict |
//! | [`engine`] | the boundary to what executes jobs |
//! | [`npu`] | the model of the cores that executes them by default |
//! | [`report`] | what happened: calls, leaks, hazards, missing syncs |
//! | [`access`] | what the cores read and wrote through the IOMMU |
//! | [`hazard`] | what would have hurt the kernel |
//! | [`fault`] | how to make the environment fail |
//! | [`iova`] | a domain's address space, handed out as the kernel hands it out |
//!
//! Begin with [`Machine`] and [`File::call`]; then [`Report`] says what a program did, and [`Config`]
//! what else a machine can be. Programs that use the crate `rknpu` need none of this: they call its
//! `Device::simulated`. Programs that know neither run on the same model by `LD_PRELOAD` (the library
//! `rknpu-sim-preload`).
//!
//! What is modelled, where, and what is not: [`_driver_model`].
//!
//! ```
//! use rknpu_sim::{Config, Machine};
//! use rknpu_sys::uapi::{MemCreate, MemMap, MemSync};
//!
//! let machine = Machine::new(Config::default());
//! let file = machine.open();
//!
//! // A buffer, written by the CPU and handed to the device.
//! let mut buffer = MemCreate { flags: 0x403, size: 4096, ..Default::default() };
//! file.call(&mut buffer)?;
//! let mut map = MemMap { handle: buffer.handle, ..Default::default() };
//! file.call(&mut map)?;
//! file.mmap(map.offset, 4096)?.write(0, b"weights");
//! let obj_addr = buffer.obj_addr;
//! file.call(&mut MemSync { flags: 1, obj_addr, size: 4096, ..Default::default() })?;
//!
//! let report = machine.report();
//! assert_eq!((report.live, report.to_device), (4096, 4096));
//! assert!(report.is_clean());
//! # Ok::<(), rustix::io::Errno>(())
//! ```
//!
//! # Safety
//!
//! One function is unsafe, [`File::ioctl`], because it takes a pointer as the system call does;
//! [`File::call`] is its safe form. A program that misuses the driver hurts the model only: it gets an
//! error and the report a [`Hazard`].
//!
//! Safe code of several threads may use a buffer at once: a write waits for whoever reads the same
//! bytes, a core among them. The memory file behind a buffer cannot be cut; that nobody else writes to
//! it is the word of who gives its descriptor away.
//!
//! Unsafe code is in three files: `memory::map` (mappings, and slices of them), `user` (the program's
//! memory) and `npu::dot::simd` (instruction sets chosen at run time).

#[cfg(doc)]
#[doc = include_str!("../docs/driver-model.md")]
pub mod _driver_model {}
pub mod access;
pub mod config;
pub mod engine;
pub mod fault;
pub mod hazard;
pub mod iova;
pub mod npu;
pub mod otherwise;
pub mod report;

mod bus;
mod calls;
mod debugfs;
#[doc(hidden)]
pub mod doc;
mod domain;
mod fence;
mod files;
mod job;
mod kernel;
mod machine;
mod memory;
mod object;
mod offsets;
mod physical;
mod rocket;
mod sram;
mod state;
mod tasks;
mod time;
mod user;

pub use config::Config;
pub use domain::DOMAINS;
pub use fault::Fault;
pub use fence::FenceInfo;
pub use files::Node;
pub use hazard::Hazard;
pub use job::CORES;
pub use machine::{Acting, File, Machine, Mapping, Reservation, set_cpu, sync_dma_buf};
pub use report::{CallKind, Report};
pub use rustix::io::Errno;
