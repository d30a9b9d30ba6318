//! A model that writes, with what it needs beside its weights.

use std::path::Path;

use ork_llm::{
    ChatTemplate, Decoder, DraftModel, Linears, Message, Ngrams, Reference, Session, Tokenizer,
};
use ork_weights::model::gguf::Tensors;

use super::failed;
use crate::cli::RunArgs;
use crate::error::{Error, Result};
use crate::output::Report;

/// Weights up to this size as f32 are kept so; larger ones as the file has them.
const KEPT_AS_F32: u64 = 3 << 30;

/// Most tokens of a context that is not asked for.
const USUAL_CONTEXT: usize = 8192;

/// An open model and its text.
pub(crate) struct TextModel {
    pub(crate) session: Session,
    pub(crate) tokenizer: Tokenizer,
    /// `None` where text is continued as it is.
    pub(crate) template: Option<ChatTemplate>,
}

impl TextModel {
    /// Opens what the arguments name.
    pub(crate) fn open(args: &RunArgs, report: Report) -> Result<TextModel> {
        let path = &args.model;
        let (decoder, tokenizer) = open(path)?;
        let header = decoder.tensors().header();
        let template = match args.raw {
            true => None,
            false => ChatTemplate::from_header(header).map_err(failed(path))?,
        };
        if template.is_none() && !args.raw {
            if args.system.is_some() {
                let model = path.display();
                let reason = format!("{model} has no chat template, which --system would need");
                return Err(Error::Usage(reason));
            }
            report.note("note: the model has no chat template: text is continued as it is");
        }
        let made_for = decoder.config().context;
        let context = args.context.map_or(made_for.min(USUAL_CONTEXT), |n| n as usize);
        if context > made_for {
            report.note(format!("note: the model was made for {made_for} tokens, not {context}"));
        }
        let mut session = Session::new(decoder, context);
        if let Some(draft) = &args.draft {
            let length = args.draft_tokens as usize;
            session = match draft.to_str() {
                Some("ngrams") => session.with_draft(Box::new(Ngrams::default()), length),
                _ => {
                    let (decoder, vocabulary) = open(draft)?;
                    DraftModel::check(&vocabulary, &tokenizer).map_err(failed(draft))?;
                    session.with_draft(Box::new(DraftModel::new(decoder, context)), length)
                }
            };
        }
        Ok(TextModel { session, tokenizer, template })
    }

    /// The tokens of a conversation.
    pub(crate) fn tokens(&self, messages: &[Message]) -> ork_llm::Result<Vec<u32>> {
        match &self.template {
            Some(template) => self.tokenizer.encode_chat(template, messages),
            None => {
                let text: String = messages.iter().map(|message| &*message.content).collect();
                Ok(self.tokenizer.encode(&text))
            }
        }
    }
}

fn open(path: &Path) -> Result<(Decoder, Tokenizer)> {
    let open = || -> ork_llm::Result<(Decoder, Tokenizer)> {
        let tensors = Tensors::open(path)?;
        // Before the weights, which take longer.
        let tokenizer = Tokenizer::new(tensors.header())?;
        let values = |tensor: &ork_weights::model::gguf::Tensor| {
            tensor.dimensions.iter().copied().fold(4, u64::saturating_mul)
        };
        let bytes: u64 = tensors.iter().map(values).fold(0, u64::saturating_add);
        let linears: Box<dyn Linears> = match bytes {
            ..=KEPT_AS_F32 => Box::new(Reference::f32(&tensors)?),
            _ => Box::new(Reference::light(&tensors)?),
        };
        Ok((Decoder::new(tensors, linears)?, tokenizer))
    };
    open().map_err(failed(path))
}
