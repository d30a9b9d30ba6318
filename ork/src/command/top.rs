//! `ork top`: loads and window use as they are now, or recorded while a command runs.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write as _};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cli::TopArgs;
use crate::error::{Error, Result};
use crate::live::{self, Live};
use crate::output::{Report, Table};
use crate::sensors::{Loads, Sensors};
use crate::size::Size;

/// First line of a recording.
const HEADER: &str = "seconds,core0_percent,core1_percent,core2_percent,npu_percent,ddr_percent,ddr_mhz,window_bytes,hits,loads,stall_seconds";

#[derive(Serialize)]
struct Sample {
    seconds: f64,
    loads: Loads,
    programs: Vec<Live>,
}

/// What a recording comes down to.
#[derive(Serialize)]
struct Summary {
    samples: usize,
    command_code: Option<i32>,
    figures: Vec<Figure>,
}

#[derive(Serialize)]
struct Figure {
    name: String,
    median: f64,
    maximum: f64,
}

/// Runs the command.
///
/// # Errors
/// [`Error::Usage`] when nothing here can be shown; [`Error::Check`] when the command that was
/// started failed.
pub(super) fn run(args: &TopArgs, report: Report) -> Result<()> {
    let interval = Duration::try_from_secs_f64(args.interval)
        .ok()
        .filter(|interval| !interval.is_zero())
        .ok_or_else(|| Error::Usage(format!("--interval {} is no time", args.interval)))?;
    let sensors = Sensors::find();
    if sensors.is_empty() && live::read_all().is_empty() && args.run.is_empty() {
        return Err(Error::Usage(
            "nothing to show: this kernel reports no NPU or DDR load (debugfs needs root), and no `ork demo` or `ork stream` runs; start one, or give a command after --".into(),
        ));
    }
    let mut recording = match &args.record {
        Some(path) => {
            let file = File::create(path).map_err(Error::file("create", path))?;
            let mut out = BufWriter::new(file);
            writeln!(out, "{HEADER}").map_err(Error::file("write", path))?;
            Some((out, path))
        }
        None => None,
    };
    let mut child = start(&args.run)?;
    let mut samples = Vec::new();
    let begin = Instant::now();
    let code = loop {
        let sample = Sample {
            seconds: begin.elapsed().as_secs_f64(),
            loads: sensors.read(),
            programs: live::read_all(),
        };
        if let Some((out, path)) = &mut recording {
            writeln!(out, "{}", csv(&sample)).map_err(Error::file("write", path))?;
        }
        // A command's own output is not painted over.
        if args.run.is_empty() && !report.json {
            show(&sample, report)?;
        }
        samples.push(sample);
        if args.samples.is_some_and(|limit| samples.len() as u64 >= limit) && child.is_none() {
            break None;
        }
        if let Some(code) = wait(&mut child, interval)? {
            break Some(code);
        }
    };
    if let Some((mut out, path)) = recording {
        out.flush().map_err(Error::file("write", path))?;
    }
    let summary =
        Summary { samples: samples.len(), command_code: code, figures: figures(&samples) };
    if report.json || args.record.is_some() || !args.run.is_empty() {
        report.print(&summary, || text(&summary))?;
    }
    match code {
        None | Some(0) => Ok(()),
        Some(code) => Err(Error::Check(format!("the command ended with code {code}"))),
    }
}

fn start(command: &[String]) -> Result<Option<Child>> {
    let [program, arguments @ ..] = command else { return Ok(None) };
    let child = Command::new(program).args(arguments).spawn();
    child.map(Some).map_err(|e| Error::Usage(format!("cannot start {program}: {e}")))
}

/// Sleeps for `interval`, or until the command ends, whose exit code is then returned.
fn wait(child: &mut Option<Child>, interval: Duration) -> Result<Option<i32>> {
    const STEP: Duration = Duration::from_millis(20);
    let Some(child) = child else {
        std::thread::sleep(interval);
        return Ok(None);
    };
    let until = Instant::now() + interval;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().map_err(Error::Output)? {
            // Ended by a signal: what a shell would say.
            let signal = std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0);
            return Ok(Some(status.code().unwrap_or(128 + signal)));
        }
        std::thread::sleep(STEP.min(interval));
    }
    Ok(None)
}

fn show(sample: &Sample, report: Report) -> Result<()> {
    // Home and clear, so that a terminal shows the newest sample in place.
    let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    report.print(sample, || format!("{clear}{}", picture(sample)))
}

fn picture(sample: &Sample) -> String {
    let mut text = String::new();
    let mut bar = |name: &str, load: f64| {
        let filled = (load.clamp(0.0, 100.0) / 2.5).round() as usize;
        let _ = writeln!(text, "{name:<8} {:<40} {load:>5.1} %", "█".repeat(filled));
    };
    for (core, load) in sample.loads.cores.iter().flatten().enumerate() {
        bar(&format!("core {core}"), *load);
    }
    if let Some(load) = sample.loads.npu {
        bar("npu", load);
    }
    if let Some(load) = sample.loads.memory {
        bar("ddr", load);
    }
    for live in &sample.programs {
        let device = if live.simulated { ", simulated device" } else { "" };
        let _ = writeln!(
            text,
            "\n{} (process {}{device}): budget {}, {} hits, {} loads, {:.2} s stalled",
            live.title,
            live.pid,
            Size(live.budget),
            live.hits,
            live.loads,
            live.stall_seconds
        );
        let mut table = Table::new(["domain", "mapped", "window", "use"]);
        for domain in &live.domains {
            let part = domain.live as f64 / domain.window.max(1) as f64;
            table.row([
                domain.index.to_string(),
                Size(domain.live).to_string(),
                Size(domain.window).to_string(),
                format!("{:.1} %", part * 100.0),
            ]);
        }
        let _ = writeln!(text, "{table}");
    }
    text
}

/// Everything a sample measures, by name.
fn values(sample: &Sample) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for (core, load) in sample.loads.cores.iter().flatten().enumerate() {
        all.push((format!("core {core} load, %"), *load));
    }
    all.extend(sample.loads.npu.map(|load| ("NPU load, %".into(), load)));
    all.extend(sample.loads.memory.map(|load| ("DDR load, %".into(), load)));
    if !sample.programs.is_empty() {
        all.push(("window use, MiB".into(), window(sample) as f64 / (1 << 20) as f64));
    }
    all
}

fn window(sample: &Sample) -> u64 {
    sample.programs.iter().flat_map(|live| &live.domains).map(|domain| domain.live).sum()
}

fn csv(sample: &Sample) -> String {
    let cell = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v}"));
    let cores = sample.loads.cores.as_deref().unwrap_or_default();
    let core = |index: usize| cell(cores.get(index).copied());
    format!(
        "{:.3},{},{},{},{},{},{},{},{},{},{:.6}",
        sample.seconds,
        core(0),
        core(1),
        core(2),
        cell(sample.loads.npu),
        cell(sample.loads.memory),
        cell(sample.loads.memory_mhz),
        window(sample),
        sample.programs.iter().map(|live| live.hits).sum::<u64>(),
        sample.programs.iter().map(|live| live.loads).sum::<u64>(),
        sample.programs.iter().map(|live| live.stall_seconds).sum::<f64>(),
    )
}

fn figures(samples: &[Sample]) -> Vec<Figure> {
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    for (name, value) in samples.iter().flat_map(values) {
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => all.push(value),
            None => series.push((name, vec![value])),
        }
    }
    series
        .into_iter()
        .map(|(name, mut all)| {
            all.sort_by(f64::total_cmp);
            // A series begins with its first value, so it is never empty.
            let (median, maximum) = (all[all.len() / 2], all[all.len() - 1]);
            Figure { name, median, maximum }
        })
        .collect()
}

fn text(summary: &Summary) -> String {
    if summary.figures.is_empty() {
        return format!("{} samples; nothing here reports a load", summary.samples);
    }
    let mut table = Table::new(["", "median", "maximum"]);
    for figure in &summary.figures {
        let number = |value: f64| format!("{value:.1}");
        table.row([figure.name.clone(), number(figure.median), number(figure.maximum)]);
    }
    format!("{table}\n{} samples", summary.samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(core: f64, ddr: f64) -> Sample {
        let loads = Loads { cores: Some(vec![core]), memory: Some(ddr), ..Loads::default() };
        Sample { seconds: 0.5, loads, programs: Vec::new() }
    }

    #[test]
    fn medians_and_maxima_are_per_series() {
        let figures = figures(&[sample(1.0, 2.0), sample(9.0, 13.0), sample(5.0, 2.0)]);
        let of = |name: &str| figures.iter().find(|f| f.name.starts_with(name)).unwrap();
        assert_eq!((of("core 0").median, of("core 0").maximum), (5.0, 9.0));
        assert_eq!((of("DDR").median, of("DDR").maximum), (2.0, 13.0));
    }

    #[test]
    fn every_line_has_as_many_cells_as_the_header() {
        let cells = |line: &str| line.split(',').count();
        assert_eq!(cells(&csv(&sample(1.0, 2.0))), cells(HEADER));
        let nothing = Sample { seconds: 0.0, loads: Loads::default(), programs: Vec::new() };
        assert_eq!(cells(&csv(&nothing)), cells(HEADER));
    }
}
