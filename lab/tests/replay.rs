//! The recordings of the vendor driver, all of them.

use lab::replay;
use std::path::Path;

#[test]
fn every_recorded_answer_is_the_models() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/driver-traces");
    let results = replay::folder(&folder).unwrap();
    println!("{results}");
    if std::env::var_os("REPLAY_INTERNALS").is_some() {
        for scenario in &results.scenarios {
            for line in &scenario.internals {
                println!("{}: {line}", scenario.name);
            }
        }
    }
    assert_eq!(results.scenarios.len(), 165);
    let totals = results.totals();
    assert_eq!((totals.steps, totals.equal, totals.unequal), (4251, 4251, 0));
    // 1.5 per cent.
    assert!(totals.not_compared <= 63, "{}", totals.not_compared);
    // Every death of the kernel is named by a hazard.
    let deaths = results.scenarios.iter().filter_map(|scenario| scenario.fatal.as_ref());
    assert_eq!(deaths.clone().count(), 11);
    assert!(deaths.into_iter().all(|fatal| fatal.hazard.is_some()));
    assert!(results.all_equal());
}

fn trace(scenario: serde_json::Value) -> replay::Trace {
    serde_json::from_value(serde_json::json!({
        "hz": "CONFIG_HZ=300",
        "scenarios": [scenario],
    }))
    .unwrap()
}

fn setup() -> serde_json::Value {
    serde_json::json!({ "iommu": true, "domains": "real (16)", "fence": true, "sram": false })
}

fn open() -> serde_json::Value {
    serde_json::json!({ "op": "open", "in": { "fd": "A", "path": "/dev/dri/renderD128" },
        "expect": { "errno": "0" } })
}

fn create(size: u64, out: serde_json::Value) -> serde_json::Value {
    serde_json::json!({ "op": "MEM_CREATE", "step": "c", "fd": "A", "req": "0xc0306442", "at_ms": 5,
        "in": { "handle": 0, "flags": "0x3", "size": size },
        "expect": { "errno": "0", "out_changed": out } })
}

#[test]
fn what_differs_is_named() {
    let right = serde_json::json!({ "handle": 1, "obj_addr": "obj#0", "dma_addr": "0xfffff000" });
    let wrong = serde_json::json!({ "handle": 1, "obj_addr": "obj#0", "dma_addr": "0xffffe000" });
    let less = serde_json::json!({ "handle": 1, "dma_addr": "0xfffff000" });
    for (size, out, fields) in [
        (4096, right.clone(), vec![]),
        (4096, wrong, vec!["dma_addr"]),
        // A field that is not listed must not have changed.
        (4096, less, vec!["obj_addr"]),
        (4097, right.clone(), vec!["size", "dma_addr"]),
        (0, right, vec!["errno", "handle", "obj_addr", "dma_addr"]),
    ] {
        let scenario = serde_json::json!({ "name": "one", "config": setup(),
            "steps": [open(), create(size, out)] });
        let trace = trace(scenario);
        let replayed = replay::replay(&trace, &trace.scenarios[0]);
        let found: Vec<&str> = replayed.differences.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(found, fields, "{size}");
        assert_eq!((replayed.steps, replayed.unequal), (2, usize::from(!fields.is_empty())));
    }
}

#[test]
fn a_fence_of_another_driver_holds_a_job_for_ticks() {
    let submit = |ticks: u32, at: u64| {
        serde_json::json!({ "op": "SUBMIT", "step": "s", "fd": "A", "req": "0xc0686441", "at_ms": at,
            "in": { "flags": "0xd", "timeout": ticks, "task_number": 1, "task_obj_addr": "obj#0",
                "core_mask": 1, "fence_fd": "sw_sync",
                "subcore_task": [[0, 1], [0, 1], [0, 1], [0, 1], [0, 1]] },
            "expect": { "errno": "0", "out_changed": { "task_counter": 1, "fence_fd": -1,
                "hw_elapse_time": 1 } },
            "match": { "hw_elapse_time": "shape: >= programmed delay, nanoseconds" } })
    };
    let steps = serde_json::json!([
        open(),
        { "op": "MEM_CREATE", "fd": "A", "req": "0xc0306442", "at_ms": 1,
            "in": { "handle": 0, "flags": "0xb", "size": 4096 },
            "expect": { "errno": "0", "out_changed":
                { "handle": 1, "obj_addr": "obj#0", "dma_addr": "0xfffff000" } } },
        { "op": "MEM_MAP", "fd": "A", "req": "0xc0106443", "at_ms": 2, "in": { "handle": 1 },
            "expect": { "errno": "0", "out_changed": { "offset": "0x100000000" } } },
        { "op": "mmap", "in": { "fd": "A", "offset": "0x100000000", "len": 4096 },
            "expect": { "errno": "0" } },
        { "op": "write_task", "in": { "idx": 0, "int_mask": "0x300", "regcfg_amount": 100,
            "regcmd_addr": "0x80000001" } },
        submit(300, 10),
    ]);
    let trace = trace(serde_json::json!({ "name": "fence", "config": setup(), "steps": steps }));
    let replayed = replay::replay(&trace, &trace.scenarios[0]);
    assert_eq!(replayed.unequal, 0, "{:?}", replayed.differences);
}

#[test]
fn folders_without_recordings_are_errors() {
    let folder = std::env::temp_dir().join(format!("lab-replay-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    assert!(matches!(replay::folder(&folder), Err(replay::ReplayError::Empty { .. })));
    std::fs::write(folder.join("a.json"), "{}").unwrap();
    assert!(matches!(replay::folder(&folder), Err(replay::ReplayError::Format { .. })));
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(replay::folder(&folder), Err(replay::ReplayError::Read { .. })));
}

#[test]
fn observations_are_compared_or_said_not_to_be() {
    let observe = |step: &str, value: serde_json::Value| {
        let observe = serde_json::json!({ "op": "observe", "step": step, "value": value });
        let out = serde_json::json!({ "handle": 1, "obj_addr": "obj#0", "dma_addr": "0xfffff000" });
        let steps = serde_json::json!([
            open(),
            create(4096, out),
            { "op": "MEM_MAP", "fd": "A", "req": "0xc0106443", "at_ms": 6, "in": { "handle": 1 },
                "expect": { "errno": "0", "out_changed": { "offset": "0x100000000" } } },
            { "op": "mmap", "in": { "fd": "A", "offset": "0x100000000", "len": 4096 },
                "expect": { "errno": "0" } },
            observe,
        ]);
        let trace = trace(serde_json::json!({ "name": "o", "config": setup(), "steps": steps }));
        let replayed = replay::replay(&trace, &trace.scenarios[0]);
        assert_eq!(replayed.steps, replayed.equal + replayed.unequal);
        (replayed.equal, replayed.unequal, replayed.not_compared)
    };
    let (right, wrong, unknown) = ((5, 0, 0), (4, 1, 0), (5, 0, 1));
    let knob = |name: &str, text: &str| {
        let path = format!("/sys/kernel/debug/rknpu/{name}");
        serde_json::json!({ "path": path, "errno": "0", "text": text })
    };
    let errno = |errno: &str| serde_json::json!({ "errno": errno });
    for (step, value, expected) in [
        ("alive", 1.into(), right),
        ("alive", 0.into(), wrong),
        ("nice", 0.into(), right),
        ("nice", (-3).into(), wrong),
        ("touch", serde_json::json!({ "zero": 1, "rb": 4660 }), right),
        ("touch", serde_json::json!({ "zero": 0, "rb": 4660 }), wrong),
        ("mremap_grow", errno("EFAULT"), right),
        ("mremap_grow", errno("0"), wrong),
        ("process_vm_readv", serde_json::json!({ "ret": 4096, "errno": "0" }), wrong),
        ("null_ptr", errno("EFAULT"), right),
        ("null_ptr", errno("0"), wrong),
        ("cloexec", (-1).into(), right),
        ("power", knob("power", "on\n"), right),
        ("power", knob("power", "off\n"), wrong),
        ("none", knob("none", ""), wrong),
        ("load", knob("load", "NPU load:  Core0:  0%, Core1: 40%, Core2:  0%,\n"), wrong),
        ("delay", knob("delayms", "0\n"), unknown),
        ("maps", serde_json::json!({ "path": "/proc/self/maps", "errno": "0" }), unknown),
        ("us_per_call", 12.5.into(), unknown),
        ("what_nobody_knows", 3.into(), unknown),
    ] {
        assert_eq!(observe(step, value.clone()), expected, "{step} {value}");
    }
}

#[test]
fn a_death_without_a_hazard_is_no_success() {
    let died = |function: &str| {
        let trace = trace(serde_json::json!({
            "name": "death", "config": setup(), "completed": false, "steps": [open()],
            "kernel_log": ["BUG: unable to handle page fault for address: 0000000000001150",
                format!("RIP: 0010:{function}+0x2a/0x2d0")],
        }));
        replay::replay(&trace, &trace.scenarios[0])
    };
    let known = died("rknpu_gem_sync_ioctl");
    assert!(known.is_equal(), "{known:?}");
    // Nothing in these steps could have freed a job.
    let silent = died("rknpu_job_next");
    assert!(!silent.is_equal());
    assert_eq!((silent.unequal, silent.fatal.unwrap().hazard), (0, None));
    // What cannot be made again is shown, and held against nobody.
    let unknown = died("vfs_read");
    assert!(unknown.is_equal());
    assert_eq!(unknown.fatal.unwrap().call, None);
}

#[test]
fn the_command_prints_json_and_its_exit_code_tells() {
    let lab = |folder: &Path| {
        let mut command = assert_cmd::Command::cargo_bin("lab").unwrap();
        command.arg("replay").arg(folder).arg("--json").assert()
    };
    let folder = tempfile::tempdir().unwrap();
    let refused = lab(folder.path()).code(3);
    assert!(String::from_utf8_lossy(&refused.get_output().stderr).contains("no recording"));

    let out = |address: &str| serde_json::json!({ "handle": 1, "obj_addr": "obj#0", "dma_addr": address });
    for (address, code) in [("0xfffff000", 0), ("0xffffe000", 1)] {
        let steps = [open(), create(4096, out(address))];
        let file = serde_json::json!({ "scenarios":
            [{ "name": "one", "config": setup(), "steps": steps }] });
        std::fs::write(folder.path().join("a.json"), file.to_string()).unwrap();
        let output = lab(folder.path()).code(code).get_output().stdout.clone();
        let printed: serde_json::Value = serde_json::from_slice(&output).unwrap();
        let scenario = &printed["scenarios"][0];
        assert_eq!(scenario["file"], "a.json");
        assert_eq!((&scenario["steps"], &scenario["unequal"]), (&2.into(), &code.into()));
    }
}

#[test]
fn every_recorded_answer_of_the_mainline_driver_is_the_models() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/rocket-traces");
    let results = replay::folder(&folder).unwrap();
    println!("{results}");
    assert_eq!(results.scenarios.len(), 33);
    let totals = results.totals();
    assert_eq!((totals.steps, totals.unequal), (783, 0));
    // 3 per cent.
    assert!(totals.not_compared <= 23, "{}", totals.not_compared);
    // Every death of the kernel is named by a hazard.
    let deaths = results.scenarios.iter().filter_map(|scenario| scenario.fatal.as_ref());
    assert_eq!(deaths.clone().count(), 13);
    assert!(deaths.into_iter().all(|fatal| fatal.hazard.is_some()));
    assert!(results.all_equal());
}
