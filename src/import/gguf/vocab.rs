//! The vocabulary of a GGUF: tokens, their kinds, the ids with a role, and the merges.

use std::collections::{HashMap, HashSet};

use super::parse::bad;
use super::value::Metadata;
use crate::error::{Result, visible};

/// What a token is for (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Found by merging.
    Normal,
    /// Stands for what has no token.
    Unknown,
    /// Only ever written by a template: `<s>`, `<|im_end|>`.
    Control,
    /// Matched in text before anything else.
    UserDefined,
    /// Fills a gap in the ids.
    Unused,
    /// One byte: `<0x0A>`.
    Byte,
}

/// Texts that end an answer when they are control tokens. Files name one or two ends of several.
const END_TEXTS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
];

/// The longest token whose every cut is tried.
const MAX_SCORED_BYTES: usize = 1024;

/// The vocabulary; ids are positions.
#[derive(Debug)]
pub struct Vocab {
    /// Text of each token.
    pub tokens: Vec<String>,
    /// Kind of each token.
    pub kinds: Vec<TokenKind>,
    /// Ids by text.
    pub ids: HashMap<String, u32>,
}

/// Two tokens and what they merge to, best first.
pub type Merge<'a> = (&'a str, &'a str);

impl Vocab {
    /// Reads tokens and kinds; the model has room for `rows` of them.
    pub fn read(m: &Metadata<'_>, rows: u32) -> Result<Vocab> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const TYPES: &str = "tokenizer.ggml.token_type";
        let missing = |key: &str| bad(format!("metadata {key} is missing"));
        let texts = m.strs(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
        let types = m.elements(TYPES, "a token type from 0 to 6", |v| match v.as_u64()? {
            0 | 1 => Some(TokenKind::Normal),
            2 => Some(TokenKind::Unknown),
            3 => Some(TokenKind::Control),
            4 => Some(TokenKind::UserDefined),
            5 => Some(TokenKind::Unused),
            6 => Some(TokenKind::Byte),
            _ => None,
        })?;
        let kinds = types.ok_or_else(|| missing(TYPES))?;
        if kinds.len() != texts.len() || texts.len() > rows as usize || texts.is_empty() {
            return Err(bad(format!(
                "it has {} tokens and {} token types for an embedding of {rows} rows",
                texts.len(),
                kinds.len()
            )));
        }
        let mut vocab = Vocab { tokens: Vec::new(), kinds, ids: HashMap::new() };
        for (id, text) in texts.into_iter().enumerate() {
            // A token of no bytes can never be found; it only needs a name of its own.
            let text = if text.is_empty() { format!("[EMPTY_{id}]") } else { text.to_owned() };
            if let Some(first) = vocab.ids.insert(text.clone(), id as u32) {
                return Err(bad(format!("tokens {first} and {id} are both {}", visible(&text))));
            }
            vocab.tokens.push(text);
        }
        Ok(vocab)
    }

    /// The token that has a role, such as `bos_token_id`.
    pub fn role(&self, m: &Metadata<'_>, role: &str) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{role}");
        let Some(id) = m.u64(&key)? else { return Ok(None) };
        match u32::try_from(id) {
            Ok(id) if (id as usize) < self.tokens.len() => Ok(Some(id)),
            _ => Err(bad(format!("{key} is {id}, but there are {} tokens", self.tokens.len()))),
        }
    }

    /// Its text.
    pub fn text(&self, id: u32) -> &str {
        &self.tokens[id as usize]
    }

    /// The ids that end an answer: those the file names, then control tokens known to.
    pub fn ends(&self, m: &Metadata<'_>) -> Result<Vec<u32>> {
        let mut ends = Vec::new();
        let mut add = |id: u32| {
            if !ends.contains(&id) {
                ends.push(id);
            }
        };
        for role in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            if let Some(id) = self.role(m, role)? {
                add(id);
            }
        }
        for text in END_TEXTS {
            let id =
                self.ids.get(text).filter(|id| self.kinds[**id as usize] == TokenKind::Control);
            if let Some(id) = id {
                add(*id);
            }
        }
        Ok(ends)
    }

    /// Reads the merges of a byte-level BPE: `left SP right`, where left may begin with a space.
    pub fn listed_merges<'a>(&self, m: &Metadata<'a>) -> Result<Vec<Merge<'a>>> {
        const KEY: &str = "tokenizer.ggml.merges";
        let lines = m.strs(KEY)?.ok_or_else(|| bad(format!("metadata {KEY} is missing")))?;
        let mut seen = HashSet::new();
        let mut merges = Vec::with_capacity(lines.len());
        for (i, line) in lines.into_iter().enumerate() {
            let wrong = |why: &str| bad(format!("merge {i}, {}, {why}", visible(line)));
            let first = line.chars().next().map_or(0, char::len_utf8);
            let space = line[first..].find(' ').map(|at| first + at);
            let (left, right) = match space {
                Some(at) if at + 1 < line.len() => (&line[..at], &line[at + 1..]),
                _ => return Err(wrong("is not two tokens")),
            };
            let product = format!("{left}{right}");
            if [left, right, &product].iter().any(|t| !self.ids.contains_key(*t)) {
                return Err(wrong("uses or makes something that is no token"));
            }
            // The first of two equal merges is the one that counts.
            if seen.insert((left, right)) {
                merges.push((left, right));
            }
        }
        Ok(merges)
    }

    /// Makes the merges of a SentencePiece BPE, which has scores instead: wherever two tokens side by side make a third,
    /// they merge, the best third first.
    pub fn scored_merges(&self, m: &Metadata<'_>) -> Result<Vec<Merge<'_>>> {
        const KEY: &str = "tokenizer.ggml.scores";
        let scores = m
            .elements(KEY, "a number", |v| v.as_f64())?
            .filter(|s| s.len() == self.tokens.len())
            .ok_or_else(|| bad(format!("{KEY} does not give one score a token")))?;
        let normal = |text: &str| {
            let id = *self.ids.get(text)?;
            (self.kinds[id as usize] == TokenKind::Normal).then_some(id)
        };
        let mut merges: Vec<(f64, u32, u32, u32)> = Vec::new();
        for (id, text) in self.tokens.iter().enumerate() {
            if self.kinds[id] != TokenKind::Normal {
                continue;
            }
            if text.len() > MAX_SCORED_BYTES {
                return Err(bad(format!("token {id} is {} bytes long", text.len())));
            }
            for (cut, _) in text.char_indices().skip(1) {
                if let (Some(left), Some(right)) = (normal(&text[..cut]), normal(&text[cut..])) {
                    merges.push((scores[id], id as u32, left, right));
                }
            }
        }
        // Score falling; then, so that the order is one, ids rising.
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
        Ok(merges.into_iter().map(|(_, _, l, r)| (self.text(l), self.text(r))).collect())
    }

    /// How many tokens the model itself must know. The rest, at the end, are reached only by matching their text:
    /// a user's text can then never be merged into them.
    ///
    /// Returns that number and the number of tokens before the unused ones at the very end.
    pub fn split(&self, merges: &[Merge<'_>], unk: Option<u32>) -> (usize, usize) {
        let mut used: HashSet<u32> = unk.into_iter().collect();
        let mut product = String::new();
        for (left, right) in merges {
            product.clear();
            product.push_str(left);
            product.push_str(right);
            used.extend([left, right, product.as_str()].iter().filter_map(|t| self.ids.get(*t)));
        }
        let trailing = |end: usize, kinds: &[TokenKind]| {
            let free =
                |id: &usize| kinds.contains(&self.kinds[*id]) && !used.contains(&(*id as u32));
            end - (0..end).rev().take_while(free).count()
        };
        let listed = trailing(self.tokens.len(), &[TokenKind::Unused]);
        (trailing(listed, &[TokenKind::Control, TokenKind::UserDefined]), listed)
    }

    /// Whether all 256 byte tokens are there.
    pub fn has_bytes(&self) -> bool {
        (0..=255u8).all(|b| {
            let id = self.ids.get(&format!("<0x{b:02X}>"));
            id.is_some_and(|id| self.kinds[*id as usize] == TokenKind::Byte)
        })
    }
}
