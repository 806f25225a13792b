//! What each token stands for, in bytes.
//!
//! Two families of tokenizers spell bytes in different ways:
//!
//! ```text
//! byte-level BPE   Ġdé  → each character is one byte: printable Latin-1 as itself, the other 68 bytes as U+0100..U+0143
//! SentencePiece    ▁dé  → text, with ▁ for a blank; <0xC3> is one byte that no piece covers
//! ```
//!
//! A `tokenizer.json` says which in its `decoder`; what it says is compiled here into a [`Spelling`].

use serde_json::Value;

use crate::error::{Error, Result, visible};

/// How token strings become bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spelling {
    byte_level: bool,
    /// `<0xNN>` is a byte.
    byte_fallback: bool,
    /// Replacements in token strings, in order.
    replace: Vec<(String, String)>,
    /// What happens at the very beginning of a text.
    pub lead: Lead,
}

/// What the decoder removes where a text begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// Nothing.
    Keep,
    /// Up to so many of this character.
    Strip(char, usize),
    /// Every blank that stands for this character in the first token.
    FirstToken(char),
}

fn unsupported(why: String) -> Error {
    Error::bad_file(
        "cannot use the tokenizer",
        why,
        "use a model with a byte-level BPE or SentencePiece tokenizer",
    )
}

impl Spelling {
    /// Compiles the `decoder` of a tokenizer.json.
    pub fn new(decoder: &Value) -> Result<Spelling> {
        let mut spelling = Spelling {
            byte_level: false,
            byte_fallback: false,
            replace: Vec::new(),
            lead: Lead::Keep,
        };
        let mut fused = false;
        spelling.add(decoder, &mut fused, 0)?;
        Ok(spelling)
    }

    fn add(&mut self, decoder: &Value, fused: &mut bool, depth: usize) -> Result<()> {
        let text = |key: &str| decoder.get(key).and_then(Value::as_str);
        let Some(kind) = text("type") else {
            return Err(unsupported("tokenizer.json has no decoder with a type".to_owned()));
        };
        let malformed =
            |what: &str| unsupported(format!("the decoder {kind} of tokenizer.json has {what}"));
        if self.byte_level && kind != "Fuse" {
            return Err(unsupported(format!(
                "the decoder {} comes after ByteLevel in tokenizer.json",
                visible(kind)
            )));
        }
        match kind {
            "Sequence" if depth < 4 => {
                let list = decoder.get("decoders").and_then(Value::as_array);
                for part in list.ok_or_else(|| malformed("no list of decoders"))? {
                    self.add(part, fused, depth + 1)?;
                }
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => *fused = true,
            "Replace" => {
                let from = decoder.pointer("/pattern/String").and_then(Value::as_str);
                let from = from.ok_or_else(|| malformed("a pattern that is not a string"))?;
                let to = text("content").ok_or_else(|| malformed("no content"))?;
                self.replace.push((from.to_owned(), to.to_owned()));
            }
            "Strip" => {
                let count = |key| decoder.get(key).and_then(Value::as_u64);
                let one = text("content").and_then(one_char);
                match (one, count("start"), count("stop")) {
                    (Some(c), Some(start), Some(0)) if *fused && self.lead == Lead::Keep => {
                        self.lead = Lead::Strip(c, usize::try_from(start).unwrap_or(usize::MAX));
                    }
                    _ => return Err(malformed("fields other than a strip at the text's start")),
                }
            }
            "Metaspace" => {
                let blank = match decoder.get("replacement") {
                    None => Some('▁'),
                    Some(value) => value.as_str().and_then(one_char),
                };
                let blank = blank.ok_or_else(|| malformed("no one-character replacement"))?;
                self.replace.push((blank.to_string(), " ".to_owned()));
                let kept = text("prepend_scheme") == Some("never")
                    || decoder.get("add_prefix_space") == Some(&Value::Bool(false));
                if !kept {
                    self.lead = Lead::FirstToken(blank);
                }
            }
            _ => {
                return Err(unsupported(format!(
                    "tokenizer.json uses the decoder {}, which is not supported",
                    visible(kind)
                )));
            }
        }
        Ok(())
    }

    /// The bytes that a token of the vocabulary stands for, wherever it is.
    pub fn bytes(&self, token: &str) -> Vec<u8> {
        let mut text = token.to_owned();
        for (from, to) in &self.replace {
            if text.contains(from.as_str()) {
                text = text.replace(from.as_str(), to);
            }
        }
        if self.byte_fallback
            && let Some(byte) = fallback_byte(&text)
        {
            return vec![byte];
        }
        if self.byte_level {
            let bytes: Option<Vec<u8>> = text.chars().map(byte_of).collect();
            return bytes.unwrap_or_else(|| text.into_bytes());
        }
        text.into_bytes()
    }

    /// Whether an added token that is not special is spelled like the vocabulary (it is raw text otherwise).
    pub fn spells_added(&self) -> bool {
        !self.byte_level
    }
}

fn one_char(text: &str) -> Option<char> {
    let mut chars = text.chars();
    let first = chars.next()?;
    chars.next().is_none().then_some(first)
}

/// `<0x41>` → 0x41.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

/// The byte that a character of the byte-level alphabet stands for.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        // The other bytes follow in order: 00..20, 7f..a0, ad.
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let mut seen = [false; 256];
        for code in 0..0x1000 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                assert!(!seen[usize::from(byte)], "two characters for byte {byte:#x}");
                seen[usize::from(byte)] = true;
            }
        }
        assert!(seen.iter().all(|&s| s), "a byte without character");
        for (c, byte) in [('Ġ', b' '), ('Ċ', b'\n'), ('ĉ', b'\t'), ('A', b'A'), ('é', 0xe9)] {
            assert_eq!(byte_of(c), Some(byte), "{c}");
        }
    }

    #[test]
    fn spellings() {
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let llama = Spelling::new(&llama).unwrap();
        assert_eq!(llama.lead, Lead::Strip(' ', 1));
        let byte_level = Spelling::new(&json!({"type": "ByteLevel"})).unwrap();
        let meta = Spelling::new(&json!({"type": "Metaspace", "replacement": "▁"})).unwrap();
        assert_eq!(meta.lead, Lead::FirstToken('▁'));
        let cases: [(&Spelling, &str, &[u8]); 9] = [
            (&llama, "▁été", " été".as_bytes()),
            (&llama, "<0xE9>", &[0xe9]),
            (&llama, "<0x+9>", b"<0x+9>"),
            (&llama, "<0xE99>", b"<0xE99>"),
            (&byte_level, "Ġdé", &[b' ', b'd', 0xe9]),
            (&byte_level, "<0xE9>", b"<0xE9>"),
            (&byte_level, "漢", "漢".as_bytes()),
            (&meta, "▁▁a", b"  a"),
            (&meta, "<0xE9>", b"<0xE9>"),
        ];
        for (spelling, token, want) in cases {
            assert_eq!(spelling.bytes(token), want, "{token}");
        }
    }

    #[test]
    fn unknown_decoders_are_refused_by_name() {
        for (decoder, word) in [
            (json!(null), "no decoder"),
            (json!({"type": "WordPiece"}), "WordPiece"),
            (json!({"type": "CTC\u{1b}"}), "CTC␛"),
            (json!({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}), "Replace"),
            (json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}), "Strip"),
            (json!({"type": "Metaspace", "replacement": ""}), "Metaspace"),
            (json!({"type": "Sequence"}), "Sequence"),
            (
                json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"},
                {"type": "ByteFallback"}]}),
                "ByteFallback",
            ),
        ] {
            let e = Spelling::new(&decoder).unwrap_err();
            assert!(e.why.contains(word), "{decoder}: {e}");
        }
    }
}
