//! `ork inspect` of a model: which tensors become weights, and which do not.

use ork_weights::convert::TierChoice;
use ork_weights::model::{Input, Model, Weight};
use ork_weights::quantise::{blob_bytes, blob_scales};
use serde::Serialize;

use crate::error::Result;
use crate::output::{Report, Table, counted, plain};
use crate::size::Size;

#[derive(Serialize)]
struct View<'a> {
    kind: &'static str,
    bytes: u64,
    files: Vec<String>,
    weights: Vec<WeightView<'a>>,
    skipped: Vec<SkippedView<'a>>,
}

#[derive(Serialize)]
struct WeightView<'a> {
    name: &'a str,
    role: &'static str,
    k: u32,
    n: u32,
    #[serde(rename = "type")]
    kind: String,
    bytes: u64,
    tier: String,
    packed_bytes: u64,
    layer: Option<u32>,
    input: Option<&'static str>,
    expert: Option<u32>,
}

#[derive(Serialize)]
struct SkippedView<'a> {
    name: &'a str,
    role: &'static str,
    reason: &'a str,
}

/// Prints what a model holds.
///
/// # Errors
/// [`Error::Output`](crate::error::Error::Output).
pub(super) fn print(model: &Model, report: Report) -> Result<()> {
    let tiers = TierChoice::default();
    let tiers: Vec<_> = model.weights().iter().map(|w| tiers.of(model, w)).collect();
    let packed = |w: &Weight, tier| {
        let scales = 4 * blob_scales(tier, w.k, w.n) as u64;
        blob_bytes(tier, w.k, w.n).map_or(0, |bytes| bytes + scales)
    };
    let weights = model.weights().iter().zip(tiers).map(|(w, tier)| WeightView {
        name: &w.name,
        role: w.role.name(),
        k: w.k,
        n: w.n,
        kind: w.kind.to_string(),
        bytes: w.bytes,
        tier: tier.to_string(),
        packed_bytes: packed(w, tier),
        layer: w.layer,
        input: w.input.map(Input::name),
        expert: w.expert,
    });
    let skipped = model.skipped().iter().map(|s| SkippedView {
        name: &s.name,
        role: s.role.name(),
        reason: &s.reason,
    });
    let view = View {
        kind: "model",
        bytes: model.bytes(),
        files: model.paths().map(|path| path.display().to_string()).collect(),
        weights: weights.collect(),
        skipped: skipped.collect(),
    };
    report.print(&view, || text(&view))
}

fn text(view: &View<'_>) -> String {
    let mut table =
        Table::new(["weight", "role", "K", "N", "type", "in the file", "tier", "packed"]);
    for weight in &view.weights {
        table.row([
            weight.name.to_owned(),
            weight.role.to_owned(),
            weight.k.to_string(),
            weight.n.to_string(),
            weight.kind.clone(),
            Size(weight.bytes).to_string(),
            weight.tier.clone(),
            Size(weight.packed_bytes).to_string(),
        ]);
    }
    let packed = view.weights.iter().map(|w| w.packed_bytes).sum();
    let mut text = format!(
        "{table}\n{} in {}, {}, {} when packed, {} not taken\n",
        Size(view.bytes),
        counted(view.files.len(), "file"),
        counted(view.weights.len(), "weight"),
        Size(packed),
        counted(view.skipped.len(), "tensor")
    );
    for skipped in &view.skipped {
        text.push_str(&format!(
            "not taken: {} ({}): {}\n",
            plain(skipped.name),
            skipped.role,
            skipped.reason
        ));
    }
    text
}
