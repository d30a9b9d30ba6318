//! Opening models of every form, and what comes of each tensor.

use ork_weights::dequant::TensorType;
use ork_weights::model::gguf::{Gguf, GgufError};
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, ModelError, OpenOptions, Read};
use ork_weights::quantise::{QuantiseError, Tier};
use std::fs;
use std::path::{Path, PathBuf};

/// A GGUF of these tensors, filled with small floats or with zeros, and of these numbers.
fn gguf(tensors: &[(&str, &[u64], u32)], numbers: &[(&str, u16)]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((numbers.len() as u64).to_le_bytes());
    for (key, value) in numbers {
        out.extend((key.len() as u64).to_le_bytes());
        out.extend(key.as_bytes());
        out.extend(2u32.to_le_bytes());
        out.extend(value.to_le_bytes());
    }
    let mut offset = 0u64;
    for (name, dimensions, kind) in tensors {
        out.extend((name.len() as u64).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
        let bytes = TensorType::from_ggml(*kind)
            .map_or(0, |t| t.row_bytes(dimensions.iter().product()).unwrap());
        offset += bytes.next_multiple_of(32);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend((0..offset / 4).flat_map(|i| ((i % 97) as f32 * 0.01).to_le_bytes()));
    out
}

const F32: u32 = 0;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

fn open(path: &Path) -> Result<Model, ModelError> {
    Model::open(path, &OpenOptions::default())
}

fn names(model: &Model) -> Vec<&str> {
    model.weights().iter().map(|weight| &*weight.name).collect()
}

fn reason<'a>(model: &'a Model, name: &str) -> &'a str {
    &model.skipped().iter().find(|skipped| &*skipped.name == name).unwrap().reason
}

fn synthetic(folder: &Folder, shape: Shape) -> PathBuf {
    let mut bytes = Vec::new();
    shape.write(&mut bytes).unwrap();
    folder.file("model.gguf", &bytes)
}

#[test]
fn weights_come_in_the_order_of_use() {
    let folder = Folder::new();
    let names_in = [
        "output.weight",
        "token_embd.weight",
        "blk.1.ffn_down.weight",
        "blk.1.attn_q.weight",
        "blk.0.ffn_down.weight",
        "blk.0.ffn_up.weight",
        "blk.0.ffn_gate.weight",
        "blk.0.attn_output.weight",
        "blk.0.attn_v.weight",
        "blk.0.attn_k.weight",
        "blk.0.attn_q.weight",
        "blk.0.attn_norm.weight",
    ];
    let tensors: Vec<(&str, &[u64], u32)> =
        names_in.iter().map(|name| (*name, &[32, 64][..], F32)).collect();
    let model = open(&folder.file("m.gguf", &gguf(&tensors, &[]))).unwrap();
    assert_eq!(
        names(&model),
        [
            "blk.0.attn_q.weight",
            "blk.0.attn_k.weight",
            "blk.0.attn_v.weight",
            "blk.0.attn_output.weight",
            "blk.0.ffn_gate.weight",
            "blk.0.ffn_up.weight",
            "blk.0.ffn_down.weight",
            "blk.1.attn_q.weight",
            "blk.1.ffn_down.weight",
            "output.weight",
        ]
    );
    assert_eq!(model.weights()[7].layer, Some(1));
    assert_eq!(reason(&model, "token_embd.weight"), "an embedding table that is only looked up");
}

#[test]
fn every_tensor_that_is_not_taken_has_a_reason() {
    let folder = Folder::new();
    let path = folder.file(
        "m.gguf",
        &gguf(
            &[
                ("blk.0.attn_q.weight", &[32, 32], F32),
                ("blk.0.attn_norm.weight", &[32], F32),
                ("blk.0.attn_q.bias", &[32, 1, 1], F32),
                ("blk.0.odd_k.weight", &[48, 32], F32),
                ("blk.0.odd_n.weight", &[32, 33], F32),
                ("blk.0.ffn_gate_inp.weight", &[32, 32], F32),
                ("blk.0.conv.weight", &[32, 32, 2], F32),
                ("position_embd.weight", &[32, 32], F32),
                ("rope_freqs.weight", &[32], 26),
            ],
            &[],
        ),
    );
    let model = open(&path).unwrap();
    assert_eq!(names(&model), ["blk.0.attn_q.weight"]);
    assert_eq!(model.skipped().len(), 8);
    assert!(reason(&model, "blk.0.attn_norm.weight").contains("norm"));
    assert!(reason(&model, "blk.0.attn_q.bias").contains("bias"));
    assert!(reason(&model, "blk.0.odd_k.weight").contains("K=48"));
    assert!(reason(&model, "blk.0.odd_n.weight").contains("N=33"));
    assert!(reason(&model, "blk.0.ffn_gate_inp.weight").contains("router"));
    assert!(reason(&model, "blk.0.conv.weight").contains("convolution"));
    assert!(reason(&model, "position_embd.weight").contains("looked up"));
    assert!(reason(&model, "rope_freqs.weight").contains("positions"));
}

#[test]
fn a_tied_head_is_taken_unless_it_is_not_asked_for() {
    let folder = Folder::new();
    let tied: &[(&str, &[u64], u32)] =
        &[("token_embd.weight", &[32, 64], F32), ("blk.0.attn_q.weight", &[32, 32], F32)];
    let path = folder.file("tied.gguf", &gguf(tied, &[]));
    let options = OpenOptions { tied_head: false, ..OpenOptions::default() };
    let without = Model::open(&path, &options).unwrap();
    assert!(reason(&without, "token_embd.weight").contains("tied"));
    let model = open(&path).unwrap();
    assert_eq!(names(&model), ["blk.0.attn_q.weight", "token_embd.weight"]);
    assert!(model.weights()[1].tied && !model.weights()[0].tied);

    // With a head of its own the table stays out.
    let own = [tied, &[("output.weight", &[32, 64][..], F32)]].concat();
    let model = open(&folder.file("own.gguf", &gguf(&own, &[]))).unwrap();
    assert_eq!(names(&model), ["blk.0.attn_q.weight", "output.weight"]);
}

#[test]
fn experts_come_apart() {
    let folder = Folder::new();
    let shape = Shape { experts: 3, ..Shape::tiny() };
    let path = synthetic(&folder, shape);
    let model = open(&path).unwrap();
    assert!(model.has_experts());
    assert!(model.weight("blk.0.ffn_up_exps.weight").is_none());
    let expert = model.weight("blk.1.ffn_down_exps.weight#2").unwrap();
    assert_eq!((expert.k, expert.n, expert.expert), (512, 256, Some(2)));
    let whole = Gguf::parse(&fs::read(&path).unwrap()).unwrap();
    let stack = whole.tensor("blk.1.ffn_down_exps.weight").unwrap();
    assert_eq!(expert.bytes * 3, stack.bytes);

    // The expert is the last third of the stack.
    let layout = Tier::Int8.layout(512, 256).unwrap();
    let (mut tiled, mut scales) = (vec![0; layout.bytes() as usize], vec![0.0; 256]);
    model.quantise(expert, &Tier::Int8, &mut tiled, &mut scales).unwrap();
    let bytes = fs::read(&path).unwrap();
    let range = stack.range().end - expert.bytes..stack.range().end;
    let rows = ork_weights::quantise::Rows::new(
        expert.kind,
        512,
        256,
        &bytes[range.start as usize..range.end as usize],
    )
    .unwrap();
    let (mut expected, mut expected_scales) = (tiled.clone(), scales.clone());
    expected.fill(0);
    let recipe = ork_weights::quantise::Recipe::new(Tier::Int8);
    ork_weights::quantise::quantise(&rows, &recipe, &mut expected, &mut expected_scales).unwrap();
    assert_eq!((tiled, scales), (expected, expected_scales));
}

#[test]
fn every_way_of_reading_gives_the_same() {
    let folder = Folder::new();
    let path = synthetic(&folder, Shape::tiny());
    let [buffered, direct] = [Read::Buffered, Read::Direct]
        .map(|read| Model::open(&path, &OpenOptions { read, ..OpenOptions::default() }).unwrap());
    assert_eq!(buffered.weights(), direct.weights());
    for weight in buffered.weights() {
        let layout = Tier::Int8.layout(weight.k, weight.n).unwrap();
        let read = |model: &Model| {
            let (mut out, mut scales) =
                (vec![0; layout.bytes() as usize], vec![0.0; weight.n as usize]);
            model.quantise(weight, &Tier::Int8, &mut out, &mut scales).unwrap();
            model.evict(weight);
            (out, scales)
        };
        let first = read(&buffered);
        assert_eq!(first, read(&direct), "{}", weight.name);
        assert_eq!(first, read(&buffered), "evicted pages come back");
    }
}

#[test]
fn split_models_are_one() {
    let folder = Folder::new();
    let part = |number: u16, count: u16, name: &str| {
        let name = name.to_owned();
        gguf(&[(&name, &[32, 32], F32)], &[("split.no", number), ("split.count", count)])
    };
    let first = folder.file("m-00001-of-00002.gguf", &part(0, 2, "blk.0.attn_q.weight"));
    let missing = open(&first).unwrap_err();
    assert!(matches!(&missing, ModelError::Split { .. }), "{missing}");
    assert!(missing.to_string().contains("m-00002-of-00002.gguf"), "{missing}");
    let second = folder.file("m-00002-of-00002.gguf", &part(1, 2, "blk.1.attn_q.weight"));
    for path in [&first, &second] {
        let model = open(path).unwrap();
        assert_eq!(names(&model), ["blk.0.attn_q.weight", "blk.1.attn_q.weight"]);
        assert_eq!(model.paths().count(), 2);
    }
    // A file of several that knows of no others, or whose index is not named.
    let lone = gguf(&[("blk.0.attn_q.weight", &[32, 32], F32)], &[]);
    let lone = open(&folder.file("lone-00002-of-00003.gguf", &lone)).unwrap_err();
    assert!(lone.to_string().contains("file 2 of 3"), "{lone}");
    let shard =
        open(&folder.file("st-00002-of-00003.safetensors", b"\x02\0\0\0\0\0\0\0{}")).unwrap_err();
    assert!(shard.to_string().contains("st.safetensors.index.json"), "{shard}");
    let identity = open(&first).unwrap().identity(false).unwrap();
    assert_eq!(identity, open(&second).unwrap().identity(false).unwrap());

    folder.file("m-00002-of-00002.gguf", &part(1, 2, "blk.0.attn_q.weight"));
    assert!(matches!(open(&first), Err(ModelError::DuplicateTensor { .. })));
    folder.file("m-00002-of-00002.gguf", &part(0, 2, "blk.1.attn_q.weight"));
    assert!(matches!(open(&first), Err(ModelError::Split { .. })));
    let misnamed = folder.file("single.gguf", &part(0, 2, "blk.0.attn_q.weight"));
    assert!(matches!(open(&misnamed), Err(ModelError::Split { .. })));
    let misnumbered = folder.file("n-00002-of-00002.gguf", &part(0, 2, "blk.0.attn_q.weight"));
    assert!(matches!(open(&misnumbered), Err(ModelError::Split { .. })));
}

/// A safetensors file of f32 or other tensors with zeros.
fn safetensors(tensors: &[(&str, &str, &[usize])]) -> Vec<u8> {
    let (mut header, mut at) = (String::from("{"), 0);
    for (name, dtype, shape) in tensors {
        let width = match *dtype {
            "F32" => 4,
            "F16" | "BF16" => 2,
            _ => 1,
        };
        let end = at + width * shape.iter().product::<usize>();
        let comma = if at == 0 { "" } else { "," };
        header += &format!(
            r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#
        );
        at = end;
    }
    header += "}";
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + at, 0x3c);
    out
}

#[test]
fn safetensors_single_and_sharded() {
    let folder = Folder::new();
    let bytes = safetensors(&[
        ("model.embed_tokens.weight", "BF16", &[64, 32]),
        ("model.layers.0.self_attn.q_proj.weight", "BF16", &[96, 32]),
        ("model.layers.0.input_layernorm.weight", "F32", &[32]),
        ("model.layers.0.mlp.down_proj.weight", "F16", &[32, 64]),
    ]);
    let single = folder.file("model.safetensors", &bytes);
    let model = open(&single).unwrap();
    assert_eq!(
        names(&model),
        [
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.mlp.down_proj.weight",
            "model.embed_tokens.weight"
        ]
    );
    let (query, down) = (&model.weights()[0], &model.weights()[1]);
    assert_eq!((query.k, query.n, query.kind), (32, 96, TensorType::BF16));
    assert_eq!((down.k, down.n, down.kind, down.layer), (64, 32, TensorType::F16, Some(0)));
    assert_eq!(model.skipped().len(), 1);
    let (mut out, mut scales) = (vec![0; 4096], vec![0.0; 32]);
    model.quantise(down, &Tier::Int8, &mut out, &mut scales).unwrap();
    assert!(scales.iter().all(|&s| s == half_of(0x3c3c) / 127.0));

    folder.file("b.safetensors", &safetensors(&[("lm_head.weight", "F32", &[64, 32])]));
    let index = folder.file(
        "model.safetensors.index.json",
        br#"{"metadata":{}, "weight_map":{"lm_head.weight":"b.safetensors","model.embed_tokens.weight":"model.safetensors"}}"#,
    );
    let model = open(&index).unwrap();
    // The folder as it is downloaded is the same model.
    assert_eq!(open(folder.0.path()).unwrap().weights(), model.weights());
    // Names do not matter where the content tells.
    let bare = folder.file("0123abcd", &bytes);
    assert_eq!(open(&bare).unwrap().weights().len(), 3);
    let cut = folder.file("cut.safetensors", &bytes[..bytes.len() - 100]);
    let error = open(&cut).unwrap_err();
    assert!(matches!(error, ModelError::Incomplete { missing: 100, .. }), "{error}");
    for (tensor, file) in [("x", "model.safetensors"), ("lm_head.weight", "model.safetensors")] {
        let text = format!(
            r#"{{"weight_map":{{"{tensor}":"{file}","model.embed_tokens.weight":"b.safetensors"}}}}"#
        );
        let error = open(&folder.file("other.json", text.as_bytes())).unwrap_err();
        assert!(matches!(error, ModelError::Index { .. }), "{error:?}");
        assert!(error.to_string().contains("of two downloads"), "{error}");
    }
    assert_eq!(model.weights().len(), 3);
    assert_eq!(&*model.weights()[2].name, "lm_head.weight");
    assert_eq!(
        model.bytes(),
        (bytes.len() + fs::metadata(folder.0.path().join("b.safetensors")).unwrap().len() as usize)
            as u64
    );
}

/// Value of a half float, for the one value the test needs.
fn half_of(bits: u16) -> f32 {
    let mut out = [0.0];
    ork_weights::dequant::dequantise(TensorType::F16, &bits.to_le_bytes(), &mut out).unwrap();
    out[0]
}

#[test]
fn indexes_that_are_refused() {
    let folder = Folder::new();
    let index = |text: &str| open(&folder.file("i.json", text.as_bytes())).unwrap_err();
    assert!(matches!(index("{}"), ModelError::Index { .. }));
    assert!(matches!(index(r#"{"weight_map":{}}"#), ModelError::Index { .. }));
    assert!(matches!(index(r#"{"weight_map":{"a":"../b"}}"#), ModelError::Index { .. }));
    let gone = index(r#"{"weight_map":{"a":"gone","b":"lost"}}"#);
    assert!(matches!(gone, ModelError::Split { .. }), "{gone}");
    assert!(gone.to_string().contains("2 of the model's 2 files"), "{gone}");
    assert!(gone.to_string().contains("gone, lost"), "{gone}");
    folder.file("bad.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff{}");
    let bad = index(r#"{"weight_map":{"a":"bad.safetensors"}}"#);
    assert!(matches!(bad, ModelError::Safetensors { .. }), "{bad}");
}

#[test]
fn files_that_are_refused() {
    let folder = Folder::new();
    assert!(matches!(open(Path::new("/nonexistent")), Err(ModelError::Io { .. })));
    assert!(matches!(open(folder.0.path()), Err(ModelError::Folder { .. })));
    let other = folder.file("m.bin", b"something else");
    assert!(matches!(open(&other), Err(ModelError::UnknownFormat { .. })));
    for (content, what) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:0"[..], "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"PK\x03\x04 archive/data.pkl", "pickle"),
    ] {
        for name in ["x.gguf", "x.safetensors", "pytorch_model.bin", "x"] {
            let error = open(&folder.file(name, content)).unwrap_err();
            assert!(matches!(error, ModelError::NoModel { .. }), "{name}: {error}");
            let text = error.to_string();
            assert!(text.contains(what) && text.contains(name), "{text}");
        }
    }
    let header = gguf(&[], &[("tokenizer.count", 1)]);
    let error = open(&folder.file("vocab.gguf", &header)).unwrap_err();
    assert!(error.to_string().contains("vocabulary or a header alone"), "{error}");
    let cut = folder.file("m.gguf", b"GGUF\x03");
    assert!(matches!(
        open(&cut),
        Err(ModelError::Gguf { source: GgufError::Truncated { .. }, .. })
    ));
    let odd = folder.file("odd.gguf", &gguf(&[("a.weight", &[33, 32], F32)], &[]));
    let error = open(&odd).unwrap_err();
    assert!(matches!(&error, ModelError::NoWeights { tensors: 1, .. }));
    assert!(error.to_string().contains("K=33"), "{error}");
    let unsupported = gguf(&[("blk.0.attn_q.weight", &[32, 32], 9)], &[]);
    let error = open(&folder.file("q8_1.gguf", &unsupported)).unwrap_err();
    assert!(matches!(&error, ModelError::UnsupportedType { .. }));
    assert!(error.to_string().contains("blk.0.attn_q.weight"), "{error}");
    assert!(error.to_string().contains("Q8_1"), "{error}");
}

#[test]
fn what_is_wrong_with_a_weight_names_it() {
    let folder = Folder::new();
    let mut bytes = gguf(&[("blk.0.attn_q.weight", &[32, 32], F32)], &[]);
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let model = open(&folder.file("m.gguf", &bytes)).unwrap();
    let weight = &model.weights()[0];
    let (mut out, mut scales) = (vec![0; 4096], vec![0.0; 32]);
    let error = model.quantise(weight, &Tier::Int8, &mut out, &mut scales).unwrap_err();
    assert!(matches!(
        &error,
        ModelError::Quantise { source: QuantiseError::NotFinite { channel: 31 }, .. }
    ));
    assert!(error.to_string().contains("blk.0.attn_q.weight"), "{error}");
}

#[test]
fn identities_tell_models_apart() {
    let folder = Folder::new();
    let path = synthetic(&folder, Shape::tiny());
    let plain = open(&path).unwrap().identity(false).unwrap();
    let full = open(&path).unwrap().identity(true).unwrap();
    assert_eq!((plain.size, plain.full_hash), (fs::metadata(&path).unwrap().len(), None));
    assert_eq!(plain.sample_hash, full.sample_hash);
    assert!(full.full_hash.is_some());
    // The same names and shapes, other values in one tensor's first block.
    let mut tuned = fs::read(&path).unwrap();
    let tensor = Gguf::parse(&tuned).unwrap().tensor("blk.1.ffn_up.weight").unwrap().offset;
    tuned[tensor as usize] ^= 1;
    let tuned = open(&folder.file("tuned.gguf", &tuned)).unwrap().identity(true).unwrap();
    assert_ne!(plain.sample_hash, tuned.sample_hash);
    assert_ne!(full.full_hash, tuned.full_hash);
}

/// A real model, when there is one.
#[test]
fn a_real_model_opens() {
    let Some(path) = std::env::var_os("ORK_TEST_MODEL") else {
        eprintln!("skipped: ORK_TEST_MODEL names no model");
        return;
    };
    let model = open(Path::new(&path)).unwrap();
    assert!(model.weights().len() > 50);
    let weight = &model.weights()[0];
    let layout = Tier::Int8.layout(weight.k, weight.n).unwrap();
    let (mut out, mut scales) = (vec![0; layout.bytes() as usize], vec![0.0; weight.n as usize]);
    model.quantise(weight, &Tier::Int8, &mut out, &mut scales).unwrap();
    assert!(scales.iter().all(|scale| (1e-6..1.0).contains(scale)));
}

#[test]
fn names_that_read_differently_elsewhere_are_refused() {
    let folder = Folder::new();
    for name in ["blk.0.attn_q\0.weight", "blk.0.attn_q\n.weight", "\u{1b}[2J"] {
        let tensors: &[(&str, &[u64], u32)] =
            &[("blk.0.attn_k.weight", &[32, 32], F32), (name, &[32, 32], F32)];
        let error = open(&folder.file("m.gguf", &gguf(tensors, &[]))).unwrap_err();
        assert!(matches!(error, ModelError::ControlCharacter { number: 1, .. }), "{error:?}");
        assert!(!error.to_string().chars().any(char::is_control), "{error}");
    }
}

#[test]
fn folders_say_which_model_is_meant() {
    let folder = Folder::new();
    let error = open(folder.0.path()).unwrap_err().to_string();
    assert!(error.contains("it is a folder") && error.contains("no .gguf"), "{error}");
    let one: &[(&str, &[u64], u32)] = &[("blk.0.attn_q.weight", &[32, 32], F32)];
    folder.file("a.gguf", &gguf(one, &[]));
    assert_eq!(open(folder.0.path()).unwrap().weights().len(), 1);
    folder.file("b.gguf", &gguf(one, &[]));
    let error = open(folder.0.path()).unwrap_err().to_string();
    assert!(error.contains("2 models") && error.contains("a.gguf"), "{error}");
}
