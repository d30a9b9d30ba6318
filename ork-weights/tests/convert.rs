//! Whole conversions: the same bytes however they came about, and nothing lost on the way.

use ork_weights::convert::{ConvertError, Imatrix, Options, TierChoice, convert};
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, ModelError, OpenOptions, Read};
use ork_weights::pack::{Dtype, Pack, PackError, WriterOptions};
use ork_weights::quantise::{QuantiseError, Recipe, Tier};
use std::fs;
use std::path::{Path, PathBuf};

struct Case {
    folder: tempfile::TempDir,
    model: Model,
}

impl Case {
    fn new(shape: Shape) -> Case {
        Case::with(shape, OpenOptions::default())
    }

    fn with(shape: Shape, options: OpenOptions) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        shape.write(fs::File::create(&path).unwrap()).unwrap();
        let model = Model::open(&path, &options).unwrap();
        Case { folder, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn convert(&self, name: &str, options: &Options<'_>) -> Vec<u8> {
        convert(&self.model, self.path(name), options, |_| {}).unwrap();
        fs::read(self.path(name)).unwrap()
    }
}

fn of(tier: Tier) -> Options<'static> {
    Options { tiers: TierChoice::fixed(tier), ..Options::default() }
}

#[test]
fn a_pack_holds_what_quantising_gives() {
    let case = Case::new(Shape { experts: 2, ..Shape::tiny() });
    let tiers = [
        Tier::Int8,
        Tier::O4n1,
        Tier::Nf4,
        Tier::Int4 { group: None },
        Tier::Int4 { group: Some(64) },
        Tier::RotatedInt8 { group: None },
        Tier::Int4AsInt8 { group: Some(32) },
    ];
    for (index, tier) in tiers.into_iter().enumerate() {
        let name = format!("{index}.orkpack");
        case.convert(&name, &of(tier));
        let pack = Pack::open(case.path(&name)).unwrap();
        assert_eq!(pack.entries().len(), case.model.weights().len());
        for (weight, entry) in case.model.weights().iter().zip(pack.entries()) {
            assert_eq!((&weight.name, weight.k, weight.n), (&entry.name, entry.k, entry.n));
            let layout = tier.layout(weight.k, weight.n).unwrap();
            let (mut live, mut loaded) =
                (vec![1; layout.bytes() as usize], vec![2; layout.bytes() as usize]);
            let mut scales = vec![0.0; tier.scales(weight.k, weight.n)];
            case.model.quantise(weight, &tier, &mut live, &mut scales).unwrap();
            pack.load_into(entry, &mut loaded).unwrap();
            assert_eq!(live, loaded, "{tier} {}", weight.name);
            assert_eq!(pack.scales(entry).unwrap(), scales, "{tier} {}", weight.name);
        }
    }
}

#[test]
fn threads_ways_of_reading_and_eviction_change_nothing() {
    let case = Case::new(Shape::tiny());
    let expected = case.convert("a.orkpack", &Options::default());
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let options = Options { evict_source: threads == 3, ..Options::default() };
        let name = format!("{threads}.orkpack");
        assert!(pool.install(|| case.convert(&name, &options)) == expected, "{threads} threads");
    }
    let direct = OpenOptions { read: Read::Direct, ..OpenOptions::default() };
    let model = Model::open(case.path("model.gguf"), &direct).unwrap();
    let options = Options { evict_source: true, ..Options::default() };
    convert(&model, case.path("d.orkpack"), &options, |_| {}).unwrap();
    assert!(fs::read(case.path("d.orkpack")).unwrap() == expected, "direct");
}

#[test]
fn an_interrupted_conversion_goes_on() {
    let case = Case::new(Shape { layers: 4, ..Shape::tiny() });
    let expected = case.convert("whole.orkpack", &Options::default());
    let target = case.path("cut.orkpack");
    let cut = std::panic::catch_unwind(|| {
        convert(&case.model, &target, &Options::default(), |progress| {
            assert!(progress.weights < 12, "as if killed");
        })
    });
    assert!(cut.is_err() && !target.exists());
    let report = convert(&case.model, &target, &Options::default(), |_| {}).unwrap();
    assert!(report.resumed() >= 1 && report.resumed() <= 12, "{}", report.resumed());
    assert!(report.weights.iter().skip(report.resumed()).all(|weight| !weight.resumed));
    assert!(fs::read(&target).unwrap() == expected);
}

#[test]
fn progress_and_report_add_up() {
    let case = Case::new(Shape::tiny());
    let (mut calls, mut last) = (0, (0, 0));
    let options = Options { measure: true, ..Options::default() };
    let report = convert(&case.model, case.path("p.orkpack"), &options, |progress| {
        calls += 1;
        assert_eq!(progress.weights, calls);
        assert_eq!(progress.of_weights, case.model.weights().len());
        assert!(progress.bytes > last.0);
        last = (progress.bytes, progress.of_bytes);
    })
    .unwrap();
    assert_eq!((calls, last.0), (case.model.weights().len(), last.1));
    assert_eq!(report.source_bytes(), last.1);
    assert_eq!(report.bytes, fs::metadata(&report.path).unwrap().len());
    assert_eq!(report.skipped.len(), case.model.skipped().len());
    for weight in &report.weights {
        assert_eq!(weight.tier, "rotated-int8");
        assert!((8.0..9.0).contains(&weight.bits), "{weight:?}");
        let error = weight.error.unwrap();
        assert!((1e-4..0.05).contains(&error), "{weight:?}");
    }
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["weights"][0]["name"], "blk.0.attn_q.weight");
    assert!(json["skipped"]["token_embd.weight"]["reason"].is_string() && json["time"].is_number());
}

#[test]
fn tiers_by_name_and_by_source() {
    let case = Case::new(Shape::tiny());
    let mut tiers = TierChoice::by_source();
    tiers.add("*attn_k*=rotated-int8").unwrap();
    tiers.add("output.weight=int4:64").unwrap();
    let options = Options { tiers, ..Options::default() };
    case.convert("t.orkpack", &options);
    let pack = Pack::open(case.path("t.orkpack")).unwrap();
    for weight in case.model.weights() {
        let expected = match &*weight.name {
            name if name.contains("attn_k") => Dtype::RotatedInt8,
            "output.weight" => Dtype::Int4,
            _ if weight.kind.bits() < 5.0 => Dtype::O4n1,
            _ => Dtype::Int8,
        };
        assert_eq!(pack.get(&weight.name).unwrap().dtype, expected, "{}", weight.name);
    }
    // With experts, feed-forward matrices become NF4.
    let case = Case::new(Shape { experts: 2, ..Shape::tiny() });
    let options = Options { tiers: TierChoice::by_source(), ..Options::default() };
    let report = convert(&case.model, case.path("x.orkpack"), &options, |_| {}).unwrap();
    for weight in &report.weights {
        let expected =
            if weight.name.contains("ffn") || weight.source == "Q4_K" { "nf4" } else { "int8" };
        assert_eq!(weight.tier, expected, "{}", weight.name);
    }
}

#[test]
fn packs_of_other_settings_or_models_are_not_overwritten() {
    let case = Case::new(Shape::tiny());
    case.convert("m.orkpack", &of(Tier::Int8));
    let target = case.path("m.orkpack");
    let before = fs::read(&target).unwrap();
    let nf4 = convert(&case.model, &target, &of(Tier::Nf4), |_| {});
    assert!(matches!(nf4, Err(ConvertError::Pack(PackError::TargetExists { .. }))), "{nf4:?}");
    let other = Case::new(Shape { seed: 2, ..Shape::tiny() });
    let error = convert(&other.model, &target, &of(Tier::Int8), |_| {});
    assert!(matches!(error, Err(ConvertError::Pack(_))), "{error:?}");
    assert!(fs::read(&target).unwrap() == before);
    let replace = Options {
        writer: WriterOptions { replace: true, ..WriterOptions::default() },
        ..of(Tier::Nf4)
    };
    convert(&case.model, &target, &replace, |_| {}).unwrap();
    assert_eq!(Pack::open(&target).unwrap().entries()[0].dtype, Dtype::O4n1);
}

#[test]
fn half_floats_are_kept_as_they_are() {
    // Large enough to go through in pieces.
    let case = Case::new(Shape { embedding: 2304, feed_forward: 8704, layers: 1, ..Shape::tiny() });
    let options = Options { measure: true, ..of(Tier::Fp16) };
    let path = case.path("h.orkpack");
    let report = convert(&case.model, &path, &options, |_| {}).unwrap();
    assert!(report.weights.iter().all(|weight| weight.error.unwrap() < 1e-3));
    let pack = Pack::open(&path).unwrap();
    assert!(ork_weights::pack::verify(&pack, &|_| {}).is_sound());
    for (entry, weight) in pack.entries().iter().zip(case.model.weights()) {
        assert_eq!((entry.dtype, &entry.name), (Dtype::Fp16, &weight.name));
        assert!(pack.scales(entry).unwrap().is_empty() && entry.scales_range().is_empty());
        let mut tiles = [(); 2].map(|()| vec![0; entry.layout().bytes() as usize]);
        let [loaded, made] = &mut tiles;
        pack.load_into(entry, loaded).unwrap();
        case.model.quantise(weight, &Tier::Fp16, made, &mut []).unwrap();
        assert!(loaded == made, "{}", entry.name);
    }
}

#[test]
fn what_no_tier_takes_is_refused_before_anything_is_written() {
    let case = Case::new(Shape::tiny());
    let group = of(Tier::Int4 { group: Some(96) });
    let error = convert(&case.model, case.path("h.orkpack"), &group, |_| {});
    assert!(matches!(
        error,
        Err(ConvertError::Model(ModelError::Quantise { source: QuantiseError::Group { .. }, .. }))
    ));
    let files: Vec<_> = fs::read_dir(case.folder.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "{files:?}");
}

/// An imatrix for the first weight: input i has the mean square `square(i)`.
fn imatrix(path: &Path, tensor: &str, k: u64, square: impl Fn(u64) -> f32) {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(2u64.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    let mut offset = 0u64;
    for (part, len) in [("in_sum2", k), ("counts", 1)] {
        let name = format!("{tensor}.{part}");
        out.extend((name.len() as u64).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(1u32.to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (len * 4).next_multiple_of(32);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    (0..k).for_each(|i| out.extend((square(i) * 4.0).to_le_bytes()));
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(4f32.to_le_bytes());
    fs::write(path, out).unwrap();
}

#[test]
fn importance_comes_from_an_imatrix() {
    let case = Case::new(Shape::tiny());
    let weight = &case.model.weights()[0];
    let square = |i: u64| if i.is_multiple_of(16) { 9.0 } else { 0.01 };
    let path = case.path("imatrix.gguf");
    imatrix(&path, &weight.name, u64::from(weight.k), square);
    let file = Imatrix::open(&path).unwrap();
    let importance = file.importance(weight).unwrap().unwrap();
    assert_eq!((importance[0], importance[1], importance.len()), (9.0, 0.01, weight.k as usize));
    assert_eq!(file.importance(&case.model.weights()[1]).unwrap(), None);

    // One that would not be used is an error, and nothing is written.
    let other = case.path("other.gguf");
    imatrix(&other, "another.weight", 256, square);
    let other = Imatrix::open(&other).unwrap();
    for (imatrix, tier, what) in [
        (&file, Tier::Int8, "no weight's tier"),
        (&other, Tier::Nf4, "none of the model's weights"),
    ] {
        let options = Options { imatrix: Some(imatrix), ..of(tier) };
        let error = convert(&case.model, case.path("no.orkpack"), &options, |_| {}).unwrap_err();
        assert!(matches!(error, ConvertError::Imatrix { .. }), "{error:?}");
        assert!(error.to_string().contains(what), "{error}");
        assert!(!case.path("no.orkpack.partial").exists());
    }
    let options = Options { imatrix: Some(&file), ..of(Tier::Nf4) };
    case.convert("i.orkpack", &options);
    let pack = Pack::open(case.path("i.orkpack")).unwrap();
    let recipe = Recipe { importance: Some(&importance), ..Recipe::new(Tier::Nf4) };
    let layout = Tier::Nf4.layout(weight.k, weight.n).unwrap();
    let (mut out, mut scales) = (vec![0; layout.bytes() as usize], vec![0.0; weight.n as usize]);
    case.model.quantise_with(weight, &recipe, &mut out, &mut scales).unwrap();
    assert_eq!(pack.scales(pack.get(&weight.name).unwrap()).unwrap(), scales);
    assert_ne!(
        case.convert("n.orkpack", &of(Tier::Nf4)),
        fs::read(case.path("i.orkpack")).unwrap()
    );

    let refuse = |k, square: fn(u64) -> f32| {
        imatrix(&path, &weight.name, k, square);
        Imatrix::open(&path).unwrap().importance(weight)
    };
    assert!(matches!(refuse(128, |_| 1.0), Err(ConvertError::Imatrix { .. })));
    assert!(matches!(refuse(256, |_| f32::NAN), Err(ConvertError::Imatrix { .. })));
    for bytes in [&b"GGUX"[..], b""] {
        fs::write(&path, bytes).unwrap();
        assert!(matches!(Imatrix::open(&path), Err(ConvertError::Imatrix { .. })));
    }
    assert!(matches!(Imatrix::open(case.path("model.gguf")), Err(ConvertError::Imatrix { .. })));
}

/// The form that llama.cpp's tools wrote before: the same importance, and damage is told.
#[test]
fn the_older_form_of_an_imatrix_is_read() {
    let case = Case::new(Shape { experts: 2, ..Shape::tiny() });
    let dense = &case.model.weights()[0];
    let expert = case.model.weight("blk.0.ffn_up_exps.weight#1").unwrap();
    let mut bytes = 2i32.to_le_bytes().to_vec();
    for (tensor, calls, rows, k) in
        [(&*dense.name, 4i32, 1, dense.k), ("blk.0.ffn_up_exps.weight", 2, 2, expert.k)]
    {
        bytes.extend((tensor.len() as i32).to_le_bytes());
        bytes.extend(tensor.as_bytes());
        bytes.extend(calls.to_le_bytes());
        bytes.extend(((rows * k) as i32).to_le_bytes());
        bytes.extend((0..rows * k).flat_map(|i| (i as f32).to_le_bytes()));
    }
    let whole = bytes.len();
    bytes.extend(7i32.to_le_bytes()); // what follows says how it was made
    let path = case.path("imatrix.dat");
    fs::write(&path, &bytes).unwrap();
    let file = Imatrix::open(&path).unwrap();
    assert_eq!(file.importance(dense).unwrap().unwrap()[8], 2.0);
    let second = file.importance(expert).unwrap().unwrap();
    assert_eq!((second[0], second.len()), (expert.k as f32 / 2.0, expert.k as usize));
    assert_eq!(file.importance(&case.model.weights()[1]).unwrap(), None);
    let options = Options { imatrix: Some(&file), ..of(Tier::Nf4) };
    convert(&case.model, case.path("i.orkpack"), &options, |_| {}).unwrap();

    for cut in (0..whole).step_by(97) {
        fs::write(&path, &bytes[..cut]).unwrap();
        assert!(matches!(Imatrix::open(&path), Err(ConvertError::Imatrix { .. })), "{cut}");
    }
    for (at, value) in [(0, -1), (0, i32::MAX), (4, -1), (4, 0), (4, i32::MAX)] {
        let mut bad = bytes.clone();
        bad[at..at + 4].copy_from_slice(&i32::to_le_bytes(value));
        fs::write(&path, &bad).unwrap();
        assert!(matches!(Imatrix::open(&path), Err(ConvertError::Imatrix { .. })), "{value}");
    }
}

/// A real model, when there is one.
#[test]
fn a_real_model_converts() {
    let Some(path) = std::env::var_os("ORK_TEST_MODEL") else {
        eprintln!("skipped: ORK_TEST_MODEL names no model");
        return;
    };
    let model = Model::open(Path::new(&path), &OpenOptions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = Options { measure: true, ..Options::default() };
    let report = convert(&model, folder.path().join("m.orkpack"), &options, |_| {}).unwrap();
    for weight in &report.weights {
        assert!(weight.error.unwrap() < 0.03, "{weight:?}");
    }
}
