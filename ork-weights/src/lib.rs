//! Model weights for the RK3588 NPU: read, quantise, tile, and keep in .orkpack files

pub mod convert;
pub mod dequant;
mod mapping;
pub mod model;
pub mod pack;
pub mod quantise;
mod simd;
pub mod tile;

pub use mapping::Mapping;
