//! Whether each NPU core computes right: one small job on each.

use std::fmt;
use std::time::Duration;

use rknpu_sys::layout::{Layout, Precision};
use rknpu_sys::regs::CORES;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::program::{AMOUNT, MatmulProgram};
use crate::reference;

/// How a core took its job.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let report = rknpu::probe::cores(&device)?;
/// assert_eq!((report.cores[1].core, report.cores[1].right), (1, Some(true)));
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreOutcome {
    /// Core.
    pub core: u32,
    /// Whether the results were right; absent when it did not run.
    pub right: Option<bool>,
    /// Time that the driver reports.
    pub busy: Duration,
    /// Why it did not run.
    pub error: Option<String>,
}

impl CoreOutcome {
    /// Whether the core ran its job and got it right.
    ///
    /// ```
    /// use rknpu::sim::{Fault, Machine};
    ///
    /// let machine = Machine::new(Default::default());
    /// let device = rknpu::Device::simulated_on(&machine)?;
    /// machine.inject(Fault::Hang { core: Some(2), after: 0, times: 1 });
    /// let works: Vec<bool> =
    ///     rknpu::probe::cores(&device)?.cores.iter().map(|core| core.works()).collect();
    /// assert_eq!(works, [true, true, false]);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn works(&self) -> bool {
        self.right == Some(true)
    }
}

/// What [`cores`] found.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let report = rknpu::probe::cores(&device)?;
/// assert!(report.to_string().starts_with("core 0: works"));
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoresReport {
    /// One entry for each core.
    pub cores: Vec<CoreOutcome>,
    /// Whether the driver was built with fences; absent when no core works, and with a driver that has none of its
    /// own.
    pub fences: Option<bool>,
    /// The kernel chooses the core of each job: what stands for a core is a job on one of them.
    pub kernels_choice: bool,
}

impl fmt::Display for CoresReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, core) in self.cores.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            let what = if self.kernels_choice { "job" } else { "core" };
            let (index, busy) = (core.core, core.busy.as_micros());
            write!(f, "{separator}{what} {index}: ")?;
            match (&core.right, &core.error) {
                (Some(true), _) => write!(f, "works, {busy} us")?,
                (Some(false), _) => f.write_str("WRONG results")?,
                (None, Some(error)) => write!(f, "does not run: {error}")?,
                (None, None) => f.write_str("not tried")?,
            }
        }
        match self.fences {
            Some(true) => f.write_str("\nfences: yes"),
            Some(false) => f.write_str("\nfences: no (the kernel was built without them)"),
            None => Ok(()),
        }?;
        if self.kernels_choice {
            f.write_str(
                "\nthe kernel chose the core of each job: one that hangs may be any of them",
            )?;
        }
        Ok(())
    }
}

/// Runs a tiny job on each core, checked against the CPU.
///
/// A core that does not run its job costs the device's timeout and a reset of the NPU.
///
/// ```
/// use rknpu::{Device, probe, sim::Config};
///
/// let device = Device::simulated(Config { fences: false, ..Config::default() })?;
/// let report = probe::cores(&device)?;
/// assert!(report.cores.iter().all(|core| core.works()));
/// assert_eq!(report.fences, Some(false)); // as on stock kernels
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// # Errors
/// [`Error::CoreLeased`] when a core is in use; what allocating meets. That a core does not run is no
/// error but a finding.
pub fn cores(device: &Device) -> Result<CoresReport> {
    let layout = Layout::new(64, 32, Precision::Int8)?;
    let domain = device.new_domain()?;
    let mut weights = domain.alloc(layout.bytes() as usize)?;
    reference::fill(layout, 1, weights.as_mut_slice());
    let row: Vec<i8> = (0..layout.k() as i8).collect();
    let want = reference::matmul_i8(layout, weights.as_slice(), &row);
    let mut input = domain.alloc(row.len())?;
    for (byte, value) in input.as_mut_slice().iter_mut().zip(&row) {
        *byte = *value as u8;
    }
    let output = domain.alloc(want.len() * 4)?;
    let mut buffers = vec![
        input.to_device().map_err(Error::from)?,
        weights.to_device().map_err(Error::from)?,
        output.to_device().map_err(Error::from)?,
    ];
    let program = MatmulProgram {
        precision: Precision::Int8,
        m: 1,
        k: layout.k(),
        n: layout.n(),
        input: buffers[0].iova(),
        weights: buffers[1].iova(),
        output: buffers[2].iova(),
        next: None,
    };
    let commands = program.encode()?;
    let commands = &commands[..AMOUNT as usize];

    // A space in which one core works at a time is not one whose core can be chosen.
    let kernels_choice = device.capabilities().spaces.lanes() > 1;
    let mut report = CoresReport { cores: Vec::new(), fences: None, kernels_choice };
    for index in 0..CORES as u32 {
        let mut core = device.core(index)?;
        let outcome = CoreOutcome { core: index, right: None, busy: Duration::ZERO, error: None };
        let job = Job::new(&domain, &[commands], buffers).map_err(Error::from)?;
        // The first submit into a fresh buffer may leave stale results; the second counts.
        let ran = job.run(&mut core).and_then(|(job, _)| job.run(&mut core));
        let (job, outcome) = match ran {
            Ok((job, stats)) => {
                if report.fences.is_none() && !kernels_choice {
                    report.fences = job.fences(&core).ok();
                }
                (job, CoreOutcome { busy: stats.busy, ..outcome })
            }
            Err(rejected) => {
                let error = Some(rejected.error.to_string());
                (rejected.kept, CoreOutcome { error, ..outcome })
            }
        };
        buffers = job.into_buffers();
        let Some(output) = buffers.pop() else { break };
        let output = output.to_host().map_err(Error::from)?;
        let got = output.as_slice().chunks_exact(4);
        let right = got.zip(&want).all(|(got, want)| *got == want.to_le_bytes());
        let right = outcome.error.is_none().then_some(right);
        report.cores.push(CoreOutcome { right, ..outcome });
        // Cleared, so that no core is judged by another's results.
        let mut output = output;
        output.as_mut_slice().fill(0);
        buffers.push(output.to_device().map_err(Error::from)?);
    }
    Ok(report)
}
