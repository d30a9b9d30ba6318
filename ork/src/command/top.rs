//! `ork top`: loads and window use as they are now, or recorded while a command runs.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::TopArgs;
use crate::error::{Error, Result};
use crate::live::{self, Live};
use crate::output::{Report, Table, share};
use crate::sensors::{Loads, Sensors};
use crate::size::Size;
use crate::target::{check_output, check_place};

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
    let sensors = Sensors::under(&args.root);
    if sensors.is_empty() && live::read_all().is_empty() && args.run.is_empty() {
        return Err(Error::Usage(
            "nothing to show: this kernel reports no NPU or DDR load (debugfs needs root), and no `ork demo` or `ork stream` runs; start one, or give a command after --".into(),
        ));
    }
    if let Some(path) = &args.record {
        let files = args.run.iter().map(Path::new).filter(|file| file.is_file());
        check_place(path)?;
        files.into_iter().try_for_each(|file| check_output(path, file))?;
    }
    let ended = ended_by_signal()?;
    // A command that cannot be started must not cost the recording of another.
    let mut child = start(&args.run, report)?;
    let mut recording = match args.record.as_deref().map(begin_recording).transpose() {
        Ok(recording) => recording,
        Err(error) => {
            end(child.take(), SIGTERM as usize)?;
            return Err(error);
        }
    };
    let mut samples = Vec::new();
    let begin = Instant::now();
    let code = loop {
        let sample = Sample {
            seconds: begin.elapsed().as_secs_f64(),
            loads: sensors.read(),
            programs: live::read_all(),
        };
        // Unbuffered: whatever ends this, what was sampled is in the file.
        if let Some((file, path)) = &mut recording {
            writeln!(file, "{}", csv(&sample)).map_err(Error::file("write", path))?;
        }
        // A command's own output is not painted over.
        if args.run.is_empty() && !report.json {
            show(&sample, report)?;
        }
        samples.push(sample);
        let enough = args.samples.is_some_and(|limit| samples.len() as u64 >= limit);
        if enough && child.is_none() {
            break None;
        }
        let pause = if enough { Duration::MAX } else { interval };
        if let Some(code) = wait(&mut child, pause, &ended)? {
            break Some(code);
        }
        let signal = ended.load(Ordering::Relaxed);
        if signal != 0 {
            break end(child.take(), signal)?;
        }
    };
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

fn begin_recording(path: &Path) -> Result<(File, &Path)> {
    let mut file = File::create(path).map_err(Error::file("create", path))?;
    writeln!(file, "{HEADER}").map_err(Error::file("write", path))?;
    Ok((file, path))
}

/// Holds the number of the signal that asks to end, once one has come: the samples so far are summed up
/// then.
fn ended_by_signal() -> Result<Arc<AtomicUsize>> {
    let ended = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        let register = signal_hook::flag::register_usize(signal, ended.clone(), signal as usize);
        register.map_err(Error::Output)?;
    }
    Ok(ended)
}

/// Hands the signal on to the command and waits for its end.
fn end(child: Option<Child>, signal: usize) -> Result<Option<i32>> {
    let Some(mut child) = child else { return Ok(None) };
    let pid = rustix::process::Pid::from_child(&child);
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) {
        // It may have ended by itself, or have had the terminal's own.
        let _ = rustix::process::kill_process(pid, signal);
    }
    child.wait().map(|status| Some(code_of(status))).map_err(Error::Output)
}

/// The exit code; of a command that a signal ended, what a shell would say.
fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or(128 + status.signal().unwrap_or(0))
}

/// Starts the command; our own standard output holds one JSON document or, as the command's does, text.
fn start(command: &[String], report: Report) -> Result<Option<Child>> {
    let [program, arguments @ ..] = command else { return Ok(None) };
    let mut command = Command::new(program);
    command.args(arguments);
    if report.json {
        let stderr = std::io::stderr().as_fd().try_clone_to_owned().map_err(Error::Output)?;
        command.stdout(stderr);
    }
    let child = command.spawn();
    child.map(Some).map_err(|e| Error::Usage(format!("cannot start {program}: {e}")))
}

/// Sleeps for `interval`, or until a signal comes or the command ends, whose exit code is then
/// returned.
fn wait(child: &mut Option<Child>, interval: Duration, ended: &AtomicUsize) -> Result<Option<i32>> {
    const STEP: Duration = Duration::from_millis(20);
    let begin = Instant::now();
    while begin.elapsed() < interval && ended.load(Ordering::Relaxed) == 0 {
        if let Some(child) = child
            && let Some(status) = child.try_wait().map_err(Error::Output)?
        {
            return Ok(Some(code_of(status)));
        }
        std::thread::sleep(STEP.min(interval));
    }
    Ok(None)
}

fn show(sample: &Sample, report: Report) -> Result<()> {
    // Home and clear, so that a terminal shows the newest sample in place.
    let mut out = std::io::stdout();
    if out.is_terminal() {
        out.write_all(b"\x1b[H\x1b[2J").map_err(Error::Output)?;
    }
    report.print(sample, || picture(sample))
}

fn picture(sample: &Sample) -> String {
    let mut text = String::new();
    let mut bar = |name: &str, load: f64| {
        let filled = (load.clamp(0.0, 100.0) / 2.5).round() as usize;
        let _ = writeln!(text, "{name:<8} {:<40} {load:>5.1} %", "█".repeat(filled));
    };
    for (core, load) in core_loads(sample).iter().enumerate() {
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
            table.row([
                domain.index.to_string(),
                Size(domain.live).to_string(),
                Size(domain.window).to_string(),
                share(domain.live as f64, domain.window as f64),
            ]);
        }
        let _ = writeln!(text, "{table}");
    }
    text
}

/// Load of each core: what the kernel says, else what programs say of simulated ones, each of which
/// has cores of its own; the busiest counts.
fn core_loads(sample: &Sample) -> Vec<f64> {
    if let Some(cores) = &sample.loads.cores {
        return cores.clone();
    }
    let mut busiest: Vec<f64> = Vec::new();
    for cores in sample.programs.iter().map(|live| &live.cores) {
        busiest.resize(busiest.len().max(cores.len()), 0.0);
        busiest.iter_mut().zip(cores).for_each(|(most, load)| *most = most.max(*load));
    }
    busiest
}

/// Everything a sample measures, by name.
fn values(sample: &Sample) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for (core, load) in core_loads(sample).into_iter().enumerate() {
        all.push((format!("core {core} load, %"), load));
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

/// A line under [`HEADER`]; what nobody reports is empty.
fn csv(sample: &Sample) -> String {
    let cell = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v}"));
    let cores = core_loads(sample);
    let core = |index: usize| cores.get(index).map_or(String::new(), |v| format!("{v:.1}"));
    let programs = &sample.programs;
    let of_programs = |text: String| if programs.is_empty() { String::new() } else { text };
    // Not `sum`: that of nothing is -0.
    let stalled = programs.iter().fold(0.0, |sum, live| sum + live.stall_seconds);
    format!(
        "{:.3},{},{},{},{},{},{},{},{},{},{}",
        sample.seconds,
        core(0),
        core(1),
        core(2),
        cell(sample.loads.npu),
        cell(sample.loads.memory),
        cell(sample.loads.memory_mhz),
        of_programs(window(sample).to_string()),
        of_programs(programs.iter().map(|live| live.hits).sum::<u64>().to_string()),
        of_programs(programs.iter().map(|live| live.loads).sum::<u64>().to_string()),
        of_programs(format!("{stalled:.6}")),
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
            let maximum = all[all.len() - 1];
            // The middle one, or the mean of the two in the middle.
            let median = (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0;
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
        let even = super::figures(&[sample(1.0, 2.0), sample(2.0, 13.0)]);
        assert_eq!((even[0].median, even[0].maximum), (1.5, 2.0));
    }

    #[test]
    fn simulated_cores_fill_in_for_the_kernel_s() {
        let program = |cores: &[f64]| Live { cores: cores.to_vec(), ..Live::default() };
        let programs = vec![program(&[1.0]), program(&[0.5, 99.96, 3.0]), program(&[])];
        let mut sample = Sample { seconds: 0.0, loads: Loads::default(), programs };
        assert_eq!(core_loads(&sample), [1.0, 99.96, 3.0]);
        assert!(
            csv(&sample).starts_with("0.000,1.0,100.0,3.0,,,,0,0,0,0.000000"),
            "{}",
            csv(&sample)
        );
        sample.loads.cores = Some(vec![7.0]);
        assert_eq!(core_loads(&sample), [7.0]);
    }

    #[test]
    fn every_line_has_as_many_cells_as_the_header() {
        let cells = |line: &str| line.split(',').count();
        assert_eq!(cells(&csv(&sample(1.0, 2.0))), cells(HEADER));
        let nothing = Sample { seconds: 0.0, loads: Loads::default(), programs: Vec::new() };
        assert_eq!(csv(&nothing), "0.000,,,,,,,,,,", "what nobody reports is empty");
        assert_eq!(cells(&csv(&nothing)), cells(HEADER));
    }
}
