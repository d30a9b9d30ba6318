//! The families of models: which parts their layers have, one file each.

mod gemma2;
mod gemma3;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3_moe;

use crate::block::{Attention, Dense, FeedForward, Layer, RmsNorm, Rope};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::load::{Linear, Loader};
use crate::math::Activation;

/// The layers of a model, and what is done before and after them.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) layers: Vec<Layer>,
    /// Each kind of rope that layers have; attention names its by the place in this list.
    pub(crate) ropes: Vec<Rope>,
    /// What embeddings are multiplied by.
    pub(crate) embedding_scale: f32,
    /// Bound of the logits.
    pub(crate) logit_cap: Option<f32>,
}

/// Takes a model's layers from its file.
type Load = fn(&Loader<'_>) -> Result<Stack>;

/// Families by what `general.architecture` calls them.
const FAMILIES: [(&str, Load); 6] = [
    ("llama", llama::load),
    ("qwen2", qwen2::load),
    ("qwen3", qwen3::load),
    ("qwen3moe", qwen3_moe::load),
    ("gemma2", gemma2::load),
    ("gemma3", gemma3::load),
];

/// The families that have a decoder, as `general.architecture` calls them.
///
/// ```
/// assert!(ork_llm::families().any(|family| family == "llama"));
/// ```
pub fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.0)
}

/// How to load models of a family.
pub(crate) fn named(architecture: &str) -> Result<Load> {
    let found = FAMILIES.iter().find(|family| family.0 == architecture);
    found.map(|family| family.1).ok_or_else(|| Error::Family {
        architecture: architecture.into(),
        known: families().collect::<Vec<_>>().join(", "),
    })
}

impl Stack {
    /// Layers of one kind of rope, without scale or bound.
    fn plain(layers: Vec<Layer>, rope: Rope) -> Stack {
        Stack { layers, ropes: vec![rope], embedding_scale: 1.0, logit_cap: None }
    }
}

/// One layer's tensors, by the names that GGUF gives them.
struct LayerOf<'a> {
    from: &'a Loader<'a>,
    index: usize,
}

impl LayerOf<'_> {
    fn name(&self, part: &str) -> String {
        format!("blk.{}.{part}", self.index)
    }

    fn linear(&self, part: &str, k: usize, n: usize) -> Result<Linear> {
        self.from.linear(&self.name(part), k, n)
    }

    /// A norm of rows between layers.
    fn norm(&self, part: &str) -> Result<RmsNorm> {
        self.from.norm(&self.name(part), self.from.config.embedding)
    }

    /// Grouped attention over the whole text, without norms of heads.
    fn attention(&self) -> Result<Attention> {
        let Config { embedding, heads, kv_heads, head, .. } = self.from.config;
        Ok(Attention {
            query: self.linear("attn_q", embedding, heads * head)?,
            key: self.linear("attn_k", embedding, kv_heads * head)?,
            value: self.linear("attn_v", embedding, kv_heads * head)?,
            output: self.linear("attn_output", heads * head, embedding)?,
            norms: None,
            rope: 0,
            head,
            scale: 1.0 / (head as f32).sqrt(),
            soft_cap: None,
            window: None,
        })
    }

    /// [`attention`](LayerOf::attention) that norms each head's queries and keys.
    fn normed_attention(&self) -> Result<Attention> {
        let norm = |part| self.from.norm(&self.name(part), self.from.config.head);
        let norms = Some((norm("attn_q_norm.weight")?, norm("attn_k_norm.weight")?));
        Ok(Attention { norms, ..self.attention()? })
    }

    /// The feed-forward part of a dense model.
    fn dense(&self, activation: Activation) -> Result<FeedForward> {
        let Config { embedding, feed_forward, .. } = self.from.config;
        Ok(FeedForward::Dense(Dense {
            gate: self.linear("ffn_gate", embedding, feed_forward)?,
            up: self.linear("ffn_up", embedding, feed_forward)?,
            down: self.linear("ffn_down", feed_forward, embedding)?,
            activation,
        }))
    }

    /// A layer whose parts are normed on the way in.
    fn normed_in(&self, attention: Attention, feed_forward: FeedForward) -> Result<Layer> {
        Ok(Layer {
            attention_norm: self.norm("attn_norm.weight")?,
            attention,
            attention_out_norm: None,
            feed_forward_norm: self.norm("ffn_norm.weight")?,
            feed_forward,
            feed_forward_out_norm: None,
        })
    }

    /// A layer whose parts are normed on the way in and on the way out.
    fn normed_in_and_out(&self, attention: Attention, feed_forward: FeedForward) -> Result<Layer> {
        Ok(Layer {
            attention_out_norm: Some(self.norm("post_attention_norm.weight")?),
            feed_forward_out_norm: Some(self.norm("post_ffw_norm.weight")?),
            ..self.normed_in(attention, feed_forward)?
        })
    }
}

/// Makes every layer of a model.
fn layers(from: &Loader<'_>, make: impl Fn(LayerOf<'_>) -> Result<Layer>) -> Result<Vec<Layer>> {
    (0..from.config.layers).map(|index| make(LayerOf { from, index })).collect()
}
