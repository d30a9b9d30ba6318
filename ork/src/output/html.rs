//! Pages of one file, with SVG and without scripts from elsewhere.

use std::fmt::Write as _;
use std::time::Duration;

use ork_cache::npu::{DEMAND, MEMORY, PREFETCH};
use ork_cache::trace::Recorder;

use crate::size::Size;

/// Width of the drawing in SVG units.
const WIDTH: f64 = 1200.0;
/// Room for the names of tracks.
const LABEL: f64 = 130.0;
/// Height of a track.
const ROW: f64 = 26.0;
/// Height of the memory curve.
const CURVE: f64 = 90.0;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2733;--dim:#6b7785;--line:#d8dee4;--core:#2f6fb0;--load:#d9822b;--wait:#c23030;--mem:#5c8a3a}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#8b98a5;--line:#30363d;--core:#5aa0e0;--load:#e8a558;--wait:#f07070;--mem:#8cc265}}
body{font:14px/1.5 system-ui,sans-serif;color:var(--ink);max-width:1240px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.3rem}svg{width:100%;height:auto}text{fill:var(--ink);font-size:12px}.dim{fill:var(--dim);color:var(--dim)}
.grid{stroke:var(--line)}.core{fill:var(--core)}.load{fill:var(--load)}.wait{fill:var(--wait)}.visit{fill:var(--dim);opacity:.5}
.mem{fill:var(--mem);opacity:.35;stroke:var(--mem)}.budget{stroke:var(--wait);stroke-dasharray:4 3}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:right}td:first-child,th:first-child{text-align:left}";

/// A page around `body`, which must be HTML.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n{body}\n</body></html>\n",
        title = escape(title),
    )
}

/// The timeline as an SVG: one row for each track, and the memory that weights take below.
pub fn timeline(recorder: &Recorder, budget: u64) -> String {
    let (tracks, spans) = recorder.spans();
    let levels = recorder.counts(MEMORY);
    let ends = spans.iter().map(|span| span.start + span.length);
    let end = ends.chain(levels.iter().map(|(at, _)| *at)).max().unwrap_or_default();
    let end = end.as_secs_f64().max(1e-9);
    let x = |seconds: f64| LABEL + (WIDTH - LABEL) * seconds / end;
    let rows = tracks.len() as f64 * ROW;
    let height = rows + CURVE + 40.0;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n");
    for tick in 0..=10 {
        let (seconds, at) = (end * f64::from(tick) / 10.0, x(end * f64::from(tick) / 10.0));
        let anchor = if tick == 10 { "end" } else { "middle" };
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{:.1}\"/><text class=\"dim\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{seconds:.2} s</text>",
            height - 20.0,
            height - 6.0
        );
    }
    for (row, track) in tracks.iter().enumerate() {
        let y = row as f64 * ROW;
        let _ = writeln!(svg, "<text x=\"0\" y=\"{:.1}\">{}</text>", y + ROW * 0.65, escape(track));
    }
    for span in &spans {
        let row = span.track as f64;
        let class = match tracks.get(span.track).map(String::as_str) {
            Some(PREFETCH) => "load",
            Some(DEMAND) => "wait",
            Some(name) if name.starts_with("domain") => "visit",
            _ => "core",
        };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{:.1}\"><title>{} {:.3} ms</title></rect>",
            x(span.start.as_secs_f64()),
            row * ROW + 4.0,
            ((WIDTH - LABEL) * span.length.as_secs_f64() / end).max(0.3),
            ROW - 8.0,
            escape(&span.name),
            span.length.as_secs_f64() * 1e3,
        );
    }
    memory(&levels, budget, rows + 10.0, &x, &mut svg);
    svg.push_str("</svg>");
    svg
}

/// The memory curve, scaled so that the higher of budget and peak fills it.
fn memory(
    levels: &[(Duration, u64)],
    budget: u64,
    top: f64,
    x: &impl Fn(f64) -> f64,
    svg: &mut String,
) {
    let peak = levels.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let full = peak.max(budget).max(1) as f64;
    let y = |bytes: u64| top + CURVE * (1.0 - bytes as f64 / full);
    let mut path = format!("M{:.1},{:.1}", LABEL, y(0));
    let mut last = 0;
    for (at, bytes) in levels {
        let at = x(at.as_secs_f64());
        let _ = write!(path, "L{at:.1},{:.1}L{at:.1},{:.1}", y(last), y(*bytes));
        last = *bytes;
    }
    let _ = write!(path, "L{WIDTH:.1},{:.1}L{WIDTH:.1},{:.1}Z", y(last), y(0));
    let _ = writeln!(
        svg,
        "<path class=\"mem\" d=\"{path}\"/><line class=\"budget\" x1=\"{LABEL}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/><text x=\"0\" y=\"{1:.1}\">memory</text><text class=\"dim\" x=\"0\" y=\"{2:.1}\">{3} of {4}</text>",
        y(budget),
        top + 14.0,
        top + 30.0,
        Size(peak),
        Size(budget),
    );
}

/// Text as HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_page() {
        let recorder = Recorder::new();
        let track = recorder.track("core <0>");
        recorder.span(track, "<script>&\"", Duration::ZERO, Duration::from_millis(3));
        recorder.counter(MEMORY, Duration::from_millis(1), 4096);
        let page = page("run of <a>", &timeline(&recorder, 1 << 20));
        assert!(!page.contains("<script>"));
        assert!(page.contains("&lt;script&gt;&amp;&quot;"));
        assert!(page.contains("<title>run of &lt;a&gt;</title>"));
        assert!(page.contains("core &lt;0&gt;") && page.contains("4 KiB of 1 MiB"));
    }

    #[test]
    fn an_empty_recording_is_a_page_too() {
        assert!(timeline(&Recorder::new(), 0).ends_with("</svg>"));
    }
}
