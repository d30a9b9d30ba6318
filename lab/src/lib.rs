//! The project's own experiments. Nothing that a user needs is here.

mod experts;
pub mod figures;
pub mod policies;
pub mod promises;
pub mod replay;
mod virtual_time;

/// Result of an experiment.
pub type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;
