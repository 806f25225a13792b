//! The words of Jinja's tags, as far as rewriting them needs.

pub(super) fn find(source: &str, from: usize, what: &str) -> Option<usize> {
    source[from..].find(what).map(|at| from + at + what.len())
}

/// The next `{{`, `{%` or `{#` at or after `from`: its place and second byte.
pub(super) fn next_tag(source: &str, from: usize) -> Option<(usize, u8)> {
    let bytes = source.as_bytes();
    (from..bytes.len().saturating_sub(1))
        .find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
        .map(|i| (i, bytes[i + 1]))
}

/// Where the block `{% raw %}` that was opened before `from` ends.
pub(super) fn end_of_raw(source: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(open) = source[at..].find("{%").map(|i| at + i) {
        let inner = source[open + 2..].trim_start_matches(['-', '+']).trim_start();
        if inner.starts_with("endraw") {
            return open + 2;
        }
        at = open + 2;
    }
    source.len()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lexeme {
    Name,
    Text,
    Number,
    Open,
    Close,
    Dot,
    Pipe,
    Percent,
    Sign,
    Other,
    End,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub kind: Lexeme,
    pub start: usize,
    pub end: usize,
    /// Of an opening bracket: the token that closes it.
    pub partner: Option<usize>,
    /// Of an opening bracket: whether commas stand directly inside.
    pub comma: bool,
}

impl Token {
    pub fn text(self, source: &str) -> &str {
        &source[self.start..self.end]
    }
}

/// The tokens from `from` to the closing delimiter, which is the last one; `None` if it never comes.
pub(super) fn lex(source: &str, from: usize, close: &str) -> Option<Vec<Token>> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut open: Vec<usize> = Vec::new(); // brackets not closed yet
    let mut at = from;
    while at < bytes.len() {
        let start = at;
        let run = |word: fn(u8) -> bool| {
            bytes[start..].iter().position(|&b| !word(b)).map_or(bytes.len(), |n| start + n)
        };
        // A `}` inside a dictionary does not close the tag.
        let ended = |at: usize| open.is_empty() && source[at..].starts_with(close);
        if ended(at) || (matches!(bytes[at], b'-' | b'+') && ended(at + 1)) {
            let end = start + close.len() + usize::from(!ended(at));
            tokens.push(Token { kind: Lexeme::End, start, end, partner: None, comma: false });
            return Some(tokens);
        }
        let kind = match bytes[at] {
            b' ' | b'\t' | b'\r' | b'\n' => {
                at += 1;
                continue;
            }
            quote @ (b'\'' | b'"') => {
                at = end_of_string(bytes, at, quote)?;
                Lexeme::Text
            }
            b'0'..=b'9' => {
                at = run(|b| b.is_ascii_alphanumeric() || b == b'_');
                Lexeme::Number
            }
            b if b.is_ascii_alphabetic() || b == b'_' || b >= 0x80 => {
                at = run(|b| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80);
                Lexeme::Name
            }
            b'(' | b'[' | b'{' => {
                open.push(tokens.len());
                Lexeme::Open
            }
            b')' | b']' | b'}' => {
                if let Some(bracket) = open.pop() {
                    let here = tokens.len();
                    let bracket: &mut Token = &mut tokens[bracket];
                    bracket.partner = Some(here);
                }
                Lexeme::Close
            }
            b',' => {
                if let Some(&bracket) = open.last() {
                    tokens[bracket].comma = true;
                }
                Lexeme::Other
            }
            b'.' => Lexeme::Dot,
            b'|' => Lexeme::Pipe,
            b'%' => Lexeme::Percent,
            b'-' | b'+' => Lexeme::Sign,
            _ => Lexeme::Other,
        };
        if at == start {
            at += 1;
        }
        tokens.push(Token { kind, start, end: at, partner: None, comma: false });
    }
    None
}

fn end_of_string(bytes: &[u8], open: usize, quote: u8) -> Option<usize> {
    let mut at = open + 1;
    loop {
        match *bytes.get(at)? {
            b'\\' => at += 2,
            b if b == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// The last token of the operand that begins at `i`: a sign, a value, and what is attached to it.
pub(super) fn end_of_operand(tokens: &[Token], mut i: usize) -> Option<usize> {
    while tokens.get(i)?.kind == Lexeme::Sign {
        i += 1;
    }
    let mut last = match tokens[i].kind {
        Lexeme::Name | Lexeme::Text | Lexeme::Number => i,
        Lexeme::Open => tokens[i].partner?,
        _ => return None,
    };
    loop {
        let next = tokens.get(last + 1)?;
        match next.kind {
            // A number `1.5` is lexed as number, dot, number.
            Lexeme::Dot | Lexeme::Pipe
                if matches!(tokens.get(last + 2)?.kind, Lexeme::Name | Lexeme::Number) =>
            {
                last += 2;
            }
            Lexeme::Open => last = next.partner?,
            _ => return Some(last),
        }
    }
}
