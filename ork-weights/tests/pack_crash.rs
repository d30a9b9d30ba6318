//! Writers that are killed, and file systems that are full or read-only: the final name always holds
//! the old file, byte for byte, or a whole new pack.
//!
//! A test starts this program again as the process that suffers, with [`ROLE`] saying what it does.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ork_weights::pack::{
    Dtype, Identity, Pack, PackError, PackWriter, Result, WriterOptions, verify,
};

const ROLE: &str = "ORK_TEST_CRASH_ROLE";
const TARGET: &str = "ORK_TEST_CRASH_TARGET";
const WEIGHTS: u32 = 24;

/// One test at a time: a process that one of them forks holds, until it execs, what another has locked.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same model twice; only its time differs, so that one pack may replace the other.
fn model(modified_ns: u64) -> Identity {
    Identity { size: 1 << 30, modified_ns, sample_hash: 5, full_hash: None }
}

fn add_all(writer: &mut PackWriter) -> Result<()> {
    for number in 0..WEIGHTS {
        let name = format!("blk.{number}.weight");
        if !writer.contains(&name) {
            let blob: Vec<u8> =
                (0..65536u32).map(|i| ((i * (2 * number + 1)) >> 4) as u8).collect();
            writer.add(&name, 256, 256, Dtype::Int8, &blob, &[0.5; 256])?;
        }
    }
    Ok(())
}

fn convert(target: &Path, modified_ns: u64) -> Result<()> {
    let mut writer = PackWriter::create(target, &model(modified_ns), WriterOptions::default())?;
    add_all(&mut writer)?;
    writer.finish().map(|_| ())
}

/// This program again, running only [`child`] in that role.
fn command(role: &str, target: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "child", "--test-threads=1"]);
    command.env(ROLE, role).env(TARGET, target).stdout(Stdio::null());
    command
}

/// Does nothing in an ordinary run; otherwise what [`ROLE`] says.
#[test]
fn child() {
    let (Ok(role), Some(target)) = (env::var(ROLE), env::var_os(TARGET)) else { return };
    let target = PathBuf::from(target);
    match role.as_str() {
        "convert" => convert(&target, 2).unwrap(),
        "small file system" => on_a_small_file_system(&target),
        other => panic!("unknown role {other}"),
    }
}

#[test]
fn killed_at_200_moments() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model.orkpack");
    convert(&target, 2).unwrap();
    let new = fs::read(&target).unwrap();
    convert(&target, 1).unwrap();
    let old = fs::read(&target).unwrap();
    assert_ne!(old, new);

    // How long a whole run takes, process start included.
    let start = Instant::now();
    assert!(command("convert", &target).status().unwrap().success());
    let whole = start.elapsed();
    assert_eq!(fs::read(&target).unwrap(), new);

    let (mut random, mut kept, mut replaced, mut resumable) = (1u64, 0, 0, 0);
    for _ in 0..200 {
        fs::write(&target, &old).unwrap();
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let fraction = (random >> 40) as f64 / (1u64 << 24) as f64;
        let mut writer = command("convert", &target).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs_f64(whole.as_secs_f64() * 1.1 * fraction));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let found = fs::read(&target).unwrap();
        assert!(found == old || found == new, "neither old nor new: {} bytes", found.len());
        if found == new {
            assert!(verify(&Pack::parse(found).unwrap(), &|_| {}).is_sound());
            replaced += 1;
            continue;
        }
        kept += 1;
        // Go on by hand every other time, else with the next process; both must end in `new`.
        if kept % 2 == 0 {
            let options = WriterOptions::default();
            let mut writer = PackWriter::create(&target, &model(2), options).unwrap();
            resumable += u32::from(writer.resumed() > 0);
            add_all(&mut writer).unwrap();
            writer.finish().unwrap();
            assert!(fs::read(&target).unwrap() == new, "an interruption shows");
        }
    }
    println!("killed: {kept} before the rename ({resumable} resumed), {replaced} after it");
    assert!(kept > 0);
    fs::write(&target, &old).unwrap();
    assert!(command("convert", &target).status().unwrap().success());
    assert_eq!(fs::read(&target).unwrap(), new);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside the pack");
}

/// Runs [`on_a_small_file_system`] in a mount namespace of its own, if this system allows one.
#[test]
fn full_and_read_only_file_systems() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path();
    let script = "mount -t tmpfs -o size=4m tmpfs \"$1\" && shift && exec \"$@\"";
    let inner = command("small file system", &mount.join("model.orkpack"));
    let inside = |script: &str, program: &Command| {
        let mut outer = Command::new("unshare");
        outer.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(mount);
        outer.arg(program.get_program()).args(program.get_args());
        outer.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        outer.stdout(Stdio::null());
        outer
    };
    let allowed = inside(script, &Command::new("true")).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no mount namespaces here; injected errors are tested all the same");
        return;
    }
    assert!(inside(script, &inner).status().unwrap().success());
}

/// `target` lies on an empty file system of 4 MiB.
fn on_a_small_file_system(target: &Path) {
    let folder = target.parent().unwrap();
    convert(target, 1).unwrap();
    let old = fs::read(target).unwrap();
    let ballast = folder.join("ballast");
    // Leaves room for a third of a second pack.
    fs::write(&ballast, vec![0; (4 << 20) - old.len() - old.len() / 3]).unwrap();
    let full = convert(target, 2).unwrap_err();
    let PackError::Io { operation: "write", source, .. } = &full else { panic!("{full:?}") };
    assert_eq!(source.kind(), ErrorKind::StorageFull);
    assert_eq!(fs::read(target).unwrap(), old);

    // With room again it goes on where it stopped.
    fs::remove_file(&ballast).unwrap();
    let mut writer = PackWriter::create(target, &model(2), WriterOptions::default()).unwrap();
    assert!((1..WEIGHTS).contains(&writer.resumed()), "{}", writer.resumed());
    add_all(&mut writer).unwrap();
    writer.finish().unwrap();
    assert!(verify(&Pack::open(target).unwrap(), &|_| {}).is_sound());

    let old = fs::read(target).unwrap();
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(folder).status().unwrap();
    assert!(remount.success());
    let read_only = convert(target, 1).unwrap_err();
    let PackError::Io { operation: "create", source, .. } = &read_only else {
        panic!("{read_only:?}")
    };
    assert_eq!(source.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(target).unwrap(), old);
}
