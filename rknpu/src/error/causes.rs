//! What the driver means by its answers: for every call and errno the causes that it is known to have, and the
//! way out. Read in the driver's source (0.9.8) and seen in recordings of it; what the kernel's own layers
//! answer (mmap, PRIME, opening) is theirs.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::{Call, Error};

/// What keeps a switch of domains from happening, whichever call needs one.
const NO_SWITCH: &str = "the driver waited 6 s for its current domain to come free: either another program works \
     in it that does not take this crate's lock (end it), or a job that timed out, in this process or an \
     earlier one, left the driver's count of users wrong, and then only a reboot helps";

/// Calls, an answer of theirs, what it means.
const CAUSES: &[(&[Call], Errno, &str)] = &[
    (
        &[Call::Action],
        Errno::INVAL,
        "the driver does not know this question; it is older than 0.9.6, or a fork",
    ),
    (&[Call::Switch, Call::Sync], Errno::INVAL, NO_SWITCH),
    (
        &[Call::Switch],
        Errno::IO,
        "the IOMMU could not be attached to the domain; try again, and reboot if that does not help",
    ),
    (
        &[Call::Switch],
        Errno::TIMEDOUT,
        "the IOMMU did not answer; try again, and reboot if that does not help",
    ),
    (
        &[Call::Reset],
        Errno::IO,
        "the reset line did not work, and every job fails until a reset succeeds: try again, and reboot if \
         that does not help",
    ),
    (
        &[Call::Reset],
        Errno::INVAL,
        "the driver refuses to reset the NPU: it was built or loaded without that (bypass_soft_reset)",
    ),
    (&[Call::Create], Errno::INVAL, NO_SWITCH),
    (
        &[Call::Create],
        Errno::NOMEM,
        "the system has no memory left for it; free some (MemAvailable in /proc/meminfo), or use a smaller \
         budget",
    ),
    (
        &[Call::Create],
        Errno::NOSPC,
        "the process has used up its handles; use fewer and larger buffers",
    ),
    (
        &[Call::Map],
        Errno::NOENT,
        "the driver no longer knows the buffer: the clean-up before the end of the process has given it back",
    ),
    (
        &[Call::Map],
        Errno::ACCESS,
        "the buffer's handle was given back: the clean-up before the end of the process has run",
    ),
    (
        &[Call::Map],
        Errno::INVAL,
        "the driver does not map this buffer: memory of another driver is mapped through its own descriptor",
    ),
    (
        &[Call::Map],
        Errno::NOSPC,
        "the driver has no offset left to map it by; use fewer and larger buffers",
    ),
    (
        &[Call::Map],
        Errno::NOMEM,
        "the process has too many mappings (vm.max_map_count), or too little address space (ulimit -v); use \
         fewer and larger buffers",
    ),
    (
        &[Call::Map],
        Errno::AGAIN,
        "the process may lock no more memory; raise the limit (ulimit -l)",
    ),
    (
        &[Call::Map],
        Errno::NXIO,
        "the driver made the buffer in a way that it cannot map; update the driver",
    ),
    (
        &[Call::Map],
        Errno::OVERFLOW,
        "the buffer is larger than this machine's address space; use smaller ones",
    ),
    (
        &[Call::Unmap],
        Errno::INVAL,
        "the range is not a mapping of this process: something else unmapped it",
    ),
    (
        &[Call::Unmap],
        Errno::NOMEM,
        "the process has too many mappings (vm.max_map_count); use fewer and larger buffers",
    ),
    (&[Call::Map], Errno::BUSY, "the buffer is mapped already; a buffer has one mapping"),
    (
        &[Call::Unmap, Call::Destroy],
        Errno::BUSY,
        "a job, or a part of the buffer, still holds it; let that go first",
    ),
    (
        &[Call::Destroy],
        Errno::INVAL,
        "three times the driver waited 6 s for its current domain to come free, and keeps the buffer: another \
         program works in it that does not take this crate's lock (end it), or a job that timed out left the \
         driver's count of users wrong, and then only a reboot brings the memory back",
    ),
    (
        &[Call::Submit],
        Errno::INVAL,
        "the driver did not run it: its domain could not be switched to, another process reset the NPU, or the \
         last reset failed; try again, and reboot if that does not help",
    ),
    (
        &[Call::Submit],
        Errno::TIMEDOUT,
        "it did not end within the device's timeout, and the driver has reset the NPU; try again, and if that \
         does not help set a longer timeout (`OpenOptions::timeout`)",
    ),
    (
        &[Call::Submit],
        Errno::NOMEM,
        "the kernel has no memory for the job; free some and try again",
    ),
    (
        &[Call::Import],
        Errno::INVAL,
        "the descriptor is no dma-buf; take it from a dma-heap or a driver",
    ),
    (&[Call::Import], Errno::BADF, "the descriptor is not open"),
    (
        &[Call::Import],
        Errno::NOMEM,
        "there is no memory for it, or no room in domain 0; free buffers in domain 0, or copy it",
    ),
    (
        &[Call::Import],
        Errno::ACCESS,
        "the descriptor may not be written; export it for reading and writing",
    ),
    (
        &[
            Call::Action,
            Call::Reset,
            Call::Switch,
            Call::Create,
            Call::Map,
            Call::Sync,
            Call::Destroy,
            Call::Submit,
            Call::Import,
        ],
        Errno::NOTTY,
        "the node is not one of the rknpu driver",
    ),
];

/// Answers that every call can give.
const ANY_CALL: &[(Errno, &str)] = &[
    (
        Errno::SHUTDOWN,
        "the clean-up before the end of the process has run; nothing works with the device now",
    ),
    (Errno::XDEV, "the buffer belongs to another driver; give it to that one"),
    (Errno::INTR, "signals interrupted it a hundred times in a row; block them on this thread"),
    (Errno::FAULT, "the kernel could not read or write this process's memory"),
    (Errno::NODEV, "the device is gone: its driver was unloaded or unbound; open it again"),
    (Errno::MFILE, "the process has as many files open as it may; raise the limit (ulimit -n)"),
    (Errno::NFILE, "the system has as many files open as it may; raise the limit (fs.file-max)"),
    (Errno::ACCESS, "the node does not allow it; join the group that owns it (video or render)"),
    (Errno::NOMEM, "the system has no memory left for it; free some and try again"),
];

/// What opening a node can meet besides a missing node and missing rights.
const OPENING: &[(Errno, &str)] = &[
    (Errno::MFILE, "the process has as many files open as it may; raise the limit (ulimit -n)"),
    (Errno::NFILE, "the system has as many files open as it may; raise the limit (fs.file-max)"),
    (Errno::NODEV, "no driver stands behind it; load the rknpu driver"),
    (Errno::NXIO, "no driver stands behind it; load the rknpu driver"),
    (Errno::ISDIR, "it is a folder; name a node, or let `Device::open` find it"),
    (Errno::NOTDIR, "a part of the path is no folder; name a node, or let `Device::open` find it"),
    (Errno::LOOP, "its links lead in a circle; name a node, or let `Device::open` find it"),
    (Errno::BUSY, "something has it for itself alone; end that"),
    (Errno::NOLCK, "the kernel has no memory for a lock; free some and try again"),
    (Errno::ROFS, "the file system does not allow it; use the node in /dev"),
];

/// What a call's failure means.
pub(crate) fn of(call: Call, errno: Errno) -> &'static str {
    let own = CAUSES.iter().find(|(calls, answer, _)| *answer == errno && calls.contains(&call));
    let any = || ANY_CALL.iter().find(|(answer, _)| *answer == errno).map(|(_, cause)| *cause);
    own.map(|(.., cause)| *cause).or_else(any).unwrap_or("the driver is not known to answer this")
}

/// Why a node could not be opened.
pub(super) fn of_open(errno: Errno) -> &'static str {
    let known = OPENING.iter().find(|(answer, _)| *answer == errno);
    known.map_or("the system refused it", |(_, cause)| cause)
}

/// Why a domain has no room: by this process's account, or by the driver's alone.
pub(super) fn of_exhaustion(
    requested: u64,
    used: u64,
    capacity: u64,
    largest_free: u64,
    aligned: bool,
) -> String {
    if requested > largest_free {
        return format!(
            "{used} of {capacity} are in use and the largest gap is {largest_free}; free a buffer, or use \
             another domain"
        );
    }
    let place = requested.checked_next_power_of_two().unwrap_or(u64::MAX);
    if aligned && place > largest_free / 2 {
        return format!(
            "this driver gives it only an address that is a multiple of {place}, and none is free; free a \
             buffer, use smaller ones, or a driver of at least 0.9.7"
        );
    }
    format!(
        "this process has only {used} of {capacity} in use there, so other processes have the rest, or \
         processes that were killed have left it taken, until a reboot; use another domain"
    )
}

/// The failure of a call that wanted `bytes` of memory and was told that there is none: the driver's, or that
/// of the open files which a simulated buffer takes, and an imported one.
pub(crate) fn no_memory(call: Call, domain: u32, bytes: u64, errno: Errno) -> Error {
    match files_are_used_up() {
        Some((open, limit)) => Error::OpenFiles { call, bytes, open, limit, errno },
        None => Error::Driver { call, domain, bytes, errno },
    }
}

/// Open files and their limit, when no more can be opened.
fn files_are_used_up() -> Option<(u64, u64)> {
    let one_more = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let Err(Errno::MFILE) = one_more else { return None };
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // /proc cannot be listed without another descriptor; all that may be open are.
    Some((limit, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentence_is_found_by_its_call_and_answer() {
        for (calls, errno, sentence) in CAUSES {
            for call in *calls {
                assert_eq!(of(*call, *errno), *sentence, "{call} {errno}");
                let error = Error::Driver { call: *call, domain: 3, bytes: 4096, errno: *errno };
                let text = error.to_string();
                assert!(text.contains(sentence) && text.contains("4096"), "{text}");
                assert!(text.contains(&call.to_string()) && text.contains("domain 3"), "{text}");
            }
        }
        for (errno, sentence) in ANY_CALL {
            assert!(of(Call::Sync, *errno) == *sentence, "{errno}");
        }
        assert!(of(Call::Sync, Errno::DOM).contains("not known"));
        for (errno, sentence) in OPENING {
            assert_eq!(of_open(*errno), *sentence);
        }
    }

    #[test]
    fn what_has_no_room_says_why() {
        let (page, capacity) = (4096, (1u64 << 32) - 4096);
        let full = of_exhaustion(2 * page, capacity - page, capacity, page, false);
        assert!(full.contains("largest gap is 4096") && full.contains("free a buffer"), "{full}");
        // The driver refuses what this process's account has room for.
        let others = of_exhaustion(2 * page, 346_112, capacity, 4_294_946_816, false);
        assert!(others.contains("other processes") && others.contains("reboot"), "{others}");
        assert!(!others.contains("largest gap"), "{others}");
        // 1280 MiB lie at a multiple of 2 GiB.
        let aligned =
            of_exhaustion(1280 << 20, 1280 << 20, capacity, capacity - (1280 << 20), true);
        assert!(aligned.contains("multiple of 2147483648"), "{aligned}");
        let small = of_exhaustion(page, page, capacity, capacity - page, true);
        assert!(small.contains("other processes"), "{small}");
    }
}
