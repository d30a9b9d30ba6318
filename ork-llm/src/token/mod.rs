//! From text to tokens and back, by the vocabulary that a GGUF carries.

mod pieces;
mod stream;
mod template;

pub use stream::TextStream;
pub use template::{ChatTemplate, Message, Role};

use crate::error::{Error, Result};
use ork_weights::model::gguf::Gguf;
use pieces::Fragment;
use splintr::{AnyTokenizer, GgufVocab, from_gguf_vocab};
use std::collections::{BTreeMap, BTreeSet};

/// Types of tokens, as GGUF numbers them.
const NORMAL: u32 = 1;
const UNKNOWN: u32 = 2;
const CONTROL: u32 = 3;

/// Names of tokens that end an answer, in families whose headers do not say so.
const ENDS: [&str; 9] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<eos>",
];

/// A model's vocabulary, and how text is cut into it.
///
/// Tokens are those that llama.cpp gives. Special tokens (ends of turns, begins of texts) are made
/// from templates alone: what a user writes stays text, whatever it says.
///
/// ```no_run
/// use ork_llm::Tokenizer;
/// use ork_weights::model::gguf::Tensors;
///
/// let tensors = Tensors::open("smollm2.gguf")?;
/// let tokenizer = Tokenizer::new(tensors.header())?;
/// let tokens = tokenizer.encode("The capital of France is");
/// assert_eq!(tokenizer.decode(&tokens), "The capital of France is");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tokenizer {
    text: AnyTokenizer,
    /// Texts and numbers of control tokens, the longest first.
    control: Vec<(Box<str>, u32)>,
    /// The same by their numbers: tokens that give no text.
    silent: BTreeMap<u32, Box<str>>,
    ends: BTreeSet<u32>,
    begin: Option<u32>,
    len: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tokenizer { len, begin, ends, .. } = self;
        write!(f, "Tokenizer {{ len: {len}, begin: {begin:?}, ends: {ends:?} }}")
    }
}

impl Tokenizer {
    /// Takes the vocabulary from a header.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when there is none, or one of an unknown kind.
    pub fn new(header: &Gguf) -> Result<Tokenizer> {
        let refuse = |reason: String| Error::Tokenizer { reason };
        let tokens = strings(header, "tokenizer.ggml.tokens")?
            .ok_or_else(|| refuse("the header has no tokenizer.ggml.tokens".into()))?;
        let numbers = |key: &str| header.array(key).and_then(|array| array.integers());
        let mut types: Vec<u32> = numbers("tokenizer.ggml.token_type")
            .map(|types| types.map(|kind| u32::try_from(kind).unwrap_or(NORMAL)).collect())
            .unwrap_or_default();
        types.resize(tokens.len(), NORMAL);
        let len = tokens.len();
        let number = |key: &str| {
            let id = header.number(&format!("tokenizer.ggml.{key}"))?;
            u32::try_from(id).ok().filter(|id| (*id as usize) < len)
        };

        let mut ends: BTreeSet<u32> = ["eos_token_id", "eot_token_id", "eom_token_id"]
            .iter()
            .filter_map(|k| number(k))
            .collect();
        let (mut control, mut silent) = (Vec::new(), BTreeMap::new());
        for ((id, token), kind) in (0u32..).zip(&tokens).zip(&mut types) {
            if !matches!(*kind, UNKNOWN | CONTROL) {
                continue;
            }
            // Control tokens are found here, so that it can be told where; below they are text.
            control.push((token.as_str().into(), id));
            silent.insert(id, token.as_str().into());
            *kind = NORMAL;
            if ENDS.contains(&token.as_str()) {
                ends.insert(id);
            }
        }
        control.retain(|(text, _): &(Box<str>, u32)| !text.is_empty());
        control.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.1.cmp(&b.1)));

        let model = header.text("tokenizer.ggml.model").unwrap_or("llama").to_owned();
        // Without a word on it, only vocabularies of pieces begin with a token of their own.
        let begins = header.bool("tokenizer.ggml.add_bos_token").unwrap_or(model == "llama");
        let begin = begins.then(|| number("bos_token_id")).flatten();
        let text = from_gguf_vocab(GgufVocab {
            model,
            tokens,
            scores: header
                .array("tokenizer.ggml.scores")
                .and_then(|scores| scores.floats())
                .map(Iterator::collect),
            merges: strings(header, "tokenizer.ggml.merges")?,
            token_type: Some(types),
            add_space_prefix: header.bool("tokenizer.ggml.add_space_prefix"),
            add_bos_token: Some(false),
            add_eos_token: Some(false),
            eos_token_id: number("eos_token_id"),
            unknown_token_id: number("unknown_token_id"),
            pre: header.text("tokenizer.ggml.pre").map(str::to_owned),
            ..GgufVocab::default()
        })
        .map_err(|error| refuse(error.to_string()))?;
        Ok(Tokenizer { text, control, silent, ends, begin, len })
    }

    /// Tokens in the vocabulary.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none; never, a header without tokens is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The token that begins every text of the model, where it has one.
    pub fn begin(&self) -> Option<u32> {
        self.begin
    }

    /// Whether `token` ends an answer.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// The tokens of a text that a user wrote, behind [`begin`](Tokenizer::begin).
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut tokens = Vec::from_iter(self.begin);
        self.push_text(text, &mut tokens);
        tokens
    }

    /// [`encode`](Tokenizer::encode) for texts of the model's own making: what spells a control token
    /// becomes one.
    pub fn encode_with_control(&self, text: &str) -> Vec<u32> {
        self.encode_rendered(text, None)
    }

    /// The tokens of a conversation, from where its answer is to begin. What the messages say stays
    /// text, even where it spells a control token.
    ///
    /// # Errors
    /// [`Error::Template`] when the template refuses the messages.
    pub fn encode_chat(&self, template: &ChatTemplate, messages: &[Message]) -> Result<Vec<u32>> {
        let mark = pieces::unused(messages.iter().map(|message| &*message.content));
        let control: Vec<&str> = self.control.iter().map(|(text, _)| &**text).collect();
        let marked: Vec<Message> = messages
            .iter()
            .map(|message| Message {
                role: message.role,
                content: pieces::marked(&message.content, &control, mark),
            })
            .collect();
        Ok(self.encode_rendered(&template.render(&marked)?, Some(mark)))
    }

    /// Text in which control tokens are tokens; `mark` is left out, after they are looked for.
    fn encode_rendered(&self, text: &str, mark: Option<char>) -> Vec<u32> {
        let mut tokens = Vec::new();
        for fragment in pieces::fragments(text, &self.control) {
            match fragment {
                Fragment::Control(token) => tokens.push(token),
                Fragment::Text(text) => match mark.filter(|mark| text.contains(*mark)) {
                    None => self.push_text(text, &mut tokens),
                    Some(mark) => self.push_text(&text.replace(mark, ""), &mut tokens),
                },
            }
        }
        if let Some(begin) = self.begin.filter(|begin| tokens.first() != Some(begin)) {
            tokens.insert(0, begin);
        }
        tokens
    }

    fn push_text(&self, text: &str, tokens: &mut Vec<u32>) {
        if !text.is_empty() {
            tokens.extend(self.text.encode_raw(text));
        }
    }

    /// The bytes of a token, which may be a piece of a character; none for control tokens.
    pub fn bytes(&self, token: u32) -> Vec<u8> {
        if self.silent.contains_key(&token) {
            return Vec::new();
        }
        self.text.decode_token_bytes(token).unwrap_or_default()
    }

    /// The bytes of a token, those of a control token too.
    pub(crate) fn spelling(&self, token: u32) -> Vec<u8> {
        match self.silent.get(&token) {
            Some(text) => text.as_bytes().to_vec(),
            None => self.bytes(token),
        }
    }

    /// The text of tokens; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| self.bytes(*token)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The strings of an array, where it is there.
fn strings(header: &Gguf, key: &str) -> Result<Option<Vec<String>>> {
    let Some(array) = header.array(key) else { return Ok(None) };
    let refuse = |reason: &str| Error::Tokenizer { reason: format!("{key} {reason}") };
    let strings = array.strings().ok_or_else(|| refuse("are no strings"))?;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned);
    let texts: Result<Vec<String>, _> = strings.map(text).collect();
    Ok(Some(texts.map_err(|_| refuse("are not UTF-8"))?))
}
