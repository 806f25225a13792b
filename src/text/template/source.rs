//! What Hugging Face templates may contain and minijinja does not read, rewritten into what it does.
//!
//! ```text
//! {% generation %}…{% endgeneration %}     marks what the model said, for training; prints its body
//!                                          → {% with       %}…{% endwith       %}   same length, same scope
//! {{ '%s: %d' % (name, n) }}               Python's formatting operator on a literal
//!                                          → {{ '%s: %d' |format(name, n) }}
//! {{ +n }}                                 a sign
//!                                          → {{  n }}
//! {{ a + [b] }}                            values that grow are weighed, see `bounds`
//!                                          → {{ a|sized + ([b]|bound) }}
//! {{ a * 3 }}                              → {{ a|scalar * 3 }}
//! {% set x = a %}  {% set n.x = a %}       → {% set x =( a )|bound %}  {% set n.x =( a )|held %}
//! ```
//!
//! Places in the result map back to places in the template, so that errors point into what people have.

use std::borrow::Cow;

use super::lexer::{Lexeme, Token, end_of_operand, end_of_raw, find, lex, next_tag};

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

/// The engine takes time that grows with the square of an expression's length.
const MAX_TAG_WORDS: usize = 2048;

/// Rewrites a template. Text that is not a well-formed template is left for the parser to report.
///
/// # Errors
/// The place of a tag that cannot be used, and why.
pub(super) fn rewrite(source: &str) -> Result<Rewritten, (usize, &'static str)> {
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
        if tokens.len() > MAX_TAG_WORDS {
            return Err((open, "the tag is too long"));
        }
        let end = tokens.last().map_or(body, |token| token.end);
        let name =
            tokens.iter().find(|t| t.kind != Lexeme::Sign).filter(|t| t.kind == Lexeme::Name);
        if kind == b'%' && name.is_some_and(|t| t.text(source) == "raw") {
            at = end_of_raw(source, end);
            continue;
        }
        let files = |t: &Token| ["extends", "from", "import", "include"].contains(&t.text(source));
        if kind == b'%' && name.is_some_and(files) {
            return Err((open, "the tag needs other files, and a chat template is one"));
        }
        let mut edits: Vec<Edit> =
            name.into_iter().flat_map(|t| generation(source, *t, kind)).collect();
        operators(source, &tokens, &mut edits);
        formats(source, &tokens, &mut edits);
        let targets = if kind == b'%' { sets(source, &tokens, &mut edits) } else { 0 };
        literals(source, &tokens, targets, &mut edits);
        edits.sort_by_key(|edit| (edit.at, edit.rank));
        for edit in edits {
            out.copy(source, copied, edit.at);
            out.write(edit.with, edit.at);
            copied = edit.at + edit.replaced;
        }
        at = end;
    }
    out.copy(source, copied, source.len());
    Ok(out)
}

/// `replaced` bytes at `at` become `with`; of edits at the same place the lower rank comes first.
struct Edit {
    at: usize,
    replaced: usize,
    with: &'static str,
    rank: u8,
}

/// Whatever is inserted before a word comes before what replaces the word.
const REPLACES: u8 = u8::MAX;

impl Edit {
    fn insert(at: usize, with: &'static str, rank: u8) -> Edit {
        Edit { at, replaced: 0, with, rank }
    }
}

/// The edit that makes a tag for training a plain block.
fn generation(source: &str, name: Token, kind: u8) -> Option<Edit> {
    let with = match name.text(source) {
        "generation" => "with      ",
        "endgeneration" => "endwith      ",
        _ => return None,
    };
    (kind == b'%').then_some(Edit { at: name.start, replaced: with.len(), with, rank: REPLACES })
}

/// Names after which a value begins.
const OPERATORS: [&str; 10] = ["and", "elif", "else", "for", "if", "in", "is", "not", "or", "set"];

/// Whether a value ends with token `i`.
fn ends_value(source: &str, tokens: &[Token], i: usize) -> bool {
    match tokens[i].kind {
        Lexeme::Name => !OPERATORS.contains(&tokens[i].text(source)),
        Lexeme::Close | Lexeme::Number | Lexeme::Text => true,
        _ => false,
    }
}

/// Whether the value that ends with token `i` may be other than a number or text that stands there.
fn may_grow(tokens: &[Token], i: usize) -> bool {
    match tokens[i].kind {
        // `pair.0`
        Lexeme::Number => i > 0 && tokens[i - 1].kind == Lexeme::Dot,
        Lexeme::Text => false,
        _ => true,
    }
}

/// Edits that take away signs `+`, and that weigh the left side of `+` and both sides of `*`.
fn operators(source: &str, tokens: &[Token], edits: &mut Vec<Edit>) {
    let star = |i: usize| tokens.get(i).is_some_and(|token| token.text(source) == "*");
    let touch = |i: usize| tokens[i].end == tokens[i + 1].start;
    // A sign that touches the opening of a tag is whitespace control.
    if let Some(first) = tokens.first()
        && first.text(source) == "+"
        && !source[..first.start].ends_with(['{', '%'])
    {
        edits.push(Edit { at: first.start, replaced: 1, with: " ", rank: REPLACES });
    }
    for i in 1..tokens.len() {
        let binary = ends_value(source, tokens, i - 1);
        let left = tokens[i - 1].end;
        if tokens[i].kind == Lexeme::Sign && tokens[i].text(source) == "+" {
            if !binary {
                edits.push(Edit { at: tokens[i].start, replaced: 1, with: " ", rank: REPLACES });
            } else if may_grow(tokens, i - 1) {
                edits.push(Edit::insert(left, "|sized", 2));
            }
        } else if star(i) && binary {
            let power = star(i + 1) && touch(i);
            if power {
                continue;
            }
            if may_grow(tokens, i - 1) {
                edits.push(Edit::insert(left, "|scalar", 2));
            }
            let right = end_of_operand(tokens, i + 1).filter(|&last| may_grow(tokens, last));
            if let Some(last) = right {
                edits.push(Edit::insert(tokens[last].end, "|scalar", 2));
            }
        }
    }
}

/// Edits that weigh what `{% set … = value %}` stores. Returns how many tokens at the beginning of a tag are names
/// that values go to.
fn sets(source: &str, tokens: &[Token], edits: &mut Vec<Edit>) -> usize {
    let text = |i: usize| tokens.get(i).map_or("", |token: &Token| token.text(source));
    let tag = usize::from(tokens.first().is_some_and(|token| token.kind == Lexeme::Sign));
    let mut depth = 0_usize;
    let mut top_level = |i: usize| {
        match tokens[i].kind {
            Lexeme::Open => depth += 1,
            Lexeme::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    };
    match text(tag) {
        "for" => (tag..tokens.len()).find(|&i| top_level(i) && text(i) == "in").unwrap_or(0),
        "set" => {
            let Some(at) = (tag..tokens.len()).find(|&i| top_level(i) && text(i) == "=") else {
                return 0;
            };
            let (Some(end), true) = (tokens.last(), at + 2 < tokens.len()) else { return 0 };
            let attribute = tokens[tag..at].iter().any(|token| token.kind == Lexeme::Dot);
            edits.push(Edit::insert(tokens[at].end, "(", 0));
            edits.push(Edit::insert(end.start, if attribute { ")|held " } else { ")|bound " }, 9));
            at
        }
        _ => 0,
    }
}

/// Edits that weigh lists, tuples and mappings that are written out, from token `first` on.
fn literals(source: &str, tokens: &[Token], first: usize, edits: &mut Vec<Edit>) {
    for i in first..tokens.len() {
        if tokens[i].kind != Lexeme::Open || (i > 0 && ends_value(source, tokens, i - 1)) {
            continue; // or a call or a subscript
        }
        let Some(close) = tokens[i].partner else { continue };
        let round = tokens[i].text(source) == "(";
        let operand_of_format = round
            && i > 1
            && tokens[i - 1].kind == Lexeme::Percent
            && tokens[i - 2].kind == Lexeme::Text;
        // `(a, b) = …` among the names of a `with`
        let target = tokens.get(close + 1).is_some_and(|next| next.text(source) == "=")
            && tokens.get(close + 2).is_some_and(|next| next.text(source) != "=");
        let group = round && !tokens[i].comma;
        if !operand_of_format && !target && !group {
            edits.push(Edit::insert(tokens[i].start, "(", 1));
            edits.push(Edit::insert(tokens[close].end, "|bound)", 1));
        }
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
        let tuple = tokens[i + 1].text(source) == "(" && tokens[i + 1].partner == Some(last);
        let with = if tuple { "|format" } else { "|format(" };
        edits.push(Edit { at: tokens[i].start, replaced: 1, with, rank: REPLACES });
        if !tuple {
            edits.push(Edit::insert(tokens[last].end, ")", 3));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_TAG_WORDS, rewrite};

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
            (
                "{{ '%s' % [a] }}{{ '%s' % (a, [b]) }}",
                "{{ '%s' |format( ([a]|bound)) }}{{ '%s' |format (a, ([b]|bound)) }}",
            ),
            ("{{ '%s-%s' % (a, b) + c }}", "{{ '%s-%s' |format (a, b)|sized + c }}"),
            ("{{ '%s' % (a, b)[0] }}", "{{ '%s' |format( (a, b)[0]) }}"),
            ("{{ '%.1f' % -1.5 }}", "{{ '%.1f' |format( -1.5) }}"),
            ("{{ '%s' % ('%d' % 3) }}", "{{ '%s' |format ('%d' |format( 3)) }}"),
            (
                "{% if '%d' % 3 == '3' %}y{% endif %}",
                "{% if '%d' |format( 3) == '3' %}y{% endif %}",
            ),
            ("{{ +n }}{%+ if 1 %}{{+ n }}", "{{  n }}{%+ if 1 %}{{+ n }}"),
            ("{{ 1 + +n }}{{ (+n) }}", "{{ 1 +  n }}{{ ( n) }}"),
            ("{{ 1 if x else +n }}", "{{ 1 if x else  n }}"),
            ("{{ 'a' + b + c.d + 'e' }}", "{{ 'a' + b|sized + c.d|sized + 'e' }}"),
            ("{{ t.0 + f(x)+1 }}", "{{ t.0|sized + f(x)|sized+1 }}"),
            ("{{ '%s' % x + y }}", "{{ '%s' |format( x|sized) + y }}"),
            ("{{ 7 % 3 }}{{ x % 2 }}", "{{ 7 % 3 }}{{ x % 2 }}"),
            ("{{ {'a': {'b': 1}} }}{{ 'x' % y", "{{ ({'a': ({'b': 1}|bound)}|bound) }}{{ 'x' % y"),
            (
                "{{ [1] + [x][0] + f([2], (3)) }}",
                "{{ ([1]|bound)|sized + ([x]|bound)[0]|sized + f(([2]|bound), (3)) }}",
            ),
            ("{{ x[1] in (1, 2) and ({}).a }}", "{{ x[1] in ((1, 2)|bound) and (({}|bound)).a }}"),
            (
                "{% for (a, b) in [(1, 2)] if [a] %}",
                "{% for (a, b) in ([((1, 2)|bound)]|bound) if ([a]|bound) %}",
            ),
            (
                "{% set x = 1 %}{%- set n.x=[a]-%}",
                "{% set x =( 1 )|bound %}{%- set n.x=(([a]|bound))|held -%}",
            ),
            ("{% set a, b = c, d == e %}", "{% set a, b =( c, d == e )|bound %}"),
            ("{% set x=+1 %}{% set y=+z %}", "{% set x=( 1 )|bound %}{% set y=( z )|bound %}"),
            ("{% {x}endgeneration %}{{ raw }}", "{% ({x}|bound)endgeneration %}{{ raw }}"),
            ("{% set x %}{% set (a, b) = y %}", "{% set x %}{% set (a, b) =( y )|bound %}"),
            ("{% with (a, b) = (c, d) %}", "{% with (a, b) = ((c, d)|bound) %}"),
            (
                "{% macro m(a, b=[1]) %}{% call(x, y) m() %}",
                "{% macro m(a, b=([1]|bound)) %}{% call(x, y) m() %}",
            ),
            (
                "{{ a * b.c + 2 ** d * 'x' }}",
                "{{ a|scalar * b.c|scalar|sized + 2 ** d|scalar * 'x' }}",
            ),
            ("{{ f(*a, **b) * 3 }}", "{{ f(*a, **b)|scalar * 3 }}"),
            ("{{ 'it\\'s %s' % x }}", "{{ 'it\\'s %s' |format( x) }}"),
        ] {
            assert_eq!(rewrite(source).unwrap().text, want, "{source}");
        }
    }

    #[test]
    fn places_map_back() {
        let source = "{% generation %}\n{{ k + q + '%s' % v ~ y }}!";
        let out = rewrite(source).unwrap();
        for word in ["k", "+ q", "q", "+ '", "v", "~", "y", "}}!"] {
            let at = out.text.rfind(word).unwrap();
            assert_eq!(out.origin(at), source.rfind(word).unwrap(), "{word}");
        }
        assert_eq!(rewrite("plain").unwrap().origin(3), 3);
        let long = format!("ab{{{{ 1{} }}}}", "+1".repeat(MAX_TAG_WORDS));
        assert_eq!(rewrite(&long), Err((2, "the tag is too long")));
    }
}
