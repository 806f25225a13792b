//! From a store to something that runs: checks names and shapes once, so that backends need not.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::protocol::{Ask, Explained, Load, Loaded, Message, Overflow, Phase, Prompt, Variant};
use super::session::{self, Session};
use super::thinking::Thinking;
use super::weights::Opened;
use crate::backend::{self, Backend, Device};
use crate::codec::Format;
use crate::error::{Error, Kind, Result, visible};
use crate::model::op::Sampling;
use crate::model::program::Program;
use crate::store::{Entry, Store, Texts, demo};
use crate::text::{ChatTemplate, StopSet, Tokenizer, template};

/// Context reserved when nobody says how much, unless the model's own is smaller.
const DEFAULT_CONTEXT: u32 = 8192;

/// Everything about a model that is text.
pub struct Words {
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// Messages to text; or why this model cannot chat, which matters only when somebody wants it to.
    pub template: Result<ChatTemplate>,
    /// What ends a reply.
    pub stops: StopSet,
}

/// A model that can answer.
pub(super) struct Model {
    pub loaded: Loaded,
    pub program: Arc<Program>,
    pub backend: Box<dyn Backend>,
    pub tokenizer: Arc<Tokenizer>,
    pub session: Session,
    template: Result<ChatTemplate>,
    stops: StopSet,
}

/// A prompt as tokens.
pub(super) struct Prepared {
    pub tokens: Vec<u32>,
    /// How many there were before some were left out.
    pub whole: usize,
    /// Whether the prompt leaves a thinking tag open.
    pub thinking: bool,
}

impl Variant {
    /// How these weights are stored: one packed tensor makes them lossless.
    pub fn of(entries: &[Entry]) -> Variant {
        let plain = entries.iter().all(|e| e.format == Format::Bf16);
        if plain { Variant::Bf16 } else { Variant::Lossless }
    }
}

/// Opens a model file or directory; `None` is the built-in one.
pub fn open_store(path: Option<&Path>) -> Result<Store> {
    match path {
        Some(path) => Store::open(path),
        None => demo::open(),
    }
}

impl Model {
    /// Loads. `progress` hears of bytes done and in all, and ends the loading by an error.
    pub fn open(
        load: &Load,
        progress: &mut dyn FnMut(Phase, u64, u64) -> Result<()>,
    ) -> Result<Model> {
        let start = Instant::now();
        let check = &mut |done, of| progress(Phase::Check, done, of);
        let opened = Opened::read(load, check)?;
        let Opened { store, program, variant, .. } = &opened;
        let name = load.name.clone();
        let failed = |e: Error| e.while_doing(format!("cannot load {}", visible(&name)));
        let words = Words::read(store.texts(), load.chat_template.as_deref()).map_err(failed)?;
        let vocab = program.config.vocab;
        if words.tokenizer.vocab_size() > vocab {
            return Err(failed(Error::bad_file(
                "the tokenizer does not fit the model",
                format!(
                    "it has ids up to {}, the embedding has {vocab} rows",
                    words.tokenizer.vocab_size() - 1
                ),
                "get the model again",
            )));
        }
        let defaults = defaults(store.texts().generation_config.as_deref()).map_err(failed)?;
        // A script computes nothing that a position could be too large for.
        let limit = match &load.device {
            Device::Scripted(_) => u32::MAX,
            _ => program.config.max_positions,
        };
        let context = match load.context {
            Some(wanted) => session::check_context(wanted, limit)?,
            None => program.config.max_positions.min(DEFAULT_CONTEXT),
        };
        let stored_bytes = store.entries().iter().map(|e| e.bytes).sum();
        let setup = backend::Setup { context, threads: load.threads };
        let upload = &mut |done, of| progress(Phase::Upload, done, of);
        let backend = opened.backend(&load.device, &setup, upload)?;
        let loaded = Loaded {
            name,
            variant: variant.name().into(),
            card: backend.card(),
            context,
            context_limit: limit,
            weight_bytes: if opened.packs { backend.ledger().weights } else { stored_bytes },
            packed_from: opened.packs.then_some(stored_bytes),
            parameters: program.parameters(),
            defaults,
            stops: words.stop_list(),
            took: start.elapsed(),
            ledger: backend.ledger(),
            bytes_per_token: backend.bytes_per_token(0),
        };
        Ok(Model {
            loaded,
            program: opened.program,
            backend,
            tokenizer: Arc::new(words.tokenizer),
            session: Session::new(context),
            template: words.template,
            stops: words.stops,
        })
    }

    /// Whether the step after the next token may be queued before that token is known.
    pub fn runs_ahead(&self, ask: &Ask) -> bool {
        self.backend.runs_ahead() && ask.logprobs == 0
    }

    /// The prompt of an ask, token by token.
    pub fn explain(&self, ask: &Ask) -> Result<Explained> {
        let ids = self.tokens_of(&ask.prompt, ask)?.tokens;
        let shared = self.session.cached().iter().zip(&ids).take_while(|(a, b)| a == b).count();
        let token = |id: &u32| {
            let text = String::from_utf8_lossy(self.tokenizer.token_bytes(*id)).into_owned();
            let special = self.tokenizer.is_special(*id);
            let name = || self.tokenizer.token(*id).unwrap_or_default();
            (*id, if special { name() } else { text }, special)
        };
        let tokens = ids.iter().map(token).collect();
        Ok(Explained { tokens, cached: shared, sampling: ask.sampling.clone() })
    }

    /// Whether a token ends a reply.
    pub fn is_stop(&self, id: u32) -> bool {
        self.stops.contains(id)
    }

    /// The tokens of a prompt, made to fit as the ask says.
    pub fn prepare(&self, ask: &Ask) -> Result<Prepared> {
        check_biases(&ask.sampling, self.program.config.vocab)?;
        let prepared = self.tokens_of(&ask.prompt, ask)?;
        let capacity = self.session.capacity();
        let whole = prepared.whole;
        if whole == 0 {
            return Err(Error::new(
                Kind::Usage,
                "cannot answer an empty prompt",
                "it has no tokens",
                "say something",
            ));
        }
        let room = session::room(capacity, ask.max_tokens);
        let fits = whole as u64 <= u64::from(capacity);
        match ask.overflow {
            Overflow::Refuse if fits => Ok(prepared),
            Overflow::Refuse => Err(session::too_long(whole, capacity, self.loaded.context_limit)),
            Overflow::TruncateMiddle if fits => Ok(prepared),
            Overflow::TruncateMiddle => {
                let tokens = session::cut_middle(&prepared.tokens, capacity, room);
                Ok(Prepared { tokens, ..prepared })
            }
            Overflow::Shift if whole as u64 + u64::from(room) <= u64::from(capacity) => {
                Ok(prepared)
            }
            Overflow::Shift => self.shifted(prepared, ask, capacity, room),
        }
    }

    fn tokens_of(&self, prompt: &Prompt, ask: &Ask) -> Result<Prepared> {
        let (tokens, thinking) = match prompt {
            Prompt::Raw(text) => (self.tokenizer.encode_raw(text)?, false),
            Prompt::Chat(messages) => {
                let template = self.template.as_ref().map_err(Error::clone)?;
                let kwargs = ask.template_kwargs.as_deref();
                let (text, ids) = chat_ids(&self.tokenizer, template, messages, kwargs)?;
                (ids, Thinking::opened_by(&text))
            }
            Prompt::Continue(messages, begun) => {
                let template = self.template.as_ref().map_err(Error::clone)?;
                let kwargs = ask.template_kwargs.as_deref();
                let (_, mut ids) = chat_ids(&self.tokenizer, template, messages, kwargs)?;
                ids.extend(self.tokenizer.encode_raw(begun)?);
                (ids, false)
            }
        };
        let whole = tokens.len();
        Ok(Prepared { tokens, whole, thinking })
    }

    /// Leaves out the oldest turns after the system message until the rest fits with some room; of a raw prompt, the
    /// oldest tokens.
    fn shifted(&self, all: Prepared, ask: &Ask, capacity: u32, room: u32) -> Result<Prepared> {
        let keep = (capacity - room) as usize;
        let messages = match &ask.prompt {
            Prompt::Chat(messages) | Prompt::Continue(messages, _) => messages,
            Prompt::Raw(_) => {
                let from = all.tokens.len().saturating_sub(keep);
                return Ok(Prepared { tokens: all.tokens[from..].to_vec(), ..all });
            }
        };
        let head = messages.iter().take_while(|m| m.role == "system").count();
        // A turn begins with what the user says.
        let starts = (head + 1..messages.len()).filter(|i| messages[*i].role == "user");
        let mut shortest = None;
        for start in starts {
            let shorter = [&messages[..head], &messages[start..]].concat();
            let prompt = match &ask.prompt {
                Prompt::Continue(_, begun) => Prompt::Continue(shorter, begun.clone()),
                _ => Prompt::Chat(shorter),
            };
            let prepared = self.tokens_of(&prompt, ask)?;
            let fits = prepared.whole <= keep;
            let prepared = Prepared { whole: all.whole, ..prepared };
            if fits {
                return Ok(prepared);
            }
            shortest = Some(prepared);
        }
        if all.whole <= capacity as usize {
            return Ok(all);
        }
        // Without the room that was wished for, but with all of the last turn.
        match shortest {
            Some(prepared) if prepared.tokens.len() <= capacity as usize => Ok(prepared),
            Some(prepared) => {
                let tokens = prepared.tokens.len();
                Err(session::too_long(tokens, capacity, self.loaded.context_limit))
            }
            None => Err(session::too_long(all.whole, capacity, self.loaded.context_limit)),
        }
    }
}

impl Words {
    /// Reads a model's texts. `template` replaces the model's own.
    ///
    /// # Errors
    /// `BadFile`. A model whose own template is missing or cannot be used is none: it can still continue plain text.
    pub fn read(texts: &Texts, template: Option<&str>) -> Result<Words> {
        let tokenizer = Tokenizer::new(&texts.tokenizer, texts.tokenizer_config.as_deref())?;
        let template = match template {
            Some(given) => Ok(ChatTemplate::new(given, &tokenizer)?),
            None => template_source(texts).and_then(|own| ChatTemplate::new(&own, &tokenizer)),
        };
        let generation = texts.generation_config.as_deref();
        let known = template.as_ref().ok();
        let stops = StopSet::gather(Some(&texts.config), generation, &tokenizer, known)?;
        Ok(Words { tokenizer, template, stops })
    }

    /// The ids that end a reply, and where each came from.
    pub fn stop_list(&self) -> Vec<(u32, String)> {
        self.stops.iter().map(|(id, origins)| (id, origins.join(", "))).collect()
    }

    /// The rendered prompt of a chat and its ids. `kwargs` is a JSON object.
    pub fn chat(&self, messages: &[Message], kwargs: Option<&str>) -> Result<(String, Vec<u32>)> {
        let template = self.template.as_ref().map_err(Error::clone)?;
        chat_ids(&self.tokenizer, template, messages, kwargs)
    }
}

/// The text of a model's own chat template.
///
/// # Errors
/// `BadFile`, saying why there is none.
pub fn template_source(texts: &Texts) -> Result<String> {
    template::find(texts.chat_template.as_deref(), texts.tokenizer_config.as_deref())
}

fn chat_ids(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    kwargs: Option<&str>,
) -> Result<(String, Vec<u32>)> {
    let messages: Vec<Value> =
        messages.iter().map(|m| json!({ "role": m.role, "content": m.content })).collect();
    let variables: Map<String, Value> = match kwargs {
        None => Map::new(),
        Some(text) => serde_json::from_str(text).map_err(|e| {
            Error::new(
                Kind::Usage,
                "cannot use the variables of the chat template",
                format!("they are not a JSON object: {}", visible(&e.to_string())),
                r#"write them like {"enable_thinking": false}"#,
            )
        })?,
    };
    let rendered = template.render(&messages, true, &variables)?;
    let ids = rendered.encode(tokenizer)?;
    Ok((rendered.text, ids))
}

fn check_biases(sampling: &Sampling, vocab: u32) -> Result<()> {
    match sampling.logit_bias.iter().find(|(id, _)| *id >= vocab) {
        None => Ok(()),
        Some((id, _)) => Err(Error::new(
            Kind::Usage,
            "cannot set a logit bias",
            format!("there is no token {id}; the last is {}", vocab - 1),
            "`snug tokens MODEL TEXT` shows ids",
        )),
    }
}

/// The sampler that generation_config.json asks for. A file without `do_sample: true` asks for greedy, as in the library
/// that defined it.
fn defaults(generation_config: Option<&str>) -> Result<Sampling> {
    let Some(text) = generation_config else { return Ok(Sampling::default()) };
    let bad = |why: String| {
        Error::bad_file("cannot read generation_config.json", why, "correct the file, or remove it")
    };
    let json: Value = serde_json::from_str(text).map_err(|e| bad(visible(&e.to_string())))?;
    let number = |key: &str, low: f64, high: f64| match json.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64().filter(|x| (low..=high).contains(x)) {
            Some(x) => Ok(Some(x)),
            None => Err(bad(format!(
                "{key} is {}, not a number from {low} to {high}",
                visible(&value.to_string())
            ))),
        },
    };
    let samples = json.get("do_sample").and_then(Value::as_bool).unwrap_or(false);
    let base = Sampling::default();
    let temperature = number("temperature", 0.0, 1e6)?.unwrap_or(1.0) as f32;
    // The library that defined these files uses 50 when top_k is absent.
    let top_k = number("top_k", 0.0, f64::from(u32::MAX))?.unwrap_or(50.0) as u32;
    let top_p = number("top_p", 0.0, 1.0)?.filter(|p| *p > 0.0).unwrap_or(1.0) as f32;
    let min_p = number("min_p", 0.0, 1.0)?.unwrap_or(0.0) as f32;
    let repeat_penalty = number("repetition_penalty", 1e-3, 1e3)?.unwrap_or(1.0) as f32;
    // There it looks at everything; here the default window applies only when the file says nothing.
    let repeat_last_n = if repeat_penalty == 1.0 { base.repeat_last_n } else { 0 };
    let chosen = Sampling { repeat_penalty, repeat_last_n, ..base };
    Ok(match samples {
        true => Sampling { temperature, top_k, top_p, min_p, ..chosen },
        false => chosen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_config_sets_the_sampler() {
        let read = |text| defaults(Some(text)).unwrap();
        let s = read(
            r#"{"do_sample":true,"temperature":0.7,"top_p":0.9,"top_k":40,"max_new_tokens":320}"#,
        );
        assert_eq!((s.temperature, s.top_p, s.top_k), (0.7, 0.9, 40));
        assert_eq!(read(r#"{"do_sample":true}"#).top_k, 50);
        assert_eq!(read(r#"{"temperature":0.7}"#), Sampling::default());
        let s = read(r#"{"repetition_penalty":1.1}"#);
        assert_eq!((s.temperature, s.repeat_penalty, s.repeat_last_n), (0.0, 1.1, 0));
        for bad in ["{", r#"{"temperature":"x"}"#, r#"{"top_p":-1}"#, r#"{"top_k":1e12}"#] {
            assert_eq!(defaults(Some(bad)).unwrap_err().kind, Kind::BadFile, "{bad}");
        }
    }
}
