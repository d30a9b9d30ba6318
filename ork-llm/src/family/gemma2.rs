//! Gemma 2: bounds on logits and on attention's products, every other layer with a window.

use super::{Stack, layers};
use crate::block::{Attention, Pairs, Rope};
use crate::error::Result;
use crate::load::Loader;
use crate::math::Activation;

/// Layers of the largest model, whose attention is scaled by the width of a head's share of a row.
const LAYERS_OF_27B: usize = 46;

pub(super) fn load(from: &Loader<'_>) -> Result<Stack> {
    let (config, metadata) = (&from.config, from.metadata);
    let rope = Rope::read(metadata, Pairs::Halves, config.head, None)?;
    let window = metadata.count_or("attention.sliding_window", Some(4096))?;
    let soft_cap = metadata.positive_or("attn_logit_softcapping", 50.0)?;
    let logit_cap = metadata.positive_or("final_logit_softcapping", 30.0)?;
    let width = match config.layers {
        LAYERS_OF_27B => config.embedding / config.heads,
        _ => config.head,
    };
    let layers = layers(from, |layer| {
        let attention = Attention {
            scale: 1.0 / (width as f32).sqrt(),
            soft_cap: Some(soft_cap),
            window: (layer.index % 2 == 0).then_some(window),
            ..layer.attention()?
        };
        layer.normed_in_and_out(attention, layer.dense(Activation::Gelu)?)
    })?;
    let embedding_scale = (config.embedding as f32).sqrt();
    Ok(Stack { layers, ropes: vec![rope], embedding_scale, logit_cap: Some(logit_cap) })
}
