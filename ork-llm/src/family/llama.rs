//! Llama 2 and 3, and what is built like them: Mistral, SmolLM2.

use super::{Stack, layers};
use crate::block::{Pairs, Rope};
use crate::error::{Error, Result};
use crate::load::Loader;
use crate::math::Activation;

pub(super) fn load(from: &Loader<'_>) -> Result<Stack> {
    if from.metadata.header.number("llama.expert_count").is_some_and(|experts| experts > 0) {
        let reason = "is not 0: mixtures of this family are not read";
        return Err(Error::key("llama.expert_count", reason));
    }
    let head = from.config.head;
    let rotated = from.metadata.count_or("rope.dimension_count", Some(head))?;
    // Llama 3.1's stretched context: a divisor for each pair.
    let factors = from.optional("rope_freqs.weight", rotated / 2)?;
    let rope = Rope::read(from.metadata, Pairs::Adjacent, head, factors)?;
    let layers =
        layers(from, |layer| layer.normed_in(layer.attention()?, layer.dense(Activation::Silu)?))?;
    Ok(Stack::plain(layers, rope))
}
