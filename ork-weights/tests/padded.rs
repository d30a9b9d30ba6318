//! Matrices that do not tile: zeros around them, and the shape that they have.

mod common;

use common::{RawPack, same_weights};
use ork_weights::dequant::TensorType;
use ork_weights::pack::{
    Dtype, Pack, PackError, PackWriter, WeightHeader, WriterOptions, upgrade, verify,
};
use ork_weights::quantise::{Recipe, Rows, Tier, blob_bytes, blob_scales, encode, quantise};
use ork_weights::reference;
use ork_weights::tile::{rows_bytes, untile};
use std::path::Path;

const TIERS: [&str; 11] = [
    "int8",
    "fp16",
    "o4n1",
    "nf4",
    "int4",
    "int4:32",
    "rotated-int8",
    "rotated-int8:64",
    "int4-as-int8",
    "int4-as-int8:64",
    "rotated-int8:32",
];
const K: u32 = 2730;
const N: u32 = 97;

fn tiers() -> impl Iterator<Item = Tier> {
    TIERS.into_iter().map(|tier| tier.parse().unwrap())
}

/// Values of a K × N weight, a row a channel.
fn values() -> Vec<f32> {
    (0..K * N).map(noise).collect()
}

/// From −1 to 1.
fn noise(i: u32) -> f32 {
    let mixed = i.wrapping_add(1).wrapping_mul(0x9e37_79b1);
    (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b) as i32 as f32 / 2f32.powi(31)
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn products_are_those_of_the_matrix() {
    let values = values();
    let raw = raw(&values);
    let rows = Rows::new(TensorType::F32, K, N, &raw).unwrap();
    let input: Vec<f32> = (0..3 * K).map(|i| noise(i + 1_000_000)).collect();
    for tier in tiers() {
        let layout = tier.layout(K, N).unwrap();
        let wide = if tier == Tier::Fp16 { 112 } else { 128 }; // tiles of 16, 32 and 64 channels
        assert_eq!((layout.k(), layout.n()), (2752, wide));
        let mut tiles = vec![0xee; layout.bytes() as usize];
        let mut scales = vec![f32::NAN; tier.scales(K, N)];
        quantise(&rows, &Recipe::new(tier), &mut tiles, &mut scales).unwrap();
        // As if the zeros had been in the file.
        let (wide_k, wide_n) = (layout.k() as usize, layout.n() as usize);
        let mut wide = vec![0f32; wide_k * wide_n];
        for (wide, row) in wide.chunks_exact_mut(wide_k).zip(values.chunks_exact(K as usize)) {
            wide[..K as usize].copy_from_slice(row);
        }
        let wide_raw = self::raw(&wide);
        let wide_rows = Rows::new(TensorType::F32, layout.k(), layout.n(), &wide_raw).unwrap();
        let (mut want, mut want_scales) = (vec![0xdd; tiles.len()], vec![0.0; scales.len()]);
        quantise(&wide_rows, &Recipe::new(tier), &mut want, &mut want_scales).unwrap();
        assert!(tiles == want && scales == want_scales, "{tier}");

        let mut out = vec![f32::NAN; 3 * N as usize];
        reference::matmul(tier, K, N, &tiles, &scales, &input, &mut out).unwrap();
        let (mut off, mut all) = (0.0, 0.0);
        for (row, out) in input.chunks(K as usize).zip(out.chunks(N as usize)) {
            for (channel, got) in values.chunks(K as usize).zip(out) {
                let want: f64 =
                    row.iter().zip(channel).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                off += (f64::from(*got) - want).powi(2);
                all += want * want;
            }
        }
        let most = match tier.bits() {
            4 => 0.5,
            _ => 0.05,
        };
        assert!((off / all).sqrt() < most, "{tier}: {}", (off / all).sqrt());
    }
}

#[test]
fn importance_is_of_the_inputs_that_are_there() {
    let raw = raw(&values());
    let rows = Rows::new(TensorType::F32, K, N, &raw).unwrap();
    let importance: Vec<f32> = (0..K).map(|k| 1.0 + (k % 5) as f32).collect();
    for tier in [Tier::O4n1, Tier::Nf4] {
        let recipe = Recipe { importance: Some(&importance), measure: true, ..Recipe::new(tier) };
        let mut blob = vec![0; blob_bytes(tier, K, N).unwrap() as usize];
        let weighted = encode(&rows, &recipe, &mut blob, &mut []).unwrap().relative_rms();
        assert!(weighted > 0.0 && weighted < 0.3, "{tier}: {weighted}");
        let long = [importance.clone(), vec![1.0; 22]].concat();
        let recipe = Recipe { importance: Some(&long), ..recipe };
        assert!(encode(&rows, &recipe, &mut blob, &mut []).is_err());
    }
}

fn pack(path: &Path, version: u32) -> Pack<ork_weights::pack::PackFile> {
    let raw = raw(&values());
    let rows = Rows::new(TensorType::F32, K, N, &raw).unwrap();
    let options = WriterOptions { version, ..Default::default() };
    let mut writer = PackWriter::create(path, None, options).unwrap();
    for tier in tiers() {
        let mut blob = vec![0; blob_bytes(tier, K, N).unwrap() as usize];
        let mut scales = vec![0.0; blob_scales(tier, K, N)];
        encode(&rows, &Recipe::new(tier), &mut blob, &mut scales).unwrap();
        let name = tier.to_string();
        let header = WeightHeader { name: &name, k: K, n: N, dtype: tier.dtype() };
        let mut weight = writer.begin(header).unwrap();
        weight.write_at(0, &blob).unwrap();
        weight.finish(&scales, None).unwrap();
    }
    writer.finish().unwrap();
    Pack::open(path).unwrap()
}

#[test]
fn packs_keep_the_shape_in_every_version() {
    let folder = tempfile::tempdir().unwrap();
    let raw = raw(&values());
    let rows = Rows::new(TensorType::F32, K, N, &raw).unwrap();
    let first = pack(&folder.path().join("3.orkpack"), 3);
    for version in [2, 3, 5, 7] {
        let path = folder.path().join(format!("up{version}.orkpack"));
        upgrade(&first, &path, WriterOptions { version, ..Default::default() }, |_| {}).unwrap();
        let up = Pack::open(&path).unwrap();
        assert!(verify(&up, &|_| {}).is_sound());
        assert!(same_weights(&first, &up));
        assert!(same_weights(&up, &pack(&folder.path().join("made.orkpack"), version)));
        std::fs::remove_file(folder.path().join("made.orkpack")).unwrap();
        for (entry, tier) in up.entries().iter().zip(tiers()) {
            assert_eq!((entry.k, entry.n, entry.dtype), (K, N, tier.dtype()));
            assert_eq!(entry.layout(), tier.layout(K, N).unwrap());
            assert!(entry.is_padded());
            let (mut tiles, mut scales) =
                (vec![1; entry.layout().bytes() as usize], vec![0.0; tier.scales(K, N)]);
            quantise(&rows, &Recipe::new(tier), &mut tiles, &mut scales).unwrap();
            let mut loaded = vec![2; tiles.len()];
            up.load_into(entry, &mut loaded).unwrap();
            assert!(loaded == tiles && up.scales(entry).unwrap() == scales, "{tier}");
            if tier != Tier::Fp16 {
                let codes = up.codes(entry).unwrap();
                let mut rows = vec![0; rows_bytes(&entry.layout()) as usize];
                untile(&entry.layout(), &tiles, &mut rows).unwrap();
                let each = |row: &[u8]| -> Vec<i8> {
                    let nibble = |b: &u8| [(*b << 4) as i8 >> 4, *b as i8 >> 4];
                    match entry.dtype {
                        Dtype::Int4 => row.iter().flat_map(nibble).collect(),
                        _ => row.iter().map(|b| *b as i8).collect(),
                    }
                };
                assert!(codes == each(&rows), "{tier}");
            }
        }
    }
}

/// What a reader of the C project sees: the matrix's K and N, and a form that it does not know.
#[test]
fn readers_in_the_field_pass_them_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("3.orkpack");
    pack(&path, 3);
    let bytes = std::fs::read(&path).unwrap();
    let footer = &bytes[bytes.len() - 32..];
    let index = u64::from_le_bytes(footer[..8].try_into().unwrap()) as usize;
    let mut at = index;
    for tier in tiers() {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        at += 4 + word(at) as usize;
        assert_eq!([word(at), word(at + 4)], [K, N]);
        assert_eq!(word(at + 8), 512 + tier.dtype().code());
        at += 40;
    }
}

#[test]
fn the_mark_and_the_shape_must_agree() {
    let mut marked = RawPack::small(3);
    marked.entries[0].dtype = 513;
    let error = Pack::parse(marked.bytes()).unwrap_err();
    assert!(matches!(error, PackError::Padding { k: 64, n: 64, .. }), "{error}");
    for (k, n) in [(63, 64), (64, 33), (33, 63)] {
        let mut odd = RawPack::small(3);
        (odd.entries[0].k, odd.entries[0].n) = (k, n);
        let error = Pack::parse(odd.bytes()).unwrap_err();
        assert!(matches!(error, PackError::Shape { .. }), "{error}");
        odd.entries[0].dtype = 513;
        let pack = Pack::parse(odd.bytes()).unwrap();
        assert_eq!((pack.entries()[0].k, pack.entries()[0].n), (k, n));
        // One that would be padded to another shape does not have these bytes.
        odd.entries[0].n = 65;
        let error = Pack::parse(odd.bytes()).unwrap_err();
        assert!(matches!(error, PackError::Size { .. }), "{error}");
    }
    let mut huge = RawPack::small(3);
    for dtype in [513, 516, 517, 768] {
        huge.entries[0].dtype = dtype;
        for (k, n) in [(u32::MAX, 1), (1, u32::MAX), (u32::MAX - 40, u32::MAX - 70), (0, 3)] {
            (huge.entries[0].k, huge.entries[0].n) = (k, n);
            let error = Pack::parse(huge.bytes()).unwrap_err();
            assert!(
                matches!(error, PackError::Shape { .. } | PackError::Size { .. }),
                "{dtype} {k} {n}: {error}"
            );
        }
    }
}
