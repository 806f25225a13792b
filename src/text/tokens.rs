//! The tokenizer: text to ids with special tokens only where the template wrote them, and ids to exact bytes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::normalizer::Range as Span;
use tokenizers::{
    Encoding, Model, NormalizedString, Normalizer, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, Token,
};

use super::added::{AddedToken, Author, Authors, Matcher};
use super::added_table::{AddedTable, token_entry};
use super::detok::Detokenizer;
use super::pieces::{Lead, Spelling};
use crate::error::{Error, Result, visible};

/// Ids above this are refused: no vocabulary comes near, and tables are as long as the largest id.
pub(super) const MAX_ID: u32 = 1 << 22;

/// Tokenizer files are a few levels deep.
const MAX_NESTING: usize = 32;

/// The special tokens that tokenizer_config.json names.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// What this module reads of a tokenizer.json itself; the `tokenizers` crate reads the rest.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Option<Vec<AddedToken>>,
    #[serde(default)]
    decoder: Value,
    model: ModelHead,
}

#[derive(Deserialize)]
struct ModelHead {
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    unk_id: Option<u32>,
    #[serde(default)]
    dropout: Option<f64>,
}

/// A loaded tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Added tokens matched in the text as it is, and in the normalised text.
    plain: Matcher,
    normalized: Matcher,
    ids: HashMap<String, u32>, // of added tokens
    /// By id: the added token, if it is one.
    added: BTreeMap<u32, AddedToken>,
    unk: Option<u32>,
    named: Vec<(&'static str, String)>,
    raw_prefix: Vec<u32>,
    /// Token `i` stands for `bytes[ends[i − 1]..ends[i]]`.
    bytes: Vec<u8>,
    ends: Vec<u32>,
    lead: Lead,
    /// What a token that begins a text stands for, where that differs (`Lead::FirstToken`).
    first: HashMap<u32, Vec<u8>>,
}

pub(super) fn broken(why: impl Into<String>) -> Error {
    Error::bad_file(
        "cannot use the tokenizer",
        why,
        "check tokenizer.json and tokenizer_config.json, or get the model again",
    )
}

/// Runs code of the `tokenizers` crate, which may panic on odd files.
fn contained<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match super::contained::contained(run) {
        Ok(ended) => ended.map_err(|e| broken(visible(&e.to_string()))),
        Err(said) => Err(broken(format!("the tokenizer library failed on it: {}", visible(&said)))),
    }
}

/// How deep a JSON text is nested.
fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl Tokenizer {
    /// Builds a tokenizer from the texts of tokenizer.json and, if there is one, tokenizer_config.json.
    ///
    /// # Errors
    /// [`Kind::BadFile`](crate::error::Kind::BadFile) for files that are malformed, contradict themselves, or use a
    /// decoder that is not supported.
    pub fn new(tokenizer_json: &str, tokenizer_config: Option<&str>) -> Result<Tokenizer> {
        // The library panics on some syntax errors and on deep nesting: both are looked for first.
        if nesting(tokenizer_json) > MAX_NESTING {
            return Err(broken(format!(
                "tokenizer.json is nested deeper than {MAX_NESTING} levels"
            )));
        }
        let file: File = serde_json::from_str(tokenizer_json)
            .map_err(|e| broken(format!("tokenizer.json: {}", visible(&e.to_string()))))?;
        let config: Value = match tokenizer_config {
            None => Value::Null,
            Some(text) => serde_json::from_str(text).map_err(|e| {
                broken(format!("tokenizer_config.json: {}", visible(&e.to_string())))
            })?,
        };
        if file.model.dropout.is_some_and(|p| p != 0.0) {
            return Err(broken(
                "tokenizer.json asks for dropout, so equal texts would get unequal ids",
            ));
        }
        let spelling = Spelling::new(&file.decoder)?;
        let inner: tokenizers::Tokenizer = contained(|| tokenizer_json.parse())?;
        let mut spelled = vocabulary(&inner)?;
        let unk = match (file.model.unk_id, &file.model.unk_token) {
            (Some(id), _) => Some(id),
            (None, Some(token)) => inner.token_to_id(token),
            (None, None) => None,
        };

        let mut table = AddedTable { inner: &inner, by_id: BTreeMap::new(), ids: HashMap::new() };
        table.read_file(file.added_tokens.unwrap_or_default())?;
        table.read_decoder(&config["added_tokens_decoder"])?;
        let mut named = Vec::new();
        for name in NAMES {
            if let Some(token) = token_entry(&config[name]) {
                named.push((name, token.content.clone()));
                table.mark(token)?;
            }
        }
        for key in ["additional_special_tokens", "extra_special_tokens"] {
            let list = config[key].as_array().into_iter().flatten();
            let map = config[key].as_object().into_iter().flat_map(|map| map.values());
            for token in list.chain(map).filter_map(token_entry) {
                table.mark(token)?;
            }
        }
        let (added, ids) = (table.by_id, table.ids);
        let patterns = patterns(&inner, &added)?;
        let by = |normalized: bool| {
            let tokens = added.values().filter(move |token| token.normalized == normalized);
            tokens.map(|token| (patterns[&token.id].clone(), token.clone()))
        };
        let (plain, normalized) = (Matcher::new(by(false)), Matcher::new(by(true)));
        for (&id, token) in &added {
            if let Some(other) = spelled.get(&id).filter(|other| **other != token.content) {
                let (a, b) = (visible(other), visible(&token.content));
                return Err(broken(format!("{a} and the added token {b} have the same id {id}")));
            }
            spelled.insert(id, token.content.clone());
        }

        let mut tokenizer = Tokenizer {
            inner,
            plain,
            normalized,
            ids,
            added,
            unk,
            named,
            raw_prefix: Vec::new(),
            bytes: Vec::new(),
            ends: Vec::new(),
            lead: spelling.lead,
            first: HashMap::new(),
        };
        tokenizer.spell(spelled, &patterns, &spelling)?;
        tokenizer.raw_prefix = tokenizer.find_raw_prefix(config["add_bos_token"].as_bool())?;
        Ok(tokenizer)
    }

    /// Fills the table of bytes for tokens by id; `patterns` are the normalised texts of the added ones.
    fn spell(
        &mut self,
        spelled: BTreeMap<u32, String>,
        patterns: &BTreeMap<u32, String>,
        spelling: &Spelling,
    ) -> Result<()> {
        let mut end = 0;
        for (id, token) in spelled {
            // Ids that nothing has stand for nothing.
            self.ends.resize(id as usize, end);
            let pattern = patterns.get(&id).filter(|pattern| **pattern != token);
            let bytes = match (self.added.get(&id), pattern) {
                (Some(added), _) if added.special => token.into_bytes(),
                (Some(_), Some(pattern)) => spelling.bytes(pattern),
                (Some(_), None) if !spelling.spells_added() => token.into_bytes(),
                _ => {
                    if let Lead::FirstToken(blank) = self.lead
                        && token.contains(blank)
                    {
                        self.first.insert(id, spelling.bytes(&token.replace(blank, "")));
                    }
                    spelling.bytes(&token)
                }
            };
            self.bytes.extend(bytes);
            end = u32::try_from(self.bytes.len())
                .map_err(|_| broken("its tokens are longer than 4 GiB in all"))?;
            self.ends.push(end);
        }
        Ok(())
    }

    /// What the tokenizer's own post-processing puts before a text that no template frames.
    fn find_raw_prefix(&self, add_bos: Option<bool>) -> Result<Vec<u32>> {
        const TEXT: u32 = u32::MAX;
        let probe = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
        let framed = contained(|| self.inner.post_process(probe, None, true))?;
        let before = framed.get_ids().iter().copied().take_while(|&id| id != TEXT);
        let mut prefix: Vec<u32> = before.collect();
        let bos = self.named("bos_token").and_then(|bos| self.id(bos));
        match (add_bos, bos) {
            (Some(false), Some(bos)) => prefix.retain(|&id| id != bos),
            (Some(true), Some(bos)) if !prefix.contains(&bos) => prefix.insert(0, bos),
            _ => {}
        }
        Ok(prefix)
    }

    /// The ids of text that may contain anything: special tokens in it are plain text.
    ///
    /// # Errors
    /// When the tokenizer's own rules fail, or give a special token for plain text.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(text, &Authors::other(text.len()), &[])
    }

    /// The ids of text that the template wrote: special tokens are recognised, and none is added.
    ///
    /// # Errors
    /// As [`encode_text`](Tokenizer::encode_text).
    pub fn encode_scaffold(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(text, &Authors::template(), &[])
    }

    /// The ids of a prompt that no template frames: [`encode_text`](Tokenizer::encode_text) after whatever the
    /// tokenizer puts before every text (a begin-of-text token, for some).
    ///
    /// # Errors
    /// As [`encode_text`](Tokenizer::encode_text).
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.raw_prefix.clone();
        ids.extend(self.encode_text(text)?);
        Ok(ids)
    }

    /// The ids of text by several authors. `markers` are added tokens that are not special but that the template
    /// uses as such (`<think>`), sorted: text of [`Author::Other`] cannot contain them.
    ///
    /// # Errors
    /// As [`encode_text`](Tokenizer::encode_text).
    pub fn encode(&self, text: &str, authors: &Authors, markers: &[u32]) -> Result<Vec<u32>> {
        let may = |token: &AddedToken, at: Range<usize>| {
            if token.special {
                authors.least(&at) == Author::Template
            } else {
                markers.binary_search(&token.id).is_err() || authors.least(&at) >= Author::Model
            }
        };
        contained(|| {
            let mut pieces = PreTokenizedString::from(text);
            pieces.split(|_, piece| cut(&self.plain, piece, text.len(), &may))?;
            pieces.split(|_, mut piece| {
                if let Some(normalizer) = self.inner.get_normalizer() {
                    normalizer.normalize(&mut piece)?;
                }
                cut(&self.normalized, piece, text.len(), &may)
            })?;
            if let Some(splitter) = self.inner.get_pre_tokenizer() {
                splitter.pre_tokenize(&mut pieces)?;
            }
            pieces.tokenize(|piece| self.model_tokens(piece.get()))?;
            let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
            let tokens = splits.iter().filter_map(|(_, _, tokens)| tokens.as_ref()).flatten();
            Ok(tokens.map(|token| token.id).collect())
        })
    }

    /// The model's tokens for plain text. Some vocabularies contain their special tokens as ordinary entries; where
    /// the model would pick one, it gets the characters one by one.
    fn model_tokens(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        let forbidden = |token: &Token| self.is_special(token.id) && Some(token.id) != self.unk;
        let model = self.inner.get_model();
        let tokens = model.tokenize(text)?;
        if !tokens.iter().any(forbidden) {
            return Ok(tokens);
        }
        let mut safe = Vec::with_capacity(tokens.len() + 8);
        for token in tokens {
            if !forbidden(&token) {
                safe.push(token);
                continue;
            }
            let part = text.get(token.offsets.0..token.offsets.1).unwrap_or(&token.value);
            for c in part.chars() {
                let tokens = model.tokenize(c.encode_utf8(&mut [0; 4]))?;
                if tokens.iter().any(forbidden) {
                    return Err(format!(
                        "the character {c:?} of a message would become the special token {}",
                        visible(&token.value)
                    )
                    .into());
                }
                safe.extend(tokens);
            }
        }
        Ok(safe)
    }

    /// The exact bytes that a token stands for; none for an id that no token has.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let Some(&end) = self.ends.get(at) else { return &[] };
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..end as usize]
    }

    /// What the token stands for as the first of a text.
    pub(super) fn first_bytes(&self, id: u32) -> &[u8] {
        self.first.get(&id).map_or_else(|| self.token_bytes(id), Vec::as_slice)
    }

    pub(super) fn lead(&self) -> Lead {
        self.lead
    }

    /// Whether the token is a control token, which prints nothing.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.get(&id).is_some_and(|token| token.special)
    }

    /// The special tokens: id and text, ascending.
    pub fn special_tokens(&self) -> impl Iterator<Item = (u32, &str)> {
        self.added.values().filter(|token| token.special).map(|t| (t.id, t.content.as_str()))
    }

    /// Added tokens that are not special: id and text, ascending.
    pub fn ordinary_added(&self) -> impl Iterator<Item = (u32, &str)> {
        self.added.values().filter(|token| !token.special).map(|t| (t.id, t.content.as_str()))
    }

    /// The id of a token, given as the tokenizer's files write it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied().or_else(|| self.inner.get_model().token_to_id(token))
    }

    /// The token of an id, as the tokenizer's files write it.
    pub fn token(&self, id: u32) -> Option<String> {
        match self.added.get(&id) {
            Some(token) => Some(token.content.clone()),
            None => self.inner.get_model().id_to_token(id),
        }
    }

    /// A special token that tokenizer_config.json names: `named("bos_token")`.
    pub fn named(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(n, _)| *n == name).map(|(_, token)| token.as_str())
    }

    /// All of those: name and token.
    pub fn named_tokens(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.named.iter().map(|(name, token)| (*name, token.as_str()))
    }

    /// One more than the largest id: the rows that an embedding needs.
    pub fn vocab_size(&self) -> u32 {
        // At most MAX_ID + 1 entries.
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }

    /// A decoder for one stream of ids.
    pub fn detokenizer(&self) -> Detokenizer<'_> {
        Detokenizer::new(self)
    }
}

/// The model's tokens by id.
fn vocabulary(inner: &tokenizers::Tokenizer) -> Result<BTreeMap<u32, String>> {
    let mut by_id = BTreeMap::new();
    for (token, id) in inner.get_model().get_vocab() {
        if id > MAX_ID {
            return Err(broken(format!("tokenizer.json has the id {id}, above {MAX_ID}")));
        }
        if let Some(other) = by_id.insert(id, token) {
            let (a, b) = (visible(&other), visible(&by_id[&id]));
            return Err(broken(format!("tokenizer.json gives {a} and {b} the same id {id}")));
        }
    }
    Ok(by_id)
}

/// The text that each added token is found by: its content, normalised where the token says so.
fn patterns(
    inner: &tokenizers::Tokenizer,
    added: &BTreeMap<u32, AddedToken>,
) -> Result<BTreeMap<u32, String>> {
    let mut patterns = BTreeMap::new();
    for (&id, token) in added {
        let mut pattern = NormalizedString::from(token.content.as_str());
        if token.normalized
            && let Some(normalizer) = inner.get_normalizer()
        {
            contained(|| normalizer.normalize(&mut pattern))?;
        }
        patterns.insert(id, pattern.get().to_owned());
    }
    Ok(patterns)
}

type Cut = Vec<(NormalizedString, Option<Vec<Token>>)>;

/// Cuts a piece of a text of `len` bytes at its added tokens.
fn cut(
    matcher: &Matcher,
    piece: NormalizedString,
    len: usize,
    may: &impl Fn(&AddedToken, Range<usize>) -> bool,
) -> tokenizers::Result<Cut> {
    if matcher.is_empty() {
        return Ok(vec![(piece, None)]);
    }
    let start = piece.offsets_original().0;
    let pieces = matcher.cut(piece.get(), |token, at| {
        // What maps to nothing may come from anywhere.
        let original = piece.convert_offsets(Span::Normalized(at));
        may(token, original.map_or(0..len, |r| start + r.start..start + r.end))
    });
    let slice = |(id, at): (Option<u32>, Range<usize>)| {
        let part = piece.slice(Span::Normalized(at)).ok_or("an added token cuts a character")?;
        let token = id.map(|id| vec![Token::new(id, String::new(), (0, part.len()))]);
        Ok((part, token))
    };
    pieces.into_iter().map(slice).collect()
}
