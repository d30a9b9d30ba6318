//! Any bytes at all, opened as a GGUF.

use ork_weights::model::gguf::Gguf;
use ork_weights::model::{Model, OpenOptions};
use ork_weights::quantise::Tier;
use std::io::Write;

/// Weights of more values are not quantised: a header of a few bytes may ask for as many as the
/// file's length allows, which is no defect.
const MOST_VALUES: u64 = 1 << 16;

/// Parses `data`; what a header says must lie in the file, and a model of it must quantise without
/// panic. Memory stays in proportion, which libFuzzer's limit watches.
pub fn gguf_open(data: &[u8]) {
    let Ok(gguf) = Gguf::parse(data) else { return };
    let mut ranges: Vec<_> = gguf.tensors().iter().map(|tensor| tensor.range()).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    let mut end = 0;
    for range in ranges {
        assert!(range.start >= end && range.start >= gguf.data_start(), "tensors share bytes");
        end = range.end;
    }
    assert!(gguf.tensors().is_empty() || end <= data.len() as u64, "a tensor past the end");
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor(&tensor.name), Some(tensor));
        assert!(!tensor.dimensions.contains(&0));
    }
    // A split model would look for files beside it.
    if gguf.number("split.count").unwrap_or(1) <= 1 {
        quantise(data);
    }
}

fn quantise(data: &[u8]) {
    let mut file = tempfile::NamedTempFile::with_suffix(".gguf").expect("a temporary file");
    file.write_all(data).expect("room for it");
    let options = OpenOptions::default();
    let Ok(model) = Model::open(file.path(), &options) else { return };
    let identity = model.identity(true).expect("a file that nobody changes");
    assert_eq!(identity.size, data.len() as u64);
    for weight in model.weights() {
        let Ok(layout) = Tier::Int8.layout(weight.k, weight.n) else {
            panic!("{weight:?} has no size");
        };
        let values = u64::from(layout.k()) * u64::from(layout.n());
        if values > MOST_VALUES {
            continue;
        }
        let mut tiled = vec![0; layout.bytes() as usize];
        let mut scales = vec![0.0; Tier::Int8.scales(weight.k, weight.n)];
        if model.quantise(weight, &Tier::Int8, &mut tiled, &mut scales).is_ok() {
            assert!(scales.iter().all(|scale| scale.is_finite() && *scale > 0.0));
            assert!(!tiled.contains(&0x80), "a code of −128");
        }
    }
}
