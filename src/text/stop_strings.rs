//! Strings that end a reply, found in text that arrives in pieces.
//!
//! Text that may be the beginning of a stop string is held back until it is clear. The search is Aho and Corasick's:
//! one state, a few steps for each byte on average, however many strings there are and however they overlap.

use std::collections::VecDeque;

/// A node of the trie: its children by byte, where to go on when no child fits, and what ends here.
#[derive(Clone, Debug, Default)]
struct Node {
    children: Vec<(u8, u32)>,
    /// The longest proper suffix of this node's text that is a node.
    fallback: u32,
    /// Bytes from the root.
    depth: u32,
    /// The longest stop string that ends here: its index.
    found: Option<u32>,
}

impl Node {
    fn child(&self, byte: u8) -> Option<u32> {
        self.children.iter().find(|(b, _)| *b == byte).map(|(_, node)| *node)
    }
}

/// Text that is clear, and the stop string that ended it, if one did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clear {
    /// Text before any stop string.
    pub text: String,
    /// The index of the string that was found. Nothing comes after it.
    pub stop: Option<usize>,
}

/// Watches a stream of text for stop strings.
#[derive(Clone, Debug)]
pub struct StopStrings {
    nodes: Vec<Node>,
    lengths: Vec<usize>,
    state: u32,
    held: String,
    stopped: bool,
}

impl StopStrings {
    /// A watcher for `stops`; empty ones are ignored.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> StopStrings {
        let mut nodes = vec![Node::default()];
        for (i, stop) in stops.iter().enumerate() {
            let mut at = 0_u32;
            for &byte in stop.as_ref().as_bytes() {
                let depth = nodes[at as usize].depth + 1;
                at = nodes[at as usize].child(byte).unwrap_or_else(|| {
                    let new = index(nodes.len());
                    nodes[at as usize].children.push((byte, new));
                    nodes.push(Node { depth, ..Node::default() });
                    new
                });
            }
            if at != 0 {
                nodes[at as usize].found.get_or_insert(index(i));
            }
        }
        link(&mut nodes);
        let lengths = stops.iter().map(|stop| stop.as_ref().len()).collect();
        StopStrings { nodes, lengths, state: 0, held: String::new(), stopped: false }
    }

    fn step(&mut self, byte: u8) {
        self.state = next(&self.nodes, self.state, byte);
    }

    /// Takes the next piece and gives the text that no stop string can begin in any more. The stop string that ends
    /// first counts; of those that end at the same byte, the longest. After a stop nothing more comes out.
    pub fn push(&mut self, piece: &str) -> Clear {
        if self.stopped {
            return Clear::default();
        }
        for (i, &byte) in piece.as_bytes().iter().enumerate() {
            self.step(byte);
            if let Some(found) = self.nodes[self.state as usize].found {
                let stop = found as usize;
                self.held.push_str(&piece[..=i]);
                // A stop string is whole characters, so it begins and ends between characters.
                self.held.truncate(self.held.len() - self.lengths[stop]);
                self.stopped = true;
                return Clear { text: std::mem::take(&mut self.held), stop: Some(stop) };
            }
        }
        self.held.push_str(piece);
        // The state is the longest end of the text that begins a stop string.
        let keep = self.nodes[self.state as usize].depth as usize;
        let held = self.held.split_off(self.held.len() - keep);
        Clear { text: std::mem::replace(&mut self.held, held), stop: None }
    }

    /// Ends the stream: what was held back is text after all.
    pub fn flush(&mut self) -> String {
        self.state = 0;
        std::mem::take(&mut self.held)
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.stopped
    }
}

/// Node and string numbers; stop strings come from a command line and stay far below this.
fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn next(nodes: &[Node], mut state: u32, byte: u8) -> u32 {
    loop {
        if let Some(child) = nodes[state as usize].child(byte) {
            return child;
        }
        if state == 0 {
            return 0;
        }
        state = nodes[state as usize].fallback;
    }
}

/// Sets the fallbacks, level by level, and hands down what ends at them.
fn link(nodes: &mut [Node]) {
    let mut queue: VecDeque<u32> = nodes[0].children.iter().map(|(_, child)| *child).collect();
    while let Some(at) = queue.pop_front() {
        let fallback = nodes[at as usize].fallback;
        if nodes[at as usize].found.is_none() {
            nodes[at as usize].found = nodes[fallback as usize].found;
        }
        for (byte, child) in nodes[at as usize].children.clone() {
            nodes[child as usize].fallback = next(nodes, fallback, byte);
            queue.push_back(child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::num::rng::Stream;

    fn feed(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>) {
        let mut watcher = StopStrings::new(stops);
        let mut texts = Vec::new();
        let mut stop = None;
        for piece in pieces {
            let clear = watcher.push(piece);
            texts.push(clear.text);
            stop = stop.or(clear.stop);
        }
        texts.push(watcher.flush());
        (texts, stop)
    }

    /// Stop strings, pieces, texts that come out (the last at the end), the string found.
    type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [&'a str], Option<usize>);

    #[test]
    fn by_hand() {
        let cases: [Case; 9] = [
            (&[], &["a", "b"], &["a", "b", ""], None),
            (&[""], &["a"], &["a", ""], None),
            (&["END"], &["the E", "N", "D more"], &["the ", "", "", ""], Some(0)),
            (&["END"], &["the E", "N", "T"], &["the ", "", "ENT", ""], None),
            (&["aab"], &["aaa", "ab"], &["a", "a", ""], Some(0)),
            (&["\n\n", "\nUser:"], &["x\nUs", "er:y"], &["x", "", ""], Some(1)),
            // One inside another: the one that ends first.
            (&["abcd", "bc"], &["abc", "d"], &["a", "", ""], Some(1)),
            // Both end together: the longer.
            (&["c", "abc"], &["zabc"], &["z", ""], Some(1)),
            (&["é😸"], &["xé", "😸"], &["x", "", ""], Some(0)),
        ];
        for (stops, pieces, texts, stop) in cases {
            assert_eq!(
                feed(stops, pieces),
                (texts.iter().map(|t| t.to_string()).collect(), stop),
                "{stops:?} {pieces:?}"
            );
        }
    }

    /// Tries every place.
    fn naive(stops: &[&str], text: &str) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let found = stops.iter().enumerate().filter(|(_, stop)| {
                !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes())
            });
            // The longest; of equal ones the first.
            if let Some((i, stop)) = found.rev().max_by_key(|(_, stop)| stop.len()) {
                return (text[..end - stop.len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn equals_naive_search_and_holds_back_no_more_than_it_must() {
        let mut draws = Stream::new(5);
        let mut pick = |n: u32| draws.below(n) as usize;
        let letters = ["a", "b", "é", "\n", "😸"];
        for _ in 0..20_000 {
            let mut word = |most: u32| -> String {
                (0..pick(most)).map(|_| letters[pick(3 + 2 * u32::from(most > 6))]).collect()
            };
            let stops: Vec<String> = (0..3).map(|_| word(6)).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<String> = (0..8).map(|_| word(7)).collect();
            let whole = pieces.concat();
            let (want, want_stop) = naive(&stops, &whole);
            let mut watcher = StopStrings::new(&stops);
            let (mut out, mut seen, mut stop) = (String::new(), String::new(), None);
            for piece in &pieces {
                let clear = watcher.push(piece);
                seen.push_str(piece);
                out.push_str(&clear.text);
                stop = stop.or(clear.stop);
                if stop.is_none() {
                    let open = (0..=seen.len())
                        .filter(|&n| seen.is_char_boundary(seen.len() - n))
                        .filter(|&n| {
                            stops.iter().any(|s| {
                                s.len() > n
                                    && s.as_bytes().starts_with(&seen.as_bytes()[seen.len() - n..])
                            })
                        })
                        .max()
                        .unwrap_or(0);
                    assert_eq!(out.len(), seen.len() - open, "{stops:?} {seen:?}");
                }
            }
            out.push_str(&watcher.flush());
            assert_eq!((out, stop), (want, want_stop), "{stops:?} {whole:?}");
        }
    }
}
