//! A second process that holds the open files of the mainline driver.
//!
//! That driver frees what a job uses when the job's file is closed, while the core still works on it: a process
//! that is killed outright would hurt the kernel. A file that another process holds as well stays open, its jobs
//! run to their end, and closing it then is harmless. So [`OpenOptions::keeper`](crate::OpenOptions::keeper)
//! names a command that is started beside the first file and gets each file as it is opened; it has to call
//! [`keep`]. It is told when the device is closed, and ends at once; when the process that it keeps for is
//! gone without a word, it waits for as long as jobs can take. Until then the NPU counts as in use.
//!
//! With the vendor's driver, and on the simulator, none is started.
//!
//! ```no_run
//! use rknpu::{Device, OpenOptions};
//!
//! // In the program's main function, before anything else:
//! if std::env::args().nth(1).as_deref() == Some("keep-npu-files") {
//!     return rknpu::keeper::keep(std::io::stdin());
//! }
//! let this = std::env::current_exe().expect("a program has a path");
//! let device = OpenOptions::new().keeper(this, ["keep-npu-files"]).open()?;
//! # Ok::<(), rknpu::Error>(())
//! ```

use std::ffi::OsString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rknpu_sys::regs::CORES;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::error::{Error, Result};
use crate::limits;

/// A message with a file.
const FILE: u8 = b'f';
/// The last message: nothing runs any more.
const ENDED: u8 = b'e';
/// What a job may take before its core is reset, with what was seen beyond the limit.
const JOB: Duration = Duration::from_millis(525);

/// The command that keeps files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeeperCommand {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
}

/// The process that keeps files, and the way to it.
#[derive(Debug)]
pub(crate) struct Keeper {
    socket: OwnedFd,
    /// Absent once it was told to end.
    process: Mutex<Option<Child>>,
}

impl Keeper {
    /// Starts the command. Signals of a terminal do not reach it, as they end the process that it keeps for.
    pub(crate) fn start(command: &KeeperCommand) -> Result<Keeper> {
        let failed = |source| Error::Os { what: "cannot start what keeps the NPU's files", source };
        let pair =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (socket, theirs) = pair.map_err(|errno| failed(errno.into()))?;
        let mut process = Command::new(&command.program);
        process.args(&command.arguments).process_group(0);
        process.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Mutex::new(Some(process.spawn().map_err(failed)?));
        Ok(Keeper { socket, process })
    }

    /// Gives it a file. One that nobody keeps is not to be used.
    pub(crate) fn keep(&self, file: impl AsFd) -> Result<(), Errno> {
        send(&self.socket, FILE, Some(file.as_fd()))
    }

    /// Nothing runs any more: it may close the files.
    pub(crate) fn end(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut process) = process.take() else { return };
        // It may have been killed, and then is no more to be told anything.
        if send(&self.socket, ENDED, None).is_ok() {
            let _ = process.wait();
        }
    }
}

fn send(socket: &OwnedFd, word: u8, file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(file) = &file {
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(file)));
    }
    let word = [word];
    loop {
        match sendmsg(socket, &[IoSlice::new(&word)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop),
        }
    }
}

/// Holds the files that come by `socket`, the standard input of the command, until they may be closed.
///
/// # Errors
/// [`Error::Os`] for something that is no such socket.
///
/// ```
/// let file = std::fs::File::open("/dev/null").expect("every system has it");
/// assert!(rknpu::keeper::keep(file).is_err());
/// ```
pub fn keep(socket: impl AsFd) -> Result<()> {
    hold(socket.as_fd(), JOB)
}

/// As [`keep`], where a job takes at most `job`.
fn hold(socket: BorrowedFd<'_>, job: Duration) -> Result<()> {
    let mut files: Vec<OwnedFd> = Vec::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut word = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(socket, &mut [IoSliceMut::new(&mut word)], &mut control, flags);
        match received {
            Err(Errno::INTR) => continue,
            Err(errno) => {
                let what = "cannot receive the NPU's files";
                return Err(Error::Os { what, source: errno.into() });
            }
            Ok(message) if message.bytes == 0 => break,
            Ok(_) => {}
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        if word == [ENDED] {
            return Ok(());
        }
    }
    // A file's jobs run one after the other, those of as many files as there are cores side by side.
    let rounds = files.len().div_ceil(CORES) * limits::JOBS_IN_FLIGHT;
    thread::sleep(job.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read};
    use std::time::Instant;

    /// Runs as the process that keeps, in the test below.
    #[test]
    #[ignore = "waits for files"]
    fn what_keeps() {
        keep(std::io::stdin()).unwrap();
    }

    fn start() -> Keeper {
        let program = std::env::current_exe().unwrap();
        let arguments = ["keeper::tests::what_keeps", "--exact", "--ignored"];
        Keeper::start(&KeeperCommand { program, arguments: arguments.map(Into::into).into() })
            .unwrap()
    }

    /// Whether the other end is open in some process.
    fn is_open(pipe: &PipeReader) -> bool {
        rustix::io::ioctl_fionbio(pipe, true).unwrap();
        let read = (&mut &*pipe).read(&mut [0]);
        rustix::io::ioctl_fionbio(pipe, false).unwrap();
        matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }

    #[test]
    fn another_process_holds_the_files_until_all_has_ended() {
        let (keeper, (mut pipe, file)) = (start(), std::io::pipe().unwrap());
        keeper.keep(&file).unwrap();
        drop(file);
        assert!(is_open(&pipe));
        keeper.end();
        // Nobody has it any more, so that this ends.
        assert_eq!(pipe.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn files_outlive_a_process_that_is_gone_without_a_word() {
        let (keeper, (pipe, file)) = (start(), std::io::pipe().unwrap());
        keeper.keep(&file).unwrap();
        drop(file);
        let child = keeper.process.lock().unwrap().take();
        drop(keeper);
        thread::sleep(Duration::from_millis(200));
        assert!(is_open(&pipe));
        child.unwrap().kill().unwrap();
    }

    #[test]
    fn files_are_held_for_as_long_as_jobs_can_take() {
        for (count, rounds) in [(0, 0), (1, 1), (3, 1), (4, 2)] {
            let pair =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            let (socket, theirs) = pair.unwrap();
            for _ in 0..count {
                send(&socket, FILE, Some(theirs.as_fd())).unwrap();
            }
            drop(socket);
            let (begin, job) = (Instant::now(), Duration::from_millis(2));
            hold(theirs.as_fd(), job).unwrap();
            assert!(begin.elapsed() >= job * rounds * limits::JOBS_IN_FLIGHT as u32);
        }
    }

    #[test]
    fn a_keeper_that_is_gone_is_seen_and_one_that_cannot_start_is_an_error() {
        let keeper = start();
        let mut child = keeper.process.lock().unwrap().take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let (_pipe, file) = std::io::pipe().unwrap();
        assert_eq!(keeper.keep(&file), Err(Errno::PIPE));

        let command = KeeperCommand { program: "/no/such/program".into(), arguments: Vec::new() };
        let error = Keeper::start(&command).unwrap_err().to_string();
        assert!(error.contains("keeps the NPU's files"), "{error}");
    }
}
