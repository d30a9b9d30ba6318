//! Whole weights against the rules written out plainly: one value at a time, its place by the
//! layout's formula.

use ork_weights::dequant::{TensorType, dequantise};
use ork_weights::quantise::{
    QuantiseError, Recipe, Rows, Tier, blob_bytes, blob_scales, block_of, encode, quantise, rotate,
};
use proptest::prelude::*;
use rknpu_sys::layout::{Layout, Precision};

/// Sensible values in blocks of `kind`: noise with the half floats of scales kept small.
fn source(kind: TensorType, k: u32, n: u32, seed: u64) -> Vec<u8> {
    let blocks = n as usize * k as usize / kind.block_elements();
    let mut raw = noise(blocks * kind.block_bytes(), seed);
    let halves: &[usize] = match kind {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
        TensorType::Q4_1 | TensorType::Q4_K => &[0, 2],
        TensorType::Q6_K => &[208],
        TensorType::F16 => &[0],
        _ => &[],
    };
    for block in raw.chunks_exact_mut(kind.block_bytes()) {
        for &at in halves {
            // Sign and fraction stay, the exponent becomes that of 0.03 or so.
            block[at + 1] = block[at + 1] & 0x83 | 0x28;
        }
        if kind == TensorType::F32 {
            block[3] = block[3] & 0x80 | 0x3d;
        }
    }
    raw
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Codes `[N][K]`, scales `[N][groups]` and the relative error by the rules; codes of NF4 as their
/// int8 levels.
fn naive(values: &[f32], k: usize, tier: Tier) -> (Vec<i8>, Vec<f32>, f64) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    let (mut error, mut energy) = (0f64, 0f64);
    for row in values.chunks_exact(k) {
        let mut row = row.to_vec();
        let group = match tier {
            Tier::Int4 { group } | Tier::RotatedInt8 { group } | Tier::Int4AsInt8 { group } => {
                rotate(&mut row);
                group.map_or(k, |g| g as usize)
            }
            _ => k,
        };
        for group in row.chunks_exact(group) {
            let most = group.iter().fold(1e-9f32, |most, v| most.max(v.abs()));
            let (levels, least) = match tier {
                Tier::Int8 | Tier::RotatedInt8 { .. } => (127.0, -127.0),
                Tier::Nf4 => (127.0, 0.0),
                Tier::O4n1 => (7.0, -7.0),
                _ => (7.0, -8.0),
            };
            let scale = most / levels;
            scales.push(scale);
            for v in group {
                let code = match tier {
                    // By the absmax as it comes back from the scale, which is what a pack keeps.
                    Tier::Nf4 => nf4(v / (scale * 127.0)),
                    _ => (v / scale).round_ties_even().clamp(least, levels) as i8,
                };
                error += f64::from(v - f32::from(code) * scale).powi(2);
                energy += f64::from(*v).powi(2);
                codes.push(code);
            }
        }
    }
    (codes, scales, (error / energy).sqrt())
}

/// The published levels, times 127 and rounded; nearest by distance, the upper one at a midpoint.
fn nf4(value: f32) -> i8 {
    const LEVELS: [(f32, i8); 16] = [
        (-1.0, -127),
        (-0.6961928, -88),
        (-0.52507305, -67),
        (-0.3949175, -50),
        (-0.28444138, -36),
        (-0.18477343, -23),
        (-0.091050036, -12),
        (0.0, 0),
        (0.0795803, 10),
        (0.1609302, 20),
        (0.2461123, 31),
        (0.33791524, 43),
        (0.44070983, 56),
        (0.562617, 71),
        (0.72295684, 92),
        (1.0, 127),
    ];
    // Where a level becomes the nearest, as a single: distances of singles would be rounded too.
    let from = |i: usize| ((f64::from(LEVELS[i - 1].0) + f64::from(LEVELS[i].0)) / 2.0) as f32;
    LEVELS[(1..16).rfind(|&i| value >= from(i)).unwrap_or(0)].1
}

fn place(codes: &[i8], layout: &Layout) -> Vec<u8> {
    let mut out = vec![0; layout.bytes() as usize];
    for n in 0..layout.n() {
        for k in 0..layout.k() {
            let code = codes[(n * layout.k() + k) as usize] as u8;
            let (slice, element) = layout.element(k, n).unwrap();
            let slice = layout.slice(slice).unwrap().offset as usize;
            match layout.precision() {
                Precision::Int4 => {
                    out[slice + element as usize / 2] |= (code & 15) << (element % 2 * 4)
                }
                _ => out[slice + element as usize] = code,
            }
        }
    }
    out
}

fn holds(kind: TensorType, k: u32, n: u32, tier: Tier, seed: u64) {
    let raw = source(kind, k, n, seed);
    let mut values = vec![0f32; (k * n) as usize];
    dequantise(kind, &raw, &mut values).unwrap();
    let (codes, by_channel, error) = naive(&values, k as usize, tier);
    let groups = by_channel.len() / n as usize;
    let mut expected_scales = vec![0f32; by_channel.len()];
    for (i, scale) in by_channel.iter().enumerate() {
        expected_scales[i % groups * n as usize + i / groups] = *scale;
    }

    let rows = Rows::new(kind, k, n, &raw).unwrap();
    let layout = tier.layout(k, n).unwrap();
    let mut out = vec![0xee; layout.bytes() as usize];
    let mut scales = vec![f32::NAN; tier.scales(k, n)];
    let recipe = Recipe { measure: true, ..Recipe::new(tier) };
    let quality = quantise(&rows, &recipe, &mut out, &mut scales).unwrap();
    assert_eq!(scales, expected_scales, "{kind} {tier}");
    assert_eq!(out, place(&codes, &layout), "{kind} {tier} {k}x{n}");
    assert!((quality.relative_rms() - error).abs() < 1e-9, "{kind} {tier}: {quality:?} {error}");

    let mut blob = vec![0xee; blob_bytes(tier, k, n).unwrap() as usize];
    let mut beside = vec![f32::NAN; blob_scales(tier, k, n)];
    encode(&rows, &Recipe::new(tier), &mut blob, &mut beside).unwrap();
    match tier {
        Tier::O4n1 | Tier::Nf4 => {
            assert_eq!(&blob[..4], b"1N4O");
            let (own, nibbles) = blob[20..].split_at(4 * n as usize);
            let own: Vec<f32> = own.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            assert_eq!(own, expected_scales);
            for (i, code) in codes.iter().enumerate() {
                let nibble = nibbles[i / 2] >> (i % 2 * 4) & 15;
                match tier {
                    Tier::O4n1 => assert_eq!(nibble, *code as u8 & 15),
                    _ => assert_eq!(LEVELS[usize::from(nibble)], *code),
                }
            }
        }
        Tier::Int4AsInt8 { .. } => {
            assert_eq!(blob, place(&codes, &Layout::new(k, n, Precision::Int4).unwrap()));
            assert_eq!(beside, expected_scales);
        }
        _ => assert_eq!((blob, beside), (out, expected_scales)),
    }
}

const LEVELS: [i8; 16] = [-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127];

fn tier(k: u32) -> impl Strategy<Value = Tier> {
    let group = prop_oneof![Just(None), Just(Some(32)), Just(Some(k))];
    (0..6, group).prop_map(|(tier, group)| match tier {
        0 => Tier::Int8,
        1 => Tier::O4n1,
        2 => Tier::Nf4,
        3 => Tier::Int4 { group },
        4 => Tier::RotatedInt8 { group },
        _ => Tier::Int4AsInt8 { group },
    })
}

fn kind() -> impl Strategy<Value = TensorType> {
    prop::sample::select(vec![
        TensorType::F32,
        TensorType::F16,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q8_0,
        TensorType::Q4_K,
        TensorType::Q6_K,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn every_tier_follows_its_rule(
        kind in kind(),
        (k, tier) in (1u32..6).prop_flat_map(|k| (Just(k * 256), tier(k * 256))),
        n in 1u32..3,
        seed: u64,
    ) {
        holds(kind, k, n * 64, tier, seed);
    }
}

#[test]
fn a_value_beside_a_midpoint_goes_by_the_scale_that_is_kept() {
    holds(TensorType::F32, 768, 64, Tier::Nf4, 1401181131849720679);
    holds(TensorType::F32, 768, 128, Tier::Nf4, 1401181131849720679);
}

#[test]
fn slices_in_both_directions() {
    holds(TensorType::Q8_0, 1056, 64, Tier::Int8, 1);
    holds(TensorType::Q8_0, 32, 8192 + 64, Tier::Int8, 2);
    holds(TensorType::Q8_0, 32, 8192 + 64, Tier::Int4 { group: None }, 3);
    holds(TensorType::Q8_0, 10784, 64, Tier::Int4 { group: Some(32) }, 4);
    assert_eq!(block_of(10784), 32);
}

#[test]
fn half_floats() {
    let (k, n) = (2080, 48);
    let raw = source(TensorType::F16, k, n, 9);
    let rows = Rows::new(TensorType::F16, k, n, &raw).unwrap();
    let layout = Tier::Fp16.layout(k, n).unwrap();
    let mut out = vec![0xee; layout.bytes() as usize];
    let recipe = Recipe { measure: true, ..Recipe::new(Tier::Fp16) };
    let quality = quantise(&rows, &recipe, &mut out, &mut []).unwrap();
    assert_eq!(quality.relative_rms(), 0.0);
    let mut expected = vec![0; out.len()];
    ork_weights::tile::tile(&layout, &raw, &mut expected).unwrap();
    assert_eq!(out, expected);
    let mut blob = vec![0; blob_bytes(Tier::Fp16, k, n).unwrap() as usize];
    encode(&rows, &recipe, &mut blob, &mut []).unwrap();
    assert_eq!(blob, out);

    let large = 70_000f32.to_le_bytes().repeat(32 * 16);
    let rows = Rows::new(TensorType::F32, 32, 16, &large).unwrap();
    let error = quantise(&rows, &recipe, &mut [0; 4096], &mut []).unwrap_err();
    assert_eq!(error, QuantiseError::NotFinite { channel: 0 });
    assert!(error.to_string().contains("choose another tier than fp16"), "{error}");
}

/// Bytes, scales and quality of an encoding on `threads` threads.
fn on(threads: usize, recipe: &Recipe<'_>) -> (Vec<u8>, Vec<f32>, f64) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let raw = source(TensorType::Q4_K, 512, 256, 77);
    let rows = Rows::new(TensorType::Q4_K, 512, 256, &raw).unwrap();
    let mut blob = vec![0; blob_bytes(recipe.tier, 512, 256).unwrap() as usize];
    let mut scales = vec![0.0; blob_scales(recipe.tier, 512, 256)];
    let quality = pool.install(|| encode(&rows, recipe, &mut blob, &mut scales)).unwrap();
    (blob, scales, quality.relative_rms())
}

#[test]
fn threads_change_nothing() {
    let importance: Vec<f32> = (0..512).map(|i| (i % 13) as f32).collect();
    for tier in [Tier::Int8, Tier::O4n1, Tier::Nf4, Tier::Int4 { group: Some(64) }] {
        let recipe = Recipe { tier, importance: Some(&importance), measure: true };
        assert_eq!(on(1, &recipe), on(4, &recipe), "{tier}");
    }
}

#[test]
fn parts_are_parts_of_the_whole() {
    let recipe = Recipe::new(Tier::O4n1);
    let raw = source(TensorType::Q8_0, 64, 64, 5);
    let all = Rows::new(TensorType::Q8_0, 64, 64, &raw).unwrap();
    let half = Rows::new(TensorType::Q8_0, 64, 32, &raw[raw.len() / 2..]).unwrap();
    let (mut whole, mut scales) = (vec![0; 4096], [0.0; 64]);
    quantise(&all, &recipe, &mut whole, &mut scales).unwrap();
    let (mut part, mut part_scales) = (vec![0; 4096], [0.0; 32]);
    quantise(&half.starting_at(32), &recipe, &mut part, &mut part_scales).unwrap();
    assert_eq!(part[..2048], whole[2048..]);
    assert_eq!(part_scales, scales[32..]);
}

#[test]
fn importance_lowers_the_error_it_weighs() {
    let importance: Vec<f32> = (0..512).map(|i| if i % 16 == 0 { 100.0 } else { 0.01 }).collect();
    for tier in [Tier::O4n1, Tier::Nf4] {
        let raw = source(TensorType::Q4_K, 512, 64, 7);
        let mut values = vec![0f32; 512 * 64];
        dequantise(TensorType::Q4_K, &raw, &mut values).unwrap();
        let weighted = |scales: &[f32], tiled: &[u8]| -> f64 {
            let layout = Tier::Int8.layout(512, 64).unwrap();
            let mut codes = vec![0; 512 * 64];
            ork_weights::tile::untile(&layout, tiled, &mut codes).unwrap();
            let off = |i: usize| f64::from(values[i] - f32::from(codes[i] as i8) * scales[i / 512]);
            (0..values.len()).map(|i| f64::from(importance[i % 512]) * off(i) * off(i)).sum()
        };
        let rows = Rows::new(TensorType::Q4_K, 512, 64, &raw).unwrap();
        let run = |importance| {
            let recipe = Recipe { importance, ..Recipe::new(tier) };
            let (mut out, mut scales) = (vec![0; 512 * 64], vec![0.0; 64]);
            quantise(&rows, &recipe, &mut out, &mut scales).unwrap();
            weighted(&scales, &out)
        };
        assert!(run(Some(&importance)) < 0.95 * run(None), "{tier}");
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let raw = source(TensorType::F32, 32, 64, 1);
    let rows = Rows::new(TensorType::F32, 32, 64, &raw).unwrap();
    let recipe = Recipe::new(Tier::Int8);
    let (mut out, mut scales) = (vec![0; 4096], vec![0.0; 64]);
    let length = |buffer, length, expected| QuantiseError::Length { buffer, length, expected };
    assert_eq!(
        Rows::new(TensorType::F32, 32, 65, &raw).unwrap_err(),
        length("source", raw.len(), 32 * 65 * 4)
    );
    assert_eq!(
        quantise(&rows, &recipe, &mut out[1..], &mut scales).unwrap_err(),
        length("tiled weight", 4095, 4096)
    );
    assert_eq!(
        quantise(&rows, &recipe, &mut out, &mut scales[1..]).unwrap_err(),
        length("scales", 63, 64)
    );
    let importance = Recipe { importance: Some(&[1.0]), ..Recipe::new(Tier::Nf4) };
    assert_eq!(
        quantise(&rows, &importance, &mut out, &mut scales).unwrap_err(),
        length("importance", 1, 32)
    );
    let mut short = vec![0; 20];
    assert!(matches!(
        encode(&rows, &importance, &mut short, &mut []),
        Err(QuantiseError::Length { buffer: "blob", .. })
    ));
    let group = Recipe::new(Tier::RotatedInt8 { group: Some(48) });
    assert_eq!(
        quantise(&rows, &group, &mut out, &mut scales).unwrap_err(),
        QuantiseError::Group { group: 48, k: 32 }
    );
    let none = Rows::new(TensorType::F32, 0, 128, &[]).unwrap();
    assert!(matches!(
        quantise(&none, &recipe, &mut out, &mut scales),
        Err(QuantiseError::Layout(_))
    ));
    for tier in [Tier::Int8, Tier::Nf4, Tier::O4n1, Tier::Int4 { group: None }, Tier::Fp16] {
        let mut bad = raw.clone();
        bad[(37 * 32 + 5) * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        let rows = Rows::new(TensorType::F32, 32, 64, &bad).unwrap();
        let layout = tier.layout(32, 64).unwrap();
        let (mut out, mut scales) =
            (vec![0; layout.bytes() as usize], vec![0.0; tier.scales(32, 64)]);
        assert_eq!(
            quantise(&rows, &Recipe::new(tier), &mut out, &mut scales).unwrap_err(),
            QuantiseError::NotFinite { channel: 37 },
            "{tier}"
        );
    }
}
