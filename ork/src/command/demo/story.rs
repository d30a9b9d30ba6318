//! `ork demo` and `ork demo MODEL`: one text, written in several ways.

use std::fs;
use std::path::{Path, PathBuf};

use ork_linear::NPU_ROWS;
use ork_llm::Sampler;
use serde::Serialize;

use crate::cli::DemoArgs;
use crate::error::{Error, Result};
use crate::output::{Report, Table, plain_lines, seconds};
use crate::size::Size;
use crate::text::ways::{Outcome, Scenario, Way, tell};

/// A model that writes stories, and a smaller one of the same vocabulary: ork/story has what made them.
const STORY: &[u8] = include_bytes!("../../../story/story.gguf");
const STORY_DRAFT: &[u8] = include_bytes!("../../../story/story-draft.gguf");

/// What the story model goes on from.
const BEGINNING: &str = "Once upon a time there was a";
/// What other models go on from: enough of it for the NPU.
const LONG_BEGINNING: &str = "Once upon a time there was a small fox named Pim, who lived in an old mill by the \
    river. Every day he played with Ada the duck. One day, on a cold evening, Ada did not come home.";

/// Tokens of a story, which fit the story model's context; and those of a large model, which takes longer.
const TOKENS: usize = 300;
const TOKENS_OF_MODEL: usize = 48;

const WAYS: [Way; 5] = [Way::OneCore, Way::Streamed, Way::Packed, Way::Reloaded, Way::Drafted];
/// Without the one that quantises a large model in every pass.
const WAYS_OF_MODEL: [Way; 4] = [Way::OneCore, Way::Packed, Way::Reloaded, Way::Drafted];

/// Divergence from f32 that is no longer rounding but another text. Over long texts of real models it is below
/// 0.006.
const MOST_KL: f64 = 0.05;

#[derive(Serialize)]
struct View<'a> {
    model: String,
    device: &'a str,
    prompt: &'a str,
    seed: u64,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Runs the command.
///
/// # Errors
/// [`Error::Check`] when a way writes another text than the others, or one that is not the model's.
pub(super) fn run(
    args: &DemoArgs,
    folder: &Path,
    device: &rknpu::Device,
    report: Report,
) -> Result<()> {
    let ours = args.model.is_none();
    let write = |name: &str, bytes: &[u8]| -> Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(Error::file("write", &path))?;
        Ok(path)
    };
    let (model, draft) = match &args.model {
        Some(model) => (model.clone(), args.draft.clone()),
        None => (write("story.gguf", STORY)?, Some(write("story-draft.gguf", STORY_DRAFT)?)),
    };
    let usual = if ours { BEGINNING } else { LONG_BEGINNING };
    let prompt = args.prompt.as_deref().unwrap_or(usual);
    let sampler = Sampler::new(args.temperature, 0.95, args.seed);
    let usual = if ours { TOKENS } else { TOKENS_OF_MODEL };
    let scenario = Scenario {
        model: &model,
        draft: draft.as_deref(),
        prompt,
        tokens: args.max_tokens.map_or(usual, |n| n as usize),
        sampler: sampler.map_err(|error| Error::Usage(error.to_string()))?,
        budget: args.budget,
        ways: if ours { &WAYS } else { &WAYS_OF_MODEL },
        // So small a model is for showing the NPU at work, not for its speed: prompt and drafts go there.
        npu_rows: if ours { 2 } else { NPU_ROWS },
        folder,
    };
    let outcome = tell(&scenario, device, report)?;
    let name = |path: &PathBuf| path.display().to_string();
    let model = args.model.as_ref().map_or("the story model".into(), name);
    let view = View { model, device: device.node(), prompt, seed: args.seed, outcome };
    report.print(&view, || text(&view))?;
    let Outcome { identical, kl, .. } = view.outcome;
    if !identical {
        return Err(Error::Check(
            "the texts differ: not every way writes what the first one does".into(),
        ));
    }
    if kl > MOST_KL {
        let reason =
            format!("what the NPU says diverges from f32 by {kl:.3}: {MOST_KL} is the most");
        return Err(Error::Check(reason));
    }
    Ok(())
}

fn text(view: &View<'_>) -> String {
    let outcome = &view.outcome;
    let mut table = Table::new([
        "",
        "resident",
        "streamed",
        "loaded",
        "1st token",
        "tokens/s",
        "passes",
        "drafted",
    ]);
    for told in &outcome.ways {
        let rest = told.time.saturating_sub(told.first_token).as_secs_f64();
        table.row([
            told.way.label().into(),
            Size(told.resident_bytes).to_string(),
            Size(told.streamed_bytes).to_string(),
            Size(told.loaded_bytes).to_string(),
            seconds(told.first_token),
            format!("{:.0}", told.tokens.saturating_sub(1) as f64 / rest.max(1e-9)),
            told.passes.to_string(),
            match told.proposed {
                0 => "-".into(),
                proposed => format!("{} of {proposed}", told.accepted),
            },
        ]);
    }
    let ways = outcome.ways.len();
    let bytes = outcome.text.len();
    let same = match outcome.identical {
        true => format!("All {ways} ways wrote the same {bytes} bytes."),
        false => {
            let texts = outcome.ways.iter();
            let lines = texts.map(|told| format!("\n{}: {:?}", told.way.label(), told.text));
            format!("The texts DIFFER.{}", lines.collect::<String>())
        }
    };
    format!(
        "{}\n\n{} of weights of {}, on {}; the budget of what streams is {}\n{table}\n{same}\n\
         Beside f32 on the CPU: divergence {:.1e}, the same most likely token at {:.1} % of {} positions.\n",
        plain_lines(&outcome.text),
        Size(outcome.weight_bytes),
        view.model,
        view.device,
        Size(outcome.budget),
        outcome.kl,
        100.0 * outcome.first_token,
        outcome.positions,
    )
}
