//! Two things that Hugging Face templates may contain and minijinja does not read, rewritten into what it does.
//!
//! ```text
//! {% generation %}…{% endgeneration %}     marks what the model said, for training; prints its body
//!                                          → {% with       %}…{% endwith       %}   same length, same scope
//! {{ '%s: %d' % (name, n) }}               Python's formatting operator on a literal
//!                                          → {{ '%s: %d' |format(name, n) }}
//! ```
//!
//! Both keep line numbers as they are, so that errors point into the template people have.

use std::borrow::Cow;

/// Rewrites a template. Text that is not a well-formed template is left for the parser to report.
pub(super) fn rewrite(source: &str) -> String {
    rewrite_tags(&one_line_end(source)).into_owned()
}

/// Jinja reads every kind of line end as `\n`.
fn one_line_end(source: &str) -> Cow<'_, str> {
    if source.contains('\r') {
        Cow::Owned(source.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(source)
    }
}

fn rewrite_tags(source: &str) -> Cow<'_, str> {
    let mut out = String::new();
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
        let name =
            tokens.iter().find(|t| t.kind == Lexeme::Name).map(|t| (t, &source[t.start..t.end]));
        if kind == b'%'
            && let Some((token, name)) = name
        {
            let with = match name {
                "generation" => "with      ",
                "endgeneration" => "endwith      ",
                _ => "",
            };
            if !with.is_empty() {
                out.push_str(&source[copied..token.start]);
                out.push_str(with);
                copied = token.end;
            }
            if name == "raw" {
                at = end_of_raw(source, end);
                continue;
            }
        }
        for edit in formats(source, &tokens) {
            out.push_str(&source[copied..edit.at]);
            out.push_str(edit.with);
            copied = edit.at + edit.replaced;
        }
        at = end;
    }
    if copied == 0 {
        return Cow::Borrowed(source);
    }
    out.push_str(&source[copied..]);
    Cow::Owned(out)
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

/// The edits that turn `'…' % operand` into `'…' |format(operand)`.
fn formats(source: &str, tokens: &[Token]) -> Vec<Edit> {
    let mut edits = Vec::new();
    for i in 1..tokens.len() {
        if tokens[i].kind != Lexeme::Percent || tokens[i - 1].kind != Lexeme::Text {
            continue;
        }
        let Some(last) = end_of_operand(tokens, i + 1) else { continue };
        let first = tokens[i + 1];
        // A parenthesised operand already has the parentheses of a call.
        let tuple = &source[first.start..first.end] == "(" && closing(tokens, i + 1) == Some(last);
        edits.push(Edit {
            at: tokens[i].start,
            replaced: 1,
            with: if tuple { "|format" } else { "|format(" },
        });
        if !tuple {
            edits.push(Edit { at: tokens[last].end, replaced: 0, with: ")" });
        }
    }
    edits.sort_by_key(|edit| edit.at);
    edits
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
            ("a\r\nb\rc\n", "a\nb\nc\n"),
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
            ("{{ '%s-%s' % (a, b) + c }}", "{{ '%s-%s' |format (a, b) + c }}"),
            ("{{ '%s' % (a, b)[0] }}", "{{ '%s' |format( (a, b)[0]) }}"),
            ("{{ '%.1f' % -1.5 }}", "{{ '%.1f' |format( -1.5) }}"),
            ("{{ '%s' % ('%d' % 3) }}", "{{ '%s' |format ('%d' |format( 3)) }}"),
            (
                "{% if '%d' % 3 == '3' %}y{% endif %}",
                "{% if '%d' |format( 3) == '3' %}y{% endif %}",
            ),
            ("{{ 7 % 3 }}{{ x % 2 }}", "{{ 7 % 3 }}{{ x % 2 }}"),
            ("{{ {'a': {'b': 1}} }}{{ 'x' % y", "{{ {'a': {'b': 1}} }}{{ 'x' % y"),
            ("{{ 'it\\'s %s' % x }}", "{{ 'it\\'s %s' |format( x) }}"),
        ] {
            assert_eq!(rewrite(source), want, "{source}");
        }
    }
}
