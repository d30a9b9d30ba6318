//! Packs inspected and rewritten.

use std::fs;
use std::path::Path;

use super::{fails, json, made, ork, pack, text};
use ork_weights::model::synth::Shape;

/// Packs of the C project's versions.
fn golden() -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/orkpack");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let packs: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "orkpack")).collect();
    assert!(!packs.is_empty());
    packs
}

#[test]
fn a_pack_says_what_it_is() {
    let (_folder, _model, pack) = pack();
    let view = json(&["inspect", text(&pack)]);
    assert_eq!((&view["kind"], &view["version"]), (&"pack".into(), &3.into()));
    assert!(view["identity"]["sample_hash"].is_string());
    let weights = view["weights"].as_array().unwrap();
    assert!(weights.iter().all(|w| w["dtype"] == "rotated-int8" && w["checksum"].is_string()));
    let left_out = view["left_out"].as_array().unwrap();
    assert!(left_out.iter().any(|t| t["name"] == "output_norm.weight" && t["role"] == "norm"));
    let shown = ork(&["inspect", text(&pack)]).assert().success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    assert!(shown.contains("left out, norm: "), "{shown}");
}

#[test]
fn packs_of_every_version_are_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    for old in golden() {
        let new = folder.path().join(old.file_name().unwrap());
        let before = json(&["inspect", text(&old)]);
        ork(&["upgrade", text(&old), "-o", text(&new)]).assert().success();
        let after = json(&["inspect", text(&new)]);
        assert_eq!(after["version"], 3);
        let names = |view: &serde_json::Value| {
            let weights = view["weights"].as_array().unwrap();
            weights.iter().map(|w| w["name"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&before), names(&after), "{}", old.display());
        let verified = json(&["verify", text(&new)]);
        assert_eq!(verified["checksummed"], verified["weights"]);
    }
}

#[test]
fn standard_output_may_close_early() {
    let (_folder, _model, pack) = pack();
    let line = format!("{} inspect {} | true", super::program(), pack.display());
    let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_upgrade_can_record_the_model() {
    let (folder, model, pack) = pack();
    let (anonymous, named) = (folder.path().join("a.orkpack"), folder.path().join("n.orkpack"));
    let whole = ork_weights::pack::Pack::open(&pack).unwrap();
    let mut writer =
        ork_weights::pack::PackWriter::create(&anonymous, None, Default::default()).unwrap();
    for entry in whole.entries() {
        let mut blob = vec![0; entry.layout().bytes() as usize];
        whole.load_into(entry, &mut blob).unwrap();
        let scales = whole.scales(entry).unwrap();
        writer.add(&entry.name, entry.k, entry.n, entry.dtype, &blob, &scales).unwrap();
    }
    writer.finish().unwrap();
    let args = ["upgrade", text(&anonymous), "-o", text(&named), "--model"];
    let (_other, tuned) = made(Shape { feed_forward: 1024, ..Shape::tiny() });
    fails(&[&args[..], &[text(&tuned)]].concat(), 2, &["is not the model of", "K="]);
    assert!(!named.exists());
    ork(&[&args[..], &[text(&model)]].concat()).assert().success();
    let identity = |path| json(&["inspect", text(path)])["identity"].clone();
    assert!(identity(&anonymous).is_null());
    assert_eq!(identity(&named), identity(&pack));
    ork(&["verify", text(&named), "--model", text(&model)]).assert().success();
    // A pack that names its model is not given another.
    let (_seeded, other) = made(Shape { seed: 9, ..Shape::tiny() });
    fails(&["upgrade", text(&pack), "--model", text(&other)], 3, &["another model"]);
}

#[test]
fn reports_take_no_model_s_and_no_pack_s_place() {
    let (folder, model, pack) = pack();
    let other = folder.path().join("other.gguf");
    fs::copy(&model, &other).unwrap();
    let (pack, before) = (text(&pack), fs::read(&other).unwrap());
    let other = text(&other);
    let bench = ["bench", text(&model), "--device", "sim", "--passes", "1"];
    fails(&[&bench[..], &["--trace", other]].concat(), 2, &[other, "is a model"]);
    fails(&[&bench[..], &["--html", pack]].concat(), 2, &[pack, "is a pack"]);
    fails(&["plan", text(&model), "--html", other], 2, &[other, "is a model"]);
    fails(&["top", "--record", other, "--", "true"], 2, &[other, "is a model"]);
    fails(&["convert", text(&model), "-o", other, "--replace"], 2, &[other, "is a model"]);
    assert_eq!(fs::read(other).unwrap(), before);
}
