//! Model weights for the RK3588 NPU: read, quantise, tile, and keep in .orkpack files

pub mod dequant;
mod mapping;
mod simd;

pub use mapping::Mapping;
