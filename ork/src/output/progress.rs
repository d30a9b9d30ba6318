//! Progress of long work, on standard error, and only where a person watches.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that counts; silent when standard error is not a terminal.
///
/// ```
/// use ork::output::Progress;
///
/// let progress = Progress::bytes("copy", 1 << 20);
/// progress.add(1 << 19); // drawn where standard error is a terminal
/// ```
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar towards `total` bytes.
    pub fn bytes(label: &'static str, total: u64) -> Progress {
        const STYLE: &str = "{msg:>10} [{wide_bar}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        Progress::new(label, total, STYLE)
    }

    /// A bar towards `total` of whatever is counted.
    pub fn count(label: &'static str, total: u64) -> Progress {
        Progress::new(label, total, "{msg:>10} [{wide_bar}] {pos}/{len} {eta}")
    }

    fn new(label: &'static str, total: u64, style: &str) -> Progress {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        // A style that does not parse would only be less pretty.
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(label);
        Progress { bar }
    }

    /// So many more are done.
    pub fn add(&self, more: u64) {
        self.bar.inc(more);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
