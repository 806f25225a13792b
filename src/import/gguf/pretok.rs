//! How byte-level BPE cuts text into words before merging: `tokenizer.ggml.pre` → a pre-tokenizer.
//!
//! GGUF files name the rule and leave its text to the reader. Names whose rule is not known for certain are refused:
//! a wrong cut gives other tokens without anybody noticing.

use serde_json::{Value, json};

/// A pre-tokenizer and the two model switches that go with its name.
#[derive(Debug)]
pub struct Pre {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// A word that is a token as a whole is not merged up from its bytes.
    pub ignore_merges: bool,
    /// Whether a text begins with the BOS token when the file does not say.
    pub add_bos: bool,
    /// Text is brought to Unicode NFC first.
    pub nfc: bool,
}

/// Steps apply in turn, each to the pieces the one before left; what matches becomes a piece of its own.
#[derive(Debug)]
enum Step {
    Regex(&'static str),
    /// Each numeric character alone.
    Digits,
    /// GPT-2's pattern; must be the last.
    Gpt2,
}

use Step::{Digits, Gpt2, Regex};

const PRES: &[Pre] = &[
    Pre { names: &["gpt-2"], steps: &[Gpt2], ..PLAIN },
    Pre {
        names: &["default"],
        steps: &[
            Regex(r"[\p{P}\$\+<=>\^~\|]+"),
            Regex(GPT2),
            Regex(r"\p{N}+"),
            Regex("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    Pre { names: &["smollm", "starcoder", "refact"], steps: &[Digits, Gpt2], ..PLAIN },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3"],
        steps: &[Regex(LLAMA3)],
        ignore_merges: true,
        add_bos: true,
        nfc: false,
    },
    Pre { names: &["smaug-bpe"], steps: &[Regex(LLAMA3)], ..PLAIN },
    Pre { names: &["qwen2"], steps: &[Regex(QWEN2)], nfc: true, ..PLAIN },
    Pre { names: &["deepseek-r1-qwen"], steps: &[Regex(QWEN2)], ..PLAIN },
    Pre {
        names: &["tekken"],
        steps: &[Regex(TEKKEN)],
        ignore_merges: true,
        add_bos: true,
        nfc: false,
    },
    Pre { names: &["gpt-4o"], steps: &[Regex(GPT4O)], ..PLAIN },
    Pre {
        names: &["deepseek-v3"],
        steps: &[Regex(r"\p{N}{1,3}"), Regex("[一-龥぀-ゟ゠-ヿ]+"), Regex(DEEPSEEK3)],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-coder"],
        steps: &[
            Regex(r"[\r\n]"),
            Regex(r"\s?\p{L}+"),
            Regex(r"\s?\p{P}+"),
            Regex("[一-龥ࠀ-一가-\u{d7ff}]+"),
            Digits,
        ],
        ..PLAIN
    },
];

const PLAIN: Pre = Pre { names: &[], steps: &[], ignore_merges: false, add_bos: false, nfc: false };

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

impl Pre {
    /// The pre-tokenizer of this name.
    pub fn find(name: &str) -> Option<&'static Pre> {
        PRES.iter().find(|p| p.names.contains(&name))
    }

    /// Every known name.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PRES.iter().flat_map(|p| p.names.iter().copied())
    }

    /// As tokenizer.json has it.
    pub fn json(&self) -> Value {
        let byte_level = |use_regex: bool| {
            json!({
                "type": "ByteLevel",
                "add_prefix_space": false,
                "trim_offsets": true,
                "use_regex": use_regex,
            })
        };
        let mut steps: Vec<Value> = Vec::new();
        let mut last = byte_level(false);
        for step in self.steps {
            match step {
                Regex(pattern) => steps.push(json!({
                    "type": "Split",
                    "pattern": {"Regex": pattern},
                    "behavior": "Isolated",
                    "invert": false,
                })),
                Digits => steps.push(json!({"type": "Digits", "individual_digits": true})),
                Gpt2 => last = byte_level(true),
            }
        }
        steps.push(last);
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}
