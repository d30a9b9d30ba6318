//! Why a model cannot be used, or a text not be continued.

use crate::linear::LinearError;
use ork_weights::model::ModelError;

/// Result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between a model's file and its text.
///
/// ```
/// use ork_llm::Error;
///
/// let error = Error::ContextFull { used: 8190, more: 5, context: 8192 };
/// assert!(error.to_string().contains("8190 of 8192"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's file cannot be opened or read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model is of a family that has no decoder here.
    #[error("no decoder for models of the family {architecture:?}; there are those of {known}")]
    Family {
        /// What `general.architecture` says.
        architecture: Box<str>,
        /// The families there are.
        known: String,
    },
    /// A key of the header is missing or says what cannot be.
    #[error("the model's metadata key {key:?} {reason}")]
    Metadata {
        /// The key.
        key: Box<str>,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor is missing, or has another shape than the header says.
    #[error("the model's tensor {name:?} {reason}")]
    Tensor {
        /// Its name.
        name: Box<str>,
        /// What is wrong with it.
        reason: String,
    },
    /// A linear layer could not be computed.
    #[error("computing {weight:?}: {source}")]
    Linear {
        /// The first weight of the list.
        weight: Box<str>,
        /// Why.
        source: LinearError,
    },
    /// The model's vocabulary is missing or cannot be used.
    #[error("the model has no usable tokenizer: {reason}")]
    Tokenizer {
        /// What is missing or unknown.
        reason: String,
    },
    /// The model's chat template fails.
    #[error(
        "the model's chat template cannot be used ({reason}); without a template, text is continued as it is"
    )]
    Template {
        /// What the template engine says.
        reason: String,
    },
    /// The context has no room for more tokens.
    #[error(
        "the context is full: {used} of {context} tokens are used, {more} more do not fit; shorten the prompt or start anew"
    )]
    ContextFull {
        /// Tokens that are there.
        used: usize,
        /// Tokens that were to be added.
        more: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// A text that leaves no room in the context for an answer.
    #[error(
        "the context is full: the text has {tokens} tokens, and beside an answer a context of {context} has room \
         for {}; shorten it or start anew",
        context.saturating_sub(1)
    )]
    PromptTooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of text and answer that fit.
        context: usize,
    },
    /// There is nothing to continue.
    #[error("the prompt has no tokens: a model continues text, it needs at least one token")]
    EmptyPrompt,
    /// A token that the vocabulary does not have.
    #[error("token {token} is not in the vocabulary, which has {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// A draft model that does not speak the verifier's tokens.
    #[error("the draft has another vocabulary than the model: {reason}")]
    Draft {
        /// Where they differ.
        reason: String,
    },
    /// A setting out of its range.
    #[error("{setting} is {value}; {range}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What it is.
        value: f64,
        /// What is possible.
        range: &'static str,
    },
}

impl Error {
    /// A key whose value cannot be used.
    pub(crate) fn key(key: impl Into<Box<str>>, reason: impl Into<String>) -> Error {
        Error::Metadata { key: key.into(), reason: reason.into() }
    }

    /// A tensor that cannot be used.
    pub(crate) fn tensor(name: impl Into<Box<str>>, reason: impl Into<String>) -> Error {
        Error::Tensor { name: name.into(), reason: reason.into() }
    }

    /// For `map_err` on a list of products that begins with the weight `name`.
    pub(crate) fn linear(name: &str) -> impl FnOnce(LinearError) -> Error {
        move |source| Error::Linear { weight: name.into(), source }
    }
}
