//! `snug chat`: the full-screen client on a terminal; with `--plain`, and without a terminal, a conversation line by line
//! without cursor tricks, which suits logs, pipes and screen readers.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{ArgMatches, Args, Command};

use super::globals::Context;
use super::input::{self, Arriving};
use super::output::{Exit, Outcome, note};
use super::replies::{self, Answering, Reply};
use super::run::ReplyArgs;
use super::screen::{self, Keymap, Start};
use super::signals::{Answer, TWICE};
use super::slash::{self, Next};
use super::{Verb, parsed, refs};
use crate::engine::Canceller;
use crate::engine::protocol::{Event, Finish, Message, Prompt};
use crate::error::{Error, Kind, Result};

pub(super) const VERB: Verb = Verb {
    name: "chat",
    aliases: &[],
    about: "Talk with a model",
    examples: &[
        "snug chat demo",
        "snug chat MODEL -s 'Answer in one sentence.'",
        "snug chat MODEL --resume",
    ],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    /// The model
    #[arg(value_name = "MODEL")]
    model: String,
    /// Line by line, for screen readers and logs
    #[arg(long)]
    plain: bool,
    /// Go on with a conversation: its id, or choose from a list
    #[arg(long, value_name = "ID", num_args = 0..=1, default_missing_value = "", conflicts_with = "plain")]
    resume: Option<String>,
    /// Name of the conversation; one that exists goes on
    #[arg(long, value_name = "NAME", conflicts_with_all = ["plain", "resume"])]
    session: Option<String>,
    /// Colours: auto, dark, light, mono or high-contrast
    #[arg(long, value_name = "NAME", conflicts_with = "plain")]
    theme: Option<String>,
    /// Keys of the draft: emacs or vim
    #[arg(long, value_name = "KEYS", default_value = "emacs", hide_possible_values = true)]
    keymap: Keymap,
    /// System message
    #[arg(
        short,
        long,
        value_name = "TEXT",
        conflicts_with = "system_file",
        allow_hyphen_values = true
    )]
    system: Option<String>,
    /// System message from a file
    #[arg(long, value_name = "FILE")]
    system_file: Option<std::path::PathBuf>,
    #[command(flatten)]
    reply: ReplyArgs,
}

/// A conversation and what goes with it.
pub(super) struct Chat {
    pub answering: Answering,
    pub reply: ReplyArgs,
    pub system: Option<String>,
    pub turns: Vec<Message>,
    pub last: Option<Reply>,
    interrupts: Arc<Interrupts>,
}

/// What Ctrl-C means now.
#[derive(Default)]
struct Interrupts {
    replying: AtomicBool,
    idle: Mutex<Option<Instant>>,
    /// Somebody is there to press it twice.
    people: bool,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    if o.reply.is_raw() {
        let why = "a conversation needs the chat template";
        return Err(Error::new(Kind::Usage, "cannot chat with --raw", why, "snug run --raw").into());
    }
    let system = match &o.system_file {
        Some(path) => Some(input::read_file(path, false)?),
        None => o.system.clone(),
    };
    if o.plain || !has_screen() {
        return plain(cx, &o.model, system, o.reply);
    }
    let Options { model, reply, resume, session, theme, keymap, .. } = o;
    let model = Some(model);
    screen::run(cx, Start { model, system, reply, resume, session, theme, keymap })
}

/// Whether there is a terminal that the full-screen client can draw on.
fn has_screen() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|t| t.is_empty() || t == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !dumb
}

/// A chat as `snug run MODEL` without a prompt begins it.
pub(super) fn begin(
    cx: &mut Context,
    model: &str,
    system: Option<String>,
    reply: ReplyArgs,
) -> Outcome {
    if !has_screen() || plain_is_set() {
        return plain(cx, model, system, reply);
    }
    let model = Some(model.to_owned());
    screen::run(
        cx,
        Start {
            model,
            system,
            reply,
            resume: None,
            session: None,
            theme: None,
            keymap: keymap_set(),
        },
    )
}

/// `SNUG_KEYMAP`, where no command line says it.
fn keymap_set() -> Keymap {
    let vim = std::env::var("SNUG_KEYMAP").is_ok_and(|v| v.eq_ignore_ascii_case("vim"));
    if vim { Keymap::Vim } else { Keymap::Emacs }
}

/// `SNUG_PLAIN`, where no command line says it.
fn plain_is_set() -> bool {
    std::env::var("SNUG_PLAIN")
        .is_ok_and(|v| !matches!(v.as_str(), "" | "0" | "false" | "no" | "off"))
}

/// `snug` alone in a terminal: a model is chosen, and a chat begins.
pub(super) fn bare(cx: &mut Context) -> Outcome {
    #[derive(clap::Parser)]
    struct Defaults {
        #[command(flatten)]
        reply: ReplyArgs,
    }
    let defaults = <Defaults as clap::Parser>::try_parse_from(["snug"])
        .map_err(|e| super::usage_error(&e, "snug"))?;
    if has_screen() && !plain_is_set() {
        let reply = defaults.reply;
        let start = Start {
            model: None,
            system: None,
            reply,
            resume: None,
            session: None,
            theme: None,
            keymap: keymap_set(),
        };
        return screen::run(cx, start);
    }
    note(
        "snug: chatting with the built-in `demo`; `snug chat MODEL` takes another, `snug --help` shows the rest",
    );
    plain(cx, refs::DEMO, None, defaults.reply)
}

/// The conversation, until the input ends.
pub(super) fn plain(
    cx: &mut Context,
    model: &str,
    system: Option<String>,
    reply: ReplyArgs,
) -> Outcome {
    let answering = replies::open(cx, model, reply.load_options()?)?;
    let mut lines = Lines::new()?;
    let interrupts = Arc::new(Interrupts { people: lines.people, ..Interrupts::default() });
    let mut chat = Chat { answering, reply, system, turns: Vec::new(), last: None, interrupts };
    chat.attend(cx);
    if lines.people {
        note("snug: Enter sends, /help lists commands, Ctrl-C stops a reply, Ctrl-D ends");
    }
    while let Some(message) = lines.next(cx)? {
        let next = match message {
            Typed::Nothing => continue,
            Typed::Pasted(text) => Next::Ask(text),
            Typed::Line(line) => slash::read(&line, &mut chat, cx)?,
        };
        match next {
            Next::Ask(text) => {
                chat.turns.push(Message { role: "user".into(), content: text });
                chat.answer(cx)?;
            }
            Next::Again => chat.answer(cx)?,
            Next::Nothing => {}
            Next::Quit => break,
        }
    }
    if lines.people {
        note("");
    }
    Ok(())
}

impl Interrupts {
    fn on(&self, kind: Kind, canceller: &Canceller) -> Answer {
        if kind != Kind::Interrupted || !self.people {
            canceller.cancel();
            return Answer::Ends(Duration::from_millis(300));
        }
        if self.replying.load(Ordering::SeqCst) {
            canceller.cancel();
            return Answer::Stays;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let again = idle.is_some_and(|at| at.elapsed() < TWICE);
        *idle = Some(Instant::now());
        if again {
            return Answer::Ends(Duration::ZERO);
        }
        // The terminal itself has dropped the line that was being typed.
        note("\nsnug: Ctrl-C again, or Ctrl-D, ends");
        prompt();
        Answer::Stays
    }
}

impl Chat {
    /// Lets signals reach the engine at work; again after every change of model.
    pub fn attend(&self, cx: &Context) {
        let (interrupts, canceller) = (Arc::clone(&self.interrupts), self.answering.canceller());
        cx.signals.hook(move |kind| interrupts.on(kind, &canceller));
    }

    /// One reply to the turns so far. What failed is said, and the conversation goes on.
    fn answer(&mut self, cx: &mut Context) -> Outcome {
        let system = self.system.clone().map(|content| Message { role: "system".into(), content });
        let messages = system.into_iter().chain(self.turns.iter().cloned()).collect();
        let ask = match self.reply.ask(&self.answering.loaded, Prompt::Chat(messages)) {
            Ok(ask) => ask,
            Err(e) => {
                self.turns.pop();
                note(e);
                return Ok(());
            }
        };
        self.interrupts.replying.store(true, Ordering::SeqCst);
        let out = &mut cx.out;
        let reply = self.answering.ask(ask, &mut |event| match event {
            Event::Text(text) => out.text(text),
            Event::Truncated { from, to } => {
                note(format!(
                    "snug: the conversation was shortened from {from} to {to} tokens (--overflow)"
                ));
                Ok(())
            }
            _ => Ok(()),
        });
        self.interrupts.replying.store(false, Ordering::SeqCst);
        let reply = reply?;
        cx.out.end_text()?;
        if !reply.text.ends_with('\n') {
            cx.out.line("")?;
        }
        cx.out.flush()?;
        if let Some(kind) = cx.signals.reason() {
            return Err(Exit::Told(kind));
        }
        match (&reply.error, reply.finish) {
            (Some(e), _) => {
                note(e);
                if reply.text.is_empty() {
                    self.turns.pop();
                }
            }
            (None, Finish::Cancelled) => {
                note("snug: stopped; what was said so far is kept (/regen asks again)")
            }
            (None, Finish::Context) => note(
                "snug: the context is full; /new begins again, --overflow shift leaves out old turns",
            ),
            _ => {}
        }
        if reply.error.is_none() || !reply.text.is_empty() {
            self.turns.push(Message { role: "assistant".into(), content: reply.text.clone() });
        }
        if cx.globals.verbose > 0 {
            note(super::run::summary(&reply));
        }
        self.last = Some(reply);
        Ok(())
    }
}

/// What came in at once.
enum Typed {
    /// A line.
    Line(String),
    /// Several lines that came faster than anybody types.
    Pasted(String),
    /// An empty line, or one that was not text.
    Nothing,
}

/// Lines of stdin. On a terminal a burst of lines is one paste, to be sent by Enter, and never a command.
struct Lines {
    arriving: Arriving,
    waiting: Vec<u8>,
    ended: bool,
    people: bool,
}

/// Lines that follow each other within this time were pasted.
const BURST: Duration = Duration::from_millis(30);
/// How often to look for signals.
const TICK: Duration = Duration::from_millis(50);

impl Lines {
    fn new() -> Result<Lines> {
        let people = io::stdin().is_terminal() && io::stderr().is_terminal();
        Ok(Lines { arriving: Arriving::start()?, waiting: Vec::new(), ended: false, people })
    }

    /// The next message; `None` at the end of the input.
    fn next(&mut self, cx: &Context) -> Outcome<Option<Typed>> {
        if self.people {
            prompt();
        }
        let Some(mut text) = self.line(cx)? else { return Ok(None) };
        if self.people {
            let mut lines = 1;
            while let Some(more) = self.burst()? {
                text.extend_from_slice(&more);
                lines += 1;
            }
            if lines > 1 {
                return self.confirm(text, lines, cx).map(Some);
            }
        }
        while text.ends_with(b"\\\n") {
            text.truncate(text.len() - 2);
            text.push(b'\n');
            match self.line(cx)? {
                Some(more) => text.extend_from_slice(&more),
                None => break,
            }
        }
        Ok(Some(self.message(text, Typed::Line)))
    }

    /// A paste waits for Enter; anything typed after it belongs to it.
    fn confirm(&mut self, mut text: Vec<u8>, lines: usize, cx: &Context) -> Outcome<Typed> {
        note(format!("snug: {lines} lines pasted; Enter sends them, Ctrl-D ends without"));
        loop {
            match self.line(cx)? {
                None => return Ok(Typed::Nothing),
                Some(line) if line == b"\n" => return Ok(self.message(text, Typed::Pasted)),
                Some(line) => text.extend_from_slice(&line),
            }
        }
    }

    fn message(&self, text: Vec<u8>, kind: fn(String) -> Typed) -> Typed {
        match input::decode(text, "the message", false) {
            Ok(text) if text.trim().is_empty() => Typed::Nothing,
            Ok(text) => kind(text.trim_end_matches(['\n', '\r']).to_owned()),
            Err(e) => {
                note(e);
                Typed::Nothing
            }
        }
    }

    fn line(&mut self, cx: &Context) -> Outcome<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.taken() {
                return Ok(Some(line));
            }
            if self.ended {
                let rest = std::mem::take(&mut self.waiting);
                return Ok((!rest.is_empty()).then_some(rest));
            }
            self.fill(TICK)?;
            if let Some(kind) = cx.signals.reason() {
                return Err(Exit::Told(kind));
            }
        }
    }

    /// Another line, if it is there already or comes at once.
    fn burst(&mut self) -> Result<Option<Vec<u8>>> {
        if self.taken_is_empty() {
            self.fill(BURST)?;
        }
        Ok(self.taken())
    }

    fn taken_is_empty(&self) -> bool {
        !self.waiting.contains(&b'\n') && !self.ended
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        let end = 1 + self.waiting.iter().position(|b| *b == b'\n')?;
        Some(self.waiting.drain(..end).collect())
    }

    fn fill(&mut self, wait: Duration) -> Result<()> {
        match self.arriving.next(wait) {
            Ok(Some(bytes)) => self.waiting.extend_from_slice(&bytes),
            Ok(None) => self.ended = true,
            Err(Some(e)) => return Err(e),
            Err(None) => {}
        }
        Ok(())
    }
}

fn prompt() {
    let _ = write!(io::stderr(), "> ");
}
