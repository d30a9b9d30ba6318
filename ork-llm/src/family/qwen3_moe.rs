//! Qwen 3's mixtures: the attention of Qwen 3, and experts behind a router.

use super::{LayerOf, Stack, layers};
use crate::block::{Experts, FeedForward, Pairs, Rope};
use crate::error::{Error, Result};
use crate::load::{Linear, Loader};
use crate::math::Activation;

pub(super) fn load(from: &Loader<'_>) -> Result<Stack> {
    let rope = Rope::read(from.metadata, Pairs::Halves, from.config.head, None)?;
    let layers = layers(from, |layer| {
        layer.normed_in(layer.normed_attention()?, FeedForward::Experts(experts(&layer)?))
    })?;
    Ok(Stack::plain(layers, rope))
}

fn experts(layer: &LayerOf<'_>) -> Result<Experts> {
    let from = layer.from;
    let count = from.metadata.count("expert_count")?;
    let used = from.metadata.count("expert_used_count")?;
    if used > count {
        let reason = format!("is {used}, but there are {count} experts");
        return Err(Error::key("qwen3moe.expert_used_count", reason));
    }
    let embedding = from.config.embedding;
    let width = from.metadata.count("expert_feed_forward_length")?;
    let router = layer.name("ffn_gate_inp.weight");
    let expert = |index: usize| {
        let part = |part: &str, k, n| -> Result<Linear> {
            let name = layer.name(&format!("{part}.weight#{index}"));
            Ok(Linear { weight: from.weight(&name, k, n)?, name: name.into(), bias: None })
        };
        Ok([
            part("ffn_gate_exps", embedding, width)?,
            part("ffn_up_exps", embedding, width)?,
            part("ffn_down_exps", width, embedding)?,
        ])
    };
    let matrix = from.matrix(&router, embedding, count)?;
    let router = matrix.ok_or_else(|| Error::tensor(router, "is missing"))?;
    let experts = (0..count).map(expert).collect::<Result<Vec<_>>>()?;
    Ok(Experts::new(router, experts, used, Activation::Silu))
}
