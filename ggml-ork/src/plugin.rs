//! The library in one process: what ggml's tables stand for.

use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Engine;
use crate::ggml::Level;
use crate::host::Host;
use crate::say::Say;
use crate::settings::Settings;
use crate::tally::Tally;

/// What callbacks find behind the contexts of tables and buffers. It is made once and stays.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) host: Arc<Host>,
    pub(crate) engine: Engine,
    pub(crate) say: Say,
    pub(crate) tally: Tally,
    /// Models about which it was said that the CPU has them.
    told: Mutex<Vec<String>>,
}

impl Plugin {
    pub(crate) fn new(host: Host, settings: Settings) -> Plugin {
        let host = Arc::new(host);
        let say = Say::new(host.clone(), settings.verbose);
        let engine = Engine::new(settings, say.clone());
        Plugin { host, engine, say, tally: Tally::default(), told: Mutex::default() }
    }

    /// Says once that the CPU has a model, and why.
    pub(crate) fn left(&self, model: &str, reason: &str) {
        let line = format!("{model} is left to the CPU: {reason}");
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.contains(&line) {
            self.say.line(Level::Warn, &line);
            told.push(line);
        }
    }

    /// The end of a context: what has been done so far.
    pub(crate) fn summary(&self) {
        if self.tally.products() > 0 {
            let line = self.tally.line(self.engine.stats());
            self.say.line(Level::Info, &line);
        }
    }
}
