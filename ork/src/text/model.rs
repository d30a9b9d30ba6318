//! A model that writes, with what it needs beside its weights.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ork_cache::environment::Environment;
use ork_cache::kept::Kept;
use ork_linear::Depth;
use ork_llm::{
    ChatTemplate, Decoder, DraftModel, Linears, Message, Ngrams, Reference, Session, Tokenizer,
};
use ork_weights::model::gguf::Tensors;

use super::failed;
use super::interrupt::Interruptible;
use super::layers::{self, ALL_CORES, Weights};
use crate::cli::{Arithmetic, RunArgs};
use crate::device::OpenDevice;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::output::{Report, counted};
use crate::size::Size;

/// Weights up to this size as f32 are kept so; larger ones as the file has them.
const KEPT_AS_F32: u64 = 3 << 30;

/// What `--draft` calls proposals without a model.
const NGRAMS: &str = "ngrams";

/// Most tokens of a context that is not asked for.
const USUAL_CONTEXT: usize = 8192;

/// An open model and its text.
pub(crate) struct TextModel {
    pub(crate) session: Session,
    pub(crate) tokenizer: Tokenizer,
    /// Set to end a pass between two products.
    pub(super) interrupted: Arc<AtomicBool>,
    /// `None` where text is continued as it is.
    pub(crate) template: Option<ChatTemplate>,
    /// Where the weights are; it goes after them.
    _device: Option<OpenDevice>,
}

impl TextModel {
    /// Opens what the arguments name.
    pub(crate) fn open(args: &RunArgs, report: Report) -> Result<TextModel> {
        let path = &args.model;
        let (tensors, tokenizer) = open(path)?;
        let template = match args.raw {
            true => None,
            false => ChatTemplate::from_header(tensors.header()).map_err(failed(path))?,
        };
        if template.is_none() && !args.raw {
            if args.system.is_some() {
                let model = path.display();
                let reason = format!("{model} has no chat template, which --system would need");
                return Err(Error::Usage(reason));
            }
            report.note("note: the model has no chat template: text is continued as it is");
        }
        let small = args.draft.as_deref().filter(|draft| *draft != Path::new(NGRAMS));
        let draft = small.map(open).transpose()?;
        if let (Some(path), Some((_, vocabulary))) = (small, &draft) {
            DraftModel::check(vocabulary, &tokenizer).map_err(failed(path))?;
        }

        let (mut of_draft, of_model, device) = match args.tier {
            Arithmetic::F32 if args.persist.is_some() || args.budget.is_some() => {
                let reason = "--tier f32 computes from the model itself: there are no packed weights to \
                              --persist, nor device memory for a --budget";
                return Err(Error::Usage(reason.into()));
            }
            Arithmetic::F32 => {
                let reference = |tensors: &Tensors| -> Result<Box<dyn Linears>> {
                    Ok(Box::new(reference(tensors).map_err(failed(path))?))
                };
                let of_draft = draft.as_ref().map(|(tensors, _)| reference(tensors)).transpose()?;
                (of_draft, reference(&tensors)?, None)
            }
            Arithmetic::Packed(tier) => {
                // A draft is read in every round: it is the first to stay in memory.
                let models: Vec<&Path> = small.into_iter().chain([&**path]).collect();
                let device = args.device.device.open(report)?;
                let environment =
                    Environment::read().map_err(|error| Error::Usage(error.to_string()))?;
                let asked = args.persist.as_ref().map(Option::as_deref);
                let kept = match &args.pack {
                    Some(pack) => Kept::In(pack.clone()),
                    None => Kept::new(asked, &environment),
                };
                let nowhere = kept == Kept::Nowhere;
                let depth = Depth::Bits16;
                let (npu_rows, cores) = (device.npu_rows(), ALL_CORES);
                let (budget, access) = (args.budget, args.access);
                let weights = Weights { tier, depth, npu_rows, cores, budget, access, kept };
                let opened = layers::open(&weights, &models, &device, report)?;
                opened.notes.iter().for_each(|note| report.note(note));
                let (of_draft, of_model) = opened.into_draft_and_model()?;
                if nowhere {
                    report.note(format!(
                        "note: weights are quantised anew in every run; with --persist, {} are kept \
                         and the next run loads them",
                        Size(of_model.bytes())
                    ));
                }
                let of_draft = of_draft.map(|layers| Box::new(layers) as Box<dyn Linears>);
                (of_draft, Box::new(of_model) as Box<dyn Linears>, Some(device))
            }
        };
        let interrupted = Arc::default();
        let interruptible = |linears| Box::new(Interruptible::new(linears, &interrupted));
        let decoder = Decoder::new(tensors, interruptible(of_model)).map_err(failed(path))?;
        let made_for = decoder.config().context;
        let context = args.context.map_or(made_for.min(USUAL_CONTEXT), |n| n as usize);
        if context > made_for {
            report.note(format!("note: the model was made for {made_for} tokens, not {context}"));
        }
        let mut session = Session::new(decoder, context);
        let length = args.draft_tokens as usize;
        if let (Some(path), Some((tensors, _)), Some(linears)) = (small, draft, of_draft.take()) {
            let decoder = Decoder::new(tensors, interruptible(linears)).map_err(failed(path))?;
            session = session.with_draft(Box::new(DraftModel::new(decoder, context)), length);
        } else if args.draft.is_some() {
            session = session.with_draft(Box::new(Ngrams::default()), length);
        }
        Ok(TextModel { session, tokenizer, interrupted, template, _device: device })
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

/// A model's file and vocabulary.
pub(super) fn open(path: &Path) -> Result<(Tensors, Tokenizer)> {
    // It also knows what is no model, and says what it is: an LFS pointer, a web page, an archive.
    if let Input::Pack(pack) = Input::open(path)? {
        let (path, weights) = (path.display(), counted(pack.entries().len(), "weight"));
        return Err(Error::Usage(format!(
            "{path} is a pack of {weights}: it has neither a vocabulary nor norms nor embeddings; name its \
             model, and the pack with --pack {path}"
        )));
    }
    let open = || -> ork_llm::Result<_> {
        let tensors = Tensors::open(path)?;
        let tokenizer = Tokenizer::new(tensors.header())?;
        Ok((tensors, tokenizer))
    };
    open().map_err(failed(path))
}

/// Refuses what is no model that writes.
pub(crate) fn check_text_model(path: &Path) -> Result<()> {
    open(path).map(drop)
}

/// The layers in f32: kept so where they are small enough.
pub(super) fn reference(tensors: &Tensors) -> ork_llm::Result<Reference> {
    let values = |tensor: &ork_weights::model::gguf::Tensor| {
        tensor.dimensions.iter().copied().fold(4, u64::saturating_mul)
    };
    let bytes: u64 = tensors.iter().map(values).fold(0, u64::saturating_add);
    Ok(match bytes {
        ..=KEPT_AS_F32 => Reference::f32(tensors)?,
        _ => Reference::light(tensors)?,
    })
}
