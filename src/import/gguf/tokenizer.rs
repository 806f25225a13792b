//! The tokenizer of a GGUF as Hugging Face files: tokenizer.json and tokenizer_config.json.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::config::pretty;
use super::parse::{bad, unsupported};
use super::pretok::Pre;
use super::value::Metadata;
use super::vocab::{Merge, TokenKind, Vocab};
use crate::error::{Result, visible};

/// The texts, and the ids that end an answer.
#[derive(Debug)]
pub struct Rebuilt {
    /// tokenizer.json
    pub tokenizer: String,
    /// tokenizer_config.json
    pub config: String,
    /// For generation_config.json.
    pub ends: Vec<u32>,
}

/// The parts of tokenizer.json that differ between the two kinds of BPE.
struct Scheme {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    unk: Option<u32>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    add_bos: bool,
}

/// tokenizer.json, written without a copy of the vocabulary.
#[derive(Serialize)]
struct File<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<Added<'a>>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Bpe<'a>,
}

#[derive(Serialize)]
struct Added<'a> {
    id: u32,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Bpe<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: (),
    unk_token: Option<&'a str>,
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Words<'a>,
    merges: &'a [Merge<'a>],
}

/// Token → position.
struct Words<'a>(&'a [String]);

impl Serialize for Words<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().zip(0u32..))
    }
}

/// Rebuilds the tokenizer of a model with `rows` embeddings.
pub fn rebuild(m: &Metadata<'_>, rows: u32) -> Result<Rebuilt> {
    let model = m
        .str("tokenizer.ggml.model")?
        .ok_or_else(|| bad("it has no tokenizer.ggml.model: the tokenizer is missing"))?;
    let vocab = Vocab::read(m, rows)?;
    match model {
        "gpt2" => finish(m, &vocab, &vocab.listed_merges(m)?, byte_level(m)?),
        "llama" => finish(m, &vocab, &vocab.scored_merges(m)?, sentence_piece(m, &vocab)?),
        other => Err(unsupported(format!(
            "its tokenizer is of the kind {}; gpt2 and llama are supported",
            visible(other)
        ))),
    }
}

/// GPT-2's scheme: bytes spelt as visible characters, words cut by a pattern.
fn byte_level(m: &Metadata<'_>) -> Result<Scheme> {
    let name = m.str("tokenizer.ggml.pre")?.ok_or_else(|| {
        unsupported("it does not say how text is cut into words (no tokenizer.ggml.pre)")
    })?;
    let pre = Pre::find(name).ok_or_else(|| {
        let known: Vec<&str> = Pre::names().collect();
        unsupported(format!(
            "its pre-tokenizer is {}; known are {}",
            visible(name),
            known.join(", ")
        ))
    })?;
    if m.bool("tokenizer.ggml.add_space_prefix")? == Some(true) {
        return Err(unsupported("its byte-level tokenizer puts a space before each text"));
    }
    Ok(Scheme {
        normalizer: if pre.nfc { json!({"type": "NFC"}) } else { Value::Null },
        pre_tokenizer: pre.json(),
        decoder: json!({
            "type": "ByteLevel",
            "add_prefix_space": true,
            "trim_offsets": true,
            "use_regex": true,
        }),
        unk: None,
        fuse_unk: false,
        byte_fallback: false,
        ignore_merges: pre.ignore_merges,
        add_bos: pre.add_bos,
    })
}

/// SentencePiece's scheme: a space is `▁`, one stands before each stretch of text, unknown characters become bytes.
fn sentence_piece(m: &Metadata<'_>, vocab: &Vocab) -> Result<Scheme> {
    if m.bool("tokenizer.ggml.remove_extra_whitespaces")? == Some(true) {
        return Err(unsupported("its tokenizer removes repeated spaces"));
    }
    if m.array("tokenizer.ggml.precompiled_charsmap")?.is_some_and(|a| !a.is_empty()) {
        return Err(unsupported("its tokenizer rewrites characters by a table of its own"));
    }
    let unk = vocab.role(m, "unknown_token_id")?.or_else(|| {
        let first = vocab.kinds.iter().position(|k| *k == TokenKind::Unknown);
        first.map(|id| id as u32)
    });
    let byte_fallback = vocab.has_bytes();
    if unk.is_none() && !byte_fallback {
        return Err(bad("its tokenizer has neither an unknown token nor the 256 byte tokens"));
    }
    let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let back = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let mut normalizers = vec![space];
    let mut decoders = vec![back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if m.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true) {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(Scheme {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        unk,
        fuse_unk: true,
        byte_fallback,
        ignore_merges: false,
        add_bos: true,
    })
}

fn finish(
    m: &Metadata<'_>,
    vocab: &Vocab,
    merges: &[Merge<'_>],
    scheme: Scheme,
) -> Result<Rebuilt> {
    let ends = vocab.ends(m)?;
    let bos = vocab.role(m, "bos_token_id")?;
    let eos = vocab.role(m, "eos_token_id")?;
    let add = |key: &str, otherwise: bool| Ok(m.bool(key)?.unwrap_or(otherwise));
    let add_bos = add("tokenizer.ggml.add_bos_token", scheme.add_bos && bos.is_some())?;
    let add_eos = add("tokenizer.ggml.add_eos_token", false)?;
    for (wanted, id, what) in [(add_bos, bos, "bos"), (add_eos, eos, "eos")] {
        if wanted && id.is_none() {
            return Err(bad(format!(
                "tokenizer.ggml.add_{what}_token is set without the token's id"
            )));
        }
    }
    let (modelled, listed) = vocab.split(merges, scheme.unk);
    let special = |id: u32| {
        let kind = vocab.kinds[id as usize];
        matches!(kind, TokenKind::Control | TokenKind::Unknown)
            || ends.contains(&id)
            || bos == Some(id)
    };
    let added_tokens = (0..listed as u32)
        .filter(|id| special(*id) || vocab.kinds[*id as usize] == TokenKind::UserDefined)
        .map(|id| Added {
            id,
            content: vocab.text(id),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: special(id),
        })
        .collect();
    let file = File {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens,
        normalizer: scheme.normalizer,
        pre_tokenizer: scheme.pre_tokenizer,
        post_processor: post_processor(vocab, bos.filter(|_| add_bos), eos.filter(|_| add_eos)),
        decoder: scheme.decoder,
        model: Bpe {
            kind: "BPE",
            dropout: (),
            unk_token: scheme.unk.map(|id| vocab.text(id)),
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: scheme.fuse_unk,
            byte_fallback: scheme.byte_fallback,
            ignore_merges: scheme.ignore_merges,
            vocab: Words(&vocab.tokens[..modelled]),
            merges,
        },
    };
    let tokenizer = serde_json::to_string(&file)
        .map_err(|e| bad(format!("the rebuilt tokenizer is not JSON: {e}")))?;
    let config = tokenizer_config(m, vocab, add_bos, add_eos)?;
    Ok(Rebuilt { tokenizer, config, ends })
}

/// Puts BOS before and EOS after a text that is encoded as a whole.
fn post_processor(vocab: &Vocab, bos: Option<u32>, eos: Option<u32>) -> Value {
    if bos.is_none() && eos.is_none() {
        return Value::Null;
    }
    let token =
        |id: u32, part: u32| json!({"SpecialToken": {"id": vocab.text(id), "type_id": part}});
    let text = |part: u32| {
        let name = if part == 0 { "A" } else { "B" };
        let body = json!({"Sequence": {"id": name, "type_id": part}});
        let (before, after) = (bos.map(|id| token(id, part)), eos.map(|id| token(id, part)));
        before.into_iter().chain([body]).chain(after).collect::<Vec<_>>()
    };
    let specials: Map<String, Value> = [bos, eos]
        .into_iter()
        .flatten()
        .map(|id| {
            let t = vocab.text(id);
            (t.to_owned(), json!({"id": t, "ids": [id], "tokens": [t]}))
        })
        .collect();
    let pair = [text(0), text(1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": text(0),
        "pair": pair,
        "special_tokens": specials,
    })
}

fn tokenizer_config(
    m: &Metadata<'_>,
    vocab: &Vocab,
    add_bos: bool,
    add_eos: bool,
) -> Result<String> {
    let mut out = Map::new();
    out.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
    out.insert("add_bos_token".into(), json!(add_bos));
    out.insert("add_eos_token".into(), json!(add_eos));
    for (name, role) in [
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("pad_token", "padding_token_id"),
    ] {
        if let Some(id) = vocab.role(m, role)? {
            out.insert(name.into(), json!(vocab.text(id)));
        }
    }
    out.insert("clean_up_tokenization_spaces".into(), json!(false));
    if let Some(template) = chat_template(m)? {
        out.insert("chat_template".into(), template);
    }
    pretty(out)
}

/// The default template, or all of them by name when there are several.
fn chat_template(m: &Metadata<'_>) -> Result<Option<Value>> {
    const KEY: &str = "tokenizer.chat_template";
    let default = m.str(KEY)?;
    let mut named = Vec::new();
    for name in m.strs("tokenizer.chat_templates")?.unwrap_or_default() {
        let key = format!("{KEY}.{name}");
        let template =
            m.str(&key)?.ok_or_else(|| bad(format!("metadata {} is missing", visible(&key))))?;
        named.push(json!({"name": name, "template": template}));
    }
    if named.is_empty() {
        return Ok(default.map(|t| json!(t)));
    }
    if let Some(t) = default {
        named.insert(0, json!({"name": "default", "template": t}));
    }
    Ok(Some(Value::Array(named)))
}
