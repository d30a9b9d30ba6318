//! Logits in f32 are llama.cpp's, on real models that variables name.

mod common;

use ork_llm::{Decoder, Reference};
use ork_weights::model::gguf::Tensors;
use serde_json::Value;
use std::path::Path;

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

/// Index of the largest, the first of equals.
fn first(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a });
    best.unwrap() as u32
}

fn log_sum(logits: &[f32]) -> f64 {
    let most = logits.iter().fold(f64::MIN, |most, x| most.max(f64::from(*x)));
    most + logits.iter().map(|x| (f64::from(*x) - most).exp()).sum::<f64>().ln()
}

fn check(path: &Path, reference: &str, bound: f64) {
    let tensors = Tensors::open(path).unwrap();
    let linears = Reference::f32(&tensors).unwrap();
    let mut decoder = Decoder::new(tensors, Box::new(linears)).unwrap();
    let vocabulary = decoder.config().vocabulary;
    let golden = common::golden(reference);
    let (mut worst, mut positions) = (0f64, 0);
    for prompt in golden["prompts"].as_array().unwrap() {
        let prompt_tokens = tokens(&prompt["tokens"]);
        let mut cache = decoder.cache(128);
        let logits = decoder.forward(&mut cache, &prompt_tokens, prompt_tokens.len()).unwrap();
        let rows = logits.chunks_exact(vocabulary);
        assert_eq!(rows.len(), prompt_tokens.len());
        for (row, wanted) in rows.zip(prompt["positions"].as_array().unwrap()) {
            let top = wanted["top"].as_array().unwrap();
            for pair in top {
                let (token, logit) = (pair[0].as_u64().unwrap(), pair[1].as_f64().unwrap());
                worst = worst.max((f64::from(row[token as usize]) - logit).abs());
            }
            worst = worst.max((log_sum(row) - wanted["logsumexp"].as_f64().unwrap()).abs());
            assert_eq!(u64::from(first(row)), top[0][0].as_u64().unwrap());
            positions += 1;
        }
        // What follows, token by token.
        let mut next = first(logits.chunks_exact(vocabulary).next_back().unwrap());
        let greedy = tokens(&prompt["greedy_30"]);
        let mut equal = 0;
        for wanted in &greedy {
            if next != *wanted {
                break;
            }
            equal += 1;
            next = first(decoder.forward(&mut cache, &[next], 1).unwrap());
        }
        eprintln!("{:?}: {equal} of {} tokens equal", prompt["prompt"], greedy.len());
        assert_eq!(equal, greedy.len(), "{:?}", prompt["prompt"]);
    }
    eprintln!("{reference}: {positions} positions, at most {worst} apart");
    assert!(positions > 60 && worst <= bound, "{worst}");
}

#[test]
fn smollm2_is_llama_cpp() {
    if let Some(path) = common::model("ORK_TEST_SMOLLM2") {
        check(&path, "logits/smol.json", 1e-3);
    }
}

#[test]
fn gemma_3_is_llama_cpp() {
    if let Some(path) = common::model("ORK_TEST_GEMMA") {
        check(&path, "logits/gemma.json", 0.05);
    }
}
