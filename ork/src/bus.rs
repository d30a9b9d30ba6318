//! Last words where a mapped file is cut under the program.

use std::path::Path;

use signal_hook::consts::SIGBUS;
use signal_hook::low_level;

use crate::error::{Error, Result};

/// Exit code of a file that cannot be used.
const CODE: i32 = 3;

/// From here on, a page of a mapping that is gone (SIGBUS) ends the program with a line that says so,
/// instead of a signal that says nothing. `path` is what is mapped.
pub(crate) fn explain(path: &Path) -> Result<()> {
    let line = format!(
        "error: {}: the file was shortened while it was mapped (SIGBUS): restore it and begin again, without --read mmap if somebody writes it; no finished pack was touched\n",
        path.display()
    );
    let last_words = move || {
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
        low_level::exit(CODE);
    };
    // SAFETY: the action runs inside a signal handler. It reads memory that was written before it was
    // registered, makes one write call on standard error without a lock or an allocation, and exits
    // by `_exit`, which runs nothing of the program's.
    let registered = unsafe { low_level::register(SIGBUS, last_words) };
    registered.map(drop).map_err(|source| Error::file("watch over", path)(source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const CUT: &str = "ORK_TEST_CUT_MAPPING";

    /// Does nothing in an ordinary run; otherwise reads a mapping of a file that it cuts.
    #[test]
    fn child() {
        let Some(path) = std::env::var_os(CUT) else { return };
        let path = Path::new(&path);
        let mapping = ork_weights::Mapping::open(path).unwrap();
        explain(path).unwrap();
        std::fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
        let sum: u64 = mapping.as_ref().iter().map(|byte| u64::from(*byte)).sum();
        panic!("read {sum} out of nothing");
    }

    #[test]
    fn a_page_that_is_gone_is_an_error_with_a_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 1 << 20]).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "bus::tests::child", "--nocapture"])
            .env(CUT, file.path())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(CODE), "{error}");
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        assert!(error.contains("shortened while it was mapped"), "{error}");
    }
}
