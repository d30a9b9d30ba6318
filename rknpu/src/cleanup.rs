//! Gives the device's buffers back when the process is told to end: SIGINT, SIGTERM.

use std::io;
use std::thread::JoinHandle;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

use crate::device::Device;
use crate::error::{Error, Result};

/// Frees the device's buffers when the process is told to end, until it is dropped.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let cleanup = rknpu::cleanup::clean_up_on_signals(&device)?;
/// let buffer = device.domain(0)?.alloc(4096)?; // given back on ^C
/// # drop(buffer);
/// drop(cleanup); // signals do again what they did
/// # Ok::<(), rknpu::Error>(())
/// ```
#[must_use = "dropping it ends the clean-up"]
#[derive(Debug)]
pub struct SignalCleanup {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// From now on, SIGINT and SIGTERM first wait until no job runs, give every buffer back to the driver,
/// domain by domain, and only then end the process as they would have.
///
/// A process that is killed outright leaves that to the kernel, while jobs may still run; some boards have
/// been seen to lose address space then, until a reboot. A library does not change what signals do unasked:
/// a program that wants this says so.
///
/// # Errors
/// [`Error::Os`] when the signals or the thread cannot be had.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let cleanup = rknpu::cleanup::clean_up_on_signals(&device)?;
/// // ... work; ^C is safe now ...
/// drop(cleanup);
/// # Ok::<(), rknpu::Error>(())
/// ```
pub fn clean_up_on_signals(device: &Device) -> Result<SignalCleanup> {
    let failed = |source: io::Error| Error::Os { what: "cannot watch for signals", source };
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let (handle, device) = (signals.handle(), device.clone());
    let watch = move || {
        if let Some(signal) = signals.forever().next() {
            device.shut_down();
            // Ends the process; if it cannot, there is nothing better to do.
            let _ = emulate_default_handler(signal);
        }
    };
    let thread = std::thread::Builder::new().name("rknpu-signals".to_owned()).spawn(watch);
    Ok(SignalCleanup { handle, thread: Some(thread.map_err(failed)?) })
}

impl Drop for SignalCleanup {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, the clean-up would be over as well.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use rknpu_sim::Machine;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    /// Set in the process that the test below starts.
    const CHILD: &str = "RKNPU_TEST_SIGNAL";

    #[test]
    fn shutting_down_gives_every_handle_back() {
        let machine = Machine::new(Default::default());
        let device = Device::simulated_on(&machine).unwrap();
        let buffers: Vec<_> = [0, 3, 3]
            .iter()
            .map(|index| {
                let domain = device.domain(*index).or_else(|_| device.new_domain()).unwrap();
                domain.alloc(1 << 20).unwrap()
            })
            .collect();
        assert_eq!(machine.report().handles, 3);
        device.shut_down();
        assert_eq!(machine.report().handles, 0);
        assert!(device.health().is_good());
        // As at the end of the process, which drops nothing.
        std::mem::forget(buffers);
    }

    /// Not a test of its own: the process that the next one ends.
    #[test]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let device = Device::simulated(Default::default()).unwrap();
        let _cleanup = clean_up_on_signals(&device).unwrap();
        let _buffer = device.domain(0).unwrap().alloc(4096).unwrap();
        println!("\nready");
        std::thread::sleep(std::time::Duration::from_secs(60));
    }

    #[test]
    fn the_signal_ends_the_process_after_all() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cleanup::tests::child", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(SIGTERM));
    }
}
