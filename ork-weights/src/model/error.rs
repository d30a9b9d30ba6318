//! Why a model cannot be opened or a weight of it quantised.

use super::gguf::GgufError;
use crate::quantise::QuantiseError;
use std::io;
use std::path::{Path, PathBuf};

/// Everything that can go wrong with a model.
///
/// ```
/// use ork_weights::model::{Model, ModelError, OpenOptions};
///
/// let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
/// std::fs::write(file.path(), b"GGUF")?; // a download that broke off
/// let error = Model::open(file.path(), &OpenOptions::default()).unwrap_err();
/// assert!(matches!(error, ModelError::Gguf { .. }));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A call of the operating system failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Neither GGUF nor safetensors.
    #[error("{} is no model: GGUF files, safetensors files, indexes of safetensors shards (.json) and folders of the hub are read", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// Something else that people have beside models.
    #[error("{} is {what}, no model: {instead}", path.display())]
    NoModel {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// A folder that does not say which model is meant.
    #[error("{}: it is a folder: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is in it, and what to do.
        reason: String,
    },
    /// A tensor's name that would be another one for readers in C, or act on a terminal.
    #[error("{}: the name of tensor {number}, {name:?}, holds a control character: such a name reads differently elsewhere; rename it in the model", path.display())]
    ControlCharacter {
        /// The file.
        path: PathBuf,
        /// Its place among the file's tensors, from 0.
        number: usize,
        /// The name.
        name: Box<str>,
    },
    /// A file that ends before its tensors do.
    #[error("{}: {missing} bytes of {bytes} are missing: the download is incomplete", path.display())]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// Bytes that its header speaks of.
        bytes: u64,
        /// How many are not there.
        missing: u64,
    },
    /// A GGUF header that is refused.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Why.
        source: GgufError,
    },
    /// A safetensors header that is refused.
    #[error("{}: {reason}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// An index of shards that is refused.
    #[error("{}: {reason}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A set of split files that do not belong together.
    #[error("{}: {reason}", path.display())]
    Split {
        /// The file that does not fit.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// The same name in two files of a model.
    #[error("{}: tensor {name:?} is in an earlier file of the model too: files of two models, or one twice; take those of one download", path.display())]
    DuplicateTensor {
        /// The later file.
        path: PathBuf,
        /// The tensor.
        name: Box<str>,
    },
    /// The same name twice in the header of a file.
    #[error("{}: its header has tensor {name:?} twice: the file is damaged, download it again", path.display())]
    TensorTwice {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: Box<str>,
    },
    /// A tensor that is asked for in a way it cannot be read.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// The tensor.
        name: Box<str>,
        /// What is wrong.
        reason: String,
    },
    /// A weight whose values cannot be read.
    #[error(
        "tensor {name:?} has type {kind}, which cannot be read: quantise the model to another type (Q8_0, Q4_K, …), or leave it out with --exclude"
    )]
    UnsupportedType {
        /// The tensor.
        name: Box<str>,
        /// Its type.
        kind: String,
    },
    /// A pattern of tensors to take or to leave out that fits none.
    #[error("no tensor is called {pattern:?}{nearest}")]
    Pattern {
        /// The pattern.
        pattern: Box<str>,
        /// Names that are like it.
        nearest: String,
    },
    /// No tensor that the NPU could multiply by.
    #[error("{}: none of {tensors} tensors is a weight of a multiplication; the first one: {example}", path.display())]
    NoWeights {
        /// The model.
        path: PathBuf,
        /// Tensors there are.
        tensors: usize,
        /// Why the first was not taken.
        example: String,
    },
    /// The file ended where bytes should be: it was cut after it was opened.
    #[error(
        "{}: {what} at byte {offset} is no longer there, the file was shortened while it was read: restore it, and begin again",
        path.display()
    )]
    Shortened {
        /// The file.
        path: PathBuf,
        /// The weight, or the part of the file.
        what: String,
        /// The first byte that was wanted.
        offset: u64,
    },
    /// The file is no longer the one that was opened.
    #[error("{} changed while it was read: {what}; begin again when nobody writes it", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// A weight that could not be quantised.
    #[error("weight {name:?}: {source}")]
    Quantise {
        /// The weight.
        name: Box<str>,
        /// Why.
        source: QuantiseError,
    },
}

impl ModelError {
    /// For `map_err`: adds operation and path to an I/O error.
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ModelError {
        move |source| ModelError::Io { operation, path: path.to_owned(), source }
    }

    /// For `map_err`: adds the weight.
    pub(crate) fn quantise(name: &str) -> impl FnOnce(QuantiseError) -> ModelError {
        move |source| ModelError::Quantise { name: name.into(), source }
    }
}
