//! `ork bench`: every weight of a model times made-up activations, through a budget, pass after pass.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_cache::environment::Environment;
use ork_cache::kept::{Kept, Way};
use ork_cache::plan::Item;
use ork_cache::timeline::Recorder;
use ork_cache::{Reading, Setup, Store};
use ork_weights::pack::{DirectReads, Pack, PackFile, verify};
use ork_weights::quantise::Tier;
use rknpu::Precision;
use serde::Serialize;

use crate::cli::BenchArgs;
use crate::error::{Error, Result};
use crate::input::{Input, note_skipped, open_kept, open_pack};
use crate::memory::PeakRss;
use crate::output::{Progress, Report, Table, html, recovered, seconds};
use crate::run::routed::Routers;
use crate::run::session::{Session, Settings};
use crate::size::Size;
use crate::target::{check_output, write_bytes, write_file};

#[derive(Serialize)]
struct View {
    device: String,
    weights: usize,
    packed_bytes: u64,
    budget: u64,
    rows: u32,
    prefetch: bool,
    active_experts: Option<u32>,
    domains: usize,
    passes: Vec<PassView>,
    peak_mapped: u64,
    peak_rss: Option<u64>,
    digest: String,
    results_verified: u64,
    recovered_jobs: u64,
    reading: Reading,
    #[serde(skip_serializing_if = "Option::is_none")]
    direct: Option<DirectView>,
}

/// What was read past the page cache, in bytes.
#[derive(Serialize)]
struct DirectView {
    direct_bytes: u64,
    buffered_bytes: u64,
    /// Why the kernel refused a direct read.
    refused: Option<String>,
}

#[derive(Serialize)]
struct PassView {
    seconds: f64,
    hits: u64,
    loads: u64,
    evictions: u64,
    packed: u64,
    bytes_loaded: u64,
    waited_seconds: f64,
    compute_seconds: f64,
}

impl DirectView {
    fn new(reads: DirectReads) -> DirectView {
        DirectView {
            direct_bytes: reads.direct,
            buffered_bytes: reads.buffered,
            refused: reads.refusal().map(|error| error.to_string()),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// [`Error::Check`] when a result is not the CPU's; [`Error::Usage`] for a budget that cannot work.
pub(super) fn run(args: &BenchArgs, report: Report) -> Result<()> {
    let environment = Environment::read().map_err(|e| Error::Usage(e.to_string()))?;
    let budget = args.budget.map_or(environment.budget, |size| size.0);
    for output in args.trace.iter().chain(&args.html) {
        check_output(output, &args.file)?;
    }
    let source = Arc::new(open(args, &environment, report)?);
    let half = |item: &&Item| item.layout.precision() == Precision::Fp16;
    if let Some(item) = source.items().iter().find(half) {
        return Err(Error::Usage(format!(
            "{}: {:?} is of half floats, which the CPU computes: bench multiplies int8 and int4 on the NPU",
            args.file.display(),
            item.name
        )));
    }
    let device = args.device.device.open(report)?;
    let recorder = (args.trace.is_some() || args.html.is_some()).then(|| Arc::new(Recorder::new()));
    let setup = Setup {
        rows: args.rows,
        policy: environment.policy,
        access: args.access.unwrap_or(environment.access),
        recorder: recorder.clone(),
        ..Setup::new(budget)
    };
    let routers = |active| Routers { active, zipf: args.zipf, guesses: args.guesses };
    let settings = Settings {
        prefetch: !args.no_prefetch,
        verify: args.verify,
        routers: args.active.map(routers),
        ..Settings::new(format!("bench {}", args.file.display()), setup)
    };
    let rss = PeakRss::start();
    let mut session = Session::new(&device, slice::from_ref(&source), &settings)?;
    for note in session.notes() {
        report.note(format!("note: {note}"));
    }
    let progress = Progress::bytes("bench", source.bytes() * u64::from(args.passes));
    let mut passes = Vec::new();
    for _ in 0..args.passes {
        let before = (session.stats(), session.totals(0), source.given().packed);
        let start = Instant::now();
        session.pass(0)?;
        progress.add(source.bytes());
        let took = start.elapsed();
        let after = (session.stats(), session.totals(0), source.given().packed);
        passes.push(PassView {
            seconds: took.as_secs_f64(),
            hits: after.0.hits - before.0.hits,
            loads: after.0.loads() - before.0.loads(),
            evictions: after.0.evictions - before.0.evictions,
            packed: after.2 - before.2,
            bytes_loaded: after.0.bytes_loaded - before.0.bytes_loaded,
            waited_seconds: (after.1.waited - before.1.waited).as_secs_f64(),
            compute_seconds: (after.1.compute - before.1.compute).as_secs_f64(),
        });
    }
    drop(progress);
    let view = View {
        device: device.node().to_owned(),
        weights: source.items().len(),
        packed_bytes: source.bytes(),
        budget,
        rows: args.rows,
        prefetch: session.prefetches(),
        active_experts: args.active,
        domains: session.domains(),
        passes,
        peak_mapped: session.peak_mapped(),
        peak_rss: rss.bytes(),
        digest: format!("{:016x}", session.digest(0)),
        results_verified: session.totals(0).verified,
        recovered_jobs: device.health().recovered,
        reading: session.reading().clone(),
        direct: source.direct_reads().map(DirectView::new),
    };
    let residency = if args.html.is_some() { session.residency() } else { Vec::new() };
    drop(session);
    if let Some(recorder) = recorder {
        draw(args, &recorder, &residency, budget)?;
    }
    report.print(&view, || text(&view))
}

/// Looks at a pack's checksums, before results are verified: the CPU would multiply by the same damaged codes.
fn check_whole(pack: &Pack<PackFile>, path: &Path) -> Result<()> {
    match verify(pack, &|_| {}).problems.into_iter().next() {
        None => Ok(()),
        Some(first) => Err(Error::Check(format!(
            "{} is damaged: {first}; `ork verify` lists everything",
            path.display()
        ))),
    }
}

/// A pack as it is; a model with the pack that ORK_PERSIST names, which is made when it is not there.
fn open(args: &BenchArgs, environment: &Environment, report: Report) -> Result<Store> {
    let path = &args.file;
    let kept = Kept::new(None, environment);
    let model = match Input::open(path)? {
        Input::Pack(pack) => {
            if args.verify {
                check_whole(&pack, path)?;
            }
            return Ok(Store::from_pack(*pack));
        }
        Input::Model(model) => *model,
    };
    note_skipped(&model, report);
    let opened = open_kept(&kept, model, path, Tier::default(), report)?;
    match &opened.way {
        Way::Made => report.note("note: weights are quantised each time they are needed; `ork convert`, or ORK_PERSIST=PACK, does it once"),
        Way::Loaded { pack, .. } if args.verify => check_whole(&open_pack(pack)?, pack)?,
        Way::Building(_) | Way::Loaded { .. } => {}
    }
    Ok(opened.store.evict_source(environment.evict_source))
}

fn draw(
    args: &BenchArgs,
    recorder: &Recorder,
    residency: &[html::Domain],
    budget: u64,
) -> Result<()> {
    if let Some(path) = &args.trace {
        write_file(path, |file| {
            let mut out = BufWriter::new(file);
            let written = recorder.write(&mut out).and_then(|()| out.flush());
            written.map_err(Error::file("write", path))
        })?;
    }
    if let Some(path) = &args.html {
        let title = format!("ork bench {}", args.file.display());
        let map = html::domains(residency);
        let body = format!("{}<h2>What is where</h2>\n{map}", html::timeline(recorder, budget));
        let page = html::page(&title, &body);
        write_bytes(path, page.as_bytes())?;
    }
    Ok(())
}

fn text(view: &View) -> String {
    let mut table = Table::new([
        "pass", "wall", "compute", "waited", "hits", "loads", "packed", "evicted", "loaded",
    ]);
    for (number, pass) in view.passes.iter().enumerate() {
        let time = |s: f64| seconds(Duration::from_secs_f64(s));
        table.row([
            (number + 1).to_string(),
            time(pass.seconds),
            time(pass.compute_seconds),
            time(pass.waited_seconds),
            pass.hits.to_string(),
            pass.loads.to_string(),
            pass.packed.to_string(),
            pass.evictions.to_string(),
            Size(pass.bytes_loaded).to_string(),
        ]);
    }
    let rss = view.peak_rss.map_or("unknown".into(), |bytes| Size(bytes).to_string());
    let mut text = format!(
        "Benchmark: {} rows of made-up activations times {} weights, {}, through {} on {}\n{table}\nat most {} mapped, peak RSS {rss}, digest {}\n",
        view.rows,
        view.weights,
        Size(view.packed_bytes),
        Size(view.budget),
        view.device,
        Size(view.peak_mapped),
        view.digest
    );
    text.push_str(&format!("{} results compared: they are the CPU's\n", view.results_verified));
    text.push_str(&recovered(view.recovered_jobs));
    if view.reading.bytes > 0 {
        text.push_str(&format!("{}\n", view.reading));
    }
    if let Some(DirectView { direct_bytes, buffered_bytes, refused }) = &view.direct {
        let (direct, buffered) = (Size(*direct_bytes), Size(*buffered_bytes));
        text.push_str(&format!("{direct} came from the disk, {buffered} through the page cache"));
        if let Some(refused) = refused {
            text.push_str(&format!("; direct reads are refused here: {refused}"));
        }
        text.push('\n');
    }
    text
}
