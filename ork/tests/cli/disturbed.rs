//! Conversions that are killed, that run out of disk, or whose model changes under them.

use std::env;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use assert_cmd::cargo::cargo_bin;

use super::{made, model, ork, text};
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
    for read in ["pread", "direct"] {
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

/// A model with two packs of it, made at two times of its last change: either may replace the other.
struct Two {
    folder: tempfile::TempDir,
    model: PathBuf,
    pack: PathBuf,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Two {
    fn new() -> Two {
        let (folder, model) = model();
        let pack = folder.path().join("model.orkpack");
        let made_at = |seconds| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            File::options().write(true).open(&model).unwrap().set_modified(at).unwrap();
            ork(&["convert", text(&model)]).assert().success();
            fs::read(&pack).unwrap()
        };
        let (old, new) = (made_at(1_000), made_at(2_000));
        assert_ne!(old, new);
        Two { folder, model, pack, old, new }
    }

    /// After a run that came to nothing: the old pack, and the next run ends as if nothing had been.
    fn goes_on(&self) {
        assert!(fs::read(&self.pack).unwrap() == self.old, "the old pack changed");
        ork(&["convert", text(&self.model)]).assert().success();
        assert!(fs::read(&self.pack).unwrap() == self.new, "the interruption shows");
        let left = fs::read_dir(self.folder.path()).unwrap().count();
        assert_eq!(left, 2, "something is left beside the pack");
        fs::write(&self.pack, &self.old).unwrap();
    }
}

#[test]
fn a_conversion_killed_at_200_moments() {
    let two = Two::new();
    let start = || {
        let mut command = Command::new(cargo_bin("ork"));
        command.args(["convert", text(&two.model)]).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    fs::write(&two.pack, &two.old).unwrap();
    let clock = Instant::now();
    assert!(start().wait().unwrap().success());
    let whole = clock.elapsed();

    let (mut random, mut kept, mut begun, mut replaced) = (1u64, 0, 0, 0);
    for _ in 0..200 {
        fs::write(&two.pack, &two.old).unwrap();
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let fraction = (random >> 40) as f64 / (1u64 << 24) as f64;
        let mut child = start();
        sleep(whole.mul_f64(1.2 * fraction));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = fs::read(&two.pack).unwrap();
        if found == two.new {
            replaced += 1;
            continue;
        }
        assert!(found == two.old, "neither old nor new: {} bytes", found.len());
        kept += 1;
        let partial = two.folder.path().join("model.orkpack.partial");
        begun += u32::from(fs::metadata(&partial).is_ok_and(|stat| stat.len() > 0));
        // Some are gone on with by the next process to be killed, some to their end.
        if kept % 4 == 0 {
            two.goes_on();
        }
    }
    println!("killed: {kept} before the rename ({begun} had written weights), {replaced} after it");
    assert!(kept > 0 && begun > 0);
    fs::write(&two.pack, &two.old).unwrap();
    two.goes_on();
    fs::write(&two.pack, &two.new).unwrap();
    ork(&["verify", text(&two.pack), "--model", text(&two.model)]).assert().success();
}

#[test]
fn a_conversion_whose_writes_fail() {
    let two = Two::new();
    fs::write(&two.pack, &two.old).unwrap();
    // Writing past a limit on the size of files fails with EFBIG, in the middle of a write or not.
    let blocks = two.new.len() / 512;
    for limit in [0, 1, blocks / 4, blocks / 2, blocks - 9, blocks - 1] {
        let line = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$@\"");
        let output = Command::new("dash")
            .args(["-c", &line, "dash", text(&cargo_bin("ork")), "convert", text(&two.model)])
            .output();
        // Only dash counts in 512 bytes, whatever it was told to be.
        let Ok(output) = output else { return eprintln!("SKIPPED: there is no dash") };
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{limit}: {error}");
        assert!(error.contains("model.orkpack") && error.contains("large"), "{limit}: {error}");
        two.goes_on();
    }
}

const FULL: &str = "ORK_TEST_FULL_DISK";

/// Does nothing in an ordinary run; otherwise works on the small file system that [`FULL`] names.
#[test]
fn child() {
    if let Some(folder) = env::var_os(FULL) {
        on_a_full_disk(Path::new(&folder));
    }
}

#[test]
fn a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |program: &Path, args: &[&str]| -> std::io::Result<Output> {
        let script = "mount -t tmpfs -o size=3m tmpfs \"$1\" && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]);
        command.arg(folder.path()).arg(program).args(args).env(FULL, folder.path()).output()
    };
    if !inside(Path::new("true"), &[]).is_ok_and(|output| output.status.success()) {
        return eprintln!("SKIPPED: no mount namespaces here, so no small file system");
    }
    let program = env::current_exe().unwrap();
    let output = inside(&program, &["--exact", "disturbed::child", "--nocapture"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn on_a_full_disk(folder: &Path) {
    let (_elsewhere, model) = model();
    let pack = folder.join("p.orkpack");
    ork(&["convert", text(&model), "-o", text(&pack)]).assert().success();
    let old = fs::read(&pack).unwrap();
    let ballast = folder.join("ballast");
    let room = old.len() / 3;
    fs::write(&ballast, vec![0; (3 << 20) - old.len() - room]).unwrap();
    let fails = |args: &[&str], out: &Path| {
        let assert = ork(args).assert().code(3);
        let error = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(error.contains("No space left"), "{args:?}: {error}");
        assert!(error.contains(text(folder)), "{args:?}: {error}");
        assert!(!out.exists(), "{args:?}: half a file under its name");
    };
    let touched = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    File::options().write(true).open(&model).unwrap().set_modified(touched).unwrap();
    let partial = folder.join("p.orkpack.partial");
    let assert = ork(&["convert", text(&model), "-o", text(&pack)]).assert().code(3);
    let error = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(error.contains("No space left"), "{error}");
    assert!(fs::read(&pack).unwrap() == old);
    assert!(partial.exists(), "what was written is kept for the next try");

    // With no byte left, nothing else is half written either.
    let rest = folder.join("rest");
    fs::write(&rest, vec![0; 3 << 20]).unwrap_err();
    for (flag, name) in [("--trace", "t.json"), ("--html", "t.html")] {
        let out = folder.join(name);
        let args = ["bench", text(&pack), "--device", "sim", "--rows", "1", "--passes", "60"];
        fails(&[&args[..], &[flag, text(&out)]].concat(), &out);
    }

    fs::remove_file(&rest).unwrap();
    fs::remove_file(&ballast).unwrap();
    ork(&["convert", text(&model), "-o", text(&pack)]).assert().success();
    ork(&["verify", text(&pack), "--model", text(&model)]).assert().success();
    assert!(!partial.exists());

    // Room for some weights of a pack that is made on the way: the text goes on without it.
    fs::write(&rest, vec![0; 3 << 20]).unwrap_err();
    let full = fs::metadata(&rest).unwrap().len();
    File::options().write(true).open(&rest).unwrap().set_len(full - (100 << 10)).unwrap();
    let story = concat!(env!("CARGO_MANIFEST_DIR"), "/story/story.gguf");
    let tell =
        ["run", story, "A fox found a ball", "--raw", "--device", "sim", "--temperature", "0"];
    let wanted = ork(&tell).args(["--max-tokens", "4"]).assert().success();
    let kept = folder.join("story.orkpack");
    let keep = format!("--persist={}", text(&kept));
    let told = ork(&tell).args(["--max-tokens", "4", &keep]).assert().success();
    let error = String::from_utf8_lossy(&told.get_output().stderr).into_owned();
    assert_eq!(told.get_output().stdout, wanted.get_output().stdout, "{error}");
    let said: Vec<&str> = error.lines().filter(|line| line.contains("warning")).collect();
    assert!(said.len() == 1 && said[0].contains("No space left"), "{error}");
    assert!(said[0].contains("not kept") && !kept.exists(), "{error}");
}

/// The demonstration's folders in `folder`.
fn demo_folders(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("ork-demo-"))
        .collect()
}

/// Starts a demonstration that takes long; gives its own folder as soon as there is something in it.
fn start_demo(folder: &Path) -> (Child, PathBuf) {
    let before = demo_folders(folder);
    let mut demo = Command::new(cargo_bin("ork"))
        .args(["demo", "--device", "sim", "--size", "100MiB", "--passes", "500"])
        .env("TMPDIR", folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let filled = |path: &PathBuf| {
        !before.contains(path) && fs::read_dir(path).is_ok_and(|mut files| files.next().is_some())
    };
    loop {
        if let Some(path) = demo_folders(folder).into_iter().find(filled) {
            return (demo, path);
        }
        assert!(demo.try_wait().unwrap().is_none(), "it ended before it had a folder");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_a_killed_demonstration_left_is_removed_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let (mut killed, left) = start_demo(folder.path());
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(demo_folders(folder.path()), std::slice::from_ref(&left));

    // The next one removes it, and leaves alone what a living one holds.
    let (mut living, held) = start_demo(folder.path());
    assert_eq!(demo_folders(folder.path()), std::slice::from_ref(&held));
    let args = ["demo", "--device", "sim", "--size", "26MiB", "--passes", "1"];
    let output = ork(&args).env("TMPDIR", folder.path()).output().unwrap();
    let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(String::from_utf8_lossy(out).contains("identical, and the CPU's"), "{out:?}");
    assert_eq!(demo_folders(folder.path()), [held]);

    // A signal ends it, and it takes its folder along.
    let pid = rustix::process::Pid::from_child(&living);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(living.wait().unwrap().signal(), Some(15));
    assert_eq!(demo_folders(folder.path()), Vec::<PathBuf>::new());
}
