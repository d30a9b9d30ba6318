//! Passes over the weights of models, through a budget of device memory: a caller of
//! [`ork_cache`], as any program may be.
//!
//! | part | what it does |
//! |---|---|
//! | [`activations`] | inputs, and digests of outputs |
//! | [`cpu`] | the same results, computed on the CPU |
//! | [`session`] | the matmuls of a pass, on resident and streamed weights |
//! | [`routed`] | which experts a batch goes to, where a model has them |
//! | [`traffic`] | made-up routings |

pub mod activations;
pub mod cpu;
mod engine;
mod model;
pub mod routed;
pub mod session;
pub mod traffic;
mod visits;
