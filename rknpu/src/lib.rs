//! Safe access to the NPU of the RK3588: domains, buffers, cores and matmul.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(target_endian = "big")]
compile_error!("the NPU is little-endian, and buffers are shared with it as they are");

mod arena;
pub mod buffer;
mod capabilities;
mod core;
mod device;
mod domain;
mod error;
mod health;
mod import;
mod job;
pub mod kernel;
pub mod limits;
mod lock;
mod mapping;
mod matmul;
mod open;
pub mod probe;
pub mod program;
pub mod reference;
mod scheduler;
mod signal;
mod worker;

pub use crate::core::{Core, Cores};
pub use arena::Arena;
pub use buffer::{Buffer, Host};
pub use capabilities::{Capabilities, Domains};
pub use device::{Device, DeviceStats};
pub use domain::{Active, Domain, DomainStats};
pub use error::{Call, Error, NodeAnswer, Result};
pub use health::{Health, Incident, PostMortem, Recovery};
pub use import::DmaBuf;
pub use job::{Job, Rejected, Running};
pub use lock::LockPolicy;
pub use matmul::{Element, Fp16, Int4, Int8, JobStats, Matmul, MatmulLimits, WeightRef};
pub use open::OpenOptions;
#[cfg(feature = "sim")]
pub use rknpu_sim as sim;
pub use rknpu_sys::layout::{Layout, LayoutError, Precision};
pub use signal::{SignalCleanup, clean_up_on_signals};
