//! `ork check` on simulated boards: as they are believed to be, and otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use tempfile::TempDir;

use super::{fails, ork, text};

/// A folder for the report, on a disk, and one for settings.
fn folders() -> (TempDir, TempDir) {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    (disk, tempfile::tempdir().unwrap())
}

/// The report of a run, which ends with this code.
fn check(device: &str, more: &[&str], settings: &Path, code: i32) -> Value {
    let (disk, _) = folders();
    let report = disk.path().join("report.json");
    let args = ["check", "--device", device, "--report", text(&report)];
    let mut command = ork(&args);
    command.args(more).env("XDG_CONFIG_HOME", settings);
    command.assert().code(code);
    serde_json::from_slice(&fs::read(report).unwrap()).unwrap()
}

fn verdict<'a>(report: &'a Value, name: &str) -> &'a Value {
    let steps = report["steps"].as_array().unwrap();
    &steps.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("{name}"))["verdict"]
}

fn profile(settings: &Path) -> Value {
    serde_json::from_slice(&fs::read(settings.join("ork/simulator.json")).unwrap()).unwrap()
}

#[test]
fn all_is_found_as_it_is_believed() {
    let (_, settings) = folders();
    let report = check("sim", &["--risky"], settings.path(), 0);
    assert_eq!((&report["ended"], &report["stopped"]), (&true.into(), &Value::Null));
    let steps = report["steps"].as_array().unwrap();
    assert!(steps.len() > 20);
    for step in steps {
        // A folder without direct I/O is none of the board's.
        assert!(step["verdict"]["holds"] == true || step["name"] == "direct-reads", "{step}");
    }
    // Nothing personal in it.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let all = report.to_string();
    let words = [host.trim(), env!("CARGO_TARGET_TMPDIR"), "/home/"];
    assert!(words.iter().all(|word| word.len() < 4 || !all.contains(word)), "{all}");
    let kept = profile(settings.path());
    assert_eq!((&kept["int8"]["weights"], &kept["int8"]["n_slices"]), (&8.into(), &true.into()));
    assert_eq!(kept["npu_rows"], Value::Null, "a simulator's times are no board's");
}

#[test]
fn what_could_wedge_the_driver_is_not_tried_unasked() {
    let (_, settings) = folders();
    let report = check("sim", &[], settings.path(), 0);
    for name in ["chain-weights-fp16", "chain-n-slices-int8"] {
        assert_eq!(verdict(&report, name)["ended"], "skipped");
    }
    assert_eq!(profile(settings.path())["int8"]["n_slices"], false);
    check("sim:rocket", &[], settings.path(), 0);
    assert_eq!(profile(settings.path())["driver"], "rocket");
}

/// The simulator behaves otherwise, the check finds it, and the profile turns it off.
#[test]
fn a_board_that_behaves_otherwise_is_found_out() {
    for (otherwise, step, weights, buffers) in [
        ("chain-weights", "chain-weights-int8", 1, false),
        ("chain-buffers", "chain-buffers-int8", 8, false),
        ("chain-buffers-hang", "chain-buffers-int8", 8, false),
    ] {
        let (_, settings) = folders();
        let report = check(&format!("sim:{otherwise}"), &[], settings.path(), 0);
        let found = verdict(&report, step);
        assert!(found["holds"] != true && found["ended"] != "skipped", "{otherwise}: {found}");
        assert_eq!(verdict(&report, "product-int8")["holds"], true);
        let kept = profile(settings.path());
        assert_eq!(kept["int8"]["weights"], weights, "{otherwise}");
        assert_eq!(kept["int8"]["buffers"], buffers, "{otherwise}");
    }
    for (otherwise, step) in [("core", "cores"), ("int4", "product-int4"), ("fp16", "product-fp16")]
    {
        let (_, settings) = folders();
        let report = check(&format!("sim:{otherwise}"), &[], settings.path(), 1);
        assert_eq!(verdict(&report, step)["holds"], false, "{otherwise}");
    }
}

/// Text on a board whose chains spoil results: wrong by the defaults, right by the profile.
#[test]
fn the_profile_makes_results_right_again() {
    let (_, settings) = folders();
    let story = Path::new(env!("CARGO_MANIFEST_DIR")).join("story/story.gguf");
    // Two blocks: the weights come with the first, and are chained in the second.
    let prompt = "Once upon a time, there was a little girl named Lily. ".repeat(9);
    let told = |device: &str, settings: &Path| {
        let args = ["run", text(&story), "--raw", &prompt, "--temperature", "0"];
        let mut command = ork(&args);
        command.args(["--max-tokens", "12", "--device", device]);
        let output = command.env("XDG_CONFIG_HOME", settings).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let right = told("sim", settings.path());
    assert!(right.0);
    assert_ne!(told("sim:chain-weights", settings.path()), right, "nothing was otherwise");
    check("sim:chain-weights", &[], settings.path(), 0);
    assert_eq!(told("sim:chain-weights", settings.path()), right);
    // That of another driver says nothing.
    check("sim:rocket", &[], settings.path(), 0);
    assert_ne!(told("sim:chain-weights", settings.path()), right);
}

#[test]
fn a_kill_leaves_a_report_that_says_where_it_was() {
    let (disk, settings) = folders();
    let path = disk.path().join("report.json");
    let mut child = Command::new(cargo_bin("ork"))
        .args(["check", "--device", "sim", "--report", text(&path)])
        .env("XDG_CONFIG_HOME", settings.path())
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let read = |path: &PathBuf| -> Option<Value> {
        let report: Value = serde_json::from_slice(&fs::read(path).ok()?).expect("always whole");
        Some(report)
    };
    let steps = |report: &Value| report["steps"].as_array().map_or(0, Vec::len);
    while read(&path).is_none_or(|report| steps(&report) < 4) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
        sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let report = read(&path).unwrap();
    assert_eq!(report["ended"], false);
    let last = report["steps"].as_array().unwrap().last().unwrap();
    assert!(last["verdict"]["ended"] == "running" || last["verdict"]["ended"] == "found", "{last}");
    assert!(!settings.path().join("ork").exists(), "no profile of half a check");
}

#[test]
fn what_takes_too_long_is_ended_and_told() {
    let (_, settings) = folders();
    let report = check("sim", &["--limit", "0"], settings.path(), 1);
    assert_eq!(verdict(&report, "cores")["ended"], "too_long");
    // The first experiment is the last: nobody knows whether the NPU is still well.
    let stopped = report["stopped"].as_str().unwrap();
    assert!(stopped.contains("no longer well"), "{stopped}");
    assert!(!settings.path().join("ork").exists());
}

#[test]
fn a_device_that_cannot_be_used_ends_it_with_the_reason() {
    let (_, settings) = folders();
    let report = check("/dev/null", &[], settings.path(), 1);
    assert!(report["stopped"].as_str().unwrap().contains("/dev/null"), "{report}");
    assert_eq!(report["steps"].as_array().unwrap().len(), 1);
}

#[test]
fn two_reports_are_compared() {
    let (disk, settings) = folders();
    let write = |name: &str, report: &Value| {
        let path = disk.path().join(name);
        fs::write(&path, report.to_string()).unwrap();
        path
    };
    let one = check("sim", &[], settings.path(), 0);
    let other = check("sim:chain-buffers", &[], settings.path(), 0);
    let (one, other) = (write("one.json", &one), write("other.json", &other));
    let output = ork(&["check", "--json", "--compare", text(&one), text(&other)]).output().unwrap();
    let differences: Value = serde_json::from_slice(&output.stdout).unwrap();
    let named: Vec<_> = differences.as_array().unwrap().iter().map(|d| &d["what"]).collect();
    assert!(named.contains(&&Value::from("chain-buffers-int8")), "{differences}");
    assert!(!named.contains(&&Value::from("product-int8")), "{differences}");
    let same = ork(&["check", "--compare", text(&one), text(&one)]).output().unwrap();
    assert!(String::from_utf8_lossy(&same.stdout).contains("the same"));
    fails(&["check", "--compare", text(&one), "/no/such/report"], 3, &["/no/such/report"]);
}
