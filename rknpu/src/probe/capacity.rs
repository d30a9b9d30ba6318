//! How much a domain maps.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::allocation::{Allocation, Request, pages};
use crate::domain::{Domain, PAGE};
use crate::error::{Call, Error, Result};
use crate::limits;
use crate::probe::available_memory;

/// What ended a probe of a domain's capacity.
///
/// ```
/// use rknpu::probe::Bound;
///
/// let bound = Bound::Memory { available: Some(400 << 20), keep: 512 << 20 };
/// assert!(bound.to_string().contains("419430400 bytes"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bound {
    /// The domain's addresses: the driver had none left.
    Domain {
        /// Its answer.
        errno: Errno,
    },
    /// The system's memory, of which some is to be kept.
    Memory {
        /// Bytes that could be had then, where the system says so.
        available: Option<u64>,
        /// Bytes to keep.
        keep: u64,
    },
    /// The files that the process may have open.
    OpenFiles {
        /// Their limit.
        limit: u64,
    },
    /// The mappings that the process may have.
    Mappings,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Domain { errno } => {
                write!(f, "the domain (errno {})", errno.raw_os_error())
            }
            Bound::Memory { available: Some(available), keep } => {
                write!(f, "memory: {available} bytes were left, and {keep} are to be kept")
            }
            Bound::Memory { available: None, .. } => {
                f.write_str("memory: the kernel had none left")
            }
            Bound::OpenFiles { limit } => write!(f, "open files: {limit} are allowed (ulimit -n)"),
            Bound::Mappings => f.write_str("mappings of this process (vm.max_map_count)"),
        }
    }
}

/// What [`capacity`] found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CapacityReport {
    /// Domain.
    pub domain: u32,
    /// Bytes of each buffer at first.
    pub chunk: u64,
    /// Whether buffers were mapped for the CPU and touched.
    pub mapped: bool,
    /// Buffers of that size that fitted.
    pub buffers: u64,
    /// What the next one met.
    pub bound: Bound,
    /// Bytes that the domain maps, found by filling the rest with ever smaller buffers down to a page; absent
    /// when something else ended that.
    pub capacity: Option<u64>,
    /// Lowest address given.
    pub lowest: u64,
    /// Highest address given, of a buffer's first byte.
    pub highest: u64,
    /// Time until the first refusal.
    pub time: Duration,
}

impl CapacityReport {
    /// Bytes in buffers of the first size.
    pub fn chunks(&self) -> u64 {
        self.buffers * self.chunk
    }
}

impl fmt::Display for CapacityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "domain {:>2}, {}: {} x {} bytes = {:.2} GB, ended by {}; ",
            self.domain,
            if self.mapped { "mapped" } else { "created only" },
            self.buffers,
            self.chunk,
            self.chunks() as f64 / 1e9,
            self.bound,
        )?;
        match self.capacity {
            Some(limits::DOMAIN) => write!(f, "it maps {} bytes = 4 GiB - 4 KiB", limits::DOMAIN),
            Some(bytes) => write!(f, "it maps {bytes} bytes"),
            None => f.write_str("how much the domain maps is not known"),
        }
    }
}

/// Allocates buffers of `chunk` bytes until one is refused, then smaller ones until nothing fits; `map` also
/// maps each for the CPU and touches its first byte. `keep` bytes of the system's memory are left to others.
///
/// Takes memory for all of it: 4 GiB on a board. The account that refuses early is left aside: the answer is the
/// driver's.
///
/// # Errors
/// [`Error::Size`] for an impossible chunk; a failure other than refusing an allocation.
///
/// ```
/// use rknpu::{Device, Errno, probe};
///
/// let device = Device::simulated(Default::default())?;
/// let report = probe::capacity(&device.domain(0)?, 64 << 20, false, 0)?;
/// assert_eq!(report.buffers, 63);
/// assert_eq!(report.bound, probe::Bound::Domain { errno: Errno::FAULT });
/// assert_eq!(report.capacity, Some((4 << 30) - 4096));
/// # Ok::<(), rknpu::Error>(())
/// ```
pub fn capacity(domain: &Domain, chunk: u64, map: bool, keep: u64) -> Result<CapacityReport> {
    let begin = Instant::now();
    let mut all = Vec::new();
    let mut fill = |size: u64| -> Result<(u64, Bound)> {
        let mut fitted = 0;
        loop {
            let available = available_memory();
            if available.is_some_and(|available| available.saturating_sub(size) < keep) {
                return Ok((fitted, Bound::Memory { available, keep }));
            }
            match allocate(domain, size, map) {
                Ok(memory) => all.push(memory),
                Err(error) => return bound(error, keep).map(|bound| (fitted, bound)),
            }
            fitted += 1;
        }
    };
    let chunk = domain.size(&Request::new(chunk))?;
    let (buffers, first) = fill(chunk)?;
    let time = begin.elapsed();
    let (mut size, mut last) = (chunk, first);
    while size > PAGE && matches!(last, Bound::Domain { .. }) {
        size = pages(size / 2);
        last = fill(size)?.1;
    }
    let iovas = || all.iter().map(Allocation::iova);
    Ok(CapacityReport {
        domain: domain.index(),
        chunk,
        mapped: map,
        buffers,
        bound: first,
        capacity: matches!(last, Bound::Domain { .. })
            .then(|| all.iter().map(Allocation::size).sum()),
        lowest: iovas().min().unwrap_or(0),
        highest: iovas().max().unwrap_or(0),
        time,
    })
}

fn allocate(domain: &Domain, size: u64, map: bool) -> Result<Allocation> {
    let request = Request { map, books: false, ..Request::new(size) };
    let mut memory = Allocation::create(domain, &request)?;
    if let Some(byte) = memory.bytes_mut().first_mut() {
        *byte = 1;
    }
    Ok(memory)
}

/// What was used up when an allocation was refused; other failures are errors.
fn bound(error: Error, keep: u64) -> Result<Bound> {
    match error {
        Error::IovaExhausted { errno: Some(errno), .. } => Ok(Bound::Domain { errno }),
        Error::OpenFiles { limit, .. } => Ok(Bound::OpenFiles { limit }),
        Error::Driver { call: Call::Map, errno: Errno::NOMEM, .. } => Ok(Bound::Mappings),
        Error::NoContiguousMemory { .. } | Error::Driver { errno: Errno::NOMEM, .. } => {
            Ok(Bound::Memory { available: None, keep })
        }
        error => Err(error),
    }
}
