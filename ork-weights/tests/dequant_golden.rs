//! Every tensor type against values that ggml's Python package gives for the same blocks.

use ork_weights::dequant::{TensorType, dequantise};
use std::path::PathBuf;

#[derive(serde::Deserialize)]
struct Case {
    r#type: String,
    ggml_type: u32,
    block_elements: usize,
    block_bytes: usize,
    blocks: usize,
}

/// Distance in units in the last place; f32 bits ordered like the numbers.
fn ulps(a: f32, b: f32) -> u64 {
    let order = |x: f32| {
        let bits = i64::from(x.to_bits() as i32);
        if bits < 0 { i64::from(i32::MIN) - bits } else { bits }
    };
    order(a).abs_diff(order(b))
}

#[test]
fn all_types_agree_with_ggml() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/dequant");
    let manifest = std::fs::read(folder.join("manifest.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(cases.len(), TensorType::all().filter(|kind| kind.ggml().is_some()).count());
    for case in cases {
        let kind = TensorType::from_ggml(case.ggml_type).expect(&case.r#type);
        assert_eq!(kind.name(), case.r#type);
        assert_eq!(kind.block_elements(), case.block_elements, "{kind}");
        assert_eq!(kind.block_bytes(), case.block_bytes, "{kind}");
        let raw = std::fs::read(folder.join(format!("{kind}.raw"))).unwrap();
        let expected = std::fs::read(folder.join(format!("{kind}.f32"))).unwrap();
        let (expected, rest) = expected.as_chunks::<4>();
        assert!(rest.is_empty());
        assert_eq!(expected.len(), case.blocks * case.block_elements, "{kind}");
        let mut values = vec![0f32; expected.len()];
        dequantise(kind, &raw, &mut values).unwrap();
        for (i, (&ours, theirs)) in values.iter().zip(expected).enumerate() {
            let theirs = f32::from_le_bytes(*theirs);
            assert!(ulps(ours, theirs) <= 1, "{kind} value {i}: {ours} and {theirs}");
        }
    }
}
