//! Rebuilt tokenizers against ids and cuts of the reference.

use serde_json::{Value, json};
use snug::error::Result;
use snug::store::Texts;
use snug::text::Tokenizer;
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

use super::writer::{Writer, array, byte_tokens, tiny};
use super::{Case, golden_json, golden_path, import, refused, smollm2};

fn load(texts: &Texts) -> Tokenizer {
    Tokenizer::new(&texts.tokenizer, texts.tokenizer_config.as_deref()).unwrap()
}

fn check_ids(name: &str, texts: &Texts) {
    let ours = load(texts);
    let library: tokenizers::Tokenizer = texts.tokenizer.parse().unwrap();
    let golden = golden_json("ids.json");
    let cases = golden[name].as_array().unwrap();
    assert!(cases.len() >= 5, "{name}");
    for case in cases {
        let text = case[0].as_str().unwrap();
        let want: Vec<u32> = serde_json::from_value(case[1].clone()).unwrap();
        assert_eq!(ours.encode_scaffold(text).unwrap(), want, "{name}: {text:?}");
        assert_eq!(library.encode(text, false).unwrap().get_ids(), want, "{name}: {text:?}");
        if want.iter().any(|id| ours.is_special(*id)) {
            continue; // which decoding leaves out
        }
        let mut detok = ours.detokenizer();
        let mut back: String = want.iter().map(|id| detok.push(*id)).collect();
        back.push_str(&detok.flush());
        // NFC may change the text; what comes back must encode alike.
        assert_eq!(ours.encode_scaffold(&back).unwrap(), want, "{name}: {text:?} → {back:?}");
    }
}

#[test]
fn ids_equal_the_reference() {
    for name in ["llama", "qwen2", "qwen3"] {
        let source = snug::import::open(&golden_path(&format!("{name}.gguf"))).unwrap();
        check_ids(name, source.texts());
    }
    if let Some(source) = smollm2() {
        check_ids("smollm2", source.texts());
    }
}

#[test]
fn cuts_equal_the_reference() {
    let golden = golden_json("splits.json");
    let texts = golden["texts"].as_array().unwrap();
    let rules = golden.as_object().unwrap().keys().filter(|k| *k != "texts");
    let mut count = 0;
    for rule in rules {
        let mut w = tiny("llama");
        byte_tokens(&mut w, rule);
        let model = import(&w.bytes()).unwrap();
        let file: Value = serde_json::from_str(&model.texts.tokenizer).unwrap();
        let cutter: PreTokenizerWrapper =
            serde_json::from_value(file["pre_tokenizer"].clone()).unwrap();
        let cuts = golden[rule].as_array().unwrap();
        assert_eq!(cuts.len(), texts.len(), "{rule}");
        for (text, want) in texts.iter().zip(cuts) {
            let text = text.as_str().unwrap();
            let mut pieces = PreTokenizedString::from(text);
            cutter.pre_tokenize(&mut pieces).unwrap();
            let got: Vec<usize> = pieces
                .get_splits(OffsetReferential::Original, OffsetType::Byte)
                .iter()
                .map(|(_, at, _)| at.1)
                .collect();
            assert_eq!(json!(got), *want, "{rule}: {text:?}");
            count += 1;
        }
    }
    assert!(count > 500, "{count}");
}

/// A tokenizer of one's own making: pieces with falling scores, the bytes, a few others.
pub fn scored() -> Writer {
    let mut w = tiny("llama");
    w.remove("tokenizer.ggml.merges");
    w.str("tokenizer.ggml.model", "llama");
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut kinds = vec![2, 3, 3];
    tokens.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
    kinds.extend([6; 256]);
    let words =
        ["▁a", "ab", "▁ab", "abc", "bc", "▁", "a", "b", "c", "<end>", "two  blanks", "[PAD0]"];
    tokens.extend(words.map(String::from));
    kinds.extend([1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4, 5]);
    let scores: Vec<f32> = (0..tokens.len()).map(|i| -(i as f32)).collect();
    w.strs("tokenizer.ggml.tokens", &tokens);
    w.i32s("tokenizer.ggml.token_type", &kinds);
    w.f32s("tokenizer.ggml.scores", &scores);
    w.u32("tokenizer.ggml.bos_token_id", 1);
    w.u32("tokenizer.ggml.eos_token_id", 2);
    w.u32("tokenizer.ggml.unknown_token_id", 0);
    let rows = tokens.len() as u64;
    w.floats("token_embd.weight", &[rows, 32], &vec![0.0; tokens.len() * 32]);
    w
}

fn pieces(change: impl Fn(&mut Writer)) -> Result<Texts> {
    let mut w = scored();
    change(&mut w);
    import(&w.bytes()).map(|m| m.texts)
}

fn ids(texts: &Texts, text: &str) -> Vec<u32> {
    load(texts).encode_scaffold(text).unwrap()
}

#[test]
fn scores_become_merges() {
    let texts = pieces(|_| ()).unwrap();
    // ▁a is best, then ab; so ▁abc becomes ▁ab + c, though abc is a token.
    for (text, want) in [
        ("abc", vec![261, 267]),
        ("ab", vec![261]),
        ("cabc", vec![264, 267, 262]),
        ("a é", vec![259, 264, 3 + 0xc3, 3 + 0xa9]),
        ("a\n", vec![259, 3 + 0x0a]),
        // A special token ends a stretch of text; the next one begins with a space of its own.
        ("a<end>a", vec![259, 268, 259]),
        // Matched as it stands, blanks and all.
        ("two  blanks", vec![269]),
        ("", vec![]),
    ] {
        assert_eq!(ids(&texts, text), want, "{text:?}");
    }
    let bare = pieces(|w| w.bool("tokenizer.ggml.add_space_prefix", false)).unwrap();
    assert_eq!(ids(&bare, "abc"), [262]);
    assert_eq!(ids(&bare, " abc"), [261, 267]);

    let file: Value = serde_json::from_str(&texts.tokenizer).unwrap();
    // Tokens at the end that only match as text are not the model's, and padding is nobody's.
    assert_eq!(file["model"]["vocab"].as_object().unwrap().len(), 268);
    let added: Vec<_> = file["added_tokens"].as_array().unwrap().iter().map(|t| &t["id"]).collect();
    assert_eq!(json!(added), json!([0, 1, 2, 268, 269]));
    assert_eq!(load(&texts).encode_raw("ab").unwrap(), [1, 261]);
    let no_bos = pieces(|w| w.bool("tokenizer.ggml.add_bos_token", false)).unwrap();
    assert_eq!(load(&no_bos).encode_raw("ab").unwrap(), [261]);
}

#[test]
fn special_tokens_keep_their_roles() {
    let mut w = tiny("llama");
    w.str("tokenizer.chat_template", "{{ x }}");
    let texts = import(&w.bytes()).unwrap().texts;
    assert_eq!(ids(&texts, "hehe<|im_end|><tool>"), [256, 256, 258, 259]);
    let t = load(&texts);
    assert_eq!(t.encode_text("<|im_end|>").unwrap().len(), 10, "as text it is ten bytes");
    assert_eq!(
        (t.named("bos_token"), t.named("eos_token")),
        (Some("<|begin|>"), Some("<|im_end|>"))
    );
    assert!(t.is_special(258) && !t.is_special(259));
    let config: Value = serde_json::from_str(texts.tokenizer_config.as_ref().unwrap()).unwrap();
    assert_eq!(config["chat_template"], "{{ x }}");
    assert_eq!(config["add_bos_token"], false);

    // The name of the pre-tokenizer decides about BOS where the file does not.
    byte_tokens(&mut w, "llama-bpe");
    w.strs("tokenizer.chat_templates", &["rag"]);
    w.str("tokenizer.chat_template.rag", "{{ y }}");
    let texts = import(&w.bytes()).unwrap().texts;
    assert_eq!(load(&texts).encode_raw("he").unwrap(), [257, 256]);
    let config: Value = serde_json::from_str(texts.tokenizer_config.as_ref().unwrap()).unwrap();
    let both =
        json!([{"name": "default", "template": "{{ x }}"}, {"name": "rag", "template": "{{ y }}"}]);
    assert_eq!(config["chat_template"], both);
}

#[test]
fn tokenizers_that_are_not_understood_are_refused_by_name() {
    let bytes: &[Case] = &[
        ("model", |w| w.str("tokenizer.ggml.model", "bert"), "of the kind bert"),
        (
            "pre",
            |w| w.str("tokenizer.ggml.pre", "mystery\n"),
            "pre-tokenizer is mystery␊; known are gpt-2",
        ),
        ("no pre", |w| w.remove("tokenizer.ggml.pre"), "does not say how text is cut"),
        ("no types", |w| w.remove("tokenizer.ggml.token_type"), "token_type is missing"),
        (
            "few types",
            |w| w.i32s("tokenizer.ggml.token_type", &[1; 259]),
            "260 tokens and 259 token types",
        ),
        (
            "type",
            |w| w.i32s("tokenizer.ggml.token_type", &[7; 260]),
            "element 0 of metadata tokenizer.ggml.token_type",
        ),
        ("no merges", |w| w.remove("tokenizer.ggml.merges"), "merges is missing"),
        (
            "merge",
            |w| w.strs("tokenizer.ggml.merges", &["h e", "he"]),
            "merge 1, he, is not two tokens",
        ),
        ("half", |w| w.strs("tokenizer.ggml.merges", &["h "]), "is not two tokens"),
        ("product", |w| w.strs("tokenizer.ggml.merges", &["e h"]), "merge 0, e h, uses or makes"),
        ("bos", |w| w.u32("tokenizer.ggml.bos_token_id", 260), "bos_token_id is 260"),
        (
            "add eos",
            |w| {
                w.bool("tokenizer.ggml.add_eos_token", true);
                w.remove("tokenizer.ggml.eos_token_id");
            },
            "add_eos_token is set without",
        ),
        ("prefix", |w| w.bool("tokenizer.ggml.add_space_prefix", true), "space before each text"),
        (
            "not UTF-8",
            |w| {
                let bad = super::writer::string(b"\xc3\x28");
                w.raw("tokenizer.ggml.tokens", 9, array(8, 1, &bad));
            },
            "element 0 of metadata tokenizer.ggml.tokens",
        ),
        (
            "twice",
            |w| {
                let mut tokens = super::writer::alphabet();
                tokens.extend(["he", "x", "he", "y"].map(String::from));
                w.strs("tokenizer.ggml.tokens", &tokens);
            },
            "tokens 120 and 257 are both x",
        ),
        (
            "no template",
            |w| w.strs("tokenizer.chat_templates", &["rag"]),
            "chat_template.rag is missing",
        ),
    ];
    for (what, change, reason) in bytes {
        let mut w = tiny("llama");
        change(&mut w);
        refused(what, import(&w.bytes()), reason);
    }
    let scored: &[Case] = &[
        ("no scores", |w| w.remove("tokenizer.ggml.scores"), "one score a token"),
        ("few scores", |w| w.f32s("tokenizer.ggml.scores", &[0.0; 3]), "one score a token"),
        ("blanks", |w| w.bool("tokenizer.ggml.remove_extra_whitespaces", true), "repeated spaces"),
        (
            "table",
            |w| w.raw("tokenizer.ggml.precompiled_charsmap", 9, array(0, 1, &[1])),
            "by a table",
        ),
    ];
    for (what, change, reason) in scored {
        refused(what, pieces(change), reason);
    }
}

/// Tokens of no text, and more rows than tokens.
#[test]
fn gaps_in_the_vocabulary_are_harmless() {
    let mut w = tiny("llama");
    let mut tokens = super::writer::alphabet();
    tokens.extend(["he", "", "<|im_end|>"].map(String::from));
    w.strs("tokenizer.ggml.tokens", &tokens);
    let kinds: Vec<i32> = (0..259).map(|i| [1, 3][usize::from(i > 257)]).collect();
    w.i32s("tokenizer.ggml.token_type", &kinds);
    w.remove("tokenizer.ggml.bos_token_id");
    let texts = import(&w.bytes()).unwrap().texts;
    assert_eq!(ids(&texts, "he<|im_end|>"), [256, 258]);
}
