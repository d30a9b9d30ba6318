//! Experts of mixtures: how often recorded or made-up routings find them there.

mod decode;
mod last_used;

pub(crate) use decode::Decode;
pub(crate) use last_used::LastUsed;
