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
        for command in ["inspect", "verify", "bench", "upgrade"] {
            fails(&[command, text(&pack)], 3, &["model.orkpack"]);
        }
    }
    // One bit of a blob: nothing but its checksum tells.
    let mut flipped = whole.clone();
    flipped[1000] ^= 1;
    fs::write(&pack, &flipped).unwrap();
    fails(&["verify", text(&pack)], 1, &["wrong", "convert the model again"]);
    fails(&["bench", text(&pack), "--verify"], 1, &["damaged", "`ork verify`"]);
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
    let refused =
        ork(&["bench", text(&tuned), "--device", "sim"]).env("ORK_PERSIST", &pack).assert().code(3);
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
    let small = ["bench", text(&pack), "--device", "sim", "--budget", "4096"];
    let assert = ork(&small).assert().code(2);
    let error = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(error.contains("4096 bytes") && error.contains("--budget"), "{error}");
    // The number that it names works.
    let least = error.split('(').nth(2).and_then(|t| t.split(' ').next()).unwrap();
    ork(&["bench", text(&pack), "--device", "sim", "--budget", least]).assert().success();
}

#[test]
fn a_budget_that_plan_refuses_does_not_run_and_the_other_way_round() {
    let (_folder, _model, pack) = pack();
    let run = |command: &[&str], rows: &str, budget: &str| {
        ork(&[command, &[text(&pack), "--rows", rows, "--budget", budget]].concat()).assert()
    };
    for (driver, device, rows) in [
        ("rknpu", "sim", "1"),
        ("rknpu", "sim", "256"),
        ("rocket", "sim:rocket", "1"),
        ("rocket", "sim:rocket", "256"),
    ] {
        let plan = &["plan", "--driver", driver][..];
        let bench = &["bench", "--verify", "--device", device][..];
        let refused = run(plan, rows, "4096").code(2);
        let error = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
        let least = error.split_once(" bytes) is the least").unwrap().0;
        let least: u64 = least.rsplit_once('(').unwrap().1.parse().unwrap();
        for command in [plan, bench] {
            run(command, rows, &least.to_string()).success();
            let refused = run(command, rows, &(least - 4096).to_string()).code(2);
            let error = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
            assert!(error.contains(&least.to_string()), "{error}");
        }
    }
}

#[test]
fn settings_that_mean_nothing() {
    let (_folder, _model, pack) = pack();
    for (name, value) in [
        ("ORK_WCACHE_BUDGET_MB", "lots"),
        ("ORK_CACHE_POLICY", "mru"),
        ("ORK_ACCESS", "mmap"),
        ("ORK_CACHE_POLICY", "s3fifo"),
    ] {
        let assert = ork(&["bench", text(&pack), "--device", "sim"]).env(name, value).assert();
        let error = String::from_utf8(assert.code(2).get_output().stderr.clone()).unwrap();
        assert!(error.contains(name) && error.contains(value), "{error}");
    }
}

#[test]
fn numbers_that_cannot_be() {
    let sim = ["--device", "sim"];
    for (args, parts) in [
        (&["probe", "capacity", "--size", "0"][..], ["1 to 4294963200", "--size"]),
        (&["probe", "stream", "--size", "5GiB"], ["1 to 4294963200", "--size"]),
        (&["probe", "stream", "--rounds", "0"], ["1..", "--rounds"]),
        (&["probe", "domains", "--count", "0"], ["1..=16", "--count"]),
        (&["probe", "domains", "--count", "17"], ["1..=16", "--count"]),
        (&["probe", "domains", "--size", "99GiB"], ["1 to 4294963200", "--size"]),
        (&["probe", "fill", "--size", "9GiB"], ["1 to 4294963200", "--size"]),
        (
            &["probe", "persist", "-k", "4294967264", "-n", "4294967264"],
            ["is not possible", "1 to"],
        ),
        (&["demo", "--size", "0"], ["no model of 0 B", "the smallest has"]),
    ] {
        fails(&[args, &sim[..]].concat(), 2, &parts);
    }
    for interval in ["0", "-1", "nan", "1e30", "soon"] {
        fails(&["top", "--interval", interval], 2, &["0.001 to 86400", "--interval"]);
    }
    fails(&["top", "--samples", "0"], 2, &["1..", "--samples"]);
}

#[test]
fn a_model_that_is_not_there_is_named_once() {
    for command in ["convert", "demo", "bench", "plan", "inspect"] {
        let output = ork(&[command, "no-such.gguf"]).assert().code(3).get_output().clone();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("error: ") && error.contains("No such file"), "{error}");
        assert_eq!(error.matches("no-such.gguf").count(), 1, "{error}");
    }
}

#[test]
fn a_device_that_is_not_one() {
    let (_folder, _model, pack) = pack();
    fails(&["bench", text(&pack), "--device", "/dev/dri/card99"], 4, &["/dev/dri/card99"]);
    fails(
        &["probe", "cores", "--device", "/dev/null"],
        4,
        &["/dev/null is no NPU's node", "auto looks"],
    );
    fails(
        &["bench", text(&pack), "--device", "sim:foo"],
        2,
        &["sim:foo", "rocket", "chain-buffers"],
    );
    // In the words of the command, not of the library.
    let absent = ork(&["probe", "cores", "--device", "/no/node"]).assert().code(4);
    let error = String::from_utf8_lossy(&absent.get_output().stderr).into_owned();
    assert!(error.contains("--device /no/node does not exist") && !error.contains("::"), "{error}");
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
    fails(&["bench", from, "--trace", from, "--device", "sim"], 2, &["name another output"]);
    ork(&["convert", from, "-o", text(&pack)]).assert().success();
    fails(&["upgrade", text(&pack), "-o", from, "--replace"], 2, &["name another output"]);
    assert_eq!(std::fs::read(&model).unwrap(), whole);
    assert_eq!(std::fs::read(&other).unwrap(), whole);
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let (folder, model, pack) = pack();
    let pipe = folder.path().join("pipe.orkpack");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let bare = folder.path().join("bare"); // a folder without a model
    fs::create_dir(&bare).unwrap();
    let (empty, device) = (folder.path().join("empty"), std::path::Path::new("/dev/zero"));
    fs::write(&empty, b"").unwrap();
    let refused = |args: &[&str], what: &str| {
        let mut command = ork(args);
        let assert = command.timeout(std::time::Duration::from_secs(60)).assert().code(3);
        let error = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(error.contains(what), "{args:?}: {error}");
    };
    for (path, what) in
        [(&*bare, "it is a folder"), (&*pipe, "it is a pipe"), (device, "it is a device")]
    {
        let path = text(path);
        for command in ["inspect", "convert", "verify", "bench", "plan", "upgrade", "demo"] {
            refused(&[command, path], what);
        }
        refused(&["verify", text(&pack), "--model", path], what);
        refused(&["upgrade", text(&pack), "--model", path], what);
        refused(&["convert", text(&model), "--imatrix", path], what);
    }
    for command in ["inspect", "convert", "verify", "bench", "plan", "upgrade"] {
        refused(&[command, text(&empty)], "empty");
    }
    for out in [text(&pipe), "/dev/null"] {
        refused(&["convert", text(&model), "-o", out], "not a regular file");
    }
}

#[test]
fn places_are_looked_at_before_the_work() {
    let (folder, model, pack) = pack();
    let link = folder.path().join("link.orkpack");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    fails(&["convert", text(&model), "-o", text(&link)], 3, &["link to nothing"]);
    fails(&["upgrade", text(&pack), "-o", text(&link)], 3, &["link to nothing"]);
    let other = folder.path().join("other.orkpack");
    let nowhere = "/no/such/folder/x";
    fails(&["convert", text(&model), "-o", text(&other), "--report", nowhere], 3, &[nowhere]);
    assert!(!other.exists(), "it was converted first");
    for flag in ["--trace", "--html"] {
        fails(&["bench", text(&pack), "--device", "sim", flag, nowhere], 3, &[nowhere]);
        let args = ["bench", text(&pack), "--device", "sim", flag, text(folder.path())];
        fails(&args, 3, &["it is a folder"]);
    }
    fails(&["plan", "gemma-2-9b", "--html", nowhere], 3, &[nowhere]);
    assert!(link.is_symlink());
}

#[test]
fn bad_arguments_end_with_2() {
    let (_folder, model, pack) = pack();
    let model = text(&model);
    for args in [
        &["--pack-version", "4"][..],
        &["--tier", "int4:7"],
        &["--tier", "int4:0"],
        &["--tier", "int9"],
        &["--tier-map", "nonsense"],
        &["--read", "carrier-pigeon"],
        &["--threads", "1000"],
    ] {
        fails(&[&["convert", model, "--replace"], args].concat(), 2, &[]);
    }
    fails(&["upgrade", text(&pack), "--pack-version", "6"], 2, &["2, 3, 5 or 7"]);
    let bad = ork(&["convert", model]).env("ORK_EVICT_SRC", "foo").assert().code(2);
    assert!(String::from_utf8_lossy(&bad.get_output().stderr).contains("ORK_EVICT_SRC"));
}

#[test]
fn a_rule_that_decides_nothing_is_said() {
    let (_folder, model) = model();
    let args = ["convert", text(&model), "--tier-map", "*fnn_up*=nf4"];
    let output = ork(&args).assert().success().get_output().stderr.clone();
    let notes = String::from_utf8(output).unwrap();
    assert!(notes.contains("\"*fnn_up*\" decides the tier of no weight"), "{notes}");
}

#[test]
fn names_cannot_drive_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evil\u{1b}[2J.orkpack");
    let mut writer =
        ork_weights::pack::PackWriter::create(&path, None, Default::default()).unwrap();
    let name = "w error: forged\u{202e}";
    let int8 = ork_weights::pack::Dtype::Int8;
    writer.add(name, 64, 64, int8, &[1; 4096], &[0.5; 64]).unwrap();
    writer.finish().unwrap();
    for args in [
        &["inspect", text(&path)][..],
        &["verify", text(&path)],
        &["upgrade", text(&path), "--json"],
        &["verify", &format!("{}\u{1b}[2J", text(&path))],
        &["plan", text(&path)],
        &["bench", text(&path), "--device", "sim", "--budget", "1"],
    ] {
        let output = ork(args).output().unwrap();
        for stream in [output.stdout, output.stderr] {
            let shown = String::from_utf8(stream).unwrap();
            let acts = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!shown.contains(acts), "{args:?}: {shown:?}");
            assert!(!shown.contains("\nerror: forged"), "{args:?}: {shown:?}");
        }
    }
}

#[test]
fn errors_name_a_file_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    fs::write(&path, b"not a gguf").unwrap();
    for command in ["inspect", "convert", "plan"] {
        let output = ork(&[command, text(&path)]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error.matches("x.gguf").count(), 1, "{error}");
    }
}
