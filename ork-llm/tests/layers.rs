//! Decoders on the NPU, here in software: the same bits whoever computes, near those of f32.

mod common;

use std::sync::Arc;

use common::{families, gguf::Model};
use ork_cache::Store;
use ork_linear::Setup;
use ork_llm::{Decoder, Quality, Reference};
use ork_weights::model::gguf::Tensors;
use ork_weights::model::{Model as Weights, OpenOptions};
use ork_weights::quantise::Tier;

/// A decoder whose products go to the NPU from `npu_rows` rows on.
fn on_npu(model: &Model, npu_rows: usize) -> Decoder {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    model.write(file.path());
    let options = OpenOptions::default();
    let weights = Weights::open(file.path(), &options).unwrap();
    let store = Store::from_model(weights, Tier::RotatedInt8 { group: None }, None).unwrap();
    let device = rknpu::Device::simulated(Default::default()).unwrap();
    let mut setup = Setup::new(16 << 20);
    setup.npu_rows = npu_rows;
    setup.cache.rows = 16;
    let layers = ork_linear::open(&device, &[Arc::new(store)], &setup).unwrap().remove(0);
    Decoder::new(Tensors::open(file.path()).unwrap(), Box::new(layers)).unwrap()
}

fn in_f32(model: &Model) -> Decoder {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    model.write(file.path());
    let tensors = Tensors::open(file.path()).unwrap();
    let linears = Reference::f32(&tensors).unwrap();
    Decoder::new(tensors, Box::new(linears)).unwrap()
}

fn logits(mut decoder: Decoder, cut: usize) -> Vec<f32> {
    let mut cache = decoder.cache(32);
    let mut all = Vec::new();
    for part in families::PROMPT.chunks(cut) {
        all.extend_from_slice(decoder.forward(&mut cache, part, part.len()).unwrap());
    }
    all
}

#[test]
fn bits_do_not_depend_on_who_computes() {
    // Models whose matrices are whole tiles of the NPU.
    let models = [
        ("qwen3", families::qwen3()),
        ("qwen3-moe", families::qwen3_moe()),
        ("gemma2", families::gemma2()),
        ("gemma3", families::gemma3()),
    ];
    for (name, model) in models {
        let alone = logits(on_npu(&model, usize::MAX), 1);
        for (npu_rows, cut) in [(1, 14), (1, 3), (4, 5), (usize::MAX, 14)] {
            let found = logits(on_npu(&model, npu_rows), cut);
            assert!(found == alone, "{name}: from {npu_rows} rows, cut by {cut}");
        }
        let mut quality = Quality::default();
        let vocabulary = families::VOCABULARY as usize;
        let exact = logits(in_f32(&model), 14);
        let rows = exact.chunks_exact(vocabulary).zip(alone.chunks_exact(vocabulary));
        rows.for_each(|(exact, found)| quality.add(exact, found, None));
        eprintln!("{name}: KL {:.1e}, {:.2} agree", quality.mean_kl(), quality.agreement());
        assert!(quality.mean_kl() < 0.02 && quality.mean_kl() > 0.0, "{name}: {quality:?}");
    }
}
