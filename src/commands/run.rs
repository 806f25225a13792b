//! `snug run`: one prompt, one reply. stdout is the reply and nothing else.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, ValueEnum};
use serde_json::json;

use super::globals::Context;
use super::input::{self, Stdin};
use super::output::{Exit, Outcome, note};
use super::reading::PromptArgs;
use super::replies::{self, Answering, LoadOptions, Reply};
use super::sampling::SamplingArgs;
use super::{Verb, batch, chat, parsed, records, threads};
use crate::engine::protocol::{Ask, Event, Loaded, Overflow, Prompt};
use crate::error::{Error, Kind, Result};

pub(super) const VERB: Verb = Verb {
    name: "run",
    aliases: &["prompt"],
    about: "Answer one prompt",
    examples: &[
        "snug run demo 'Tell me a story about a fox.'",
        "git diff | snug run MODEL -s 'Review this change.' -",
        "snug run MODEL --jsonl < requests.jsonl > replies.jsonl",
    ],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// The model: `demo`, a file, a directory or a name; `:lossless` or `:bf16` insists
    #[arg(value_name = "MODEL")]
    first: Option<OsString>,
    #[command(flatten)]
    prompt: PromptArgs,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL", alias = "hf-repo", hide = true)]
    model: Option<String>,
    /// Answer requests from stdin, one JSON object a line, in order
    #[arg(long, conflicts_with_all = ["words", "prompt", "file", "extract_code", "tokens"])]
    jsonl: bool,
    /// Print every token as JSON (implies --json)
    #[arg(long)]
    tokens: bool,
    /// The K likeliest tokens with every token (implies --tokens)
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1000))]
    logprobs: Option<u32>,
    /// Print only the first code block of the reply
    #[arg(short = 'x', long, conflicts_with = "json")]
    extract_code: bool,
    /// Stop after this time (90s, 2m)
    #[arg(long, value_name = "TIME", value_parser = input::duration)]
    timeout: Option<Duration>,
    /// Where thinking goes, for models that think
    #[arg(long, value_name = "WHERE", default_value = "none", hide_possible_values = true)]
    show_thinking: ShowThinking,
    #[command(flatten)]
    reply: ReplyArgs,
}

/// Where thinking goes in text mode. It never goes to stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShowThinking {
    /// Nowhere.
    None,
    /// To stderr.
    Stderr,
}

/// How replies are made, for `run` and `chat`.
#[derive(Args, Clone, Debug)]
pub(super) struct ReplyArgs {
    /// At most this many tokens [default: until the context is full]
    #[arg(short = 'n', long, aliases = ["n-predict", "num-predict"], value_name = "N")]
    max_tokens: Option<u32>,
    /// End the reply at this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on after end tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Send the prompt as it is, without the chat template
    #[arg(long)]
    raw: bool,
    /// Use this chat template
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Variables for the template, as a JSON object
    #[arg(long, value_name = "JSON")]
    chat_template_kwargs: Option<String>,
    /// Ask a thinking model to think: on, off, low, medium or high
    #[arg(long, value_name = "HOW", num_args = 0..=1, default_missing_value = "on", require_equals = true, value_parser = ["on", "off", "low", "medium", "high"], hide_possible_values = true)]
    think: Option<String>,
    /// When the prompt is too long: refuse, shift or truncate-middle
    #[arg(long, value_name = "HOW", default_value = "refuse", hide_possible_values = true)]
    overflow: OverflowArg,
    /// Context to reserve, in tokens
    #[arg(short, long, aliases = ["context-length", "num-ctx"], value_name = "N")]
    ctx_size: Option<u32>,
    /// Worker threads
    #[arg(long, value_name = "N", value_parser = threads::count)]
    threads: Option<usize>,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OverflowArg {
    /// Fail with the counts.
    Refuse,
    /// Leave out the oldest turns, and say so.
    Shift,
    /// Cut the middle of the prompt, and say so.
    TruncateMiddle,
}

impl ReplyArgs {
    pub(super) fn load_options(&self) -> Result<LoadOptions> {
        let chat_template = match &self.chat_template {
            Some(path) => Some(input::read_file(path, false)?),
            None => None,
        };
        Ok(LoadOptions { context: self.ctx_size, threads: self.threads, chat_template })
    }

    /// The context that was asked for.
    pub(super) fn context(&self) -> Option<u32> {
        self.ctx_size
    }

    /// Asks for another context.
    pub(super) fn set_context(&mut self, tokens: u32) {
        self.ctx_size = Some(tokens);
    }

    /// Worker threads that were asked for.
    pub(super) fn thread_count(&self) -> Option<usize> {
        self.threads
    }

    /// Asks a thinking model to think, or not.
    pub(super) fn set_think(&mut self, on: bool) {
        self.think = Some(if on { "on" } else { "off" }.into());
    }

    /// The ask for a prompt, over the model's defaults.
    pub(super) fn ask(&self, loaded: &Loaded, prompt: Prompt) -> Result<Ask> {
        Ok(Ask {
            prompt,
            sampling: self.sampling.over(&loaded.defaults)?,
            max_tokens: self.max_tokens,
            stop: self.stop_strings()?,
            ignore_eos: self.ignore_eos,
            logprobs: 0,
            template_kwargs: self.template_kwargs()?,
            overflow: match self.overflow {
                OverflowArg::Refuse => Overflow::Refuse,
                OverflowArg::Shift => Overflow::Shift,
                OverflowArg::TruncateMiddle => Overflow::TruncateMiddle,
            },
        })
    }

    pub(super) fn is_raw(&self) -> bool {
        self.raw
    }

    fn stop_strings(&self) -> Result<Vec<String>> {
        match self.stop.iter().any(String::is_empty) {
            true => Err(Error::new(
                Kind::Usage,
                "cannot use --stop",
                "an empty text is found everywhere",
                "name the text to stop at",
            )),
            false => Ok(self.stop.clone()),
        }
    }

    /// `--chat-template-kwargs` with what `--think` adds.
    fn template_kwargs(&self) -> Result<Option<String>> {
        let mut kwargs = match &self.chat_template_kwargs {
            None => serde_json::Map::new(),
            Some(text) => serde_json::from_str(text).map_err(|e| {
                Error::new(
                    Kind::Usage,
                    "cannot use --chat-template-kwargs",
                    format!("it is not a JSON object: {e}"),
                    r#"write it like '{"enable_thinking": false}'"#,
                )
            })?,
        };
        match self.think.as_deref() {
            None => {}
            Some("off") => drop(kwargs.insert("enable_thinking".into(), false.into())),
            Some(level) => {
                kwargs.insert("enable_thinking".into(), true.into());
                if level != "on" {
                    kwargs.insert("reasoning_effort".into(), level.into());
                }
            }
        }
        Ok((!kwargs.is_empty()).then(|| serde_json::Value::Object(kwargs).to_string()))
    }
}

fn main(mut o: Options, cx: &mut Context) -> Outcome {
    if let Some(after) = o.timeout {
        cx.signals.deadline(after)?;
    }
    let model = o.take_model()?;
    o.tokens |= o.logprobs.is_some();
    cx.globals.json |= o.tokens || o.jsonl;
    if o.jsonl {
        let answering = replies::open(cx, &model, o.reply.load_options()?)?;
        return batch::main(&o.reply, o.prompt.system_text()?, o.prompt.lossy, answering, cx);
    }
    if !o.prompt.is_given()
        && !cx.globals.json
        && input::stdin_kind() == Stdin::Terminal
        && io::stdout().is_terminal()
    {
        return chat::begin(cx, &model, o.prompt.system_text()?, o.reply);
    }
    let raw = o.reply.is_raw();
    let system = o.prompt.system_text()?;
    if raw && system.is_some() {
        let why = "--raw sends the prompt alone, so there is no place for a system message";
        return Err(
            Error::new(Kind::Usage, "cannot use --system", why, "leave out one of them").into()
        );
    }
    let text = o.prompt.text(cx, raw)?;
    let prompt = match raw {
        true => Prompt::Raw(text),
        false => Prompt::Chat(PromptArgs::messages(system, text)),
    };
    let mut answering = replies::open(cx, &model, o.reply.load_options()?)?;
    let mut ask = o.reply.ask(&answering.loaded, prompt)?;
    ask.logprobs = o.logprobs.unwrap_or(0);
    if cx.globals.json {
        in_json(&o, &mut answering, ask, cx)
    } else {
        in_text(&o, &mut answering, ask, cx)
    }
}

impl Options {
    /// The model: `-m`, or else the first word.
    fn take_model(&mut self) -> Result<String> {
        match (self.model.take(), self.first.take()) {
            (Some(model), first) => {
                let words = std::mem::take(&mut self.prompt.words);
                self.prompt.words = first.into_iter().chain(words).collect();
                Ok(model)
            }
            (None, Some(first)) => input::argument(&first, "the name of the model", false),
            (None, None) => Err(Error::new(
                Kind::Usage,
                "cannot run without a model",
                "none was named",
                "snug run demo 'hello'; `snug list` shows the models that are here",
            )),
        }
    }
}

fn in_text(o: &Options, answering: &mut Answering, ask: Ask, cx: &mut Context) -> Outcome {
    let thinking = o.show_thinking == ShowThinking::Stderr;
    let out = &mut cx.out;
    let mut ends_line = true;
    let reply = answering.ask(ask, &mut |event| match event {
        Event::Text(text) if !o.extract_code => {
            ends_line = text.ends_with('\n');
            out.text(text)
        }
        Event::Reasoning(text) if thinking => {
            super::output::aside(text);
            Ok(())
        }
        Event::Truncated { from, to } => {
            note(format!("snug: the prompt was shortened from {from} to {to} tokens (--overflow)"));
            Ok(())
        }
        _ => Ok(()),
    })?;
    if o.extract_code {
        return print_code(&reply, cx);
    }
    cx.out.end_text()?;
    if cx.out.is_terminal() && !ends_line {
        cx.out.line("")?;
    }
    if cx.globals.verbose > 0 && !cx.globals.quiet {
        note(summary(&reply));
    }
    finish(&reply, cx)
}

fn print_code(reply: &Reply, cx: &mut Context) -> Outcome {
    match first_code_block(&reply.text) {
        Some(code) => cx.out.text(&code)?,
        None if reply.failure(&cx.signals).is_none() => {
            return Err(Error::new(
                Kind::Failure,
                "cannot extract code",
                "the reply has no code block",
                "ask for one, or leave out --extract-code to see the reply",
            )
            .into());
        }
        None => {}
    }
    finish(reply, cx)
}

fn in_json(o: &Options, answering: &mut Answering, ask: Ask, cx: &mut Context) -> Outcome {
    let loaded = answering.loaded.clone();
    let out = &mut cx.out;
    let mut start = records::start(&loaded, &ask);
    let mut i = 0;
    let reply = answering.ask(ask, &mut |event| match event {
        Event::Begun { prompt_tokens, .. } => {
            start["prompt_tokens"] = json!(prompt_tokens);
            out.json(&start)
        }
        Event::Token(token) if o.tokens => {
            i += 1;
            out.json(&records::token(i - 1, token))
        }
        _ => Ok(()),
    })?;
    out.json(&records::end(&loaded, &reply))?;
    finish(&reply, cx)
}

fn finish(reply: &Reply, cx: &Context) -> Outcome {
    match reply.failure(&cx.signals) {
        Some(e) => Err(Exit::Error(e)),
        None => Ok(()),
    }
}

/// One line of counts and speeds.
pub(super) fn summary(reply: &Reply) -> String {
    let s = &reply.stats;
    let speed = |n: u32, seconds: f64| {
        records::rate(n, seconds).map_or(String::new(), |r| format!(" at {r:.1}/s"))
    };
    format!(
        "snug: prompt {} tokens ({} cached){}, reply {} tokens{}, first after {} ms, ended by {}",
        s.prompt_tokens,
        s.cached_tokens,
        speed(s.prompt_tokens.saturating_sub(s.cached_tokens), s.prefill.as_secs_f64()),
        s.completion_tokens,
        speed(s.completion_tokens.saturating_sub(1), s.decode.as_secs_f64()),
        s.ttft.as_millis(),
        reply.finish.name(),
    )
}

/// The inside of the first fenced code block; an unclosed one goes to the end.
fn first_code_block(text: &str) -> Option<String> {
    let mut fence: Option<&str> = None;
    let mut code = String::new();
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        match fence {
            None => {
                let ticks = trimmed.find(|c| c != '`').unwrap_or(trimmed.len());
                let tildes = trimmed.find(|c| c != '~').unwrap_or(trimmed.len());
                let length = ticks.max(tildes);
                fence = (length >= 3).then(|| &trimmed[..length]);
            }
            Some(f) if trimmed.starts_with(f) && trimmed.chars().all(|c| f.starts_with(c)) => {
                return Some(code);
            }
            Some(_) => code.push_str(line),
        }
    }
    fence.map(|_| code)
}

#[cfg(test)]
mod tests {
    use super::first_code_block;

    #[test]
    fn the_first_code_block_is_found() {
        for (text, want) in [
            ("Here:\n```rust\nfn x() {}\n```\nand\n```\nno\n```", Some("fn x() {}\n")),
            ("````md\n```\nin\n```\n````\n", Some("```\nin\n```\n")),
            ("~~~\na\n~~~", Some("a\n")),
            ("```\ncut of", Some("cut of")),
            ("```\n```", Some("")),
            ("no code, only `ticks`", None),
        ] {
            assert_eq!(first_code_block(text).as_deref(), want, "{text}");
        }
    }
}
