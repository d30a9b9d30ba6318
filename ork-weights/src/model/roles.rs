//! What a tensor is for, by its name: the one place to extend for names that are not known yet.
//!
//! Names are llama.cpp's in GGUF files and those of the modules in files of the hub. Of a name the
//! parts behind the block's number count, without `.weight`; a row fits when its pattern is the end of
//! that, part by part. `*` in a part stands for any characters, and `N` for a number.

/// What a tensor is for.
///
/// ```
/// use ork_weights::model::Role;
///
/// assert_eq!(Role::of("blk.0.attn_q.weight"), Role::Linear);
/// assert_eq!(Role::of("model.layers.0.mlp.gate.weight"), Role::Router);
/// assert_eq!(Role::of("blk.0.ffn_gate_exps.bias"), Role::Bias);
/// assert_eq!(Role::of("something.else.weight"), Role::Unknown);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Role {
    /// A matrix of a multiplication.
    Linear,
    /// A matrix of an expert, or a stack of them.
    Expert,
    /// The output head: hidden state to scores of tokens.
    Head,
    /// A table that is looked up.
    Embedding,
    /// Chooses experts; stays in full precision.
    Router,
    /// Weights of a normalisation.
    Norm,
    /// Is added.
    Bias,
    /// Positions, rotary frequencies, relative positions.
    Position,
    /// Of a convolution.
    Convolution,
    /// Scales, states, masks and other things that no matrix multiplication uses.
    Other,
    /// The name is not known.
    Unknown,
}

impl Role {
    /// The role that a name tells.
    ///
    /// ```
    /// use ork_weights::model::Role;
    ///
    /// assert_eq!(Role::of("transformer.h.3.mlp.c_fc.weight"), Role::Linear);
    /// ```
    pub fn of(name: &str) -> Role {
        Place::of(name).role
    }

    /// The role for people.
    ///
    /// ```
    /// use ork_weights::model::Role;
    ///
    /// assert_eq!(Role::Head.name(), "output head");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Role::Linear => "linear",
            Role::Expert => "expert",
            Role::Head => "output head",
            Role::Embedding => "embedding",
            Role::Router => "router",
            Role::Norm => "norm",
            Role::Bias => "bias",
            Role::Position => "position",
            Role::Convolution => "convolution",
            Role::Other => "other",
            Role::Unknown => "unknown",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Which of its block's activations a weight multiplies, where others of the block multiply the same.
///
/// ```
/// # use ork_weights::model::{Input, Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// let input = |name: &str| model.weight(name).and_then(|weight| weight.input);
/// assert_eq!(input("blk.0.attn_q.weight"), Some(Input::Attention));
/// assert_eq!(input("blk.0.attn_v.weight"), Some(Input::Attention)); // one product list with q
/// assert_eq!(input("blk.0.ffn_gate.weight"), Some(Input::FeedForward));
/// assert_eq!(input("blk.0.ffn_down.weight"), None); // alone
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Input {
    /// What attention, or what stands in its place, begins with: q, k, v and gates.
    Attention,
    /// What an encoder gave: k and v of attention to it.
    Encoder,
    /// What feed-forward layers begin with: gate and up, those of experts included.
    FeedForward,
}

impl Input {
    /// The input for people.
    ///
    /// ```
    /// assert_eq!(ork_weights::model::Input::FeedForward.name(), "feed-forward");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Input::Attention => "attention",
            Input::Encoder => "encoder",
            Input::FeedForward => "feed-forward",
        }
    }
}

/// What a name says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub(super) role: Role,
    /// The name in front of the block's number; empty where there is none.
    pub(super) tower: &'a str,
    pub(super) block: Option<u32>,
    /// Which expert, where each is a tensor of its own.
    pub(super) expert: Option<u32>,
    /// Place in a forward pass through its block.
    pub(super) step: u8,
}

impl<'a> Place<'a> {
    /// Which input it shares: the steps of the table say.
    pub(super) fn input(&self) -> Option<Input> {
        match (self.block?, self.step) {
            (_, 10 | 12 | 13 | 15..=18) => Some(Input::Attention),
            (_, 31 | 32) => Some(Input::Encoder),
            (_, 40 | 41 | 50 | 51) => Some(Input::FeedForward),
            _ => None,
        }
    }

    pub(super) fn of(name: &'a str) -> Place<'a> {
        let (tower, block, rest) = split(name);
        let rest = rest.strip_suffix(".weight").unwrap_or(rest);
        let parts: Vec<&str> = rest.split('.').collect();
        let row = ROWS.iter().find(|row| {
            (block.is_none() || row.role != Role::Head)
                && row.ends.iter().any(|end| fits(end, &parts))
        });
        let (mut role, step) = match row {
            Some(row) => (row.role, row.step),
            None if BIASES.iter().any(|end| rest.ends_with(end)) => (Role::Bias, 0),
            None => (Role::Unknown, 99),
        };
        let expert = expert(&parts);
        if role == Role::Linear && (expert.is_some() || parts.contains(&"experts")) {
            role = Role::Expert;
        }
        Place { role, tower, block, expert, step }
    }
}

/// Tower, block and the rest: `model.layers.7.mlp.up_proj` is block 7 of `model.layers`. A number with
/// nothing behind it but the kind of parameter is no block's: `mm.0.weight`.
fn split(name: &str) -> (&str, Option<u32>, &str) {
    let mut at = 0;
    for part in name.split('.') {
        let rest = name.get(at + part.len() + 1..).unwrap_or("");
        if at > 0
            && let Ok(block) = part.parse()
            && !matches!(rest, "weight" | "bias" | "")
        {
            return (&name[..at - 1], Some(block), rest);
        }
        at += part.len() + 1;
    }
    ("", None, name)
}

/// The number behind `experts`, or behind a matrix's own name as old conversions of Mixtral have it.
fn expert(parts: &[&str]) -> Option<u32> {
    parts.windows(2).find_map(|pair| match pair {
        ["experts" | "ffn_gate" | "ffn_up" | "ffn_down", number] => number.parse().ok(),
        _ => None,
    })
}

/// Whether `pattern` is the end of a name.
fn fits(pattern: &str, parts: &[&str]) -> bool {
    let mut parts = parts.iter().rev();
    pattern.rsplit('.').all(|pattern| match parts.next() {
        Some(part) if pattern == "N" => part.bytes().all(|byte| byte.is_ascii_digit()),
        Some(part) => crate::pattern::matches(pattern, part),
        None => false,
    })
}

/// Ends of names of what is added, beside those in the table.
const BIASES: [&str; 3] = [".bias", "_bias", "_b"];

/// The step of what comes behind all blocks.
pub(super) const BEHIND: u8 = 90;

struct Row {
    role: Role,
    step: u8,
    ends: &'static [&'static str],
}

const fn row(role: Role, step: u8, ends: &'static [&'static str]) -> Row {
    Row { role, step, ends }
}

/// The first row that fits counts. Steps are the order in which a pass uses the matrices of a block.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    row(Role::Position, 0, &[
        "position_embd", "pos_embd*", "wpe", "position_embeddings", "embed_positions", "position_embedding",
        "positional_embedding", "pos_embed*", "rope_freqs", "rope_factors_*", "freqs", "inv_freq", "attn_rot_embd",
        "attn_rel_b", "cross_attn_rel_b", "relative_attention_bias", "rel_pos*", "attn_k_rel", "attn_rel_pos_emb",
        "linear_pos", "pos_h", "pos_w",
    ]),
    row(Role::Bias, 0, &["*.bias", "exp_probs_b", "*e_score_correction*", "expert_bias"]),
    row(Role::Norm, 0, &[
        "*norm*", "*Norm*", "ln", "ln_*", "ln1", "ln2", "ln3", "*_ln", "norm_f", "bn", "pre_layrnorm", "after_rms",
        "before_rms",
    ]),
    row(Role::Router, 0, &[
        "ffn_gate_inp", "ffn_gate_inp_shexp", "mlp.gate", "block_sparse_moe.gate", "feed_forward.gate", "mixer.gate",
        "moe.gate", "gate.wg", "router", "router.layer", "router.proj", "router.gate", "*_router", "altup_router",
        "shared_expert_gate",
    ]),
    row(Role::Embedding, 0, &[
        "token_embd", "embed_tokens", "wte", "tok_embeddings", "word_embeddings", "embed_in", "shared", "embeddings",
        "in_out_embed", "token_embeddings", "token_types", "token_type_embeddings", "per_layer_token_embd",
        "embed_tokens_per_layer", "class_embd", "class_embedding", "query_tokens",
    ]),
    row(Role::Convolution, 0, &[
        "*conv", "conv*", "*conv1d*", "*conv2d*", "patch_embd*", "patch_embedding", "patch_embed.proj",
        "patch_embedder", "dw", "pw1", "pw2",
    ]),
    row(Role::Other, 0, &[
        "ssm_a", "ssm_d", "A_log", "D", "dt_bias", "*scale", "*scale_*", "*_coef", "attn_sinks", "sinks", "gamma",
        "ls1", "ls2", "ls_*", "lambda_*", "gate_attn", "gate_ffwd", "masked_bias", "time_mix_lerp*", "time_mix_first",
        "time_mix_decay", "channel_mix_lerp*", "altup_proj", "altup_unembd_proj", "router_scale", "out_scale",
    ]),
    row(Role::Head, 99, &[
        "output", "lm_head", "embed_out", "output_layer", "lm_head.linear", "word_embeddings_for_head", "head",
        "head.decoder", "predictions.decoder", "proj_out",
    ]),
    // Multi-token prediction puts two states together before its block.
    row(Role::Linear, 1, &["eh_proj", "nextn.eh_proj"]),
    // Attention to an encoder's output comes behind the block's own.
    row(Role::Linear, 30, &["cross_attn_q", "EncDecAttention.q", "encoder_attn.q_proj"]),
    row(Role::Linear, 31, &["cross_attn_k", "EncDecAttention.k", "encoder_attn.k_proj"]),
    row(Role::Linear, 32, &["cross_attn_v", "EncDecAttention.v", "encoder_attn.v_proj"]),
    row(Role::Linear, 33, &["cross_attn_o", "cross_attn_out", "EncDecAttention.o", "encoder_attn.out_proj"]),
    // T5 calls two matrices alike.
    row(Role::Linear, 42, &["DenseReluDense.wo"]),
    // Attention, whose first matrices share the block's input.
    row(Role::Linear, 10, &["q_a_proj", "attn_q_a"]),
    row(Role::Linear, 11, &["q_b_proj", "attn_q_b", "indexer.attn_q_b"]),
    row(Role::Linear, 12, &[
        "attn_qkv", "attn_q", "q_proj", "query", "wq", "Wqkv", "query_key_value", "qkv_proj", "qkv", "c_attn",
        "q_lin", "SelfAttention.q", "attn.q", "linear_q", "to_q", "wqkv", "in_proj_qkv", "in_proj_qkvz",
        "self_attn_q", "vis_attn_qkv",
    ]),
    row(Role::Linear, 13, &["attn_kv_a_mqa", "kv_a_proj_with_mqa"]),
    row(Role::Linear, 14, &["attn_kv_b", "kv_b_proj"]),
    row(Role::Linear, 15, &[
        "attn_k", "attn_k_b", "k_proj", "key", "wk", "k_lin", "SelfAttention.k", "attn.k", "linear_k", "to_k",
        "self_attn_k", "indexer.attn_k",
    ]),
    row(Role::Linear, 16, &[
        "attn_v", "attn_v_b", "v_proj", "value", "wv", "v_lin", "SelfAttention.v", "attn.v", "linear_v", "to_v",
        "self_attn_v",
    ]),
    row(Role::Linear, 17, &["indexer.proj", "attn_gate", "in_proj_z", "in_proj_ba", "g_proj", "ssm_ba"]),
    // State-space models and their like.
    row(Role::Linear, 18, &["ssm_in", "in_proj", "shortconv.in_proj"]),
    row(Role::Linear, 19, &[
        "ssm_x", "x_proj", "ssm_alpha", "ssm_beta", "ssm_f_a", "ssm_g_a", "in_proj_a", "in_proj_b",
    ]),
    row(Role::Linear, 20, &["ssm_dt", "dt_proj", "ssm_f_b", "ssm_g_b"]),
    row(Role::Linear, 21, &["ssm_out"]),
    row(Role::Linear, 22, &[
        "attn_output", "attn_out", "attn_o", "o_proj", "out_proj", "wo", "Wo", "SelfAttention.o", "attn.c_proj",
        "attention.dense", "self_attention.dense", "self_attn.dense", "attention.output.dense", "out_lin", "to_out",
        "linear_out", "attn.proj", "vis_attn_output", "self_attn_out",
    ]),
    // Feed-forward: gate and up share their input.
    row(Role::Linear, 50, &["shared_expert*.gate_proj", "shared_mlp.gate_proj", "ffn_gate_shexp"]),
    row(Role::Linear, 51, &["shared_expert*.up_proj", "shared_mlp.up_proj", "ffn_up_shexp"]),
    row(Role::Linear, 52, &["shared_expert*.down_proj", "shared_mlp.down_proj", "ffn_down_shexp"]),
    row(Role::Expert, 40, &[
        "ffn_gate_exps", "ffn_gate_up_exps", "ffn_gate.N", "experts.gate_up_proj", "experts.gate_proj",
    ]),
    row(Role::Expert, 41, &["ffn_up_exps", "ffn_up.N", "experts.up_proj"]),
    row(Role::Expert, 42, &["ffn_down_exps", "ffn_down.N", "experts.down_proj"]),
    row(Role::Expert, 55, &["ffn_gate_chexps"]),
    row(Role::Expert, 56, &["ffn_up_chexps"]),
    row(Role::Expert, 57, &["ffn_down_chexps"]),
    row(Role::Linear, 38, &["ffn_latent_down"]),
    row(Role::Linear, 58, &["ffn_latent_up"]),
    row(Role::Linear, 40, &[
        "ffn_gate", "gate_proj", "w1", "gate_up_proj", "wi_0", "vis_gate", "linear_gate", "mlp.gate_up",
    ]),
    row(Role::Linear, 41, &[
        "ffn_up", "up_proj", "w3", "fc1", "fc_in", "c_fc", "dense_h_to_4h", "intermediate.dense", "Wi", "wi", "wi_1",
        "lin1", "linear_fc1", "linear1", "linear_3", "vis_up", "ffn_up_1", "fc11", "ffw_layer_1",
    ]),
    row(Role::Linear, 42, &[
        "ffn_down", "down_proj", "w2", "fc2", "fc_out", "mlp.c_proj", "dense_4h_to_h", "output.dense",
        "DenseReluDense.wo", "lin2", "linear_fc2", "linear2", "vis_down", "ffn_down_1", "ffw_layer_2",
    ]),
    row(Role::Linear, 60, &["laurel_l", "inp_gate", "per_layer_input_gate"]),
    row(Role::Linear, 61, &["laurel_r", "proj", "per_layer_projection", "shared_head_head", "shared_head.head"]),
    // Between towers.
    row(Role::Linear, 0, &[
        "per_layer_model_proj", "per_layer_model_projection", "embedding_projection", "mm_input_projection",
        "input_projection", "mm.N", "mlp.N", "merger.mlp.N", "linear_1", "linear_2", "modality_projection.proj",
        "multi_modal_projector.linear",
    ]),
    // Behind the last block.
    row(Role::Linear, BEHIND, &["dense_2", "dense_3", "cls", "classifier", "score", "pooler.dense"]),
    // RWKV.
    row(Role::Linear, 12, &["time_mix_receptance", "attention.receptance"]),
    row(Role::Linear, 13, &["time_mix_key", "time_mix_value", "time_mix_gate"]),
    row(Role::Linear, 22, &["time_mix_output"]),
    row(Role::Linear, 40, &["channel_mix_key", "channel_mix_receptance"]),
    row(Role::Linear, 42, &["channel_mix_value"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let place = Place::of("model.layers.7.block_sparse_moe.experts.3.w2.weight");
        let (tower, block, expert) = ("model.layers", Some(7), Some(3));
        assert_eq!(place, Place { role: Role::Expert, tower, block, expert, step: 42 });
        let place = Place::of("blk.1.ffn_gate.5.weight");
        assert_eq!((place.role, place.block, place.expert), (Role::Expert, Some(1), Some(5)));
        let place = Place::of("decoder.block.2.layer.1.EncDecAttention.k.weight");
        assert_eq!((place.role, place.tower, place.step), (Role::Linear, "decoder.block", 31));
        for name in ["", ".", "7", "..weight", "blk.", "blk.4294967296.x", "a.0.weight", ".weight"]
        {
            let _ = Place::of(name); // whatever it is, no panic
        }
    }

    #[test]
    fn a_head_has_no_block() {
        assert_eq!(Role::of("output.weight"), Role::Head);
        assert_eq!(Role::of("lm_head.weight"), Role::Head);
        assert_ne!(Role::of("blk.0.output.weight"), Role::Head);
    }
}
