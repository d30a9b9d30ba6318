//! `ork quality`: what each form of weights costs, and how much it changes what a model says.

use serde::Serialize;

use crate::cli::QualityArgs;
use crate::error::Result;
use crate::output::{Report, Table, seconds};
use crate::size::Size;
use crate::text::{self, measure};

#[derive(Serialize)]
struct View {
    model: String,
    text: String,
    #[serde(flatten)]
    measured: text::Table,
}

/// Runs the command.
///
/// # Errors
/// As [`measure`].
pub(super) fn run(args: &QualityArgs, report: Report) -> Result<()> {
    let view = View {
        model: args.model.display().to_string(),
        text: args.text.display().to_string(),
        measured: measure(args, report)?,
    };
    report.print(&view, || table(&view))
}

fn table(view: &View) -> String {
    let mut table = Table::new([
        "weights",
        "activations",
        "time",
        "memory",
        "pack",
        "KL",
        "worst",
        "1st token",
        "perplexity",
    ]);
    for form in &view.measured.forms {
        table.row([
            form.form.clone(),
            form.activation_bits.to_string(),
            seconds(form.time),
            Size(form.bytes).to_string(),
            form.pack_bytes.map_or("-".into(), |bytes| Size(bytes).to_string()),
            format!("{:.2e}", form.kl),
            format!("{:.2e}", form.worst_kl),
            format!("{:.1} %", 100.0 * form.first_token),
            format!("{:.2}", form.perplexity),
        ]);
    }
    let View { model, text, measured: text::Table { tokens, window, .. } } = view;
    format!("{model}: {tokens} tokens of {text}, {window} at a time\n{table}")
}
