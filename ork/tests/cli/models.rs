//! Models converted, run and planned.

use std::fs;

use super::{fails, json, made, model, ork, pack, text};
use ork_cache::profile::Profile;
use ork_weights::model::synth::Shape;
use ork_weights::pack::{Dtype, PackWriter, WriterOptions};

#[test]
fn demo_says_that_nothing_changes() {
    let demo = json(&["demo", "--device", "sim", "--size", "26M", "--rows", "3"]);
    assert_eq!(demo["identical"], true);
    let rows = demo["rows"].as_array().unwrap();
    let ways: Vec<&str> = rows.iter().map(|row| row["way"].as_str().unwrap()).collect();
    assert_eq!(ways, ["resident", "convert", "reload", "prefetch", "two_models"]);
    assert!(rows.iter().all(|row| row["peak_weights"].as_u64() <= row["budget"].as_u64()));

    let output = ork(&["demo", "--device", "sim", "--size", "26M", "--passes", "1"]).assert();
    let text = String::from_utf8(output.success().get_output().stdout.clone()).unwrap();
    assert!(text.contains("All 5 digests are identical, and the CPU's."), "{text}");
}

#[test]
fn a_conversion_is_repeatable_on_any_number_of_threads() {
    let (folder, model) = model();
    let (one, all) = (folder.path().join("one.orkpack"), folder.path().join("all.orkpack"));
    ork(&["convert", text(&model), "-o", text(&one), "--threads", "1"]).assert().success();
    ork(&["convert", text(&model), "-o", text(&all)]).assert().success();
    assert!(fs::read(&one).unwrap() == fs::read(&all).unwrap());
}

#[test]
fn a_report_has_every_weight_and_its_error() {
    let (folder, model) = model();
    let file = folder.path().join("report.json");
    let args = ["convert", text(&model), "--tier", "int8", "--tier-map", "*ffn_up*=nf4"];
    let report = json(&[&args[..], &["--report", text(&file)]].concat());
    let weights = report["weights"].as_array().unwrap();
    let tier = |part: &str| {
        let weight = weights.iter().find(|w| w["name"].as_str().unwrap().contains(part)).unwrap();
        weight["tier"].as_str().unwrap().to_owned()
    };
    assert_eq!((tier("ffn_up"), tier("ffn_down")), ("nf4".into(), "int8".into()));
    assert!(weights.iter().all(|w| w["error"].as_f64().is_some_and(|e| e < 0.2)));
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["weights"], report["weights"]);
}

#[test]
fn patterns_decide_what_is_taken() {
    let (folder, model) = model();
    let file = folder.path().join("report.json");
    let args = ["convert", text(&model), "--exclude", "*attn_v*", "--include", "token_embd*"];
    let report = json(&[&args[..], &["--report", text(&file)]].concat());
    let names: Vec<&str> =
        report["weights"].as_array().unwrap().iter().map(|w| w["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"token_embd.weight") && !names.iter().any(|n| n.contains("attn_v")));
    assert_eq!(report["skipped"]["blk.0.attn_v.weight"]["role"], "linear");
    fails(
        &["convert", text(&model), "--exclude", "*atn_v*"],
        3,
        &["like it are blk.0.attn_v.weight"],
    );
    let slip = ork(&["convert", text(&model), "--replace", "--tier-map", "*fnn_up*=nf4"])
        .assert()
        .success();
    let notes = String::from_utf8(slip.get_output().stderr.clone()).unwrap();
    assert!(notes.contains("like it are blk.0.ffn_up.weight"), "{notes}");
    let view = json(&["inspect", text(&model)]);
    let first = &view["weights"][0];
    let tier = "rotated-int8";
    assert_eq!((first["role"].as_str(), first["tier"].as_str()), (Some("linear"), Some(tier)));
    assert_eq!(first["packed_bytes"], 256 * 256 + 4 * 256);
}

#[test]
fn what_is_not_taken_is_named() {
    let (_folder, model) = model();
    let view = json(&["inspect", text(&model)]);
    let skipped = view["skipped"].as_array().unwrap();
    assert!(skipped.iter().any(|s| s["name"] == "token_embd.weight"));
    let output = ork(&["convert", text(&model)]).assert().success();
    let notes = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    let counted: usize = notes
        .lines()
        .filter_map(|line| {
            line.strip_prefix("not taken: ")?.split(' ').next()?.parse::<usize>().ok()
        })
        .sum();
    assert_eq!(counted, skipped.len(), "{notes}");
    assert!(skipped.iter().all(|s| notes.contains(s["reason"].as_str().unwrap())), "{notes}");
}

#[test]
fn streaming_agrees_with_the_cpu_in_every_tier() {
    for tier in ["int8", "o4n1", "nf4", "int4", "rotated-int8", "int4-as-int8"] {
        // A head that does not tile, cut into columns.
        let (folder, model) = made(Shape { vocabulary: 1003, ..Shape::tiny() });
        let pack = folder.path().join("model.orkpack");
        ork(&["convert", text(&model), "--tier", tier]).assert().success();
        let run = json(&[
            "bench",
            text(&pack),
            "--device",
            "sim",
            "--budget",
            "300K",
            "--rows",
            "3",
            "--verify",
        ]);
        assert!(run["results_verified"].as_u64() > Some(0), "{tier}");
        assert!(run["passes"][1]["loads"].as_u64() > Some(0), "{tier} was resident: {run}");
    }
}

#[test]
fn half_floats_are_left_to_the_cpu() {
    let (folder, model) = model();
    let pack = folder.path().join("model.orkpack");
    let converted = ork(&["convert", text(&model), "--tier", "fp16"]).assert().success();
    let said = String::from_utf8_lossy(&converted.get_output().stdout).into_owned();
    assert!(said.contains("half floats are for ork alone"), "{said}");
    fails(
        &["bench", text(&pack), "--device", "sim"],
        2,
        &[text(&pack), "blk.0.attn_q", "half floats"],
    );
}

#[test]
fn a_model_is_packed_while_it_streams_and_loaded_the_next_time() {
    let (folder, model) = model();
    let pack = folder.path().join("made.orkpack");
    let args = ["bench", text(&model), "--device", "sim", "--budget", "600K", "--json"];
    let run = || {
        let output = ork(&args).env("ORK_PERSIST", &pack).assert().success();
        let output = output.get_output().stdout.clone();
        serde_json::from_slice::<serde_json::Value>(&output).unwrap()
    };
    let first = run();
    assert!(first["passes"][0]["packed"].as_u64() > Some(0));
    assert_eq!(first["passes"][1]["packed"], 0, "the second pass loads from the pack");
    let second = run();
    assert_eq!(second["passes"][0]["packed"], 0);
    assert_eq!(first["digest"], second["digest"]);
    ork(&["verify", text(&pack), "--model", text(&model)]).assert().success();
}

#[test]
fn every_policy_gives_the_same_results() {
    let (_folder, _model, pack) = pack();
    let run = |policy: &str| {
        let args = ["bench", text(&pack), "--device", "sim", "--budget", "600K", "--json"];
        let output = ork(&args).env("ORK_CACHE_POLICY", policy).assert().success();
        let view: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
        view["digest"].clone()
    };
    let digest = run("pinned_ring");
    for policy in ["lru", "lfu"] {
        assert_eq!(run(policy), digest, "{policy}");
    }
}

#[test]
fn a_run_is_drawn() {
    let (folder, _model, pack) = pack();
    let (trace, page) = (folder.path().join("trace.json"), folder.path().join("page.html"));
    let args = ["bench", text(&pack), "--device", "sim", "--budget", "600K"];
    ork(&[&args[..], &["--trace", text(&trace), "--html", text(&page)]].concat())
        .assert()
        .success();
    let trace: serde_json::Value = serde_json::from_slice(&fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let names: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    let tracks = ["core 0", "core 1", "core 2", "prefetch", "loads on demand", "domain 0"];
    assert_eq!(names, tracks, "in this order");
    // What the format documents of each kind of event.
    let number = |event: &serde_json::Value, field: &str| event[field].as_f64().unwrap();
    let mut counters = std::collections::BTreeSet::new();
    let mut busy = vec![0; tracks.len()];
    for event in events {
        assert!(event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        match event["ph"].as_str().unwrap() {
            "M" => assert!(!event["args"].as_object().unwrap().is_empty(), "{event}"),
            "X" => {
                assert!(event["name"].is_string(), "{event}");
                assert!(number(event, "ts") >= 0.0 && number(event, "dur") >= 0.0, "{event}");
                busy[event["tid"].as_u64().unwrap() as usize] += 1;
            }
            "C" => {
                assert!(number(event, "ts") >= 0.0 && event["args"]["value"].is_u64(), "{event}");
                counters.insert(event["name"].as_str().unwrap());
            }
            other => panic!("{other} is no kind of event"),
        }
    }
    assert_eq!(counters.into_iter().collect::<Vec<_>>(), ["budget", "device memory"]);
    for track in ["core 0", "prefetch", "domain 0"] {
        let at = tracks.iter().position(|name| *name == track).unwrap();
        assert!(busy[at] > 0, "{track} is empty");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    for text in tracks.iter().chain(&["What is where", "Domain 0", "stays", "streamed"]) {
        assert!(page.contains(text), "{text} is not on the page");
    }
}

#[test]
fn plans_are_printed_before_anything_runs() {
    let big = json(&["plan", "llama-3.1-70b", "--board", "rk3588-16g", "--board", "rk3588-32g"]);
    let plans = big["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 2);
    let loads = |plan: &serde_json::Value| plan["cost"]["bytes_per_pass"].as_u64().unwrap();
    assert!(loads(&plans[1]) < loads(&plans[0]), "more RAM streams less");

    // Mainline's driver: three spaces for each of the vendor's, and the same weights in them.
    let split = json(&["plan", "gemma-2-9b", "--driver", "rocket"]);
    let whole = json(&["plan", "gemma-2-9b"]);
    let of = |plan: &serde_json::Value| {
        let domains = plan["plans"][0]["domains"].as_array().unwrap().clone();
        let resident = domains.iter().map(|domain| domain["resident"].as_u64().unwrap());
        (domains.len(), resident.sum::<u64>())
    };
    let ((spaces, in_spaces), (_, in_domains)) = (of(&split), of(&whole));
    assert_eq!((spaces % 3, &split["plans"][0]["cost"]["switches_per_pass"]), (0, &0.into()));
    assert!((in_domains..in_domains + in_domains / 50).contains(&in_spaces), "{in_spaces}");

    let (folder, model) = made(Shape { experts: 4, ..Shape::tiny() });
    let page = folder.path().join("plan.html");
    let output = ork(&["plan", text(&model), "--html", text(&page)]).assert().success();
    let text_out = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(text_out.contains("RESIDENT") && text_out.contains("LRU"), "{text_out}");
    assert!(fs::read_to_string(page).unwrap().contains("<svg"));

    fails(&["plan", "no-such-model"], 2, &["llama-3.1-70b"]);
    fails(&["plan", "gemma-2-9b", "--board", "toaster"], 2, &["rk3588-16g"]);
    fails(&["plan", "gemma-2-9b", "--budget", "1M"], 2, &["raise --budget"]);
}

#[test]
fn plans_reckon_with_what_was_measured_of_this_driver() {
    let settings = tempfile::tempdir().unwrap();
    let plan = |driver: &str| {
        let mut command = ork(&["plan", "gemma-2-27b", "--driver", driver, "--json"]);
        let output = command.env("XDG_CONFIG_HOME", settings.path()).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let of = |view: &serde_json::Value, what: &str| view["plans"][0][what].as_f64().unwrap();
    let unmeasured = plan("rknpu");
    let (cost, assumed) = (&unmeasured["plans"][0]["cost"], plan("rocket"));
    let loads = cost["bytes_per_pass"].as_f64().unwrap();
    let submits = cost["submits_per_pass"].as_f64().unwrap();
    assert_eq!(of(&unmeasured, "disk_seconds"), loads / 2e9);
    assert_eq!(of(&unmeasured, "submit_seconds"), submits * 365e-6);
    let profile = Profile {
        disk_bytes_per_second: Some(5e8),
        submit_seconds: Some(1e-3),
        ..Profile::careful("rknpu")
    };
    let path = Profile::path(false, |_| Some(settings.path().into())).unwrap();
    profile.save(&path).unwrap();
    let measured = plan("rknpu");
    assert_eq!(of(&measured, "disk_seconds"), loads / 5e8);
    assert_eq!(of(&measured, "submit_seconds"), submits * 1e-3);
    assert_eq!((&unmeasured["measured"], &measured["measured"]), (&false.into(), &true.into()));
    assert_eq!(plan("rocket"), assumed, "it was measured with the other driver");
}

#[test]
fn routers_load_what_they_name_and_the_results_do_not_depend_on_it() {
    let (folder, model) = made(Shape { experts: 8, ..Shape::tiny() });
    let pack = folder.path().join("experts.orkpack");
    json(&["convert", text(&model), "--output", text(&pack)]);
    let run = |more: &[&str]| {
        let common = ["bench", text(&pack), "--rows", "3", "--passes", "4", "--verify"];
        json(&[&common[..], more].concat())
    };
    let routed = ["--active", "2", "--zipf", "0.8"];
    let resident = run(&routed);
    let loads = |view: &serde_json::Value| -> u64 {
        let passes = view["passes"].as_array().unwrap();
        passes.iter().map(|pass| pass["loads"].as_u64().unwrap()).sum()
    };
    let weights = resident["weights"].as_u64().unwrap();
    assert!(loads(&resident) < weights, "not all of {weights} weights are needed: {resident}");
    assert_ne!(resident["digest"], run(&[])["digest"], "all experts are used without routers");
    for more in [&["--no-prefetch"][..], &["--guesses", "2"], &[]] {
        let small = run(&[&routed[..], &["--budget", "640KiB"], more].concat());
        assert_eq!(small["digest"], resident["digest"], "{more:?}");
        assert!(loads(&small) > loads(&resident), "{more:?}: {small}");
    }
    fails(&["bench", text(&pack), "--active", "9"], 2, &["8 experts", "9", "--active"]);
    fails(&["bench", text(&pack), "--zipf", "1"], 2, &["--active"]);
    fails(&["bench", text(&pack), "--active", "2", "--zipf", "nan"], 2, &["0 to 8"]);
}

#[test]
fn names_of_weights_cannot_act() {
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("hostile.orkpack");
    let names = ["<script>alert(1)</script>", "\u{202e}gnp.live", "\"><img src=x onerror=y>"];
    let mut writer = PackWriter::create(&pack, None, WriterOptions::default()).unwrap();
    for name in names {
        writer.add(name, 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64]).unwrap();
    }
    writer.finish().unwrap();
    let (plan, run) = (folder.path().join("plan.html"), folder.path().join("run.html"));
    let outputs = [
        ork(&["plan", text(&pack), "--html", text(&plan)]),
        ork(&["bench", text(&pack), "--device", "sim", "--html", text(&run)]),
        ork(&["inspect", text(&pack)]),
    ];
    for mut command in outputs {
        let output = command.assert().get_output().clone();
        for bytes in [output.stdout, output.stderr] {
            assert!(!bytes.contains(&0x1b) && !bytes.contains(&7), "{command:?}");
        }
    }
    for page in [plan, run] {
        let page = fs::read_to_string(page).unwrap();
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
        assert!(!page.contains("<script") && !page.contains("<img") && !page.contains('\u{1b}'));
    }
}
