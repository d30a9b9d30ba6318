//! Conversions whose model changes under them.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use assert_cmd::cargo::cargo_bin;

use super::{made, ork, text};
use ork_weights::model::synth::Shape;

#[test]
fn a_model_cut_while_it_is_converted() {
    // Takes a second or so to convert in a debug build: long enough to be cut in the middle.
    let (folder, model) = made(Shape::sized(24 << 20));
    let (pack, partial) =
        (folder.path().join("model.orkpack"), folder.path().join("model.orkpack.partial"));
    let whole = fs::read(&model).unwrap();
    let modified = fs::metadata(&model).unwrap().modified().unwrap();
    ork(&["convert", text(&model)]).assert().success();
    let old = fs::read(&pack).unwrap();
    for read in ["pread", "mmap", "direct"] {
        let mut child = Command::new(cargo_bin("ork"))
            .args(["convert", text(&model), "--read", read, "--threads", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while fs::metadata(&partial).map_or(0, |stat| stat.len()) < 1 << 20 {
            assert!(
                child.try_wait().unwrap().is_none(),
                "{read}: done before anything was written"
            );
            sleep(Duration::from_millis(1));
        }
        File::options().write(true).open(&model).unwrap().set_len(whole.len() as u64 / 3).unwrap();
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{read}: {error}");
        assert!(error.contains(text(&model)) && error.contains("shortened"), "{read}: {error}");
        assert!(fs::read(&pack).unwrap() == old, "{read}: the old pack changed");

        fs::write(&model, &whole).unwrap();
        File::options().write(true).open(&model).unwrap().set_modified(modified).unwrap();
        ork(&["convert", text(&model)]).assert().success();
        assert!(fs::read(&pack).unwrap() == old, "{read}: the interruption shows");
    }
}
