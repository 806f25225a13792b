//! Which added tokens a tokenizer has, from both of its files.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::added::AddedToken;
use super::tokens::{MAX_ID, broken};
use crate::error::{Result, visible};

/// Reads a token that is written as a string or as `{"content": …}`.
pub(super) fn token_entry(value: &Value) -> Option<AddedToken> {
    let mut token = match value {
        Value::String(content) => AddedToken {
            id: 0,
            content: content.clone(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        },
        _ => serde_json::from_value(value.clone()).ok()?,
    };
    token.special = true;
    (!token.content.is_empty()).then_some(token)
}

/// The added tokens of both files, by id: the configuration's flags win.
pub(super) struct AddedTable<'a> {
    pub inner: &'a tokenizers::Tokenizer,
    pub by_id: BTreeMap<u32, AddedToken>,
    pub ids: HashMap<String, u32>,
}

impl AddedTable<'_> {
    fn put(&mut self, token: AddedToken) -> Result<()> {
        if token.content.is_empty() {
            return Ok(());
        }
        let taken = self.by_id.get(&token.id).filter(|old| old.content != token.content);
        let moved = self.ids.get(&token.content).filter(|&&id| id != token.id);
        if taken.is_some() || moved.is_some() || token.id > MAX_ID {
            return Err(broken(format!(
                "the added token {} has id {}, which cannot be: the id is taken, too large, or the token has another",
                visible(&token.content),
                token.id
            )));
        }
        self.ids.insert(token.content.clone(), token.id);
        self.by_id.insert(token.id, token);
        Ok(())
    }

    /// Reads the tokens of tokenizer.json, whose ids must be those that the library gave them.
    pub fn read_file(&mut self, tokens: Vec<AddedToken>) -> Result<()> {
        for token in tokens {
            let id = self.inner.token_to_id(&token.content);
            if !token.content.is_empty() && id != Some(token.id) {
                let other = id.map_or("none".to_owned(), |id| id.to_string());
                return Err(broken(format!(
                    "tokenizer.json gives the added token {} the id {}, its vocabulary gives {other}",
                    visible(&token.content),
                    token.id,
                )));
            }
            self.put(token)?;
        }
        Ok(())
    }

    /// Reads `added_tokens_decoder`.
    pub fn read_decoder(&mut self, map: &Value) -> Result<()> {
        for (key, value) in map.as_object().into_iter().flatten() {
            let id = key.parse().ok();
            let token: Option<AddedToken> = serde_json::from_value(value.clone()).ok();
            let (Some(id), Some(mut token)) = (id, token) else {
                return Err(broken(format!(
                    "entry {} of added_tokens_decoder is malformed",
                    visible(key)
                )));
            };
            token.id = self.inner.token_to_id(&token.content).unwrap_or(id);
            self.put(token)?;
        }
        Ok(())
    }

    /// Marks a token as special; one that is in no vocabulary has no id and is left out.
    pub fn mark(&mut self, mut token: AddedToken) -> Result<()> {
        if let Some(&id) = self.ids.get(&token.content) {
            if let Some(known) = self.by_id.get_mut(&id) {
                known.special = true;
            }
        } else if let Some(id) = self.inner.token_to_id(&token.content) {
            token.id = id;
            self.put(token)?;
        }
        Ok(())
    }
}
