//! The part of a layer after attention.

use super::{Experts, Pass, Scratch};
use crate::error::Result;
use crate::load::Linear;
use crate::math::Activation;

/// Of a dense model, or of a mixture.
#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Dense),
    Experts(Experts),
}

/// down(activation(gate(x)) · up(x)).
#[derive(Debug)]
pub(crate) struct Dense {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
    pub(crate) activation: Activation,
}

impl FeedForward {
    /// Replaces `scratch.part`, the normed rows, by what is added to them.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, scratch: &mut Scratch) -> Result<()> {
        match self {
            FeedForward::Dense(dense) => {
                let Scratch { part, gate, up, .. } = scratch;
                pass.multiply(part, [&dense.gate, &dense.up], [gate, up])?;
                dense.activation.gate(gate, up);
                pass.multiply(gate, [&dense.down], [part])
            }
            FeedForward::Experts(experts) => experts.forward(pass, scratch),
        }
    }
}
