//! Tokens that are matched in text before the model splits it, and who may write them.
//!
//! A tokenizer file lists *added tokens* (`<|im_end|>`, `<s>`, runs of blanks). Libraries match them anywhere in a
//! prompt, so a message that quotes `<|im_end|>` ends the turn. Here every byte of a prompt has an [`Author`], and a
//! special token counts only where the template wrote all of it. Everything else stays one text, so that ordinary
//! tokens may still span the seam between template and message, exactly as in training.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use serde::Deserialize;
use tokenizers::utils::SysRegex;

/// Who wrote a stretch of the prompt, least trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Author {
    /// A message of the user, the system or a tool, or a template variable: never a control token.
    Other,
    /// A message of the model itself: markers such as `</think>` count, special tokens do not.
    Model,
    /// The template: everything counts.
    Template,
}

/// The authors of a text. Bytes in no run are the template's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authors {
    runs: Vec<(Range<usize>, Author)>, // ascending, disjoint
}

impl Authors {
    /// The whole text is the template's.
    pub fn template() -> Authors {
        Authors::default()
    }

    /// The whole text, `len` bytes, is a message.
    pub fn other(len: usize) -> Authors {
        Authors { runs: vec![(0..len, Author::Other)] }
    }

    /// Authors by runs: byte ranges that ascend and do not overlap.
    pub fn new(runs: impl IntoIterator<Item = (Range<usize>, Author)>) -> Authors {
        let mut authors = Authors::default();
        for (range, author) in runs {
            authors.push(range, author);
        }
        authors
    }

    /// Appends a run; `range` must start at or after the end of the last one.
    pub(super) fn push(&mut self, range: Range<usize>, author: Author) {
        if range.is_empty() || author == Author::Template {
            return;
        }
        match self.runs.last_mut() {
            Some((last, who)) if last.end == range.start && *who == author => last.end = range.end,
            Some((last, _)) => {
                assert!(last.end <= range.start, "runs ascend: {last:?} then {range:?}");
                self.runs.push((range, author));
            }
            None => self.runs.push((range, author)),
        }
    }

    /// The runs that are not the template's: byte ranges, ascending.
    pub fn runs(&self) -> &[(Range<usize>, Author)] {
        &self.runs
    }

    /// The least trusted author of any byte in `range`.
    pub fn least(&self, range: &Range<usize>) -> Author {
        let first = self.runs.partition_point(|(run, _)| run.end <= range.start);
        self.runs[first..]
            .iter()
            .take_while(|(run, _)| run.start < range.end)
            .map(|(_, author)| *author)
            .min()
            .unwrap_or(Author::Template)
    }
}

fn yes() -> bool {
    true
}

/// One entry of `added_tokens` (tokenizer.json) or `added_tokens_decoder` (tokenizer_config.json).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(super) struct AddedToken {
    /// Its id; in tokenizer_config.json the id is the key.
    #[serde(default)]
    pub id: u32,
    pub content: String,
    /// Matches only as a whole word.
    #[serde(default)]
    pub single_word: bool,
    /// Swallows blanks on its left.
    #[serde(default)]
    pub lstrip: bool,
    /// Swallows blanks on its right.
    #[serde(default)]
    pub rstrip: bool,
    /// Matched after normalisation.
    #[serde(default = "yes")]
    pub normalized: bool,
    /// A control token: prints nothing, and only the template may write it.
    #[serde(default)]
    pub special: bool,
}

/// A piece of text: an added token, or what lies between.
pub(super) type Piece = (Option<u32>, Range<usize>);

/// Finds added tokens: leftmost first, longest of those.
#[derive(Clone, Debug, Default)]
pub(super) struct Matcher {
    tokens: Vec<AddedToken>,
    by_pattern: HashMap<Vec<u8>, usize>,
    /// Lengths of the patterns that begin with a byte, longest first.
    lengths: Vec<Vec<usize>>,
}

impl Matcher {
    /// A matcher for tokens, each with the pattern it is found by (its content, or that normalised).
    pub fn new(tokens: impl IntoIterator<Item = (String, AddedToken)>) -> Matcher {
        let mut matcher = Matcher { lengths: vec![Vec::new(); 256], ..Matcher::default() };
        for (pattern, token) in tokens {
            let Some(&first) = pattern.as_bytes().first() else { continue };
            let lengths = &mut matcher.lengths[usize::from(first)];
            if !lengths.contains(&pattern.len()) {
                lengths.push(pattern.len());
            }
            matcher.by_pattern.insert(pattern.into_bytes(), matcher.tokens.len());
            matcher.tokens.push(token);
        }
        for lengths in &mut matcher.lengths {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
        }
        matcher
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The longest token that starts at byte `at` and that `may` stand there.
    fn longest(
        &self,
        text: &str,
        at: usize,
        may: &impl Fn(&AddedToken, Range<usize>) -> bool,
    ) -> Option<(&AddedToken, usize)> {
        let rest = &text.as_bytes()[at..];
        let lengths = self.lengths.get(usize::from(*rest.first()?))?;
        lengths.iter().find_map(|&n| {
            let token = &self.tokens[*self.by_pattern.get(rest.get(..n)?)?];
            may(token, at..at + n).then_some((token, n))
        })
    }

    /// The length of the longest token at byte `at`.
    pub fn longest_at(&self, text: &str, at: usize) -> Option<usize> {
        self.longest(text, at, &|_, _| true).map(|(_, n)| n)
    }

    /// Cuts `text` at the added tokens that `may` stand where they do; the pieces cover it.
    pub fn cut(&self, text: &str, may: impl Fn(&AddedToken, Range<usize>) -> bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (mut done, mut at) = (0, 0);
        while at < text.len() {
            let Some((token, n)) = self.longest(text, at, &may) else {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            let (mut start, mut end) = (at, at + n);
            if token.single_word && !stands_alone(text, start, end) {
                at = end;
                continue;
            }
            if token.lstrip {
                start = done.max(text[..start].trim_end().len());
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                pieces.push((None, done..start));
            }
            pieces.push((Some(token.id), start..end));
            (done, at) = (end, end);
        }
        if done < text.len() {
            pieces.push((None, done..text.len()));
        }
        pieces
    }
}

/// Whether no word character touches `start..end`.
fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    static WORD: LazyLock<SysRegex> =
        LazyLock::new(|| SysRegex::new(r"\w").expect("a pattern of one class is well formed"));
    let word = |c: char| WORD.find_iter(c.encode_utf8(&mut [0; 4])).next().is_some();
    !text[..start].ends_with(word) && !text[end..].starts_with(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str) -> (String, AddedToken) {
        let token = AddedToken {
            id,
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        };
        (content.to_owned(), token)
    }

    fn show(text: &str, pieces: &[Piece]) -> Vec<String> {
        let show = |(id, range): &Piece| match id {
            Some(id) => format!("{id}:{}", &text[range.clone()]),
            None => text[range.clone()].to_owned(),
        };
        pieces.iter().map(show).collect()
    }

    #[test]
    fn leftmost_then_longest() {
        let matcher = Matcher::new([token(1, "<a>"), token(2, "<a><b>"), token(3, "é")]);
        let cases: [(&str, &[&str]); 6] = [
            ("", &[]),
            ("x<a>y", &["x", "1:<a>", "y"]),
            ("<a><b><a>", &["2:<a><b>", "1:<a>"]),
            ("<a><", &["1:<a>", "<"]),
            ("eéé", &["e", "3:é", "3:é"]),
            ("<<a>", &["<", "1:<a>"]),
        ];
        for (text, want) in cases {
            assert_eq!(show(text, &matcher.cut(text, |_, _| true)), want, "{text:?}");
        }
    }

    #[test]
    fn a_token_needs_the_template_for_all_its_bytes() {
        let matcher = Matcher::new([token(7, "<end>"), token(8, "<<end>")]);
        let text = "<end><end><<end>";
        //          0    5    10
        for (runs, want) in [
            (vec![], vec!["7:<end>", "7:<end>", "8:<<end>"]),
            (vec![(0..5, Author::Other)], vec!["<end>", "7:<end>", "8:<<end>"]),
            (vec![(9..10, Author::Model)], vec!["7:<end>", "<end>", "8:<<end>"]),
            // The `<` before the template's token must not hide it.
            (vec![(5..11, Author::Other)], vec!["7:<end>", "<end><", "7:<end>"]),
        ] {
            let mut authors = Authors::template();
            for (range, author) in runs {
                authors.push(range, author);
            }
            let may = |_: &AddedToken, at| authors.least(&at) == Author::Template;
            assert_eq!(show(text, &matcher.cut(text, may)), want, "{authors:?}");
        }
    }

    #[test]
    fn blanks_and_words() {
        let mut strip = token(1, "<m>");
        (strip.1.lstrip, strip.1.rstrip) = (true, true);
        let mut word = token(2, "cat");
        word.1.single_word = true;
        let matcher = Matcher::new([strip, word]);
        for (text, want) in [
            ("a  <m>\n b", vec!["a", "1:  <m>\n ", "b"]),
            ("<m>  <m>", vec!["1:<m>  ", "1:<m>"]),
            ("cat concat cats cat", vec!["2:cat", " concat cats ", "2:cat"]),
        ] {
            assert_eq!(show(text, &matcher.cut(text, |_, _| true)), want, "{text:?}");
        }
    }

    #[test]
    fn authors_answer_by_the_least_trusted_byte() {
        let mut authors = Authors::template();
        authors.push(2..4, Author::Model);
        authors.push(4..6, Author::Other);
        authors.push(6..7, Author::Other);
        authors.push(9..9, Author::Other);
        assert_eq!(authors.runs(), [(2..4, Author::Model), (4..7, Author::Other)]);
        for (range, want) in [
            (0..2, Author::Template),
            (0..3, Author::Model),
            (3..5, Author::Other),
            (6..9, Author::Other),
            (7..99, Author::Template),
        ] {
            assert_eq!(authors.least(&range), want, "{range:?}");
        }
    }
}
