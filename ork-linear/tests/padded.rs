//! Matrices that do not tile: whoever computes, the results are those of the matrix alone.

use std::fs;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use ork_cache::Store;
use ork_linear::{Depth, Layers, Product, Setup, open};
use ork_weights::convert::{Options, TierChoice, convert};
use ork_weights::model::{Model, OpenOptions};
use ork_weights::pack::{Pack, PackWriter, WriterOptions};
use ork_weights::quantise::Tier;
use rknpu::Device;

/// Names, outputs and inputs: K and N that tile as nothing, and a head that is cut into columns.
const SHAPES: [(&str, usize, usize); 4] = [
    ("model.layers.0.self_attn.q_proj.weight", 97, 60),
    ("model.layers.0.mlp.up_proj.weight", 2730, 60),
    ("model.layers.0.mlp.down_proj.weight", 60, 2730),
    ("lm_head.weight", 32_003, 60),
];
const ROWS: usize = 33;

/// Noise of [−1, 1).
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mix = |i: usize| (i as u32).wrapping_add(seed).wrapping_mul(0x9e37_79b9).rotate_left(13);
    (0..count).map(|i| mix(i).wrapping_mul(0x85eb_ca6b) as i32 as f32 / 2f32.powi(31)).collect()
}

fn values(number: usize) -> Vec<f32> {
    let (_, n, k) = SHAPES[number];
    noise(n * k, 7 + number as u32)
}

fn write(path: &Path) {
    let (mut header, mut data) = (Vec::new(), Vec::<u8>::new());
    for (number, (name, n, k)) in SHAPES.iter().enumerate() {
        let start = data.len();
        data.extend(values(number).iter().flat_map(|value| value.to_le_bytes()));
        let end = data.len();
        header.push(format!(
            r#""{name}":{{"dtype":"F32","shape":[{n},{k}],"data_offsets":[{start},{end}]}}"#
        ));
    }
    let header = format!("{{{}}}", header.join(","));
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(path, bytes).unwrap();
}

fn multiply(layers: &mut Layers, rows: usize, weight: usize) -> Vec<f32> {
    let (_, n, k) = SHAPES[weight];
    assert_eq!(layers.shape(weight), Some((k as u32, n as u32)));
    let input = noise(ROWS * k, 99);
    let mut out = vec![f32::NAN; rows * n];
    layers.multiply(rows, &input[..rows * k], [Product { weight, out: &mut out }]).unwrap();
    out
}

#[test]
fn results_are_the_matrixs_whoever_computes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path);
    let model = || Model::open(&path, &OpenOptions::default()).unwrap();
    let rotated = Tier::RotatedInt8 { group: None };
    for (tier, most) in [(Tier::Int8, 0.01), (rotated, 0.01), (Tier::Fp16, 0.001), (Tier::Nf4, 0.2)]
    {
        let path = folder.path().join(format!("{tier}.orkpack"));
        let options = Options { tiers: TierChoice::fixed(tier), ..Options::default() };
        convert(&model(), &path, &options, |_| {}).unwrap();
        let mut stores = vec![Store::from_pack(Pack::open(&path).unwrap())];
        if tier.dtype().is_plain() {
            let built = folder.path().join(format!("{tier}-built.orkpack"));
            let identity = model().identity(false).unwrap();
            let writer = PackWriter::create(&built, &identity, WriterOptions::default()).unwrap();
            stores.push(Store::from_model(model(), tier, None).unwrap());
            stores.push(Store::from_model(model(), tier, Some(writer)).unwrap());
        }
        let mut bits: Option<Vec<u32>> = None;
        for store in stores.into_iter().map(Arc::new) {
            for budget in [store.bytes() * 2, store.bytes() / 2] {
                let device = Device::simulated(Default::default()).unwrap();
                let mut setup = Setup::new(budget + (1 << 20));
                setup.cache.rows = 40;
                setup.depth = Depth::Bits16;
                let mut layers = open(&device, slice::from_ref(&store), &setup).unwrap().remove(0);
                let mut all = Vec::new();
                for (weight, (name, ..)) in SHAPES.iter().enumerate() {
                    let many = multiply(&mut layers, ROWS, weight);
                    let one = multiply(&mut layers, 1, weight);
                    assert!(many[..one.len()] == one, "{tier}: {name}");
                    all.extend(many.iter().map(|value| value.to_bits()));
                    near(weight, &many, most);
                }
                assert!(*bits.get_or_insert_with(|| all.clone()) == all, "{tier}");
            }
            if let Some(summary) = store.finish().unwrap() {
                let [a, b] = [&path, &summary.path].map(|path| Pack::open(path).unwrap());
                for (a_entry, b_entry) in a.entries().iter().zip(b.entries()) {
                    assert_eq!(a_entry.checksum(), b_entry.checksum(), "{}", a_entry.name);
                    assert_eq!((a_entry.k, a_entry.n), (b_entry.k, b_entry.n));
                }
            }
        }
    }
}

/// Compares some rows with the product of the floats.
fn near(weight: usize, got: &[f32], most: f64) {
    let (name, n, k) = SHAPES[weight];
    let (values, input) = (values(weight), noise(ROWS * k, 99));
    let (mut off, mut all) = (0.0, 0.0);
    for row in [0, ROWS - 1] {
        for channel in (0..n).step_by(n / 60).chain([n - 1]) {
            let pairs = input[row * k..][..k].iter().zip(&values[channel * k..][..k]);
            let want: f64 = pairs.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            off += (f64::from(got[row * n + channel]) - want).powi(2);
            all += want * want;
        }
    }
    let error = (off / all).sqrt();
    assert!(error < most, "{name}: {error}");
}
