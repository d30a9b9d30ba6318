//! A text that a model continues: prompts in blocks, then token after token, or draft after draft.

use crate::decoder::Decoder;
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::sample::Sampler;
use std::ops::ControlFlow;

/// Rows of a pass at most: enough that weights are read once for many, few enough that what lies
/// between the layers stays small.
const BLOCK: usize = 128;

/// A model, a text, and what the model has computed of it.
///
/// ```
/// use ork_llm::{Decoder, End, Reference, Sampler, Session};
/// use std::ops::ControlFlow;
/// # use ork_weights::model::{gguf::Tensors, synth::Shape};
/// # let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
/// # Shape::tiny().write(file.as_file())?;
/// # let tensors = Tensors::open(file.path())?;
/// # let linears = Reference::f32(&tensors)?;
/// # let decoder = Decoder::new(tensors, Box::new(linears))?;
///
/// let mut session = Session::new(decoder, 64);
/// session.prompt(&[1, 2, 3])?;
/// let mut text = Vec::new();
/// let done = session.generate(&Sampler::greedy(), 8, |_| false, |token| {
///     text.push(token);
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!((text.len(), done.end), (8, End::Length));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    decoder: Decoder,
    cache: KvCache,
    /// The text; the cache has its beginning.
    tokens: Vec<u32>,
    draft: Option<(Box<dyn Draft>, usize)>,
    block: usize,
    proposed: Vec<u32>,
    batch: Vec<u32>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (decoder, tokens) = (&self.decoder, self.tokens.len());
        write!(f, "Session {{ {decoder:?}, {tokens} tokens }}")
    }
}

/// Why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model said so, by a token that is not part of the text.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// Whoever takes the tokens wanted no more.
    Interrupted,
}

/// What a text took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Tokens of the prompt that were computed.
    pub prompt: usize,
    /// Tokens that were written.
    pub tokens: usize,
    /// Passes through the model, each over all its weights: those of the prompt, and one for every
    /// token or draft.
    pub passes: u64,
    /// Tokens that a draft proposed.
    pub proposed: usize,
    /// Those among them that became text.
    pub accepted: usize,
    /// Why it ended.
    pub end: End,
}

impl Session {
    /// An empty text of `context` tokens at most.
    pub fn new(decoder: Decoder, context: usize) -> Session {
        let cache = decoder.cache(context);
        let (proposed, batch) = (Vec::new(), Vec::new());
        Session { decoder, cache, tokens: Vec::new(), draft: None, block: BLOCK, proposed, batch }
    }

    /// Has tokens proposed by `draft`, at most `length` at a time, which the model verifies in one
    /// pass. The text is the same as without.
    #[must_use]
    pub fn with_draft(self, draft: Box<dyn Draft>, length: usize) -> Session {
        Session { draft: Some((draft, length)), ..self }
    }

    /// Cuts prompts into blocks of `rows` tokens, 128 otherwise; the text does not depend on it.
    #[must_use]
    pub fn with_block(self, rows: usize) -> Session {
        Session { block: rows.max(1), ..self }
    }

    /// The model.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The model, without the text.
    pub fn into_decoder(self) -> Decoder {
        self.decoder
    }

    /// The text.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of the text, from its beginning, that the model has computed.
    pub fn computed(&self) -> usize {
        self.cache.len()
    }

    /// Bytes of the keys and values of the text so far.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Replaces the text by `tokens`. What both have in common at the beginning is not computed
    /// again, so a conversation is given whole with every turn.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`]; [`Error::PromptTooLong`] when it leaves no room for an answer. The text is
    /// then as it was.
    pub fn prompt(&mut self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let context = self.cache.context();
        if tokens.len() >= context {
            return Err(Error::PromptTooLong { tokens: tokens.len(), context });
        }
        let common = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token is computed in any case: what follows it is asked for.
        self.cache.truncate(common.min(tokens.len() - 1));
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Continues the text by at most `most` tokens, until `stop` says that one ends it or `take`
    /// wants no more.
    ///
    /// # Errors
    /// As [`Decoder::forward`] and [`Draft::propose`]; [`Error::EmptyPrompt`] without a prompt. The
    /// tokens that were taken are part of the text.
    pub fn generate(
        &mut self,
        sampler: &Sampler,
        most: usize,
        stop: impl Fn(u32) -> bool,
        mut take: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generated> {
        if self.tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let before = self.decoder.passes();
        let prompt = self.tokens.len() - self.cache.len();
        let mut done =
            Generated { prompt, tokens: 0, passes: 0, proposed: 0, accepted: 0, end: End::Length };
        while done.tokens < most {
            if self.tokens.len() >= self.cache.context() {
                done.end = End::Context;
                break;
            }
            if let ControlFlow::Break(end) =
                self.round(sampler, most - done.tokens, &stop, &mut take, &mut done)?
            {
                done.end = end;
                break;
            }
        }
        done.passes = self.decoder.passes() - before;
        Ok(done)
    }

    /// One pass over what is not computed yet and over a draft, and the tokens that come of it:
    /// at least one, at most `most`.
    fn round(
        &mut self,
        sampler: &Sampler,
        most: usize,
        stop: &impl Fn(u32) -> bool,
        take: &mut impl FnMut(u32) -> ControlFlow<()>,
        done: &mut Generated,
    ) -> Result<ControlFlow<End>> {
        while self.tokens.len() - self.cache.len() > self.block {
            let block = self.cache.len()..self.cache.len() + self.block;
            self.decoder.forward(&mut self.cache, &self.tokens[block], 0)?;
        }
        self.proposed.clear();
        if let Some((draft, length)) = &mut self.draft {
            // A pass writes a token more than are proposed.
            let room = self.cache.context() - self.tokens.len();
            let most = (*length).min(most - 1).min(room.saturating_sub(1));
            draft.propose(&self.tokens, most, sampler, &mut self.proposed)?;
            self.proposed.truncate(most);
            let vocabulary = self.decoder.config().vocabulary;
            let foreign = self.proposed.iter().position(|token| *token as usize >= vocabulary);
            self.proposed.truncate(foreign.unwrap_or(usize::MAX));
        }
        self.batch.clear();
        self.batch.extend_from_slice(&self.tokens[self.cache.len()..]);
        self.batch.extend_from_slice(&self.proposed);
        let wanted = self.proposed.len() + 1;
        let vocabulary = self.decoder.config().vocabulary;
        let logits = self.decoder.forward(&mut self.cache, &self.batch, wanted)?;
        done.proposed += self.proposed.len();

        let mut flow = ControlFlow::Continue(());
        for (index, logits) in logits.chunks_exact(vocabulary).enumerate() {
            let token = sampler.choose(logits, self.tokens.len());
            if stop(token) {
                flow = ControlFlow::Break(End::Stop);
                break;
            }
            self.tokens.push(token);
            done.tokens += 1;
            let agreed = self.proposed.get(index) == Some(&token);
            done.accepted += usize::from(agreed);
            if take(token).is_break() {
                flow = ControlFlow::Break(End::Interrupted);
                break;
            }
            if !agreed {
                break;
            }
        }
        // What was computed of a draft that did not become text. The last token of the text is never
        // in the cache: nobody has asked yet what follows it.
        self.cache.truncate(self.tokens.len() - 1);
        Ok(flow)
    }
}
