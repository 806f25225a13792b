//! Where a reply ends: the ids that end it, each with the files that say so.
//!
//! No single file tells. A model's config.json may name the end of a *document* while chats end with another token,
//! generation_config.json may list one of two, and some templates close a turn with a token that no file calls an
//! end. So the set is the union of all, and each entry keeps its origins for people to see.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::added::Author;
use super::template::ChatTemplate;
use super::tokens::Tokenizer;
use crate::error::{Error, Result, visible};

/// The ids that end a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopSet {
    entries: BTreeMap<u32, Vec<&'static str>>,
}

impl StopSet {
    /// Collects the ids from a model's files (texts of config.json and generation_config.json, where there are any),
    /// its tokenizer and its template.
    ///
    /// # Errors
    /// [`Kind::BadFile`](crate::error::Kind::BadFile) if a file is malformed or names an end token that is not an id.
    pub fn gather(
        config: Option<&str>,
        generation_config: Option<&str>,
        tokenizer: &Tokenizer,
        template: Option<&ChatTemplate>,
    ) -> Result<StopSet> {
        let mut set = StopSet::default();
        for (file, text) in [("config.json", config), ("generation_config.json", generation_config)]
        {
            let Some(text) = text else { continue };
            let value: Value = serde_json::from_str(text)
                .map_err(|e| malformed(file, &visible(&e.to_string())))?;
            // Models with several parts keep their text part's settings apart.
            for value in [&value["eos_token_id"], &value["text_config"]["eos_token_id"]] {
                set.add_ids(file, value)?;
            }
        }
        if let Some(id) = tokenizer.named("eos_token").and_then(|token| tokenizer.id(token)) {
            set.add(id, "tokenizer_config.json");
        }
        if let Some(id) = template.and_then(|template| turn_end(template, tokenizer)) {
            set.add(id, "chat template");
        }
        Ok(set)
    }

    fn add_ids(&mut self, file: &'static str, value: &Value) -> Result<()> {
        let one = std::slice::from_ref(value);
        let list = match value {
            Value::Null => return Ok(()),
            Value::Array(list) => list.as_slice(),
            _ => one,
        };
        for id in list {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let wrong = || malformed(file, "eos_token_id is neither an id nor a list of ids");
            self.add(id.ok_or_else(wrong)?, file);
        }
        Ok(())
    }

    fn add(&mut self, id: u32, origin: &'static str) {
        let origins = self.entries.entry(id).or_default();
        if !origins.contains(&origin) {
            origins.push(origin);
        }
    }

    /// Whether the id ends a reply.
    pub fn contains(&self, id: u32) -> bool {
        self.entries.contains_key(&id)
    }

    /// The ids with their origins, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[&'static str])> {
        self.entries.iter().map(|(id, origins)| (*id, origins.as_slice()))
    }

    /// Whether nothing but the length ends a reply.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn malformed(file: &str, why: &str) -> Error {
    Error::bad_file(
        "cannot tell where replies end",
        format!("{file}: {why}"),
        "correct the file, or get the model again",
    )
}

/// What the assistant says in the probe conversation: a word that no template contains.
const ANSWER: &str = "Xyzzyplugh";

/// The control token that a template puts after what the assistant said, nothing but blanks between.
///
/// A conversation that ends with the answer is tried first; templates that leave the last turn open get a question
/// after it.
fn turn_end(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<u32> {
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let closed = vec![turn("user", "Hi"), turn("assistant", ANSWER)];
    let followed = [closed.clone(), vec![turn("user", "And?")]].concat();
    [closed, followed].iter().find_map(|messages| {
        let rendered = template.render(messages, false, &Map::new()).ok()?;
        let after = rendered.text.rfind(ANSWER)? + ANSWER.len();
        let tail = rendered.text[after..].trim_start();
        let at = rendered.text.len() - tail.len();
        let (id, n) = template.control_token_at(tail)?;
        // A question that quotes a control token would not be the template's.
        let ours = rendered.authors.least(&(at..at + n)) == Author::Template;
        (ours && tokenizer.token(id).is_some()).then_some(id)
    })
}
