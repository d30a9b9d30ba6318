//! `ork probe`: what the device and its driver really do.

use rknpu::probe::{self, Bound};
use rknpu::{Layout, Precision, reference};
use serde_json::{Value, json};

use crate::cli::{
    CapacityArgs, DeviceArgs, DomainsArgs, FillArgs, PersistArgs, ProbeCommand, StreamProbeArgs,
};
use crate::error::{Error, Result};
use crate::output::Report;

/// Runs the probe.
///
/// # Errors
/// [`Error::Leak`] when memory does not come back; [`Error::Check`] when results or bytes are wrong;
/// [`Error::Device`].
pub(super) fn run(command: &ProbeCommand, report: Report) -> Result<()> {
    match command {
        ProbeCommand::Capacity(args) => capacity(args, report),
        ProbeCommand::Stream(args) => stream(args, report),
        ProbeCommand::Persist(args) => persist(args, report),
        ProbeCommand::Domains(args) => domains(args, report),
        ProbeCommand::Cores(args) => cores(args, report),
        ProbeCommand::Fill(args) => fill(args, report),
    }
}

fn capacity(args: &CapacityArgs, report: Report) -> Result<()> {
    let device = args.device.device.open(report)?;
    let all = 0..device.capabilities().domains.count();
    let chosen = args.domain.map_or(all, |domain| domain..domain.saturating_add(1));
    let mut found = Vec::new();
    for domain in chosen {
        for mapped in [false, true] {
            let domain = device.domain(domain)?;
            let one = probe::capacity(&domain, args.size.0, mapped, args.keep.0)?;
            // On a board each takes seconds: what is known is shown.
            if !report.json {
                report.print(&Value::Null, || one.to_string())?;
            }
            found.push(one);
        }
    }
    if report.json {
        let value = found.iter().map(|one| {
            let bound = bound(&one.bound);
            json!({
                "domain": one.domain, "buffer_bytes": one.chunk, "mapped": one.mapped,
                "buffers": one.buffers, "bytes": one.chunks(), "ended_by": bound.0,
                "errno": bound.1, "capacity": one.capacity, "lowest_iova": one.lowest,
                "highest_iova": one.highest, "seconds": one.time.as_secs_f64(),
            })
        });
        report.print(&value.collect::<Vec<_>>(), String::new)?;
    }
    match found.iter().find(|one| one.capacity.is_none()) {
        None => Ok(()),
        Some(short) => Err(Error::Usage(format!(
            "how much domain {} maps was not found out: {}; {}",
            short.domain,
            short.bound,
            match short.bound {
                Bound::Memory { .. } => "free memory, or let --keep be less",
                _ => "raise that limit, or use a larger --size",
            }
        ))),
    }
}

/// What ended a probe, in a word, and the driver's answer where that was it.
fn bound(bound: &Bound) -> (&'static str, Option<i32>) {
    match bound {
        Bound::Domain { errno } => ("domain", Some(errno.raw_os_error())),
        Bound::Memory { .. } => ("memory", None),
        Bound::OpenFiles { .. } => ("open files", None),
        Bound::Mappings => ("mappings", None),
        _ => ("other", None),
    }
}

fn stream(args: &StreamProbeArgs, report: Report) -> Result<()> {
    let device = args.device.device.open(report)?;
    let domain = device.new_domain()?;
    let size = length(args.size.0)?;
    let found = probe::stream(&domain, size, args.rounds, |round, bytes| {
        bytes.fill(round as u8);
    })?;
    let value = json!({
        "weight_bytes": found.weight, "done": found.done, "wanted": found.wanted,
        "peak": found.peak, "left": found.left, "addresses": found.addresses,
        "seconds": found.time.as_secs_f64(), "clean": found.is_clean(),
    });
    report.print(&value, || found.to_string())?;
    match found.is_clean() {
        true => Ok(()),
        false => Err(Error::Leak(format!(
            "memory leaks: {} of {} weights went through and {} bytes are left; the domain is whole again after a reboot",
            found.done, found.wanted, found.left
        ))),
    }
}

fn persist(args: &PersistArgs, report: Report) -> Result<()> {
    let device = args.device.device.open(report)?;
    let domain = device.new_domain()?;
    let layout = Layout::new(args.k, args.n, Precision::Int8);
    let layout = layout.map_err(|e| Error::Usage(e.to_string()))?;
    let found = probe::persist(&domain, length(layout.bytes())?, |out| {
        reference::tile_i8(layout, |k, n| (k * 31 + n * 17) as i8, out);
    })?;
    let value = json!({
        "bytes": found.bytes, "identical": found.differs_at.is_none(),
        "differs_at": found.differs_at, "pack_seconds": found.pack.as_secs_f64(),
        "load_seconds": found.load.as_secs_f64(), "speed_up": found.speed_up(),
    });
    report.print(&value, || found.to_string())?;
    match found.differs_at {
        None => Ok(()),
        Some(at) => Err(Error::Check(format!("the dumps differ from byte {at} on"))),
    }
}

fn domains(args: &DomainsArgs, report: Report) -> Result<()> {
    let device = args.device.device.open(report)?;
    let count = args.count.unwrap_or_else(|| device.capabilities().domains.count().min(4));
    let found = probe::domains(&device, count, args.size.0, args.rounds)?;
    let value = json!({
        "domains": found.domains, "mapped": found.mapped, "jobs": found.jobs,
        "wrong": found.wrong, "first_wrong": found.first_wrong, "switches": found.switches,
        "seconds": found.time.as_secs_f64(),
    });
    report.print(&value, || found.to_string())?;
    match found.wrong {
        0 => Ok(()),
        wrong => Err(Error::Check(format!("{wrong} of {} jobs gave wrong results", found.jobs))),
    }
}

fn cores(args: &DeviceArgs, report: Report) -> Result<()> {
    let device = args.device.open(report)?;
    let found = probe::cores(&device)?;
    let cores = found.cores.iter().map(|core| {
        json!({
            "core": core.core, "works": core.works(), "right": core.right,
            "busy_seconds": core.busy.as_secs_f64(), "error": core.error,
        })
    });
    let value = json!({
        "cores": cores.collect::<Vec<_>>(), "fences": found.fences,
        "kernels_choice": found.kernels_choice,
    });
    report.print(&value, || found.to_string())?;
    match found.cores.iter().filter(|core| !core.works()).count() {
        0 => Ok(()),
        broken => Err(Error::Check(format!("{broken} of {} cores do not work", found.cores.len()))),
    }
}

fn fill(args: &FillArgs, report: Report) -> Result<()> {
    let device = args.device.device.open(report)?;
    let domain = device.new_domain()?;
    let found = probe::fill(&domain, length(args.size.0)?)?;
    let rate = |rate: &probe::FillRate| {
        json!({
            "mapping": rate.mapping, "seconds": rate.time.as_secs_f64(),
            "gb_per_s": found.gb_per_s(rate),
        })
    };
    let value = json!({
        "bytes": found.bytes, "rates": found.rates.iter().map(rate).collect::<Vec<_>>(),
    });
    report.print(&value, || found.to_string())
}

fn length(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::Usage(format!("{bytes} bytes are too many")))
}
