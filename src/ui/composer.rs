//! The draft: several lines, undo, a kill buffer, and the messages sent before.

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};

use super::rich;

/// Drafts that can be brought back.
const UNDO: usize = 200;
/// And how much text these may hold.
const UNDO_BYTES: usize = 8 << 20;

/// A draft being written.
#[derive(Clone, Debug, Default)]
pub struct Composer {
    text: String,
    /// Byte offset, on a border of grapheme clusters.
    cursor: usize,
    undo: Vec<(String, usize)>,
    redo: Vec<(String, usize)>,
    /// The last change was a typed letter, which the next one joins.
    typing: bool,
    killed: String,
    /// The draft begins with pasted text, so it is no command.
    pasted: bool,
    history: Vec<String>,
    /// Where in the history we are, and the draft that waits meanwhile.
    browsing: Option<(usize, String)>,
}

/// A way to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Motion {
    /// One cluster back.
    Left,
    /// One cluster on.
    Right,
    /// To the start of a word.
    WordLeft,
    /// To the end of a word.
    WordRight,
    /// To the start of the line.
    LineStart,
    /// To the end of the line.
    LineEnd,
}

/// The draft in rows, and where the cursor is in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Laid {
    /// Text of each row.
    pub rows: Vec<String>,
    /// Row and cell of the cursor.
    pub cursor: (usize, usize),
}

impl Composer {
    /// An empty draft over these messages, oldest first.
    pub fn new(history: Vec<String>) -> Composer {
        Composer { history, ..Composer::default() }
    }

    /// What is written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether the draft is typed and begins like a command.
    pub fn is_command(&self) -> bool {
        self.text.starts_with('/') && !self.text.starts_with("//") && !self.pasted
    }

    /// The text before the cursor.
    pub fn before(&self) -> &str {
        &self.text[..self.cursor]
    }

    /// Messages sent, oldest first.
    pub fn history(&self) -> &[String] {
        &self.history
    }

    fn remember(&mut self, typing: bool) {
        if !(typing && self.typing) {
            self.undo.push((self.text.clone(), self.cursor));
            let bytes = |undo: &[(String, usize)]| undo.iter().map(|d| d.0.len()).sum::<usize>();
            while self.undo.len() > UNDO || (self.undo.len() > 1 && bytes(&self.undo) > UNDO_BYTES)
            {
                self.undo.remove(0);
            }
        }
        self.typing = typing;
        self.redo.clear();
    }

    /// Types text.
    pub fn insert(&mut self, text: &str) {
        let joins = text.chars().all(|c| !c.is_whitespace());
        self.remember(joins);
        self.put(text);
    }

    /// Pastes text: one change, however many lines it has, and never a command.
    pub fn paste(&mut self, text: &str) {
        self.remember(false);
        self.pasted |= self.cursor == 0;
        self.put(&text.replace("\r\n", "\n").replace('\r', "\n"));
    }

    fn put(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor = self.border(self.cursor + text.len());
    }

    /// The next border of clusters at or after a byte: an insertion may join its neighbours.
    fn border(&self, at: usize) -> usize {
        let mut cursor = GraphemeCursor::new(at, self.text.len(), true);
        if cursor.is_boundary(&self.text, 0).unwrap_or(true) {
            return at;
        }
        cursor.next_boundary(&self.text, 0).ok().flatten().unwrap_or(self.text.len())
    }

    /// Replaces the draft, as one change.
    pub fn set(&mut self, text: &str) {
        self.remember(false);
        self.text = text.to_owned();
        self.cursor = self.text.len();
        self.pasted = false;
    }

    /// Replaces so many bytes before the cursor, as one change.
    pub fn replace_before(&mut self, bytes: usize, text: &str) {
        self.remember(false);
        let from = self.cursor.saturating_sub(bytes);
        self.text.replace_range(from..self.cursor, "");
        self.cursor = from;
        self.put(text);
    }

    /// Takes the draft, to send it; it becomes the last message of the history.
    pub fn take(&mut self) -> String {
        let text = std::mem::take(&mut self.text);
        if self.history.last() != Some(&text) && !text.trim().is_empty() {
            self.history.push(text.clone());
        }
        *self = Composer {
            history: std::mem::take(&mut self.history),
            killed: std::mem::take(&mut self.killed),
            ..Composer::default()
        };
        text
    }

    /// Empties the draft; undo brings it back.
    pub fn clear(&mut self) {
        self.set("");
        self.browsing = None;
    }

    fn target(&self, motion: Motion) -> usize {
        let (before, after) = self.text.split_at(self.cursor);
        match motion {
            Motion::Left => {
                before.graphemes(true).next_back().map_or(0, |g| before.len() - g.len())
            }
            Motion::Right => self.cursor + after.graphemes(true).next().map_or(0, str::len),
            Motion::WordLeft => {
                let rest = before.trim_end_matches(|c: char| !c.is_alphanumeric());
                rest.trim_end_matches(char::is_alphanumeric).len()
            }
            Motion::WordRight => {
                let rest = after.trim_start_matches(|c: char| !c.is_alphanumeric());
                self.text.len() - rest.trim_start_matches(char::is_alphanumeric).len()
            }
            Motion::LineStart => before.rfind('\n').map_or(0, |at| at + 1),
            Motion::LineEnd => self.cursor + after.find('\n').unwrap_or(after.len()),
        }
    }

    /// Moves.
    pub fn go(&mut self, motion: Motion) {
        self.cursor = self.target(motion);
        self.typing = false;
    }

    /// Deletes what a motion passes over; `keep` puts it into the kill buffer.
    pub fn delete(&mut self, motion: Motion, keep: bool) {
        let mut to = self.target(motion);
        // At the end of a line, killing to the end takes the line end itself.
        if to == self.cursor && motion == Motion::LineEnd {
            to = self.target(Motion::Right);
        }
        let range = to.min(self.cursor)..to.max(self.cursor);
        if range.is_empty() {
            return;
        }
        self.remember(false);
        if keep {
            self.killed = self.text[range.clone()].to_owned();
        }
        self.cursor = range.start;
        self.text.replace_range(range, "");
        self.cursor = self.border(self.cursor);
        self.pasted &= !self.text.is_empty();
    }

    /// Deletes to the last blank, as shells do.
    pub fn delete_word(&mut self) {
        let word = self.before().trim_end();
        let blank = word.char_indices().rev().find(|(_, c)| c.is_whitespace());
        let start = blank.map_or(0, |(at, c)| at + c.len_utf8());
        if start == self.cursor {
            return;
        }
        self.remember(false);
        self.killed = self.text[start..self.cursor].to_owned();
        self.text.replace_range(start..self.cursor, "");
        self.cursor = self.border(start);
        self.pasted &= !self.text.is_empty();
    }

    /// The line of the cursor with its end, as a range of bytes.
    fn line(&self) -> std::ops::Range<usize> {
        let start = self.target(Motion::LineStart);
        let end = self.target(Motion::LineEnd);
        start..(end + 1).min(self.text.len())
    }

    /// Kills the whole line.
    pub fn delete_line(&mut self) {
        let line = self.line();
        if line.is_empty() {
            return;
        }
        self.remember(false);
        self.killed = self.text[line.clone()].to_owned();
        self.text.replace_range(line.clone(), "");
        self.cursor = self.border(line.start.min(self.text.len()));
        self.pasted &= !self.text.is_empty();
    }

    /// Puts the whole line into the kill buffer.
    pub fn copy_line(&mut self) {
        self.killed = self.text[self.line()].to_owned();
    }

    /// Inserts what was killed last.
    pub fn yank(&mut self) {
        if !self.killed.is_empty() {
            self.remember(false);
            let killed = self.killed.clone();
            self.put(&killed);
        }
    }

    /// Capitalises the rest of the word.
    pub fn capitalise(&mut self) {
        let end = self.target(Motion::WordRight);
        let word = &self.text[self.cursor..end];
        let Some((at, c)) = word.char_indices().find(|(_, c)| c.is_alphanumeric()) else { return };
        let rest = word[at + c.len_utf8()..].to_lowercase();
        let new = format!("{}{}{rest}", &word[..at], c.to_uppercase());
        self.remember(false);
        self.text.replace_range(self.cursor..end, &new);
        self.cursor = self.border(self.cursor + new.len());
    }

    /// Takes back the last change.
    pub fn undo(&mut self) {
        if let Some(before) = self.undo.pop() {
            let now = (std::mem::take(&mut self.text), self.cursor);
            self.redo.push(now);
            (self.text, self.cursor) = before;
            self.typing = false;
        }
    }

    /// Takes back the last undo.
    pub fn redo(&mut self) {
        if let Some(after) = self.redo.pop() {
            let now = (std::mem::take(&mut self.text), self.cursor);
            self.undo.push(now);
            (self.text, self.cursor) = after;
            self.typing = false;
        }
    }

    /// One row up at this width, or an older message from the first row. False when there is neither.
    pub fn up(&mut self, width: usize) -> bool {
        self.vertical(width, -1) || self.browse(-1)
    }

    /// One row down, or a newer message from the last row.
    pub fn down(&mut self, width: usize) -> bool {
        self.vertical(width, 1) || self.browse(1)
    }

    /// Shows an older (-1) or newer (1) message; past the newest comes the draft again.
    pub fn browse(&mut self, by: isize) -> bool {
        let now = self.browsing.as_ref().map_or(self.history.len(), |b| b.0);
        let Some(to) = now.checked_add_signed(by).filter(|to| *to <= self.history.len()) else {
            return false;
        };
        if self.browsing.is_none() && by > 0 {
            return false;
        }
        let draft = match self.browsing.take() {
            Some((_, draft)) => draft,
            None => self.text.clone(),
        };
        let shown = self.history.get(to).cloned();
        let text = shown.as_deref().unwrap_or(&draft).to_owned();
        self.set(&text);
        if shown.is_some() {
            self.browsing = Some((to, draft));
        }
        true
    }

    fn vertical(&mut self, width: usize, by: isize) -> bool {
        let places = self.places(width);
        let (row, cell) = self.cursor_place(&places);
        let Some(target) = row.checked_add_signed(by) else { return false };
        let in_row = places.iter().filter(|p| p.1 == target);
        let best = in_row.min_by_key(|p| p.2.abs_diff(cell));
        let Some(&(at, ..)) = best else { return false };
        self.cursor = at;
        self.typing = false;
        true
    }

    fn cursor_place(&self, places: &[(usize, usize, usize)]) -> (usize, usize) {
        let at = places.partition_point(|p| p.0 < self.cursor).min(places.len() - 1);
        (places[at].1, places[at].2)
    }

    /// Byte, row and cell of every place the cursor can be in; never empty.
    fn places(&self, width: usize) -> Vec<(usize, usize, usize)> {
        let width = width.max(1);
        let (mut row, mut cell) = (0, 0);
        let mut out = Vec::with_capacity(self.text.len() + 1);
        for (at, piece) in self.text.grapheme_indices(true) {
            let cells = shown(piece).1;
            if cell > 0 && cell + cells > width && piece != "\n" {
                (row, cell) = (row + 1, 0);
            }
            out.push((at, row, cell));
            if piece == "\n" {
                (row, cell) = (row + 1, 0);
            } else {
                cell += cells;
            }
        }
        if cell >= width {
            (row, cell) = (row + 1, 0);
        }
        out.push((self.text.len(), row, cell));
        out
    }

    /// The draft at this width.
    pub fn laid(&self, width: usize) -> Laid {
        let places = self.places(width);
        let cursor = self.cursor_place(&places);
        let mut rows = vec![String::new(); places.last().map_or(0, |p| p.1) + 1];
        for ((_, piece), place) in self.text.grapheme_indices(true).zip(&places) {
            if piece != "\n" {
                rows[place.1].push_str(&shown(piece).0);
            }
        }
        Laid { rows, cursor }
    }
}

/// A cluster as it is shown, and its cells: nothing that a terminal would act on.
fn shown(piece: &str) -> (std::borrow::Cow<'_, str>, usize) {
    let text = if piece == "\t" { "  ".into() } else { crate::text::sanitize::visible(piece) };
    let cells = rich::width(&text);
    (text, cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> Composer {
        let mut c = Composer::default();
        c.insert(text);
        c
    }

    #[test]
    fn a_paste_is_one_edit_and_no_command() {
        let mut c = Composer::default();
        c.paste("/quit\r\nb\rc");
        assert_eq!(c.text(), "/quit\nb\nc");
        assert!(!c.is_command());
        c.undo();
        assert_eq!(c.text(), "");
        c.redo();
        assert_eq!(c.text(), "/quit\nb\nc");
        assert!(with("/quit").is_command() && !with("//quit").is_command());
    }

    #[test]
    fn motions_and_kills() {
        let mut c = with("one two  three");
        c.delete_word();
        assert_eq!(c.text(), "one two  ");
        c.delete_word();
        assert_eq!(c.text(), "one ");
        c.yank();
        assert_eq!(c.text(), "one two  ");
        c.go(Motion::LineStart);
        c.go(Motion::WordRight);
        assert_eq!(c.before(), "one");
        c.delete(Motion::LineEnd, true);
        c.go(Motion::LineStart);
        c.yank();
        assert_eq!(c.text(), " two  one");
        c.go(Motion::LineStart);
        c.capitalise();
        assert_eq!(c.text(), " Two  one");
    }

    #[test]
    fn typed_letters_are_undone_by_words() {
        let mut c = Composer::default();
        for letter in "ab cd".chars() {
            c.insert(&letter.to_string());
        }
        c.undo();
        assert_eq!(c.text(), "ab ");
        c.undo();
        c.undo();
        assert_eq!(c.text(), "");
    }

    #[test]
    fn clusters_stay_whole() {
        let mut c = with("a👩‍👩‍👧e\u{301}");
        c.delete(Motion::Left, false);
        assert_eq!(c.text(), "a👩‍👩‍👧");
        c.go(Motion::Left);
        c.insert("b");
        assert_eq!(c.text(), "ab👩‍👩‍👧");
        c.delete(Motion::Right, false);
        assert_eq!(c.text(), "ab");
    }

    #[test]
    fn history_keeps_the_draft() {
        let mut c = Composer::new(vec!["old".into(), "two\nlines".into()]);
        c.insert("draft");
        assert!(c.up(20));
        assert_eq!(c.text(), "two\nlines");
        assert!(c.up(20), "to the first row");
        assert!(c.up(20));
        assert_eq!(c.text(), "old");
        assert!(!c.up(20));
        assert!(c.down(20) && c.down(20));
        assert_eq!(c.text(), "draft");
        assert!(!c.down(20));
    }

    #[test]
    fn rows_and_cursor_agree_at_every_width() {
        let c = with("漢字 ab\n\tc\x1b[2J\n");
        for width in 1..12 {
            let laid = c.laid(width);
            let all: String = laid.rows.concat();
            assert_eq!(all, "漢字 ab  c␛[2J", "{width}");
            assert_eq!(laid.cursor, (laid.rows.len() - 1, 0), "{width}");
        }
        assert_eq!(with("abcd").laid(4).cursor, (1, 0));
    }
}
