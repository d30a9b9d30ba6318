//! Text as its tokens come: whole characters only.

use super::Tokenizer;

/// Turns tokens into text one by one. The pieces joined are what
/// [`Tokenizer::decode`] gives for all tokens at once.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The beginning of a character that is not whole yet.
    pending: Vec<u8>,
}

impl Tokenizer {
    /// Begins a text.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, pending: Vec::new() }
    }
}

impl TextStream<'_> {
    /// The text that is whole with this token; empty while a character is in pieces.
    pub fn push(&mut self, token: u32) -> String {
        self.pending.extend(self.tokenizer.bytes(token));
        whole(&mut self.pending)
    }

    /// What is left at the end: U+FFFD for a character that never became whole.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Takes the text out of `bytes` that nothing can change any more; what may be the beginning of a
/// character stays.
fn whole(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        if taken + invalid.len() == bytes.len() && is_beginning(invalid) {
            break;
        }
        if !invalid.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
    }
    bytes.drain(..taken);
    text
}

/// Whether more bytes can make a character of these.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_the_whole(
            parts in proptest::collection::vec(
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..4),
                    ".".prop_map(|text| text.into_bytes()),
                ],
                0..20,
            ),
            cut in 1usize..4,
        ) {
            let all: Vec<u8> = parts.concat();
            let mut pending = Vec::new();
            let mut text = String::new();
            for piece in all.chunks(cut) {
                pending.extend(piece);
                text += &whole(&mut pending);
            }
            prop_assert!(pending.len() < 4);
            text += &String::from_utf8_lossy(&pending);
            prop_assert_eq!(text, String::from_utf8_lossy(&all));
        }
    }

    #[test]
    fn characters_come_whole() {
        let mut bytes = "aé".as_bytes()[..2].to_vec();
        assert_eq!(whole(&mut bytes), "a");
        bytes.push("é".as_bytes()[1]);
        assert_eq!(whole(&mut bytes), "é");
        assert!(bytes.is_empty());
    }
}
