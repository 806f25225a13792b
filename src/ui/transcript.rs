//! What was said, as entries, and the rows they take at the present width.
//!
//! Rows of finished blocks are made once per width. Scrolling counts rows from the top, so that a view which is not at
//! the bottom stays still while text arrives.

use std::ops::Range;

use super::markdown::{Block, Markdown};
use super::rich::{Ink, Line, Row, Span};
use crate::engine::protocol::{Finish, Stats};
use crate::error::Error;
use crate::text::sanitize::{self, VisibleStream};

/// One thing in the transcript.
#[derive(Clone, Debug)]
pub enum Entry {
    /// What the user said.
    User(String),
    /// What a model said.
    Reply(Box<Reply>),
    /// What the program has to say.
    Note(String),
    /// A change of the conversation that must not go unseen (turns left out, a summary).
    Marker(String),
    /// What failed.
    Error(Error),
}

/// What a model said, whole or so far.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Who.
    pub name: String,
    /// The exact text.
    pub text: String,
    /// The thinking before it.
    pub reasoning: String,
    /// Whether the thinking is shown.
    pub unfolded: bool,
    /// Seconds that it thought.
    pub thought_s: f64,
    /// How it ended; `None` while it goes on.
    pub finish: Option<Finish>,
    /// Counts and times.
    pub stats: Stats,
    shown: Markdown,
    visible: VisibleStream,
    reasoning_shown: Markdown,
    reasoning_visible: VisibleStream,
}

/// Rows of an entry at a width.
#[derive(Clone, Debug, Default)]
struct Cache {
    width: usize,
    /// Rows before the text of a reply (who, the thinking), or all of another entry.
    head: Vec<Row>,
    /// Rows of what will not change.
    firm: Vec<Row>,
    /// Blocks, and items of the last one, that are in `firm`.
    blocks: (usize, usize),
    /// Rows of the rest.
    loose: Vec<Row>,
    dirty: bool,
}

/// Everything said, and how it is scrolled.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    entries: Vec<Entry>,
    caches: Vec<Cache>,
    width: usize,
    height: usize,
    /// The first row in view; `None` follows the end.
    top: Option<usize>,
    /// An entry whose beginning is to be in view once it has rows.
    reveal: Option<usize>,
}

impl Reply {
    /// An empty reply.
    pub fn of(name: &str) -> Reply {
        Reply { name: name.to_owned(), ..Reply::default() }
    }

    /// A finished reply.
    pub fn said(name: &str, text: &str, reasoning: &str, finish: Finish) -> Reply {
        let mut reply = Reply::of(name);
        reply.push(text);
        reply.think(reasoning);
        reply.end(finish, Stats::default());
        reply
    }

    /// More of the answer.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        let safe = self.visible.push(text);
        self.shown.push(&tame(&safe));
    }

    /// More of the thinking.
    pub fn think(&mut self, text: &str) {
        self.reasoning.push_str(text);
        let safe = self.reasoning_visible.push(text);
        self.reasoning_shown.push(&tame(&safe));
    }

    /// The end.
    pub fn end(&mut self, finish: Finish, stats: Stats) {
        let rest = self.visible.finish();
        self.shown.push(rest);
        let rest = self.reasoning_visible.finish();
        self.reasoning_shown.push(rest);
        self.finish = Some(finish);
        self.stats = stats;
    }

    /// The blocks of code, in order.
    pub fn code_blocks(&self) -> Vec<String> {
        use pulldown_cmark::{Event, Parser, Tag, TagEnd};
        let mut found = Vec::new();
        let mut open = false;
        for event in Parser::new(&self.text) {
            match event {
                Event::Start(Tag::CodeBlock(_)) => {
                    open = true;
                    found.push(String::new());
                }
                Event::End(TagEnd::CodeBlock) => open = false,
                Event::Text(text) if open => {
                    if let Some(last) = found.last_mut() {
                        last.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        found
    }

    fn thinking_line(&self) -> Option<String> {
        if self.reasoning.is_empty() {
            return None;
        }
        let mark = if self.unfolded { '▾' } else { '▸' };
        Some(if self.text.is_empty() && self.finish.is_none() {
            format!("{mark} thinking …  Tab shows it")
        } else if self.thought_s > 0.0 {
            let tokens = self.stats.reasoning_tokens;
            format!("{mark} thought for {:.1} s ({tokens} tokens)  Tab shows it", self.thought_s)
        } else {
            format!("{mark} thought  Tab shows it")
        })
    }
}

/// What a layout does not take: carriage returns before line ends go, tabs become blanks.
fn tame(text: &str) -> String {
    if text.contains(['\r', '\t']) {
        text.replace("\r\n", "\n").replace('\t', "    ")
    } else {
        text.to_owned()
    }
}

/// Text of ours or a user's as rows.
fn plain(text: &str, ink: Ink, mark: &str, width: usize) -> Vec<Row> {
    let safe = tame(&sanitize::visible(text));
    let hang = Span::plain(" ".repeat(super::rich::width(mark)));
    let mut out = Vec::new();
    for (n, line) in safe.split('\n').enumerate() {
        let lead = if n == 0 { Span::new(mark, ink).bold() } else { hang.clone() };
        let spans = vec![Span::new(line, ink)];
        let line = Line { lead: vec![lead], hang: vec![hang.clone()], spans, ..Line::default() };
        out.extend(line.rows(width));
    }
    out
}

/// The three lines of an error, as rows.
fn error_rows(e: &Error, width: usize) -> Vec<Row> {
    let mut out = plain(&e.what, Ink::Error, "✗ ", width);
    out.extend(plain(&e.why, Ink::Text, "  why: ", width));
    out.extend(plain(&e.todo, Ink::Text, "  try: ", width));
    out
}

impl Entry {
    /// Whether it is a message of the conversation.
    pub fn is_turn(&self) -> bool {
        matches!(self, Entry::User(_) | Entry::Reply(_))
    }

    /// Its exact text, as plain lines, with who said it.
    pub fn raw(&self) -> String {
        match self {
            Entry::User(text) => format!("you:\n{text}\n"),
            Entry::Reply(reply) => format!("{}:\n{}\n", reply.name, reply.text),
            Entry::Note(text) => format!("snug: {text}\n"),
            Entry::Marker(text) => format!("── {text} ──\n"),
            Entry::Error(e) => format!("{e}\n"),
        }
    }

    fn head(&self, width: usize) -> Vec<Row> {
        match self {
            Entry::User(text) => {
                let mut rows = vec![vec![Span::new("you", Ink::User).bold()]];
                rows.extend(plain(text, Ink::Text, "", width));
                rows
            }
            Entry::Reply(reply) => {
                let mut rows =
                    vec![vec![Span::new(sanitize::visible(&reply.name), Ink::Accent).bold()]];
                if let Some(line) = reply.thinking_line() {
                    rows.extend(plain(&line, Ink::Dim, "", width));
                }
                if reply.unfolded {
                    for block in all_blocks(&reply.reasoning_shown) {
                        for row in block.iter().flat_map(|i| i.rows(width.saturating_sub(2))) {
                            rows.push([vec![Span::new("│ ", Ink::Dim)], row].concat());
                        }
                    }
                }
                rows
            }
            Entry::Note(text) => plain(text, Ink::Dim, "", width),
            Entry::Marker(text) => plain(&format!("{text} ──"), Ink::Warn, "── ", width),
            Entry::Error(e) => error_rows(e, width),
        }
    }
}

impl Cache {
    /// Makes the rows right for the entry at this width.
    fn refresh(&mut self, entry: &Entry, width: usize) {
        let firm = width == self.width && !self.dirty;
        let Entry::Reply(reply) = entry else {
            if !firm {
                *self = Cache { width, head: entry.head(width), ..Cache::default() };
            }
            return;
        };
        if !firm {
            *self = Cache { width, ..Cache::default() };
        }
        if !firm || reply.finish.is_none() {
            self.head = entry.head(width);
            self.settle(&reply.shown, width);
            self.loosen(reply, width);
        }
    }

    fn settle(&mut self, shown: &Markdown, width: usize) {
        let blocks = shown.settled();
        for (n, block) in blocks.iter().enumerate().skip(self.blocks.0.saturating_sub(1)) {
            let from = if n + 1 == self.blocks.0 { self.blocks.1 } else { 0 };
            if n + 1 > self.blocks.0 && n > 0 {
                self.firm.push(Row::new());
            }
            self.firm.extend(block[from..].iter().flat_map(|i| i.rows(width)));
            self.blocks = (n + 1, block.len());
        }
    }

    fn loosen(&mut self, reply: &Reply, width: usize) {
        self.loose.clear();
        let (items, blocks) = reply.shown.tail();
        self.loose.extend(items.iter().flat_map(|i| i.rows(width)));
        for (n, block) in blocks.iter().enumerate() {
            if n > 0 || self.blocks.0 > 0 {
                self.loose.push(Row::new());
            }
            self.loose.extend(block.iter().flat_map(|i| i.rows(width)));
        }
        let note = match reply.finish {
            None => {
                let cursor = Span::new("▌", Ink::Accent);
                match self.loose.last_mut() {
                    Some(last) => last.push(cursor),
                    None => self.loose.push(vec![cursor]),
                }
                None
            }
            Some(Finish::Cancelled) => {
                Some("stopped; what was said so far is kept (/continue goes on, /regen asks again)")
            }
            Some(Finish::Length) => Some("ended by the token limit (/continue goes on)"),
            Some(Finish::Context) => {
                Some("the context is full (/new begins again, /model NAME -c N gives more room)")
            }
            Some(Finish::Error) => Some("failed before its end"),
            Some(Finish::Stop | Finish::StopString) => None,
        };
        if let Some(note) = note {
            self.loose.extend(plain(note, Ink::Warn, "! ", width));
        }
    }

    fn rows(&self) -> usize {
        self.head.len() + self.firm.len() + self.loose.len()
    }

    fn row(&self, at: usize) -> Option<&Row> {
        let (head, firm) = (self.head.len(), self.firm.len());
        match at {
            at if at < head => self.head.get(at),
            at if at < head + firm => self.firm.get(at - head),
            at => self.loose.get(at - head - firm),
        }
    }
}

fn all_blocks(markdown: &Markdown) -> Vec<Block> {
    let mut blocks = markdown.settled().to_vec();
    let (items, more) = markdown.tail();
    if let Some(last) = blocks.last_mut() {
        last.extend(items);
    }
    blocks.extend(more);
    blocks
}

impl Transcript {
    /// Everything said.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Adds an entry.
    pub fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
        self.caches.push(Cache::default());
    }

    /// Adds an entry that is read from its beginning, even when it is longer than the view.
    pub fn push_to_read(&mut self, entry: Entry) {
        self.reveal = Some(self.entries.len());
        self.push(entry);
    }

    /// Forgets the entries from this one on.
    pub fn truncate(&mut self, length: usize) {
        self.entries.truncate(length);
        self.caches.truncate(length);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Transcript { width: self.width, height: self.height, ..Transcript::default() };
    }

    /// The last reply.
    pub fn last_reply(&self) -> Option<&Reply> {
        self.entries.iter().rev().find_map(|e| match e {
            Entry::Reply(reply) => Some(&**reply),
            _ => None,
        })
    }

    /// The last reply, to change it.
    pub fn last_reply_mut(&mut self) -> Option<&mut Reply> {
        let at = self.entries.iter().rposition(|e| matches!(e, Entry::Reply(_)))?;
        self.caches[at].dirty |= match &self.entries[at] {
            Entry::Reply(reply) => reply.finish.is_some(),
            _ => false,
        };
        match &mut self.entries[at] {
            Entry::Reply(reply) => Some(reply),
            _ => None,
        }
    }

    /// Marks the last reply as changed where it was thought to be firm.
    pub fn touch(&mut self) {
        if let Some(at) = self.entries.iter().rposition(|e| matches!(e, Entry::Reply(_))) {
            self.caches[at].dirty = true;
        }
    }

    /// Makes the rows for a view of this size.
    pub fn lay_out(&mut self, width: usize, height: usize) {
        let anchor = match self.top.filter(|_| width != self.width) {
            Some(top) => self.locate(top).map(|(n, at)| (n, at, self.caches[n].rows().max(1))),
            None => None,
        };
        for (entry, cache) in self.entries.iter().zip(&mut self.caches) {
            cache.refresh(entry, width);
        }
        (self.width, self.height) = (width, height);
        if let Some((n, at, of)) = anchor {
            let scaled = at * self.caches[n].rows() / of;
            self.top = Some(self.start_of(n) + scaled);
        }
        if let Some(n) = self.reveal.take().filter(|n| *n < self.caches.len()) {
            self.top = Some(self.start_of(n));
        }
        if self.top.is_some_and(|top| top + self.height >= self.total()) {
            self.top = None;
        }
    }

    fn start_of(&self, entry: usize) -> usize {
        self.caches[..entry].iter().map(|c| c.rows() + 1).sum()
    }

    /// Rows of everything, with one blank row between entries.
    pub fn total(&self) -> usize {
        self.start_of(self.caches.len()).saturating_sub(1)
    }

    /// The entry and its row at a row of the whole.
    fn locate(&self, row: usize) -> Option<(usize, usize)> {
        let mut rest = row;
        for (n, cache) in self.caches.iter().enumerate() {
            if rest <= cache.rows() {
                return Some((n, rest));
            }
            rest -= cache.rows() + 1;
        }
        None
    }

    /// The rows in view, of the whole.
    pub fn window(&self) -> Range<usize> {
        let total = self.total();
        let bottom = total.saturating_sub(self.height);
        let top = self.top.unwrap_or(bottom).min(bottom);
        top..(top + self.height).min(total)
    }

    /// A row of the whole.
    pub fn row(&self, at: usize) -> Option<&Row> {
        let (n, row) = self.locate(at)?;
        self.caches[n].row(row)
    }

    /// Whether the view follows the end.
    pub fn follows(&self) -> bool {
        self.top.is_none()
    }

    /// Rows below the view.
    pub fn below(&self) -> usize {
        self.total() - self.window().end
    }

    /// Scrolls by rows; at the bottom the view follows again.
    pub fn scroll(&mut self, by: isize) {
        let bottom = self.total().saturating_sub(self.height);
        let top = self.window().start.saturating_add_signed(by).min(bottom);
        self.top = (top < bottom).then_some(top);
    }

    /// Rows in view.
    pub fn height(&self) -> usize {
        self.height
    }

    /// To the first row.
    pub fn home(&mut self) {
        self.scroll(-(self.total() as isize));
    }

    /// To the end, and follows it.
    pub fn follow(&mut self) {
        self.top = None;
    }

    /// The whole as plain text, nothing wrapped.
    pub fn raw(&self) -> String {
        self.entries.iter().map(Entry::raw).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(t: &Transcript) -> Vec<String> {
        let text = |r: &Row| r.iter().map(|s| s.text.as_str()).collect::<String>();
        (0..t.total()).map(|n| t.row(n).map(text).unwrap_or_default()).collect()
    }

    #[test]
    fn rows_made_on_the_way_equal_rows_made_at_once() {
        let text = "# Title\n\npara one\nmore\n\n- a\n- b\n\n```py\nx = 1\n\ny = '2'\n```\n\n| a |\n|---|\n| b |\n\nend \x1b[2J\r\nlast\tone";
        let mut draws = crate::num::rng::Stream::new(2);
        for _ in 0..40 {
            let mut grown = Transcript::default();
            grown.push(Entry::User("hi\nthere".into()));
            grown.push(Entry::Reply(Box::new(Reply::of("m"))));
            let mut chars = text.chars().peekable();
            while chars.peek().is_some() {
                let n = 1 + draws.below(9) as usize;
                let piece: String = chars.by_ref().take(n).collect();
                if let Some(reply) = grown.last_reply_mut() {
                    reply.push(&piece);
                }
                let width = if draws.below(10) == 0 { 7 } else { 30 };
                grown.lay_out(width, 5);
            }
            if let Some(reply) = grown.last_reply_mut() {
                reply.end(Finish::Stop, Stats::default());
                assert_eq!(reply.text, text);
            }
            grown.touch();
            grown.lay_out(30, 5);
            let mut whole = Transcript::default();
            whole.push(Entry::User("hi\nthere".into()));
            whole.push(Entry::Reply(Box::new(Reply::said("m", text, "", Finish::Stop))));
            whole.lay_out(30, 5);
            assert_eq!(shown(&grown), shown(&whole));
        }
    }

    #[test]
    fn a_scrolled_view_stays_still_and_the_end_is_followed() {
        let mut t = Transcript::default();
        for n in 0..20 {
            t.push(Entry::Note(format!("note {n}")));
        }
        t.lay_out(20, 6);
        assert!(t.follows());
        t.scroll(-5);
        let first = t.window().start;
        let row = t.row(first).cloned();
        t.push(Entry::Note("new".into()));
        t.lay_out(20, 6);
        assert_eq!((t.window().start, t.row(first).cloned()), (first, row));
        assert_eq!(t.below(), 7);
        t.scroll(100);
        assert!(t.follows() && t.below() == 0);
        t.home();
        assert_eq!(t.window().start, 0);
        t.lay_out(0, 0);
        t.lay_out(1, 1);
    }
}
