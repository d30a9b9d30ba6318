//! Text around control tokens, and text that must not become one.

/// A part of a text that a template gave.
#[derive(Debug, PartialEq)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Control(u32),
}

/// Cuts a text at control tokens. Longer ones are looked for first, as llama.cpp does: `control` is
/// in that order.
pub(super) fn fragments<'a>(text: &'a str, control: &[(Box<str>, u32)]) -> Vec<Fragment<'a>> {
    let mut all = vec![Fragment::Text(text)];
    for (name, token) in control {
        if !text.contains(&**name) {
            continue;
        }
        let mut cut = Vec::with_capacity(all.len() + 2);
        for fragment in all {
            let Fragment::Text(text) = fragment else {
                cut.push(fragment);
                continue;
            };
            for (index, part) in text.split(&**name).enumerate() {
                if index > 0 {
                    cut.push(Fragment::Control(*token));
                }
                if !part.is_empty() {
                    cut.push(Fragment::Text(part));
                }
            }
        }
        all = cut;
    }
    all
}

/// A private character that none of the texts has.
pub(super) fn unused<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> char {
    // A text cannot have all of them but by having 6,400 on purpose; then the last one is as good.
    let free = |mark: &char| !texts.clone().any(|text| text.contains(*mark));
    ('\u{e000}'..='\u{f8ff}').find(free).unwrap_or('\u{f8ff}')
}

/// `text` with a mark inside everything that spells a control token, so that it is none any more.
pub(super) fn marked(text: &str, control: &[&str], mark: char) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        out.push(c);
        if control.iter().any(|name| text[at..].starts_with(name)) {
            out.push(mark);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_tokens_are_found_first() {
        let control = [("<|end|>".into(), 1), ("<|".into(), 2)];
        let found = fragments("a<|end|><|b", &control);
        use Fragment::*;
        assert_eq!(found, [Text("a"), Control(1), Control(2), Text("b")]);
        assert_eq!(fragments("", &control), [Text("")]);
    }

    #[test]
    fn marked_text_has_no_control_token() {
        let text = "x<|end|>y <|<|end|>é";
        let control = ["<|end|>", "<|"];
        let mark = unused([text, "\u{e000}"].into_iter());
        assert_eq!(mark, '\u{e001}');
        let marked = marked(text, &control, mark);
        assert!(control.iter().all(|name| !marked.contains(name)), "{marked}");
        assert_eq!(marked.replace(mark, ""), text);
    }
}
