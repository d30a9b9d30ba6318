//! Several reads under way at once, by one thread, through a submission queue of the kernel's (io_uring).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types::Fd};
use rustix::io::Errno;

use super::PIECE;

/// Reads under way at a time: with [`PIECE`] what a fast disk needs to be busy all the time.
const DEPTH: usize = 8;

/// A queue for reads.
pub(super) struct Ring {
    ring: IoUring,
}

impl Ring {
    /// # Errors
    /// The kernel has no such queues, or does not give them to this process.
    pub(super) fn new() -> io::Result<Ring> {
        let ring = IoUring::new(DEPTH as u32)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        match probe.is_supported(opcode::Read::CODE) {
            true => Ok(Ring { ring }),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Fills `out` from `offset` on. Gives the parts that were not read, and whether the queue can be used
    /// again; `refused` is told the errors.
    pub(super) fn read(
        &mut self,
        file: &File,
        offset: u64,
        out: &mut [u8],
        refused: impl Fn(i32),
    ) -> (Vec<Range<usize>>, bool) {
        let (len, base, file) = (out.len(), out.as_mut_ptr(), Fd(file.as_raw_fd()));
        let piece = |start: usize| PIECE.min(len - start);
        // Room for all that can be lost, so that nothing can fail while reads are under way.
        let mut lost = Vec::with_capacity(len.div_ceil(PIECE) + 1);
        let (mut next, mut pending) = (0, 0);
        loop {
            while pending < DEPTH && next < len {
                // SAFETY: `next` lies in `out`.
                let target = unsafe { base.add(next) };
                let read = opcode::Read::new(file, target, piece(next) as u32)
                    .offset(offset + next as u64)
                    .build()
                    .user_data(next as u64);
                // SAFETY: the kernel writes to `target` for `piece(next)` bytes, all of them in `out`, which
                // is borrowed for this call and used for nothing else; `file` is open as long. The loop
                // ends only when no read is under way.
                if unsafe { self.ring.submission().push(&read) }.is_err() {
                    break;
                }
                (next, pending) = (next + piece(next), pending + 1);
            }
            if pending == 0 {
                return (lost, true);
            }
            if let Err(error) = self.ring.submit_and_wait(1)
                && error.raw_os_error() != Some(Errno::INTR.raw_os_error())
            {
                // Reads that the kernel did not take are the last ones. When it has none, there is
                // nothing to wait for.
                if self.ring.submission().len() == pending && self.ring.completion().is_empty() {
                    refused(error.raw_os_error().unwrap_or_default());
                    let taken = next.div_ceil(PIECE) - pending;
                    lost.push(taken * PIECE..len);
                    return (lost, false);
                }
                rustix::thread::sched_yield();
            }
            for done in self.ring.completion() {
                pending -= 1;
                let start = done.user_data() as usize;
                let whole = start..start + piece(start);
                match usize::try_from(done.result()) {
                    Ok(bytes) if bytes < whole.len() => lost.push(start + bytes..whole.end),
                    Ok(_) => {}
                    Err(_) => {
                        refused(-done.result());
                        lost.push(whole);
                    }
                }
            }
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}
