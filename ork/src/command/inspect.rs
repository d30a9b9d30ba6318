//! `ork inspect`: what a pack or a model holds.

use std::collections::BTreeMap;

use ork_weights::model::OpenOptions;
use ork_weights::pack::{Entry, Identity, Pack, PackFile};
use serde::Serialize;

use crate::cli::InspectArgs;
use crate::error::{Error, Result};
use crate::input::{EXAMPLES, Input};
use crate::output::{Report, Table, counted, plain};
use crate::size::Size;

/// A pack, for scripts.
#[derive(Serialize)]
struct PackView<'a> {
    kind: &'static str,
    version: u32,
    bytes: u64,
    packer: Option<&'a str>,
    signature: u32,
    identity: Option<IdentityView>,
    embedded_gguf_bytes: Option<u64>,
    calibration_rows: usize,
    weights: Vec<WeightView<'a>>,
    left_out: Vec<LeftOutView<'a>>,
}

/// A tensor of the model that is not in the pack.
#[derive(Serialize)]
struct LeftOutView<'a> {
    name: &'a str,
    role: &'static str,
}

#[derive(Serialize)]
struct IdentityView {
    model_bytes: u64,
    modified_ns: u64,
    sample_hash: String,
    full_hash: Option<String>,
}

#[derive(Serialize)]
struct WeightView<'a> {
    name: &'a str,
    k: u32,
    n: u32,
    dtype: &'static str,
    bytes: u64,
    loaded_bytes: u64,
    groups: u32,
    bits: f64,
    stamped: bool,
    error: Option<f32>,
    checksum: Option<String>,
}

impl From<&Identity> for IdentityView {
    fn from(identity: &Identity) -> Self {
        IdentityView {
            model_bytes: identity.size,
            modified_ns: identity.modified_ns,
            sample_hash: format!("{:032x}", identity.sample_hash),
            full_hash: identity.full_hash.map(|hash| format!("{hash:032x}")),
        }
    }
}

impl<'a> From<&'a Entry> for WeightView<'a> {
    fn from(entry: &'a Entry) -> Self {
        WeightView {
            name: &entry.name,
            k: entry.k,
            n: entry.n,
            dtype: entry.dtype.name(),
            bytes: entry.stored_bytes(),
            loaded_bytes: entry.layout().bytes(),
            groups: entry.groups(),
            bits: entry.bits_per_weight(),
            stamped: entry.is_stamped(),
            error: entry.error(),
            checksum: entry.checksum().map(|sum| format!("{sum:016x}")),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// [`Error::Input`] for a file that is neither.
pub(super) fn run(args: &InspectArgs, report: Report) -> Result<()> {
    let list = OpenOptions { list: true, ..OpenOptions::default() };
    match Input::open_with(&args.file, &list)? {
        Input::Pack(pack) => print_pack(&pack, report).map_err(|e| match e {
            PrintError::Pack(source) => Error::input(&args.file)(source),
            PrintError::Output(error) => error,
        }),
        Input::Model(model) => super::models::print(&model, report),
    }
}

enum PrintError {
    Pack(ork_weights::pack::PackError),
    Output(Error),
}

fn print_pack(pack: &Pack<PackFile>, report: Report) -> Result<(), PrintError> {
    let metadata = pack.metadata().map_err(PrintError::Pack)?;
    let view = PackView {
        kind: "pack",
        version: pack.version(),
        bytes: pack.size(),
        packer: pack.packer(),
        signature: pack.signature(),
        identity: pack.identity().map(IdentityView::from),
        embedded_gguf_bytes: metadata.map(|m| m.source_bytes),
        calibration_rows: pack.calibration().map_or(0, |c| c.rows.len()),
        weights: pack.entries().iter().map(WeightView::from).collect(),
        left_out: pack
            .left_out()
            .iter()
            .map(|(name, role)| LeftOutView { name, role: role.name() })
            .collect(),
    };
    report.print(&view, || text(&view)).map_err(PrintError::Output)
}

fn text(view: &PackView<'_>) -> String {
    let mut table =
        Table::new(["weight", "K", "N", "storage", "bits", "stored", "on the device", "error"]);
    let mut tiers = BTreeMap::<&str, (usize, u64)>::new();
    for weight in &view.weights {
        let tier = tiers.entry(weight.dtype).or_default();
        *tier = (tier.0 + 1, tier.1 + weight.bytes);
        table.row([
            weight.name.to_owned(),
            weight.k.to_string(),
            weight.n.to_string(),
            weight.dtype.to_owned(),
            format!("{:.2}", weight.bits),
            Size(weight.bytes).to_string(),
            Size(weight.loaded_bytes).to_string(),
            weight.error.map_or("-".into(), |e| format!("{:.2} %", e * 100.0)),
        ]);
    }
    let mut lines = vec![table.to_string()];
    let loaded = view.weights.iter().map(|w| w.loaded_bytes).sum();
    lines.push(format!(
        "version {}, {} in the file, {} weights, {} on the device",
        view.version,
        Size(view.bytes),
        view.weights.len(),
        Size(loaded)
    ));
    for (tier, (count, bytes)) in tiers {
        lines.push(format!("{tier}: {count} weights, {}", Size(bytes)));
    }
    lines.push(match &view.identity {
        Some(identity) => format!(
            "made from a model of {}, sample hash {}",
            Size(identity.model_bytes),
            identity.sample_hash
        ),
        None => "no identity: another program wrote it, or the model was unknown".into(),
    });
    let mut roles = BTreeMap::<&str, Vec<&str>>::new();
    for tensor in &view.left_out {
        roles.entry(tensor.role).or_default().push(tensor.name);
    }
    for (role, names) in roles {
        let more = if names.len() > EXAMPLES { ", …" } else { "" };
        let examples = names.get(..EXAMPLES).unwrap_or(&names).join(", ");
        let count = counted(names.len(), "tensor");
        lines.push(format!("left out, {role}: {count} ({}{more})", plain(&examples)));
    }
    if let Some(packer) = view.packer {
        lines.push(format!("packed by {packer}"));
    }
    if let Some(bytes) = view.embedded_gguf_bytes {
        lines.push(format!("embeds the skeleton of a GGUF of {}", Size(bytes)));
    }
    if view.calibration_rows > 0 {
        lines.push(format!("{} rows of calibration", view.calibration_rows));
    }
    lines.join("\n")
}
