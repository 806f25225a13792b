//! What a prompt is made of: arguments, `-f` files, and stdin when it is asked for.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::globals::Context;
use super::input::{self, Stdin};
use super::output::note;
use crate::engine::protocol::Message;
use crate::error::{Error, Kind, Result};

/// Where the prompt comes from.
#[derive(Args, Clone, Debug, Default)]
pub struct PromptArgs {
    /// The prompt; `-` is standard input
    #[arg(value_name = "PROMPT")]
    pub words: Vec<OsString>,
    /// The prompt, as an option
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<OsString>,
    /// Put a file into the prompt, before the words (repeatable)
    #[arg(short, long, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// System message
    #[arg(
        short,
        long,
        value_name = "TEXT",
        conflicts_with = "system_file",
        allow_hyphen_values = true
    )]
    pub system: Option<OsString>,
    /// System message from a file
    #[arg(long, value_name = "FILE")]
    pub system_file: Option<PathBuf>,
    /// Read standard input too, as `-` does
    #[arg(long, hide = true)]
    pub stdin: bool,
    /// Give up on standard input after this time
    #[arg(long, value_name = "TIME", value_parser = input::duration)]
    pub stdin_timeout: Option<Duration>,
    /// Replace bytes that are not UTF-8 instead of refusing them
    #[arg(long)]
    pub lossy: bool,
}

impl PromptArgs {
    /// The system message, if there is one.
    pub fn system_text(&self) -> Result<Option<String>> {
        match (&self.system, &self.system_file) {
            (Some(text), _) => input::argument(text, "--system", self.lossy).map(Some),
            (None, Some(path)) => input::read_file(path, self.lossy).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Whether anything but stdin is named.
    pub fn is_given(&self) -> bool {
        !self.words.is_empty() || self.prompt.is_some() || !self.file.is_empty() || self.stdin
    }

    /// The prompt, in the order files, `--prompt`, words; `-` stands where stdin goes.
    ///
    /// A silent stdin that somebody left open is never waited for when a prompt is given.
    pub fn text(&self, cx: &Context, raw: bool) -> Result<String> {
        let mut parts = Vec::new();
        for path in &self.file {
            match path.as_os_str() == "-" {
                true => parts.push(self.whole_stdin(cx, raw)?),
                false => parts.push(input::read_file(path, self.lossy)?),
            }
        }
        if let Some(text) = &self.prompt {
            parts.push(input::argument(text, "--prompt", self.lossy)?);
        }
        let mut asked = self.file.iter().any(|p| p.as_os_str() == "-");
        for words in self.words.split_inclusive(|w| w == "-") {
            let (dash, words) = match words.split_last() {
                Some((last, before)) if last == "-" => (true, before),
                _ => (false, words),
            };
            if !words.is_empty() {
                let texts: Result<Vec<String>> = words.iter().map(|w| self.word(w)).collect();
                parts.push(texts?.join(" "));
            }
            if dash && !asked {
                parts.push(self.whole_stdin(cx, raw)?);
                asked = true;
            }
        }
        if self.stdin && !asked {
            parts.push(self.whole_stdin(cx, raw)?);
        } else if !asked {
            parts.extend(self.unasked_stdin(cx, raw)?);
        }
        if parts.is_empty() {
            return Err(Error::new(
                Kind::Usage,
                "cannot run without a prompt",
                "none was given, and standard input holds none",
                "snug run MODEL 'your question', or `snug chat MODEL`",
            ));
        }
        Ok(parts.join("\n\n"))
    }

    fn word(&self, word: &OsString) -> Result<String> {
        let index = 1 + self.words.iter().position(|w| w == word).unwrap_or(0);
        input::argument(word, &format!("word {index} of the prompt"), self.lossy)
    }

    /// stdin that was asked for: waits for its end.
    fn whole_stdin(&self, cx: &Context, raw: bool) -> Result<String> {
        match input::read_stdin(self.stdin_timeout, cx.globals.quiet, &cx.signals)? {
            Some(bytes) => self.stdin_text(bytes, raw),
            None => Err(Error::new(
                Kind::Timeout,
                "cannot read standard input",
                "it did not end in the time given by --stdin-timeout",
                "close it, or give it more time",
            )),
        }
    }

    /// stdin that was not asked for: it is the prompt when there is no other; with a prompt it joins only if
    /// `--stdin-timeout` says how long to wait for its end.
    fn unasked_stdin(&self, cx: &Context, raw: bool) -> Result<Option<String>> {
        if input::stdin_kind() != Stdin::Data {
            return Ok(None);
        }
        if !self.is_given() {
            return self.whole_stdin(cx, raw).map(Some);
        }
        let Some(wait) = self.stdin_timeout else {
            if input::pipe_has_data() && !cx.globals.quiet {
                note(
                    "snug: standard input has data that is not read; add `-` to the prompt to join it",
                );
            }
            return Ok(None);
        };
        match input::read_stdin(Some(wait), cx.globals.quiet, &cx.signals)? {
            Some(bytes) if bytes.is_empty() => Ok(None),
            Some(bytes) => self.stdin_text(bytes, raw).map(Some),
            None => {
                note("snug: standard input did not end in time; going on without it");
                Ok(None)
            }
        }
    }

    /// Drops the line end that `echo` adds, except for raw prompts.
    fn stdin_text(&self, bytes: Vec<u8>, raw: bool) -> Result<String> {
        let mut text = input::decode(bytes, "standard input", self.lossy)?;
        if !raw && text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(text)
    }

    /// The conversation that the prompt begins.
    pub fn messages(system: Option<String>, prompt: String) -> Vec<Message> {
        let message = |role: &str, content| Message { role: role.into(), content };
        system
            .map(|text| message("system", text))
            .into_iter()
            .chain([message("user", prompt)])
            .collect()
    }
}
