//! `ork run`: a model's text on standard output, figures beside it.

#[allow(dead_code, reason = "the tests of ork-llm use the rest")]
#[path = "../../../ork-llm/tests/common/families.rs"]
mod families;
#[allow(dead_code, reason = "the tests of ork-llm use the rest")]
#[path = "../../../ork-llm/tests/common/gguf.rs"]
mod gguf;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use assert_cmd::cargo::cargo_bin;
use ork_weights::model::Model as GgufModel;
use ork_weights::pack::{Dtype, Identity, Pack, PackWriter, WriterOptions};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::{fails, json, model, ork, text};
use gguf::Model;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:";

fn written(model: Model) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model.write(&path);
    (folder, path)
}

/// A model of noise with a vocabulary of characters.
fn writer() -> (TempDir, PathBuf) {
    let model = families::with_characters(families::qwen3());
    written(model.text("tokenizer.chat_template", TEMPLATE))
}

/// Standard output and standard error of a run.
fn run(args: &[&str], input: &str) -> (String, String) {
    let output =
        ork(&["run"]).args(args).write_stdin(input).assert().success().get_output().clone();
    let read = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (read(output.stdout), read(output.stderr))
}

#[test]
fn text_alone_is_on_standard_output() {
    let (_folder, path) = writer();
    let path = text(&path);
    let (out, err) = run(&[path, "Hi", "--temperature", "0", "--max-tokens", "20"], "");
    assert!(out.chars().all(|c| (' '..='~').contains(&c)) && !out.is_empty(), "{out:?}");
    assert!(err.contains("prompt 7 tokens") && err.contains("passes"), "{err}");
    assert!(!err.contains(&out));
    let view = json(&["run", path, "Hi", "--temperature", "0", "--max-tokens", "20"]);
    let answer = &view["answers"][0];
    assert_eq!((answer["text"].as_str(), answer["prompt_tokens"].as_u64()), (Some(&*out), Some(7)));
    let (piped, _) = run(&[path, "-", "--temperature", "0", "--max-tokens", "20"], "Hi");
    assert_eq!(piped, out);
    // Without the template, and with more before it.
    let (raw, err) = run(&[path, "Hi", "--raw", "--temperature", "0", "--max-tokens", "20"], "");
    assert!(raw != out && err.contains("prompt 2 tokens"), "{err}");
    let (_, err) = run(&[path, "Hi", "--system", "Go", "--max-tokens", "1"], "");
    assert!(err.contains("prompt 12 tokens"), "{err}");
}

/// The same text, whichever way weights are read, and the run says which when it is not the usual one.
#[test]
fn weights_are_read_past_the_page_cache_when_asked() {
    let (_folder, path) = writer();
    // A disk: a folder for temporary files may be memory.
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let copy = disk.path().join("model.gguf");
    std::fs::copy(&path, &copy).unwrap();
    let args = [text(&copy), "Hi", "--temperature", "0", "--max-tokens", "20"];
    let (usual, err) = run(&args, "");
    assert!(!err.contains("page cache"), "{err}");
    let (direct, err) = run(&[&args[..], &["--access", "direct"]].concat(), "");
    assert_eq!(direct, usual);
    let told = err.lines().filter(|line| line.contains("the page cache")).count();
    assert_eq!(told, 1, "{err}");
    let environment = ork(&["run"]).args(args).env("ORK_ACCESS", "direct").assert().success();
    let err = String::from_utf8(environment.get_output().stderr.clone()).unwrap();
    assert!(err.contains("the page cache"), "{err}");
    let mut before = ork(&["run"]);
    before.args(args).args(["--access", "buffered"]).env("ORK_ACCESS", "direct");
    let before = before.assert().success();
    let err = String::from_utf8(before.get_output().stderr.clone()).unwrap();
    assert!(!err.contains("page cache"), "{err}");
}

#[test]
fn text_that_cannot_be_written_is_an_error() {
    let (_folder, path) = writer();
    let child = |out: Stdio| {
        let mut child = Command::new(cargo_bin("ork"));
        child.args(["run", text(&path), "Hi", "--device", "sim", "--max-tokens", "9"]);
        child.stdout(out).stderr(Stdio::piped()).spawn().unwrap()
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    let done = child(full.into()).wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(3), "{error}");
    assert!(error.contains("cannot write the results") && error.contains("No space"), "{error}");
    // A reader that has seen enough is no failure.
    let mut head = child(Stdio::piped());
    drop(head.stdout.take());
    assert_eq!(head.wait().unwrap().code(), Some(0));
}

#[test]
fn the_same_seed_and_any_draft_give_the_same_text() {
    let (_folder, path) = writer();
    let (_other, draft) = written(families::with_characters(families::llama()));
    let (path, draft) = (text(&path), text(&draft));
    for settings in [["--temperature", "0"], ["--temperature", "1.2"]] {
        let write = |more: &[&str]| {
            let base = [path, "Hello there", "--seed", "7", "--max-tokens", "40"];
            run(&[&base, &settings[..], more].concat(), "")
        };
        let (wanted, _) = write(&[]);
        assert_eq!(write(&[]).0, wanted);
        for draft in [&["--draft", "ngrams"][..], &["--draft", draft, "--draft-tokens", "3"]] {
            assert_eq!(write(draft).0, wanted, "{draft:?}");
        }
        let (same, err) = write(&["--draft", path, "--draft-tokens", "4"]);
        assert_eq!(same, wanted);
        assert!(err.contains("drafted tokens accepted"), "{err}");
    }
    let one = run(&[path, "Hello", "--temperature", "2"], "").1;
    assert!(one.contains("note: --seed "), "{one}");
}

/// Enough of a prompt for the NPU, which the CPU leaves to it.
const LONG: &str = "A prompt of so many words that all of them together make more rows than 32.";

/// The least budget with which `args` run.
fn least(args: &[&str]) -> String {
    let assert = ork(&["run"]).args(args).args(["--budget", "1"]).assert().code(2);
    let error = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    let (before, _) = error.split_once(" bytes) is the least").expect(&error);
    before.rsplit('(').next().unwrap().to_owned()
}

#[test]
fn what_does_not_fit_is_streamed_with_the_same_text() {
    for made in [families::llama(), families::qwen3_moe()] {
        let (_folder, path) = written(families::with_characters(made));
        let args = ["--raw", "--device", "sim", "--temperature", "0", "--max-tokens", "12"];
        let base = [&[text(&path), LONG][..], &args].concat();
        let (wanted, err) = run(&base, "");
        assert!(err.contains(" resident, 0 B streamed"), "{err}");
        assert!(err.contains("the NPU gives what the CPU does"), "{err}");
        let (streamed, err) = run(&[&base[..], &["--budget", &least(&base)]].concat(), "");
        assert_eq!(streamed, wanted);
        assert!(!err.contains(" 0 B streamed") && err.contains("streamed in every pass"), "{err}");
    }
}

#[test]
fn both_drivers_write_the_same_text() {
    let (_folder, path) = writer();
    let write = |device: &str, streamed: bool| {
        let args = ["--raw", "--device", device, "--temperature", "0", "--max-tokens", "12"];
        let base = [&[text(&path), LONG][..], &args].concat();
        let least = least(&base);
        let budget = if streamed { &["--budget", &least][..] } else { &[] };
        let (text, err) = run(&[&base[..], budget].concat(), "");
        assert_eq!(err.contains(" resident, 0 B streamed"), !streamed, "{err}");
        text
    };
    let wanted = write("sim", false);
    for (device, streamed) in [("sim:rocket", false), ("sim:rocket", true)] {
        assert_eq!(write(device, streamed), wanted, "{device}");
    }
}

#[test]
fn a_kept_pack_gives_the_same_text() {
    let (folder, path) = writer();
    let (pack, cache) = (folder.path().join("kept.orkpack"), folder.path().join("cache"));
    let run = |more: &[&str], persist: &str| {
        let output = ork(&["run", text(&path), LONG, "--raw", "--device", "sim"])
            .args(["--temperature", "0", "--max-tokens", "12"])
            .args(more)
            .env("XDG_CACHE_HOME", &cache)
            .env("ORK_PERSIST", persist)
            .assert()
            .success()
            .get_output()
            .clone();
        (output.stdout, String::from_utf8(output.stderr).unwrap())
    };
    // Nothing is written that was not asked for, and what asking would save is said.
    let (wanted, err) = run(&[], "");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(err.matches("with --persist").count(), 1, "{err}");

    let at_pack = format!("--persist={}", text(&pack));
    let (first, err) = run(&[&at_pack], "");
    assert!(
        first == wanted && err.contains(text(&pack)) && !err.contains("with --persist"),
        "{err}"
    );
    let made = std::fs::read(&pack).unwrap();
    ork(&["verify", text(&pack), "--model", text(&path)]).assert().success();
    let (second, err) = run(&[&at_pack], "");
    assert!(second == wanted && !err.contains("are kept"), "{err}");
    assert!(std::fs::read(&pack).unwrap() == made, "a pack that is loaded stays as it is");
    let (_, err) = run(&[&at_pack, "--tier", "int8"], "");
    assert!(err.contains("as rotated-int8") && err.contains("not as int8"), "{err}");
    assert!(!cache.exists());

    // In the user's cache folder, one for each tier.
    let kept = || std::fs::read_dir(cache.join("ork")).unwrap().count();
    assert_eq!(run(&[], "1").0, wanted);
    assert_eq!(kept(), 1);
    let (loaded, err) = run(&["--persist"], "");
    assert!(loaded == wanted && kept() == 1 && !err.contains("are kept"), "{err}");
    let (_, err) = run(&["--persist", "--tier", "int8"], "");
    assert!(kept() == 2 && err.contains("are kept"), "{err}");
    // `ork bench` makes and takes the same.
    let bench = || {
        let mut bench = ork(&["bench", text(&path), "--device", "sim", "--passes", "1"]);
        bench.env("XDG_CACHE_HOME", &cache).env("ORK_PERSIST", "1").assert().success();
    };
    bench();
    assert_eq!(kept(), 2);
    std::fs::remove_dir_all(&cache).unwrap();
    bench();
    let (loaded, err) = run(&["--persist"], "");
    assert!(loaded == wanted && kept() == 1 && !err.contains("are kept"), "{err}");
    let (_, err) = run(&["--persist", "--tier", "int8"], "");
    assert!(kept() == 2 && err.contains("are kept"), "{err}");
    // A word behind the option is not its path.
    ork(&["run", "--persist", text(&path), LONG, "--raw", "--device", "sim", "--max-tokens", "1"])
        .env("XDG_CACHE_HOME", &cache)
        .assert()
        .success();
    assert_eq!(kept(), 2);
}

/// What an interrupted run of something else left at the pack's name does not stand in the way.
#[test]
fn a_leftover_of_something_else_is_started_over() {
    let (folder, path) = writer();
    let beside = |suffix: &str| folder.path().join(format!("m.orkpack{suffix}"));
    let base = ["run", text(&path), LONG, "--raw", "--device", "sim", "--temperature", "0"];
    let base = [&base[..], &["--max-tokens", "4"]].concat();
    let keep = format!("--persist={}", text(&beside("")));
    let kept = || {
        let assert = ork(&[&base[..], &[&keep]].concat()).assert().success();
        let output = assert.get_output();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("are kept") && !error.contains("warning"), "{error}");
        let made = std::fs::read(beside("")).unwrap();
        std::fs::remove_file(beside("")).unwrap();
        (output.stdout.clone(), made)
    };
    let wanted = kept();
    let ours = GgufModel::open(&path, &Default::default()).unwrap().identity(false).unwrap();
    let other = Identity { sample_hash: ours.sample_hash ^ 1, ..ours };
    for identity in [ours, other] {
        let options = WriterOptions { recipe: 1, ..WriterOptions::default() };
        let mut left = PackWriter::create(beside(""), &identity, options).unwrap();
        left.add("blk.0.attn_q.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64]).unwrap();
        drop(left);
        assert!(beside(".partial").exists() && beside(".journal").exists());
        assert!(kept() == wanted);
        assert!(!beside(".partial").exists() && !beside(".journal").exists());
    }
}

#[test]
fn weights_come_from_a_pack_that_has_them_all() {
    let (folder, path) = writer();
    let pack = folder.path().join("model.orkpack");
    let path = text(&path);
    let long = [LONG, "--raw", "--device", "sim", "--temperature", "0", "--max-tokens", "12"];
    let with_pack = [&["run", path][..], &long, &["--pack", text(&pack)]].concat();
    fails(&with_pack, 3, &["model.orkpack", "No such file"]);

    // The head is the table of embeddings.
    let convert = ["convert", path, "-o", text(&pack)];
    ork(&convert).args(["--exclude", "token_embd.weight"]).assert().success();
    fails(&with_pack, 3, &["model.orkpack", "1 of", "token_embd.weight", "`ork convert`"]);
    std::fs::remove_file(&pack).unwrap();
    ork(&convert).assert().success();
    let (wanted, _) = run(&[&[path][..], &long].concat(), "");
    let (found, err) = run(&with_pack[1..], "");
    assert!(found == wanted && !err.contains("with --persist"), "{err}");
    // What is kept on the way is that very pack, and what was converted is taken for it.
    let kept = folder.path().join("kept.orkpack");
    let keep = format!("--persist={}", text(&kept));
    let (_, err) = run(&[&[path][..], &long, &[&keep]].concat(), "");
    assert!(err.contains("are kept for the next run"), "{err}");
    assert!(std::fs::read(&kept).unwrap() == std::fs::read(&pack).unwrap());
    let found = run(&[&[path][..], &long, &[&format!("--persist={}", text(&pack))]].concat(), "");
    assert!(found.0 == wanted && !found.1.contains("are kept"), "{}", found.1);
    fails(&["run", text(&pack), "Hi"], 2, &["is a pack of", "vocabulary", "--pack"]);
}

#[test]
fn a_damaged_pack_writes_nothing() {
    let (folder, path) = writer();
    let pack = folder.path().join("model.orkpack");
    ork(&["convert", text(&path), "-o", text(&pack)]).assert().success();
    let opened = Pack::open(&pack).unwrap();
    let (name, blob) = (&*opened.entries()[3].name, opened.entries()[3].blob_range());
    let whole = std::fs::read(&pack).unwrap();
    let base = ["run", text(&path), LONG, "--raw", "--device", "sim", "--pack", text(&pack)];
    let base = [&base[..], &["--temperature", "0", "--max-tokens", "4"]].concat();
    let least = least(&base[1..]);
    ork(&base).assert().success();
    for place in [blob.start, (blob.start + blob.end) / 2, blob.end] {
        let mut damaged = whole.clone();
        damaged[place as usize] ^= 4; // a code, or a bit of the first scale behind them
        std::fs::write(&pack, damaged).unwrap();
        for more in [&[][..], &["--budget", &least]] {
            let assert = ork(&[&base[..], more].concat()).assert().code(3);
            let output = assert.get_output();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.stdout.is_empty(), "{place}: {error}");
            assert!(error.contains(name) && error.contains("checksum"), "{place}: {error}");
        }
    }
    // A model of another time is taken, and said.
    std::fs::write(&pack, whole).unwrap();
    File::options()
        .append(true)
        .open(&path)
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH + Duration::from_secs(9))
        .unwrap();
    let later = ork(&base).assert().success();
    let error = String::from_utf8_lossy(&later.get_output().stderr).into_owned();
    assert!(error.contains("of another time"), "{error}");
}

/// The most memory that a run has had, in bytes.
fn peak_memory(args: &[&str]) -> u64 {
    let mut child = Command::new(cargo_bin("ork"));
    child.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        peak = peak.max(kib.unwrap_or(0u64) << 10);
        sleep(Duration::from_millis(5));
    }
    assert!(child.wait().unwrap().success());
    peak
}

#[test]
fn memory_holds_the_packed_weights_once() {
    // On real models, which variables name: smaller ones have less than what stands beside them.
    for variable in ["ORK_TEST_SMOLLM2", "ORK_TEST_GEMMA"] {
        let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
            eprintln!("skipped: {variable} names no model");
            continue;
        };
        let folder = tempfile::tempdir().unwrap();
        let pack = folder.path().join("model.orkpack");
        ork(&["convert", text(&path), "-o", text(&pack)]).assert().success();
        let prompt = LONG.repeat(6);
        let args = ["run", text(&path), &prompt, "--raw", "--device", "sim", "--temperature", "0"];
        let args = [&args[..], &["--max-tokens", "8", "--pack", text(&pack)]].concat();
        let (packed, beside) = (std::fs::metadata(&pack).unwrap().len(), 100 << 20);
        let whole = peak_memory(&args);
        let half = peak_memory(&[&args[..], &["--budget", &(packed / 2).to_string()]].concat());
        eprintln!(
            "{variable}: {packed} bytes of weights, at most {whole}, and {half} with half of them"
        );
        // A simulated device's memory is the program's.
        assert!(whole > packed && whole < packed + beside, "{whole}");
        assert!(half < packed / 2 + beside, "{half}");
    }
}

#[test]
fn a_pack_of_another_model_is_refused() {
    let (folder, path) = writer();
    let (_other, other) = written(families::with_characters(families::llama()));
    let pack = folder.path().join("kept.orkpack");
    let at_pack = format!("--persist={}", text(&pack));
    let long = [LONG, "--raw", "--device", "sim", "--max-tokens", "2", &at_pack];
    run(&[&[text(&path)][..], &long].concat(), "");
    fails(&[&["run", text(&other)][..], &long].concat(), 3, &[text(&pack), "another"]);
}

#[test]
fn the_demonstration_tells_one_story_in_every_way() {
    let view = json(&["demo", "--device", "sim", "--max-tokens", "50"]);
    assert_eq!(view["identical"], true);
    assert!(view["text"].as_str().unwrap().starts_with("Once upon a time there was a"), "{view:#}");
    // The bound of the default form: a model of another arithmetic would be far off.
    let kl = view["kl"].as_f64().unwrap();
    assert!(kl > 0.0 && kl <= 0.006 && view["positions"].as_u64() > Some(50), "{view:#}");
    let ways = view["ways"].as_array().unwrap();
    let names: Vec<_> = ways.iter().map(|way| way["way"].as_str().unwrap()).collect();
    let all = ["resident", "one_core", "streamed", "packed", "reloaded", "drafted"];
    assert_eq!(names, all);
    let of = |way: usize, key: &str| ways[way][key].as_u64().unwrap();
    for (way, name) in names.iter().enumerate() {
        assert_eq!(of(way, "tokens"), 50);
        assert_eq!(of(way, "streamed_bytes") > 0, way > 1, "{name}");
        assert_eq!(of(way, "passes") < 50, *name == "drafted", "{name}");
    }
    assert!(of(5, "accepted") > 0 && view["budget"].as_u64() < view["weight_bytes"].as_u64());
    // One pass over what is streamed for each token.
    let once = of(2, "resident_bytes") + of(2, "streamed_bytes") * of(2, "passes");
    let loaded = of(2, "loaded_bytes");
    assert!(loaded * 10 > once * 9 && loaded * 2 < once * 3, "{loaded} bytes are not {once}");
    assert!(loaded > 20 * of(0, "loaded_bytes"), "{view:#}");
}

#[test]
fn the_demonstration_takes_models_that_write() {
    let (_folder, path) = writer();
    let args = ["demo", text(&path), "--device", "sim", "--max-tokens", "8", "--temperature", "0"];
    let view = json(&[&args[..], &["--prompt", LONG]].concat());
    let last = view["ways"].as_array().and_then(|ways| ways.last());
    assert_eq!((&view["identical"], &last.unwrap()["way"]), (&true.into(), &"drafted".into()));
    let (_synth, mute) = model();
    fails(&["demo", text(&mute), "--device", "sim"], 3, &["tokenizer.ggml.tokens"]);
    fails(&[&args[..], &["--budget", "1"]].concat(), 2, &["is the least"]);
    fails(&["demo", "--prompt", "", "--device", "sim", "--draft", "x"], 2, &["MODEL"]);
}

#[test]
fn quality_says_what_a_form_costs() {
    let (folder, path) = writer();
    let said = folder.path().join("said.txt");
    std::fs::write(&said, LONG.repeat(2)).unwrap();
    let base = ["quality", text(&path), "--text", text(&said), "--device", "sim", "--window", "50"];
    let view = json(&[&base[..], &["--tokens", "90"]].concat());
    assert_eq!((view["tokens"].as_u64(), view["window"].as_u64()), (Some(90), Some(50)));
    let forms = view["forms"].as_array().unwrap();
    let of = |name: &str, bits: u64| {
        let mut all = forms.iter();
        let found = all.find(|form| form["form"] == name && form["activation_bits"] == bits);
        found.unwrap_or_else(|| panic!("{name}/{bits} is not in {view:#}"))
    };
    let kl = |name, bits| of(name, bits)["kl"].as_f64().unwrap();
    assert_eq!(forms.len(), 9);
    assert_eq!((kl("f32", 32), of("f32", 32)["first_token"].as_f64()), (0.0, Some(1.0)));
    let ranked = [kl("fp16", 32), kl("int8", 16), kl("int8", 8), kl("o4n1", 16)];
    assert!(ranked.is_sorted() && ranked[0] < ranked[1] && ranked[2] < ranked[3], "{ranked:?}");
    assert!(kl("rotated-int8", 16) < kl("rotated-int8", 8), "{view:#}");
    let bytes = |name, bits, key: &str| of(name, bits)[key].as_u64().unwrap();
    let sizes =
        [("int8", 16), ("fp16", 32), ("f32", 32)].map(|(form, bits)| bytes(form, bits, "bytes"));
    assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
    assert!(bytes("nf4", 16, "pack_bytes") < bytes("int8", 16, "pack_bytes"));
    assert!(forms.iter().all(|form| form["perplexity"].as_f64().unwrap() > 1.0), "{view:#}");

    // A model made for 256 tokens reads no more at a time.
    let one = json(&[&base[..4], &["--device", "sim", "--form", "int8/8"]].concat());
    assert_eq!((one["window"].as_u64(), one["forms"].as_array().unwrap().len()), (Some(256), 2));
    std::fs::write(&said, "a").unwrap();
    fails(&base, 2, &["said.txt", "nothing to guess"]);
    std::fs::write(&said, b"a\xff").unwrap();
    fails(&base, 3, &["said.txt", "UTF-8"]);
    fails(&[&base[..], &["--form", "int4"]].concat(), 2, &["int4", "rotated-int8"]);
}

#[test]
fn lines_become_a_conversation() {
    let (_folder, path) = writer();
    let args = [text(&path), "--temperature", "0", "--max-tokens", "5", "--json"];
    let (out, _) = run(&args, "Hi\n\nHo\n");
    let view: serde_json::Value = serde_json::from_str(&out).unwrap();
    let answers = view["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 2);
    // What was said before is not computed again: `;u:Ho;a:` and a last token are new.
    let new = answers[1]["prompt_tokens"].as_u64().unwrap();
    assert!((8..=10).contains(&new), "{new}");
}

/// Starts `ork run`, which writes or reads for long.
fn start(path: &Path, prompt: &str, more: &[&str]) -> Child {
    Command::new(cargo_bin("ork"))
        .args(["run", text(path), prompt, "--raw", "--device", "sim", "--temperature", "0"])
        .args(["--max-tokens", "10000000", "--context", "1000000"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn interrupt(child: &Child) {
    rustix::process::kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

#[test]
fn an_interrupt_ends_the_answer() {
    let (_folder, path) = writer();
    let mut child = start(&path, LONG, &[]);
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && error.contains("; interrupted"), "{error}");
}

/// A prompt that takes seconds.
fn long_prompt() -> String {
    "A long prompt. ".repeat(600)
}

#[test]
fn an_interrupt_ends_a_long_prompt() {
    let (_folder, path) = writer();
    for more in [&[][..], &["--tier", "f32"]] {
        let mut child = start(&path, &long_prompt(), more);
        sleep(Duration::from_millis(700));
        interrupt(&child);
        let mut error = String::new();
        child.stderr.as_mut().unwrap().read_to_string(&mut error).unwrap();
        // Between two products, and not first when the prompt is done.
        assert!(
            child.wait().unwrap().success() && error.contains("before the first token"),
            "{error}"
        );
    }
}

#[test]
fn a_second_interrupt_ends_the_program() {
    let (_folder, path) = writer();
    // A conversation that waits for a line: nobody looks at the first one meanwhile.
    let mut child = Command::new(cargo_bin("ork"))
        .args(["run", text(&path), "--device", "sim"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _open = child.stdin.take(); // or waiting would end it
    let mut error = BufReader::new(child.stderr.take().unwrap()).lines();
    error.find(|line| line.as_ref().unwrap().contains("Ctrl-C ends an answer")).unwrap().unwrap();
    interrupt(&child);
    sleep(Duration::from_millis(200));
    assert_eq!(child.try_wait().unwrap(), None, "the first one asks");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().signal(), Some(2));
}

#[test]
fn a_line_that_cannot_be_answered_does_not_take_the_others_along() {
    let (_folder, path) = writer();
    let args = [text(&path), "--temperature", "0", "--max-tokens", "5", "--json"];
    let mut lines = b"Hi\na\xffb\n".to_vec();
    lines.extend(format!("{LONG}{LONG}\nHo\n").bytes());
    let assert =
        ork(&["run"]).args(args).args(["--context", "60"]).write_stdin(lines).assert().code(2);
    let view: serde_json::Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    let count = |key: &str| view[key].as_array().unwrap().len();
    assert_eq!((count("answers"), count("refused")), (2, 2), "{view:#}");
    let error = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(error.contains("error: 2 of 4 lines not answered"), "{error}");
    assert!(error.contains("context is full") && error.contains("UTF-8"), "{error}");
    assert!(!error.contains("0 of 60"), "{error}");
}

#[test]
fn what_is_no_model_is_named() {
    let (folder, path) = writer();
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    for (bytes, says) in [
        (&pointer[..], "Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0", "zip"),
    ] {
        for name in ["other.gguf", "other"] {
            let other = folder.path().join(name);
            std::fs::write(&other, bytes).unwrap();
            let other = text(&other);
            fails(&["convert", other], 3, &[says]);
            fails(&["run", other, "Hi"], 3, &[says]);
            fails(&["run", text(&path), "Hi", "--draft", other], 3, &[says]);
            fails(&["demo", other, "--device", "sim"], 3, &[says]);
            fails(&["bench", other, "--device", "sim"], 3, &[says]);
            fails(&["quality", other, "--text", other], 3, &[says]);
        }
    }
}

#[test]
fn what_cannot_be_answered_is_said() {
    let (_folder, path) = writer();
    let path = text(&path);
    fails(&["run", path, "", "--raw"], 2, &["no tokens"]);
    fails(&["run", path, "Hello", "--context", "4"], 2, &["context is full", "10 tokens", "of 4"]);
    for more in ["--persist", "--budget=1GiB"] {
        fails(&["run", path, "Hi", "--tier", "f32", more], 2, &["--tier f32", "--persist"]);
    }
    fails(&["run", path, "Hi", "--temperature=-1"], 2, &["temperature"]);
    fails(&["run", path, "Hi", "--top-p", "1.5"], 2, &["top-p", "1.5"]);
    let invalid = ork(&["run", path, "-"]).write_stdin(&b"a\xff"[..]).assert().code(2);
    let error = String::from_utf8_lossy(&invalid.get_output().stderr).into_owned();
    assert!(error.contains("not UTF-8") && error.contains("byte 1"), "{error}");

    // No vocabulary, no decoder, another vocabulary.
    let (_synth, mute) = model();
    fails(&["run", text(&mute), "Hi"], 3, &["tokenizer.ggml.tokens"]);
    let unknown = Model::new("mamba", 1).tensor("token_embd.weight", &[32, 32], 0.0, 1.0);
    let (_unknown, path_of_unknown) = written(families::with_characters(unknown));
    fails(&["run", text(&path_of_unknown), "Hi"], 3, &["\"mamba\"", "qwen3moe"]);
    let fewer = families::llama()
        .text("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &[b"a", b"b"])
        .strings("tokenizer.ggml.merges", &[]);
    let (_fewer, draft) = written(fewer);
    fails(&["run", path, "Hi", "--draft", text(&draft)], 2, &["another vocabulary", "token 0"]);
    fails(&["run", "/no/such/model.gguf", "Hi"], 3, &["/no/such/model.gguf"]);
    for tier in ["nf4", "int9", "rotated-int8:64"] {
        fails(&["run", path, "Hi", "--tier", tier], 2, &[tier, "rotated-int8, int8 or fp16"]);
    }
    let (_base, base) = written(families::with_characters(families::llama()));
    fails(&["run", text(&base), "Hi", "--system", "Go"], 2, &["chat template", "--system"]);
}
