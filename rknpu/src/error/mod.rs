//! What can go wrong: the operation, its numbers and the way out.

mod causes;
#[cfg(test)]
mod tests;
mod way_in;

use std::path::PathBuf;
use std::time::Duration;

use rknpu_sys::layout::{LayoutError, Precision};
use rustix::io::Errno;

use crate::capabilities::Domains;
use crate::driver::DriverVersion;
use crate::health::PostMortem;
use crate::lock::LockHolder;
use crate::program::ProgramError;

pub(crate) use causes::{no_memory, of as meaning};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A call to the driver, as errors name it.
///
/// ```
/// assert_eq!(rknpu::error::Call::Create.to_string(), "MEM_CREATE");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// `ACTION`: a question.
    Action,
    /// `ACTION` that resets the NPU.
    Reset,
    /// `ACTION` that switches to another domain.
    Switch,
    /// `MEM_CREATE`.
    Create,
    /// `MEM_MAP` and `mmap`.
    Map,
    /// `munmap`.
    Unmap,
    /// `MEM_SYNC`.
    Sync,
    /// `MEM_DESTROY`.
    Destroy,
    /// `SUBMIT`.
    Submit,
    /// `PRIME_FD_TO_HANDLE`, or a call to the dma-heap.
    Import,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Call::Action => "ACTION",
            Call::Reset => "ACTION(reset)",
            Call::Switch => "ACTION(switch domain)",
            Call::Create => "MEM_CREATE",
            Call::Map => "MEM_MAP/mmap",
            Call::Unmap => "munmap",
            Call::Sync => "MEM_SYNC",
            Call::Destroy => "MEM_DESTROY",
            Call::Submit => "SUBMIT",
            Call::Import => "import",
        })
    }
}

/// What a node answered when it was tried.
///
/// ```
/// use rknpu::error::{Error, NodeAnswer};
///
/// let answer = NodeAnswer { path: "/dev/dri/card0".into(), answer: "panthor".into() };
/// let error = Error::NoDevice { tried: vec![answer] };
/// assert!(error.to_string().contains("/dev/dri/card0: panthor"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswer {
    /// The node.
    pub path: PathBuf,
    /// Its answer: a driver's name, or why it could not be asked.
    pub answer: String,
}

/// An operation that did not succeed.
///
/// ```
/// use rknpu::{Device, Error};
///
/// let device = Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
/// let weights: Vec<_> = (0..3).map(|_| domain.alloc(1 << 30)).collect::<Result<_, _>>()?;
/// match domain.alloc(2 << 30) {
///     Err(Error::IovaExhausted { requested, largest_free, .. }) => {
///         assert!(requested > largest_free); // another domain, or smaller pieces
///     }
///     other => panic!("{other:?}"),
/// }
/// # drop(weights);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No node belongs to the driver.
    #[error(
        "no NPU: no DRM node belongs to the drivers rknpu or rocket ({}); {}",
        list(tried),
        way_in::to_a_driver()
    )]
    NoDevice {
        /// Every node that was tried.
        tried: Vec<NodeAnswer>,
    },
    /// The node belongs to another driver.
    #[error("{} belongs to the driver {driver:?}, not to rknpu or rocket; `Device::open` finds the right node", path.display())]
    OtherDriver {
        /// The node.
        path: PathBuf,
        /// What stands behind it.
        driver: String,
    },
    /// The node does not exist.
    #[error("{} does not exist; {}", path.display(), way_in::to_a_node(path))]
    NoNode {
        /// The node.
        path: PathBuf,
    },
    /// The node may not be opened.
    #[error("{} may not be opened: permission denied; {}", path.display(), way_in::to_permission(path))]
    Permission {
        /// The node.
        path: PathBuf,
    },
    /// The node could not be opened for another reason.
    #[error("{} cannot be opened: {}", path.display(), causes::of_open(*errno))]
    Open {
        /// The node.
        path: PathBuf,
        /// Why.
        #[source]
        errno: Errno,
    },
    /// Another process owns the NPU.
    #[error(
        "{} is in use by {}; two processes can wedge the NPU until a reboot: wait for it to end, or \
         open with `LockPolicy::Ignore` and a reason",
        path.display(),
        holder.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string)
    )]
    Locked {
        /// The node that was to be opened.
        path: PathBuf,
        /// Who holds the lock, where the system says so.
        holder: Option<LockHolder>,
    },
    /// The driver cannot do this.
    #[error("{feature} needs {needs}; this driver is {has}")]
    Unsupported {
        /// What was asked for.
        feature: &'static str,
        /// What it takes.
        needs: &'static str,
        /// What there is.
        has: DriverVersion,
    },
    /// The driver does not switch domains any more.
    #[error(
        "the driver of {node} no longer switches domains: from {from} to {to} it gave up: {}",
        causes::of(Call::Switch, *errno)
    )]
    DomainsStuck {
        /// Where the device is.
        node: String,
        /// Domain that the driver is in.
        from: u32,
        /// Domain that it was to switch to.
        to: u32,
        /// Its answer.
        #[source]
        errno: Errno,
    },
    /// No such domain.
    #[error("there is no domain {index}: {domains}")]
    NoDomain {
        /// Domain asked for.
        index: u32,
        /// Those that the device has.
        domains: Domains,
    },
    /// The domain is leased already.
    #[error("domain {index} is leased already; clone that `Domain`, or drop it first")]
    DomainLeased {
        /// Domain asked for.
        index: u32,
    },
    /// Every domain is leased.
    #[error("no domain is left to lease: {domains}; drop a lease, or put more into each domain")]
    DomainsExhausted {
        /// Those that the device has.
        domains: Domains,
    },
    /// This thread already keeps another domain active.
    #[error(
        "domain {wanted} cannot be entered: this thread keeps domain {active} active, and the device \
         works in one at a time; drop that guard first"
    )]
    DomainBusy {
        /// Domain that the thread holds.
        active: u32,
        /// Domain it asked for.
        wanted: u32,
    },
    /// No such core.
    #[error("there is no core {core}: this device has {cores}, numbered from 0")]
    NoCore {
        /// Core asked for.
        core: u32,
        /// Cores that there are.
        cores: u32,
    },
    /// The core is leased already.
    #[error(
        "core {core} is leased already: one job at a time runs on a core; drop it first, or share all"
    )]
    CoreLeased {
        /// Core asked for.
        core: u32,
    },
    /// The core takes no more jobs.
    #[error(
        "core {core} takes no more jobs: an interrupt came on it that belonged to none, and the driver may \
         free the next one too early; use another core, and reboot the board when convenient"
    )]
    CoreLost {
        /// Core.
        core: u32,
    },
    /// A size that no buffer can have.
    #[error(
        "a buffer of {requested} bytes is not possible: it has 1 to {limit}; cut larger ones in pieces"
    )]
    Size {
        /// Bytes asked for.
        requested: u64,
        /// Most that a domain can map.
        limit: u64,
    },
    /// The domain's address space is used up.
    #[error(
        "domain {domain} has no room for {requested} bytes: {}",
        causes::of_exhaustion(*requested, *used, *capacity, *largest_free, *aligned)
    )]
    IovaExhausted {
        /// Domain.
        domain: u32,
        /// Bytes asked for, in whole pages.
        requested: u64,
        /// Bytes that this process has mapped in it.
        used: u64,
        /// Bytes that can be mapped in it.
        capacity: u64,
        /// Largest run of addresses that is free by this process's books.
        largest_free: u64,
        /// Whether the driver gives a buffer only addresses that are multiples of the next power of two.
        aligned: bool,
        /// The driver's answer; absent when the books alone said no.
        errno: Option<Errno>,
    },
    /// No contiguous memory is left, which buffers are made of where there is no IOMMU.
    #[error(
        "no {requested} contiguous bytes are left, and without an IOMMU a buffer is contiguous; free one, \
         give the kernel more of it (cma=), or enable the NPU's IOMMU in the device tree"
    )]
    NoContiguousMemory {
        /// Bytes asked for, in whole pages.
        requested: u64,
        /// The driver's answer.
        #[source]
        errno: Errno,
    },
    /// An arena has no run of bytes that long.
    #[error(
        "the arena has no {requested} bytes in one piece: {free} of {capacity} are free, at most {largest} together; free some, or make a larger arena"
    )]
    ArenaFull {
        /// Bytes asked for, in whole pages.
        requested: u64,
        /// Free bytes.
        free: u64,
        /// Bytes of the arena.
        capacity: u64,
        /// Longest free run.
        largest: u64,
    },
    /// The driver refused a call.
    #[error("{call}{} in domain {domain} failed: {}", of_bytes(*bytes), causes::of(*call, *errno))]
    Driver {
        /// The call.
        call: Call,
        /// Domain concerned.
        domain: u32,
        /// Bytes concerned; 0 where none are.
        bytes: u64,
        /// Its answer.
        #[source]
        errno: Errno,
    },
    /// The process has as many files open as it may.
    #[error(
        "{call} of {bytes} bytes failed: the process has {open} of {limit} files open; raise the limit \
         (ulimit -n), or use fewer and larger buffers"
    )]
    OpenFiles {
        /// The call.
        call: Call,
        /// Bytes concerned.
        bytes: u64,
        /// Files that it has open.
        open: u64,
        /// Files that it may have open.
        limit: u64,
        /// The driver's answer.
        #[source]
        errno: Errno,
    },
    /// A range outside a buffer.
    #[error(
        "{len} bytes from {offset} on do not lie in a buffer of {size}: end the range there, or earlier"
    )]
    Range {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes that there are.
        size: u64,
    },
    /// K or N does not tile.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A shape beyond what a matmul was made for, or the NPU can do.
    #[error("{what} = {value} is not possible here; the limit is {limit}")]
    Shape {
        /// The dimension: M, K, N, or a row's number.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The nearest that is possible.
        limit: u64,
    },
    /// A slice of the wrong length.
    #[error("{what} has {got} elements; M={m} of K={k} and N={n} needs {want}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Elements given.
        got: usize,
        /// Elements needed.
        want: usize,
        /// Rows.
        m: u64,
        /// Inputs.
        k: u32,
        /// Outputs.
        n: u32,
    },
    /// Weights of one precision for a matmul of another.
    #[error(
        "weights are {weights:?} but the matmul was made for {matmul:?}; make one for {weights:?}"
    )]
    Precision {
        /// The weights'.
        weights: Precision,
        /// The matmul's.
        matmul: Precision,
    },
    /// An activation outside -8..=7 for int4.
    #[error(
        "activation {value} at row {row}, column {column} does not fit into 4 bits: scale to -8..=7"
    )]
    Int4Range {
        /// The value.
        value: i8,
        /// Row.
        row: usize,
        /// Column.
        column: usize,
    },
    /// The memory for a matmul's activations is leased already.
    #[error(
        "the matmul's activations are leased already: it reads them at one address, always; drop those rows first"
    )]
    ActivationsLeased,
    /// Rows of another matmul's memory.
    #[error(
        "the rows were leased from another matmul, and each reads its own, at one address, always: lease them from this one"
    )]
    ForeignActivations,
    /// Buffers of different domains, or of different devices, in one job.
    #[error(
        "a job runs in one domain: {what} is in domain {got}, the job in domain {want}; allocate it there"
    )]
    ForeignDomain {
        /// Which buffer.
        what: &'static str,
        /// Its domain.
        got: u32,
        /// The job's.
        want: u32,
    },
    /// Foreign memory for another domain than 0.
    #[error(
        "memory of another driver cannot be imported into domain {domain}: the driver frees it in \
         domain 0, whatever domain it was mapped in; import it there, or copy it"
    )]
    ImportDomain {
        /// Domain asked for.
        domain: u32,
    },
    /// Memory that has been imported already, also through another descriptor.
    #[error(
        "this memory has been imported already: the driver knows it once, and would take it from under both; \
         share that buffer"
    )]
    ImportedAlready,
    /// A descriptor that is no dma-buf.
    #[error(
        "the descriptor is no dma-buf of {len} bytes, but {size} bytes of a file system of type {kind:#x}{}; \
         allocate from a dma-heap, or seal a memory file against shrinking",
        if *sealed { "" } else { " that can be cut while it is mapped" }
    )]
    NotDmaBuf {
        /// Type of its file system.
        kind: u64,
        /// Whether it is sealed against shrinking.
        sealed: bool,
        /// Its bytes.
        size: u64,
        /// Bytes that were to be mapped.
        len: u64,
    },
    /// A register program that must not reach the NPU.
    #[error("the register program was refused: {0}")]
    Program(#[from] ProgramError),
    /// A timeout that the driver would misread.
    #[error("a timeout of {0:?} is not possible: the driver takes 1 ms to 2147483647 ms")]
    Timeout(Duration),
    /// A job did not run to its end, however often it was tried. What became of the NPU stands in its
    /// [`recovery`](PostMortem::recovery); unless that was a reset, it is wedged.
    #[error("the job failed{}: {_0}", repeated(_0))]
    JobFailed(Box<PostMortem>),
    /// The NPU no longer answers.
    #[error(
        "the NPU is wedged and takes no more work: {0}; its buffers are kept until the process ends. Reboot the board if a new process meets the same"
    )]
    Wedged(Box<PostMortem>),
    /// Something outside the driver failed.
    #[error("{what}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A probe's data came back changed.
    #[error(
        "{what}: byte {at} is {got:#04x}, {want:#04x} was written; memory or cache maintenance fails, so results will be wrong"
    )]
    Mismatch {
        /// Where.
        what: &'static str,
        /// First byte that differs.
        at: u64,
        /// Found.
        got: u8,
        /// Wanted.
        want: u8,
    },
}

impl Error {
    /// Whether memory or address space ran out: freeing some and asking again may work.
    ///
    /// ```
    /// use rknpu::{Device, Error};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let domain = device.domain(0)?;
    /// let all = domain.alloc(2 << 30)?;
    /// let error = domain.alloc(3 << 30).unwrap_err();
    /// assert!(error.is_out_of_memory());
    /// drop(all);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Error::IovaExhausted { .. }
                | Error::ArenaFull { .. }
                | Error::NoContiguousMemory { .. }
                | Error::OpenFiles { .. }
                | Error::Driver { errno: Errno::NOMEM, .. }
        )
    }

    /// The driver's errno, where one was the cause.
    ///
    /// ```
    /// use rknpu::sim::{CallKind, Fault, Machine};
    /// use rknpu::{Device, Errno};
    ///
    /// let machine = Machine::new(Default::default());
    /// let device = Device::simulated_on(&machine)?;
    /// let (kind, errno) = (CallKind::MemCreate, Errno::NOMEM);
    /// machine.inject(Fault::Call { kind, after: 0, times: 1, errno });
    /// let error = device.domain(0)?.alloc(4096).unwrap_err();
    /// assert_eq!(error.errno(), Some(Errno::NOMEM));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Driver { errno, .. }
            | Error::Open { errno, .. }
            | Error::NoContiguousMemory { errno, .. }
            | Error::OpenFiles { errno, .. }
            | Error::DomainsStuck { errno, .. } => Some(*errno),
            Error::IovaExhausted { errno, .. } => *errno,
            Error::JobFailed(report) | Error::Wedged(report) => report.errno,
            _ => None,
        }
    }
}

fn repeated(report: &PostMortem) -> &'static str {
    if report.attempts > 1 { ", and so did its repetition after a reset" } else { "" }
}

fn list(tried: &[NodeAnswer]) -> String {
    if tried.is_empty() {
        return "there are no DRM nodes".to_owned();
    }
    let answers: Vec<String> =
        tried.iter().map(|n| format!("{}: {}", n.path.display(), n.answer)).collect();
    answers.join("; ")
}

/// ` of N bytes`, where there are any.
fn of_bytes(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(" of {bytes} bytes") }
}
