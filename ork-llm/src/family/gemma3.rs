//! Gemma 3: five layers with a window and positions of their own to each that sees everything.

use super::{Stack, layers};
use crate::block::{Attention, Pairs, Rope};
use crate::error::Result;
use crate::load::Loader;
use crate::math::Activation;

/// Layers of the largest model, whose attention is scaled by the width of a head's share of a row.
const LAYERS_OF_27B: usize = 62;
/// Places in [`Stack::ropes`].
const EVERYTHING: usize = 0;
const WINDOW: usize = 1;

pub(super) fn load(from: &Loader<'_>) -> Result<Stack> {
    let (config, metadata) = (&from.config, from.metadata);
    let everything = Rope::read(metadata, Pairs::Halves, config.head, None)?;
    let base = metadata.positive_or("rope.freq_base_swa", 10_000.0)?;
    let in_window = Rope::new(Pairs::Halves, config.head, base, |_| 1.0);
    let window = metadata.count_or("attention.sliding_window", Some(1024))?;
    let width = match config.layers {
        LAYERS_OF_27B => config.embedding / config.heads,
        _ => config.head,
    };
    let layers = layers(from, |layer| {
        let sees_everything = layer.index % 6 == 5;
        let attention = Attention {
            scale: 1.0 / (width as f32).sqrt(),
            rope: if sees_everything { EVERYTHING } else { WINDOW },
            window: (!sees_everything).then_some(window),
            ..layer.normed_attention()?
        };
        layer.normed_in_and_out(attention, layer.dense(Activation::Gelu)?)
    })?;
    let embedding_scale = (config.embedding as f32).sqrt();
    Ok(Stack { layers, ropes: vec![everything, in_window], embedding_scale, logit_cap: None })
}
