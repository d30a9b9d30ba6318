//! A pack larger than the memory that a process may have: what is streamed through the page cache pushes against
//! the limit in every pass, what goes past it does not; and the results are the same.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ork::run::session::{Session, Settings};
use ork_cache::{Access, Setup, Store};
use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
use rknpu::Device;
use rustix::fs::{Advice, fadvise};

const WEIGHTS: u32 = 160;
const SIDE: u32 = 1024;
const BYTES: u64 = WEIGHTS as u64 * (SIDE * SIDE) as u64;
/// Device memory, which is this process's in the simulator.
const BUDGET: u64 = 24 << 20;
/// What the process may have: the budget and the program, and less than half of the pack.
const LIMIT: u64 = 72 << 20;
const PASSES: usize = 3;
/// Names the pack, the group and the way of access to a process that is to stream it.
const CHILD: &str = "ORK_TEST_LIMITED";

/// A control group with a limit of memory; removed with the value.
struct Group {
    path: PathBuf,
    /// Of the first version of control groups.
    first: bool,
}

impl Group {
    /// # Errors
    /// Why none can be made here.
    fn new() -> Result<Group, String> {
        let name = format!("ork-test-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let first = root.join("memory/memory.limit_in_bytes").exists();
        let path = if first { root.join("memory").join(name) } else { root.join(name) };
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        if !first {
            // Fails where it is on already, or may not be.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        fs::create_dir(&path).map_err(told)?;
        let group = Group { path: path.clone(), first };
        let limit = if first { "memory.limit_in_bytes" } else { "memory.max" };
        fs::write(path.join(limit), LIMIT.to_string()).map_err(told)?;
        if !first {
            let _ = fs::write(path.join("memory.swap.max"), "0");
        }
        Ok(group)
    }

    /// How often the limit was met.
    fn met(&self) -> u64 {
        let name = if self.first { "memory.failcnt" } else { "memory.events" };
        let text = fs::read_to_string(self.path.join(name)).unwrap();
        let number = match self.first {
            true => Some(text.trim()),
            false => text.lines().find_map(|line| line.strip_prefix("max ")),
        };
        number.unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

fn write(path: &Path) {
    let options = WriterOptions { expected: Some(WEIGHTS), ..WriterOptions::default() };
    let mut writer = PackWriter::create(path, None, options).unwrap();
    let mut codes = vec![0; (SIDE * SIDE) as usize];
    for layer in 0..WEIGHTS {
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = (i as u32 * 29 + layer) as u8);
        let name = format!("blk.{layer}.ffn_up.weight");
        writer.add(&name, SIDE, SIDE, Dtype::Int8, &codes, &[1.0; SIDE as usize]).unwrap();
    }
    writer.finish().unwrap();
}

/// Has the pack streamed by a process in a group of its own: what it found, whether past the page cache, and how
/// often it met the limit. `None` for one that was ended.
fn streamed(path: &Path, access: Access) -> (Option<(u64, bool)>, u64) {
    // Nothing of the pack is in memory yet.
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let group = Group::new().unwrap();
    let what = format!("{access} {} {}", group.path.display(), path.display());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "streams_what_it_is_told", "--nocapture"])
        .env(CHILD, what)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| line.split_once("found ")).map(|(_, found)| {
        let mut words = found.split_whitespace();
        let digest = words.next().unwrap().parse().unwrap();
        (digest, words.next() == Some("past"))
    });
    (found.filter(|_| output.status.success()), group.met())
}

/// The process of the test below; nothing where nobody tells it what to do.
#[test]
fn streams_what_it_is_told() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let [access, group, path] = what.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!() };
    let procs = Path::new(group).join("cgroup.procs");
    fs::write(procs, std::process::id().to_string()).unwrap();
    let store = Arc::new(Store::from_pack(Pack::open(path).unwrap()));
    let device = Device::simulated(Default::default()).unwrap();
    let setup = Setup { rows: 1, access: access.parse().unwrap(), ..Setup::new(BUDGET) };
    let mut session =
        Session::new(&device, std::slice::from_ref(&store), &Settings::new("", setup)).unwrap();
    for _ in 0..PASSES {
        session.pass(0).unwrap();
    }
    let way = if session.reading().direct { "past" } else { "through" };
    println!("found {} {way}", session.digest(0));
}

#[test]
fn a_pack_larger_than_memory_goes_past_the_page_cache() {
    if let Err(reason) = Group::new() {
        // Past the test harness, which would swallow what a passing test prints.
        let _ =
            writeln!(std::io::stderr(), "SKIPPED 1 test, no group with a memory limit: {reason}");
        return;
    }
    // A disk: a folder for temporary files may be memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("model.orkpack");
    write(&path);
    const { assert!(BYTES > 2 * LIMIT) };
    let (buffered, buffered_met) = streamed(&path, Access::Buffered);
    let (direct, direct_met) = streamed(&path, Access::Direct);
    let (auto, auto_met) = streamed(&path, Access::Auto);
    let (digest, past) = direct.expect("what goes past the page cache takes none of the memory");
    if !past {
        let _ = writeln!(std::io::stderr(), "SKIPPED 1 test, no direct reads on this disk");
        return;
    }
    // Chosen by itself, since the group leaves less than the pack takes.
    assert_eq!(auto, Some((digest, true)));
    // Through it every pass has the kernel take pages back, or ends the process.
    if let Some(buffered) = buffered {
        assert_eq!(buffered, (digest, false));
        eprintln!(
            "limit met: {buffered_met} times through the cache, {direct_met} and {auto_met} past it"
        );
        assert!(
            buffered_met > 100 && direct_met < buffered_met / 20,
            "{buffered_met} {direct_met}"
        );
        assert!(auto_met < buffered_met / 20, "{auto_met}");
    }
}
