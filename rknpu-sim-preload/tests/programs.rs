//! Small C programs against the driver's interface, run under the library: correct ones compute what
//! plain loops compute, wrong ones are named in the report at exit.

mod build;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::Value;
use tempfile::TempDir;

/// The library and the programs, built once.
struct Built {
    library: PathBuf,
    folder: TempDir,
}

/// `Err` is the reason for which nothing here can run.
static BUILT: LazyLock<Result<Built, String>> = LazyLock::new(|| {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let machine = Command::new(&compiler)
        .arg("-dumpmachine")
        .output()
        .map_err(|error| format!("no C compiler {compiler}: {error}"))?;
    let machine = String::from_utf8_lossy(&machine.stdout).into_owned();
    if !machine.starts_with(std::env::consts::ARCH) {
        return Err(format!("{compiler} compiles for {}", machine.trim()));
    }
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    for (name, layout) in [
        ("matmul", None),
        ("matmul", Some("-DUAPI_40")),
        ("misuse", None),
        ("misuse", Some("-DUAPI_40")),
        ("process", None),
        ("driver", None),
        ("direct_io", None),
        ("rocket", None),
    ] {
        let suffix = if layout.is_some() { "_40" } else { "" };
        let output = Command::new(&compiler)
            .args(["-O2", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra", "-Werror"])
            .args(layout)
            .arg(sources.join(format!("{name}.c")))
            .arg("-o")
            .arg(folder.path().join(format!("{name}{suffix}")))
            .arg("-lpthread")
            .output()
            .map_err(|error| error.to_string())?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}{suffix} does not compile: {errors}");
    }
    let library = build::library().unwrap_or_else(|error| panic!("the library: {error}"));
    Ok(Built { library, folder })
});

/// What is built, or a line that nobody can miss.
fn built(test: &str) -> Option<&'static Built> {
    match &*BUILT {
        Ok(built) => Some(built),
        Err(reason) => {
            // Past the test harness, which would swallow what a passing test prints.
            let _ = writeln!(std::io::stderr(), "SKIPPED 1 test, {test}: {reason}");
            None
        }
    }
}

/// A program of the machine that the tests are for, which an emulator may have to run.
fn emulated(program: &OsStr) -> Command {
    match std::env::var_os("ORK_TEST_EMULATOR") {
        Some(emulator) => {
            let mut command = Command::new(emulator);
            command.arg(program);
            command
        }
        None => Command::new(program),
    }
}

impl Built {
    /// Runs a program under the library; its report as JSON, where it made one.
    fn run(&self, program: &str, arguments: &str, settings: &[(&str, &str)]) -> (Output, Value) {
        let report = tempfile::NamedTempFile::new_in(self.folder.path()).unwrap();
        let mut command = emulated(self.folder.path().join(program).as_os_str());
        command.args(arguments.split_whitespace());
        command.env("LD_PRELOAD", &self.library);
        command.env("RKNPU_SIM_REPORT", report.path()).env("RKNPU_SIM_FORMAT", "json");
        command.envs(settings.iter().map(|(name, value)| (format!("RKNPU_SIM_{name}"), value)));
        let output = command.output().unwrap();
        let text = std::fs::read_to_string(report.path()).unwrap();
        (output, serde_json::from_str(text.lines().next().unwrap_or("null")).unwrap())
    }

    #[track_caller]
    fn succeeds(&self, program: &str, arguments: &str, settings: &[(&str, &str)]) -> Value {
        let (output, report) = self.run(program, arguments, settings);
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{program} {arguments} {settings:?}: {text}{errors}\n{report}"
        );
        report
    }
}

#[track_caller]
fn clean(report: &Value) {
    assert_eq!(report["clean"], true, "{report}");
    for kind in ["handles", "buffers", "iova", "mappings"] {
        assert_eq!(report["leaks"][kind], 0, "{report}");
    }
}

#[test]
fn matmuls_are_those_of_the_cpu() {
    let Some(built) = built("matmuls_are_those_of_the_cpu") else { return };
    let mut runs = BTreeMap::new();
    for encoding in ["rows", "planes"] {
        for types in ["int8", "fp16", "fp16_out"] {
            for layout in ["matmul", "matmul_40"] {
                for shape in
                    ["1 32 32", "1 256 128", "4 32 32", "12 64 96", "64 512 64", "16 1024 32"]
                {
                    for mode in ["fast", "strict"] {
                        let arguments = format!("{encoding} {types} {shape} 1 1 /dev/dri/card1");
                        let report = built.succeeds(layout, &arguments, &[("MODE", mode)]);
                        clean(&report);
                        assert_eq!(report["report"]["jobs_done"], 1);
                        *runs.entry((encoding, types)).or_insert(0) += 1;
                    }
                }
            }
        }
    }
    assert!(runs.values().all(|count| *count == 24), "{runs:?}");
}

#[test]
fn chained_programs_and_all_core_masks() {
    let Some(built) = built("chained_programs_and_all_core_masks") else { return };
    for mask in [0, 1, 2, 4, 3, 7] {
        for programs in [1, 4] {
            for layout in ["matmul", "matmul_40"] {
                let node = "/dev/dri/renderD129";
                let arguments = format!("rows int8 8 96 128 {mask} {programs} {node}");
                clean(&built.succeeds(layout, &arguments, &[]));
            }
        }
    }
}

#[test]
fn every_driver_and_kernel() {
    let Some(built) = built("every_driver_and_kernel") else { return };
    for settings in [
        &[("VERSION", "0.8")][..],
        &[("VERSION", "0.9.5")],
        &[("VERSION", "0.9.6")],
        &[("VERSION", "0.9.7")],
        &[("DOMAINS", "stub")],
        &[("IOMMU", "off")],
        &[("FENCES", "off"), ("SRAM", "956K"), ("ALIGNMENT", "cap-2m")],
        &[("CLOCK", "virtual"), ("TIMING", "none,floor_ns=1000")],
    ] {
        for layout in ["matmul", "matmul_40"] {
            clean(&built.succeeds(layout, "planes int8 4 64 64 1 2 /dev/dri/card1", settings));
        }
    }
}

#[test]
fn programs_for_the_mainline_driver() {
    let Some(built) = built("programs_for_the_mainline_driver") else { return };
    for driver in ["rocket", "rocket-6.18"] {
        for mode in ["fast", "strict"] {
            let settings = [("DRIVER", driver), ("MODE", mode), ("HAZARD", "abort")];
            let report = built.succeeds("rocket", "products /dev/accel/accel0", &settings);
            clean(&report);
            assert_eq!(report["report"]["jobs_done"], 6);
        }
        let settings = [("DRIVER", driver), ("CLOCK", "virtual")];
        let report = built.succeeds("rocket", "waits /dev/accel/accel0", &settings);
        let (timed_out, dropped) =
            (&report["report"]["jobs_timed_out"], &report["report"]["jobs_dropped"]);
        assert_eq!((timed_out, dropped), (&1.into(), &1.into()), "{report}");
        // What the kernel would die of is told.
        let (_, report) = built.run("rocket", "closes /dev/accel/accel0", &settings);
        let hazard = &report["report"]["hazards"][0]["hazard"];
        assert_eq!(hazard["outlives_file"]["objects"], 1, "{report}");
    }
    // Without it, the node is not there, and the vendor's driver is not where it is.
    let (output, _) = built.run("rocket", "waits /dev/accel/accel0", &[]);
    assert!(!output.status.success());
}

/// What the public C driver and its probes do.
#[test]
fn programs_in_the_manner_of_the_public_driver() {
    let Some(built) = built("programs_in_the_manner_of_the_public_driver") else { return };
    let parts = ["window", "stream", "domains", "prefill", "k_split", "cores", "int4", "import"];
    for mode in ["fast", "strict"] {
        let settings = [("MODE", mode), ("CLOCK", "virtual"), ("HAZARD", "errno"), ("EXIT", "9")];
        for part in parts {
            clean(&built.succeeds("driver", part, &settings));
        }
        let settings = [("MODE", mode), ("CLOCK", "virtual")];
        let report = built.succeeds("driver", "unlinked", &settings);
        assert_eq!(report["report"]["jobs_timed_out"], 1, "{report}");
        assert!(report.to_string().contains("the chain ends after 1 of 8 tasks"), "{report}");
    }
    // Flags of a reader around what is written: noticed where caches are modelled.
    let settings = [("MODE", "strict"), ("CLOCK", "virtual")];
    let report = built.succeeds("driver", "import_as_a_reader", &settings);
    assert!(report.to_string().contains("DMA_BUF_SYNC_END with WRITE"), "{report}");
}

/// Seen results are over, also where waits take no time: nothing was freed under a job.
#[test]
fn results_that_are_polled_for() {
    let Some(built) = built("results_that_are_polled_for") else { return };
    for timing in ["none", "board,floor_ns=50000000"] {
        let settings = [("CLOCK", "virtual"), ("TIMING", timing), ("EXIT", "9")];
        clean(&built.succeeds("driver", "polled", &settings));
    }
}

#[test]
fn descriptors_mappings_forks_and_files() {
    let Some(built) = built("descriptors_mappings_forks_and_files") else { return };
    for part in [
        "descriptors",
        "stats",
        "mappings",
        "forks",
        "threads",
        "sharing",
        "lookup",
        "past_the_library",
    ] {
        clean(&built.succeeds("process", part, &[]));
    }
    for part in ["texts", "directories", "soc"] {
        // The device is not opened: there is nothing to report.
        assert_eq!(built.succeeds("process", part, &[]), Value::Null);
    }
}

#[test]
fn what_is_left_behind_is_said_at_every_end() {
    let Some(built) = built("what_is_left_behind_is_said_at_every_end") else { return };
    for end in ["leaves", "child_leaves", "becomes_another", "becomes_by_list"] {
        let report = built.succeeds("process", end, &[]);
        assert_eq!(report["leaks"]["handles"], 1, "{end}: {report}");
        assert_eq!(report["clean"], true);
    }
    let (output, report) = built.run("process", "leaves", &[("LEAKS", "count"), ("EXIT", "9")]);
    assert_eq!((output.status.code(), &report["clean"]), (Some(9), &false.into()), "{report}");
}

#[test]
fn ls_finds_the_nodes_and_says_nothing_else() {
    let Some(built) = built("ls_finds_the_nodes_and_says_nothing_else") else { return };
    let mut listed = Command::new("ls");
    listed.args(["-l", "/dev/dri"]).env("LD_PRELOAD", &built.library);
    let output = listed.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), &output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{output:?}");
    assert!(text.contains("card1") && text.contains("renderD129"), "{text}");
}

#[test]
fn python_drives_the_npu_by_ctypes() {
    let Some(built) = built("python_drives_the_npu_by_ctypes") else { return };
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/matmul.py");
    let report = tempfile::NamedTempFile::new_in(built.folder.path()).unwrap();
    let mut python = Command::new("python3");
    python.arg(program).env("LD_PRELOAD", &built.library);
    python.env("RKNPU_SIM_REPORT", report.path()).env("RKNPU_SIM_FORMAT", "json");
    let output = match python.output() {
        Ok(output) => output,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED 1 test, no python3: {error}");
            return;
        }
    };
    assert!(output.status.success(), "{output:?}");
    // The program itself, and a child of its own that ends without exit handlers.
    let text = std::fs::read_to_string(report.path()).unwrap();
    let reports: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let left: Vec<_> = reports.iter().map(|report| &report["leaks"]["handles"]).collect();
    assert_eq!(left, [&Value::from(1), &Value::from(0)], "{text}");
}

#[test]
fn a_poll_in_strict_mode_is_told_what_it_will_not_see() {
    let Some(built) = built("a_poll_in_strict_mode_is_told_what_it_will_not_see") else { return };
    let told = |mode| {
        let (output, _) = built.run("misuse", "freed_under_job", &[("MODE", mode)]);
        String::from_utf8_lossy(&output.stderr).matches("note: a NONBLOCK job").count()
    };
    assert_eq!((told("strict"), told("fast")), (1, 0));
}

/// Mistakes, and words of the hazard or finding that names each.
const MISTAKES: [(&str, &str); 14] = [
    ("forgotten_sync", "MEM_SYNC TO_DEVICE was forgotten"),
    ("unfetched", "\"unfetched\":1"),
    ("stale_sync", "MemSync with obj_addr"),
    ("stale_tasks", "an object that was destroyed"),
    ("too_many_tasks", "which holds 102"),
    ("no_kernel_mapping", "no KERNEL_MAPPING"),
    ("other_domain", "is every buffer in the job's domain?"),
    ("submitted_elsewhere", "domains mixed: a job in domain 1"),
    ("wrong_mask", "int_mask 0xc00"),
    ("half_mask", "int_mask is 0x100"),
    ("no_pc", "without the PC flag"),
    ("unmapped_input", "reading the input"),
    ("undecodable", "there is no such block"),
    ("left_behind", "\"handles\":5"),
];

#[test]
fn every_mistake_is_named() {
    let Some(built) = built("every_mistake_is_named") else { return };
    for (mistake, words) in MISTAKES {
        for layout in ["misuse", "misuse_40"] {
            if layout == "misuse_40" && ["other_domain", "submitted_elsewhere"].contains(&mistake) {
                continue; // That interface has no domains.
            }
            // Several of them end in timeouts.
            let settings =
                [("MODE", "strict"), ("EXIT", "9"), ("LEAKS", "count"), ("CLOCK", "virtual")];
            let (output, report) = built.run(layout, mistake, &settings);
            let text = report.to_string();
            assert!(text.contains(words), "{mistake}: {words:?} not in {text}");
            let status = if mistake == "unfetched" { 0 } else { 9 };
            assert_eq!(output.status.code(), Some(status), "{mistake}: {text}");
        }
    }
    clean(&built.succeeds("misuse", "right", &[("MODE", "strict"), ("EXIT", "9")]));
}

#[test]
fn a_buffer_freed_under_a_job_is_named() {
    let Some(built) = built("a_buffer_freed_under_a_job_is_named") else { return };
    // Long enough for a machine that is busy with other tests.
    let slow = [("TIMING", "board,floor_ns=60000000")];
    let (_, report) = built.run("misuse", "freed_under_job", &slow);
    assert!(report.to_string().contains("was freed while a job on core 0 used it"), "{report}");
}

#[test]
fn hazards_fail_or_abort_on_request() {
    let Some(built) = built("hazards_fail_or_abort_on_request") else { return };
    let (output, _) =
        built.run("misuse", "half_mask", &[("HAZARD", "errno"), ("CLOCK", "virtual")]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("submit: -1"));
    let (output, _) = built.run("misuse", "stale_sync", &[("HAZARD", "abort")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), None, "{text}");
    assert!(
        text.contains("rknpu-sim: aborted: ") && text.contains("MemSync with obj_addr"),
        "{text}"
    );
}

#[test]
fn faults_are_injected() {
    let Some(built) = built("faults_are_injected") else { return };
    let arguments = "rows int8 4 64 64 1 1 /dev/dri/card1";
    let (output, _) = built.run("matmul", arguments, &[("FAULTS", "mem_create=ENOMEM:after=3")]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("MEM_CREATE"), "{output:?}");
    let (output, report) =
        built.run("matmul", arguments, &[("FAULTS", "hang:core=0"), ("CLOCK", "virtual")]);
    assert!(!output.status.success());
    assert_eq!(report["report"]["jobs_timed_out"], 1);
}

#[test]
fn a_wrong_setting_ends_the_program_with_the_list() {
    let Some(built) = built("a_wrong_setting_ends_the_program_with_the_list") else { return };
    for (name, value, words) in [
        ("MOOD", "strict", "there is no setting RKNPU_SIM_MOOD"),
        ("MODE", "slow", "RKNPU_SIM_MODE=slow: expected fast"),
    ] {
        let (output, _) = built.run("misuse", "right", &[(name, value)]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn the_report_is_text_on_stderr_by_default() {
    let Some(built) = built("the_report_is_text_on_stderr_by_default") else { return };
    let settings = [("FORMAT", "text"), ("REPORT", "stderr")];
    let (output, _) = built.run("misuse", "right", &settings);
    let text = String::from_utf8_lossy(&output.stderr);
    for words in
        ["calls: Submit 1", "1 submitted, 1 done", "left behind: nothing", "verdict: clean"]
    {
        assert!(text.contains(words), "{words:?} not in {text}");
    }
    let (output, _) = built.run("misuse", "right", &[("REPORT", "none")]);
    assert!(output.stderr.is_empty());
    // A program that has nothing to do with the NPU gets no report.
    let plain = Command::new("true").env("LD_PRELOAD", &built.library).output().unwrap();
    assert!(plain.status.success() && plain.stderr.is_empty());
}

/// Flags of MEM_CREATE by the recording's names.
fn create_flags(object: &str) -> u32 {
    let known =
        [("NON_CONTIGUOUS", 1), ("CACHEABLE", 2), ("WRITE_COMBINE", 4), ("KERNEL_MAPPING", 8)];
    let named =
        object.split(['|', ' ']).filter(|name| !["CONTIGUOUS", "(uncached)"].contains(name));
    named.map(|name| known.iter().find(|(known, _)| *known == name).expect(name).1).sum()
}

/// What the program says of a call, as the recording has it.
fn answer(line: &str) -> (&str, Value) {
    let fields: Vec<&str> = line.split('\t').collect();
    let mut answer = serde_json::json!({ "errno": fields[1] });
    if let Some(result) = fields.get(2) {
        answer["ret"] = result.parse::<i64>().unwrap().into();
    }
    if let Some(data) = fields.get(3) {
        answer["data"] = (*data).into();
    }
    (fields[0], answer)
}

/// All rows that were recorded of driver 0.9.8.
#[test]
fn direct_io_is_answered_as_recorded() {
    let test = "direct_io_is_answered_as_recorded";
    let Some(built) = built(test) else { return };
    // A disk: a folder for temporary files may be memory.
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let pattern: Vec<u8> = (0..65536u32).map(|i| (i ^ i >> 8 ^ 0x5a) as u8).collect();
    std::fs::write(file.path(), pattern).unwrap();
    let text = include_str!("../../tests/golden/rknpu-direct-io.json");
    let recording: Value = serde_json::from_str(text).unwrap();
    let (mut compared, mut rows) = (0, 0);
    let mut skipped = std::collections::BTreeSet::new();
    for run in recording["runs"].as_array().unwrap() {
        let iommu = if run["iommu"].as_bool().unwrap() { "on" } else { "off" };
        for row in run["mappings"].as_array().unwrap() {
            let (object, through) = (row["object"].as_str().unwrap(), &row["through"]);
            if object == "none" {
                continue; // Not the driver's.
            }
            let through = if through == "drm mmap" { "drm" } else { "dma-buf" };
            let path = file.path().to_str().unwrap();
            let arguments = format!("{path} {} {through}", create_flags(object));
            let (output, report) = built.run("direct_io", &arguments, &[("IOMMU", iommu)]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{object} {through}: {said}");
            clean(&report);
            let lines = said.lines();
            let (answers, missing): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains('\t'));
            let answers: BTreeMap<_, _> = answers.into_iter().map(answer).collect();
            skipped.extend(missing.iter().map(|line| line.to_string()));
            let pinned = iommu == "on" && object.starts_with("NON");
            if !pinned && missing.iter().any(|line| line.starts_with("no memfd_secret")) {
                continue;
            }
            rows += 1;
            for (call, recorded) in row["calls"].as_object().unwrap() {
                if call.starts_with("io_uring") && !answers.contains_key(call.as_str()) {
                    continue; // Told above.
                }
                assert_eq!(answers[call.as_str()], *recorded, "{object} {through} {call}");
                compared += 1;
            }
        }
    }
    for reason in &skipped {
        let _ = writeln!(std::io::stderr(), "SKIPPED rows of {test}: {reason}");
    }
    if skipped.is_empty() {
        assert_eq!((rows, compared), (36, 16 * 15 + 20 * 12));
    }
}

/// EFAULT, EINVAL and a short read can be planted, and are for buffers alone.
#[test]
fn direct_io_fails_as_it_is_told() {
    let Some(built) = built("direct_io_fails_as_it_is_told") else { return };
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let pattern: Vec<u8> = (0..65536u32).map(|i| (i ^ i >> 8 ^ 0x5a) as u8).collect();
    std::fs::write(file.path(), pattern).unwrap();
    let arguments = format!("{} 3 drm", file.path().display());
    let whole = "pread O_DIRECT block whole object";
    for (fault, expected) in [
        ("direct_io=EFAULT:after=1", serde_json::json!({ "errno": "EFAULT" })),
        ("direct_io=EINVAL:after=1", serde_json::json!({ "errno": "EINVAL" })),
        ("short:after=1", serde_json::json!({ "errno": "0", "ret": 32768, "data": "right" })),
    ] {
        let (output, _) = built.run("direct_io", &arguments, &[("FAULTS", fault)]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        let answers: BTreeMap<_, _> =
            said.lines().filter(|line| line.contains('\t')).map(answer).collect();
        assert_eq!(answers[whole], expected, "{fault}");
        assert_eq!(answers["pread O_DIRECT block 4 KiB"]["ret"], 4096);
        assert_eq!(answers["pread O_DIRECT ext4 file whole object"]["ret"], 65536);
    }
    let (output, _) = built.run("direct_io", &arguments, &[("FAULTS", "unpinned")]);
    let said = String::from_utf8_lossy(&output.stdout);
    if !said.contains("no memfd_secret") {
        assert!(said.contains("pread O_DIRECT block 4 KiB\tEFAULT"), "{said}");
    }
}
