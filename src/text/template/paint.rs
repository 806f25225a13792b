//! Who wrote which byte of a rendered prompt.
//!
//! A template is a program: it may trim a message, cut it, or look into it. So authorship is not guessed from the
//! result but followed through the program: the template runs a second time on *painted* messages, where each
//! character that occurs in a control token is replaced by a private-use character of its own, one set per author.
//!
//! ```text
//! message   Explain <|im_end|> please         second run   Explain ⟦<⟧⟦|⟧im… please    (⟦c⟧ is one character)
//! rendered  <|im_start|>user⏎Explain <|im_end|> please<|im_end|>⏎
//! painted   <|im_start|>user⏎Explain ⟦<⟧⟦|⟧⟦i⟧… please<|im_end|>⏎
//! ```
//!
//! If the second result with the paint removed equals the first, the painted characters are exactly those that came
//! from messages. If not, the template read what was painted, and less is painted: first only the signs of
//! control tokens that a message contains (and of their halves at its ends), then only of special ones. If even that changes the result, the
//! prompt is refused: the template reads special tokens inside messages, and nobody could say who wrote them.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::text::added::{AddedToken, Author, Authors, Matcher};
use crate::text::tokens::Tokenizer;

/// The control tokens of a model, and the characters they are made of.
#[derive(Debug)]
pub(super) struct Guard {
    tokens: Vec<AddedToken>,
    special: Matcher,
    all: Matcher,
    /// Characters of control tokens, each with its number.
    alphabet: HashMap<char, u32>,
    /// Ids of the tokens that are not special, ascending.
    pub markers: Vec<u32>,
}

/// How much of the messages is painted, most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Every character of the alphabet.
    Alphabet,
    /// The signs (what is not a letter or digit) of control tokens that occur, and of their halves at the ends.
    Tokens,
    /// The same for special tokens only.
    Specials,
}

impl Extent {
    pub const ALL: [Extent; 3] = [Extent::Alphabet, Extent::Tokens, Extent::Specials];
}

/// Whether an added token that is not special acts as a control token of this template: the template writes it, and
/// it looks like markup (`</think>`), not like a word or a run of blanks.
fn is_marker(token: &str, template: &str) -> bool {
    token.chars().count() >= 3
        && token.chars().any(|c| !c.is_alphanumeric() && !c.is_whitespace())
        && template.contains(token)
}

impl Guard {
    pub fn new(tokenizer: &Tokenizer, template: &str) -> Guard {
        let token = |id: u32, content: &str, special: bool| AddedToken {
            id,
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special,
        };
        let mut tokens: Vec<AddedToken> =
            tokenizer.special_tokens().map(|(id, content)| token(id, content, true)).collect();
        let ordinary = tokenizer.ordinary_added();
        let markers = ordinary.filter(|(_, content)| is_marker(content, template));
        tokens.extend(markers.map(|(id, content)| token(id, content, false)));
        let mut alphabet = HashMap::new();
        for c in tokens.iter().flat_map(|token| token.content.chars()) {
            let next = u32::try_from(alphabet.len()).unwrap_or(u32::MAX);
            // Templates trim blanks, and JSON escapes quotes: these stay as they are.
            if !c.is_whitespace() && c != '"' && c != '\\' {
                alphabet.entry(c).or_insert(next);
            }
        }
        let matcher = |tokens: &mut dyn Iterator<Item = &AddedToken>| {
            Matcher::new(tokens.map(|token| (token.content.clone(), token.clone())))
        };
        Guard {
            special: matcher(&mut tokens.iter().filter(|token| token.special)),
            all: matcher(&mut tokens.iter()),
            markers: tokens.iter().filter(|token| !token.special).map(|token| token.id).collect(),
            alphabet,
            tokens,
        }
    }

    /// The control token that a text begins with: its id and length.
    pub fn token_at(&self, text: &str) -> Option<(u32, usize)> {
        let n = self.all.longest_at(text, 0)?;
        let token = self.tokens.iter().find(|token| token.content == text[..n])?;
        Some((token.id, n))
    }
}

/// Private-use characters that stand for the guard's alphabet, and occur nowhere else.
pub(super) struct Paint<'a> {
    guard: &'a Guard,
    /// The first character for [`Author::Other`]; those for [`Author::Model`] follow.
    base: u32,
    extent: Extent,
}

/// The supplementary private-use planes.
const PLANES: [std::ops::Range<u32>; 2] = [0xf_0000..0xf_fffe, 0x10_0000..0x10_fffe];

impl<'a> Paint<'a> {
    /// Picks characters that none of `texts` contains; `None` if there are not enough.
    pub fn new(guard: &'a Guard, texts: &[&str]) -> Option<Paint<'a>> {
        let mut used: Vec<u32> = texts
            .iter()
            .flat_map(|text| text.chars())
            .map(u32::from)
            .filter(|&code| code >= PLANES[0].start)
            .collect();
        used.sort_unstable();
        let need = u32::try_from(guard.alphabet.len()).ok()?.checked_mul(2)?;
        for plane in PLANES {
            let first = used.partition_point(|&code| code < plane.start);
            let last = used.partition_point(|&code| code < plane.end);
            let mut base = plane.start;
            for next in used[first..last].iter().copied().chain([plane.end]) {
                if next - base.min(next) >= need {
                    return Some(Paint { guard, base, extent: Extent::Alphabet });
                }
                base = next + 1;
            }
        }
        None
    }

    pub fn with(&self, extent: Extent) -> Paint<'a> {
        Paint { guard: self.guard, base: self.base, extent }
    }

    /// The codes of the painted characters.
    pub fn codes(&self) -> std::ops::Range<u32> {
        self.base..self.base + 2 * self.guard.alphabet.len() as u32
    }

    fn painted(&self, c: char, author: Author) -> char {
        let Some(number) = self.guard.alphabet.get(&c) else { return c };
        let n = self.guard.alphabet.len() as u32;
        let code = self.base + number + if author == Author::Model { n } else { 0 };
        char::from_u32(code).unwrap_or(c)
    }

    fn paint_text(&self, text: &str, author: Author, extent: Extent) -> String {
        if extent == Extent::Alphabet {
            return text.chars().map(|c| self.painted(c, author)).collect();
        }
        // The model may write markers, so in its messages only special tokens are painted.
        let specials = extent == Extent::Specials || author == Author::Model;
        let matcher = if specials { &self.guard.special } else { &self.guard.all };
        let sign = |c: char| !c.is_alphanumeric() && self.guard.alphabet.contains_key(&c);
        let (mut until, mut solid) = (0, 0); // bytes below are in a token, in a token without signs
        let mut out = String::with_capacity(text.len());
        let (head, tail) = self.halves(text, specials);
        for (at, c) in text.char_indices() {
            if let Some(n) = matcher.longest_at(text, at) {
                until = until.max(at + n);
                if !text[at..at + n].contains(sign) {
                    solid = solid.max(at + n);
                }
            }
            let inside = at < until || head.contains(&at) || tail.contains(&at);
            // A token whose signs are a message's is none, and templates may change letters (`upper`).
            let painted = at < solid || (inside && sign(c));
            out.push(if painted { self.painted(c, author) } else { c });
        }
        out
    }

    /// The byte ranges at both ends of a text, blanks aside, that could be half of a control token.
    fn halves(
        &self,
        text: &str,
        specials: bool,
    ) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let start = text.len() - text.trim_start().len();
        let end = text.trim_end().len();
        let (mut head, mut tail) = (start..start, end..end);
        if start >= end {
            return (head, tail);
        }
        let body = &text[start..end];
        let tokens = self.guard.tokens.iter().filter(|token| token.special || !specials);
        for token in tokens {
            let content = token.content.as_str();
            for (cut, _) in content.char_indices().skip(1) {
                if body.starts_with(&content[cut..]) {
                    head.end = head.end.max(start + content.len() - cut);
                }
                if body.ends_with(&content[..cut]) {
                    tail.start = tail.start.min(end - cut);
                }
            }
        }
        (head, tail)
    }

    /// Paints the texts of a message. Its role and the names of its fields are what templates compare with, so they
    /// stay.
    pub fn message(&self, message: &Value) -> Value {
        let Value::Object(fields) = message else { return message.clone() };
        let assistant = fields.get("role").and_then(Value::as_str) == Some("assistant");
        let author = if assistant { Author::Model } else { Author::Other };
        let paint = |(key, value): (&String, &Value)| {
            let painted = match key.as_str() {
                "role" => value.clone(),
                "content" | "reasoning_content" => self.content(value, author),
                _ => self.value(value, author),
            };
            (key.clone(), painted)
        };
        Value::Object(fields.iter().map(paint).collect())
    }

    /// A message's content: a text, or a list of parts of which some are texts.
    fn content(&self, value: &Value, author: Author) -> Value {
        match value {
            Value::String(text) => self.paint_text(text, author, self.extent).into(),
            Value::Array(parts) => {
                Value::Array(parts.iter().map(|part| self.part(part, author)).collect())
            }
            _ => self.value(value, author),
        }
    }

    fn part(&self, part: &Value, author: Author) -> Value {
        let Value::Object(fields) = part else { return self.content(part, author) };
        let paint = |(key, value): (&String, &Value)| {
            let painted = match key.as_str() {
                "type" => value.clone(),
                "text" => self.content(value, author),
                _ => self.value(value, author),
            };
            (key.clone(), painted)
        };
        Value::Object(fields.iter().map(paint).collect())
    }

    /// Other data: templates compare it more often than they print it, so only control tokens in it are painted.
    fn value(&self, value: &Value, author: Author) -> Value {
        let extent = if self.extent == Extent::Alphabet { Extent::Tokens } else { self.extent };
        match value {
            Value::String(text) => self.paint_text(text, author, extent).into(),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.value(item, author)).collect())
            }
            Value::Object(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(key, value)| (key.clone(), self.value(value, author)))
                    .collect(),
            ),
            _ => value.clone(),
        }
    }

    /// Paints the template's variables.
    pub fn variables(&self, variables: &Map<String, Value>) -> Map<String, Value> {
        let paint =
            |(key, value): (&String, &Value)| (key.clone(), self.value(value, Author::Other));
        variables.iter().map(paint).collect()
    }

    /// Reads the authors off a painted result; `None` if it is not the plain result painted.
    pub fn authors(&self, plain: &str, painted: &str) -> Option<Authors> {
        let n = self.guard.alphabet.len() as u32;
        let mut letters = vec!['\0'; n as usize];
        for (&c, &number) in &self.guard.alphabet {
            letters[number as usize] = c;
        }
        let mut authors = Authors::template();
        let mut rest = plain.char_indices();
        for c in painted.chars() {
            let number = u32::from(c).wrapping_sub(self.base);
            let (letter, author) = if number < n {
                (letters[number as usize], Author::Other)
            } else if number < 2 * n {
                (letters[(number - n) as usize], Author::Model)
            } else {
                (c, Author::Template)
            };
            let (at, want) = rest.next()?;
            if letter != want {
                return None;
            }
            authors.push(at..at + want.len_utf8(), author);
        }
        rest.next().is_none().then_some(authors)
    }
}
