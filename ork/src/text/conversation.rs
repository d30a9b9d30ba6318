//! A conversation: lines in, answers out.

use ork_llm::{Message, Role};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::{Answer, Teller, TextModel, failed};
use crate::cli::RunArgs;
use crate::error::{Error, Result};
use crate::output::Report;

/// Reads lines and answers them, until there are no more.
pub(crate) fn converse(
    args: &RunArgs,
    model: &mut TextModel,
    teller: &Teller,
    report: Report,
) -> Result<Vec<Answer>> {
    let read = |error: ReadlineError| Error::Usage(format!("cannot read what to answer: {error}"));
    let mut editor = DefaultEditor::new().map_err(read)?;
    report.note("Ctrl-C ends an answer, twice the program; Ctrl-D ends the conversation");
    let system = args.system.iter();
    let mut messages: Vec<Message> =
        system.map(|text| Message { role: Role::System, content: text.clone() }).collect();
    let mut answers = Vec::new();
    let mut ended = false;
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Eof) => break,
            Err(ReadlineError::Interrupted) if !ended => {
                ended = true;
                continue;
            }
            Err(ReadlineError::Interrupted) => break,
            Err(error) => return Err(read(error)),
        };
        ended = false;
        teller.forget_interrupt();
        if line.trim().is_empty() {
            continue;
        }
        // An editor without memory is still one.
        let _ = editor.add_history_entry(&line);
        messages.push(Message { role: Role::User, content: line });
        let answered = model.tokens(&messages).and_then(|tokens| teller.answer(model, &tokens));
        match answered {
            Ok(answer) => {
                teller.end_line();
                report.note(answer.figures());
                messages.push(Message { role: Role::Assistant, content: answer.text.clone() });
                answers.push(answer.written()?);
            }
            // What does not fit is left out; the conversation goes on.
            Err(error @ ork_llm::Error::ContextFull { .. }) => {
                messages.pop();
                report.note(format!("note: {error}"));
            }
            Err(error) => return Err(failed(&args.model)(error)),
        }
    }
    Ok(answers)
}
