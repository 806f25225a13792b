//! What Hugging Face templates may contain and minijinja does not read, rewritten into what it does.
//!
//! ```text
//! {% generation %}…{% endgeneration %}     marks what the model said, for training; prints its body
//!                                          → {% with       %}…{% endwith       %}   same length, same scope
//! {{ '%s: %d' % (name, n) }}               Python's formatting operator on a literal
//!                                          → {{ '%s: %d' |format(name, n) }}
//! {{ +n }}                                 a sign
//!                                          → {{  n }}
//! {{ a + b }}                              minijinja puts lists together without counting: forty doublings
//!                                          → {{ a|sized + b }}   would fill the memory; see `builtins::sized`
//! ```
//!
//! Places in the result map back to places in the template, so that errors point into what people have.

use std::borrow::Cow;

/// The filter that every left side of a `+` passes through.
pub(super) const SIZED: &str = "sized";

/// A template as the engine gets it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rewritten {
    pub text: String,
    /// From byte `.0` of `text` on, bytes come from byte `.1` of the source, up to the next pair.
    origins: Vec<(usize, usize)>,
}

impl Rewritten {
    fn copy(&mut self, source: &str, from: usize, to: usize) {
        self.origins.push((self.text.len(), from));
        self.text.push_str(&source[from..to]);
    }

    fn write(&mut self, text: &str, from: usize) {
        self.origins.push((self.text.len(), from));
        self.text.push_str(text);
    }

    /// The byte of the source that byte `at` of the text comes from.
    pub fn origin(&self, at: usize) -> usize {
        let next = self.origins.partition_point(|(out, _)| *out <= at);
        let Some((out, from)) = next.checked_sub(1).map(|i| self.origins[i]) else { return at };
        let limit = self.origins.get(next).map_or(usize::MAX, |(_, from)| *from);
        (from + (at - out)).min(limit)
    }
}

/// Jinja reads every kind of line end as `\n`.
pub(super) fn one_line_end(source: &str) -> Cow<'_, str> {
    if source.contains('\r') {
        Cow::Owned(source.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(source)
    }
}

/// Rewrites a template. Text that is not a well-formed template is left for the parser to report.
pub(super) fn rewrite(source: &str) -> Rewritten {
    let mut out = Rewritten { text: String::new(), origins: Vec::new() };
    let mut copied = 0; // source[..copied] is in out
    let mut at = 0;
    while let Some((open, kind)) = next_tag(source, at) {
        let body = open + 2;
        if kind == b'#' {
            at = find(source, body, "#}").unwrap_or(source.len());
            continue;
        }
        let close = if kind == b'%' { "%}" } else { "}}" };
        let Some(tokens) = lex(source, body, close) else { break };
        let end = tokens.last().map_or(body, |token| token.end);
        let name = tokens.iter().find(|t| t.kind == Lexeme::Name);
        if kind == b'%' && name.is_some_and(|t| t.text(source) == "raw") {
            at = end_of_raw(source, end);
            continue;
        }
        let mut edits: Vec<Edit> =
            name.into_iter().flat_map(|t| generation(source, *t, kind)).collect();
        pluses(source, &tokens, &mut edits);
        formats(source, &tokens, &mut edits);
        edits.sort_by_key(|edit| edit.at);
        for edit in edits {
            out.copy(source, copied, edit.at);
            out.write(edit.with, edit.at);
            copied = edit.at + edit.replaced;
        }
        at = end;
    }
    out.copy(source, copied, source.len());
    out
}

fn find(source: &str, from: usize, what: &str) -> Option<usize> {
    source[from..].find(what).map(|at| from + at + what.len())
}

/// The next `{{`, `{%` or `{#` at or after `from`: its place and second byte.
fn next_tag(source: &str, from: usize) -> Option<(usize, u8)> {
    let bytes = source.as_bytes();
    (from..bytes.len().saturating_sub(1))
        .find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
        .map(|i| (i, bytes[i + 1]))
}

/// Where the block `{% raw %}` that was opened before `from` ends.
fn end_of_raw(source: &str, from: usize) -> usize {
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
enum Lexeme {
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
struct Token {
    kind: Lexeme,
    start: usize,
    end: usize,
}

impl Token {
    fn text(self, source: &str) -> &str {
        &source[self.start..self.end]
    }
}

/// The tokens from `from` to the closing delimiter, which is the last one; `None` if it never comes.
fn lex(source: &str, from: usize, close: &str) -> Option<Vec<Token>> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut depth = 0_usize;
    let mut at = from;
    while at < bytes.len() {
        let start = at;
        let run = |word: fn(u8) -> bool| {
            bytes[start..].iter().position(|&b| !word(b)).map_or(bytes.len(), |n| start + n)
        };
        // A `}` inside a dictionary does not close the tag.
        let ended = |at: usize| depth == 0 && source[at..].starts_with(close);
        if ended(at) || (matches!(bytes[at], b'-' | b'+') && ended(at + 1)) {
            let end = start + close.len() + usize::from(!ended(at));
            tokens.push(Token { kind: Lexeme::End, start, end });
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
                depth += 1;
                Lexeme::Open
            }
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                Lexeme::Close
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
        tokens.push(Token { kind, start, end: at });
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

/// `replaced` bytes at `at` become `with`.
struct Edit {
    at: usize,
    replaced: usize,
    with: &'static str,
}

/// The edit that makes a tag for training a plain block.
fn generation(source: &str, name: Token, kind: u8) -> Option<Edit> {
    let with = match name.text(source) {
        "generation" => "with      ",
        "endgeneration" => "endwith      ",
        _ => return None,
    };
    (kind == b'%').then_some(Edit { at: name.start, replaced: with.len(), with })
}

/// Names that a value cannot end with.
const OPERATORS: [&str; 8] = ["and", "else", "if", "in", "is", "not", "or", "set"];

/// Edits that take away signs `+` and guard the operator `+`.
fn pluses(source: &str, tokens: &[Token], edits: &mut Vec<Edit>) {
    // The first token is left alone: `{%+ if … %}` is whitespace control.
    for i in 1..tokens.len() {
        if tokens[i].kind != Lexeme::Sign || tokens[i].text(source) != "+" {
            continue;
        }
        let left = tokens[i - 1];
        match left.kind {
            Lexeme::Name if OPERATORS.contains(&left.text(source)) => {}
            Lexeme::Name | Lexeme::Close => {
                edits.push(Edit { at: left.end, replaced: 0, with: "|sized" });
                continue;
            }
            // `pair.0`
            Lexeme::Number if i > 1 && tokens[i - 2].kind == Lexeme::Dot => {
                edits.push(Edit { at: left.end, replaced: 0, with: "|sized" });
                continue;
            }
            Lexeme::Number | Lexeme::Text => continue,
            _ => {}
        }
        edits.push(Edit { at: tokens[i].start, replaced: 1, with: " " });
    }
}

/// Edits that turn `'…' % operand` into `'…' |format(operand)`.
fn formats(source: &str, tokens: &[Token], edits: &mut Vec<Edit>) {
    for i in 1..tokens.len() {
        if tokens[i].kind != Lexeme::Percent || tokens[i - 1].kind != Lexeme::Text {
            continue;
        }
        let Some(last) = end_of_operand(tokens, i + 1) else { continue };
        // A parenthesised operand already has the parentheses of a call.
        let tuple = tokens[i + 1].text(source) == "(" && closing(tokens, i + 1) == Some(last);
        edits.push(Edit {
            at: tokens[i].start,
            replaced: 1,
            with: if tuple { "|format" } else { "|format(" },
        });
        if !tuple {
            edits.push(Edit { at: tokens[last].end, replaced: 0, with: ")" });
        }
    }
}

/// The token that closes the bracket `open`.
fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Lexeme::Open => depth += 1,
            Lexeme::Close => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

/// The last token of the operand that begins at `i`: a sign, a value, and what is attached to it.
fn end_of_operand(tokens: &[Token], mut i: usize) -> Option<usize> {
    while tokens.get(i)?.kind == Lexeme::Sign {
        i += 1;
    }
    let mut last = match tokens[i].kind {
        Lexeme::Name | Lexeme::Text | Lexeme::Number => i,
        Lexeme::Open => closing(tokens, i)?,
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
            Lexeme::Open => last = closing(tokens, last + 1)?,
            _ => return Some(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn what_is_rewritten_and_what_is_not() {
        for (source, want) in [
            ("plain", "plain"),
            ("{% generation %}x{% endgeneration %}", "{% with       %}x{% endwith       %}"),
            (
                "{%- generation -%}x{%- endgeneration +%}",
                "{%- with       -%}x{%- endwith       +%}",
            ),
            ("{{ generation }}", "{{ generation }}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            (
                "{% raw %}{% generation %}{% endraw %}{% generation %}",
                "{% raw %}{% generation %}{% endraw %}{% with       %}",
            ),
            ("{{ '%s' % x }}", "{{ '%s' |format( x) }}"),
            ("{{ '%s' % x.y[0](1)|upper ~ z }}", "{{ '%s' |format( x.y[0](1)|upper) ~ z }}"),
            ("{{ '%s-%s' % (a, b) + c }}", "{{ '%s-%s' |format (a, b)|sized + c }}"),
            ("{{ '%s' % (a, b)[0] }}", "{{ '%s' |format( (a, b)[0]) }}"),
            ("{{ '%.1f' % -1.5 }}", "{{ '%.1f' |format( -1.5) }}"),
            ("{{ '%s' % ('%d' % 3) }}", "{{ '%s' |format ('%d' |format( 3)) }}"),
            (
                "{% if '%d' % 3 == '3' %}y{% endif %}",
                "{% if '%d' |format( 3) == '3' %}y{% endif %}",
            ),
            ("{{ +n }}{%+ if 1 %}", "{{ +n }}{%+ if 1 %}"),
            ("{{ 1 + +n }}{{ (+n) }}", "{{ 1 +  n }}{{ ( n) }}"),
            ("{{ 1 if x else +n }}", "{{ 1 if x else  n }}"),
            ("{{ 'a' + b + c.d + 'e' }}", "{{ 'a' + b|sized + c.d|sized + 'e' }}"),
            ("{{ t.0 + f(x)+1 }}", "{{ t.0|sized + f(x)|sized+1 }}"),
            ("{{ '%s' % x + y }}", "{{ '%s' |format( x|sized) + y }}"),
            ("{{ 7 % 3 }}{{ x % 2 }}", "{{ 7 % 3 }}{{ x % 2 }}"),
            ("{{ {'a': {'b': 1}} }}{{ 'x' % y", "{{ {'a': {'b': 1}} }}{{ 'x' % y"),
            ("{{ 'it\\'s %s' % x }}", "{{ 'it\\'s %s' |format( x) }}"),
        ] {
            assert_eq!(rewrite(source).text, want, "{source}");
        }
    }

    #[test]
    fn places_map_back() {
        let source = "{% generation %}\n{{ k + q + '%s' % v ~ y }}!";
        let out = rewrite(source);
        for word in ["k", "+ q", "q", "+ '", "v", "~", "y", "}}!"] {
            let at = out.text.rfind(word).unwrap();
            assert_eq!(out.origin(at), source.rfind(word).unwrap(), "{word}");
        }
        assert_eq!(rewrite("plain").origin(3), 3);
    }
}
