//! The rknpu kernel driver and the RK3588 NPU in software.

pub mod engine;
pub mod npu;
