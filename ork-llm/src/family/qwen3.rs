//! Qwen 3: norms on each head's queries and keys.

use super::{Stack, layers};
use crate::block::{Pairs, Rope};
use crate::error::Result;
use crate::load::Loader;
use crate::math::Activation;

pub(super) fn load(from: &Loader<'_>) -> Result<Stack> {
    let rope = Rope::read(from.metadata, Pairs::Halves, from.config.head, None)?;
    let layers = layers(from, |layer| {
        layer.normed_in(layer.normed_attention()?, layer.dense(Activation::Silu)?)
    })?;
    Ok(Stack::plain(layers, rope))
}
