//! Codes and scales of files of the hub against the values that an independent library gives for them.

use ork_weights::dequant::TensorType;
use ork_weights::model::{Model, OpenOptions, Role};
use ork_weights::quantise::{Recipe, Rows, Tier, quantise};
use ork_weights::tile::{rows_bytes, untile};
use std::path::PathBuf;

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    n: u32,
    k: u32,
    value: usize,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/hub")
}

fn cases() -> Vec<(Case, Vec<f32>)> {
    let cases = std::fs::read(folder().join("values.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_slice(&cases).unwrap();
    let values = std::fs::read(folder().join("values.f32")).unwrap();
    let values: Vec<f32> =
        values.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
    let of = |case: Case| {
        let own = values[case.value..][..(case.k * case.n) as usize].to_vec();
        (case, own)
    };
    cases.into_iter().map(of).collect()
}

fn model() -> Model {
    Model::open(folder().join("model.safetensors"), &OpenOptions::default()).unwrap()
}

/// Tiles and scales of a tier.
fn made(tier: Tier, k: u32, n: u32) -> (Vec<u8>, Vec<f32>) {
    let layout = tier.layout(k, n).unwrap();
    (vec![0xee; layout.bytes() as usize], vec![f32::NAN; tier.scales(k, n)])
}

#[test]
fn each_value_is_the_librarys() {
    let (model, cases) = (model(), cases());
    assert_eq!(model.weights().len(), cases.len());
    for (case, values) in &cases {
        let weight = model.weight(&case.name).expect(&case.name);
        assert_eq!((weight.k, weight.n), (case.k, case.n), "{}", case.name);
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let rows = Rows::new(TensorType::F32, case.k, case.n, &raw).unwrap();
        for tier in ["fp16", "rotated-int8", "nf4", "int4:32"] {
            let tier: Tier = tier.parse().unwrap();
            let (mut tiles, mut scales) = made(tier, case.k, case.n);
            model.quantise(weight, &tier, &mut tiles, &mut scales).unwrap();
            let (mut want, mut want_scales) = made(tier, case.k, case.n);
            quantise(&rows, &Recipe::new(tier), &mut want, &mut want_scales).unwrap();
            assert!(tiles == want && scales == want_scales, "{} {tier}", case.name);
        }
        // Channels from the middle, whose scales begin in the middle of a block.
        let (first, tier) = (case.n / 2 - 3, Tier::Fp16);
        let (mut tiles, mut scales) = made(tier, case.k, case.n - first);
        let recipe = Recipe::new(tier);
        model.quantise_channels(weight, first..case.n, &recipe, &mut tiles, &mut scales).unwrap();
        let raw = &raw[(4 * case.k * first) as usize..];
        let rows = Rows::new(TensorType::F32, case.k, case.n - first, raw).unwrap();
        let (mut want, mut none) = made(tier, case.k, case.n - first);
        quantise(&rows, &recipe, &mut want, &mut none).unwrap();
        assert!(tiles == want, "{}", case.name);
    }
    let sides = model.skipped();
    assert!(sides.iter().all(|side| side.role == Role::Other && side.reason.contains("codes of")));
    assert_eq!(sides.len(), 13);
}

/// W8A8: the codes and scales of the file, not others that are near.
#[test]
fn codes_of_int8_are_taken_as_they_are() {
    let (model, mut taken) = (model(), 0);
    for (case, values) in cases() {
        let weight = model.weight(&case.name).unwrap();
        if weight.kind != TensorType::I8 {
            continue;
        }
        taken += 1;
        let (mut tiles, mut scales) = made(Tier::Int8, case.k, case.n);
        let recipe = Recipe { measure: true, ..Recipe::new(Tier::Int8) };
        let quality = model.quantise_with(weight, &recipe, &mut tiles, &mut scales).unwrap();
        assert_eq!(quality.relative_rms(), 0.0);
        let layout = Tier::Int8.layout(case.k, case.n).unwrap();
        let mut rows = vec![0; rows_bytes(&layout) as usize];
        untile(&layout, &tiles, &mut rows).unwrap();
        let mut least = 0;
        for (channel, values) in values.chunks(case.k as usize).enumerate() {
            let codes = &rows[channel * layout.k() as usize..][..case.k as usize];
            for (code, value) in codes.iter().zip(values) {
                least = least.min(*code as i8);
                assert_eq!(f32::from(*code as i8) * scales[channel], *value, "{}", case.name);
            }
        }
        assert!(least < -100);
    }
    assert_eq!(taken, 2);
}
