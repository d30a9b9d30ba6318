//! The report at exit.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;

use rknpu_sim::config::{Driver, Form, Mode};
use rknpu_sim::report::Leaks;
use rknpu_sim::{Config, Report};
use serde::Serialize;

use crate::settings::{Destination, Settings};

/// Which driver was simulated: a version, where it has one.
fn driver(config: &Config) -> String {
    match config.driver {
        Driver::Rknpu => config.version.to_string(),
        Driver::Rocket(Form::Later) => "rocket".to_owned(),
        Driver::Rocket(Form::FirstMerged) => "rocket-6.18".to_owned(),
    }
}

/// The report as JSON has it.
#[derive(Debug, Serialize)]
struct Document<'a> {
    driver: String,
    mode: &'static str,
    clean: bool,
    leaks: Leaks,
    report: &'a Report,
}

/// The report as text, with whether something is wrong.
struct Text<'a>(&'a Config, &'a Report, Leaks, bool);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Text(config, report, leaks, bad) = self;
        let line = "rknpu-sim:";
        writeln!(f, "{line} driver {}, {}", driver(config), mode(config))?;
        write!(f, "{line} calls:")?;
        for (at, (kind, calls)) in report.calls.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma} {kind:?} {}", calls.ok + calls.failed)?;
            if calls.failed > 0 {
                write!(f, " ({} failed)", calls.failed)?;
            }
        }
        writeln!(f)?;
        writeln!(
            f,
            "{line} jobs: {} submitted, {} done, {} timed out, {} pending",
            report.jobs, report.jobs_done, report.jobs_timed_out, report.jobs_pending
        )?;
        writeln!(
            f,
            "{line} bytes: {} synced to the device, {} from it; buffers of {} made, {} at most at \
             once",
            report.to_device, report.from_device, report.created, report.peak
        )?;
        if report.discarded > 0 {
            writeln!(
                f,
                "{line} {} bytes written by the CPU were thrown away by FROM_DEVICE",
                report.discarded
            )?;
        }
        if report.unfetched > 0 {
            writeln!(
                f,
                "{line} missing sync: {} buffers were freed after the device wrote to them, without \
                 FROM_DEVICE in between",
                report.unfetched
            )?;
        }
        for found in &report.findings {
            writeln!(f, "{line} finding: {found}")?;
        }
        for met in &report.hazards {
            writeln!(f, "{line} hazard: {} ({} times)", met.text, met.times)?;
        }
        if *leaks != Leaks::default() {
            writeln!(
                f,
                "{line} left behind: {} handles, {} buffers, {} bytes of NPU addresses, {} mappings",
                leaks.handles, leaks.buffers, leaks.iova, leaks.mappings
            )?;
        } else {
            writeln!(f, "{line} left behind: nothing")?;
        }
        let verdict = match (bad, report.is_clean()) {
            (false, _) => "clean",
            (true, true) => "not clean: something was left behind",
            (true, false) => "not clean",
        };
        writeln!(f, "{line} verdict: {verdict}")
    }
}

fn mode(config: &Config) -> &'static str {
    match config.mode {
        Mode::Fast => "fast",
        Mode::Strict => "strict",
    }
}

/// Writes the report where the settings say, and returns the exit status that they ask for.
pub(crate) fn report(settings: &Settings, report: &Report) -> Option<u8> {
    let leaks = report.leaks();
    let bad = !report.is_clean() || (settings.count_leaks && leaks != Leaks::default());
    let text = if settings.json {
        let document = Document {
            driver: driver(&settings.config),
            mode: mode(&settings.config),
            clean: !bad,
            leaks,
            report,
        };
        serde_json::to_string(&document).unwrap_or_default() + "\n"
    } else {
        Text(&settings.config, report, leaks, bad).to_string()
    };
    match &settings.report {
        Destination::Nowhere => {}
        Destination::Stderr => eprint!("{text}"),
        Destination::File(path) => {
            // One write, so that the reports of several processes do not mix.
            let written = OpenOptions::new().create(true).append(true).open(path);
            if let Err(error) = written.and_then(|mut file| file.write_all(text.as_bytes())) {
                eprintln!("rknpu-sim: cannot write the report to {}: {error}", path.display());
                eprint!("{text}");
            }
        }
    }
    settings.exit.filter(|_| bad)
}
