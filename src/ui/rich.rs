//! Styled text and how it is broken into rows. Widths are those of whole grapheme clusters, as terminals count cells.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// What a piece of text is; a theme says how that looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ink {
    /// Ordinary text.
    #[default]
    Text,
    /// Headings.
    Heading,
    /// Code, inline or in a block.
    Code,
    /// Words of a language.
    Keyword,
    /// Literal text in code.
    Literal,
    /// Numbers in code.
    Number,
    /// Comments in code.
    Comment,
    /// Addresses.
    Link,
    /// Secondary text, borders.
    Dim,
    /// The user's name and draft mark.
    User,
    /// The model's name, what is selected.
    Accent,
    /// It went well.
    Good,
    /// Worth a look.
    Warn,
    /// It failed.
    Error,
}

/// Emphasis, on top of an ink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Emphasis {
    /// Bold.
    pub bold: bool,
    /// Italic.
    pub italic: bool,
    /// Struck out.
    pub struck: bool,
    /// Black on white, as the selected line of a list.
    pub reverse: bool,
}

/// Text in one style.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The text, harmless for a terminal, without line ends.
    pub text: String,
    /// What it is.
    pub ink: Ink,
    /// How it is stressed.
    pub emphasis: Emphasis,
}

/// A row of the screen.
pub type Row = Vec<Span>;

/// Where a line may be broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Break {
    /// Between words.
    #[default]
    Words,
    /// Anywhere: columns of code keep their place.
    Anywhere,
}

/// A line as written, before it is broken into rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Stands before the first row (a bullet, the bar of a quotation).
    pub lead: Row,
    /// Stands before the others.
    pub hang: Row,
    /// The text.
    pub spans: Row,
    /// Where it may be broken.
    pub breaks: Break,
}

impl Span {
    /// A span without emphasis.
    pub fn new(text: impl Into<String>, ink: Ink) -> Span {
        Span { text: text.into(), ink, emphasis: Emphasis::default() }
    }

    /// Plain text.
    pub fn plain(text: impl Into<String>) -> Span {
        Span::new(text, Ink::Text)
    }

    /// The same in bold.
    pub fn bold(mut self) -> Span {
        self.emphasis.bold = true;
        self
    }

    fn like(&self, text: String) -> Span {
        Span { text, ..*self }
    }
}

impl Line {
    /// A line of plain words.
    pub fn of(spans: Row) -> Line {
        Line { spans, ..Line::default() }
    }

    /// The rows at this width, at least one.
    pub fn rows(&self, width: usize) -> Vec<Row> {
        let mut out = Vec::new();
        let mut fill = Fill::new(self, width);
        for (at, span) in self.spans.iter().enumerate() {
            for (text, cells) in pieces(&span.text) {
                fill.push(text, cells, at, &mut out);
            }
        }
        fill.end(&mut out);
        out
    }
}

/// Cells of a text in a terminal.
pub fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { pieces(text).map(|(_, w)| w).sum() }
}

/// Cells of a row.
pub fn row_width(row: &[Span]) -> usize {
    row.iter().map(|s| width(&s.text)).sum()
}

/// Grapheme clusters with their cells. A cluster is as wide as its widest reading, so that an emoji with a variation
/// selector has two cells.
pub fn pieces(text: &str) -> impl Iterator<Item = (&str, usize)> {
    text.graphemes(true).map(|g| (g, g.width()))
}

/// The beginning of `text` that fits into `cells`, ending in `…` when something was cut.
pub fn fit(text: &str, cells: usize) -> String {
    if width(text) <= cells {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for (piece, w) in pieces(text) {
        if used + w + 1 > cells {
            break;
        }
        out.push_str(piece);
        used += w;
    }
    if cells > 0 {
        out.push('…');
    }
    out
}

/// A row being filled. What stands after the last place to break moves to the next row when the row is full.
struct Fill<'a> {
    line: &'a Line,
    width: usize,
    /// Piece, cells, index of its span.
    row: Vec<(&'a str, usize, usize)>,
    cells: usize,
    /// Length of `row` at the last place to break.
    last_break: Option<usize>,
    first: bool,
}

impl<'a> Fill<'a> {
    fn new(line: &'a Line, width: usize) -> Fill<'a> {
        Fill { line, width: width.max(1), row: Vec::new(), cells: 0, last_break: None, first: true }
    }

    /// Lead or hang of the row at work; nothing where it would leave no room.
    fn margin(&self) -> &'a [Span] {
        let margin = if self.first { &self.line.lead } else { &self.line.hang };
        if row_width(margin) + 4 > self.width { &[] } else { margin }
    }

    fn push(&mut self, text: &'a str, cells: usize, span: usize, out: &mut Vec<Row>) {
        let room = self.width - row_width(self.margin());
        let blank = text == " ";
        let words = self.line.breaks == Break::Words;
        if self.cells + cells > room && !(blank && words) {
            let at = self.last_break.filter(|_| words).unwrap_or(self.row.len());
            if at > 0 {
                let rest = self.row.split_off(at);
                self.emit(out);
                self.cells = rest.iter().map(|p| p.1).sum();
                self.row = rest;
                self.last_break = None;
            }
        }
        // Between two ideographs there is always a place to break.
        let wide = cells == 2;
        if wide && !self.row.is_empty() {
            self.last_break = Some(self.row.len());
        }
        self.row.push((text, cells, span));
        self.cells += cells;
        if blank || wide {
            self.last_break = Some(self.row.len());
        }
    }

    fn emit(&mut self, out: &mut Vec<Row>) {
        let mut row = self.margin().to_vec();
        let words = self.line.breaks == Break::Words;
        while words && self.row.last().is_some_and(|p| p.0 == " ") {
            self.row.pop();
        }
        let mut from = usize::MAX;
        for (text, _, span) in self.row.drain(..) {
            match row.last_mut() {
                Some(last) if from == span => last.text.push_str(text),
                _ => row.push(self.line.spans[span].like(text.to_owned())),
            }
            from = span;
        }
        out.push(row);
        self.first = false;
    }

    fn end(mut self, out: &mut Vec<Row>) {
        if !self.row.is_empty() || self.first {
            self.emit(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rows: &[Row]) -> Vec<String> {
        rows.iter().map(|r| r.iter().map(|s| s.text.as_str()).collect()).collect()
    }

    fn wrapped(source: &str, width: usize) -> Vec<String> {
        text(&Line::of(vec![Span::plain(source)]).rows(width))
    }

    #[test]
    fn words_move_whole_and_long_ones_are_cut() {
        for (source, width, want) in [
            ("", 5, &[""][..]),
            ("one two three", 7, &["one two", "three"]),
            ("one two  three", 7, &["one two", "three"]),
            ("abcdefgh ij", 4, &["abcd", "efgh", "ij"]),
            ("漢字漢字", 5, &["漢字", "漢字"]),
            ("ab 漢字x", 5, &["ab 漢", "字x"]),
            ("⚠️⚠️", 2, &["⚠️", "⚠️"]),
            ("👩‍👩‍👧a", 2, &["👩‍👩‍👧", "a"]),
            ("x", 0, &["x"]),
        ] {
            assert_eq!(wrapped(source, width), want, "{source:?} at {width}");
        }
    }

    #[test]
    fn rows_carry_margins_and_lose_no_text() {
        let line = Line {
            lead: vec![Span::plain("- ")],
            hang: vec![Span::plain("  ")],
            spans: vec![Span::plain("alpha "), Span::plain("beta gamma").bold()],
            breaks: Break::Words,
        };
        assert_eq!(text(&line.rows(12)), ["- alpha beta", "  gamma"]);
        let code = Line { breaks: Break::Anywhere, ..line };
        let all: String = text(&code.rows(9)).iter().map(|r| &r[2..]).collect();
        assert_eq!(all, "alpha beta gamma");
    }

    #[test]
    fn fitting_counts_cells() {
        for (text, cells, want) in
            [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("漢字漢", 4, "漢…"), ("x", 0, "")]
        {
            assert_eq!(fit(text, cells), want);
        }
    }
}
