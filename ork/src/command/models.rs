//! `ork inspect` of a model: which tensors become weights, and which do not.

use ork_weights::model::Model;
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
    k: u32,
    n: u32,
    #[serde(rename = "type")]
    kind: String,
    bytes: u64,
    packed_bytes: u64,
    layer: Option<u32>,
    expert: Option<u32>,
}

#[derive(Serialize)]
struct SkippedView<'a> {
    name: &'a str,
    reason: &'a str,
}

/// Prints what a model holds.
///
/// # Errors
/// [`Error::Output`](crate::error::Error::Output).
pub(super) fn print(model: &Model, report: Report) -> Result<()> {
    let weights = model.weights().iter().map(|w| WeightView {
        name: &w.name,
        k: w.k,
        n: w.n,
        kind: w.kind.to_string(),
        bytes: w.bytes,
        packed_bytes: u64::from(w.k) * u64::from(w.n),
        layer: w.layer,
        expert: w.expert,
    });
    let skipped = model.skipped().iter().map(|s| SkippedView { name: &s.name, reason: &s.reason });
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
    let mut table = Table::new(["weight", "K", "N", "type", "in the file", "as int8"]);
    for weight in &view.weights {
        table.row([
            weight.name.to_owned(),
            weight.k.to_string(),
            weight.n.to_string(),
            weight.kind.clone(),
            Size(weight.bytes).to_string(),
            Size(weight.packed_bytes).to_string(),
        ]);
    }
    let packed = view.weights.iter().map(|w| w.packed_bytes).sum();
    let mut text = format!(
        "{table}\n{} in {}, {}, {} as int8, {} not taken\n",
        Size(view.bytes),
        counted(view.files.len(), "file"),
        counted(view.weights.len(), "weight"),
        Size(packed),
        counted(view.skipped.len(), "tensor")
    );
    for skipped in &view.skipped {
        text.push_str(&format!("not taken: {}: {}\n", plain(skipped.name), skipped.reason));
    }
    text
}
