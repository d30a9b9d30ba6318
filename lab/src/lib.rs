//! The project's own experiments. Nothing that a user needs is here.

pub mod replay;
