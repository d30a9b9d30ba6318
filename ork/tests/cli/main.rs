//! The program as a user meets it: what it prints, where, and with which exit code.

mod bad_input;
mod check;
mod disturbed;
mod models;
mod packs;
mod probes;
mod run;

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use ork_weights::model::synth::Shape;
use serde_json::Value;
use tempfile::TempDir;

/// The program with these arguments, in an environment without settings.
fn ork(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("ork").expect("the program is built with its tests");
    for name in
        ["ORK_PERSIST", "ORK_WCACHE_BUDGET_MB", "ORK_EVICT_SRC", "ORK_CACHE_POLICY", "ORK_ACCESS"]
    {
        command.env_remove(name);
    }
    // No profile of a board that somebody has.
    command.env("XDG_CONFIG_HOME", "/nowhere");
    command.args(args);
    command
}

/// Runs, expects success and nothing but JSON on standard output.
fn json(args: &[&str]) -> Value {
    let output = ork(args).arg("--json").assert().success().get_output().clone();
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// Runs, expects this exit code and an error that contains each of `parts`. Never a panic.
fn fails(args: &[&str], code: i32, parts: &[&str]) {
    let assert = ork(args).assert().code(code);
    let error = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(error.contains("error:"), "{args:?}: {error}");
    assert!(!error.contains("panicked"), "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: {part:?} is not in {error}");
    }
}

/// A folder with a small model in it.
fn model() -> (TempDir, PathBuf) {
    made(Shape::tiny())
}

fn made(shape: Shape) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    shape.write(std::fs::File::create(&path).unwrap()).unwrap();
    (folder, path)
}

/// A folder with a small model and its pack.
fn pack() -> (TempDir, PathBuf, PathBuf) {
    let (folder, model) = model();
    let pack = folder.path().join("model.orkpack");
    ork(&["convert", text(&model)]).assert().success();
    (folder, model, pack)
}

/// The program as words of a shell's command line; where the tests are emulated, so is it.
fn program() -> String {
    let path = assert_cmd::cargo::cargo_bin("ork").display().to_string();
    match std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER") {
        Ok(runner) if cfg!(target_arch = "aarch64") => format!("{runner} {path}"),
        _ => path,
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn help_lists_every_command_and_exit_code() {
    let output = ork(&["--help"]).assert().success().get_output().stdout.clone();
    let help = String::from_utf8(output).unwrap();
    for word in [
        "demo",
        "run",
        "quality",
        "convert",
        "inspect",
        "verify",
        "upgrade",
        "bench",
        "plan",
        "probe",
        "top",
        "Exit codes",
        "--json",
    ] {
        assert!(help.contains(word), "{word} is not in:\n{help}");
    }
    ork(&[]).assert().code(2);
    ork(&["no-such-command"]).assert().code(2);
}
