//! Thinking told from the answer, in a reply that arrives in pieces.

/// Length of the longest end of `text` that is a proper beginning of `tag`.
fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len().min(text.len() + 1)).rev().find(|n| text.ends_with(&tag[..*n])).unwrap_or(0)
}

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Part of the answer.
    Answer(String),
    /// Part of the thinking before it.
    Thought(String),
}

/// Tells thinking (`<think>…</think>` at the start of a reply) from the answer, whatever the pieces it comes in.
#[derive(Clone, Debug)]
pub struct Thinking {
    state: State,
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far: thinking may begin.
    Before,
    /// Within the tags.
    Within,
    /// White space after `</think>` is dropped.
    After,
    /// The answer.
    Answer,
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

impl Thinking {
    /// `opened`: the prompt itself ends with an open tag, as some templates do.
    pub fn new(opened: bool) -> Thinking {
        let state = if opened { State::Within } else { State::Before };
        Thinking { state, held: String::new() }
    }

    /// Whether a rendered prompt leaves a thinking tag open.
    pub fn opened_by(prompt: &str) -> bool {
        prompt.trim_end().ends_with(OPEN)
    }

    /// Whether the reply is thinking now.
    pub fn within(&self) -> bool {
        self.state == State::Within
    }

    /// Takes more text; gives back what has become clear.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while self.step(&mut out) {}
        out
    }

    /// The rest, at the end of the reply.
    pub fn finish(&mut self) -> Vec<Piece> {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            _ if rest.is_empty() => Vec::new(),
            State::Within => vec![Piece::Thought(rest)],
            State::After => Vec::new(),
            State::Before | State::Answer => vec![Piece::Answer(rest)],
        }
    }

    /// One move; false when more text is needed.
    fn step(&mut self, out: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Before => {
                let start = self.held.trim_start();
                if let Some(rest) = start.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.state = State::Within;
                    true
                } else if OPEN.starts_with(start) {
                    false
                } else {
                    self.state = State::Answer;
                    true
                }
            }
            State::Within => {
                if let Some(at) = self.held.find(CLOSE) {
                    let rest = self.held.split_off(at + CLOSE.len());
                    self.held.truncate(at);
                    emit(out, Piece::Thought, std::mem::replace(&mut self.held, rest));
                    self.state = State::After;
                    return true;
                }
                let rest = self.held.split_off(self.held.len() - overlap(&self.held, CLOSE));
                emit(out, Piece::Thought, std::mem::replace(&mut self.held, rest));
                false
            }
            State::After => {
                self.held = self.held.trim_start().to_owned();
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            State::Answer => {
                emit(out, Piece::Answer, std::mem::take(&mut self.held));
                false
            }
        }
    }
}

fn emit(out: &mut Vec<Piece>, kind: fn(String) -> Piece, text: String) {
    if !text.is_empty() {
        out.push(kind(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to cut `text` into pieces of `n` characters gives the same.
    fn cuts(text: &str) -> impl Iterator<Item = Vec<String>> {
        let chars: Vec<char> = text.chars().collect();
        (1..=chars.len().max(1)).map(move |n| chars.chunks(n).map(|c| c.iter().collect()).collect())
    }

    #[test]
    fn thinking_is_told_from_the_answer_however_it_is_cut() {
        for (opened, text, thought, answer) in [
            (false, "<think>a < b</think>\n\nYes.", "a < b", "Yes."),
            (false, "\n<think></think>Yes", "", "Yes"),
            (true, "\nso</think> It is.", "\nso", "It is."),
            (false, "Yes <think>no</think>", "", "Yes <think>no</think>"),
            (false, "  plain", "", "  plain"),
            (false, "<thin", "", "<thin"),
            (false, "<think>cut </thi", "cut </thi", ""),
        ] {
            for pieces in cuts(text) {
                let mut t = Thinking::new(opened);
                let mut all: Vec<Piece> = pieces.iter().flat_map(|p| t.push(p)).collect();
                all.extend(t.finish());
                let (mut thoughts, mut answers) = (String::new(), String::new());
                for piece in all {
                    match piece {
                        Piece::Thought(t) => thoughts += &t,
                        Piece::Answer(t) => answers += &t,
                    }
                }
                assert_eq!((thoughts.as_str(), answers.as_str()), (thought, answer), "{pieces:?}");
            }
        }
    }
}
