//! Why a command ends without having done what it was asked, and the exit code for it.

use std::error::Error as StdError;
use std::path::{Path, PathBuf};

use ork_cache::plan::PlanError;

use crate::size::Size;

/// Result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of a command. Its text, with those of its causes (see [`ork_cache::chain`]), names what was done,
/// the numbers and the way out.
///
/// ```
/// use ork::error::Error;
///
/// assert_eq!(Error::Check("outputs differ".into()).exit_code(), 1);
/// assert_eq!(Error::Usage("--budget 1 is too small".into()).exit_code(), 2);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command ran, and what it checked is not so.
    #[error("{0}")]
    Check(String),
    /// Arguments that contradict each other or the machine.
    #[error("{0}")]
    Usage(String),
    /// A probe found that memory is not given back.
    #[error("{0}")]
    Leak(String),
    /// A file of the user's cannot be read or written.
    #[error("cannot {action} {}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file whose content cannot be used.
    #[error("{}", .path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The weight cache could not do what the command needs.
    #[error(transparent)]
    Cache(ork_cache::Error),
    /// What `--device` names is no NPU.
    #[error("--device {} {reason}: auto looks for an NPU, sim simulates one", .path.display())]
    Node {
        /// The node.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The NPU, or its driver, could not do it.
    #[error(transparent)]
    Device(#[from] rknpu::Error),
    /// A weight's content is not what its layout says.
    #[error("a weight cannot be read")]
    Source(#[source] ork_cache::Cause),
    /// A weight could not be had, or the pack that is built of them not be finished.
    #[error(transparent)]
    Store(#[from] ork_cache::StoreError),
    /// The system has no thread left.
    #[error("a thread cannot be started")]
    Thread(#[source] std::io::Error),
    /// Writing the results failed.
    #[error("cannot write the results")]
    Output(#[source] std::io::Error),
}

impl Error {
    /// For `map_err` on an I/O call on `path`.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use ork::error::Error;
    /// use ork_cache::chain;
    ///
    /// let read = std::fs::read("/no/such/file").map_err(Error::file("read", Path::new("/no/such/file")));
    /// let text = chain(&read.unwrap_err());
    /// assert!(text.starts_with("cannot read /no/such/file: "));
    /// ```
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::File { action, path: path.into(), source }
    }

    /// For `map_err` on a call that reads or writes the content of `path`.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use ork::error::Error;
    /// use ork_cache::chain;
    ///
    /// let error = Error::input(Path::new("m.gguf"))("no magic");
    /// assert_eq!(chain(&error), "m.gguf: no magic");
    /// ```
    pub fn input<E: Into<Box<dyn StdError + Send + Sync>>>(path: &Path) -> impl FnOnce(E) -> Error {
        move |source| Error::Input { path: path.into(), source: source.into() }
    }

    /// The process's exit code; `ork --help` lists them.
    ///
    /// ```
    /// # use ork::error::Error;
    /// assert_eq!(Error::Leak("4096 bytes".into()).exit_code(), 2);
    /// ```
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Check(_) => 1,
            Error::Usage(_) | Error::Leak(_) => 2,
            Error::File { .. }
            | Error::Input { .. }
            | Error::Source(_)
            | Error::Store(_)
            | Error::Output(_) => 3,
            Error::Cache(error) if error.is_of_store() => 3,
            // Numbers that came from the arguments.
            Error::Device(rknpu::Error::Size { .. }) => 2,
            Error::Cache(_) | Error::Device(_) | Error::Node { .. } | Error::Thread(_) => 4,
        }
    }
}

impl From<ork_cache::Error> for Error {
    fn from(error: ork_cache::Error) -> Error {
        match error {
            ork_cache::Error::Plan(error) => error.into(),
            error => Error::Cache(error),
        }
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Error {
        Error::Usage(match error {
            PlanError::Budget { budget, smallest, .. } => format!(
                "a budget of {} ({budget} bytes) is too small: {} ({smallest} bytes) is the least that works here, scratch included; raise --budget",
                Size(budget),
                Size(smallest)
            ),
            error => error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ork_cache::{StoreError, WeightId, chain};
    use ork_weights::model::ModelError;
    use ork_weights::pack::PackError;

    use super::*;

    #[test]
    fn a_chain_says_each_thing_once() {
        let inner = std::io::Error::other("disk on fire");
        let error = Error::file("read", Path::new("x"))(inner);
        assert_eq!(chain(&error), "cannot read x: disk on fire");
        let error = Error::input(Path::new("p"))(ModelError::UnknownFormat { path: "p".into() });
        assert!(chain(&error).starts_with("p is no model"), "{}", chain(&error));
        let error = Error::input(Path::new("model"))(PackError::NoMagic { bytes: 7 });
        let text = chain(&error);
        assert!(text.starts_with("model: no .orkpack magic"), "{text}");
        assert_eq!(text.matches("magic").count(), 1, "{text}");
    }

    #[test]
    fn exit_codes_tell_files_from_devices() {
        let load = |cause: ork_cache::Cause| {
            Error::Cache(ork_cache::Error::Load { weight: WeightId(0), cause }).exit_code()
        };
        assert_eq!(load(Arc::new(StoreError::Pack(PackError::NoMagic { bytes: 7 }))), 3);
        assert_eq!(load(Arc::new(std::io::Error::other("driver"))), 4);
        assert_eq!(Error::Check(String::new()).exit_code(), 1);
        assert_eq!(Error::Leak(String::new()).exit_code(), 2);
    }
}
