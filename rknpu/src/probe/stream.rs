//! Whether address space comes back: many times a domain's size through one domain.

use std::fmt;
use std::time::{Duration, Instant};

use crate::domain::Domain;
use crate::error::{Error, Result};

/// What [`stream`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamReport {
    /// Bytes of each weight.
    pub weight: u64,
    /// Weights allocated, written and freed.
    pub done: u32,
    /// Weights asked for.
    pub wanted: u32,
    /// Most bytes mapped at once.
    pub peak: u64,
    /// Bytes that are mapped still; 0 unless something leaks.
    pub left: u64,
    /// Distinct addresses at which weights lay; more than a few mean that space does not come back.
    pub addresses: u32,
    /// Time for all.
    pub time: Duration,
}

impl StreamReport {
    /// Whether all went through and nothing is left.
    ///
    /// ```
    /// use rknpu::{Device, probe};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let report = probe::stream(&device.domain(0)?, 1 << 20, 8, |_, bytes| bytes.fill(1))?;
    /// assert!(report.is_clean() && report.left == 0);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn is_clean(&self) -> bool {
        self.done == self.wanted && self.left == 0
    }
}

impl fmt::Display for StreamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.weight * u64::from(self.done);
        write!(
            f,
            "{} of {} weights of {} bytes, {:.1} GiB through a domain of 4 GiB, at most {} mapped at once, \
             {} left, {:.2} GB/s: {}",
            self.done,
            self.wanted,
            self.weight,
            bytes as f64 / (1u64 << 30) as f64,
            self.peak,
            self.left,
            super::gb_per_s(bytes, self.time),
            if self.is_clean() { "nothing leaks" } else { "LEAK" },
        )
    }
}

/// Allocates a weight, has `pack` write it, hands it to the NPU and frees it, `times` over.
///
/// # Errors
/// What the calls meet, except that a refused allocation ends the probe with a report that
/// [`StreamReport::is_clean`] denies: that is the leak which it looks for.
///
/// ```
/// use rknpu::{Device, probe};
///
/// let device = Device::simulated(Default::default())?;
/// let report = probe::stream(&device.domain(0)?, 64 << 20, 100, |_, bytes| bytes[0] = 1)?;
/// assert!(report.is_clean()); // 6.25 GiB through a domain of 4 GiB
/// # Ok::<(), rknpu::Error>(())
/// ```
pub fn stream(
    domain: &Domain,
    weight: usize,
    times: u32,
    mut pack: impl FnMut(u32, &mut [u8]),
) -> Result<StreamReport> {
    let (begin, before) = (Instant::now(), domain.stats().used);
    let (mut done, mut peak) = (0, 0);
    let mut addresses = std::collections::BTreeSet::new();
    while done < times {
        let mut buffer = match domain.alloc(weight) {
            Ok(buffer) => buffer,
            Err(error) if error.is_out_of_memory() => break,
            Err(error) => return Err(error),
        };
        pack(done, buffer.as_mut_slice());
        let buffer = buffer.to_device().map_err(Error::from)?;
        // Others may free what was there before.
        peak = peak.max(domain.stats().used.saturating_sub(before));
        addresses.insert(buffer.iova());
        drop(buffer);
        done += 1;
    }
    Ok(StreamReport {
        weight: weight as u64,
        done,
        wanted: times,
        peak,
        left: domain.stats().used.saturating_sub(before),
        addresses: addresses.len() as u32,
        time: begin.elapsed(),
    })
}
