//! What the library keeps for its process, and what the calls that reach it do.
//!
//! Nothing here is unsafe but what callers promise in turn to `File::ioctl`; the C side is in `hooks`.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use rknpu_sim::config::Mode;
use rknpu_sim::{File, Machine, Node, Reservation};
use rustix::fd::{AsFd, IntoRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

use crate::exit;
use crate::listing::Listings;
use crate::nodes::Place;
use crate::ranges::Ranges;
use crate::settings::Settings;
use crate::table::Table;

/// What is behind a simulated descriptor.
#[derive(Debug)]
pub(crate) enum Behind {
    /// An open device node.
    Device { file: File, place: Place },
    /// An open dma-heap.
    Heap,
    /// A dma-buf or fence that the machine knows by its number.
    Descriptor,
}

/// The one instance of a process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) settings: Settings,
    pub(crate) table: Table<Behind>,
    /// Mapped buffers; a dma-buf's mapping holds nothing of the driver's.
    pub(crate) ranges: Ranges<Option<Reservation>>,
    /// Pages of them that the program has dropped (MADV_DONTNEED).
    pub(crate) dropped: Ranges<()>,
    pub(crate) listings: Listings,
    machine: OnceLock<Machine>,
    /// The process that used the device last: a child of fork, or of vfork, which shares this memory, is
    /// another. 0 for none.
    user: AtomicU32,
    reported: AtomicBool,
    /// Whether the program was told what strict mode does not show of NONBLOCK jobs.
    told: AtomicBool,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// The process's instance; `None` before the library has been set up.
pub(crate) fn process() -> Option<&'static Process> {
    PROCESS.get()
}

/// Sets the library up, once.
pub(crate) fn install(settings: Settings) {
    let (table, ranges, dropped) = (Table::new(), Ranges::new(), Ranges::new());
    let listings = Listings::default();
    let machine = OnceLock::new();
    let (user, reported, told) =
        (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let process =
        Process { settings, table, ranges, dropped, listings, machine, user, reported, told };
    // A second set-up would change nothing, and there is none.
    let _ = PROCESS.set(process);
}

impl Process {
    /// The machine, booted when it is first used.
    pub(crate) fn machine(&self) -> &Machine {
        self.user.store(std::process::id(), Ordering::Relaxed);
        self.machine.get_or_init(|| {
            let machine = Machine::new(self.settings.config.clone());
            for fault in &self.settings.faults {
                machine.inject(*fault);
            }
            machine
        })
    }

    /// Makes the report of this process if it has used the device, once; and the exit status that the
    /// settings ask for.
    pub(crate) fn report(&self) -> Option<u8> {
        let ours = self.user.load(Ordering::Relaxed) == std::process::id();
        let machine = self.machine.get().filter(|_| ours)?;
        if self.reported.swap(true, Ordering::Relaxed) {
            return None;
        }
        exit::report(&self.settings, &machine.report())
    }

    /// After a fork, in the child: the report so far was the parent's.
    pub(crate) fn forked(&self) {
        self.reported.store(false, Ordering::Relaxed);
    }

    /// The process goes on, after it seemed to be at its end.
    pub(crate) fn goes_on(&self) {
        self.reported.store(false, Ordering::Relaxed);
    }

    /// Says once what strict mode does not show of a NONBLOCK job.
    pub(crate) fn tell_of_polling(&self) {
        let strict = self.settings.config.mode == Mode::Strict;
        if strict && !self.told.swap(true, Ordering::Relaxed) {
            eprintln!(
                "rknpu-sim: note: a NONBLOCK job in strict mode: its results are seen after MEM_SYNC \
                 FROM_DEVICE only; cache maintenance by instructions (dc civac, dc cvac) is not \
                 simulated, so that a program which polls for results with it has to run in fast mode"
            );
        }
    }

    /// `open(2)` of a simulated place.
    pub(crate) fn open(&self, place: Place, flags: c_int) -> Result<c_int, Errno> {
        if flags & libc::O_DIRECTORY != 0 {
            return Err(Errno::NOTDIR);
        }
        let cloexec = flags & libc::O_CLOEXEC != 0;
        let behind = match place {
            Place::Accel => Behind::Device { file: self.device(Node::Accel), place },
            Place::Card => Behind::Device { file: self.device(Node::Card), place },
            Place::Render => Behind::Device { file: self.device(Node::Render), place },
            Place::Heap => Behind::Heap,
            Place::Directory => return Err(Errno::ISDIR),
            Place::Text(text) => {
                let busy = self.machine.get().is_some_and(|m| m.report().jobs_pending > 0);
                let contents = text.contents(&self.settings.config, busy);
                return Ok(stand_in("rknpu-sim-text", contents.as_bytes(), cloexec)?.into_raw_fd());
            }
        };
        let node = stand_in("rknpu-sim-node", &[], cloexec)?;
        // Who maps it past this library is refused at once, and not stopped by a signal later.
        fcntl_add_seals(&node, SealFlags::WRITE)?;
        self.book(node, behind)
    }

    fn device(&self, node: Node) -> File {
        self.machine().open_as(node, rustix::process::geteuid().is_root())
    }

    /// Gives a descriptor to the program, with what is behind it.
    fn book(&self, fd: OwnedFd, behind: Behind) -> Result<c_int, Errno> {
        let fd = fd.into_raw_fd();
        match self.table.add(fd, Arc::new(behind)) {
            Ok(()) => Ok(fd),
            Err(fd) => {
                crate::hooks::close_for_good(fd);
                Err(Errno::MFILE)
            }
        }
    }

    /// DMA_HEAP_IOCTL_ALLOC: the dma-buf's descriptor.
    pub(crate) fn allocate(&self, len: u64, fd_flags: u32) -> Result<c_int, Errno> {
        let known = (libc::O_ACCMODE | libc::O_CLOEXEC) as u32;
        if fd_flags & !known != 0 {
            return Err(Errno::INVAL);
        }
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        let fd = self.machine().foreign_buffer(len)?;
        if fd_flags & libc::O_CLOEXEC as u32 == 0 {
            fcntl_setfd(fd.as_fd(), FdFlags::empty())?;
        }
        self.book(fd, Behind::Descriptor)
    }

    /// Books a descriptor that the machine has given out itself.
    pub(crate) fn given_out(&self, fd: c_int) {
        // One that is too large to be booked works but for what the table is needed for.
        let _ = self.table.add(fd, Arc::new(Behind::Descriptor));
    }

    /// The program is about to close `fd`.
    pub(crate) fn closing(&self, fd: c_int) {
        let Some(behind) = self.table.remove(fd) else { return };
        if matches!(*behind, Behind::Descriptor) {
            self.machine().descriptor_closed(fd);
        }
    }

    /// `to` is now a duplicate of `from`.
    pub(crate) fn duplicated(&self, from: c_int, to: c_int) {
        let Some(behind) = self.table.get(from) else { return };
        if matches!(*behind, Behind::Descriptor) {
            self.machine().descriptor_duplicated(from, to);
        }
        if self.table.add(to, behind).is_err() {
            eprintln!(
                "rknpu-sim: descriptor {to}, a duplicate of {from}, is beyond {}: it will not be \
                 simulated",
                crate::table::LIMIT
            );
        }
    }

    /// Forgets mappings; the caller drops what is returned outside any lock.
    pub(crate) fn unmapped(&self, start: usize, len: usize) -> Vec<Arc<Option<Reservation>>> {
        self.dropped.remove(start, len);
        self.ranges.remove(start, len)
    }

    /// Hazards met so far, each time counted.
    pub(crate) fn hazards(&self) -> u64 {
        self.machine.get().map_or(0, |m| m.report().hazards.iter().map(|met| met.times).sum())
    }
}

/// A real file to stand behind a simulated one, holding `contents`, at its start.
fn stand_in(name: &str, contents: &[u8], cloexec: bool) -> Result<OwnedFd, Errno> {
    let flags = if cloexec { MemfdFlags::CLOEXEC } else { MemfdFlags::empty() };
    let fd = memfd_create(name, flags | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = contents;
    let mut at = 0;
    while !rest.is_empty() {
        let written = rustix::io::pwrite(&fd, rest, at)?;
        at += written as u64;
        rest = rest.get(written..).unwrap_or(&[]);
    }
    Ok(fd)
}
