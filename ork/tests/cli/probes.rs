//! Probes of the simulated device, and what `ork top` shows.

use std::fs;

use super::{fails, json, ork, pack, text};

#[test]
fn the_window_is_that_of_a_board() {
    let found = json(&["probe", "window", "--device", "sim"]);
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), 2 * 16, "16 domains, created only and mapped");
    for one in found {
        assert_eq!(one["window"].as_u64(), Some((4 << 30) - 4096));
        assert_eq!((one["buffers"].as_u64(), one["errno"].as_i64()), (Some(63), Some(14)));
    }
}

#[test]
fn streaming_leaves_nothing_behind() {
    let args = ["probe", "stream", "--device", "sim", "--size", "1MiB", "--rounds", "20"];
    let found = json(&args);
    assert_eq!((&found["clean"], found["left"].as_u64()), (&true.into(), Some(0)));
    assert_eq!(found["peak"].as_u64(), Some(1 << 20));
    ork(&args).assert().success();
}

#[test]
fn the_other_probes_check_themselves() {
    let persist = json(&["probe", "persist", "--device", "sim", "-k", "512", "-n", "256"]);
    assert_eq!((&persist["identical"], persist["bytes"].as_u64()), (&true.into(), Some(512 * 256)));
    let args = ["probe", "domains", "--device", "sim", "--size", "1MiB", "--rounds", "3"];
    let domains = json(&args);
    assert_eq!((domains["jobs"].as_u64(), domains["wrong"].as_u64()), (Some(12), Some(0)));
    let cores = json(&["probe", "cores", "--device", "sim"]);
    assert!(cores.as_array().unwrap().iter().all(|core| core["works"] == true));
    let fill = json(&["probe", "fill", "--device", "sim", "--size", "1MiB"]);
    assert_eq!(fill["rates"].as_array().unwrap().len(), 4);
    fails(&["probe", "persist", "--device", "sim", "-k", "31"], 2, &["K=31"]);
}

#[test]
fn recordings_of_the_driver_are_replayed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/driver-traces");
    let replayed = json(&["sim", "replay", folder]);
    let scenarios = replayed["scenarios"].as_array().unwrap();
    assert!(scenarios.len() > 100);
    for scenario in scenarios {
        assert_eq!(scenario["unequal"], 0, "{scenario}");
        let count = |field: &str| scenario[field].as_u64().unwrap();
        assert_eq!(count("steps"), count("equal"), "{scenario}");
        assert!(scenario["name"].is_string());
    }
    let empty = tempfile::tempdir().unwrap();
    fails(&["sim", "replay", text(empty.path())], 3, &["no recording"]);
}

#[test]
fn loads_are_recorded_while_a_command_runs() {
    let (folder, _model, pack) = pack();
    let csv = folder.path().join("load.csv");
    let program = super::program();
    let args = ["top", "--interval", "0.02", "--record", text(&csv), "--"];
    let run = ["stream", text(&pack), "--device", "sim", "--passes", "40"];
    let run: Vec<&str> = program.split(' ').chain(run).collect();
    let output = ork(&[&args[..], &run].concat()).assert().success();
    assert!(!output.get_output().stdout.is_empty());
    let csv = fs::read_to_string(csv).unwrap();
    let mut lines = csv.lines();
    let columns = lines.next().unwrap().split(',').count();
    assert!(lines.clone().count() > 0);
    assert!(lines.all(|line| line.split(',').count() == columns));

    fails(&["top", "--", "false"], 1, &["code 1"]);
    fails(&["top", "--interval", "0"], 2, &["no time"]);
    fails(&["top", "--", "/no/such/program"], 2, &["/no/such/program"]);
}
