//! A timeline that Perfetto and `chrome://tracing` show.
//!
//! A [`Recorder`] collects spans and counters from any thread; [`Recorder::write`] puts them out in
//! the Trace Event Format: a JSON object whose `traceEvents` are complete events (`ph` X with `ts`
//! and `dur` in microseconds, `pid`, `tid`), counters (C) and the names of process and tracks (M).
//! Tracks appear in the order in which they were first named.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

/// Track of loads ahead of use.
pub const PREFETCH: &str = "prefetch";
/// Track of loads that a use waited for.
pub const DEMAND: &str = "loads on demand";
/// Counter of bytes mapped for weights and scratch.
pub const MEMORY: &str = "device memory";

/// A line of the timeline.
///
/// ```
/// use ork_cache::timeline::Recorder;
///
/// let recorder = Recorder::new();
/// assert_eq!(recorder.track("core 0"), recorder.track("core 0"));
/// assert_ne!(recorder.track("core 0"), recorder.track("core 1"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track(usize);

/// Collects events. Shared by reference or in an `Arc`.
///
/// ```
/// use std::time::Duration;
///
/// use ork_cache::timeline::Recorder;
///
/// let recorder = Recorder::new();
/// let core = recorder.track("core 0");
/// recorder.span(core, "blk.0.attn_q", Duration::ZERO, Duration::from_micros(167));
/// recorder.counter("mapped bytes", Duration::ZERO, 4096);
/// let mut file = Vec::new();
/// recorder.write(&mut file)?;
/// assert!(String::from_utf8(file)?.contains("\"core 0\""));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Events {
    tracks: Vec<String>,
    spans: Vec<Span>,
    counters: Vec<(Cow<'static, str>, Duration, u64)>,
}

/// A span that was recorded.
///
/// ```
/// use std::time::Duration;
///
/// use ork_cache::timeline::Recorder;
///
/// let recorder = Recorder::new();
/// recorder.span(recorder.track("core 0"), "blk.0", Duration::ZERO, Duration::from_micros(9));
/// let (tracks, spans) = recorder.spans();
/// assert_eq!((tracks[spans[0].track].as_str(), spans[0].name.as_str()), ("core 0", "blk.0"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its track, by place.
    pub track: usize,
    /// What was done.
    pub name: String,
    /// Since the start of the recording.
    pub start: Duration,
    /// How long.
    pub length: Duration,
}

impl Recorder {
    /// Begins a recording: times count from now.
    pub fn new() -> Recorder {
        Recorder { start: Instant::now(), events: Mutex::default() }
    }

    /// Time since the start of the recording.
    ///
    /// ```
    /// let recorder = ork_cache::timeline::Recorder::new();
    /// assert!(recorder.now() <= recorder.now());
    /// ```
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The track of this name, made when it is new.
    pub fn track(&self, name: &str) -> Track {
        let mut events = self.events();
        let known = events.tracks.iter().position(|t| t == name);
        Track(known.unwrap_or_else(|| {
            events.tracks.push(name.to_owned());
            events.tracks.len() - 1
        }))
    }

    /// Something that took time.
    pub fn span(&self, track: Track, name: impl Into<String>, start: Duration, length: Duration) {
        let span = Span { track: track.0, name: name.into(), start, length };
        self.events().spans.push(span);
    }

    /// A value from `at` on.
    pub fn counter(&self, name: impl Into<Cow<'static, str>>, at: Duration, value: u64) {
        self.events().counters.push((name.into(), at, value));
    }

    /// Names of the tracks and all spans so far: what a drawing needs.
    ///
    /// ```
    /// let recorder = ork_cache::timeline::Recorder::new();
    /// recorder.track("core 0");
    /// assert_eq!(recorder.spans(), (vec!["core 0".to_owned()], vec![]));
    /// ```
    pub fn spans(&self) -> (Vec<String>, Vec<Span>) {
        let events = self.events();
        (events.tracks.clone(), events.spans.clone())
    }

    /// Every value of a counter so far, in the order of recording.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let recorder = ork_cache::timeline::Recorder::new();
    /// recorder.counter("bytes", Duration::from_micros(3), 4096);
    /// assert_eq!(recorder.counts("bytes"), [(Duration::from_micros(3), 4096)]);
    /// ```
    pub fn counts(&self, name: &str) -> Vec<(Duration, u64)> {
        let events = self.events();
        let these = events.counters.iter().filter(|(counter, ..)| counter == name);
        these.map(|(_, at, value)| (*at, *value)).collect()
    }

    /// Writes everything recorded so far as one JSON object.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let events = self.events();
        let us = |d: Duration| d.as_nanos() as f64 / 1e3;
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        let mut separator = "\n";
        let mut event = |value: serde_json::Value| {
            write!(out, "{}{value}", std::mem::replace(&mut separator, ",\n"))
        };
        let args = json!({ "name": "ork" });
        event(json!({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": args}))?;
        for (tid, name) in events.tracks.iter().enumerate() {
            let args = json!({ "name": name });
            event(json!({"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": args}))?;
            let args = json!({ "sort_index": tid });
            event(
                json!({"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": tid, "args": args}),
            )?;
        }
        for Span { track, name, start, length } in &events.spans {
            let (ts, dur) = (us(*start), us(*length));
            let cat = "span";
            event(
                json!({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": track, "ts": ts, "dur": dur}),
            )?;
        }
        for (name, at, value) in &events.counters {
            let args = json!({ "value": value });
            event(
                json!({"ph": "C", "name": name, "pid": 1, "tid": 0, "ts": us(*at), "args": args}),
            )?;
        }
        out.write_all(b"\n]}\n")
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        // Only appended to, so a panic elsewhere leaves a whole list.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_json_with_every_event() {
        let recorder = Recorder::new();
        let a = recorder.track("core 0");
        assert_eq!(recorder.track("core 0"), a);
        let b = recorder.track("prefetch \"quoted\"");
        recorder.span(a, "x", Duration::from_micros(1), Duration::from_micros(2));
        recorder.span(b, "y", Duration::from_micros(2), Duration::from_nanos(500));
        recorder.counter("bytes", Duration::from_micros(3), 7);
        let mut out = Vec::new();
        recorder.write(&mut out).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let events = value["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 1 + 2 * 2 + 2 + 1);
        assert_eq!(events[0]["args"]["name"], "ork");
        assert_eq!((&events[6]["ts"], &events[6]["dur"]), (&2.0.into(), &0.5.into()));
        assert_eq!(events[7]["args"]["value"], 7);
        assert_eq!(recorder.counts("bytes"), [(Duration::from_micros(3), 7)]);
        assert_eq!(recorder.counts("other"), []);
    }
}
