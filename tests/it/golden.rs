//! Against numbers that others computed: `tests/golden/README.md` says how each was made.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use snug::store::Texts;
use snug::text::Tokenizer;
use snug::text::template::{self, ChatTemplate, Rendered};

mod demo;
mod numbers;
pub mod run;
mod text;

/// Folder of the golden files.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The tiny models, by name.
fn models() -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = fs::read_dir(root().join("models"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .collect();
    found.sort();
    assert!(found.len() >= 22, "only {} golden models", found.len());
    found
}

pub fn parse<T: for<'a> Deserialize<'a>>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `expected.json` of a tiny model.
#[derive(Deserialize)]
struct Expected {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    logits: Vec<Logits>,
    chats: Vec<Chat>,
    texts: Vec<Text>,
}

/// Logits after the token at `position`, counted over prompt and reply; every `step`-th of them.
#[derive(Deserialize)]
pub struct Logits {
    pub position: usize,
    step: Option<usize>,
    /// The largest magnitude of all, when not all are kept.
    largest: Option<f32>,
    values: Vec<f32>,
}

impl Logits {
    /// max |got − expected| / max |expected|.
    pub fn difference(&self, got: &[f32]) -> f32 {
        let got: Vec<f32> = got.iter().step_by(self.step.unwrap_or(1)).copied().collect();
        assert_eq!(got.len(), self.values.len(), "number of logits");
        assert!(got.iter().all(|x| x.is_finite()));
        let largest = self.largest.unwrap_or_else(|| run::largest(&self.values));
        run::largest_difference(&got, &self.values) / largest
    }
}

/// Messages, and what template and tokenizer make of them; for some models also what the model replies.
#[derive(Deserialize)]
pub struct Chat {
    messages: Vec<Value>,
    text: Option<String>,
    #[serde(default)]
    pub ids: Vec<u32>,
    error: Option<String>,
    #[serde(default)]
    pub greedy: Vec<u32>,
    reply: Option<String>,
    #[serde(default)]
    pub logits: Vec<Logits>,
}

impl Chat {
    /// Renders the messages; text, ids, and the reply as text must be the reference's.
    pub fn check_text(&self, name: &str, words: &Words) {
        let rendered = words.render(&self.messages);
        if let Some(want) = &self.error {
            let error = rendered.expect_err("the reference refuses these messages");
            assert!(error.why.contains(want), "{name}: {error} does not say {want:?}");
            return;
        }
        let rendered = rendered.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(Some(&rendered.text), self.text.as_ref(), "{name}");
        assert!(!self.ids.is_empty());
        assert_eq!(
            rendered.encode(&words.tokenizer).unwrap(),
            self.ids,
            "{name}: {}",
            rendered.text
        );
        if let Some(reply) = &self.reply {
            let mut detokenizer = words.tokenizer.detokenizer();
            let mut got: String = self.greedy.iter().map(|id| detokenizer.push(*id)).collect();
            got += &detokenizer.flush();
            assert_eq!(got, *reply, "{name}");
        }
    }
}

#[derive(Deserialize)]
struct Text {
    text: String,
    ids: Vec<u32>,
}

/// A model's tokenizer and template.
pub struct Words {
    pub tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Words {
    pub fn new(texts: &Texts) -> Words {
        let config = texts.tokenizer_config.as_deref();
        let tokenizer = Tokenizer::new(&texts.tokenizer, config).unwrap();
        let source = template::find(texts.chat_template.as_deref(), config).unwrap();
        let template = ChatTemplate::new(&source, &tokenizer).unwrap();
        Words { tokenizer, template }
    }

    fn render(&self, messages: &[Value]) -> snug::error::Result<Rendered> {
        let none = json!({});
        self.template.render(messages, true, none.as_object().unwrap())
    }
}
