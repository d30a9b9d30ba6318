//! What happened when: a row for each track, and the memory that weights take below.

use std::fmt::Write as _;
use std::time::Duration;

use ork_cache::timeline::{DEMAND, MEMORY, PREFETCH, Recorder, Span};

use super::{escape, fitting, key};
use crate::output::{seconds, share};
use crate::size::Size;

/// Width of the drawing in SVG units.
const WIDTH: f64 = 1200.0;
/// Room for the names of tracks.
const LABEL: f64 = 140.0;
/// Height of a track.
const ROW: f64 = 28.0;
/// Height of the memory curve.
const CURVE: f64 = 100.0;

/// The timeline as HTML, with the meaning of its colours and the share of time of each track.
///
/// ```
/// use std::time::Duration;
///
/// use ork::output::html;
/// use ork_cache::timeline::Recorder;
///
/// let recorder = Recorder::new();
/// recorder.span(recorder.track("core 0"), "blk.0", Duration::ZERO, Duration::from_millis(3));
/// assert!(html::timeline(&recorder, 1 << 20).contains("core 0"));
/// ```
pub fn timeline(recorder: &Recorder, budget: u64) -> String {
    let (tracks, spans) = recorder.spans();
    let levels = recorder.counts(MEMORY);
    let ends = spans.iter().map(|span| span.start + span.length);
    let end = ends.chain(levels.iter().map(|(at, _)| *at)).max().unwrap_or_default();
    let scale = Scale { end: end.as_secs_f64().max(1e-9) };
    let rows = tracks.len() as f64 * ROW;
    let height = rows + CURVE + 46.0;
    let mut html = String::from("<h2>Timeline</h2>\n");
    html.push_str(&key(&[
        ("core", "a core computes"),
        ("load", "a load ahead of its use"),
        ("wait", "a load that a use waits for"),
        ("visit", "a domain is at work"),
        ("mem", "device memory, and the budget as a dashed line"),
    ]));
    let _ = writeln!(
        html,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"timeline\">"
    );
    axis(&scale, height, &mut html);
    for (row, track) in tracks.iter().enumerate() {
        let y = row as f64 * ROW;
        let _ = writeln!(
            html,
            "<line class=\"grid\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/><text x=\"0\" y=\"{1:.1}\">{2}</text>",
            y + ROW,
            y + ROW * 0.65,
            fitting(track, LABEL - 10.0).unwrap_or_default()
        );
        let own: Vec<&Span> = spans.iter().filter(|span| span.track == row).collect();
        for bar in bars(&own, &scale) {
            bar.draw(class(track), y + 4.0, &mut html);
        }
    }
    memory(&levels, budget, rows + 12.0, &scale, &mut html);
    html.push_str("</svg>\n");
    html.push_str(&table(&tracks, &spans, end));
    html
}

fn class(track: &str) -> &'static str {
    match track {
        PREFETCH => "load",
        DEMAND => "wait",
        name if name.starts_with("domain") => "visit",
        _ => "core",
    }
}

/// Seconds as places on the drawing.
struct Scale {
    end: f64,
}

impl Scale {
    fn x(&self, time: Duration) -> f64 {
        LABEL + (WIDTH - LABEL) * time.as_secs_f64() / self.end
    }

    /// A round distance between 6 to 14 marks: 1, 2 or 5 times a power of ten.
    fn step(&self) -> f64 {
        let rough = self.end / 8.0;
        let power = 10f64.powf(rough.log10().floor());
        let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * power >= rough * 0.7);
        factor.unwrap_or(10.0) * power
    }
}

fn axis(scale: &Scale, height: f64, svg: &mut String) {
    let step = scale.step();
    let marks = (scale.end / step) as u32;
    for mark in 0..=marks.min(100) {
        let time = Duration::from_secs_f64(step * f64::from(mark));
        let at = scale.x(time);
        // The last label would leave the drawing.
        let anchor = if at > WIDTH - 30.0 { "end" } else { "middle" };
        let text = if mark == 0 { "0".to_owned() } else { seconds(time) };
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{:.1}\"/><text class=\"dim\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{text}</text>",
            height - 22.0,
            height - 6.0
        );
    }
}

/// One or more spans as one rectangle: what is thinner than a line cannot be told apart, and a page
/// of a million rectangles cannot be opened.
struct Bar<'a> {
    from: f64,
    to: f64,
    busy: Duration,
    spans: usize,
    name: &'a str,
}

fn bars<'a>(spans: &[&'a Span], scale: &Scale) -> Vec<Bar<'a>> {
    const THIN: f64 = 0.8;
    let mut bars: Vec<Bar<'a>> = Vec::new();
    for span in spans {
        let (from, to) = (scale.x(span.start), scale.x(span.start + span.length));
        if let Some(last) = bars.last_mut()
            && from - last.to < THIN / 2.0
            && to - from < THIN
            && (last.spans > 1 || last.to - last.from < THIN)
        {
            last.to = last.to.max(to);
            last.busy += span.length;
            last.spans += 1;
            continue;
        }
        bars.push(Bar { from, to, busy: span.length, spans: 1, name: &span.name });
    }
    bars
}

impl Bar<'_> {
    fn draw(&self, class: &str, y: f64, svg: &mut String) {
        let (x, width, height) = (self.from, (self.to - self.from).max(0.4), ROW - 8.0);
        let more =
            if self.spans > 1 { format!(" and {} more", self.spans - 1) } else { String::new() };
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\"><title>{}{more}: {}</title></rect>",
            escape(self.name),
            seconds(self.busy)
        );
        if self.spans == 1
            && let Some(name) = fitting(self.name, width - 6.0)
        {
            let _ = write!(
                svg,
                "<text class=\"in\" x=\"{:.1}\" y=\"{:.1}\" pointer-events=\"none\">{name}</text>",
                x + 3.0,
                y + 14.0
            );
        }
        svg.push('\n');
    }
}

/// The memory curve, scaled so that the higher of budget and peak fills it.
fn memory(levels: &[(Duration, u64)], budget: u64, top: f64, scale: &Scale, svg: &mut String) {
    let peak = levels.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let full = peak.max(budget).max(1) as f64;
    let y = |bytes: u64| top + CURVE * (1.0 - bytes as f64 / full);
    let mut path = format!("M{LABEL:.1},{:.1}", y(0));
    let mut last = 0;
    for (at, bytes) in levels {
        let at = scale.x(*at);
        let _ = write!(path, "L{at:.1},{:.1}L{at:.1},{:.1}", y(last), y(*bytes));
        last = *bytes;
    }
    let _ = write!(path, "L{WIDTH:.1},{:.1}L{WIDTH:.1},{:.1}Z", y(last), y(0));
    let _ = writeln!(
        svg,
        "<path class=\"mem\" d=\"{path}\"/><line class=\"budget\" x1=\"{LABEL}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>\
         <text x=\"0\" y=\"{1:.1}\">device memory</text><text class=\"dim\" x=\"0\" y=\"{2:.1}\">peak {3}</text><text class=\"dim\" x=\"0\" y=\"{4:.1}\">budget {5}</text>",
        y(budget),
        top + 14.0,
        top + 32.0,
        Size(peak),
        top + 50.0,
        Size(budget),
    );
}

/// How busy each track was.
fn table(tracks: &[String], spans: &[Span], end: Duration) -> String {
    let mut html = String::from(
        "<table><tr><th>track</th><th>spans</th><th>time</th><th>of the whole</th></tr>\n",
    );
    for (row, track) in tracks.iter().enumerate() {
        let own = spans.iter().filter(|span| span.track == row);
        let (count, busy) = own.fold((0u64, Duration::ZERO), |(n, sum), s| (n + 1, sum + s.length));
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{count}</td><td>{}</td><td>{}</td></tr>",
            escape(track),
            seconds(busy),
            share(busy.as_secs_f64(), end.as_secs_f64())
        );
    }
    html.push_str("</table>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use super::*;

    #[test]
    fn names_cannot_break_the_page() {
        let recorder = Recorder::new();
        let track = recorder.track("core <0>");
        recorder.span(track, "<script>&\"'\u{1b}[2J", Duration::ZERO, Duration::from_millis(3));
        recorder.counter(MEMORY, Duration::from_millis(1), 4096);
        let page = page("run of <a>", &timeline(&recorder, 1 << 20));
        assert!(!page.contains("<script>") && !page.contains('\u{1b}'));
        assert!(page.contains("&lt;script&gt;&amp;&quot;&#39;\u{fffd}[2J"));
        assert!(page.contains("<title>run of &lt;a&gt;</title>"));
        assert!(page.contains("core &lt;0&gt;") && page.contains("peak 4 KiB"));
    }

    #[test]
    fn an_empty_recording_is_a_page_too() {
        assert!(timeline(&Recorder::new(), 0).contains("</svg>"));
    }

    #[test]
    fn spans_too_thin_to_be_told_apart_are_one_bar() {
        let scale = Scale { end: 1.0 };
        let span = |us: u64, length: u64| Span {
            track: 0,
            name: "w".into(),
            start: Duration::from_micros(us),
            length: Duration::from_micros(length),
        };
        let thin: Vec<Span> = (0..1000).map(|i| span(i * 100, 90)).collect();
        let wide = [span(200_000, 100_000), span(300_010, 100_000)];
        let all: Vec<&Span> = thin.iter().chain(&wide).collect();
        let bars = bars(&all, &scale);
        assert_eq!(bars.iter().map(|bar| bar.spans).collect::<Vec<_>>(), [1000, 1, 1]);
        assert_eq!(bars[0].busy, Duration::from_millis(90));
    }

    #[test]
    fn marks_of_the_axis_are_round_and_few() {
        for (end, step) in [(1.0, 0.1), (0.0333, 0.005), (7.0, 1.0), (90.0, 10.0), (2.0, 0.2)] {
            let got = Scale { end }.step();
            assert!((got / step - 1.0).abs() < 1e-9, "{end}: {got}");
            assert!((5.0..15.0).contains(&(end / got)), "{end}: {got}");
        }
    }
}
