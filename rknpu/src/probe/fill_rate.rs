//! How fast the CPU fills a buffer, cached and not: [`fill`].

use std::fmt;
use std::time::{Duration, Instant};

use crate::allocation::{Allocation, Request};
use crate::domain::Domain;
use crate::driver::Caching;
use crate::error::{Error, Result};

/// Rounds of each, of which the fastest counts.
const ROUNDS: usize = 5;

/// One way of mapping.
///
/// ```
/// use rknpu::{Device, probe};
///
/// let device = Device::simulated(Default::default())?;
/// let report = probe::fill(&device.domain(0)?, 1 << 16)?;
/// assert!(report.rates.iter().any(|rate| rate.mapping == "cacheable"));
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FillRate {
    /// How the CPU sees the buffer.
    pub mapping: &'static str,
    /// Time of one fill.
    pub time: Duration,
}

/// What [`fill`] found.
///
/// ```
/// use rknpu::{Device, probe};
///
/// let device = Device::simulated(Default::default())?;
/// let report = probe::fill(&device.domain(0)?, 1 << 16)?;
/// assert_eq!(report.bytes, 1 << 16);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FillReport {
    /// Bytes of each fill.
    pub bytes: u64,
    /// Cacheable, write-combined and uncached device memory, then ordinary memory to compare with.
    pub rates: Vec<FillRate>,
}

impl FillReport {
    /// 10⁹ bytes per second.
    ///
    /// ```
    /// use rknpu::{Device, probe};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let report = probe::fill(&device.domain(0)?, 1 << 16)?;
    /// assert!(report.rates.iter().all(|rate| report.gb_per_s(rate) > 0.0));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn gb_per_s(&self, rate: &FillRate) -> f64 {
        super::gb_per_s(self.bytes, rate.time)
    }
}

impl fmt::Display for FillReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rate) in self.rates.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{:<16} {:>7.2} GB/s", rate.mapping, self.gb_per_s(rate))?;
        }
        Ok(())
    }
}

/// Fills buffers of `len` bytes of each kind. Cacheable ones are also handed over: the clean is part of
/// what a fill costs.
///
/// # Errors
/// [`Error::Driver`] and what allocating meets; [`Error::Mismatch`] when what was written does not read
/// back.
///
/// ```
/// use rknpu::{Device, probe};
///
/// let device = Device::simulated(Default::default())?;
/// let report = probe::fill(&device.domain(0)?, 1 << 20)?;
/// assert_eq!(report.rates.len(), 4);
/// # Ok::<(), rknpu::Error>(())
/// ```
pub fn fill(domain: &Domain, len: usize) -> Result<FillReport> {
    // Before as much ordinary memory is asked for.
    domain.size(&Request::new(len as u64))?;
    let source: Vec<u8> = (0..len).map(|i| (i * 131 % 251) as u8).collect();
    let mut rates = Vec::new();
    for (mapping, caching) in [
        ("cacheable", Caching::Cached),
        ("write-combined", Caching::WriteCombined),
        ("uncached", Caching::Uncached),
    ] {
        let request = Request { caching, ..Request::new(len as u64) };
        let mut memory = Allocation::create(domain, &request)?;
        let sync = caching == Caching::Cached;
        let time = fastest(|| {
            copy(&source, memory.bytes_mut());
            if sync { memory.sync_for_device(0..len as u64) } else { Ok(()) }
        })?;
        let differs = memory.bytes().iter().zip(&source).position(|(got, want)| got != want);
        if let Some(at) = differs {
            let (got, want) = (memory.bytes()[at], source[at]);
            return Err(Error::Mismatch { what: mapping, at: at as u64, got, want });
        }
        rates.push(FillRate { mapping, time });
    }
    let mut plain = vec![0u8; len];
    let time = fastest(|| {
        copy(&source, &mut plain);
        Ok(())
    })?;
    rates.push(FillRate { mapping: "ordinary memory", time });
    Ok(FillReport { bytes: len as u64, rates })
}

fn fastest(mut fill: impl FnMut() -> Result<()>) -> Result<Duration> {
    // The first touch of the pages is not what is measured.
    fill()?;
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        fill()?;
        best = best.min(begin.elapsed());
    }
    Ok(best)
}

/// Copies in aligned blocks of 64 bytes: unaligned access to uncached memory faults on ARM.
fn copy(source: &[u8], out: &mut [u8]) {
    for (to, from) in out.chunks_mut(64).zip(source.chunks(64)) {
        to.copy_from_slice(from);
    }
}
