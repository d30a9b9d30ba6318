//! A small model of noise for every family.

use super::gguf::Model;

pub(crate) const VOCABULARY: u32 = 96;
/// Longer than the windows below.
pub(crate) const PROMPT: [u32; 14] = [3, 17, 95, 0, 44, 17, 8, 61, 30, 2, 77, 77, 5, 12];

const EMBEDDING: u64 = 64;
const FEED_FORWARD: u64 = 96;

struct Shape {
    layers: u32,
    heads: u64,
    kv_heads: u64,
    head: u64,
}

fn model(architecture: &str, seed: u64, shape: &Shape) -> Model {
    let key = |key: &str| format!("{architecture}.{key}");
    Model::new(architecture, seed)
        .number(&key("vocab_size"), VOCABULARY)
        .number(&key("context_length"), 256)
        .number(&key("block_count"), shape.layers)
        .number(&key("embedding_length"), EMBEDDING as u32)
        .number(&key("feed_forward_length"), FEED_FORWARD as u32)
        .number(&key("attention.head_count"), shape.heads as u32)
        .number(&key("attention.head_count_kv"), shape.kv_heads as u32)
        .number(&key("attention.key_length"), shape.head as u32)
        .number(&key("attention.value_length"), shape.head as u32)
        .number(&key("rope.dimension_count"), shape.head as u32)
        .float(&key("attention.layer_norm_rms_epsilon"), 1e-6)
        .tensor("token_embd.weight", &[EMBEDDING, VOCABULARY.into()], 0.0, 0.8)
        .tensor("output_norm.weight", &[EMBEDDING], 1.0, 0.2)
}

fn norm(model: Model, layer: u32, part: &str, len: u64) -> Model {
    model.tensor(&format!("blk.{layer}.{part}.weight"), &[len], 1.0, 0.3)
}

fn linear(model: Model, layer: u32, part: &str, dimensions: &[u64]) -> Model {
    model.tensor(&format!("blk.{layer}.{part}.weight"), dimensions, 0.0, 0.25)
}

/// Norms on the way in, attention, and the feed-forward part of a dense model.
fn layer(mut model: Model, index: u32, shape: &Shape, dense: bool) -> Model {
    let (width, kv) = (shape.heads * shape.head, shape.kv_heads * shape.head);
    model = norm(model, index, "attn_norm", EMBEDDING);
    model = linear(model, index, "attn_q", &[EMBEDDING, width]);
    model = linear(model, index, "attn_k", &[EMBEDDING, kv]);
    model = linear(model, index, "attn_v", &[EMBEDDING, kv]);
    model = linear(model, index, "attn_output", &[width, EMBEDDING]);
    model = norm(model, index, "ffn_norm", EMBEDDING);
    if dense {
        model = linear(model, index, "ffn_gate", &[EMBEDDING, FEED_FORWARD]);
        model = linear(model, index, "ffn_up", &[EMBEDDING, FEED_FORWARD]);
        model = linear(model, index, "ffn_down", &[FEED_FORWARD, EMBEDDING]);
    }
    model
}

fn head_norms(model: Model, index: u32, shape: &Shape) -> Model {
    let model = norm(model, index, "attn_q_norm", shape.head);
    norm(model, index, "attn_k_norm", shape.head)
}

fn out_norms(model: Model, index: u32) -> Model {
    let model = norm(model, index, "post_attention_norm", EMBEDDING);
    norm(model, index, "post_ffw_norm", EMBEDDING)
}

/// A head of its own, and a stretched context.
pub(crate) fn llama() -> Model {
    let shape = Shape { layers: 2, heads: 4, kv_heads: 2, head: 16 };
    let mut made = model("llama", 1, &shape)
        .float("llama.rope.freq_base", 500.0)
        .tensor("rope_freqs.weight", &[8], 3.0, 2.0)
        .tensor("output.weight", &[EMBEDDING, VOCABULARY.into()], 0.0, 0.3);
    for index in 0..shape.layers {
        made = layer(made, index, &shape, true);
    }
    made
}

/// Heads of their own keys, positions drawn together.
pub(crate) fn llama_scaled() -> Model {
    let shape = Shape { layers: 2, heads: 4, kv_heads: 4, head: 16 };
    let mut made = model("llama", 2, &shape)
        .text("llama.rope.scaling.type", "linear")
        .float("llama.rope.scaling.factor", 4.0);
    for index in 0..shape.layers {
        made = layer(made, index, &shape, true);
    }
    made
}

pub(crate) fn qwen2() -> Model {
    let shape = Shape { layers: 2, heads: 4, kv_heads: 1, head: 16 };
    let mut made = model("qwen2", 3, &shape).float("qwen2.rope.freq_base", 1000.0);
    for index in 0..shape.layers {
        made = layer(made, index, &shape, true);
        for (part, len) in [("attn_q", 64), ("attn_k", 16), ("attn_v", 16)] {
            made = made.tensor(&format!("blk.{index}.{part}.bias"), &[len], 0.0, 0.5);
        }
    }
    made
}

/// Heads whose widths do not add up to the model's.
pub(crate) fn qwen3() -> Model {
    let shape = Shape { layers: 2, heads: 4, kv_heads: 2, head: 32 };
    let mut made = model("qwen3", 4, &shape).float("qwen3.rope.freq_base", 1000.0);
    for index in 0..shape.layers {
        made = head_norms(layer(made, index, &shape, true), index, &shape);
    }
    made
}

pub(crate) fn qwen3_moe() -> Model {
    let shape = Shape { layers: 2, heads: 4, kv_heads: 2, head: 32 };
    let (experts, width) = (6, 32);
    let mut made = model("qwen3moe", 5, &shape)
        .float("qwen3moe.rope.freq_base", 1000.0)
        .number("qwen3moe.expert_count", experts as u32)
        .number("qwen3moe.expert_used_count", 2)
        .number("qwen3moe.expert_feed_forward_length", width as u32);
    for index in 0..shape.layers {
        made = head_norms(layer(made, index, &shape, false), index, &shape);
        made = linear(made, index, "ffn_gate_inp", &[EMBEDDING, experts]);
        made = linear(made, index, "ffn_gate_exps", &[EMBEDDING, width, experts]);
        made = linear(made, index, "ffn_up_exps", &[EMBEDDING, width, experts]);
        made = linear(made, index, "ffn_down_exps", &[width, EMBEDDING, experts]);
    }
    made
}

/// Windows of 5 tokens in every other layer.
pub(crate) fn gemma2() -> Model {
    let shape = Shape { layers: 4, heads: 4, kv_heads: 2, head: 16 };
    let mut made = model("gemma2", 6, &shape)
        .number("gemma2.attention.sliding_window", 5)
        .float("gemma2.attn_logit_softcapping", 2.0)
        .float("gemma2.final_logit_softcapping", 9.0);
    for index in 0..shape.layers {
        made = out_norms(layer(made, index, &shape, true), index);
    }
    made
}

/// Windows of 5 tokens in all layers but the sixth.
pub(crate) fn gemma3() -> Model {
    let shape = Shape { layers: 7, heads: 4, kv_heads: 1, head: 32 };
    let mut made = model("gemma3", 7, &shape)
        .number("gemma3.attention.sliding_window", 5)
        .float("gemma3.rope.freq_base", 300.0)
        .text("gemma3.rope.scaling.type", "linear")
        .float("gemma3.rope.scaling.factor", 8.0);
    for index in 0..shape.layers {
        made = head_norms(layer(made, index, &shape, true), index, &shape);
        made = out_norms(made, index);
    }
    made
}

/// Gives a model a vocabulary of one control token and the 95 characters of ASCII that are printed.
pub(crate) fn with_characters(model: Model) -> Model {
    let mut tokens = vec!["<|end|>".to_owned(), "\u{120}".into()]; // the second is a space
    tokens.extend(('!'..='~').map(String::from));
    let texts: Vec<&[u8]> = tokens.iter().map(|token| token.as_bytes()).collect();
    let types: Vec<i32> = (0..tokens.len()).map(|token| if token == 0 { 3 } else { 1 }).collect();
    model
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &texts)
        .numbers("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", &[])
        .number("tokenizer.ggml.eos_token_id", 0)
}

/// Every model, by the name that the reference data has for it.
pub(crate) fn all() -> [(&'static str, Model); 7] {
    let models = [
        ("llama", llama()),
        ("llama-scaled", llama_scaled()),
        ("qwen2", qwen2()),
        ("qwen3", qwen3()),
        ("qwen3-moe", qwen3_moe()),
        ("gemma2", gemma2()),
        ("gemma3", gemma3()),
    ];
    models.map(|(name, model)| (name, model.text("tokenizer.ggml.model", "no_vocab")))
}
