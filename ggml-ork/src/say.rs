//! What the library says: lines in llama.cpp's log, and with `ORK_LOG=1` on standard error.

use std::sync::Arc;

use crate::ggml::Level;
use crate::host::Host;

/// Where lines go.
#[derive(Clone, Debug)]
pub(crate) struct Say {
    host: Arc<Host>,
    verbose: bool,
}

impl Say {
    pub(crate) fn new(host: Arc<Host>, verbose: bool) -> Say {
        Say { host, verbose }
    }

    pub(crate) fn line(&self, level: Level, text: &str) {
        // A library must not end a program whose standard error is closed.
        if self.verbose {
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("ork: {text}\n").as_bytes(),
            );
        } else {
            self.host.log(level, text);
        }
    }
}
