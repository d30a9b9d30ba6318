//! How much a domain maps.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::buffer::Memory;
use crate::domain::{Domain, PAGE, Request};
use crate::error::{Error, Result};
use crate::limits;

/// What [`window`] found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WindowReport {
    /// Domain.
    pub domain: u32,
    /// Bytes of each buffer at first.
    pub chunk: u64,
    /// Whether buffers were mapped for the CPU and touched.
    pub mapped: bool,
    /// Buffers of that size that fitted.
    pub buffers: u64,
    /// The driver's answer to the one that did not.
    pub errno: Errno,
    /// Bytes that fitted in all, after the rest was filled with ever smaller buffers down to a page.
    pub window: u64,
    /// Lowest address given.
    pub lowest: u64,
    /// Highest address given, of a buffer's first byte.
    pub highest: u64,
    /// Time until the first refusal.
    pub time: Duration,
}

impl WindowReport {
    /// Bytes in buffers of the first size.
    pub fn chunks(&self) -> u64 {
        self.buffers * self.chunk
    }
}

impl fmt::Display for WindowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "domain {:>2}: {} x {} bytes = {:.2} GB, then errno {} ({}); window {} bytes{}",
            self.domain,
            self.buffers,
            self.chunk,
            self.chunks() as f64 / 1e9,
            self.errno.raw_os_error(),
            if self.mapped { "mapped" } else { "created only" },
            self.window,
            if self.window == limits::WINDOW { " = 4 GiB - 4 KiB" } else { "" },
        )
    }
}

/// Allocates buffers of `chunk` bytes until the driver refuses, then smaller ones until nothing fits;
/// `map` also maps each for the CPU and touches its first byte.
///
/// Takes memory for all of it: 4 GiB on a board. The books that refuse early are left aside: the answer
/// is the driver's.
///
/// # Errors
/// [`Error::Size`] for an impossible chunk; a failure other than refusing an allocation.
///
/// ```
/// use rknpu::{Device, probe};
///
/// let device = Device::simulated(Default::default())?;
/// let report = probe::window(&device.domain(0)?, 64 << 20, false)?;
/// assert_eq!((report.buffers, report.errno.raw_os_error()), (63, 14));
/// assert_eq!(report.window, (4 << 30) - 4096);
/// # Ok::<(), rknpu::Error>(())
/// ```
pub fn window(domain: &Domain, chunk: u64, map: bool) -> Result<WindowReport> {
    let begin = Instant::now();
    let mut all = Vec::new();
    let mut allocate = |size: u64| -> Result<(u64, Errno)> {
        let mut fitted = 0;
        loop {
            let request = Request { map, books: false, ..Request::new(size) };
            match Memory::create(domain, &request) {
                Ok(mut memory) => {
                    if let Some(byte) = memory.bytes_mut().first_mut() {
                        *byte = 1;
                    }
                    all.push(memory);
                    fitted += 1;
                }
                Err(Error::IovaExhausted { errno: Some(errno), .. }) => return Ok((fitted, errno)),
                Err(Error::Driver { errno: Errno::NOMEM, .. }) => {
                    return Ok((fitted, Errno::NOMEM));
                }
                Err(error) => return Err(error),
            }
        }
    };
    let chunk = crate::buffer::pages(chunk);
    let (buffers, errno) = allocate(chunk)?;
    let time = begin.elapsed();
    let mut size = chunk;
    while size > PAGE {
        size = crate::buffer::pages(size / 2);
        allocate(size)?;
    }
    let iovas = || all.iter().map(Memory::iova);
    Ok(WindowReport {
        domain: domain.index(),
        chunk,
        mapped: map,
        buffers,
        errno,
        window: all.iter().map(Memory::size).sum(),
        lowest: iovas().min().unwrap_or(0),
        highest: iovas().max().unwrap_or(0),
        time,
    })
}
