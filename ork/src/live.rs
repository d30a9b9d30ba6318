//! What running programs tell `ork top`: one small file each, rewritten a few times a second.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time between two writes.
const PERIOD: Duration = Duration::from_millis(250);

/// State of one running program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Live {
    /// Its process.
    pub pid: u32,
    /// What it runs.
    pub title: String,
    /// Whether its device is simulated.
    pub simulated: bool,
    /// Device memory that it may take for weights.
    pub budget: u64,
    /// Use of each domain's window.
    pub domains: Vec<DomainUse>,
    /// Weights found resident, so far.
    pub hits: u64,
    /// Weights loaded, so far.
    pub loads: u64,
    /// Seconds in which a job had to wait for a weight, so far.
    pub stall_seconds: f64,
}

/// Use of one domain's window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DomainUse {
    /// Index of the domain.
    pub index: u32,
    /// Bytes mapped.
    pub live: u64,
    /// Bytes of the window.
    pub window: u64,
}

/// Publishes a program's state while it lives.
#[derive(Debug)]
pub struct Publisher {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Publisher {
    /// Begins to publish what `state` returns. A machine that does not let us write the file has no
    /// `ork top`, and nothing else is the worse for it.
    pub fn start(state: impl Fn() -> Live + Send + 'static) -> Publisher {
        let pid = std::process::id();
        let path = folder().join(format!("{pid}.json"));
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (theirs, target) = (stop.clone(), path.clone());
        let run = move || {
            let (stopped, changed) = &*theirs;
            let mut stopped = stopped.lock().unwrap_or_else(PoisonError::into_inner);
            while !*stopped {
                let _ = write(&target, &Live { pid, ..state() });
                let waited = changed.wait_timeout(stopped, PERIOD);
                stopped = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        };
        let thread = std::thread::Builder::new().name("ork-live".into()).spawn(run).ok();
        Publisher { stop, thread, path }
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
        let _ = fs::remove_file(&self.path);
    }
}

/// Every program that publishes now, by process.
pub fn read_all() -> Vec<Live> {
    let files = fs::read_dir(folder()).into_iter().flatten().flatten();
    let mut all: Vec<Live> = files
        .filter_map(|file| serde_json::from_slice(&fs::read(file.path()).ok()?).ok())
        // A killed program leaves its file.
        .filter(|live: &Live| fs::exists(format!("/proc/{}", live.pid)).unwrap_or(false))
        .collect();
    all.sort_by_key(|live| live.pid);
    all
}

/// Whole or not at all: a reader never sees half a file.
fn write(path: &std::path::Path, live: &Live) -> std::io::Result<()> {
    fs::create_dir_all(folder())?;
    let partial = path.with_extension("tmp");
    fs::write(&partial, serde_json::to_vec(live)?)?;
    fs::rename(partial, path)
}

/// `$XDG_RUNTIME_DIR/ork`, or `ork-live` in the folder for temporary files.
fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) => PathBuf::from(folder).join("ork"),
        None => std::env::temp_dir().join("ork-live"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_seen_while_it_publishes() {
        let title = format!("test of {}", std::process::id());
        let state = Live { title: title.clone(), hits: 7, ..Live::default() };
        let publisher = Publisher::start(move || state.clone());
        let ours = || read_all().into_iter().find(|live| live.title == title);
        let start = std::time::Instant::now();
        while ours().is_none() && start.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        assert_eq!(ours().map(|live| live.hits), Some(7));
        drop(publisher);
        assert_eq!(ours(), None);
    }
}
