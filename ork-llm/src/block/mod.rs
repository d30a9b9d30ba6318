//! What the layers of all families are put together from.

mod attention;
mod experts;
mod feed_forward;
mod layer;
mod norm;
mod pass;
mod rope;

pub(crate) use attention::Attention;
pub(crate) use experts::Experts;
pub(crate) use feed_forward::{Dense, FeedForward};
pub(crate) use layer::Layer;
pub(crate) use norm::RmsNorm;
pub(crate) use pass::{Pass, Scratch};
pub(crate) use rope::{Pairs, Rope};
