//! Markdown that grows. A block that is complete is rendered once; only the last one is read again when text arrives.
//!
//! CommonMark is read line by line, and a top-level block that was closed by a complete line is never opened again. So
//! everything before the last block can be settled, and what is settled equals what reading the whole text gives.
//! A fenced block is followed by hand, line by line, because it may be as long as the reply.

use std::ops::Range;

use pulldown_cmark::{Alignment, CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::highlight::Highlighter;
use super::rich::{self, Break, Emphasis, Ink, Line, Row, Span};

/// A piece of a block whose rows depend on the width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Text.
    Line(Line),
    /// A table.
    Table(Table),
    /// A line across.
    Rule,
}

/// Cells of a table, the header first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    rows: Vec<Vec<Row>>,
    right: Vec<bool>,
    lead: Row,
}

/// A top-level block.
pub type Block = Vec<Item>;

/// Text that grows, as blocks.
#[derive(Clone, Debug, Default)]
pub struct Markdown {
    source: String,
    /// Bytes of `source` that are settled.
    settled: usize,
    /// Bytes of `source` that were looked at for settling.
    looked: usize,
    blocks: Vec<Block>,
    fence: Option<Fence>,
}

/// An open fenced block at the top level.
#[derive(Clone, Debug)]
struct Fence {
    mark: char,
    length: usize,
    indent: usize,
    highlighter: Highlighter,
}

impl Markdown {
    /// All of a text.
    pub fn of(text: &str) -> Markdown {
        let mut markdown = Markdown::default();
        markdown.push(text);
        markdown
    }

    /// Adds text, which must be harmless for a terminal and free of tabs already.
    pub fn push(&mut self, text: &str) {
        self.source.push_str(text);
        let Some(end) = self.source.rfind('\n').map(|at| at + 1).filter(|end| *end > self.looked)
        else {
            return;
        };
        self.looked = end;
        while self.settle(end) {}
    }

    /// Blocks that will not change, but for more items at the end of the last one while a fence is open.
    pub fn settled(&self) -> &[Block] {
        &self.blocks
    }

    /// Whether the last settled block can still get items.
    pub fn grows(&self) -> bool {
        self.fence.is_some()
    }

    /// What is not settled: items that belong to the last settled block, and further blocks.
    pub fn tail(&self) -> (Vec<Item>, Vec<Block>) {
        let rest = &self.source[self.settled..];
        match &self.fence {
            Some(fence) if rest.is_empty() || fence.closes(rest) => Default::default(),
            Some(fence) => {
                let mut fence = fence.clone();
                (vec![fence.item(rest.trim_end_matches('\n'))], Vec::new())
            }
            None => (Vec::new(), blocks(rest).into_iter().map(|(_, block)| block).collect()),
        }
    }

    /// Settles what the complete lines up to `end` allow. True when there may be more.
    fn settle(&mut self, end: usize) -> bool {
        if self.fence.is_some() {
            return self.settle_fence(end);
        }
        while self.settled < end {
            let line = first_line(&self.source[self.settled..end]);
            if !line.trim().is_empty() {
                break;
            }
            self.settled += line.len();
        }
        if self.settled >= end {
            return false;
        }
        let line = first_line(&self.source[self.settled..end]);
        if let Some(fence) = Fence::opened_by(line) {
            self.settled += line.len();
            self.fence = Some(fence);
            self.blocks.push(Block::new());
            return true;
        }
        let mut found = blocks(&self.source[self.settled..end]);
        let Some((last, _)) = found.pop().filter(|_| !found.is_empty()) else { return false };
        self.blocks.extend(found.into_iter().map(|(_, block)| block));
        // Indentation belongs to the block, and two top-level blocks never share a line.
        let before = &self.source[self.settled..self.settled + last.start];
        self.settled += before.rfind('\n').map_or(0, |at| at + 1);
        true
    }

    fn settle_fence(&mut self, end: usize) -> bool {
        let Some(fence) = &mut self.fence else { return false };
        let mut items = Vec::new();
        let mut closed = false;
        while self.settled < end && !closed {
            let line = first_line(&self.source[self.settled..end]);
            self.settled += line.len();
            closed = fence.closes(line);
            if !closed {
                items.push(fence.item(line.trim_end_matches('\n')));
            }
        }
        if let Some(block) = self.blocks.last_mut() {
            block.extend(items);
        }
        if closed {
            self.fence = None;
        }
        closed
    }
}

impl Fence {
    fn opened_by(line: &str) -> Option<Fence> {
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();
        let mark = text.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let length = text.chars().take_while(|c| *c == mark).count();
        let info = text[length..].trim();
        let opens = indent < 4 && length >= 3 && !(mark == '`' && info.contains('`'));
        opens.then(|| Fence { mark, length, indent, highlighter: Highlighter::new(info) })
    }

    fn closes(&self, line: &str) -> bool {
        let line = line.strip_suffix('\n').unwrap_or(line);
        let text = line.trim_start_matches(' ');
        let marks = text.chars().take_while(|c| *c == self.mark).count();
        line.len() - text.len() < 4
            && marks >= self.length
            && text[marks..].trim_matches([' ', '\t']).is_empty()
    }

    fn item(&mut self, line: &str) -> Item {
        let blanks = line.len() - line.trim_start_matches(' ').len();
        code_line(&mut self.highlighter, &line[blanks.min(self.indent)..], &[])
    }
}

fn first_line(text: &str) -> &str {
    &text[..text.find('\n').map_or(text.len(), |at| at + 1)]
}

fn code_line(highlighter: &mut Highlighter, line: &str, margin: &[Span]) -> Item {
    let lead: Row = margin.iter().cloned().chain([Span::plain("  ")]).collect();
    let spans = highlighter.line(line);
    Item::Line(Line { hang: lead.clone(), lead, spans, breaks: Break::Anywhere })
}

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS
}

/// The top-level blocks of a text and where they stand.
fn blocks(text: &str) -> Vec<(Range<usize>, Block)> {
    let mut found = Vec::new();
    let mut depth = 0usize;
    let mut at = 0..0;
    let mut writer = Writer::default();
    for (event, range) in Parser::new_ext(text, options()).into_offset_iter() {
        if depth == 0 {
            at = range;
        }
        match &event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        writer.event(event);
        if depth == 0 {
            found.push((at.clone(), std::mem::take(&mut writer).finish()));
        }
    }
    found
}

/// A container around text: what stands before its first line and before the others.
#[derive(Debug)]
struct Margin {
    first: Span,
    rest: Span,
    used: bool,
}

/// Turns the events of one block into items.
#[derive(Debug, Default)]
struct Writer {
    items: Block,
    spans: Row,
    margins: Vec<Margin>,
    /// The number of the next item, for each open list.
    lists: Vec<Option<u64>>,
    emphasis: Emphasis,
    bold: u32,
    italic: u32,
    ink: Vec<Ink>,
    /// Address of an open link, and where its text begins in `spans`.
    link: Option<(String, usize)>,
    code: Option<(Highlighter, String)>,
    table: Option<Table>,
    /// A blank line is due before the next block in this container, and before the next item.
    gap: (bool, bool),
}

impl Writer {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some((_, code)) => code.push_str(&text),
                None => self.text(&text),
            },
            Event::Code(text) => self.push(Span::new(&*text, Ink::Code)),
            Event::InlineMath(text) | Event::DisplayMath(text) => self.text(&text),
            Event::Html(text) | Event::InlineHtml(text) => self.html(&text),
            Event::SoftBreak => self.text(" "),
            Event::HardBreak => self.line(),
            Event::Rule => {
                self.space();
                self.items.push(Item::Rule);
                self.gap = (true, true);
            }
            Event::TaskListMarker(done) => self.text(if done { "[x] " } else { "[ ] " }),
            Event::FootnoteReference(text) => self.text(&text),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.space(),
            Tag::Heading { level, .. } => {
                self.space();
                self.ink.push(Ink::Heading);
                self.bold += 1;
                self.push(Span::new("#".repeat(level as usize) + " ", Ink::Dim));
            }
            Tag::BlockQuote(_) => {
                self.space();
                let bar = Span::new("│ ", Ink::Dim);
                self.margins.push(Margin { first: bar.clone(), rest: bar, used: false });
            }
            Tag::CodeBlock(kind) => {
                self.space();
                let info = match &kind {
                    CodeBlockKind::Fenced(info) => info,
                    CodeBlockKind::Indented => "",
                };
                self.code = Some((Highlighter::new(info), String::new()));
            }
            Tag::List(first) => {
                self.flush();
                if self.gap.0 && self.margins.is_empty() {
                    self.space();
                }
                self.lists.push(first);
            }
            Tag::Item => self.item(),
            Tag::Table(alignments) => {
                self.space();
                let right = alignments.iter().map(|a| *a == Alignment::Right).collect();
                let lead = self.margin(true);
                self.table = Some(Table { right, lead, ..Table::default() });
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            Tag::Emphasis => self.italic += 1,
            Tag::Strong => self.bold += 1,
            Tag::Strikethrough => self.emphasis.struck = true,
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.link = Some((dest_url.into_string(), self.spans.len()));
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => {
                self.flush();
                self.gap = (true, true);
            }
            TagEnd::Heading(_) => {
                self.flush();
                self.ink.pop();
                self.bold = self.bold.saturating_sub(1);
                self.gap = (true, true);
            }
            TagEnd::BlockQuote(_) => {
                self.flush();
                self.margins.pop();
                self.gap = (true, true);
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::List(_) => {
                self.lists.pop();
                self.gap.0 = true;
            }
            TagEnd::Item => {
                if self.margins.last().is_some_and(|m| !m.used) || !self.spans.is_empty() {
                    self.line();
                }
                self.margins.pop();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.spans);
                if let Some(row) = self.table.as_mut().and_then(|t| t.rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::Table => {
                self.items.extend(self.table.take().map(Item::Table));
                self.gap = (true, true);
            }
            TagEnd::Emphasis => self.italic = self.italic.saturating_sub(1),
            TagEnd::Strong => self.bold = self.bold.saturating_sub(1),
            TagEnd::Strikethrough => self.emphasis.struck = false,
            TagEnd::Link | TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    fn item(&mut self) {
        self.flush();
        if self.gap.1 && self.items.last().is_some_and(|i| *i != Item::Rule) {
            self.space();
        }
        self.gap = (false, false);
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                *number += 1;
                format!("{}. ", *number - 1)
            }
            _ => "• ".to_owned(),
        };
        let rest = Span::plain(" ".repeat(rich::width(&mark)));
        self.margins.push(Margin { first: Span::new(mark, Ink::Dim), rest, used: false });
    }

    fn end_code(&mut self) {
        if let Some((mut highlighter, code)) = self.code.take() {
            for line in code.lines() {
                let margin = self.margin(false);
                self.items.push(code_line(&mut highlighter, line, &margin));
            }
        }
        self.gap = (true, true);
    }

    /// The address, unless the text says it already.
    fn end_link(&mut self) {
        let Some((address, from)) = self.link.take() else { return };
        let said: String = self.spans.iter().skip(from).map(|s| s.text.as_str()).collect();
        if said != address && !address.is_empty() {
            self.push(Span::new(format!(" ({address})"), Ink::Link));
        }
    }

    fn html(&mut self, text: &str) {
        for (n, line) in text.split('\n').enumerate() {
            if n > 0 {
                self.flush();
            }
            if !line.is_empty() {
                self.push(Span::new(line, Ink::Dim));
            }
        }
    }

    fn text(&mut self, text: &str) {
        let ink = match (&self.link, self.ink.last()) {
            (Some(_), _) => Ink::Link,
            (None, Some(ink)) => *ink,
            (None, None) => Ink::Text,
        };
        self.push(Span::new(text, ink));
    }

    fn push(&mut self, mut span: Span) {
        span.emphasis = Emphasis { bold: self.bold > 0, italic: self.italic > 0, ..self.emphasis };
        self.spans.push(span);
    }

    /// What stands before the next line; `keep` does not count as using it.
    fn margin(&mut self, keep: bool) -> Row {
        self.margins
            .iter_mut()
            .map(|m| {
                let text = if m.used { &m.rest } else { &m.first };
                let text = text.clone();
                m.used |= !keep || m.first == m.rest;
                text
            })
            .collect()
    }

    fn flush(&mut self) {
        if !self.spans.is_empty() {
            self.line();
        }
    }

    fn line(&mut self) {
        let lead = self.margin(false);
        let hang = self.margins.iter().map(|m| m.rest.clone()).collect();
        let spans = std::mem::take(&mut self.spans);
        self.items.push(Item::Line(Line { lead, hang, spans, breaks: Break::Words }));
    }

    /// Ends the line, and leaves one blank where a block follows another.
    fn space(&mut self) {
        self.flush();
        if self.gap.0 && !self.items.is_empty() {
            let lead = self.margins.iter().filter(|m| m.used).map(|m| m.rest.clone()).collect();
            self.items.push(Item::Line(Line { lead, ..Line::default() }));
        }
        self.gap = (false, false);
    }

    fn finish(mut self) -> Block {
        self.flush();
        self.items
    }
}

impl Item {
    /// The rows at this width.
    pub fn rows(&self, width: usize) -> Vec<Row> {
        match self {
            Item::Line(line) => line.rows(width),
            Item::Rule => vec![vec![Span::new("─".repeat(width.clamp(1, 60)), Ink::Dim)]],
            Item::Table(table) => table.rows(width),
        }
    }
}

impl Table {
    /// Columns as wide as their cells; when that is too wide, the widest columns shrink and their cells wrap.
    fn rows(&self, width: usize) -> Vec<Row> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![1usize; columns];
        for row in &self.rows {
            for (cell, w) in row.iter().zip(&mut widths) {
                *w = (*w).max(rich::row_width(cell));
            }
        }
        let lead = rich::row_width(&self.lead) + 2;
        let room = width.saturating_sub(lead + 3 * columns.saturating_sub(1)).max(columns);
        while widths.iter().sum::<usize>() > room {
            match widths.iter_mut().max() {
                Some(widest) if *widest > 1 => *widest -= 1,
                _ => break,
            }
        }
        let mut out = Vec::new();
        for (n, row) in self.rows.iter().enumerate() {
            self.emit(row, &widths, n == 0, &mut out);
            if n == 0 {
                let line = |w: &usize| Span::new("─".repeat(*w), Ink::Dim);
                let cells = widths.iter().map(|w| vec![line(w)]).collect();
                out.push(self.joined(cells, &widths));
            }
        }
        out
    }

    fn emit(&self, row: &[Row], widths: &[usize], header: bool, out: &mut Vec<Row>) {
        let cells: Vec<Vec<Row>> = (0..widths.len())
            .map(|c| {
                let mut spans = row.get(c).cloned().unwrap_or_default();
                if header {
                    spans.iter_mut().for_each(|s| s.emphasis.bold = true);
                }
                Line::of(spans).rows(widths[c])
            })
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..height {
            let line = cells.iter().map(|c| c.get(at).cloned().unwrap_or_default()).collect();
            out.push(self.joined(line, widths));
        }
    }

    fn joined(&self, cells: Vec<Row>, widths: &[usize]) -> Row {
        let mut row = self.lead.clone();
        row.push(Span::plain("  "));
        let last = cells.len().saturating_sub(1);
        for (c, cell) in cells.into_iter().enumerate() {
            let blank = widths[c].saturating_sub(rich::row_width(&cell));
            let right = self.right.get(c).copied().unwrap_or(false);
            if right {
                row.push(Span::plain(" ".repeat(blank)));
            }
            row.extend(cell);
            if c < last {
                row.push(Span::plain(" ".repeat(if right { 3 } else { blank + 3 })));
            }
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of settled and unsettled blocks, a blank line between blocks.
    fn shown(m: &Markdown, width: usize) -> String {
        let mut all: Vec<Block> = m.settled().to_vec();
        let (more, blocks) = m.tail();
        if let Some(last) = all.last_mut() {
            last.extend(more);
        }
        all.extend(blocks);
        plain(&all, width)
    }

    fn plain(blocks: &[Block], width: usize) -> String {
        let block = |b: &Block| {
            let rows = b.iter().flat_map(|i| i.rows(width));
            let text = |r: Row| r.into_iter().map(|s| s.text).collect::<String>();
            rows.map(|r| text(r).trim_end().to_owned()).collect::<Vec<_>>().join("\n")
        };
        // A blank last line of an open fence is nothing to see.
        blocks.iter().map(block).collect::<Vec<_>>().join("\n\n").trim_end().to_owned()
    }

    #[test]
    fn blocks_look_like_this() {
        for (source, want) in [
            ("# Title\ntext *it* `code`", "# Title\n\ntext it code"),
            ("- a\n- b\n  - c\n- d", "• a\n• b\n  • c\n• d"),
            ("1. a\n\n   more\n\n2. b", "1. a\n\n   more\n\n2. b"),
            ("> q\n> r\n\nx", "│ q r\n\nx"),
            ("> a\n>\n> b", "│ a\n│\n│ b"),
            ("```rust\nlet x;\n\n  y\n```\nend", "  let x;\n\n    y\n\nend"),
            ("- x\n  ```\n  code\n  ```", "• x\n    code"),
            ("[a](http://b) <http://c>", "a (http://b) http://c"),
            ("| a | bb |\n|---|---:|\n| ccc | d |", "  a     bb\n  ───   ──\n  ccc    d"),
            ("a\\\nb", "a\nb"),
            ("- [x] done", "• [x] done"),
            ("<b>x</b>", "<b>x</b>"),
            ("", ""),
        ] {
            assert_eq!(shown(&Markdown::of(source), 60), want, "{source:?}");
        }
    }

    #[test]
    fn tables_shrink_to_the_width() {
        let m = Markdown::of("| a | b |\n|-|-|\n| one two three | x |\n");
        for width in 1..40 {
            let text = shown(&m, width);
            if width > 14 {
                assert!(text.lines().all(|l| rich::width(l) <= width), "{width}: {text}");
            }
            // Cells that wrap stand beside each other.
            let mut letters: Vec<char> = text.chars().filter(|c| c.is_alphabetic()).collect();
            letters.sort_unstable();
            let mut want: Vec<char> = "abonetwothreex".chars().collect();
            want.sort_unstable();
            assert_eq!(letters, want, "{width}");
        }
    }

    /// Whatever the pieces, what grew equals what is read at once, and what the parser alone makes of the whole.
    #[test]
    fn what_grows_equals_the_whole() {
        let parts = [
            "# h\n",
            "text ",
            "*em* ",
            "**b",
            "** ",
            "\n",
            "\n\n",
            "- item\n",
            "  - sub\n",
            "1. n\n",
            "```rust\n",
            "```\n",
            "~~~~\n",
            "    code\n",
            "> quote\n",
            "| a | b |\n",
            "|---|---|\n",
            "`x` ",
            "---\n",
            "===\n",
            "<div>\n",
            "漢字 ",
            "[l](u) ",
            "\\\n",
            "* * *\n",
            "  ",
            "#",
            "    ```\n",
            "- ```\n",
            "1)",
            "&amp;",
            "``",
        ];
        let seed = std::process::id().into();
        let mut draws = crate::num::rng::Stream::new(seed);
        for round in 0..6000 {
            let count = draws.below(14) as usize;
            let text: String =
                (0..count).map(|_| parts[draws.below(parts.len() as u32) as usize]).collect();
            let whole = Markdown::of(&text);
            let mut grown = Markdown::default();
            let mut chars = text.chars().peekable();
            while chars.peek().is_some() {
                let n = 1 + draws.below(5) as usize;
                grown.push(&chars.by_ref().take(n).collect::<String>());
            }
            let parsed: Vec<Block> = blocks(&text).into_iter().map(|(_, b)| b).collect();
            let want = plain(&parsed, 40);
            assert_eq!(shown(&grown, 40), want, "seed {seed}, round {round}, in pieces: {text:?}");
            assert_eq!(shown(&whole, 40), want, "seed {seed}, round {round}: {text:?}");
        }
    }
}
