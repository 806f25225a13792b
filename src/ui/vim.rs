//! The draft with vim's keys, for those who ask for them (`--keymap vim`): a small part, the one that fingers know.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::App;
use super::composer::Motion;

/// What the vim keys are at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vim {
    /// Letters are commands, not text.
    pub normal: bool,
    /// The first letter of a command of two.
    pending: Option<char>,
}

impl App {
    /// Lets the vim keys have a key first. True when it was theirs.
    pub(super) fn vim_key(&mut self, key: KeyEvent) -> bool {
        let Some(mut vim) = self.vim else { return false };
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        let theirs = match key.code {
            KeyCode::Esc if !vim.normal => {
                vim.normal = true;
                self.composer.go(Motion::Left);
                true
            }
            KeyCode::Esc if vim.pending.is_some() => true,
            KeyCode::Char('r') if control && vim.normal => {
                self.composer.redo();
                true
            }
            KeyCode::Char(letter) if vim.normal && !control && !alt => {
                vim = self.vim_letter(letter, vim);
                self.vim = Some(vim);
                return true;
            }
            _ => false,
        };
        vim.pending = None;
        // A message that is sent leaves one ready to write the next.
        vim.normal &= key.code != KeyCode::Enter;
        self.vim = Some(vim);
        theirs
    }

    fn vim_letter(&mut self, letter: char, vim: Vim) -> Vim {
        let normal = Vim { normal: true, pending: None };
        let insert = Vim::default();
        if let Some(first) = vim.pending {
            return self.vim_pair(first, letter);
        }
        let width = super::view::areas(self).draft_width();
        let c = &mut self.composer;
        match letter {
            'h' => c.go(Motion::Left),
            'l' => c.go(Motion::Right),
            'j' => drop(c.down(width)),
            'k' => drop(c.up(width)),
            'w' | 'e' => c.go(Motion::WordRight),
            'b' => c.go(Motion::WordLeft),
            '0' | '^' => c.go(Motion::LineStart),
            '$' => c.go(Motion::LineEnd),
            'x' => c.delete(Motion::Right, true),
            'D' => c.delete(Motion::LineEnd, true),
            'p' => c.yank(),
            'u' => c.undo(),
            'G' => self.transcript.follow(),
            'd' | 'c' | 'y' | 'g' => return Vim { normal: true, pending: Some(letter) },
            _ => {
                return if self.vim_inserts(letter) { insert } else { normal };
            }
        }
        normal
    }

    /// The letters after which text is written. False when it was none of them.
    fn vim_inserts(&mut self, letter: char) -> bool {
        let c = &mut self.composer;
        match letter {
            'i' => {}
            'a' => c.go(Motion::Right),
            'I' => c.go(Motion::LineStart),
            'A' => c.go(Motion::LineEnd),
            'o' => {
                c.go(Motion::LineEnd);
                c.insert("\n");
            }
            'O' => {
                c.go(Motion::LineStart);
                c.insert("\n");
                c.go(Motion::Left);
            }
            'C' => c.delete(Motion::LineEnd, true),
            ':' if c.is_empty() => c.insert("/"),
            _ => return false,
        }
        true
    }

    fn vim_pair(&mut self, first: char, second: char) -> Vim {
        let c = &mut self.composer;
        match (first, second) {
            ('d', 'd') => c.delete_line(),
            ('d' | 'c', 'w' | 'e') => c.delete(Motion::WordRight, true),
            ('d' | 'c', 'b') => c.delete(Motion::WordLeft, true),
            ('d' | 'c', '$') => c.delete(Motion::LineEnd, true),
            ('d' | 'c', '0') => c.delete(Motion::LineStart, true),
            ('c', 'c') => {
                c.go(Motion::LineStart);
                c.delete(Motion::LineEnd, true);
            }
            ('y', 'y') => c.copy_line(),
            ('g', 'g') => self.transcript.home(),
            _ => return Vim { normal: true, pending: None },
        }
        Vim { normal: first != 'c', pending: None }
    }
}
