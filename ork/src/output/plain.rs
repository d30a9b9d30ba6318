//! Text from files, made fit for a terminal.

use std::fmt::Write;

/// `text` with everything that a terminal would act on instead of showing (escapes and other control
/// characters, line ends included, and marks that turn the direction of writing) spelled out.
///
/// ```
/// assert_eq!(ork::output::plain("a\x1b[2Jb\n"), r"a\u{1b}[2Jb\n");
/// ```
pub fn plain(text: &str) -> String {
    spell(text, |_| false)
}

/// As [`plain`], for text of several lines.
pub fn plain_lines(text: &str) -> String {
    spell(text, |character| character == '\n')
}

fn spell(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if acts(character) && !keep(character) {
            // Writing to a string cannot fail.
            let _ = write!(out, "{}", character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

fn acts(character: char) -> bool {
    let turns = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || character.is_control() || matches!(character, '\u{2028}' | '\u{2029}' | '\u{61c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_stays() {
        for text in ["blk.0.ffn_up.weight", "größe µ × 層", "┌─╴", ""] {
            assert_eq!(plain(text), text);
        }
        assert_eq!(plain_lines("a\nb\r\u{9b}2J\u{202e}"), "a\nb\\r\\u{9b}2J\\u{202e}");
    }
}
