//! `snug run --jsonl`: the model is loaded once, requests come a line at a time, and every one gets one line back, in
//! order. A bad request is an error record, not the end.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::globals::Context;
use super::input::{self, Arriving};
use super::output::{Exit, Outcome, error_record, note};
use super::reading::PromptArgs;
use super::replies::Answering;
use super::run::ReplyArgs;
use super::{records, sampling};
use crate::engine::protocol::{Ask, Event, Message, Prompt};
use crate::error::{Error, Kind, Result, visible};

/// How often to look for signals while waiting for a line.
const TICK: Duration = Duration::from_millis(50);

/// One line of requests. What it leaves out comes from the command line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    id: Option<Value>,
    prompt: Option<String>,
    messages: Option<Vec<MessageJson>>,
    system: Option<String>,
    raw: Option<bool>,
    max_tokens: Option<u32>,
    stop: Option<OneOrMany>,
    ignore_eos: Option<bool>,
    logprobs: Option<u32>,
    chat_template_kwargs: Option<serde_json::Map<String, Value>>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<u32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<serde_json::Map<String, Value>>,
    seed: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageJson {
    role: String,
    content: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// The work on a stream of requests.
struct Batch<'a> {
    defaults: &'a ReplyArgs,
    system: Option<String>,
    lossy: bool,
    answering: Answering,
    /// Lines read.
    line: u64,
    /// Requests among them.
    asked: u64,
    failed: u64,
}

pub(super) fn main(
    defaults: &ReplyArgs,
    system: Option<String>,
    lossy: bool,
    answering: Answering,
    cx: &mut Context,
) -> Outcome {
    let mut batch = Batch { defaults, system, lossy, answering, line: 0, asked: 0, failed: 0 };
    let arriving = Arriving::start()?;
    let mut waiting: Vec<u8> = Vec::new();
    let mut ended = false;
    while !ended {
        match arriving.next(TICK) {
            Ok(Some(bytes)) => waiting.extend_from_slice(&bytes),
            Ok(None) => ended = true,
            Err(Some(e)) => return Err(e.into()),
            Err(None) => {}
        }
        cx.signals.check()?;
        let complete = match waiting.iter().rposition(|b| *b == b'\n') {
            _ if ended => waiting.len(),
            Some(at) => at + 1,
            None => 0,
        };
        let lines: Vec<u8> = waiting.drain(..complete).collect();
        for line in lines.split_inclusive(|b| *b == b'\n') {
            batch.take(line, cx)?;
        }
    }
    if batch.failed > 0 {
        let (failed, asked) = (batch.failed, batch.asked);
        note(format!("snug: {failed} of {asked} requests failed; their records say why"));
        return Err(Exit::Told(Kind::Failure));
    }
    Ok(())
}

impl Batch<'_> {
    /// Answers one line.
    fn take(&mut self, line: &[u8], cx: &mut Context) -> Outcome {
        cx.signals.check()?;
        self.line += 1;
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        self.asked += 1;
        let request = match parse(line, self.lossy) {
            Ok(request) => request,
            Err(e) => return self.refuse(&e, None, cx),
        };
        let id = request.id.clone();
        match ask(request, self.defaults, self.system.clone(), &self.answering) {
            Ok(ask) => self.reply(ask, id.as_ref(), cx),
            Err(e) => self.refuse(&e, id.as_ref(), cx),
        }
    }

    fn refuse(&mut self, e: &Error, id: Option<&Value>, cx: &mut Context) -> Outcome {
        self.failed += 1;
        cx.out.json(&stamped(error_record(e), id, self.line))
    }

    fn reply(&mut self, ask: Ask, id: Option<&Value>, cx: &mut Context) -> Outcome {
        let (seed, sampler) = (ask.sampling.seed, sampling::to_json(&ask.sampling));
        let wants_tokens = ask.logprobs > 0;
        let mut tokens = Vec::new();
        let reply = self.answering.ask(ask, &mut |event| {
            if let Event::Token(token) = event
                && wants_tokens
            {
                tokens.push(records::token(tokens.len(), token));
            }
            Ok(())
        })?;
        let failure = reply.failure(&cx.signals);
        let mut record = match &failure {
            Some(e) if reply.stats.completion_tokens == 0 => error_record(e),
            _ => records::end(&self.answering.loaded, &reply),
        };
        if let (Some(e), Some("end")) = (&failure, record["type"].as_str()) {
            record["error"] = error_record(e);
        }
        record["seed"] = json!(seed);
        record["sampler"] = sampler;
        if wants_tokens {
            record["tokens"] = Value::Array(tokens);
        }
        self.failed += u64::from(failure.is_some());
        cx.out.json(&stamped(record, id, self.line))?;
        match cx.signals.reason() {
            Some(kind) => Err(Exit::Told(kind)),
            None => Ok(()),
        }
    }
}

/// Adds what tells which request a record answers.
fn stamped(mut record: Value, id: Option<&Value>, line: u64) -> Value {
    record["line"] = json!(line);
    record["id"] = id.cloned().unwrap_or(Value::Null);
    record
}

fn bad(why: impl Into<String>) -> Error {
    Error::new(
        Kind::Usage,
        "cannot read a request",
        why,
        "write {\"prompt\": \"…\"} or {\"messages\": [{\"role\": …, \"content\": …}]}, one a line",
    )
}

fn parse(line: &[u8], lossy: bool) -> Result<Request> {
    let text = input::decode(line.to_vec(), "a request", lossy)?;
    serde_json::from_str(&text).map_err(|e| bad(visible(&e.to_string())))
}

fn ask(
    r: Request,
    defaults: &ReplyArgs,
    system: Option<String>,
    answering: &Answering,
) -> Result<Ask> {
    let raw = r.raw.unwrap_or(defaults.is_raw());
    let system = r.system.or(system);
    let prompt = match (r.prompt, r.messages) {
        (Some(text), None) if raw => Prompt::Raw(text),
        (Some(text), None) => Prompt::Chat(PromptArgs::messages(system, text)),
        (None, Some(_)) if raw => {
            return Err(bad("`messages` need the chat template, `raw` is without"));
        }
        (None, Some(messages)) => {
            let messages =
                messages.into_iter().map(|m| Message { role: m.role, content: m.content });
            let system = system.map(|content| Message { role: "system".into(), content });
            Prompt::Chat(system.into_iter().chain(messages).collect())
        }
        (Some(_), Some(_)) => return Err(bad("it has both `prompt` and `messages`")),
        (None, None) => return Err(bad("it has neither `prompt` nor `messages`")),
    };
    let mut options = defaults.clone();
    let s = &mut options.sampling;
    if r.temperature.is_some() {
        s.greedy = false;
    }
    s.temp = r.temperature.or(s.temp);
    s.top_k = r.top_k.or(s.top_k);
    s.top_p = r.top_p.or(s.top_p);
    s.min_p = r.min_p.or(s.min_p);
    s.repeat_penalty = r.repeat_penalty.or(s.repeat_penalty);
    s.repeat_last_n = r.repeat_last_n.or(s.repeat_last_n);
    s.presence_penalty = r.presence_penalty.or(s.presence_penalty);
    s.frequency_penalty = r.frequency_penalty.or(s.frequency_penalty);
    s.seed = r.seed.or(s.seed);
    if let Some(bias) = r.logit_bias {
        s.logit_bias = bias
            .iter()
            .map(|(id, b)| Some((id.parse().ok()?, b.as_f64()? as f32)))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| bad("`logit_bias` maps token ids to numbers"))?;
    }
    let mut ask = options.ask(&answering.loaded, prompt)?;
    ask.max_tokens = r.max_tokens.or(ask.max_tokens);
    ask.ignore_eos = r.ignore_eos.unwrap_or(ask.ignore_eos);
    ask.logprobs = r.logprobs.unwrap_or(0);
    if let Some(kwargs) = r.chat_template_kwargs {
        ask.template_kwargs = Some(Value::Object(kwargs).to_string());
    }
    match r.stop {
        None => {}
        Some(OneOrMany::One(stop)) => ask.stop = vec![stop],
        Some(OneOrMany::Many(stops)) => ask.stop = stops,
    }
    Ok(ask)
}
