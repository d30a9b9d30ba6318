//! What the kernel answers about the driver's mappings: it follows from how the driver maps.

use rustix::io::Errno;

/// Bytes that the recorder reads and writes at once.
const PAGE: i64 = 4096;
/// What a process gets that reads where nothing is mapped.
pub(crate) const SIGSEGV: u64 = 11;

/// The driver's mappings as memory management sees them, observed on the vendor driver.
struct Vma {
    /// VM_IO: no pages can be taken from it, and it cannot be made to follow a fork.
    io: bool,
    /// VM_DONTEXPAND: it may move, not grow.
    dont_expand: bool,
    /// VM_DONTCOPY: a child does not have it.
    dont_copy: bool,
    /// The file can be synced.
    fsync: bool,
}

const DRIVERS: Vma = Vma { io: true, dont_expand: true, dont_copy: true, fsync: false };

/// What a call on a mapping returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) ret: i64,
    pub(crate) result: Result<(), Errno>,
}

const fn done(ret: i64) -> Answer {
    Answer { ret, result: Ok(()) }
}

const fn refused_if(refused: bool, errno: Errno) -> Answer {
    if refused { Answer { ret: -1, result: Err(errno) } } else { done(0) }
}

/// Whether a child process finds its parent's mappings.
pub(crate) fn survives_fork() -> bool {
    !DRIVERS.dont_copy
}

/// The answer to the call that an observation's name speaks of; none for other names.
pub(crate) fn answer(name: &str) -> Option<Answer> {
    const ANSWERS: [(&str, Answer); 11] = [
        ("mremap_grow", refused_if(DRIVERS.dont_expand, Errno::FAULT)),
        ("mremap_move", done(0)),
        ("process_vm", refused_if(DRIVERS.io, Errno::FAULT)),
        ("dofork", refused_if(DRIVERS.io, Errno::INVAL)),
        ("dontneed", done(0)),
        ("mlock", done(0)),
        ("mprotect", done(0)),
        ("msync", refused_if(!DRIVERS.fsync, Errno::INVAL)),
        // The kernel copies through the page table, which needs nothing of the mapping.
        ("from_buf", done(PAGE)),
        ("into_buf", done(PAGE)),
        ("dontfork", done(0)),
    ];
    ANSWERS.iter().find(|(part, _)| name.contains(part)).map(|(_, answer)| *answer)
}
