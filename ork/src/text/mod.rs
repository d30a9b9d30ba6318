//! Text from models: opening them, writing answers as they come, holding conversations.

mod answer;
mod check;
mod conversation;
mod interrupt;
mod layers;
mod model;
mod quality;
pub(crate) mod ways;

pub(crate) use answer::{Answer, Teller};
pub(crate) use conversation::{Conversation, converse};
pub(crate) use model::{TextModel, check_text_model};
pub(crate) use quality::{Table, measure};

use crate::error::Error;
use std::path::Path;

/// For `map_err` on a call of a model's file: what is wrong with the file, with what was asked, or
/// with what computes.
pub(crate) fn failed(path: &Path) -> impl FnOnce(ork_llm::Error) -> Error {
    use ork_llm::Error as Llm;
    move |error| match error {
        Llm::ContextFull { .. }
        | Llm::PromptTooLong { .. }
        | Llm::EmptyPrompt
        | Llm::Setting { .. }
        | Llm::Draft { .. } => Error::Usage(error.to_string()),
        other => Error::Input { path: path.into(), source: other.into() },
    }
}
