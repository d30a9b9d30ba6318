//! Models that cannot be used are refused by name, with what would be possible.

mod common;

use common::{families, gguf::Model};
use ork_llm::{Decoder, Error, Reference, Tokenizer};
use ork_weights::model::gguf::Tensors;

fn tensors(model: &Model) -> Tensors {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    model.write(file.path());
    Tensors::open(file.path()).unwrap()
}

fn refused(model: &Model) -> String {
    let tensors = tensors(model);
    let linears = Reference::light(&tensors).unwrap();
    Decoder::new(tensors, Box::new(linears)).unwrap_err().to_string()
}

fn says(model: &Model, parts: &[&str]) {
    let text = refused(model);
    assert!(parts.iter().all(|part| text.contains(part)), "{text:?} says nothing of {parts:?}");
}

#[test]
fn families_without_a_decoder_are_named_with_those_that_have_one() {
    let model = Model::new("mamba", 1).tensor("token_embd.weight", &[32, 32], 0.0, 1.0);
    says(&model, &["\"mamba\"", "llama", "qwen3moe", "gemma3"]);
    let nameless = Model::default().tensor("token_embd.weight", &[32, 32], 0.0, 1.0);
    says(&nameless, &["general.architecture", "missing"]);
}

#[test]
fn every_missing_tensor_is_named() {
    for (name, model) in families::all() {
        let all: Vec<String> = model.tensors.iter().map(|tensor| tensor.0.clone()).collect();
        // The head may be tied to the table, and factors are for stretched contexts only.
        let optional = |tensor: &str| matches!(tensor, "output.weight" | "rope_freqs.weight");
        for tensor in all.iter().filter(|tensor| !optional(tensor)) {
            let text = refused(&model.clone().without(tensor));
            let part = tensor.trim_end_matches(".weight").trim_end_matches(".bias");
            assert!(text.contains(part), "{name} without {tensor}: {text}");
        }
    }
}

#[test]
fn tensors_of_another_shape_are_named_with_both() {
    for tensor in ["blk.1.attn_k.weight", "blk.0.ffn_norm.weight", "output_norm.weight"] {
        let model = families::qwen2().without(tensor);
        let wider = model.tensor(tensor, &[128, 2], 0.0, 1.0);
        says(&wider, &[tensor, "not"]);
    }
}

#[test]
fn settings_that_cannot_be_are_named_with_their_value() {
    let base = || Model::new("llama", 1).tensor("token_embd.weight", &[64, 96], 0.0, 1.0);
    says(&base(), &["llama.", "missing"]);
    let sized = |heads, kv_heads, width| {
        base()
            .number("llama.block_count", 1)
            .number("llama.context_length", 64)
            .number("llama.embedding_length", width)
            .number("llama.feed_forward_length", 64)
            .number("llama.attention.head_count", heads)
            .number("llama.attention.head_count_kv", kv_heads)
    };
    says(&sized(4, 3, 64), &["head_count_kv", "3", "4"]);
    says(&sized(0, 1, 64), &["head_count", "is 0"]);
    says(&sized(64, 64, 64), &["key_length", "is 1"]);
    says(&sized(2, 2, 4_000_000_000), &["embedding_length", "4000000000"]);
    says(&sized(4, 4, 32), &["token_embd.weight", "[64, 96]", "32"]);
    let odd = sized(4, 4, 64).float("llama.rope.freq_base", -1.0);
    says(&odd, &["rope.freq_base", "-1"]);
    let scaled = sized(4, 4, 64).text("llama.rope.scaling.type", "longrope");
    says(&scaled, &["rope.scaling.type", "longrope", "linear"]);
    let rotated = sized(4, 4, 64).number("llama.rope.dimension_count", 32);
    says(&rotated, &["rope.dimension_count", "32", "16"]);
    let mixture = sized(4, 4, 64).number("llama.expert_count", 8);
    says(&mixture, &["llama.expert_count"]);
}

#[test]
fn models_without_a_usable_vocabulary_say_what_is_missing() {
    let tokenizer = |model: &Model| Tokenizer::new(tensors(model).header());
    let says = |model: &Model, part: &str| match tokenizer(model) {
        Err(error @ Error::Tokenizer { .. }) => {
            assert!(error.to_string().contains(part), "{error}");
        }
        other => panic!("{other:?}"),
    };
    let base = || Model::new("llama", 1).tensor("token_embd.weight", &[32, 32], 0.0, 1.0);
    says(&base(), "tokenizer.ggml.tokens");
    says(&base().strings("tokenizer.ggml.tokens", &[]), "no tokens");
    says(&base().numbers("tokenizer.ggml.tokens", &[1, 2]), "no strings");
    says(&base().strings("tokenizer.ggml.tokens", &[b"\xff"]), "UTF-8");
    let some = || base().strings("tokenizer.ggml.tokens", &[b"a", b"b"]);
    says(&some().text("tokenizer.ggml.model", "rwkv"), "rwkv");
    says(&some().text("tokenizer.ggml.model", "gpt2"), "merges");
    let merges =
        || some().text("tokenizer.ggml.model", "gpt2").strings("tokenizer.ggml.merges", &[]);
    says(&merges().text("tokenizer.ggml.pre", "unheard-of"), "unheard-of");
    assert_eq!(tokenizer(&merges()).unwrap().len(), 2);
}
