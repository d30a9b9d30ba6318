//! Whether several domains hold their weights apart and take turns.

use std::fmt;
use std::time::{Duration, Instant};

use rknpu_sys::layout::{Layout, Precision};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::matmul::{Matmul, MatmulLimits, WeightRef};
use crate::reference;

/// Rows of each job.
const ROWS: usize = 4;

/// What [`domains`] found.
///
/// ```
/// use rknpu::{Device, probe};
///
/// let device = Device::simulated(Default::default())?;
/// let report = probe::domains(&device, 2, 1 << 20, 4)?;
/// assert_eq!((report.domains, report.jobs, report.wrong), (2, 8, 0)); // four rounds
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainsReport {
    /// Domains used.
    pub domains: u32,
    /// Bytes mapped in all of them together.
    pub mapped: u64,
    /// Jobs run, each in another domain than the one before.
    pub jobs: u32,
    /// Jobs whose results differ from the CPU's.
    pub wrong: u32,
    /// The first of them.
    pub first_wrong: Option<u32>,
    /// Changes of domain.
    pub switches: u64,
    /// Time for the jobs.
    pub time: Duration,
}

impl fmt::Display for DomainsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DomainsReport { domains, mapped, jobs, wrong, switches, .. } = self;
        let each = self.time.as_secs_f64() * 1e6 / f64::from((*jobs).max(1));
        write!(
            f,
            "{domains} domains with {mapped} bytes mapped: {jobs} jobs in turn, {switches} switches, \
             {each:.0} us each, {wrong} wrong"
        )
    }
}

/// Fills `count` domains with `fill` bytes each, puts a weight into each, and runs `rounds` jobs in every
/// one in turn, checked against the CPU.
///
/// # Errors
/// [`Error::DomainsExhausted`] when the device has fewer free domains; what the calls meet.
///
/// ```
/// use rknpu::{Device, probe};
///
/// let device = Device::simulated(Default::default())?;
/// let report = probe::domains(&device, 4, 1 << 30, 3)?;
/// assert_eq!((report.jobs, report.wrong), (12, 0));
/// # Ok::<(), rknpu::Error>(())
/// ```
pub fn domains(device: &Device, count: u32, fill: u64, rounds: u32) -> Result<DomainsReport> {
    let layout = Layout::new(1056, 64, Precision::Int8)?;
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    let activations: Vec<i8> = (0..ROWS * k).map(|i| (i * 7 % 251) as i8).collect();
    let cores = device.cores()?;
    let limits = MatmulLimits { rows: ROWS as u32, k: layout.k(), n: layout.n() };

    let mut places = Vec::new();
    for index in 0..count {
        let domain = device.new_domain()?;
        let ballast = if fill > 0 { Some(domain.alloc(fill as usize)?) } else { None };
        let mut weight = domain.alloc(layout.bytes() as usize)?;
        reference::fill(layout, u64::from(index) + 1, weight.as_mut_slice());
        let want = reference::matmul_i8(layout, weight.as_slice(), &activations);
        let weight = weight.to_device().map_err(Error::from)?;
        let matmul = Matmul::int8(&domain, &cores, limits)?;
        places.push((matmul, weight, want, ballast));
    }
    let mapped = places
        .iter()
        .flat_map(|(matmul, ..)| matmul.domains())
        .map(|domain| domain.stats().used)
        .sum();

    let (begin, before) = (Instant::now(), device.stats().domain_switches);
    let mut out = vec![0; ROWS * n];
    let (mut jobs, mut wrong, mut first_wrong) = (0, 0, None);
    for _ in 0..rounds {
        for (matmul, weight, want, _) in &mut places {
            matmul.run(&WeightRef::new(weight, 0, layout)?, &activations, &mut out)?;
            if out != *want {
                wrong += 1;
                first_wrong.get_or_insert(jobs);
            }
            jobs += 1;
        }
    }
    let switches = device.stats().domain_switches - before;
    let time = begin.elapsed();
    Ok(DomainsReport { domains: count, mapped, jobs, wrong, first_wrong, switches, time })
}
