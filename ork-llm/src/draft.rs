//! Drafts: tokens proposed at little cost, which the model verifies many at a time.

use crate::decoder::Decoder;
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::sample::Sampler;
use crate::token::Tokenizer;

/// Proposes how a text may go on.
///
/// A pass over a model costs much the same for one row and for eight: on the NPU, and wherever
/// weights are streamed. A draft that is right half of the time halves the passes; one that is wrong
/// costs its own time, and the text stays what it would have been.
pub trait Draft: Send {
    /// Adds at most `most` tokens to `out` that may follow `text`, as `sampler` would choose them.
    ///
    /// # Errors
    /// Whatever kept it from computing; that no idea comes is none.
    fn propose(
        &mut self,
        text: &[u32],
        most: usize,
        sampler: &Sampler,
        out: &mut Vec<u32>,
    ) -> Result<()>;
}

/// Proposes what followed the last time when the text stood as it does now. Costs no model; good
/// where texts repeat themselves or their prompt.
///
/// ```
/// use ork_llm::{Draft, Ngrams, Sampler};
///
/// let text = [1, 2, 3, 4, 5, 9, 2, 3];
/// let mut proposed = Vec::new();
/// Ngrams::default().propose(&text, 2, &Sampler::greedy(), &mut proposed)?;
/// assert_eq!(proposed, [4, 5]); // what followed 2, 3
/// # Ok::<(), ork_llm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ngrams {
    /// Tokens that must be the same at least, 2 by default.
    pub shortest: usize,
    /// Tokens that are compared at most, 4 by default.
    pub longest: usize,
}

impl Default for Ngrams {
    fn default() -> Ngrams {
        Ngrams { shortest: 2, longest: 4 }
    }
}

impl Draft for Ngrams {
    fn propose(
        &mut self,
        text: &[u32],
        most: usize,
        _sampler: &Sampler,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        for length in (self.shortest.max(1)..=self.longest).rev() {
            let Some(start) = text.len().checked_sub(length).filter(|start| *start > 0) else {
                continue;
            };
            // The latest place, other than the end itself.
            let end = &text[start..];
            if let Some(at) = (0..start).rev().find(|at| text[*at..].starts_with(end)) {
                let next = at + length;
                out.extend_from_slice(&text[next..(next + most).min(text.len())]);
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Proposes what a smaller model of the same vocabulary would write.
#[derive(Debug)]
pub struct DraftModel {
    decoder: Decoder,
    cache: KvCache,
    /// The tokens in the cache.
    known: Vec<u32>,
}

/// Rows of a pass over a part of the text that the draft has not seen.
const BLOCK: usize = 128;

/// Tokens by which vocabularies of one family differ: they are padded to other multiples.
const PADDING: usize = 512;

impl DraftModel {
    /// A draft for texts of `context` tokens.
    pub fn new(decoder: Decoder, context: usize) -> DraftModel {
        let cache = decoder.cache(context);
        DraftModel { decoder, cache, known: Vec::new() }
    }

    /// Refuses a draft whose tokens are not those of the model.
    ///
    /// # Errors
    /// [`Error::Draft`] with the first token that differs.
    pub fn check(draft: &Tokenizer, model: &Tokenizer) -> Result<()> {
        if draft.len().abs_diff(model.len()) > PADDING {
            let reason = format!("it has {} tokens, the model {}", draft.len(), model.len());
            return Err(Error::Draft { reason });
        }
        let common = draft.len().min(model.len()) as u32;
        match (0..common).find(|token| draft.spelling(*token) != model.spelling(*token)) {
            None => Ok(()),
            Some(token) => {
                let text =
                    |of: &Tokenizer| String::from_utf8_lossy(&of.spelling(token)).into_owned();
                let (theirs, ours) = (text(draft), text(model));
                let reason = format!("its token {token} is {theirs:?}, the model's is {ours:?}");
                Err(Error::Draft { reason })
            }
        }
    }

    /// Passes through the draft so far.
    pub fn passes(&self) -> u64 {
        self.decoder.passes()
    }
}

impl Draft for DraftModel {
    fn propose(
        &mut self,
        text: &[u32],
        most: usize,
        sampler: &Sampler,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let vocabulary = self.decoder.config().vocabulary;
        // What the draft thought last, as far as it became text.
        let common = self.known.iter().zip(text).take_while(|(a, b)| a == b).count();
        let common = common.min(text.len().saturating_sub(1));
        self.known.truncate(common);
        self.cache.truncate(common);
        let unknown = &text[common..];
        if most == 0 || unknown.iter().any(|token| *token as usize >= vocabulary) {
            return Ok(());
        }
        let mut place = text.len();
        let mut pending = unknown.to_vec();
        while out.len() < most && place < self.cache.context() {
            let (last, wanted) = match pending.len() {
                0 => return Ok(()),
                len @ ..=BLOCK => (len, 1),
                _ => (BLOCK, 0),
            };
            let logits = self.decoder.forward(&mut self.cache, &pending[..last], wanted)?;
            let chosen = (wanted == 1).then(|| sampler.choose(logits, place));
            self.known.extend(pending.drain(..last));
            if let Some(token) = chosen {
                out.push(token);
                pending.push(token);
                place += 1;
            }
        }
        Ok(())
    }
}
