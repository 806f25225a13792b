//! Chat templates: messages to a prompt, exactly as Hugging Face's Jinja environment renders them.
//!
//! The engine is minijinja with the settings of that environment (`trim_blocks`, `lstrip_blocks`, no escaping, the
//! default `Undefined`) and what it adds or does otherwise: `tojson` ([`json`]), `strftime_now` ([`clock`]),
//! `raise_exception`, filters and tests ([`builtins`]), methods of `str` ([`methods`]), `{% generation %}` and
//! `'…' % x` ([`source`]). A template is
//! someone else's program, so it runs on a budget. When it fails there is no other prompt: the error says where.

mod bounds;
mod builtins;
mod clock;
mod json;
mod lexer;
mod methods;
mod paint;
mod source;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::civil::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

use self::paint::{Extent, Guard, Paint};
use self::source::Rewritten;
use super::added::Authors;
use super::tokens::Tokenizer;
use crate::error::{Error, Kind, Result, visible};

/// Units of work for a template, before what its input adds (one is about an instruction or 64 bytes).
const FUEL: u64 = 400_000;

/// Further units, one for so many bytes of input.
const BYTES_PER_FUEL: u64 = 2;

/// Templates beyond this are refused; published ones have tens of kilobytes.
const MAX_SOURCE_BYTES: usize = 1 << 19;

/// The engine counts lines and columns in 16 bits.
const MAX_LINES: usize = 65_000;

/// Stack of the thread that compiles or renders. Values nest at most [`bounds::MAX_DEPTH`] deep where they are kept,
/// but one expression may stack up lazy lists, one for every two units of fuel, and each takes some hundred bytes
/// when it is walked. The system only backs what is touched.
const STACK_BYTES: usize = 64 << 20;
const STACK_BYTES_PER_FUEL: usize = 512;

/// How deep macros and loops may recurse.
const MAX_RECURSION: usize = 120;

/// The template's name inside the engine.
const NAME: &str = "chat template";

/// Finds the template of a model: the file chat_template.jinja if there is one, else what tokenizer_config.json has
/// (a text, or a list of `{name, template}` of which `default` is taken).
///
/// # Errors
/// [`Kind::BadFile`] if there is none.
pub fn find(jinja_file: Option<&str>, tokenizer_config: Option<&str>) -> Result<String> {
    let none = |why: &str| {
        Error::bad_file(
            "cannot chat with this model",
            why,
            "continue a text with --raw, or give a template with --chat-template FILE",
        )
    };
    if let Some(text) = jinja_file {
        return Ok(text.to_owned());
    }
    let config: Value = match tokenizer_config {
        None => Value::Null,
        Some(text) => serde_json::from_str(text).map_err(|e| {
            Error::bad_file(
                "cannot use the tokenizer",
                format!("tokenizer_config.json: {}", visible(&e.to_string())),
                "get the model again",
            )
        })?,
    };
    match &config["chat_template"] {
        Value::String(text) => Ok(text.clone()),
        Value::Array(list) => {
            let default = list.iter().find(|entry| entry["name"] == "default");
            match default.and_then(|entry| entry["template"].as_str()) {
                Some(text) => Ok(text.to_owned()),
                None => {
                    let names = list.iter().filter_map(|entry| entry["name"].as_str());
                    let names = visible(&names.collect::<Vec<_>>().join(", "));
                    Err(none(&format!(
                        "it has the chat templates {names}, and none is called default"
                    )))
                }
            }
        }
        Value::Null => Err(none("it has no chat template")),
        _ => Err(none("its chat template is not a text")),
    }
}

/// A prompt: its text, and who wrote which byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt, character for character what Python's Jinja gives.
    pub text: String,
    /// Who wrote it.
    pub authors: Authors,
    markers: Arc<[u32]>,
}

impl Rendered {
    /// The prompt's ids. Special tokens are recognised where the template wrote them, nowhere else.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        tokenizer.encode(&self.text, &self.authors, &self.markers)
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    guard: Guard,
    /// `bos_token` and the like, as the tokenizer names them.
    named: Map<String, Value>,
    markers: Arc<[u32]>,
    /// What `strftime_now` formats during a rendering.
    now: Arc<Mutex<DateTime>>,
    /// Instead of the time of day, for tests.
    fixed: Option<DateTime>,
    source: String,
    rewritten: Rewritten,
}

/// Marks an error that the template raised on purpose.
#[derive(Debug)]
struct Raised;

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raised by the template")
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: minijinja::Value) -> Result<minijinja::Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.to_string()).with_source(Raised))
}

fn environment(now: &Arc<Mutex<DateTime>>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(MAX_RECURSION);
    builtins::register(&mut environment);
    bounds::register(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    let now = now.clone();
    environment.add_function("strftime_now", move |pattern: &str| {
        let now = *now.lock().unwrap_or_else(PoisonError::into_inner);
        clock::strftime(now, pattern)
    });
    environment
}

impl ChatTemplate {
    /// Compiles a template for a tokenizer, whose special tokens it may use.
    ///
    /// # Errors
    /// [`Kind::BadFile`] with line and column if the template is malformed.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let now = Arc::new(Mutex::new(DateTime::default()));
        let mut environment = environment(&now);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        if source.len() > MAX_SOURCE_BYTES {
            return Err(broken(format!("it is longer than {MAX_SOURCE_BYTES} bytes")));
        }
        let source = source::one_line_end(source).into_owned();
        let rewritten = source::rewrite(&source).map_err(|(at, why)| {
            let (line, column) = place(&source, at).unwrap_or((1, 1));
            broken(format!("line {line}, column {column}: {why}"))
        })?;
        let lines = rewritten.text.lines();
        if lines.clone().count() > MAX_LINES || lines.map(str::len).any(|n| n > MAX_LINES) {
            return Err(broken(format!("it has more than {MAX_LINES} lines, or a line that long")));
        }
        let compiled = on_large_stack(STACK_BYTES + STACK_BYTES_PER_FUEL * source.len(), || {
            environment.set_syntax(syntax?);
            environment.add_template_owned(NAME, rewritten.text.clone())
        });
        compiled?.map_err(|e| failure(&e, &source, &rewritten))?;
        let guard = Guard::new(tokenizer, &source);
        let named = tokenizer.named_tokens();
        Ok(ChatTemplate {
            environment,
            named: named.map(|(name, token)| (name.to_owned(), token.into())).collect(),
            markers: guard.markers.as_slice().into(),
            guard,
            now,
            fixed: None,
            source,
            rewritten,
        })
    }

    /// Gives `strftime_now` a fixed time instead of the present.
    #[must_use]
    pub fn with_clock(mut self, now: DateTime) -> ChatTemplate {
        self.fixed = Some(now);
        self
    }

    /// Renders messages, each an object with `role`, `content` and whatever else the template reads. `variables`
    /// are passed on and win over the tokenizer's (`bos_token` …); `tools` and `documents` are `None` unless among
    /// them.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the template refuses the messages with `raise_exception`, [`Kind::BadFile`] for every
    /// other failure; both with the line.
    pub fn render(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<Rendered> {
        let present = self.fixed.unwrap_or_else(|| jiff::Zoned::now().datetime());
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = present;
        let messages: Vec<Value> = messages.iter().map(as_templates_expect).collect();
        let text = self.run(&messages, add_generation_prompt, variables, None)?;
        let authors = self.authors(&text, &messages, add_generation_prompt, variables)?;
        Ok(Rendered { text, authors, markers: self.markers.clone() })
    }

    /// The control token that a text begins with: its id and length.
    pub(super) fn control_token_at(&self, text: &str) -> Option<(u32, usize)> {
        self.guard.token_at(text)
    }

    /// Finds out who wrote which byte of `text`, the result of rendering these messages.
    fn authors(
        &self,
        text: &str,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<Authors> {
        let mut texts = vec![text];
        messages.iter().for_each(|message| strings(message, &mut texts));
        variables.values().for_each(|value| strings(value, &mut texts));
        let paint = Paint::new(&self.guard, &texts);
        for extent in Extent::ALL {
            let Some(paint) = paint.as_ref().map(|paint| paint.with(extent)) else { break };
            let painted: Vec<Value> = messages.iter().map(|m| paint.message(m)).collect();
            // A template may fail on painted text (a check of its own); then less is painted.
            let painted_variables = paint.variables(variables);
            let result =
                self.run(&painted, add_generation_prompt, &painted_variables, Some(paint.codes()));
            if let Some(authors) = result.ok().and_then(|result| paint.authors(text, &result)) {
                return Ok(authors);
            }
        }
        Err(Error::new(
            Kind::Usage,
            "cannot tell message and template apart",
            "a message contains special tokens of the model, and the chat template depends on them",
            "take the special tokens out of the message",
        ))
    }

    fn run(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
        paint: Option<Range<u32>>,
    ) -> Result<String> {
        let mut context = self.named.clone();
        for name in ["tools", "documents"] {
            context.insert(name.to_owned(), Value::Null);
        }
        context.extend(variables.iter().map(|(key, value)| (key.clone(), value.clone())));
        let mut texts = Vec::new();
        messages.iter().chain(context.values()).for_each(|value| strings(value, &mut texts));
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let values = messages.iter().chain(context.values()).map(count).sum::<usize>();
        let limits = [bounds::MAX_VALUES + 4 * values, bounds::MAX_BYTES + 4 * bytes];
        context.insert(bounds::LIMITS.to_owned(), limits.to_vec().into());
        context.insert("messages".to_owned(), messages.to_vec().into());
        context.insert("add_generation_prompt".to_owned(), add_generation_prompt.into());
        if let Some(codes) = paint {
            context.insert(json::PAINT.to_owned(), vec![codes.start, codes.end].into());
        }

        let fuel = FUEL + (bytes + self.source.len()) as u64 / BYTES_PER_FUEL;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let stack = STACK_BYTES + STACK_BYTES_PER_FUEL.saturating_mul(fuel as usize);
        let result =
            on_large_stack(stack, || environment.get_template(NAME)?.render(Serde(&context)));
        result?.map_err(|e| failure(&e, &self.source, &self.rewritten))
    }
}

/// Runs `work` on a thread of its own with so much stack.
fn on_large_stack<T: Send>(stack_bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
    let failed = |why: String| {
        Error::new(
            Kind::DoesNotFit,
            "cannot run the chat template",
            why,
            "free some memory, or allow the process more (ulimit -v)",
        )
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack_bytes);
        let thread = thread.spawn_scoped(scope, work);
        let thread = thread.map_err(|e| failed(format!("a thread for it does not start: {e}")))?;
        thread.join().map_err(|_| broken("the template engine failed on it"))
    })
}

/// What Hugging Face does to messages before a template sees them: fields without value are dropped, and reasoning
/// is found under each of its names.
fn as_templates_expect(message: &Value) -> Value {
    let Value::Object(fields) = message else { return message.clone() };
    let mut fields = fields.clone();
    fields.retain(|_, value| !value.is_null());
    let names = ["reasoning_content", "thinking", "reasoning"];
    if let Some(reasoning) = names.iter().find_map(|name| fields.get(*name)).cloned() {
        // The order counts: templates print whole messages as JSON.
        let mut ordered = Map::new();
        ordered.insert("thinking".to_owned(), reasoning.clone());
        ordered.extend(fields);
        ordered.insert("reasoning_content".to_owned(), reasoning);
        fields = ordered;
    }
    Value::Object(fields)
}

/// Collects every text inside a value.
fn strings<'a>(value: &'a Value, into: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => into.push(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, into)),
        Value::Object(fields) => fields.values().for_each(|field| strings(field, into)),
        _ => {}
    }
}

/// How many values a value consists of.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(|field| 1 + count(field)).sum(),
        _ => 0,
    }
}

/// Line and column (from 1) of a byte of a text.
fn place(source: &str, at: usize) -> Option<(usize, usize)> {
    let before = source.get(..at)?;
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Some((line, column))
}

/// An error of the engine in our words: what, and where in the template.
fn failure(e: &minijinja::Error, source: &str, rewritten: &Rewritten) -> Error {
    let at = e.range().and_then(|range| place(source, rewritten.origin(range.start)));
    let at = match (at, e.line()) {
        (Some((line, column)), Some(known)) if line == known => {
            format!("line {line}, column {column}: ")
        }
        (_, Some(line)) => format!("line {line}: "),
        _ => String::new(),
    };
    let raised = std::error::Error::source(e).is_some_and(|source| source.is::<Raised>());
    if raised {
        return Error::new(
            Kind::Usage,
            "the chat template refuses these messages",
            format!("{at}{}", visible(e.detail().unwrap_or("it gives no reason"))),
            "change the messages as it says, or give another template with --chat-template FILE",
        );
    }
    let why = match (e.kind(), e.detail()) {
        (ErrorKind::OutOfFuel, _) => {
            "it does not come to an end, or makes too much text".to_owned()
        }
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    broken(format!("{at}{}", visible(&why)))
}

fn broken(why: impl Into<String>) -> Error {
    Error::bad_file(
        "cannot use the chat template",
        why,
        "give another template with --chat-template FILE, or continue a text with --raw",
    )
}
