//! Which domain is at work while a pass runs.

use std::time::Duration;

use ork_cache::timeline::Recorder;
use ork_cache::{Cache, DomainId, Visit};

use super::engine::Engine;
use crate::error::Result;

/// A pass under way: where its matmuls run.
pub(super) struct Pass<'a> {
    pub(super) engines: &'a mut [Engine],
    /// Domains that share an engine.
    pub(super) lanes: usize,
    pub(super) visits: Visits<'a>,
}

/// The domain at work, which a pass enters when it needs another.
pub(super) struct Visits<'a> {
    pub(super) cache: &'a Cache,
    pub(super) recorder: Option<&'a Recorder>,
    pub(super) visit: Option<(Visit, Duration)>,
}

impl Visits<'_> {
    pub(super) fn enter(&mut self, domain: DomainId) -> Result<&Visit> {
        if self.visit.as_ref().is_some_and(|(visit, _)| visit.domain() != domain) {
            self.leave();
        }
        let visit = match self.visit.take() {
            Some(visit) => visit,
            None => {
                let visit = self.cache.enter(domain)?;
                (visit, self.recorder.map_or(Duration::ZERO, Recorder::now))
            }
        };
        Ok(&self.visit.insert(visit).0)
    }

    fn leave(&mut self) {
        if let (Some((visit, since)), Some(recorder)) = (self.visit.take(), self.recorder) {
            let track = recorder.track(&visit.domain().to_string());
            recorder.span(track, "visit", since, recorder.now().saturating_sub(since));
        }
    }
}

impl Drop for Visits<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
