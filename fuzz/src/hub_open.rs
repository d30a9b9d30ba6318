//! Any bytes at all, as a folder of the hub.

use ork_weights::model::{Model, OpenOptions};
use ork_weights::quantise::Tier;

use crate::spec::folder;

/// Weights of more values are not quantised: a header of a few bytes may ask for as many as the file's
/// length allows, which is no defect.
const MOST_VALUES: u64 = 1 << 16;

/// config.json, an index and a file of tensors, each with its length (u16) in front but the last: a model
/// of them is listed and quantised without panic.
pub fn hub_open(data: &[u8]) {
    let Some((config, rest)) = part(data) else { return };
    let Some((index, tensors)) = part(rest) else { return };
    let folder = folder().expect("a temporary folder");
    let put = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("room for it");
    };
    put("model-00001-of-00001.safetensors", tensors);
    put("model.safetensors", tensors);
    if !config.is_empty() {
        put("config.json", config);
    }
    if !index.is_empty() {
        put("model.safetensors.index.json", index);
    }
    let options = OpenOptions { list: true, ..OpenOptions::default() };
    let Ok(model) = Model::open(folder.path(), &options) else { return };
    let _ = model.identity(true).expect("files that nobody changes");
    for weight in model.weights() {
        for tier in [Tier::Int8, Tier::Fp16, Tier::RotatedInt8 { group: Some(32) }] {
            let layout = tier.layout(weight.k, weight.n).expect("a shape that was looked at");
            if u64::from(layout.k()) * u64::from(layout.n()) > MOST_VALUES {
                continue;
            }
            let mut tiled = vec![0; layout.bytes() as usize];
            let mut scales = vec![0.0; tier.scales(weight.k, weight.n)];
            let _ = model.quantise(weight, &tier, &mut tiled, &mut scales);
        }
    }
}

fn part(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<2>()?;
    rest.split_at_checked(u16::from_le_bytes(*length).into())
}
