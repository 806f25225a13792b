//! Ids to text as they come: only whole characters, never a guess.
//!
//! A character may be spread over tokens (`F0 9F`, `98 B8`), and one token may hold a blank and the first byte of
//! a character. Bytes wait here until they are text; bytes that no continuation can make text become U+FFFD.

use super::pieces::Lead;
use super::tokens::Tokenizer;

/// Turns a stream of ids into a stream of text.
#[derive(Clone, Debug)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    /// The beginning of a character.
    held: Vec<u8>,
    /// Nothing has been printed or held yet.
    at_start: bool,
    /// So many of this character are still to be removed.
    strip: Option<(char, usize)>,
}

impl<'a> Detokenizer<'a> {
    /// A decoder at the beginning of a text.
    pub fn new(tokenizer: &'a Tokenizer) -> Detokenizer<'a> {
        let strip = match tokenizer.lead() {
            Lead::Strip(c, n) => Some((c, n)),
            Lead::Keep | Lead::FirstToken(_) => None,
        };
        Detokenizer { tokenizer, held: Vec::new(), at_start: true, strip }
    }

    /// Takes the next token and gives the text that is now complete. Special tokens print nothing
    /// ([`Tokenizer::is_special`] tells them).
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.is_special(id) || id >= self.tokenizer.vocab_size() {
            return String::new();
        }
        let bytes = if std::mem::take(&mut self.at_start) {
            self.tokenizer.first_bytes(id)
        } else {
            self.tokenizer.token_bytes(id)
        };
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let waiting = complete(&self.held, &mut text);
        self.held.drain(..self.held.len() - waiting);
        self.strip_lead(&mut text);
        text
    }

    /// Ends the text: a character that never came whole is U+FFFD. The decoder is then at the beginning again.
    pub fn flush(&mut self) -> String {
        let mut text = String::from_utf8_lossy(&self.held).into_owned();
        self.strip_lead(&mut text);
        *self = Detokenizer::new(self.tokenizer);
        text
    }

    /// Bytes that wait for the rest of their character.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    fn strip_lead(&mut self, text: &mut String) {
        let Some((c, mut left)) = self.strip else { return };
        let mut cut = 0;
        while left > 0 && text[cut..].starts_with(c) {
            cut += c.len_utf8();
            left -= 1;
        }
        // Anything else ends the beginning.
        self.strip = (left > 0 && cut == text.len()).then_some((c, left));
        text.drain(..cut);
    }
}

/// Appends what is certain of `bytes` to `text`; returns how many bytes at the end may still become a character.
fn complete(bytes: &[u8], text: &mut String) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return 0;
            }
            Err(e) => {
                let (valid, after) = rest.split_at(e.valid_up_to());
                // The prefix was just found valid; lossy conversion keeps it as it is.
                text.push_str(&String::from_utf8_lossy(valid));
                let Some(bad) = e.error_len() else { return after.len() };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &after[bad..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certain_text_comes_out() {
        let cases: [(&[u8], &str, usize); 8] = [
            (b"abc", "abc", 0),
            (b"\xf0\x9f", "", 2),
            (b" \xf0", " ", 1),
            (b"\xf0\x9f\x98\xb8!", "😸!", 0),
            (b"\xc3", "", 1),
            (b"\xc3(", "\u{fffd}(", 0),
            (b"\xff\xe6\xbc", "\u{fffd}", 2),
            (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}", 0), // a surrogate is never text
        ];
        for (bytes, want, waiting) in cases {
            let mut text = String::new();
            assert_eq!((complete(bytes, &mut text), text.as_str()), (waiting, want), "{bytes:x?}");
        }
    }
}
