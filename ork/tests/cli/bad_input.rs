//! Files that cannot be used, budgets that cannot work, devices that are not there.

use std::fs;

use super::{fails, made, model, ork, pack, text};
use ork_weights::model::synth::Shape;

#[test]
fn a_file_that_is_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let pack = folder.path().join("x.orkpack");
    fails(&["convert", text(&path)], 3, &["x.gguf", "No such file"]);
    for (content, reason) in [(&b""[..], ""), (b"GGUF", ""), (b"#!/bin/sh\necho", "")] {
        fs::write(&path, content).unwrap();
        fails(&["convert", text(&path)], 3, &["x.gguf", reason]);
        fails(&["inspect", text(&path)], 3, &["x.gguf"]);
        assert!(!pack.exists());
    }
    fails(&["demo", text(&path), "--device", "sim"], 3, &["x.gguf"]);
}

#[test]
fn a_model_of_an_unknown_version_or_cut_short() {
    let (folder, path) = model();
    let whole = fs::read(&path).unwrap();
    let mut other = whole.clone();
    other[4] = 99;
    fs::write(&path, &other).unwrap();
    fails(&["convert", text(&path)], 3, &["99"]);
    for cut in [5, 20, 300, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..cut]).unwrap();
        fails(&["convert", text(&path)], 3, &["model.gguf"]);
    }
    assert!(!folder.path().join("model.orkpack").exists(), "a pack under the final name");
}

#[test]
fn a_damaged_pack() {
    let (_folder, model, pack) = pack();
    let whole = fs::read(&pack).unwrap();
    for cut in [0, 10, whole.len() / 2, whole.len() - 1] {
        fs::write(&pack, &whole[..cut]).unwrap();
        for command in ["inspect", "verify", "stream", "upgrade"] {
            fails(&[command, text(&pack)], 3, &["model.orkpack"]);
        }
    }
    // One bit of a blob: nothing but its checksum tells.
    let mut flipped = whole.clone();
    flipped[1000] ^= 1;
    fs::write(&pack, &flipped).unwrap();
    fails(&["verify", text(&pack)], 1, &["wrong", "convert the model again"]);
    fs::write(&pack, &whole).unwrap();
    ork(&["verify", text(&pack), "--model", text(&model)]).assert().success();
}

#[test]
fn a_pack_of_another_model() {
    let (folder, _model, pack) = pack();
    let (_other_folder, tuned) = made(Shape { seed: 2, ..Shape::tiny() });
    fails(&["verify", text(&pack), "--model", text(&tuned)], 3, &["sample hash"]);
    fails(&["convert", text(&tuned), "-o", text(&pack)], 3, &["model.orkpack"]);
    let before = fs::read(&pack).unwrap();
    let refused = ork(&["stream", text(&tuned), "--device", "sim"])
        .env("ORK_PERSIST", &pack)
        .assert()
        .code(3);
    assert!(String::from_utf8_lossy(&refused.get_output().stderr).contains("sample hash"));
    assert_eq!(fs::read(&pack).unwrap(), before, "the refused pack changed");
    ork(&["convert", text(&tuned), "-o", text(&pack), "--replace"]).assert().success();
    assert_ne!(fs::read(&pack).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "something was left behind");
}

#[test]
fn a_place_that_cannot_be_written() {
    let (_folder, model) = model();
    fails(&["convert", text(&model), "-o", "/no/such/folder/x.orkpack"], 3, &["/no/such/folder"]);
    fails(&["convert", text(&model), "-o", "/proc/x.orkpack"], 3, &["/proc"]);
}

#[test]
fn a_budget_that_cannot_work_says_which_does() {
    let (_folder, _model, pack) = pack();
    let small = ["stream", text(&pack), "--device", "sim", "--budget", "4096"];
    let assert = ork(&small).assert().code(2);
    let error = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(error.contains("4096 bytes") && error.contains("--budget"), "{error}");
    // The number that it names works.
    let least = error.split('(').nth(2).and_then(|t| t.split(' ').next()).unwrap();
    ork(&["stream", text(&pack), "--device", "sim", "--budget", least]).assert().success();
}

#[test]
fn settings_that_mean_nothing() {
    let (_folder, _model, pack) = pack();
    for (name, value) in [("ORK_WCACHE_BUDGET_MB", "lots"), ("ORK_CACHE_POLICY", "mru")] {
        let assert = ork(&["stream", text(&pack), "--device", "sim"]).env(name, value).assert();
        let error = String::from_utf8(assert.code(2).get_output().stderr.clone()).unwrap();
        assert!(error.contains(name) && error.contains(value), "{error}");
    }
}

#[test]
fn a_device_that_is_not_one() {
    let (_folder, _model, pack) = pack();
    fails(&["stream", text(&pack), "--device", "/dev/dri/card99"], 4, &["/dev/dri/card99"]);
    fails(&["probe", "cores", "--device", "/dev/null"], 4, &["/dev/null"]);
    fails(&["probe", "window", "--device", "sim", "--domain", "16"], 4, &["16"]);
}

#[test]
fn an_output_is_never_what_is_read() {
    let (folder, model) = model();
    let whole = std::fs::read(&model).unwrap();
    let (from, link) = (text(&model), folder.path().join("link.orkpack"));
    std::os::unix::fs::symlink(&model, &link).unwrap();
    let other = folder.path().join("other.gguf");
    std::fs::copy(&model, &other).unwrap();
    for to in [from, text(&link), text(&other)] {
        fails(&["convert", from, "-o", to, "--replace"], 2, &["name another output"]);
    }
    let pack = folder.path().join("model.orkpack");
    fails(&["convert", from, "-o", text(&pack), "--report", from], 2, &["name another output"]);
    fails(&["stream", from, "--trace", from, "--device", "sim"], 2, &["name another output"]);
    ork(&["convert", from, "-o", text(&pack)]).assert().success();
    fails(&["upgrade", text(&pack), "-o", from, "--replace"], 2, &["name another output"]);
    assert_eq!(std::fs::read(&model).unwrap(), whole);
    assert_eq!(std::fs::read(&other).unwrap(), whole);
}
