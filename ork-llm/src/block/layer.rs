//! A layer: attention, then the feed-forward part, each around a sum that goes on.

use super::{Attention, FeedForward, Pass, RmsNorm, Scratch};
use crate::error::Result;
use crate::math::add;

/// One layer of any family.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: RmsNorm,
    pub(crate) attention: Attention,
    /// Norm of what attention gives, before it is added.
    pub(crate) attention_out_norm: Option<RmsNorm>,
    pub(crate) feed_forward_norm: RmsNorm,
    pub(crate) feed_forward: FeedForward,
    /// Norm of what the feed-forward part gives, before it is added.
    pub(crate) feed_forward_out_norm: Option<RmsNorm>,
}

impl Layer {
    /// Adds to `scratch.hidden` what this layer, `index` of all, has to say.
    pub(crate) fn forward(
        &self,
        index: usize,
        pass: &mut Pass<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        normed(&self.attention_norm, scratch);
        self.attention.forward(index, pass, scratch)?;
        add_part(self.attention_out_norm.as_ref(), scratch);
        normed(&self.feed_forward_norm, scratch);
        self.feed_forward.forward(pass, scratch)?;
        add_part(self.feed_forward_out_norm.as_ref(), scratch);
        Ok(())
    }
}

fn normed(norm: &RmsNorm, scratch: &mut Scratch) {
    scratch.part.resize(scratch.hidden.len(), 0.0);
    norm.apply(&scratch.hidden, &mut scratch.part);
}

fn add_part(norm: Option<&RmsNorm>, scratch: &mut Scratch) {
    if let Some(norm) = norm {
        norm.apply_in_place(&mut scratch.part);
    }
    add(&mut scratch.hidden, &scratch.part);
}
