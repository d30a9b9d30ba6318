//! Records of what went wrong: failed jobs with what the NPU showed, and failures met where none can be returned.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rknpu_sys::layout::Precision;
use rustix::io::Errno;

use crate::device::Device;
use crate::domain::Domain;
use crate::driver::Completion;
use crate::error::{Call, meaning};

/// Everything known about a job that did not end well.
///
/// ```
/// use rknpu::sim::{Fault, Machine};
/// use rknpu::{Device, health::Recovery, probe};
///
/// let machine = Machine::new(Default::default());
/// let device = Device::simulated_on(&machine)?;
/// machine.inject(Fault::Hang { core: Some(2), after: 0, times: 1 });
/// probe::cores(&device)?;
/// let report = device.health().last_failure.expect("the job on core 2");
/// assert_eq!((report.core, report.recovery), (2, Recovery::Reset));
/// assert_eq!((report.programs, report.programs_done), (1, 0));
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PostMortem {
    /// What it computed.
    pub operation: &'static str,
    /// Element type.
    pub precision: Option<Precision>,
    /// Rows.
    pub m: u64,
    /// Inputs.
    pub k: u32,
    /// Outputs, of all weights that were multiplied at once.
    pub n: u32,
    /// Domain.
    pub domain: u32,
    /// Core that failed.
    pub core: u32,
    /// Programs in the submit.
    pub programs: u32,
    /// Programs done, as the driver counted.
    pub programs_done: u32,
    /// First program's address.
    pub program_iova: u64,
    /// The first weight's address; 0 where there are none.
    pub weights_iova: u64,
    /// The driver's answer; absent when it reported success for a job that did not run.
    pub errno: Option<Errno>,
    /// From submit to answer.
    pub waited: Duration,
    /// Age of the open device.
    pub age: Duration,
    /// Bytes mapped in the domain.
    pub iova_used: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// What the recovery found.
    pub recovery: Recovery,
    /// The first error met before, if any.
    pub earlier: Option<String>,
}

impl fmt::Display for PostMortem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if self.m != 0 {
            write!(f, " M={} K={} N={}", self.m, self.k, self.n)?;
        }
        write!(f, " on core {} in domain {}: ", self.core, self.domain)?;
        match self.errno {
            Some(errno) => write!(f, "{errno}")?,
            None => f.write_str("reported done but did not run")?,
        }
        write!(
            f,
            " after {} ms, {} of {} programs done; program at {:#x}, weights at {:#x}, {} bytes mapped, \
             device open for {} s, {} attempt(s), {}",
            self.waited.as_millis(),
            self.programs_done,
            self.programs,
            self.program_iova,
            self.weights_iova,
            self.iova_used,
            self.age.as_secs(),
            self.attempts,
            self.recovery,
        )?;
        if let Some(errno) = self.errno {
            write!(f, "; {}", meaning(Call::Submit, errno))?;
        }
        if let Some(earlier) = &self.earlier {
            write!(f, "; before that: {earlier}")?;
        }
        Ok(())
    }
}

/// A job that the NPU did not run to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobFailure {
    core: u32,
    programs: u32,
    done: u32,
    program_iova: u64,
    errno: Option<Errno>,
    waited: Duration,
}

impl JobFailure {
    /// The failure that `completion` is, unless the job of so many programs ran.
    pub(crate) fn of(
        completion: &Completion,
        programs: u32,
        core: u32,
        program_iova: u64,
    ) -> Option<JobFailure> {
        let Completion { programs_done: done, errno, waited, .. } = *completion;
        let failure = JobFailure { core, programs, done, program_iova, errno, waited };
        (!completion.ran(programs)).then_some(failure)
    }

    /// A record with what is known here.
    pub(crate) fn report(&self, device: &Device, domain: Option<&Domain>) -> PostMortem {
        let record = device.record();
        PostMortem {
            operation: "job",
            precision: None,
            m: 0,
            k: 0,
            n: 0,
            domain: domain.map_or(0, Domain::index),
            core: self.core,
            programs: self.programs,
            programs_done: self.done,
            program_iova: self.program_iova,
            weights_iova: 0,
            errno: self.errno,
            waited: self.waited,
            age: record.age(),
            iova_used: domain.map_or(0, |domain| domain.stats().used),
            attempts: 1,
            recovery: Recovery::None,
            earlier: record.snapshot().first.map(|incident| incident.to_string()),
        }
    }
}

/// What a reset after a failed job led to.
///
/// ```
/// use rknpu::{Errno, health::Recovery};
///
/// let stuck = Recovery::DomainsStuck(Errno::INVAL);
/// assert!(stuck.to_string().starts_with("reset, but domains no longer switch"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovery {
    /// None was attempted.
    None,
    /// The NPU was reset, and domains still switch.
    Reset,
    /// The reset was refused.
    ResetFailed(Errno),
    /// Domains no longer switch: the driver's count is off until a reboot.
    DomainsStuck(Errno),
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recovery::None => f.write_str("not reset"),
            Recovery::Reset => f.write_str("reset"),
            Recovery::ResetFailed(errno) => write!(f, "reset failed: {errno}"),
            Recovery::DomainsStuck(errno) => {
                write!(f, "reset, but domains no longer switch: {errno}")
            }
        }
    }
}

/// An error met where it could not be returned, such as in `Drop`.
///
/// ```
/// use rknpu::{Errno, error::Call, health::Incident};
///
/// let incident = Incident {
///     call: Call::Destroy,
///     domain: 3,
///     bytes: 4096,
///     errno: Errno::INVAL,
///     age: std::time::Duration::from_secs(60),
/// };
/// assert!(incident.to_string().starts_with("MEM_DESTROY of 4096 bytes in domain 3"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    /// The call.
    pub call: Call,
    /// Domain.
    pub domain: u32,
    /// Bytes concerned.
    pub bytes: u64,
    /// The driver's answer.
    pub errno: Errno,
    /// Age of the device then.
    pub age: Duration,
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Incident { call, domain, bytes, errno, .. } = self;
        write!(f, "{call} of {bytes} bytes in domain {domain}: {errno}: {}", meaning(*call, *errno))
    }
}

/// The state of an open device.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let health = device.health();
/// assert!(health.is_good());
/// assert_eq!(health.to_string(), "good");
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// Errors met where they could not be returned.
    pub incidents: u64,
    /// The first of them.
    pub first: Option<Incident>,
    /// Buffers lost because freeing them failed.
    pub leaked_buffers: u64,
    /// Their bytes.
    pub leaked_bytes: u64,
    /// Buffers that are kept because the NPU may still write to them, until [`Device::reset`] helps.
    ///
    /// [`Device::reset`]: crate::Device::reset
    pub quarantined_buffers: u64,
    /// Their bytes.
    pub quarantined_bytes: u64,
    /// Jobs that failed at first and ran after a reset.
    pub recovered: u64,
    /// The job that made the device unusable.
    pub wedged: Option<Box<PostMortem>>,
    /// The last failed job.
    pub last_failure: Option<Box<PostMortem>>,
}

impl Health {
    /// Whether nothing has gone wrong that outlives the moment.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// assert!(device.health().is_good());
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn is_good(&self) -> bool {
        self.incidents == 0 && self.leaked_buffers == 0 && self.wedged.is_none()
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(report) = &self.wedged {
            let (buffers, bytes) = (self.quarantined_buffers, self.quarantined_bytes);
            return write!(
                f,
                "wedged: {report}; {buffers} buffer(s) of {bytes} bytes are kept from use"
            );
        }
        let Some(first) = &self.first else {
            return match self.recovered {
                0 => f.write_str("good"),
                jobs => write!(f, "good after {jobs} job(s) run again"),
            };
        };
        write!(
            f,
            "{} error(s), the first: {first}; {} buffer(s) of {} bytes lost until the process ends",
            self.incidents, self.leaked_buffers, self.leaked_bytes
        )
    }
}

/// Collects what [`Health`] shows.
#[derive(Debug)]
pub(crate) struct Record {
    opened: Instant,
    wedged: AtomicBool,
    health: Mutex<Health>,
}

impl Record {
    pub(crate) fn new() -> Record {
        Record {
            opened: Instant::now(),
            wedged: AtomicBool::new(false),
            health: Mutex::new(Health::default()),
        }
    }

    pub(crate) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    pub(crate) fn snapshot(&self) -> Health {
        self.with(|health| health.clone())
    }

    pub(crate) fn incident(&self, call: Call, domain: u32, bytes: u64, errno: Errno) {
        let age = self.age();
        self.with(|health| {
            health.incidents += 1;
            health.first.get_or_insert(Incident { call, domain, bytes, errno, age });
        });
    }

    pub(crate) fn leaked(&self, bytes: u64) {
        self.with(|health| {
            health.leaked_buffers += 1;
            health.leaked_bytes += bytes;
        });
    }

    pub(crate) fn quarantined(&self, bytes: u64) {
        self.with(|health| {
            health.quarantined_buffers += 1;
            health.quarantined_bytes += bytes;
        });
    }

    pub(crate) fn recovered(&self) {
        self.with(|health| health.recovered += 1);
    }

    pub(crate) fn failed(&self, report: &PostMortem) {
        self.with(|health| health.last_failure = Some(Box::new(report.clone())));
    }

    pub(crate) fn wedge(&self, report: &PostMortem) {
        self.wedged.store(true, Ordering::Release);
        self.with(|health| {
            health.wedged.get_or_insert_with(|| Box::new(report.clone()));
        });
    }

    /// A reset has helped.
    pub(crate) fn unwedge(&self) {
        self.with(|health| {
            (health.quarantined_buffers, health.quarantined_bytes) = (0, 0);
            health.wedged = None;
        });
        self.wedged.store(false, Ordering::Release);
    }

    pub(crate) fn is_wedged(&self) -> bool {
        self.wedged.load(Ordering::Acquire)
    }

    fn with<T>(&self, f: impl FnOnce(&mut Health) -> T) -> T {
        f(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
