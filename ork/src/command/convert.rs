//! `ork convert`: a model into a pack.

use std::path::Path;

use ork_cache::environment::Environment;
use ork_weights::convert::{
    ConvertError, Imatrix, Options, Report as Converted, TierChoice, convert,
};
use ork_weights::model::{ModelError, OpenOptions};
use ork_weights::pack::WriterOptions;
use ork_weights::quantise::ParseTierError;
use ork_weights::quantise::QuantiseError;

use crate::cli::{ConvertArgs, QuantiseArgs};
use crate::error::{Error, Result};
use crate::input::{note_skipped, open_model};
use crate::memory::PeakRss;
use crate::output::{Progress, Report, Table, counted, seconds};
use crate::size::Size;
use crate::target::{check_output, check_pack_output, write_bytes};

/// Runs the command.
///
/// # Errors
/// [`Error::Input`] when the model cannot be read or the pack not be written; what stood at the
/// pack's place then stands there still.
pub(super) fn run(args: &ConvertArgs, report: Report) -> Result<()> {
    let environment = Environment::read().map_err(|e| Error::Usage(e.to_string()))?;
    let QuantiseArgs { include, exclude, .. } = args.quantise.clone();
    let open = OpenOptions { read: args.read, include, exclude, ..OpenOptions::default() };
    let rss = PeakRss::start();
    let model = open_model(&args.model, &open)?;
    let target = args.output.clone().unwrap_or_else(|| args.model.with_extension("orkpack"));
    check_pack_output(&target, &args.model)?;
    if let Some(Some(path)) = &args.report {
        check_output(path, &args.model)?;
    }
    let tiers = tiers(&args.quantise)?;
    let imatrix = args.quantise.imatrix.as_deref().map(imatrix).transpose()?;
    note_skipped(&model, report);
    for pattern in tiers.unused(&model) {
        let nearest = model.nearest(pattern).join(", ");
        let nearest = if nearest.is_empty() { nearest } else { format!("; like it are {nearest}") };
        report.note(format!(
            "warning: --tier-map {pattern:?} decides the tier of no weight{nearest}"
        ));
    }
    let options = Options {
        tiers,
        imatrix: imatrix.as_ref(),
        writer: WriterOptions {
            version: args.pack_version,
            replace: args.replace,
            ..WriterOptions::default()
        },
        full_hash: args.full_hash,
        evict_source: args.evict_src || environment.evict_source,
        measure: args.report.is_some(),
    };
    let progress = Progress::bytes("convert", model.weights().iter().map(|w| w.bytes).sum());
    let mut done = 0;
    let mut work = || {
        convert(&model, &target, &options, |at| {
            progress.add(at.bytes - done);
            done = at.bytes;
        })
    };
    let converted = match args.threads {
        0 => work(),
        threads => {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.into()).build();
            pool.map_err(|e| Error::Usage(format!("--threads {threads}: {e}")))?.install(work)
        }
    };
    let converted = converted.map_err(|error| failed(error, args, &target))?;
    drop(progress);
    if let Some(Some(path)) = &args.report {
        let json = serde_json::to_vec_pretty(&converted).map_err(Error::input(path))?;
        write_bytes(path, &json)?;
    }
    report.print(&converted, || text(&converted, args, rss.bytes()))
}

/// Whose fault it is: the arguments', the model's or the target's.
fn failed(error: ConvertError, args: &ConvertArgs, target: &Path) -> Error {
    let path = match &error {
        ConvertError::Model(ModelError::Quantise {
            source: QuantiseError::Group { .. }, ..
        }) => return Error::Usage(error.to_string()),
        ConvertError::Model(_) => &args.model,
        ConvertError::Imatrix { path, .. } => path,
        _ => target,
    };
    Error::Input { path: path.to_owned(), source: error.into() }
}

fn imatrix(path: &Path) -> Result<Imatrix> {
    Imatrix::open(path).map_err(Error::input(path))
}

/// The tiers that the arguments ask for: rules by name before the tier of all others.
fn tiers(args: &QuantiseArgs) -> Result<TierChoice> {
    let mut choice = match args.tier.as_deref() {
        None => TierChoice::default(),
        Some("source") => TierChoice::by_source(),
        Some(tier) => TierChoice::fixed(
            tier.parse().map_err(|error: ParseTierError| Error::Usage(error.to_string()))?,
        ),
    };
    args.tier_map
        .iter()
        .try_for_each(|rule| choice.add(rule))
        .map_err(|error| Error::Usage(error.to_string()))?;
    Ok(choice)
}

/// Whose readers take a pack of this version.
fn readers(version: u32) -> &'static str {
    match version {
        2 => "the C project's first readers",
        3 => "the C project's public reader",
        _ => "builds of the C project that ask for exactly this version",
    }
}

/// Tiers that came with the last of the C project's readers.
const LATE: [&str; 2] = ["rotated-int8", "int4-as-int8"];

/// Whether a weight is of a tier, with groups of scales or without.
fn has_tier(converted: &Converted, name: &str) -> bool {
    let of = |tier: &str| tier.split(':').next() == Some(name);
    converted.weights.iter().any(|weight| of(&weight.tier))
}

fn text(converted: &Converted, args: &ConvertArgs, rss: Option<u64>) -> String {
    let mut text = String::new();
    if args.report.is_some() {
        let mut table = Table::new(["weight", "K", "N", "from", "to", "bits", "bytes", "error"]);
        for weight in &converted.weights {
            table.row([
                weight.name.to_string(),
                weight.k.to_string(),
                weight.n.to_string(),
                weight.source.to_owned(),
                weight.tier.clone(),
                format!("{:.2}", weight.bits),
                Size(weight.bytes).to_string(),
                weight.error.map_or("-".into(), |e| format!("{:.3} %", e * 100.0)),
            ]);
        }
        text = format!("{table}\n");
    }
    let rate = converted.source_bytes() as f64 / 1e6 / converted.time.as_secs_f64().max(1e-9);
    text.push_str(&format!(
        "{}: {}, {}, from {} in {} ({rate:.0} MB/s), {} not taken, peak RSS {}\n",
        converted.path.display(),
        counted(converted.weights.len(), "weight"),
        Size(converted.bytes),
        Size(converted.source_bytes()),
        seconds(converted.time),
        counted(converted.skipped.len(), "tensor"),
        rss.map_or("unknown".into(), |bytes| Size(bytes).to_string()),
    ));
    let version = args.pack_version;
    text.push_str(&format!("version {version}, for ork and {}\n", readers(version)));
    let late: Vec<&str> = LATE.into_iter().filter(|late| has_tier(converted, late)).collect();
    if !late.is_empty() {
        text.push_str(&format!(
            "of the C project's readers only the latest know {}; others pass over it and pack such weights anew: \
             --tier int8 is for all\n",
            late.join(" and ")
        ));
    }
    if has_tier(converted, "fp16") {
        text.push_str(
            "half floats are for ork alone: the C project's readers pack such weights anew\n",
        );
    }
    if converted.resumed() > 0 {
        text.push_str(&format!(
            "{} of them were left by an interrupted conversion\n",
            converted.resumed()
        ));
    }
    text
}
