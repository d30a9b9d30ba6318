//! Pages of one file: HTML with SVG, no script, and nothing from elsewhere.

mod map;
mod timeline;

pub use map::{Cell, Domain, Place, domains};
pub use timeline::timeline;

/// A browser is told to load nothing and to run nothing, whatever a name in a model says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2733;--dim:#5b6875;--line:#dde3e8;--back:#fff;--card:#f6f8fa;--core:#2f6fb0;--load:#c8731d;--wait:#c23030;--mem:#4f7d31;--visit:#8a94a0}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9aa7b4;--line:#30363d;--back:#0d1117;--card:#161b22;--core:#5aa0e0;--load:#e8a558;--wait:#f07070;--mem:#8cc265;--visit:#6e7a87}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1240px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin:2rem 0 .4rem}h3{font-size:1rem;margin:1.4rem 0 .3rem}
svg{width:100%;height:auto;display:block;margin:.3rem 0}text{fill:var(--ink);font-size:13px}
.dim{fill:var(--dim);color:var(--dim)}.in{fill:#fff;font-size:11px}@media(prefers-color-scheme:dark){.in{fill:#0d1117}}
.grid{stroke:var(--line)}.frame{fill:none;stroke:var(--line)}.core{fill:var(--core)}.load{fill:var(--load)}.wait{fill:var(--wait)}.visit{fill:var(--visit)}
.some{fill:var(--load);opacity:.55}.mem{fill:var(--mem);opacity:.35;stroke:var(--mem)}.budget{stroke:var(--wait);stroke-dasharray:5 4}
.key{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;padding:0;margin:.3rem 0;list-style:none}.key svg{width:13px;height:13px;display:inline;vertical-align:-2px;margin:0 .35rem 0 0}
pre{background:var(--card);padding:.7rem 1rem;overflow-x:auto;border-radius:6px}
table{border-collapse:collapse}td,th{padding:.15rem 1.2rem .15rem 0;text-align:right;font-variant-numeric:tabular-nums}td:first-child,th:first-child{text-align:left}th{color:var(--dim);font-weight:500}";

/// A page around `body`, which must be HTML.
///
/// ```
/// use ork::output::html;
///
/// let page = html::page("a & b", "<p>hello</p>");
/// assert!(page.starts_with("<!doctype html>") && page.contains("<title>a &amp; b</title>"));
/// ```
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n{body}\n</body></html>\n",
        title = escape(title),
    )
}

/// What colours mean: classes of the style sheet and words.
fn key(entries: &[(&str, &str)]) -> String {
    let mut list = String::from("<ul class=\"key\">");
    for (class, words) in entries {
        list.push_str(&format!(
            "<li><svg viewBox=\"0 0 13 13\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"13\" height=\"13\"/></svg>{}</li>",
            escape(words)
        ));
    }
    list.push_str("</ul>\n");
    list
}

/// Text as HTML, also within an attribute's quotes. Control characters, which HTML has no words for, are
/// replaced.
///
/// ```
/// use ork::output::html::escape;
///
/// assert_eq!(escape("<b title='x'>\u{1b}"), "&lt;b title=&#39;x&#39;&gt;\u{fffd}");
/// ```
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// As much of a name as fits into `width` units of an SVG; `None` when that is too little to read.
fn fitting(name: &str, width: f64) -> Option<String> {
    const CHARACTER: f64 = 6.4;
    let room = (width / CHARACTER) as usize;
    let length = name.chars().count();
    if length <= room {
        return Some(escape(name));
    }
    (room >= 6).then(|| format!("{}…", escape(&name.chars().take(room - 1).collect::<String>())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_loads_nothing_and_runs_nothing() {
        let page = page("t", &key(&[("core", "computing")]));
        assert!(page.contains("default-src 'none'"));
        for word in ["http:", "https:", "<script", "src=", "@import", "url("] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn names_are_cut_to_the_room() {
        assert_eq!(fitting("blk.0", 100.0).as_deref(), Some("blk.0"));
        assert_eq!(fitting("blk.10.ffn_down", 64.0).as_deref(), Some("blk.10.ff…"));
        assert_eq!(fitting("blk.10.ffn_down", 20.0), None);
        assert_eq!(fitting("<&>", 100.0).as_deref(), Some("&lt;&amp;&gt;"));
    }
}
