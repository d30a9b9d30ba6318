//! Settings from environment variables, all checked: an unknown one is an error that lists them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use rknpu_sim::config::{
    Addresses, Alignment, Clock, Domains, Driver, Form, Mode, OnHazard, Version,
};
use rknpu_sim::npu::{Npu, Timing};
use rknpu_sim::{CallKind, Config, Fault};
use rustix::io::Errno;

/// What all names begin with.
const PREFIX: &str = "RKNPU_SIM_";

/// Names without the prefix, and what may be given.
const KNOWN: [(&str, &str); 20] = [
    (
        "DRIVER",
        "rknpu (default), rocket (as in Linux 7.3, /dev/accel/accel0) or rocket-6.18 (as first merged)",
    ),
    ("SOC", "rk3588"),
    ("VERSION", "0.8, 0.9.5, 0.9.6, 0.9.7 or 0.9.8 (default)"),
    ("MODE", "fast (default; one view of memory) or strict (CPU cache and memory apart)"),
    ("DOMAINS", "real (default) or stub"),
    ("IOMMU", "on (default) or off"),
    ("FENCES", "on (default) or off"),
    ("SRAM", "bytes, with K or M; default 0"),
    ("CMA", "bytes of contiguous memory, with K, M or G; default 256M"),
    ("MEMORY", "bytes that buffers may take in all, with K, M or G; default unlimited"),
    ("ALIGNMENT", "power-of-two (default), cap-2m or none"),
    ("ADDRESSES", "unique (default; stale ones are told) or reused (as a slab does)"),
    ("CLOCK", "real (default) or virtual (waits take no time)"),
    ("TIMING", "board (default), none, or either with FIELD=NUMBER,... after it"),
    (
        "FAULTS",
        "CALL=ERRNO, hang, dropped (a job, by rocket), unpinned (a buffer) or short (direct I/O), each with :after=N :times=N (:core=N), separated by commas",
    ),
    ("HAZARD", "report (default), errno (the call fails with EFAULT) or abort"),
    ("EXIT", "exit status, 1 to 255, of a program that met a hazard or finding; default unchanged"),
    ("LEAKS", "ignore (default) or count (what is left at exit is a reason for EXIT)"),
    ("REPORT", "stderr (default), none or a file, which is appended to"),
    ("FORMAT", "text (default) or json"),
];

/// Fields of [`Timing`] that TIMING takes.
const TIMES: &str = "floor_ns, int8_ops, fp16_ops, int4_ops, weight_bytes, int4_weight_bytes";

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingError {
    #[error("there is no setting {name}; there are:\n{}", list())]
    Unknown { name: String },
    #[error("{PREFIX}{name}={value}: expected {expected}")]
    Value { name: &'static str, value: String, expected: String },
}

/// What becomes of a call that would have hurt the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hazards {
    /// It is told at exit.
    Report,
    /// It fails with EFAULT as well.
    Errno,
    /// The process is aborted on the spot.
    Abort,
}

/// Where the report goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Stderr,
    Nowhere,
    File(PathBuf),
}

/// All settings.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) faults: Vec<Fault>,
    pub(crate) hazards: Hazards,
    pub(crate) exit: Option<u8>,
    pub(crate) count_leaks: bool,
    pub(crate) report: Destination,
    pub(crate) json: bool,
}

impl Settings {
    /// Reads those of `variables` whose names begin with [`PREFIX`].
    pub(crate) fn read(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Settings, SettingError> {
        let mut settings = Settings {
            config: Config::default(),
            faults: Vec::new(),
            hazards: Hazards::Report,
            exit: None,
            count_leaks: false,
            report: Destination::Stderr,
            json: false,
        };
        // A program that looks at its watch, or frees a buffer while a job runs, should see what it
        // would see on a board.
        settings.config.clock = Clock::Real;
        let mut timing = Timing::default();
        for (full, value) in variables {
            let Some(name) = full.strip_prefix(PREFIX) else { continue };
            let Some((name, expected)) = KNOWN.into_iter().find(|(known, _)| *known == name) else {
                return Err(SettingError::Unknown { name: full });
            };
            let set = if name == "TIMING" {
                times(&value).map(|given| timing = given)
            } else {
                settings.set(name, &value)
            };
            if set.is_none() {
                let mut expected = expected.to_owned();
                if name == "TIMING" {
                    let _ = write!(expected, "; fields are {TIMES}");
                }
                return Err(SettingError::Value { name, value, expected });
            }
        }
        settings.config.engine = Arc::new(Npu::new(timing));
        if settings.hazards == Hazards::Abort {
            settings.config.on_hazard = OnHazard::Panic;
        }
        Ok(settings)
    }

    /// `None` when the value is not understood.
    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let config = &mut self.config;
        match name {
            "DRIVER" => {
                config.driver = one_of(
                    value,
                    &[
                        ("rknpu", Driver::Rknpu),
                        ("rocket", Driver::Rocket(Form::Later)),
                        ("rocket-6.18", Driver::Rocket(Form::FirstMerged)),
                    ],
                )?
            }
            "SOC" => one_of(value, &[("rk3588", ())])?,
            "VERSION" => {
                config.version = Version::ALL
                    .into_iter()
                    .find(|v| v.to_string() == value)
                    .or((value == "0.8").then_some(Version::V0_8))?
            }
            "MODE" => {
                config.mode = one_of(value, &[("fast", Mode::Fast), ("strict", Mode::Strict)])?
            }
            "DOMAINS" => {
                config.domains =
                    one_of(value, &[("real", Domains::Real), ("stub", Domains::Stub)])?;
            }
            "IOMMU" => config.iommu = switch(value)?,
            "FENCES" => config.fences = switch(value)?,
            "SRAM" => config.sram = bytes(value)?,
            "CMA" => config.cma = bytes(value)?,
            "MEMORY" => config.memory = Some(bytes(value)?),
            "ALIGNMENT" => {
                config.alignment = one_of(
                    value,
                    &[
                        ("power-of-two", Alignment::PowerOfTwo),
                        ("cap-2m", Alignment::Cap2MiB),
                        ("none", Alignment::None),
                    ],
                )?;
            }
            "ADDRESSES" => {
                let known = [("unique", Addresses::Unique), ("reused", Addresses::Reused)];
                config.addresses = one_of(value, &known)?;
            }
            "CLOCK" => {
                config.clock =
                    one_of(value, &[("virtual", Clock::Virtual), ("real", Clock::Real)])?;
            }
            "FAULTS" => self.faults = value.split(',').map(fault).collect::<Option<_>>()?,
            "HAZARD" => {
                self.hazards = one_of(
                    value,
                    &[
                        ("report", Hazards::Report),
                        ("errno", Hazards::Errno),
                        ("abort", Hazards::Abort),
                    ],
                )?;
            }
            "EXIT" => self.exit = Some(value.parse().ok().filter(|status| *status > 0)?),
            "LEAKS" => self.count_leaks = one_of(value, &[("ignore", false), ("count", true)])?,
            "REPORT" => {
                self.report = match value {
                    "stderr" => Destination::Stderr,
                    "none" => Destination::Nowhere,
                    "" => return None,
                    path => Destination::File(path.into()),
                };
            }
            "FORMAT" => self.json = one_of(value, &[("text", false), ("json", true)])?,
            _ => return None,
        }
        Some(())
    }
}

fn list() -> String {
    let width = KNOWN.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    KNOWN.iter().fold(String::new(), |mut text, (name, help)| {
        let _ = writeln!(text, "  {PREFIX}{name:width$}  {help}");
        text
    })
}

fn one_of<T: Copy>(value: &str, known: &[(&str, T)]) -> Option<T> {
    known.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning)
}

fn switch(value: &str) -> Option<bool> {
    one_of(value, &[("on", true), ("off", false)])
}

/// A number of bytes with an optional K, M or G.
fn bytes(value: &str) -> Option<u64> {
    let units = [("K", 10), ("M", 20), ("G", 30)];
    let unit = units.iter().find_map(|(unit, shift)| Some((value.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.unwrap_or((value, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// `none` or `board`, either with `,FIELD=NUMBER,...`.
fn times(value: &str) -> Option<Timing> {
    let mut parts = value.split(',');
    let mut timing =
        one_of(parts.next()?, &[("none", Timing::instant()), ("board", Timing::default())])?;
    for part in parts {
        let (field, number) = part.split_once('=')?;
        let field = match field {
            "floor_ns" => &mut timing.submit_floor_ns,
            "int8_ops" => &mut timing.int8_ops_per_second,
            "fp16_ops" => &mut timing.fp16_ops_per_second,
            "int4_ops" => &mut timing.int4_ops_per_second,
            "weight_bytes" => &mut timing.weight_bytes_per_second,
            "int4_weight_bytes" => &mut timing.int4_weight_bytes_per_second,
            _ => return None,
        };
        *field = number.parse().ok()?;
    }
    Some(timing)
}

/// `CALL=ERRNO:after=N:times=N` or `hang:core=N:after=N:times=N`.
fn fault(text: &str) -> Option<Fault> {
    let mut parts = text.split(':');
    let what = parts.next()?;
    let (mut on, mut after, mut times) = (None, 0, 1);
    for part in parts {
        match part.split_once('=')? {
            ("core", number) => on = Some(number.parse().ok().filter(|core| *core < 3)?),
            ("after", number) => after = number.parse().ok()?,
            ("times", number) => times = number.parse().ok()?,
            _ => return None,
        }
    }
    if what == "dropped" {
        return Some(Fault::DroppedJob { after, times });
    }
    if what == "unpinned" {
        return Some(Fault::Unpinned { after, times });
    }
    if what == "short" {
        return Some(Fault::ShortDirectIo { after, times });
    }
    if what == "hang" {
        return Some(Fault::Hang { core: on, after, times });
    }
    let (call, errno) = what.split_once('=')?;
    let kind = one_of(
        call,
        &[
            ("action", CallKind::Action),
            ("submit", CallKind::Submit),
            ("mem_create", CallKind::MemCreate),
            ("mem_map", CallKind::MemMap),
            ("mem_destroy", CallKind::MemDestroy),
            ("mem_sync", CallKind::MemSync),
            ("prime_handle_to_fd", CallKind::PrimeHandleToFd),
            ("prime_fd_to_handle", CallKind::PrimeFdToHandle),
            ("create_bo", CallKind::CreateBo),
            ("prep_bo", CallKind::PrepBo),
            ("fini_bo", CallKind::FiniBo),
            ("mmap", CallKind::Mmap),
            ("direct_io", CallKind::DirectIo),
        ],
    )?;
    let errno = one_of(
        errno,
        &[
            ("EINVAL", Errno::INVAL),
            ("ENOMEM", Errno::NOMEM),
            ("EFAULT", Errno::FAULT),
            ("EIO", Errno::IO),
            ("EBUSY", Errno::BUSY),
            ("EINTR", Errno::INTR),
            ("EACCES", Errno::ACCESS),
            ("ETIMEDOUT", Errno::TIMEDOUT),
        ],
    )?;
    Some(Fault::Call { kind, after, times, errno })
}
