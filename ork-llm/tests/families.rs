//! Every family's decoder gives llama.cpp's logits, on small models of noise.

mod common;

use common::{families, gguf::Model};
use ork_llm::{Decoder, Linears, Reference};
use ork_weights::model::gguf::Tensors;
use std::path::Path;

fn open(model: &Model, make: fn(&Tensors) -> Box<dyn Linears>) -> Decoder {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    model.write(file.path());
    let tensors = Tensors::open(file.path()).unwrap();
    let linears = make(&tensors);
    Decoder::new(tensors, linears).unwrap()
}

fn f32s(tensors: &Tensors) -> Box<dyn Linears> {
    Box::new(Reference::f32(tensors).unwrap())
}

fn light(tensors: &Tensors) -> Box<dyn Linears> {
    Box::new(Reference::light(tensors).unwrap())
}

/// With `ORK_TEST_WRITE` the models are left in that folder, for llama.cpp to read.
#[test]
fn logits_are_llama_cpps() {
    let folder = std::env::var_os("ORK_TEST_WRITE");
    for (name, model) in families::all() {
        if let Some(folder) = &folder {
            model.write(&Path::new(folder).join(format!("{name}.gguf")));
            continue;
        }
        let golden = common::golden("logits/families.json");
        let mut decoder = open(&model, f32s);
        let prompt = families::PROMPT;
        let mut cache = decoder.cache(32);
        let logits = decoder.forward(&mut cache, &prompt, prompt.len()).unwrap();
        let wanted = golden["models"][name].as_array().unwrap();
        assert_eq!(logits.len(), wanted.len(), "{name}");
        let apart =
            |(a, b): (&f32, &serde_json::Value)| (f64::from(*a) - b.as_f64().unwrap()).abs();
        let worst = logits.iter().zip(wanted).map(apart).fold(0.0, f64::max);
        eprintln!("{name}: at most {worst:.1e} apart");
        // llama.cpp has GELU from a table of half floats.
        assert!(worst < if name.starts_with("gemma") { 2e-2 } else { 1e-4 }, "{name}: {worst}");
    }
}

#[test]
fn bits_do_not_depend_on_batches_threads_or_how_weights_are_kept() {
    for (name, model) in families::all() {
        let prompt = families::PROMPT;
        let run = |make, cut: usize, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut decoder = open(&model, make);
                let mut cache = decoder.cache(32);
                let mut all = Vec::new();
                for part in prompt.chunks(cut) {
                    all.extend_from_slice(decoder.forward(&mut cache, part, part.len()).unwrap());
                }
                all
            })
        };
        let whole = run(f32s, prompt.len(), 1);
        assert!(whole.iter().all(|logit| logit.is_finite()));
        for (make, cut, threads) in [(f32s as fn(&_) -> _, 1, 1), (f32s, 3, 3), (light, 5, 2)] {
            assert!(run(make, cut, threads) == whole, "{name}: cut {cut}, {threads} threads");
        }
    }
}

#[test]
fn a_cache_that_is_cut_goes_on_as_if_nothing_had_been() {
    for (name, model) in families::all() {
        let mut decoder = open(&model, f32s);
        let (mut cache, prompt) = (decoder.cache(32), families::PROMPT);
        let wanted = decoder.forward(&mut cache, &prompt, 4).unwrap().to_vec();
        cache.truncate(prompt.len() - 4);
        decoder.forward(&mut cache, &[1, 2, 3, 4, 5], 0).unwrap();
        cache.truncate(prompt.len() - 4);
        let again = decoder.forward(&mut cache, &prompt[prompt.len() - 4..], 4).unwrap();
        assert!(again == wanted, "{name}");
    }
}
