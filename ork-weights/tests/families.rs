//! Models of many families, small: which tensors are packed, as what, with which K and N, in which
//! order of use. Names and the places of dimensions are those of the families' public checkpoints and of
//! the tables of names in the `gguf` Python package; sizes are made up.

use ork_weights::dequant::TensorType;
use ork_weights::model::{Model, OpenOptions, Role};
use ork_weights::quantise::Tier;
use std::fs;
use std::path::Path;

/// A family. A line is a tensor: `+` packed or `-` not, its role, its name, and its dimensions as the
/// file has them: in GGUF K first, in safetensors last. Packed ones stand in their order of use.
struct Family {
    name: &'static str,
    form: Form,
    tensors: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Gguf,
    Hub,
}

struct Line<'a> {
    packed: bool,
    role: Role,
    name: &'a str,
    dimensions: Vec<u64>,
}

fn role(text: &str) -> Role {
    [
        Role::Linear,
        Role::Expert,
        Role::Head,
        Role::Embedding,
        Role::Router,
        Role::Norm,
        Role::Bias,
        Role::Position,
        Role::Convolution,
        Role::Other,
        Role::Unknown,
    ]
    .into_iter()
    .find(|role| role.name().starts_with(text))
    .unwrap_or_else(|| panic!("role {text}"))
}

impl Family {
    fn lines(&self) -> Vec<Line<'static>> {
        let line = |line: &'static str| {
            let mut words = line.split_whitespace();
            let packed = match words.next()? {
                "+" => true,
                "-" => false,
                other => panic!("{other}"),
            };
            let (role, name) = (role(words.next()?), words.next()?);
            let dimensions = words.map(|word| word.parse().unwrap()).collect();
            Some(Line { packed, role, name, dimensions })
        };
        self.tensors.lines().filter_map(line).collect()
    }

    /// The file, its tensors by name.
    fn write(&self, folder: &Path) -> std::path::PathBuf {
        let mut lines = self.lines();
        lines.sort_by_key(|line| line.name);
        let (name, bytes) = match self.form {
            Form::Gguf => ("model.gguf", gguf(&lines)),
            Form::Hub => ("model.safetensors", safetensors(&lines)),
        };
        fs::write(folder.join(name), bytes).unwrap();
        match self.form {
            Form::Gguf => folder.join(name),
            Form::Hub => folder.to_owned(), // as it is downloaded
        }
    }
}

fn gguf(lines: &[Line<'_>]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((lines.len() as u64).to_le_bytes());
    out.extend(0u64.to_le_bytes());
    let mut offset = 0u64;
    for line in lines {
        out.extend((line.name.len() as u64).to_le_bytes());
        out.extend(line.name.as_bytes());
        out.extend((line.dimensions.len() as u32).to_le_bytes());
        line.dimensions.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(TensorType::F16.ggml().unwrap().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (2 * line.dimensions.iter().product::<u64>()).next_multiple_of(32);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(halves(offset as usize / 2));
    out
}

fn safetensors(lines: &[Line<'_>]) -> Vec<u8> {
    let (mut header, mut at) = (String::from("{"), 0);
    for line in lines {
        let end = at + 2 * line.dimensions.iter().product::<u64>();
        let comma = if at == 0 { "" } else { "," };
        let (name, shape) = (line.name, &line.dimensions);
        header += &format!(
            "{comma}\"{name}\":{{\"dtype\":\"F16\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}"
        );
        at = end;
    }
    header.push('}');
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(halves(at as usize / 2));
    out
}

/// Half floats of believable sizes, each another than its neighbours.
fn halves(count: usize) -> impl Iterator<Item = u8> {
    (0..count).flat_map(|i| (0x2c00 + ((i * 7919) % 1021) as u16).to_le_bytes())
}

#[test]
fn every_family_is_packed_as_it_is_used() {
    for family in FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let path = family.write(folder.path());
        // Without a tied head, by which some families would have a line more.
        let options = OpenOptions { tied_head: false, ..OpenOptions::default() };
        let model =
            Model::open(&path, &options).unwrap_or_else(|error| panic!("{}: {error}", family.name));
        let mut expected = Vec::new();
        for line in family.lines().iter().filter(|line| line.packed) {
            let mut d = line.dimensions.clone();
            if family.form == Form::Hub {
                d.reverse();
            }
            let by_input = BY_INPUT.contains(&family.name)
                && [".c_attn.weight", ".c_proj.weight", ".c_fc.weight", "_proj"]
                    .iter()
                    .any(|end| line.name.ends_with(end));
            let (k, n) = if by_input { (d[1], d[0]) } else { (d[0], d[1]) };
            let one = |name: String| (name, line.role, k as u32, n as u32);
            match d.get(2) {
                None => expected.push(one(line.name.to_owned())),
                Some(stack) => {
                    expected.extend((0..*stack).map(|e| one(format!("{}#{e}", line.name))));
                }
            }
        }
        let found: Vec<_> =
            model.weights().iter().map(|w| (w.name.to_string(), w.role, w.k, w.n)).collect();
        assert_eq!(found, expected, "{}", family.name);
        for line in family.lines().iter().filter(|line| !line.packed) {
            let skipped = model.skipped().iter().find(|skipped| *skipped.name == *line.name);
            let skipped = skipped.unwrap_or_else(|| panic!("{}: {}", family.name, line.name));
            assert_eq!(skipped.role, line.role, "{}: {}", family.name, line.name);
            assert!(!skipped.reason.is_empty());
        }
    }
}

/// Families whose files have a row for each input.
const BY_INPUT: [&str; 2] = ["GPT-2, hub", "gpt-oss, hub"];

#[test]
fn a_row_for_each_input_is_turned() {
    let family = FAMILIES.iter().find(|family| family.name == "GPT-2, hub").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(family.write(folder.path()), &OpenOptions::default()).unwrap();
    let bytes = fs::read(folder.path().join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let lines = {
        let mut lines = family.lines();
        lines.sort_by_key(|line| line.name);
        lines
    };
    let name = "transformer.h.0.mlp.c_fc.weight";
    let before = lines.iter().take_while(|line| line.name != name);
    let start: u64 = before.map(|line| 2 * line.dimensions.iter().product::<u64>()).sum();
    let weight = model.weight(name).unwrap();
    let (k, n) = (weight.k as usize, weight.n as usize);
    let layout = Tier::Fp16.layout(weight.k, weight.n).unwrap();
    let mut tiles = vec![0; layout.bytes() as usize];
    model.quantise(weight, &Tier::Fp16, &mut tiles, &mut []).unwrap();
    let mut rows = vec![0; 2 * k * n];
    ork_weights::tile::untile(&layout, &tiles, &mut rows).unwrap();
    let data = &bytes[8 + header + start as usize..];
    for input in 0..k {
        for output in 0..n {
            let (ours, theirs) = (2 * (output * k + input), 2 * (input * n + output));
            assert_eq!(rows[ours..ours + 2], data[theirs..theirs + 2], "{input} {output}");
        }
    }
    // Some channels alone are those of the whole.
    let part = Tier::Fp16.layout(weight.k, 32).unwrap();
    let mut alone = vec![0; part.bytes() as usize];
    let recipe = ork_weights::quantise::Recipe::new(Tier::Fp16);
    model.quantise_channels(weight, 32..64, &recipe, &mut alone, &mut []).unwrap();
    let mut some = vec![0; 2 * k * 32];
    ork_weights::tile::untile(&part, &alone, &mut some).unwrap();
    assert_eq!(some, rows[2 * k * 32..2 * k * 64]);
}

const FAMILIES: &[Family] = &[
    Family { name: "Llama 3", form: Form::Gguf, tensors: LLAMA_3 },
    Family { name: "Llama 2, hub", form: Form::Hub, tensors: LLAMA_2_HUB },
    Family { name: "Llama 4", form: Form::Gguf, tensors: LLAMA_4 },
    Family { name: "Mistral, hub", form: Form::Hub, tensors: MISTRAL_HUB },
    Family { name: "Mixtral", form: Form::Gguf, tensors: MIXTRAL },
    Family { name: "Mixtral, as it was", form: Form::Gguf, tensors: MIXTRAL_OLD },
    Family { name: "Mixtral, hub", form: Form::Hub, tensors: MIXTRAL_HUB },
    Family { name: "Qwen2, hub", form: Form::Hub, tensors: QWEN2_HUB },
    Family { name: "Qwen2.5-VL, hub", form: Form::Hub, tensors: QWEN25_VL_HUB },
    Family { name: "Qwen3", form: Form::Gguf, tensors: QWEN3 },
    Family { name: "Qwen3-MoE", form: Form::Gguf, tensors: QWEN3_MOE },
    Family { name: "Qwen3-Next, hub", form: Form::Hub, tensors: QWEN3_NEXT_HUB },
    Family { name: "Gemma 2", form: Form::Gguf, tensors: GEMMA_2 },
    Family { name: "Gemma 3, hub", form: Form::Hub, tensors: GEMMA_3_HUB },
    Family { name: "Gemma 3n", form: Form::Gguf, tensors: GEMMA_3N },
    Family { name: "Phi-3 and Phi-4", form: Form::Gguf, tensors: PHI_3 },
    Family { name: "Phi-3, hub", form: Form::Hub, tensors: PHI_3_HUB },
    Family { name: "DeepSeek V2", form: Form::Gguf, tensors: DEEPSEEK_V2 },
    Family { name: "DeepSeek V3, hub", form: Form::Hub, tensors: DEEPSEEK_V3_HUB },
    Family { name: "GLM-4", form: Form::Gguf, tensors: GLM_4 },
    Family { name: "ChatGLM, hub", form: Form::Hub, tensors: CHATGLM_HUB },
    Family { name: "InternLM2, hub", form: Form::Hub, tensors: INTERNLM2_HUB },
    Family { name: "Falcon, hub", form: Form::Hub, tensors: FALCON_HUB },
    Family { name: "GPT-2", form: Form::Gguf, tensors: GPT_2 },
    Family { name: "GPT-2, hub", form: Form::Hub, tensors: GPT_2_HUB },
    Family { name: "GPT-NeoX, hub", form: Form::Hub, tensors: GPT_NEOX_HUB },
    Family { name: "BERT", form: Form::Gguf, tensors: BERT },
    Family { name: "BERT, hub", form: Form::Hub, tensors: BERT_HUB },
    Family { name: "T5", form: Form::Gguf, tensors: T5 },
    Family { name: "T5, hub", form: Form::Hub, tensors: T5_HUB },
    Family { name: "Whisper, hub", form: Form::Hub, tensors: WHISPER_HUB },
    Family { name: "Mamba", form: Form::Gguf, tensors: MAMBA },
    Family { name: "Jamba, hub", form: Form::Hub, tensors: JAMBA_HUB },
    Family { name: "gpt-oss", form: Form::Gguf, tensors: GPT_OSS },
    Family { name: "gpt-oss, hub", form: Form::Hub, tensors: GPT_OSS_HUB },
    Family { name: "OLMoE", form: Form::Gguf, tensors: OLMOE },
];

const LLAMA_3: &str = "
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_k.weight 64 32
    + linear blk.0.attn_v.weight 64 32
    + linear blk.0.attn_output.weight 64 64
    + linear blk.0.ffn_gate.weight 64 128
    + linear blk.0.ffn_up.weight 64 128
    + linear blk.0.ffn_down.weight 128 64
    + linear blk.10.attn_q.weight 64 64
    + output output.weight 64 96
    - embedding token_embd.weight 64 96
    - position rope_freqs.weight 32
    - norm blk.0.attn_norm.weight 64
    - norm blk.0.ffn_norm.weight 64
    - norm output_norm.weight 64";

const LLAMA_2_HUB: &str = "
    + linear model.layers.0.self_attn.q_proj.weight 64 64
    + linear model.layers.0.self_attn.k_proj.weight 64 64
    + linear model.layers.0.self_attn.v_proj.weight 64 64
    + linear model.layers.0.self_attn.o_proj.weight 64 64
    + linear model.layers.0.mlp.gate_proj.weight 128 64
    + linear model.layers.0.mlp.up_proj.weight 128 64
    + linear model.layers.0.mlp.down_proj.weight 64 128
    + linear model.layers.2.self_attn.q_proj.weight 64 64
    + linear model.layers.10.self_attn.q_proj.weight 64 64
    + output lm_head.weight 96 64
    - embedding model.embed_tokens.weight 96 64
    - position model.layers.0.self_attn.rotary_emb.inv_freq 32
    - norm model.layers.0.input_layernorm.weight 64
    - norm model.layers.0.post_attention_layernorm.weight 64
    - norm model.norm.weight 64";

const LLAMA_4: &str = "
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_k.weight 64 32
    + linear blk.0.attn_v.weight 64 32
    + linear blk.0.attn_output.weight 64 64
    + expert blk.0.ffn_gate_exps.weight 64 32 2
    + expert blk.0.ffn_up_exps.weight 64 32 2
    + expert blk.0.ffn_down_exps.weight 32 64 2
    + linear blk.0.ffn_gate_shexp.weight 64 32
    + linear blk.0.ffn_up_shexp.weight 64 32
    + linear blk.0.ffn_down_shexp.weight 32 64
    + output output.weight 64 96
    - router blk.0.ffn_gate_inp.weight 64 32
    - embedding token_embd.weight 64 96
    - position rope_freqs.weight 32";

const MISTRAL_HUB: &str = "
    + linear layers.0.attention.wq.weight 64 64
    + linear layers.0.attention.wk.weight 32 64
    + linear layers.0.attention.wv.weight 32 64
    + linear layers.0.attention.wo.weight 64 64
    + linear layers.0.feed_forward.w1.weight 128 64
    + linear layers.0.feed_forward.w3.weight 128 64
    + linear layers.0.feed_forward.w2.weight 64 128
    + output output.weight 96 64
    - embedding tok_embeddings.weight 96 64
    - norm layers.0.attention_norm.weight 64
    - norm norm.weight 64";

const MIXTRAL: &str = "
    + linear blk.0.attn_q.weight 64 64
    + expert blk.0.ffn_gate_exps.weight 64 32 3
    + expert blk.0.ffn_up_exps.weight 64 32 3
    + expert blk.0.ffn_down_exps.weight 32 64 3
    + output output.weight 64 96
    - router blk.0.ffn_gate_inp.weight 64 32
    - embedding token_embd.weight 64 96";

const MIXTRAL_OLD: &str = "
    + linear blk.0.attn_q.weight 64 64
    + expert blk.0.ffn_gate.0.weight 64 32
    + expert blk.0.ffn_gate.1.weight 64 32
    + expert blk.0.ffn_up.0.weight 64 32
    + expert blk.0.ffn_up.1.weight 64 32
    + expert blk.0.ffn_down.0.weight 32 64
    + expert blk.0.ffn_down.1.weight 32 64
    + output output.weight 64 96
    - router blk.0.ffn_gate_inp.weight 64 32";

const MIXTRAL_HUB: &str = "
    + linear model.layers.0.self_attn.q_proj.weight 64 64
    + expert model.layers.0.block_sparse_moe.experts.0.w1.weight 32 64
    + expert model.layers.0.block_sparse_moe.experts.1.w1.weight 32 64
    + expert model.layers.0.block_sparse_moe.experts.10.w1.weight 32 64
    + expert model.layers.0.block_sparse_moe.experts.0.w3.weight 32 64
    + expert model.layers.0.block_sparse_moe.experts.1.w3.weight 32 64
    + expert model.layers.0.block_sparse_moe.experts.0.w2.weight 64 32
    + expert model.layers.0.block_sparse_moe.experts.1.w2.weight 64 32
    + output lm_head.weight 96 64
    - router model.layers.0.block_sparse_moe.gate.weight 32 64";

const QWEN2_HUB: &str = "
    + linear model.layers.0.self_attn.q_proj.weight 64 64
    + linear model.layers.0.self_attn.k_proj.weight 32 64
    + linear model.layers.0.self_attn.v_proj.weight 32 64
    + linear model.layers.0.self_attn.o_proj.weight 64 64
    + linear model.layers.0.mlp.gate_proj.weight 128 64
    + linear model.layers.0.mlp.up_proj.weight 128 64
    + linear model.layers.0.mlp.down_proj.weight 64 128
    - bias model.layers.0.self_attn.q_proj.bias 64
    - embedding model.embed_tokens.weight 96 64";

const QWEN25_VL_HUB: &str = "
    + linear visual.blocks.0.attn.qkv.weight 192 64
    + linear visual.blocks.0.attn.proj.weight 64 64
    + linear visual.blocks.0.mlp.gate_proj.weight 128 64
    + linear visual.blocks.0.mlp.up_proj.weight 128 64
    + linear visual.blocks.0.mlp.down_proj.weight 64 128
    + linear visual.blocks.1.attn.qkv.weight 192 64
    + linear visual.merger.mlp.0.weight 64 256
    + linear visual.merger.mlp.2.weight 64 64
    + linear model.layers.0.self_attn.q_proj.weight 64 64
    + linear model.layers.0.mlp.down_proj.weight 64 128
    + linear model.layers.1.self_attn.q_proj.weight 64 64
    + output lm_head.weight 96 64
    - convolution visual.patch_embed.proj.weight 64 3 2 14 14
    - norm visual.merger.ln_q.weight 64
    - norm visual.blocks.0.norm1.weight 64
    - bias visual.blocks.0.attn.qkv.bias 192
    - embedding model.embed_tokens.weight 96 64";

const QWEN3: &str = "
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_k.weight 64 32
    + linear blk.0.attn_v.weight 64 32
    + linear blk.0.attn_output.weight 64 64
    + linear blk.0.ffn_gate.weight 64 128
    + linear blk.0.ffn_up.weight 64 128
    + linear blk.0.ffn_down.weight 128 64
    - norm blk.0.attn_q_norm.weight 32
    - norm blk.0.attn_k_norm.weight 32
    - embedding token_embd.weight 64 96";

const QWEN3_MOE: &str = "
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_output.weight 64 64
    + expert blk.0.ffn_gate_exps.weight 64 32 4
    + expert blk.0.ffn_up_exps.weight 64 32 4
    + expert blk.0.ffn_down_exps.weight 32 64 4
    + output output.weight 64 96
    - router blk.0.ffn_gate_inp.weight 64 32
    - norm blk.0.attn_q_norm.weight 32";

const QWEN3_NEXT_HUB: &str = "
    + linear model.layers.0.linear_attn.in_proj_qkvz.weight 256 64
    + linear model.layers.0.linear_attn.in_proj_ba.weight 32 64
    + linear model.layers.0.linear_attn.out_proj.weight 64 64
    + expert model.layers.0.mlp.experts.0.gate_proj.weight 32 64
    + expert model.layers.0.mlp.experts.1.gate_proj.weight 32 64
    + expert model.layers.0.mlp.experts.0.up_proj.weight 32 64
    + expert model.layers.0.mlp.experts.0.down_proj.weight 64 32
    + linear model.layers.0.mlp.shared_expert.gate_proj.weight 32 64
    + linear model.layers.0.mlp.shared_expert.up_proj.weight 32 64
    + linear model.layers.0.mlp.shared_expert.down_proj.weight 64 32
    + linear model.layers.3.self_attn.q_proj.weight 128 64
    + output lm_head.weight 96 64
    - router model.layers.0.mlp.gate.weight 32 64
    - router model.layers.0.mlp.shared_expert_gate.weight 1 64
    - convolution model.layers.0.linear_attn.conv1d.weight 64 1 4
    - other model.layers.0.linear_attn.A_log 32
    - other model.layers.0.linear_attn.dt_bias 32
    - norm model.layers.0.linear_attn.norm.weight 32";

const GEMMA_2: &str = "
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_k.weight 64 32
    + linear blk.0.attn_v.weight 64 32
    + linear blk.0.attn_output.weight 64 64
    + linear blk.0.ffn_gate.weight 64 128
    + linear blk.0.ffn_up.weight 64 128
    + linear blk.0.ffn_down.weight 128 64
    - norm blk.0.post_attention_norm.weight 64
    - norm blk.0.post_ffw_norm.weight 64
    - embedding token_embd.weight 64 96";

const GEMMA_3_HUB: &str = "
    + linear vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight 64 64
    + linear vision_tower.vision_model.encoder.layers.0.self_attn.k_proj.weight 64 64
    + linear vision_tower.vision_model.encoder.layers.0.self_attn.v_proj.weight 64 64
    + linear vision_tower.vision_model.encoder.layers.0.self_attn.out_proj.weight 64 64
    + linear vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight 128 64
    + linear vision_tower.vision_model.encoder.layers.0.mlp.fc2.weight 64 128
    + linear language_model.model.layers.0.self_attn.q_proj.weight 64 64
    + linear language_model.model.layers.0.mlp.down_proj.weight 64 128
    - position vision_tower.vision_model.embeddings.position_embedding.weight 32 64
    - convolution vision_tower.vision_model.embeddings.patch_embedding.weight 64 3 14 14
    - norm vision_tower.vision_model.encoder.layers.0.layer_norm1.weight 64
    - norm multi_modal_projector.mm_soft_emb_norm.weight 64
    - embedding language_model.model.embed_tokens.weight 96 64";

const GEMMA_3N: &str = "
    + linear per_layer_model_proj.weight 64 64
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_output.weight 64 64
    + linear blk.0.ffn_gate.weight 64 128
    + linear blk.0.ffn_up.weight 64 128
    + linear blk.0.ffn_down.weight 128 64
    + linear blk.0.inp_gate.weight 64 32
    + linear blk.0.laurel_l.weight 64 32
    + linear blk.0.laurel_r.weight 32 64
    + linear blk.0.proj.weight 32 64
    - embedding per_layer_token_embd.weight 64 96
    - embedding token_embd.weight 64 96
    - router blk.0.altup_router.weight 64 32
    - other blk.0.altup_correct_coef.weight 32 32
    - other blk.0.altup_predict_coef.weight 32 32
    - other altup_proj.weight 64 64 3
    - norm blk.0.laurel_post_norm.weight 64";

const PHI_3: &str = "
    + linear blk.0.attn_qkv.weight 64 192
    + linear blk.0.attn_output.weight 64 64
    + linear blk.0.ffn_up.weight 64 256
    + linear blk.0.ffn_down.weight 128 64
    + output output.weight 64 96
    - position rope_factors_long.weight 32
    - position rope_factors_short.weight 32
    - embedding token_embd.weight 64 96";

const PHI_3_HUB: &str = "
    + linear model.layers.0.self_attn.qkv_proj.weight 192 64
    + linear model.layers.0.self_attn.o_proj.weight 64 64
    + linear model.layers.0.mlp.gate_up_proj.weight 256 64
    + linear model.layers.0.mlp.down_proj.weight 64 128
    + output lm_head.weight 96 64
    - embedding model.embed_tokens.weight 96 64";

const DEEPSEEK_V2: &str = "
    + linear blk.0.attn_q_a.weight 64 32
    + linear blk.0.attn_q_b.weight 32 96
    + linear blk.0.attn_kv_a_mqa.weight 64 96
    + linear blk.0.attn_kv_b.weight 32 128
    + linear blk.0.attn_output.weight 64 64
    + linear blk.0.ffn_gate.weight 64 128
    + linear blk.0.ffn_up.weight 64 128
    + linear blk.0.ffn_down.weight 128 64
    + linear blk.1.attn_k_b.weight 32 64
    + linear blk.1.attn_v_b.weight 32 64
    + expert blk.1.ffn_gate_exps.weight 64 32 2
    + expert blk.1.ffn_up_exps.weight 64 32 2
    + expert blk.1.ffn_down_exps.weight 32 64 2
    + linear blk.1.ffn_gate_shexp.weight 64 32
    + linear blk.1.ffn_up_shexp.weight 64 32
    + linear blk.1.ffn_down_shexp.weight 32 64
    + output output.weight 64 96
    - router blk.1.ffn_gate_inp.weight 64 32
    - bias blk.1.exp_probs_b.bias 32
    - norm blk.0.attn_q_a_norm.weight 32
    - norm blk.0.attn_kv_a_norm.weight 32";

const DEEPSEEK_V3_HUB: &str = "
    + linear model.layers.0.self_attn.q_a_proj.weight 32 64
    + linear model.layers.0.self_attn.q_b_proj.weight 96 32
    + linear model.layers.0.self_attn.kv_a_proj_with_mqa.weight 96 64
    + linear model.layers.0.self_attn.kv_b_proj.weight 128 32
    + linear model.layers.0.self_attn.o_proj.weight 64 64
    + expert model.layers.3.mlp.experts.0.gate_proj.weight 32 64
    + expert model.layers.3.mlp.experts.0.up_proj.weight 32 64
    + expert model.layers.3.mlp.experts.0.down_proj.weight 64 32
    + linear model.layers.3.mlp.shared_experts.gate_proj.weight 32 64
    + linear model.layers.3.mlp.shared_experts.up_proj.weight 32 64
    + linear model.layers.3.mlp.shared_experts.down_proj.weight 64 32
    + linear model.layers.61.eh_proj.weight 64 128
    + linear model.layers.61.shared_head.head.weight 96 64
    + output lm_head.weight 96 64
    - router model.layers.3.mlp.gate.weight 32 64
    - bias model.layers.3.mlp.gate.e_score_correction_bias 32
    - embedding model.layers.61.embed_tokens.weight 96 64
    - norm model.layers.61.enorm.weight 64
    - norm model.layers.0.self_attn.kv_a_layernorm.weight 32";

const GLM_4: &str = "
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_k.weight 64 32
    + linear blk.0.attn_v.weight 64 32
    + linear blk.0.attn_output.weight 64 64
    + linear blk.0.ffn_up.weight 64 256
    + linear blk.0.ffn_down.weight 128 64
    + output output.weight 64 96
    - norm blk.0.post_attention_norm.weight 64
    - bias blk.0.attn_q.bias 64";

const CHATGLM_HUB: &str = "
    + linear transformer.encoder.layers.0.self_attention.query_key_value.weight 128 64
    + linear transformer.encoder.layers.0.self_attention.dense.weight 64 64
    + linear transformer.encoder.layers.0.mlp.dense_h_to_4h.weight 256 64
    + linear transformer.encoder.layers.0.mlp.dense_4h_to_h.weight 64 128
    + output transformer.output_layer.weight 96 64
    - embedding transformer.embedding.word_embeddings.weight 96 64
    - position transformer.rotary_pos_emb.inv_freq 32
    - bias transformer.encoder.layers.0.self_attention.query_key_value.bias 128
    - norm transformer.encoder.final_layernorm.weight 64";

const INTERNLM2_HUB: &str = "
    + linear model.layers.0.attention.wqkv.weight 128 64
    + linear model.layers.0.attention.wo.weight 64 64
    + linear model.layers.0.feed_forward.w1.weight 128 64
    + linear model.layers.0.feed_forward.w3.weight 128 64
    + linear model.layers.0.feed_forward.w2.weight 64 128
    + output output.weight 96 64
    - embedding model.tok_embeddings.weight 96 64
    - norm model.layers.0.attention_norm.weight 64";

const FALCON_HUB: &str = "
    + linear transformer.h.0.self_attention.query_key_value.weight 128 64
    + linear transformer.h.0.self_attention.dense.weight 64 64
    + linear transformer.h.0.mlp.dense_h_to_4h.weight 256 64
    + linear transformer.h.0.mlp.dense_4h_to_h.weight 64 256
    + output lm_head.weight 96 64
    - embedding transformer.word_embeddings.weight 96 64
    - norm transformer.h.0.ln_attn.weight 64
    - norm transformer.h.0.ln_mlp.weight 64
    - norm transformer.ln_f.weight 64";

const GPT_2: &str = "
    + linear blk.0.attn_qkv.weight 64 192
    + linear blk.0.attn_output.weight 64 64
    + linear blk.0.ffn_up.weight 64 256
    + linear blk.0.ffn_down.weight 256 64
    + output output.weight 64 96
    - position position_embd.weight 64 128
    - embedding token_embd.weight 64 96
    - bias blk.0.attn_qkv.bias 192";

const GPT_2_HUB: &str = "
    + linear transformer.h.0.attn.c_attn.weight 64 192
    + linear transformer.h.0.attn.c_proj.weight 64 64
    + linear transformer.h.0.mlp.c_fc.weight 64 256
    + linear transformer.h.0.mlp.c_proj.weight 256 64
    - bias transformer.h.0.attn.bias 1 1 128 128
    - bias transformer.h.0.attn.c_attn.bias 192
    - norm transformer.h.0.ln_1.weight 64
    - embedding transformer.wte.weight 96 64
    - position transformer.wpe.weight 128 64";

const GPT_NEOX_HUB: &str = "
    + linear gpt_neox.layers.0.attention.query_key_value.weight 192 64
    + linear gpt_neox.layers.0.attention.dense.weight 64 64
    + linear gpt_neox.layers.0.mlp.dense_h_to_4h.weight 256 64
    + linear gpt_neox.layers.0.mlp.dense_4h_to_h.weight 64 256
    + output embed_out.weight 96 64
    - embedding gpt_neox.embed_in.weight 96 64
    - bias gpt_neox.layers.0.attention.bias 1 1 128 128
    - position gpt_neox.layers.0.attention.rotary_emb.inv_freq 32
    - norm gpt_neox.final_layer_norm.weight 64";

const BERT: &str = "
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_k.weight 64 64
    + linear blk.0.attn_v.weight 64 64
    + linear blk.0.attn_output.weight 64 64
    + linear blk.0.ffn_up.weight 64 256
    + linear blk.0.ffn_down.weight 256 64
    - embedding token_embd.weight 64 96
    - embedding token_types.weight 64 32
    - position position_embd.weight 64 128
    - norm blk.0.attn_output_norm.weight 64
    - norm token_embd_norm.weight 64";

const BERT_HUB: &str = "
    + linear bert.encoder.layer.0.attention.self.query.weight 64 64
    + linear bert.encoder.layer.0.attention.self.key.weight 64 64
    + linear bert.encoder.layer.0.attention.self.value.weight 64 64
    + linear bert.encoder.layer.0.attention.output.dense.weight 64 64
    + linear bert.encoder.layer.0.intermediate.dense.weight 256 64
    + linear bert.encoder.layer.0.output.dense.weight 64 256
    + linear bert.pooler.dense.weight 64 64
    - embedding bert.embeddings.word_embeddings.weight 96 64
    - embedding bert.embeddings.token_type_embeddings.weight 32 64
    - position bert.embeddings.position_embeddings.weight 128 64
    - norm bert.encoder.layer.0.output.LayerNorm.weight 64
    - bias bert.encoder.layer.0.output.dense.bias 64";

const T5: &str = "
    + linear enc.blk.0.attn_q.weight 64 64
    + linear enc.blk.0.attn_k.weight 64 64
    + linear enc.blk.0.attn_v.weight 64 64
    + linear enc.blk.0.attn_o.weight 64 64
    + linear enc.blk.0.ffn_gate.weight 64 128
    + linear enc.blk.0.ffn_up.weight 64 128
    + linear enc.blk.0.ffn_down.weight 128 64
    + linear enc.blk.1.attn_q.weight 64 64
    + linear dec.blk.0.attn_q.weight 64 64
    + linear dec.blk.0.attn_o.weight 64 64
    + linear dec.blk.0.cross_attn_q.weight 64 64
    + linear dec.blk.0.cross_attn_k.weight 64 64
    + linear dec.blk.0.cross_attn_v.weight 64 64
    + linear dec.blk.0.cross_attn_o.weight 64 64
    + linear dec.blk.0.ffn_down.weight 128 64
    + linear dec.blk.1.attn_q.weight 64 64
    + output output.weight 64 96
    - position enc.blk.0.attn_rel_b.weight 64 32
    - position dec.blk.0.attn_rel_b.weight 64 32
    - embedding token_embd.weight 64 96
    - norm enc.output_norm.weight 64";

const T5_HUB: &str = "
    + linear encoder.block.0.layer.0.SelfAttention.q.weight 64 64
    + linear encoder.block.0.layer.0.SelfAttention.k.weight 64 64
    + linear encoder.block.0.layer.0.SelfAttention.v.weight 64 64
    + linear encoder.block.0.layer.0.SelfAttention.o.weight 64 64
    + linear encoder.block.0.layer.1.DenseReluDense.wi_0.weight 128 64
    + linear encoder.block.0.layer.1.DenseReluDense.wi_1.weight 128 64
    + linear encoder.block.0.layer.1.DenseReluDense.wo.weight 64 128
    + linear decoder.block.0.layer.0.SelfAttention.q.weight 64 64
    + linear decoder.block.0.layer.0.SelfAttention.o.weight 64 64
    + linear decoder.block.0.layer.1.EncDecAttention.q.weight 64 64
    + linear decoder.block.0.layer.1.EncDecAttention.k.weight 64 64
    + linear decoder.block.0.layer.1.EncDecAttention.v.weight 64 64
    + linear decoder.block.0.layer.1.EncDecAttention.o.weight 64 64
    + linear decoder.block.0.layer.2.DenseReluDense.wo.weight 64 128
    + output lm_head.weight 96 64
    - embedding shared.weight 96 64
    - position encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight 32 64
    - norm encoder.block.0.layer.0.layer_norm.weight 64";

const WHISPER_HUB: &str = "
    + linear model.encoder.layers.0.self_attn.q_proj.weight 64 64
    + linear model.encoder.layers.0.self_attn.k_proj.weight 64 64
    + linear model.encoder.layers.0.self_attn.v_proj.weight 64 64
    + linear model.encoder.layers.0.self_attn.out_proj.weight 64 64
    + linear model.encoder.layers.0.fc1.weight 256 64
    + linear model.encoder.layers.0.fc2.weight 64 256
    + linear model.decoder.layers.0.self_attn.q_proj.weight 64 64
    + linear model.decoder.layers.0.self_attn.out_proj.weight 64 64
    + linear model.decoder.layers.0.encoder_attn.q_proj.weight 64 64
    + linear model.decoder.layers.0.encoder_attn.k_proj.weight 64 64
    + linear model.decoder.layers.0.encoder_attn.v_proj.weight 64 64
    + linear model.decoder.layers.0.encoder_attn.out_proj.weight 64 64
    + linear model.decoder.layers.0.fc1.weight 256 64
    + linear model.decoder.layers.0.fc2.weight 64 256
    - convolution model.encoder.conv1.weight 64 80 3
    - convolution model.encoder.conv2.weight 64 64 3
    - position model.encoder.embed_positions.weight 128 64
    - position model.decoder.embed_positions.weight 64 64
    - embedding model.decoder.embed_tokens.weight 96 64
    - norm model.decoder.layers.0.encoder_attn_layer_norm.weight 64";

const MAMBA: &str = "
    + linear blk.0.ssm_in.weight 64 256
    + linear blk.0.ssm_x.weight 128 64
    + linear blk.0.ssm_dt.weight 32 128
    + linear blk.0.ssm_out.weight 128 64
    - other blk.0.ssm_a 32 128
    - other blk.0.ssm_d 128
    - convolution blk.0.ssm_conv1d.weight 4 128
    - bias blk.0.ssm_dt.bias 128
    - norm blk.0.attn_norm.weight 64
    - embedding token_embd.weight 64 96";

const JAMBA_HUB: &str = "
    + linear model.layers.0.mamba.in_proj.weight 256 64
    + linear model.layers.0.mamba.x_proj.weight 64 128
    + linear model.layers.0.mamba.dt_proj.weight 128 32
    + linear model.layers.0.mamba.out_proj.weight 64 128
    + expert model.layers.1.feed_forward.experts.0.gate_proj.weight 128 64
    + expert model.layers.1.feed_forward.experts.1.gate_proj.weight 128 64
    + expert model.layers.1.feed_forward.experts.0.down_proj.weight 64 128
    + linear model.layers.4.self_attn.q_proj.weight 64 64
    + output lm_head.weight 96 64
    - router model.layers.1.feed_forward.router.weight 32 64
    - convolution model.layers.0.mamba.conv1d.weight 128 1 4
    - other model.layers.0.mamba.A_log 128 32
    - other model.layers.0.mamba.D 128
    - norm model.layers.0.mamba.dt_layernorm.weight 32";

const GPT_OSS: &str = "
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_k.weight 64 32
    + linear blk.0.attn_v.weight 64 32
    + linear blk.0.attn_output.weight 64 64
    + expert blk.0.ffn_gate_exps.weight 64 64 2
    + expert blk.0.ffn_up_exps.weight 64 64 2
    + expert blk.0.ffn_down_exps.weight 64 64 2
    + output output.weight 64 96
    - bias blk.0.ffn_gate_exps.bias 64 32
    - bias blk.0.ffn_down_exps.bias 64 32
    - router blk.0.ffn_gate_inp.weight 64 32
    - other blk.0.attn_sinks.weight 32";

const GPT_OSS_HUB: &str = "
    + linear model.layers.0.self_attn.q_proj.weight 64 64
    + linear model.layers.0.self_attn.o_proj.weight 64 64
    + expert model.layers.0.mlp.experts.gate_up_proj 2 64 128
    + expert model.layers.0.mlp.experts.down_proj 2 64 64
    + output lm_head.weight 96 64
    - bias model.layers.0.mlp.experts.gate_up_proj_bias 2 128
    - bias model.layers.0.mlp.experts.down_proj_bias 2 64
    - router model.layers.0.mlp.router.weight 32 64
    - other model.layers.0.self_attn.sinks 64
    - norm model.layers.0.input_layernorm.weight 64";

const OLMOE: &str = "
    + linear blk.0.attn_q.weight 64 64
    + linear blk.0.attn_k.weight 64 64
    + linear blk.0.attn_v.weight 64 64
    + linear blk.0.attn_output.weight 64 64
    + expert blk.0.ffn_gate_exps.weight 64 32 4
    + expert blk.0.ffn_up_exps.weight 64 32 4
    + expert blk.0.ffn_down_exps.weight 32 64 4
    + output output.weight 64 96
    - router blk.0.ffn_gate_inp.weight 64 32
    - norm blk.0.attn_q_norm.weight 64";
