//! `ork top`: loads, and what is mapped, as they are now, or recorded while a command runs.

mod picture;
mod sample;

use std::fs::File;
use std::io::{IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use self::picture::picture;
use self::sample::{HEADER, Sample, Summary, csv, figures, text};
use crate::activity;
use crate::cli::TopArgs;
use crate::error::{Error, Result};
use crate::output::Report;
use crate::sensors::Sensors;
use crate::target::{check_output, check_report};

/// Runs the command.
///
/// # Errors
/// [`Error::Usage`] when nothing here can be shown; [`Error::Check`] when the command that was
/// started failed.
pub(super) fn run(args: &TopArgs, report: Report) -> Result<()> {
    let sensors = Sensors::under(&args.root);
    if sensors.is_empty() && activity::read_all().is_empty() && args.run.is_empty() {
        return Err(Error::Usage(
            "nothing to show: this kernel reports no NPU or DDR load (rknpu's files in debugfs need root, rocket has none), and no `ork demo` or `ork bench` runs; start one, or give a command after --".into(),
        ));
    }
    if let Some(path) = &args.record {
        let files = args.run.iter().map(Path::new).filter(|file| file.is_file());
        check_report(path)?;
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
            programs: activity::read_all(),
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
        let pause = if enough { Duration::MAX } else { args.interval };
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
