//! Probes of the simulated device, and what `ork top` shows.

use std::fs;

use super::{fails, json, ork, pack, text};

#[test]
fn a_domain_maps_what_one_of_a_board_does() {
    let found = json(&["probe", "capacity", "--device", "sim"]);
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), 2 * 16, "16 domains, created only and mapped");
    for one in found {
        assert_eq!(one["capacity"].as_u64(), Some((4 << 30) - 4096));
        assert_eq!(one["ended_by"], "domain");
        assert_eq!((one["buffers"].as_u64(), one["errno"].as_i64()), (Some(63), Some(14)));
    }
}

#[test]
fn what_ends_the_probe_of_a_domain_is_not_taken_for_the_domain() {
    // 1,024 open files are fewer than the buffers of 1 MiB that a domain maps.
    let program = super::program();
    let args = "probe capacity --device sim --domain 0 --size 1MiB --keep 0";
    let script = format!("ulimit -n 1024; exec {program} {args}");
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{out}{err}");
    assert!(out.contains("open files: 1024 are allowed") && out.contains("is not known"), "{out}");
    assert!(err.contains("domain 0") && err.contains("a larger --size"), "{err}");

    // Memory that is to be left to others: more than any machine has.
    let args = ["probe", "capacity", "--device", "sim", "--domain", "3", "--keep", "1000TiB"];
    fails(&args, 2, &["domain 3", "are to be kept", "--keep"]);
    let output = ork(&[&args[..], &["--json"]].concat()).output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found[0]["ended_by"], found[0]["buffers"].as_u64()), (&"memory".into(), Some(0)));
    assert!(found[0]["capacity"].is_null() && found[0]["errno"].is_null());
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
    assert!(cores["cores"].as_array().unwrap().iter().all(|core| core["works"] == true));
    assert_eq!(cores["fences"], true);
    let fill = json(&["probe", "fill", "--device", "sim", "--size", "1MiB"]);
    assert_eq!(fill["rates"].as_array().unwrap().len(), 4);
    fails(&["probe", "persist", "--device", "sim", "-k", "31"], 2, &["K=31"]);
}

#[test]
fn loads_are_recorded_while_a_command_runs() {
    let (folder, _model, pack) = pack();
    let csv = folder.path().join("load.csv");
    let program = super::program();
    let args = ["top", "--interval", "0.02", "--record", text(&csv), "--"];
    let run = ["bench", text(&pack), "--device", "sim", "--passes", "400"];
    let run: Vec<&str> = program.split(' ').chain(run).collect();
    let output = ork(&[&args[..], &run].concat()).assert().success();
    assert!(!output.get_output().stdout.is_empty());
    let csv = fs::read_to_string(csv).unwrap();
    let mut lines = csv.lines();
    let columns = lines.next().unwrap().split(',').count();
    assert!(lines.clone().count() > 0);
    assert!(lines.all(|line| line.split(',').count() == columns));

    // The simulator's cores were at work, and the stalls of a run of loads are not nothing.
    let column = |name: &str| {
        let at = csv.lines().next().unwrap().split(',').position(|n| n == name).unwrap();
        let cells =
            csv.lines().skip(1).filter_map(move |line| line.split(',').nth(at)?.parse().ok());
        cells.fold(0.0, f64::max)
    };
    assert!(column("core0_percent") > 0.0 && column("core0_percent") <= 100.0, "{csv}");
    assert!(column("stall_seconds") > 0.0 && column("loads") > 0.0, "{csv}");
    assert!(!csv.contains("-0.0"), "{csv}");

    fails(&["top", "--", "false"], 1, &["code 1"]);
    fails(&["top", "--interval", "0"], 2, &["0.001 to 86400"]);
    fails(&["top", "--", "/no/such/program"], 2, &["/no/such/program"]);
}

#[test]
fn a_recording_is_what_the_kernel_s_files_said() {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("sys/kernel/debug/rknpu/load", "NPU load:  Core0: 11%, Core1: 22%, Core2: 33%,\n");
    put("sys/class/devfreq/fdab0000.npu/load", "44@1000000000Hz\n");
    put("sys/class/devfreq/dmc/load", "2@1560000000Hz\n");
    let (csv, dmc) = (root.path().join("load.csv"), root.path().join("sys/class/devfreq/dmc/load"));
    // The load rises while the command runs; its own words go to standard error.
    let script = format!(
        "echo words; for load in 2 2 2 13 2 2 2; do echo $load@1560000000Hz >{0}.new; mv {0}.new {0}; sleep 0.1; done",
        text(&dmc)
    );
    let args = ["top", "--interval", "0.02", "--root", text(root.path()), "--record", text(&csv)];
    let output = ork(&[&args[..], &["--json", "--", "sh", "-c", &script]].concat())
        .env("XDG_RUNTIME_DIR", root.path())
        .assert()
        .success();
    let output = output.get_output();
    assert!(String::from_utf8_lossy(&output.stderr).contains("words"));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!(summary["command_code"], 0);

    let csv = fs::read_to_string(csv).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().skip(1).map(|line| line.split(',').collect()).collect();
    assert_eq!(summary["samples"].as_u64(), Some(rows.len() as u64));
    for row in &rows {
        assert_eq!(row[1..5], ["11.0", "22.0", "33.0", "44"]);
        assert!(["2", "13"].contains(&row[5]) && row[6] == "1560", "{row:?}");
        assert_eq!(row[7..], [""; 4], "no program published anything");
    }
    // Median and maximum are those of the column.
    let mut ddr: Vec<f64> = rows.iter().map(|row| row[5].parse().unwrap()).collect();
    ddr.sort_by(f64::total_cmp);
    let middle = (ddr[(ddr.len() - 1) / 2] + ddr[ddr.len() / 2]) / 2.0;
    let figure = |name: &str| {
        let all = summary["figures"].as_array().unwrap();
        let of =
            all.iter().find(|figure| figure["name"].as_str().unwrap().starts_with(name)).unwrap();
        (of["median"].as_f64().unwrap(), of["maximum"].as_f64().unwrap())
    };
    assert_eq!(figure("DDR"), (middle, ddr[ddr.len() - 1]));
    assert_eq!(figure("core 2"), (33.0, 33.0));
    assert_eq!(figure("NPU"), (44.0, 44.0));
}

#[test]
fn a_recording_survives_a_signal_and_replaces_nothing_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("load.csv");
    let args = ["top", "--interval", "0.02", "--record", text(&csv), "--", "sleep", "600"];
    let program = super::program();
    let mut words = program.split(' ');
    let mut top = std::process::Command::new(words.next().unwrap())
        .args(words.chain(args))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = || std::fs::read_to_string(&csv).map_or(0, |recorded| recorded.lines().count());
    while lines() < 3 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&top);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // It passes the signal on: nothing waits for the ten minutes.
    assert_eq!(top.wait().unwrap().code(), Some(1));
    assert!(lines() >= 3);

    let before = std::fs::read(&csv).unwrap();
    fails(&["top", "--record", text(&csv), "--", "cat", text(&csv)], 2, &["over what is read"]);
    fails(&["top", "--record", text(&csv), "--", "/no/such/program"], 2, &["cannot start"]);
    assert_eq!(std::fs::read(&csv).unwrap(), before);
}
