//! What keys do. [`KEYS`] is the list that `/keys` and the manual show; `key` is what acts.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::app::{App, Model, Overlay, Panel};
use super::composer::Motion;
use super::events::{Completing, Effect};
use super::slash;
use crate::engine::protocol::Overflow;

/// Keys and what they do, in the order of importance.
pub static KEYS: &[(&str, &str)] = &[
    ("Enter", "send; while a reply is written, queue"),
    ("Ctrl-J, Alt-Enter, \\ Enter", "new line (and Shift-Enter, if reported)"),
    ("Ctrl-C", "stop; clear the draft; twice: quit"),
    ("Ctrl-D", "quit, when the draft is empty"),
    ("PgUp PgDn, Shift-Up/-Down", "scroll"),
    ("Alt-Y", "copy the last reply"),
    ("Alt-X", "copy the last block of code"),
    ("Tab", "complete; on an empty draft: show thinking"),
    ("Esc", "close a list, unqueue, follow the end"),
    ("Up Down", "in the draft; at its edge, earlier messages"),
    ("Ctrl-R", "search earlier messages"),
    ("Ctrl-G", "write the draft in $VISUAL or $EDITOR"),
    ("Ctrl-O", "everything as plain text, to select from"),
    ("Ctrl-T", "statistics: panel, strip, off"),
    ("Ctrl-Home Ctrl-End, End", "to the beginning, to the end"),
    ("Ctrl-A Ctrl-E Alt-B Alt-F", "line start and end, words"),
    ("Ctrl-W Alt-D Ctrl-K Ctrl-U", "kill a word, the line; Ctrl-Y yanks"),
    ("Ctrl-_ Alt-_", "undo and redo in the draft"),
    ("Ctrl-L", "draw everything again"),
    ("Ctrl-Z", "suspend"),
    ("F1, ? on an empty draft", "help"),
];

impl App {
    /// A key was pressed.
    pub(super) fn key(&mut self, key: KeyEvent, now: Instant, effects: &mut Vec<Effect>) {
        if key.kind == KeyEventKind::Release {
            self.dirty = false;
            return;
        }
        self.hint = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return self.interrupt(now, effects),
            KeyCode::Char('z') if control => return effects.push(Effect::Suspend),
            KeyCode::Char('l') if control => return effects.push(Effect::Redraw),
            _ => {}
        }
        match self.overlay.take() {
            Some(overlay) => self.overlay_key(overlay, key, effects),
            None if self.vim_key(key) => self.completion = None,
            None => self.plain_key(key, control, effects),
        }
    }

    fn plain_key(&mut self, key: KeyEvent, control: bool, effects: &mut Vec<Effect>) {
        let completion = self.completion.take();
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        let shift = key.modifiers.contains(KeyModifiers::SHIFT);
        if self.moves(key.code, control, alt, shift) {
            return;
        }
        match key.code {
            KeyCode::Enter if alt || shift || control => self.composer.insert("\n"),
            KeyCode::Enter => self.enter(effects),
            KeyCode::Char('j') if control => self.composer.insert("\n"),
            KeyCode::Tab => self.tab(completion, effects),
            KeyCode::Esc => self.escape(),
            KeyCode::Char('d') if control && self.composer.is_empty() => self.finished = true,
            KeyCode::Char('r') if control => {
                self.overlay = Some(Overlay::Search { query: String::new(), skip: 0 });
            }
            KeyCode::Char('g') if control => {
                effects.push(Effect::Editor(self.composer.text().into()));
            }
            KeyCode::Char('o') if control => effects.push(Effect::Raw(self.transcript.raw())),
            KeyCode::Char('t') if control => {
                self.panel = match self.panel {
                    // Where there is no room for the panel, the strip is what is shown.
                    Panel::Auto if super::view::areas(self).boxed => Panel::Strip,
                    Panel::Auto => Panel::Off,
                    Panel::Strip => Panel::Off,
                    Panel::Off => Panel::Auto,
                };
            }
            KeyCode::Char('y') if alt => slash::copy(self, "", effects),
            KeyCode::Char('x') if alt => slash::copy(self, "code", effects),
            KeyCode::F(1) => self.page(slash::help()),
            KeyCode::Char('?') if self.composer.is_empty() && !control && !alt => {
                self.page(slash::help());
            }
            _ => self.edits(key.code, control, alt),
        }
    }

    /// Scrolling and moving. True when the key was one of these.
    fn moves(&mut self, code: KeyCode, control: bool, alt: bool, shift: bool) -> bool {
        let page = self.transcript.height().saturating_sub(1).max(1) as isize;
        let width = super::view::areas(self).draft_width();
        match code {
            KeyCode::PageUp => self.transcript.scroll(-page),
            KeyCode::PageDown => self.transcript.scroll(page),
            KeyCode::Up if shift => self.transcript.scroll(-1),
            KeyCode::Down if shift => self.transcript.scroll(1),
            KeyCode::Home if control => self.transcript.home(),
            KeyCode::End if control || self.composer.is_empty() => self.transcript.follow(),
            KeyCode::Up => drop(self.composer.up(width)),
            KeyCode::Down => drop(self.composer.down(width)),
            KeyCode::Char('p') if control => drop(self.composer.up(width)),
            KeyCode::Char('n') if control => drop(self.composer.down(width)),
            KeyCode::Left if control || alt => self.composer.go(Motion::WordLeft),
            KeyCode::Right if control || alt => self.composer.go(Motion::WordRight),
            KeyCode::Char('b') if alt => self.composer.go(Motion::WordLeft),
            KeyCode::Char('f') if alt => self.composer.go(Motion::WordRight),
            KeyCode::Left => self.composer.go(Motion::Left),
            KeyCode::Right => self.composer.go(Motion::Right),
            KeyCode::Char('b') if control => self.composer.go(Motion::Left),
            KeyCode::Char('f') if control => self.composer.go(Motion::Right),
            KeyCode::Home => self.composer.go(Motion::LineStart),
            KeyCode::End => self.composer.go(Motion::LineEnd),
            KeyCode::Char('a') if control => self.composer.go(Motion::LineStart),
            KeyCode::Char('e') if control => self.composer.go(Motion::LineEnd),
            _ => return false,
        }
        true
    }

    fn edits(&mut self, code: KeyCode, control: bool, alt: bool) {
        let c = &mut self.composer;
        match code {
            KeyCode::Backspace if alt || control => c.delete(Motion::WordLeft, true),
            KeyCode::Backspace => c.delete(Motion::Left, false),
            KeyCode::Char('h') if control => c.delete(Motion::Left, false),
            KeyCode::Delete => c.delete(Motion::Right, false),
            KeyCode::Char('d') if control => c.delete(Motion::Right, false),
            KeyCode::Char('d') if alt => c.delete(Motion::WordRight, true),
            KeyCode::Char('w') if control => c.delete_word(),
            KeyCode::Char('k') if control => c.delete(Motion::LineEnd, true),
            KeyCode::Char('u') if control => c.delete(Motion::LineStart, true),
            KeyCode::Char('y') if control => c.yank(),
            KeyCode::Char('c') if alt => c.capitalise(),
            // Terminals send 0x1f for Ctrl-_, which is read as Ctrl-7.
            KeyCode::Char('_' | '7' | '/') if control => c.undo(),
            KeyCode::Char('_') if alt => c.redo(),
            KeyCode::Char(letter) if !control && !alt => {
                c.insert(letter.encode_utf8(&mut [0; 4]));
            }
            _ => {}
        }
    }

    fn enter(&mut self, effects: &mut Vec<Effect>) {
        if self.composer.before() == self.composer.text() && self.composer.text().ends_with('\\') {
            self.composer.delete(Motion::Left, false);
            self.composer.insert("\n");
            return;
        }
        if self.composer.text().trim().is_empty() {
            return;
        }
        if self.composer.is_command() {
            let line = self.composer.take();
            return slash::run(self, &line, effects);
        }
        let text = self.composer.take();
        let text = match text.strip_prefix("//") {
            Some(rest) => format!("/{rest}"),
            None => text,
        };
        self.send(text, effects);
    }

    fn escape(&mut self) {
        if let Some(text) = self.queued.take() {
            if self.composer.is_empty() {
                self.composer.set(&text);
            }
        } else {
            self.transcript.follow();
        }
    }

    fn tab(&mut self, completion: Option<(Vec<String>, usize)>, effects: &mut Vec<Effect>) {
        if let Some((words, at)) = completion {
            let next = (at + 1) % words.len().max(1);
            if let Some(word) = words.get(next).cloned() {
                self.put_word(&word);
                self.completion = Some((words, next));
            }
            return;
        }
        if self.composer.is_empty() {
            if let Some(reply) = self.transcript.last_reply_mut() {
                reply.unfolded = !reply.unfolded;
                self.transcript.touch();
            }
            return;
        }
        if !self.composer.is_command() {
            self.composer.insert("    ");
            return;
        }
        let before = self.composer.before();
        match before.split_once(' ') {
            None => self.complete_with(slash::beginning_with(before)),
            Some(("/model", rest)) => {
                effects.push(Effect::Complete(Completing::Model(rest.into())));
            }
            Some(("/read" | "/export" | "/system", rest)) => {
                let word = rest.rsplit(' ').next().unwrap_or(rest).trim_start_matches('@');
                effects.push(Effect::Complete(Completing::Path(word.into())));
            }
            Some(("/theme", rest)) => {
                let names = super::theme::Theme::ALL.map(|t| t.name().to_owned());
                self.complete_with(names.into_iter().filter(|n| n.starts_with(rest)).collect());
            }
            Some(_) => {}
        }
    }

    /// Puts in what all candidates share, or the first of them, and shows the others.
    pub(super) fn complete_with(&mut self, words: Vec<String>) {
        match words.as_slice() {
            [] => self.hint = Some("nothing completes this".into()),
            [one] => {
                let end = if one.ends_with('/') { "" } else { " " };
                self.put_word(&format!("{one}{end}"));
            }
            [first, ..] => {
                let first = first.clone();
                self.put_word(&first);
                self.completion = Some((words, 0));
            }
        }
    }

    /// Replaces the word before the cursor.
    fn put_word(&mut self, word: &str) {
        let before = self.composer.before();
        let from = before.rfind([' ', '\n', '@']).map_or(0, |at| at + 1);
        let length = before.len() - from;
        self.composer.replace_before(length, word);
    }

    fn overlay_key(&mut self, overlay: Overlay, key: KeyEvent, effects: &mut Vec<Effect>) {
        match overlay {
            Overlay::Pick(picker) => self.picker_key(picker, key, effects),
            Overlay::Search { query, skip } => self.search_key(query, skip, key),
            Overlay::Overflow(e) => match key.code {
                KeyCode::Char('d') => {
                    self.overflow = Overflow::Shift;
                    self.ask(effects);
                }
                KeyCode::Char('s') => self.summarise(effects),
                KeyCode::Char('e') | KeyCode::Esc => self.dismissed(effects),
                _ => self.overlay = Some(Overlay::Overflow(e)),
            },
        }
    }

    fn picker_key(
        &mut self,
        mut picker: super::picker::Picker,
        key: KeyEvent,
        effects: &mut Vec<Effect>,
    ) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => return,
            KeyCode::Enter => match picker.choice() {
                Some(choice) if choice.usable => {
                    let value = choice.value.clone();
                    return self.picked(picker.purpose, value, effects);
                }
                Some(_) => self.hint = Some("this one cannot be used".into()),
                None => {}
            },
            KeyCode::Up => picker.go(-1),
            KeyCode::Down => picker.go(1),
            KeyCode::Char('p') if control => picker.go(-1),
            KeyCode::Char('n') if control => picker.go(1),
            KeyCode::PageUp => picker.go(-10),
            KeyCode::PageDown => picker.go(10),
            KeyCode::Backspace => drop(picker.backspace()),
            KeyCode::Char('d') if control && matches!(self.model, Model::None) => {
                self.finished = true;
            }
            KeyCode::Char(c) if !control => picker.type_text(c.encode_utf8(&mut [0; 4])),
            _ => {}
        }
        self.overlay = Some(Overlay::Pick(picker));
    }

    fn search_key(&mut self, mut query: String, mut skip: usize, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => return,
            KeyCode::Char('g') if control => return,
            KeyCode::Enter | KeyCode::Tab | KeyCode::Right => {
                if let Some(found) = self.found(&query, skip).map(str::to_owned) {
                    self.composer.set(&found);
                }
                return;
            }
            KeyCode::Char('r') if control => {
                skip += usize::from(self.found(&query, skip + 1).is_some());
            }
            KeyCode::Backspace => {
                query.pop();
                skip = 0;
            }
            KeyCode::Char(c) if !control => {
                query.push(c);
                skip = 0;
            }
            _ => {}
        }
        self.overlay = Some(Overlay::Search { query, skip });
    }

    /// The message sent before that the search has found.
    pub fn found(&self, query: &str, skip: usize) -> Option<&str> {
        let wanted = query.to_lowercase();
        let history = self.composer.history().iter().rev();
        history.filter(|m| m.to_lowercase().contains(&wanted)).nth(skip).map(String::as_str)
    }
}
