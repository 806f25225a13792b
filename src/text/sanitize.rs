//! Text made harmless for a terminal: what would act on it is shown instead.
//!
//! A terminal obeys bytes: ESC starts commands that move the cursor, set the title or write the clipboard, a lone
//! carriage return overwrites the line, and bidi controls reorder what people read. Model output, file names and
//! tensor names come from strangers, so on a terminal they pass through here. Pipes and files get exact bytes.
//! (Names inside error messages are shorter business: `error::visible`.)

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a terminal would act on `c` instead of showing it (tab and line feed may act).
fn acts(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' => true,
        '\u{61c}' | '\u{200e}' | '\u{200f}' => true, // directional marks
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true, // embeddings, overrides, isolates
        '\u{2028}' | '\u{2029}' => true,                           // line and paragraph separators
        _ => false,
    }
}

fn push_glyph(out: &mut String, c: char) {
    match c {
        // The block "Control Pictures" has a glyph for each C0 control, and one for DEL.
        '\0'..='\x1f' => out.extend(char::from_u32(0x2400 + u32::from(c))),
        '\x7f' => out.push('\u{2421}'),
        _ => {
            // Writing to a String cannot fail.
            let _ = write!(out, "<U+{:04X}>", u32::from(c));
        }
    }
}

/// `text` with everything a terminal would act on replaced by a visible glyph (`␛`, `␍`, `<U+202E>`).
///
/// Tab, line feed and a carriage return right before a line feed stay. Text without such characters is borrowed.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\r' if rest.peek() == Some(&'\n') => out.push('\r'),
            c if acts(c) => push_glyph(&mut out, c),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// [`visible`] for text that arrives in pieces: a carriage return at the end of one piece waits for the next.
#[derive(Clone, Debug, Default)]
pub struct VisibleStream {
    return_pending: bool,
}

impl VisibleStream {
    /// A stream at its beginning.
    pub fn new() -> VisibleStream {
        VisibleStream::default()
    }

    /// The next piece, made visible.
    pub fn push(&mut self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let mut joined = String::with_capacity(text.len() + 1);
        if std::mem::take(&mut self.return_pending) {
            joined.push('\r');
        }
        joined.push_str(text);
        if joined.ends_with('\r') {
            joined.pop();
            self.return_pending = true;
        }
        visible(&joined).into_owned()
    }

    /// What was still held at the end.
    pub fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.return_pending) { "␍" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_sequences_become_glyphs() {
        let cases = [
            ("plain, déjà vu, 漢字, 👩‍👩‍👧\n\ttab", "plain, déjà vu, 漢字, 👩‍👩‍👧\n\ttab"),
            ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"), // OSC 52: clipboard
            ("\x1b]8;;http://x\x1b\\y", "␛]8;;http://x␛\\y"), // OSC 8: link
            ("\x1b[2Jgone", "␛[2Jgone"),
            ("real\rfake", "real␍fake"),
            ("dos\r\nline", "dos\r\nline"),
            ("\r\r\n", "␍\r\n"),
            ("end\r", "end␍"),
            ("\u{9b}31m", "<U+009B>31m"), // CSI as one C1 character
            ("abc\u{202e}cba\u{2066}x\u{200f}", "abc<U+202E>cba<U+2066>x<U+200F>"),
            ("\0\x08\x7f\u{2028}", "␀␈␡<U+2028>"),
        ];
        for (input, want) in cases {
            assert_eq!(visible(input), want, "{input:?}");
        }
        assert!(matches!(visible("as it is\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn no_control_survives_and_pieces_equal_the_whole() {
        let mut draws = crate::num::rng::Stream::new(35);
        let pool = ['a', '\r', '\n', '\t', '\x1b', '\u{85}', '\u{202e}', '\u{2069}', 'é', '\0'];
        for _ in 0..2000 {
            let text: String = (0..draws.below(12))
                .map(|_| pool[draws.below(pool.len() as u32) as usize])
                .collect();
            let whole = visible(&text).into_owned();
            let harmless = whole.replace("\r\n", "\n");
            assert!(!harmless.chars().any(acts), "{text:?} gave {whole:?}");
            let mut stream = VisibleStream::new();
            let mut pieces = String::new();
            let mut chars = text.chars().peekable();
            while chars.peek().is_some() {
                let n = 1 + draws.below(3) as usize;
                let piece: String = chars.by_ref().take(n).collect();
                pieces.push_str(&stream.push(&piece));
            }
            pieces.push_str(stream.finish());
            assert_eq!(pieces, whole, "{text:?}");
        }
    }
}
