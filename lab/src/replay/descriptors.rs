//! Descriptors that the machine hands to the program that a replay plays.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

const O_CLOEXEC: u32 = 0o2_000_000;

/// Closes descriptors that the machine made for the program.
pub(super) fn close(descriptors: impl Iterator<Item = RawFd>) {
    for fd in descriptors {
        // SAFETY: the machine made the descriptor for the program, which is the replay, and which is
        // at its end: nobody else owns it, and nobody uses it afterwards.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// Whether a descriptor closes on exec; none where nothing is open.
pub(super) fn closes_on_exec(fd: RawFd) -> Option<bool> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    Some(u32::from_str_radix(flags.trim(), 8).ok()? & O_CLOEXEC != 0)
}

/// Bytes of a descriptor's file.
pub(super) fn size(fd: RawFd) -> Option<u64> {
    Some(std::fs::metadata(format!("/proc/self/fd/{fd}")).ok()?.len())
}

/// Whether two descriptors are of one file.
pub(super) fn same_file(one: RawFd, other: RawFd) -> bool {
    let file = |fd: RawFd| {
        let found = std::fs::metadata(format!("/proc/self/fd/{fd}")).ok()?;
        Some((found.dev(), found.ino()))
    };
    file(one).is_some() && file(one) == file(other)
}
