//! A command's result: text for people, or one JSON document.

use std::io::Write;

use serde::Serialize;

use super::{plain, plain_lines};
use crate::error::{Error, Result};

/// Where results go. Warnings and progress go to standard error, so that standard output holds
/// results only.
///
/// ```
/// use ork::output::Report;
///
/// Report { json: true }.print(&[1, 2], || unreachable!("nobody reads text"))?;
/// # Ok::<(), ork::error::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Whether a script reads.
    pub json: bool,
}

impl Report {
    /// Prints `text` for people, or `value` as JSON for scripts.
    ///
    /// ```
    /// use ork::output::Report;
    ///
    /// Report { json: false }.print(&(), || "two weights".to_owned())?;
    /// # Ok::<(), ork::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Output`] when standard output does not take it.
    pub fn print(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        let text = if self.json {
            serde_json::to_string_pretty(value).map_err(|e| Error::Output(e.into()))?
        } else {
            plain_lines(&text())
        };
        let mut out = std::io::stdout().lock();
        match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
            // The reader has seen enough (`ork inspect … | head`).
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(Error::Output),
        }
    }

    /// A line for people on standard error: what happens, or what to do about it.
    ///
    /// ```
    /// ork::output::Report { json: true }.note("note: goes to standard error");
    /// ```
    pub fn note(self, text: impl std::fmt::Display) {
        // Nothing can be done about a standard error that is closed.
        let _ = writeln!(std::io::stderr().lock(), "{}", plain(&text.to_string()));
    }
}
