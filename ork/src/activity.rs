//! What running programs tell `ork top`: one small file each, rewritten a few times a second, in a
//! folder that only their user can enter.

mod cores;
mod folder;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use cores::CoreLoads;
pub use cores::CoreTimes;

/// Time between two writes.
const PERIOD: Duration = Duration::from_millis(250);

/// State of one running program.
///
/// ```
/// use ork::activity::Activity;
///
/// let now = Activity { title: "bench m.orkpack".into(), hits: 9, ..Activity::default() };
/// let text = serde_json::to_string(&now)?;
/// assert_eq!(serde_json::from_str::<Activity>(&text)?, now);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// Its process.
    pub pid: u32,
    /// When that began, in the kernel's ticks: another process with the same number began later.
    pub started: u64,
    /// What it runs.
    pub title: String,
    /// Whether its device is simulated.
    pub simulated: bool,
    /// Device memory that it may take for weights.
    pub budget: u64,
    /// Use of each domain.
    pub domains: Vec<DomainUse>,
    /// Per cent of the time since the last write in which each core computed, as the program sees it:
    /// where the device is simulated, no kernel tells.
    pub cores: Vec<f64>,
    /// Weights found resident, so far.
    pub hits: u64,
    /// Weights loaded, so far.
    pub loads: u64,
    /// Seconds in which uses waited for their weight, so far: for loads of their own, for those of
    /// others and for room.
    pub stall_seconds: f64,
}

/// Use of one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DomainUse {
    /// Index of the domain.
    pub index: u32,
    /// Bytes mapped.
    pub mapped: u64,
    /// Bytes of its address space.
    pub capacity: u64,
}

/// Publishes a program's state while it lives.
///
/// ```
/// use ork::activity::{Activity, Publisher};
///
/// let publisher = Publisher::start(|| Activity { title: "an example".into(), ..Activity::default() });
/// drop(publisher); // its file is gone
/// ```
#[derive(Debug)]
pub struct Publisher {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
    path: Option<PathBuf>,
}

impl Publisher {
    /// Begins to publish what `state` returns. A machine that does not let us write the file, or not
    /// without others reaching it, has no `ork top`, and nothing else is the worse for it.
    pub fn start(state: impl FnMut() -> Activity + Send + 'static) -> Publisher {
        Publisher::start_in(folder::ours().ok(), state)
    }

    fn start_in(
        folder: Option<PathBuf>,
        mut state: impl FnMut() -> Activity + Send + 'static,
    ) -> Publisher {
        // A process may run several models, each with a publisher.
        static PUBLISHERS: AtomicU32 = AtomicU32::new(0);
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let Some(folder) = folder else { return Publisher { stop, thread: None, path: None } };
        // Also removes what killed programs left behind.
        drop(read_in(&folder));
        let pid = std::process::id();
        let started = started(pid).unwrap_or(0);
        let number = PUBLISHERS.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{pid}-{number}.json"));
        let (theirs, target) = (stop.clone(), path.clone());
        let run = move || {
            let (stopped, changed) = &*theirs;
            let mut stopped = stopped.lock().unwrap_or_else(PoisonError::into_inner);
            while !*stopped {
                let _ = write(&target, &Activity { pid, started, ..state() });
                let waited = changed.wait_timeout(stopped, PERIOD);
                stopped = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        };
        let thread = std::thread::Builder::new().name("ork-activity".into()).spawn(run).ok();
        Publisher { stop, thread, path: Some(path) }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in `state` has ended the publishing, which is all that it should.
            let _ = thread.join();
        }
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Every program of this user that publishes now, by process.
///
/// ```
/// for program in ork::activity::read_all() {
///     println!("{} has {} domains", program.title, program.domains.len());
/// }
/// ```
pub fn read_all() -> Vec<Activity> {
    folder::ours().map_or(Vec::new(), |folder| read_in(&folder))
}

/// What is published in `folder`. What killed programs left behind is removed: files of processes that
/// are no more, or whose number belongs to another by now.
fn read_in(folder: &Path) -> Vec<Activity> {
    let mut all = Vec::new();
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = file.path();
        let known = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if is_stale(&path, known.as_ref()) {
            let _ = fs::remove_file(path);
        } else if path.extension().is_some_and(|e| e == "json") {
            all.extend(known);
        }
    }
    all.sort_by_key(|program: &Activity| program.pid);
    all
}

/// Whether the process that wrote this file has ended.
fn is_stale(path: &Path, known: Option<&Activity>) -> bool {
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("");
    let Ok(pid) = name.split('-').next().unwrap_or("").parse::<u32>() else { return false };
    let now = started(pid);
    match known {
        Some(Activity { started, .. }) => now != Some(*started),
        // Half written: another one follows while its process lives.
        None => now.is_none(),
    }
}

/// When a process began, in ticks since the machine did; `None` when there is none.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the 20th field behind it is the start.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whole or not at all: a reader never sees half a file.
fn write(path: &Path, activity: &Activity) -> std::io::Result<()> {
    let partial = path.with_extension("tmp");
    fs::write(&partial, serde_json::to_vec(activity)?)?;
    fs::rename(partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_seen_while_it_publishes() {
        let folder = tempfile::tempdir().unwrap();
        let state = Activity { title: "a test".into(), hits: 7, ..Activity::default() };
        let publisher = Publisher::start_in(Some(folder.path().into()), move || state.clone());
        let ours = || read_in(folder.path()).into_iter().next();
        let start = std::time::Instant::now();
        while ours().is_none() && start.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        let seen = ours().unwrap();
        assert_eq!((seen.hits, seen.pid), (7, std::process::id()));
        drop(publisher);
        assert_eq!(ours(), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_killed_programs_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let put = |name: &str, activity: &Activity| {
            fs::write(folder.path().join(name), serde_json::to_vec(activity).unwrap()).unwrap();
            fs::write(folder.path().join(name), serde_json::to_vec(activity).unwrap()).unwrap();
        };
        let mine = Activity { pid: me, started: started(me).unwrap(), ..Activity::default() };
        put(&format!("{me}-0.json"), &mine);
        // The number of a process that is no more, and one that another process has got since.
        put("4294967295-0.json", &Activity { pid: u32::MAX, ..Activity::default() });
        put(&format!("{me}-1.json"), &Activity { started: mine.started - 1, ..mine.clone() });
        fs::write(folder.path().join("4294967295-1.tmp"), "{\"pid\"").unwrap();
        fs::write(folder.path().join("note.txt"), "not ours").unwrap();
        assert_eq!(read_in(folder.path()), [mine]);
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(
            left,
            [format!("{me}-0.json").as_str(), "note.txt"].map(std::ffi::OsString::from)
        );
    }

    #[test]
    fn without_a_folder_nothing_is_published() {
        drop(Publisher::start_in(None, Activity::default));
    }
}
