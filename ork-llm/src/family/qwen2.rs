//! Qwen 2 and 2.5: biases on queries, keys and values.

use super::{Stack, layers};
use crate::block::{Pairs, Rope};
use crate::error::{Error, Result};
use crate::load::Loader;
use crate::math::Activation;

pub(super) fn load(from: &Loader<'_>) -> Result<Stack> {
    let rope = Rope::read(from.metadata, Pairs::Halves, from.config.head, None)?;
    let layers = layers(from, |layer| {
        let attention = layer.attention()?;
        for linear in [&attention.query, &attention.key, &attention.value] {
            if linear.bias.is_none() {
                return Err(Error::tensor(linear.name.clone(), "has no bias beside it"));
            }
        }
        layer.normed_in(attention, layer.dense(Activation::Silu)?)
    })?;
    Ok(Stack::plain(layers, rope))
}
