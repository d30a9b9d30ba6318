//! Which tensors are taken: on request, in stacks of heads, and in models that can only be listed.

use ork_weights::convert::{Options, convert};
use ork_weights::dequant::TensorType;
use ork_weights::model::{Model, ModelError, OpenOptions, Role};
use ork_weights::pack::{Pack, WriterOptions, upgrade, verify};
use std::fs;
use std::path::PathBuf;

/// A GGUF of these tensors of zeros, with these texts and numbers of 16 bits.
fn gguf(
    tensors: &[(&str, &[u64], u32)],
    texts: &[(&str, &str)],
    numbers: &[(&str, u16)],
) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(((texts.len() + numbers.len()) as u64).to_le_bytes());
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    for (key, value) in texts {
        text(&mut out, key);
        out.extend(8u32.to_le_bytes());
        text(&mut out, value);
    }
    for (key, value) in numbers {
        text(&mut out, key);
        out.extend(2u32.to_le_bytes());
        out.extend(value.to_le_bytes());
    }
    let mut offset = 0u64;
    for (name, dimensions, kind) in tensors {
        text(&mut out, name);
        out.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
        let each = match kind {
            0 => 4,
            1 => 2,
            _ => 1,
        };
        offset += (each * dimensions.iter().product::<u64>()).next_multiple_of(32);
    }
    out.resize(out.len().next_multiple_of(32) + offset as usize, 0);
    out
}

const F16: u32 = 1;
/// A type whose values nothing multiplies.
const I8: u32 = 24;

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

fn names(model: &Model) -> Vec<&str> {
    model.weights().iter().map(|weight| &*weight.name).collect()
}

#[test]
fn heads_of_latent_attention_come_apart() {
    let tensors: [(&str, &[u64], u32); 3] = [
        ("blk.0.attn_k_b.weight", &[64, 96, 3], F16), // inputs, rank, heads
        ("blk.0.attn_v_b.weight", &[96, 32, 3], F16),
        ("blk.0.attn_output.weight", &[96, 64], F16),
    ];
    let files = Files::new();
    let path = files.file("m.gguf", &gguf(&tensors, &[], &[]));
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    let heads = |name: &str| (0..3).map(|head| format!("{name}#{head}")).collect::<Vec<_>>();
    let mut want = [heads("blk.0.attn_k_b.weight"), heads("blk.0.attn_v_b.weight")].concat();
    want.push("blk.0.attn_output.weight".into());
    assert_eq!(names(&model), want);
    for weight in &model.weights()[..3] {
        assert_eq!((weight.k, weight.n, weight.role, weight.expert), (64, 96, Role::Linear, None));
    }
    assert_eq!((model.weights()[3].k, model.weights()[3].n), (96, 32));
    assert!(!model.has_experts());
}

#[test]
fn patterns_decide_otherwise_than_roles() {
    let tensors: [(&str, &[u64], u32); 4] = [
        ("blk.0.attn_q.weight", &[64, 64], F16),
        ("blk.0.attn_k.weight", &[64, 32], F16),
        ("blk.0.ffn_gate_inp.weight", &[64, 8], F16),
        ("token_embd.weight", &[64, 100], F16),
    ];
    let files = Files::new();
    let path = files.file("m.gguf", &gguf(&tensors, &[], &[]));
    let open = |include: &[&str], exclude: &[&str]| {
        let of = |patterns: &[&str]| patterns.iter().map(|pattern| pattern.to_string()).collect();
        let options =
            OpenOptions { include: of(include), exclude: of(exclude), ..OpenOptions::default() };
        Model::open(&path, &options)
    };
    assert_eq!(
        names(&open(&[], &[]).unwrap()),
        ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "token_embd.weight"]
    );
    let model = open(&["*ffn_gate_inp*"], &["*attn_k*", "token_embd*"]).unwrap();
    assert_eq!(names(&model).len(), 2);
    let router = model.weight("blk.0.ffn_gate_inp.weight").unwrap();
    assert_eq!((router.role, router.n), (Role::Linear, 8));
    let left = model.skipped().iter().find(|tensor| &*tensor.name == "blk.0.attn_k.weight");
    assert_eq!(left.unwrap().reason, "left out on request");
    // What is named twice stays out.
    let twice = open(&["*attn_k*"], &["*attn_k*"]).unwrap();
    assert_eq!(names(&twice), ["blk.0.attn_q.weight", "token_embd.weight"]);
    for (include, exclude) in [(&["*atn_q*"][..], &[][..]), (&[][..], &["*atn_q*"][..])] {
        let error = open(include, exclude).unwrap_err();
        assert!(matches!(error, ModelError::Pattern { .. }));
        let text = error.to_string();
        assert!(
            text.contains("*atn_q*") && text.contains("like it are blk.0.attn_q.weight"),
            "{text}"
        );
    }
}

#[test]
fn a_model_that_cannot_be_converted_can_be_listed() {
    let tensors: [(&str, &[u64], u32); 2] =
        [("blk.0.attn_q.weight", &[64, 64], I8), ("blk.0.attn_k.weight", &[64, 32], F16)];
    let files = Files::new();
    let path = files.file("m.gguf", &gguf(&tensors, &[], &[]));
    let error = Model::open(&path, &OpenOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("attn_q") && text.contains("I8") && text.contains("--exclude"), "{text}");
    let list = OpenOptions { list: true, ..OpenOptions::default() };
    let model = Model::open(&path, &list).unwrap();
    assert_eq!(names(&model), ["blk.0.attn_k.weight"]);
    let unread = &model.skipped()[0];
    assert_eq!((&*unread.name, unread.role), ("blk.0.attn_q.weight", Role::Linear));
    assert!(unread.reason.contains("cannot be read"));
    let without = OpenOptions { exclude: vec!["*attn_q*".into()], ..OpenOptions::default() };
    assert!(Model::open(&path, &without).is_ok());
    // Nothing to pack is a list, too.
    let path = files.file("none.gguf", &gguf(&tensors[..1], &[], &[]));
    assert!(Model::open(&path, &list).unwrap().weights().is_empty());
}

#[test]
fn files_of_different_models_are_no_set() {
    let files = Files::new();
    let one: [(&str, &[u64], u32); 1] = [("blk.0.attn_q.weight", &[64, 64], F16)];
    let two: [(&str, &[u64], u32); 1] = [("blk.1.attn_q.weight", &[64, 64], F16)];
    let split = |number: u16, tensors: u16, name: &str| {
        let numbers = [("split.count", 2), ("split.no", number), ("split.tensors.count", tensors)];
        let texts = [("general.architecture", name)];
        gguf(if number == 0 { &one } else { &two }, &texts, &numbers)
    };
    let open = |first: Vec<u8>, second: Vec<u8>| {
        let path = files.file("m-00001-of-00002.gguf", &first);
        files.file("m-00002-of-00002.gguf", &second);
        Model::open(path, &OpenOptions::default())
    };
    assert!(open(split(0, 2, "llama"), split(1, 2, "llama")).is_ok());
    for (first, second, says) in [
        (split(0, 2, "llama"), split(1, 2, "qwen2"), "\"qwen2\""),
        (split(0, 3, "llama"), split(1, 3, "llama"), "3 tensors in all files, and they hold 2"),
    ] {
        let error = open(first, second).unwrap_err();
        assert!(matches!(error, ModelError::Split { .. }));
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_report_names_roles() {
    let tensors: [(&str, &[u64], u32); 3] = [
        ("blk.0.attn_q.weight", &[64, 64], F16),
        ("blk.0.attn_norm.weight", &[64], 0),
        ("output.weight", &[64, 100], F16),
    ];
    let files = Files::new();
    let path = files.file("m.gguf", &gguf(&tensors, &[], &[]));
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(model.weights()[0].kind, TensorType::F16);
    let target = files.0.path().join("m.orkpack");
    let report = convert(&model, &target, &Options::default(), |_| {}).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["weights"][0]["role"], "linear");
    assert_eq!(json["weights"][1]["role"], "output head");
    assert_eq!(json["skipped"]["blk.0.attn_norm.weight"]["role"], "norm");
    // So does the pack, in whatever version.
    let pack = Pack::open(&target).unwrap();
    assert_eq!(
        pack.left_out().iter().collect::<Vec<_>>(),
        [("blk.0.attn_norm.weight", Role::Norm)]
    );
    for version in [2, 3, 5, 7] {
        let other = files.0.path().join(format!("{version}.orkpack"));
        let options = WriterOptions { version, ..WriterOptions::default() };
        upgrade(&pack, &other, options, |_| {}).unwrap();
        let other = Pack::open(&other).unwrap();
        assert_eq!(other.left_out(), pack.left_out());
        assert!(verify(&other, &|_| {}).is_sound());
    }
}
