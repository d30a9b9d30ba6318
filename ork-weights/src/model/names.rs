//! Names of tensors and what they say: the one place to extend for names that are not known yet.
//!
//! Names are llama.cpp's in GGUF files and those of the modules in files of the hub. Of a name the
//! parts behind the block's number count, without `.weight`; a row fits when its pattern is the end of
//! that, part by part. `*` in a part stands for any characters, and `N` for a number.

use super::roles::Role;

/// What names with one of these ends are.
pub(super) struct Row {
    pub(super) role: Role,
    /// Place in a forward pass through its block.
    pub(super) step: u8,
    pub(super) ends: &'static [&'static str],
}

/// What holds for some architectures only: those whose `model_type` or `architectures` in config.json,
/// `general.architecture` or projector in a GGUF is one of `names`.
pub(super) struct Scheme {
    pub(super) names: &'static [&'static str],
    /// Before the rows for all.
    pub(super) rows: &'static [Row],
    /// Ends of names of matrices that have a row for each input instead of each output.
    pub(super) by_input: &'static [&'static str],
    /// The language model, where its name says that it is an encoder.
    pub(super) decoder: Option<&'static str>,
}

/// Ends of names of what is added, beside those in the table.
pub(super) const BIASES: [&str; 3] = [".bias", "_bias", "_b"];

/// The step of what comes behind all blocks.
pub(super) const BEHIND: u8 = 90;

const fn row(role: Role, step: u8, ends: &'static [&'static str]) -> Row {
    Row { role, step, ends }
}

/// The first one that fits counts.
pub(super) const SCHEMES: &[Scheme] = &[
    // Their linear layers are one-dimensional convolutions.
    Scheme {
        names: &[
            "gpt2",
            "openai-gpt",
            "imagegpt",
            "decision_transformer",
            "GPT2LMHeadModel",
            "GPT2Model",
        ],
        rows: &[],
        by_input: &["c_attn", "c_proj", "c_fc", "q_attn"],
        decoder: None,
    },
    // Gate and up, not up and down.
    Scheme {
        names: &["qwen", "QWenLMHeadModel"],
        rows: &[row(Role::Linear, 40, &["mlp.w2"]), row(Role::Linear, 41, &["mlp.w1"])],
        by_input: &[],
        decoder: None,
    },
    Scheme {
        names: &["chatglm", "ChatGLMModel", "ChatGLMForConditionalGeneration"],
        rows: &[],
        by_input: &[],
        decoder: Some("transformer.encoder"),
    },
    // Their projectors are multiplied from the other side.
    Scheme {
        names: &["gemma3"],
        rows: &[],
        by_input: &["mm_input_projection_weight", "mm.input_projection"],
        decoder: None,
    },
    Scheme { names: &["minicpmv"], rows: &[], by_input: &["resampler.proj"], decoder: None },
    // Names of attention elsewhere, and each matrix has a mixture of its own as input.
    Scheme {
        names: &["rwkv", "rwkv5", "rwkv6", "RwkvForCausalLM"],
        rows: &[
            row(Role::Other, 0, &["time_mix_*"]),
            row(Role::Linear, 23, &["attention.receptance"]),
            row(Role::Linear, 24, &["attention.key", "attention.value", "attention.gate"]),
            row(Role::Linear, 25, &["attention.output"]),
            row(Role::Linear, 43, &["feed_forward.key", "feed_forward.receptance"]),
            row(Role::Linear, 44, &["feed_forward.value"]),
        ],
        by_input: &[],
        decoder: None,
    },
    // All experts are one matrix, which comes apart by their number.
    Scheme { names: &["dbrx"], rows: &[], by_input: &["experts.mlp.w2"], decoder: None },
];

/// Experts that are rows of one matrix.
pub(super) const EXPERTS_IN_ROWS: [&str; 3] =
    ["experts.mlp.w1", "experts.mlp.v1", "experts.mlp.w2"];

/// The first row that fits counts. Steps are the order in which a pass uses the matrices of a block.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row(Role::Position, 0, &[
        "position_embd", "pos_embd*", "wpe", "position_embeddings", "embed_positions", "position_embedding",
        "positional_embedding", "positional_embedding_vlm", "pos_embed*", "rope_freqs", "rope_factors_*", "freqs",
        "inv_freq", "attn_rot_embd", "attn_rel_b", "cross_attn_rel_b", "relative_attention_bias", "rel_pos*",
        "attn_k_rel", "attn_rel_pos_emb", "linear_pos", "pos_h", "pos_w",
    ]),
    row(Role::Bias, 0, &["*.bias", "exp_probs_b", "*e_score_correction*", "expert_bias", "pos_bias_*"]),
    row(Role::Norm, 0, &[
        "*norm*", "*Norm*", "ln", "ln_*", "ln1", "ln2", "ln3", "*_ln", "norm_f", "bn*", "pre_layrnorm", "after_rms",
        "before_rms", "time_mix_k_k", "time_mix_k_a", "time_mix_r_k",
    ]),
    row(Role::Router, 0, &[
        "ffn_gate_inp", "ffn_gate_inp_shexp", "mlp.gate", "block_sparse_moe.gate", "feed_forward.gate", "mixer.gate",
        "moe.gate", "gate.wg", "router", "router.layer", "router.proj", "router.gate", "*_router", "altup_router",
        "shared_expert_gate",
    ]),
    row(Role::Embedding, 0, &[
        "token_embd", "embed_tokens", "wte", "tok_embeddings", "word_embeddings", "embed_in", "shared", "embeddings",
        "in_out_embed", "token_embeddings", "token_types", "token_type_embeddings", "per_layer_token_embd",
        "embed_tokens_per_layer", "class_embd", "class_embedding", "query_tokens", "token_embedding", "cls_token",
        "mask_token", "distillation_token", "register_tokens", "probe", "masked_spec_embed", "embed_audio.embedding",
        "embed_vision.embedding", "mm.embedding", "mm.a.embedding", "token_embd.img_break", "boi", "eoi", "image_begin",
        "image_end", "image_newline", "view_seperator", "resampler.query", "proj_query",
    ]),
    row(Role::Convolution, 0, &[
        "*conv", "conv*", "*conv1d*", "*conv2d*", "conv1d.N", "conv2d.N", "conv.parametrizations.weight.*",
        "patch_embd*", "patch_embedding", "patch_embed.proj", "patch_embeddings.projection", "patch_embedder", "dw",
        "pw1", "pw2", "peg.N", "neck.N", "net_*",
    ]),
    row(Role::Other, 0, &[
        "ssm_a", "ssm_d", "A_log", "D", "dt_bias", "*scale", "*scale_*", "*_coef", "*_coefs", "attn_sinks", "sinks",
        "gamma", "ls1", "ls2", "ls_*", "lambda_*", "gate_attn", "gate_ffwd", "masked_bias", "time_mix_lerp*",
        "time_mix_first", "time_mix_decay", "channel_mix_lerp*", "router_scale", "out_scale", "time_decay", "time_first",
        "time_mix_r", "time_mix_k", "time_mix_v", "time_mix_g", "time_mix_w0", "time_mix_a0", "time_mix_v0",
        "time_mix_x", "time_maa_*",
    ]),
    // Heads of parts of a model are not the model's.
    row(Role::Linear, BEHIND, &["text_model.head", "lm_head.dense", "head.dense"]),
    row(Role::Head, 99, &[
        "output", "lm_head", "embed_out", "output_layer", "lm_head.linear", "word_embeddings_for_head", "head",
        "head.decoder", "lm_head.decoder", "predictions.decoder", "proj_out", "vocab_projector", "transformer.ff_out",
    ]),
    // Multi-token prediction puts two states together before its block.
    row(Role::Linear, 1, &["eh_proj", "nextn.eh_proj"]),
    // Conformers have feed-forward layers before attention too.
    row(Role::Linear, 2, &["ffw_layer_start.ffw_layer_1"]),
    row(Role::Linear, 3, &["ffw_layer_start.ffw_layer_2"]),
    // Attention to an encoder's output comes behind the block's own.
    row(Role::Linear, 30, &["cross_attn_q", "EncDecAttention.q", "encoder_attn.q_proj", "cross_attn.query"]),
    row(Role::Linear, 31, &["cross_attn_k", "EncDecAttention.k", "encoder_attn.k_proj", "cross_attn.key"]),
    row(Role::Linear, 32, &["cross_attn_v", "EncDecAttention.v", "encoder_attn.v_proj", "cross_attn.value"]),
    row(Role::Linear, 33, &[
        "cross_attn_o", "cross_attn_out", "EncDecAttention.o", "encoder_attn.out_proj", "cross_attn.out",
    ]),
    // Names that attention has too.
    row(Role::Linear, 42, &["DenseReluDense.wo", "mlp.Wo"]),
    // Attention, whose first matrices share the block's input.
    row(Role::Linear, 10, &["q_a_proj", "attn_q_a"]),
    row(Role::Linear, 11, &["q_b_proj", "attn_q_b", "indexer.attn_q_b", "indexer.wq_b"]),
    row(Role::Linear, 12, &[
        "attn_qkv", "attn_q", "q_proj", "query", "wq", "Wqkv", "query_key_value", "qkv_proj", "qkv", "c_attn",
        "q_lin", "SelfAttention.q", "attn.q", "linear_q", "to_q", "wqkv", "in_proj_qkv", "in_proj_qkvz",
        "self_attn_q", "vis_attn_qkv", "W_pack", "att_proj", "in_proj_weight",
    ]),
    row(Role::Linear, 13, &["attn_kv_a_mqa", "kv_a_proj_with_mqa"]),
    row(Role::Linear, 14, &["attn_kv_b", "kv_b_proj", "resampler.kv"]),
    row(Role::Linear, 15, &[
        "attn_k", "attn_k_b", "k_proj", "key", "wk", "k_lin", "SelfAttention.k", "attn.k", "linear_k", "to_k",
        "self_attn_k", "indexer.attn_k",
    ]),
    row(Role::Linear, 16, &[
        "attn_v", "attn_v_b", "v_proj", "value", "wv", "v_lin", "SelfAttention.v", "attn.v", "linear_v", "to_v",
        "self_attn_v",
    ]),
    row(Role::Linear, 17, &[
        "indexer.proj", "indexer.weights_proj", "attn_gate", "in_proj_z", "in_proj_ba", "g_proj", "ssm_ba",
    ]),
    // State-space models and their like; low ranks beside attention.
    row(Role::Linear, 18, &[
        "ssm_in", "in_proj", "shortconv.in_proj", "laurel_l", "laurel.linear_left",
        "ssm_alpha", "ssm_beta", "ssm_f_a", "ssm_g_a", "in_proj_a", "in_proj_b", "f_a_proj", "g_a_proj", "b_proj",
    ]),
    row(Role::Linear, 19, &[
        "ssm_x", "x_proj", "laurel_r", "laurel.linear_right", "pos_proj", "time_mix_w1", "time_mix_a1",
        "time_mix_v1", "time_mix_g1", "time_mix_decay_w1",
    ]),
    row(Role::Linear, 20, &[
        "ssm_dt", "dt_proj", "ssm_f_b", "ssm_g_b", "f_b_proj", "g_b_proj", "time_mix_w2", "time_mix_a2", "time_mix_v2",
        "time_mix_g2", "time_mix_decay_w2",
    ]),
    row(Role::Linear, 21, &["ssm_out"]),
    row(Role::Linear, 22, &[
        "attn_output", "attn_out", "attn_o", "o_proj", "out_proj", "wo", "Wo", "SelfAttention.o", "attn.c_proj",
        "attention.dense", "self_attention.dense", "self_attn.dense", "attention.output.dense",
        "out_lin", "to_out", "linear_out", "attn.proj", "attn.out", "vis_attn_output", "self_attn_out",
        "attention.post",
    ]),
    row(Role::Linear, 35, &["lconv1d.linear_start"]),
    row(Role::Linear, 36, &["lconv1d.linear_end"]),
    // Feed-forward: gate and up share their input.
    row(Role::Linear, 50, &[
        "shared_expert*.gate_proj", "shared_mlp.gate_proj", "shared_mlp.input_linear", "ffn_gate_shexp",
    ]),
    row(Role::Linear, 51, &["shared_expert*.up_proj", "shared_mlp.up_proj", "ffn_up_shexp"]),
    row(Role::Linear, 52, &[
        "shared_expert*.down_proj", "shared_mlp.down_proj", "shared_mlp.output_linear", "ffn_down_shexp",
    ]),
    row(Role::Expert, 40, &[
        "ffn_gate_exps", "ffn_gate_up_exps", "ffn_gate.N", "experts.gate_up_proj", "experts.gate_proj",
        "block_sparse_moe.input_linear", "experts.mlp.w1",
    ]),
    row(Role::Expert, 41, &["ffn_up_exps", "ffn_up.N", "experts.up_proj", "experts.mlp.v1"]),
    row(Role::Expert, 42, &[
        "ffn_down_exps", "ffn_down.N", "experts.down_proj", "block_sparse_moe.output_linear", "experts.mlp.w2",
    ]),
    row(Role::Expert, 55, &["ffn_gate_chexps"]),
    row(Role::Expert, 56, &["ffn_up_chexps"]),
    row(Role::Expert, 57, &["ffn_down_chexps"]),
    row(Role::Linear, 38, &["ffn_latent_down"]),
    row(Role::Linear, 58, &["ffn_latent_up"]),
    // Conformers have another feed-forward layer behind.
    row(Role::Linear, 60, &["ffw_layer_end.ffw_layer_1", "ffn_gate_1", "ffn_up_1"]),
    row(Role::Linear, 61, &["ffw_layer_end.ffw_layer_2", "ffn_down_1"]),
    row(Role::Linear, 40, &[
        "ffn_gate", "gate_proj", "w1", "gate_up_proj", "wi_0", "vis_gate", "linear_gate", "mlp.gate_up", "mm.gate",
    ]),
    row(Role::Linear, 41, &[
        "ffn_up", "up_proj", "w3", "fc1", "fc_in", "c_fc", "dense_h_to_4h", "intermediate.dense", "Wi", "wi", "wi_1",
        "lin1", "linear_fc1", "linear1", "linear_3", "vis_up", "fc11", "ffn", "ff_proj", "intermediate_dense", "mm.up",
    ]),
    row(Role::Linear, 42, &[
        "ffn_down", "down_proj", "w2", "fc2", "fc_out", "mlp.c_proj", "dense_4h_to_h", "output.dense", "lin2",
        "linear_fc2", "linear2", "vis_down", "ff_out", "output_dense", "mm.down",
    ]),
    row(Role::Linear, 43, &["mlp.N", "merger.mlp.N"]),
    row(Role::Linear, 70, &["inp_gate", "per_layer_input_gate"]),
    row(Role::Linear, 71, &["proj", "per_layer_projection", "shared_head_head", "shared_head.head"]),
    // Before a tower's blocks and between towers.
    row(Role::Linear, 0, &[
        "patch_embedding.linear", "feature_projection.projection", "input_proj_linear", "pre_encode.out",
        "per_layer_model_proj", "per_layer_model_projection",
        "embedding_projection", "mm_input_projection", "mm_input_projection_weight", "input_projection", "mm.N",
        "modality_projection.proj", "multi_modal_projector.linear", "merging_layer",
        "patch_merger", "model.fc", "a.fc", "project_in",
    ]),
    row(Role::Linear, 1, &["linear_1", "altup_proj", "altup_projections.N"]),
    row(Role::Linear, 2, &["linear_2"]),
    // Behind a tower's blocks.
    row(Role::Linear, 80, &["proj_linear", "embd_to_logits", "enc_ctc_out", "enc_ctc_out_mid", "w_in", "w_out"]),
    // Behind the last block.
    row(Role::Linear, BEHIND, &[
        "dense_2", "dense_3", "cls", "classifier", "pre_classifier", "score", "pooler.dense", "transform.dense",
        "vocab_transform", "seq_relationship", "text_projection", "visual_projection", "altup_unembd_proj",
        "altup_unembed_projections.N", "project_out",
    ]),
    // RWKV, where each matrix has a mixture of its own as input.
    row(Role::Linear, 23, &["time_mix_receptance"]),
    row(Role::Linear, 24, &["time_mix_key", "time_mix_value", "time_mix_gate"]),
    row(Role::Linear, 25, &["time_mix_output"]),
    row(Role::Linear, 43, &["channel_mix_key", "channel_mix_receptance"]),
    row(Role::Linear, 44, &["channel_mix_value"]),
];
