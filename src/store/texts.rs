//! The text files of a model: which there are, how long they may be, what is checked.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::Input;
use crate::error::{Error, Result, visible};

/// Longest text, in bytes; the largest tokenizers in use take about half of it.
pub const MAX_TEXT: u64 = 64 << 20;

/// The text files of a model, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// `config.json`
    pub config: String,
    /// `generation_config.json`
    pub generation_config: Option<String>,
    /// `tokenizer.json`
    pub tokenizer: String,
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<String>,
    /// `chat_template.jinja`; the template inside `tokenizer_config.json` is used when there is none.
    pub chat_template: Option<String>,
}

impl Texts {
    /// Every file name, sorted.
    pub const NAMES: [&'static str; 5] = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];

    /// The files there are, sorted by name.
    pub fn files(&self) -> Vec<(&'static str, &str)> {
        let texts = [
            self.chat_template.as_deref(),
            Some(self.config.as_str()),
            self.generation_config.as_deref(),
            Some(self.tokenizer.as_str()),
            self.tokenizer_config.as_deref(),
        ];
        Texts::NAMES.into_iter().zip(texts).filter_map(|(n, t)| Some((n, t?))).collect()
    }

    /// Puts the files together and checks them.
    ///
    /// # Errors
    /// `BadFile` when `config.json` or `tokenizer.json` is missing, a text is too long, or a `.json` is no JSON object.
    pub fn from_files(mut file: impl FnMut(&str) -> Result<Option<String>>) -> Result<Texts> {
        let [template, config, generation_config, tokenizer, tokenizer_config] = Texts::NAMES;
        let must = |name: &str, text: Option<String>| {
            text.ok_or_else(|| bad(name, "it is missing", "get the complete model"))
        };
        let texts = Texts {
            config: must(config, file(config)?)?,
            generation_config: file(generation_config)?,
            tokenizer: must(tokenizer, file(tokenizer)?)?,
            tokenizer_config: file(tokenizer_config)?,
            chat_template: file(template)?,
        };
        texts.check()?;
        Ok(texts)
    }

    /// Checks lengths, and that every `.json` is a JSON object.
    ///
    /// # Errors
    /// `BadFile`, naming the file.
    pub fn check(&self) -> Result<()> {
        for (name, text) in self.files() {
            if text.len() as u64 > MAX_TEXT {
                let why = format!("it has {} bytes; {MAX_TEXT} are allowed", text.len());
                return Err(bad(name, why, "get the model again"));
            }
            if name.ends_with(".json") {
                // Tokenizers are large: their values are passed over, not built.
                parse::<HashMap<String, IgnoredAny>>(name, text)?;
            }
        }
        Ok(())
    }
}

/// Parses a JSON object.
pub(super) fn json_object(name: &str, text: &str) -> Result<Map<String, Value>> {
    parse(name, text)
}

fn parse<'a, T: Deserialize<'a>>(name: &str, text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| {
        bad(name, visible(&format!("it is no JSON object: {e}")), "get the model again")
    })
}

/// Reads a text file of a directory; `None` when there is none.
pub(super) fn read(dir: &Path, name: &str) -> Result<Option<String>> {
    let path = dir.join(name);
    match path.metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("cannot read {}", path.display()), &e)),
        Ok(_) => {}
    }
    let input = Input::open(&path)?;
    if input.len() > MAX_TEXT {
        let why = format!("it has {} bytes; {MAX_TEXT} are allowed", input.len());
        return Err(bad(name, why, "get the model again"));
    }
    let mut bytes = vec![0; input.len() as usize];
    input.read_at(0, &mut bytes)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(e) => {
            Err(bad(name, format!("it is not UTF-8: {}", e.utf8_error()), "get the model again"))
        }
    }
}

fn bad(name: &str, why: impl Into<String>, todo: &str) -> Error {
    Error::bad_file(format!("cannot use {name}"), why, todo)
}
