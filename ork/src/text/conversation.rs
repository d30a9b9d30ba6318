//! A conversation: lines in, answers out.

use std::io::ErrorKind;

use ork_llm::{Message, Role};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::{Answer, Teller, TextModel, failed};
use crate::cli::RunArgs;
use crate::error::{Error, Result};
use crate::output::Report;

/// What became of the lines of a conversation.
#[derive(Default)]
pub(crate) struct Conversation {
    pub(crate) answers: Vec<Answer>,
    /// Why lines have no answer.
    pub(crate) refused: Vec<String>,
    /// What ended it, other than its end.
    pub(crate) failure: Option<Error>,
}

/// Reads lines and answers them, until there are no more. A line that cannot be answered is said and left out,
/// and the conversation goes on.
///
/// # Errors
/// [`Error::Usage`] where lines cannot be read at all; what happens later is in the conversation.
pub(crate) fn converse(
    args: &RunArgs,
    model: &mut TextModel,
    teller: &Teller,
    report: Report,
) -> Result<Conversation> {
    let read = |error: ReadlineError| Error::Usage(format!("cannot read what to answer: {error}"));
    let mut editor = DefaultEditor::new().map_err(read)?;
    report.note("Ctrl-C ends an answer, twice the program; Ctrl-D ends the conversation");
    let system = args.system.iter();
    let mut messages: Vec<Message> =
        system.map(|text| Message { role: Role::System, content: text.clone() }).collect();
    let mut conversation = Conversation::default();
    let refuse = |conversation: &mut Conversation, reason: String| {
        report.note(format!("note: not answered: {reason}"));
        conversation.refused.push(reason);
    };
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
            // The line is read, and is no text.
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                refuse(&mut conversation, format!("a line is no text: {error}"));
                continue;
            }
            Err(error) => {
                conversation.failure = Some(read(error));
                break;
            }
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
                match answer.written() {
                    Ok(answer) => conversation.answers.push(answer),
                    Err(error) => {
                        conversation.failure = Some(error);
                        break;
                    }
                }
            }
            // The text's fault, not the model's.
            Err(
                error @ (ork_llm::Error::PromptTooLong { .. }
                | ork_llm::Error::ContextFull { .. }
                | ork_llm::Error::EmptyPrompt
                | ork_llm::Error::Template { .. }),
            ) => {
                messages.pop();
                refuse(&mut conversation, error.to_string());
            }
            Err(error) => {
                conversation.failure = Some(failed(&args.model)(error));
                break;
            }
        }
    }
    Ok(conversation)
}
