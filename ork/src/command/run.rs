//! `ork run`: a model's text.

use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use ork_llm::{Message, Role, Sampler};
use serde::Serialize;

use crate::cli::RunArgs;
use crate::error::{Error, Result};
use crate::output::{Report, counted};
use crate::text::{Answer, Conversation, Teller, TextModel, converse, failed};

#[derive(Serialize)]
struct View {
    seed: u64,
    answers: Vec<Answer>,
    /// Why lines of a conversation have no answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// [`Error::Input`] for a model that cannot be used; [`Error::Usage`] for a prompt that is empty or
/// does not fit, settings out of range, a draft of another vocabulary.
pub(super) fn run(args: &RunArgs, report: Report) -> Result<()> {
    let seed = args.seed.unwrap_or_else(now);
    let sampler = Sampler::new(args.temperature, args.top_p, seed).map_err(failed(&args.model))?;
    let prompt = args.prompt.as_deref().map(prompt).transpose()?;
    let mut model = TextModel::open(args, report)?;
    if args.seed.is_none() && args.temperature != 0.0 {
        report.note(format!("note: --seed {seed}"));
    }
    let teller = Teller::new(sampler, args.max_tokens, &model, report)?;
    let Conversation { answers, refused, failure } = match prompt {
        Some(prompt) => {
            let answers = vec![once(args, prompt, &mut model, &teller, report)?];
            Conversation { answers, ..Conversation::default() }
        }
        None => converse(args, &mut model, &teller, report)?,
    };
    let first = refused.first().cloned();
    let (answered, left) = (answers.len(), refused.len());
    if report.json {
        report.print(&View { seed, answers, refused }, String::new)?;
    }
    match (failure, first) {
        (Some(error), _) => Err(error),
        (None, Some(first)) => {
            let lines = counted(answered + left, "line");
            Err(Error::Usage(format!(
                "{left} of {lines} not answered, the first one since {first}"
            )))
        }
        (None, None) => Ok(()),
    }
}

fn once(
    args: &RunArgs,
    prompt: String,
    model: &mut TextModel,
    teller: &Teller,
    report: Report,
) -> Result<Answer> {
    let system = args.system.iter();
    let system = system.map(|text| Message { role: Role::System, content: text.clone() });
    let user = Message { role: Role::User, content: prompt };
    let messages: Vec<Message> = system.chain([user]).collect();
    let tokens = model.tokens(&messages).map_err(failed(&args.model))?;
    let answer = teller.answer(model, &tokens).map_err(failed(&args.model))?;
    teller.end_line();
    report.note(answer.figures());
    answer.written()
}

/// The prompt itself, or what standard input holds.
fn prompt(argument: &str) -> Result<String> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(Error::file("read", "standard input".as_ref()))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::Usage(format!(
            "the prompt on standard input is not UTF-8: byte {at} is no character"
        ))
    })
}

/// A seed that no other run has.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64 % 1_000_000_000)
}
