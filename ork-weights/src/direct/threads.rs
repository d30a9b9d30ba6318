//! Several reads at once by as many threads, where the kernel has no queues.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::PIECE;

/// Threads beside the caller's: they wait for the disk nearly all the time.
const OTHERS: usize = 3;

/// Fills `out` from `offset` on. Gives the parts that were not read; `refused` is told the errors.
pub(super) fn read(
    file: &File,
    offset: u64,
    out: &mut [u8],
    refused: &(impl Fn(i32) + Sync),
) -> Vec<Range<usize>> {
    let others = OTHERS.min(out.len().div_ceil(PIECE) - 1);
    let pieces = Mutex::new(out.chunks_mut(PIECE).enumerate());
    let lost = Mutex::new(Vec::new());
    let work = || {
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((index, piece)) = next() {
            let start = index * PIECE;
            let bytes = match file.read_at(piece, offset + start as u64) {
                Ok(bytes) => bytes,
                Err(error) => {
                    refused(error.raw_os_error().unwrap_or_default());
                    0
                }
            };
            if bytes < piece.len() {
                let part = start + bytes..start + piece.len();
                lost.lock().unwrap_or_else(PoisonError::into_inner).push(part);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..others {
            // Without it the others have more to do.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    lost.into_inner().unwrap_or_else(PoisonError::into_inner)
}
