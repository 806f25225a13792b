//! An engine at work for a command: load with a progress bar, ask, hand on what comes, stop when told.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use super::globals::Context;
use super::output::{Outcome, note};
use super::progress::{Progress, size};
use super::refs::{self, Model};
use super::signals::{Answer, Signals};
use crate::backend::Device;
use crate::engine::protocol::{Ask, Command, Event, Finish, Load, Loaded, Stats};
use crate::engine::{Engine, panic_error};
use crate::error::{Error, Kind, Result, visible};

/// How many events may wait for the terminal.
const BACKLOG: usize = 256;
/// Loading has nothing to lose: when asked to stop it gets this long.
const GRACE_LOADING: Duration = Duration::from_millis(200);
/// A reply gets this long to end in good order.
const GRACE_REPLYING: Duration = Duration::from_secs(2);

/// A loaded model, ready to be asked.
pub struct Answering {
    /// What is known of the model.
    pub loaded: Loaded,
    engine: Engine,
    events: Receiver<Event>,
    signals: Signals,
    quiet: bool,
    /// Somebody reads stderr as it comes.
    watched: bool,
}

/// A reply, whole or partial.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The answer.
    pub text: String,
    /// The thinking before it.
    pub reasoning: String,
    /// Why it ended.
    pub finish: Finish,
    /// Counts and times.
    pub stats: Stats,
    /// Tokens of the prompt before and after it was shortened.
    pub truncated: Option<(u32, u32)>,
    /// What failed.
    pub error: Option<Error>,
}

impl Answering {
    /// Loads a model and says on stderr what runs.
    pub fn load(cx: &Context, model: &Model, options: LoadOptions) -> Result<Answering> {
        let (tx, events) = mpsc::sync_channel(BACKLOG);
        let engine = Engine::spawn(tx)?;
        engine.send(Command::Load(load(model, cx.device()?, options)));
        let canceller = engine.canceller();
        cx.signals.hook(move |_| {
            canceller.cancel();
            Answer::Ends(GRACE_LOADING)
        });
        if cx.globals.verbose > 0 && !cx.globals.quiet {
            note(format!("snug: loading {}", visible(&model.name)));
        }
        let mut bar = Progress::new("loading", cx.globals.quiet);
        let loaded = loop {
            match events.recv() {
                Ok(Event::Loading { done, of, .. }) => bar.bytes(done, of),
                Ok(Event::Ready(loaded)) => break *loaded,
                Ok(Event::Failed(e)) => return Err(stopped_or(&cx.signals, e)),
                Ok(_) => {}
                Err(_) => return Err(panic_error("loading", &"the engine ended")),
            }
        };
        drop(bar);
        if let Some(before) = loaded.packed_from.filter(|_| !cx.globals.quiet) {
            note(format!(
                "snug: packed {} of bf16 into {} while loading, {:.1} s in all; `snug pack` makes a file that needs no packing",
                size(before),
                size(loaded.weight_bytes),
                loaded.took.as_secs_f64()
            ));
        }
        if model.path.is_none() && !cx.globals.quiet {
            note(
                "snug: `demo` is the tiny built-in demo model; it knows simple stories and small talk, not facts",
            );
        }
        let (signals, quiet, watched) = (cx.signals.clone(), cx.globals.quiet, cx.chatty());
        let answering = Answering { loaded, engine, events, signals, quiet, watched };
        if cx.chatty() {
            note(answering.headline());
        }
        answering.stop_on_signals(cx);
        Ok(answering)
    }

    /// The rule of `run`: any reason to stop ends the reply in good order, and then the command.
    fn stop_on_signals(&self, cx: &Context) {
        let canceller = self.engine.canceller();
        cx.signals.hook(move |_| {
            canceller.cancel();
            Answer::Ends(GRACE_REPLYING)
        });
    }

    /// A handle that cancels.
    pub fn canceller(&self) -> crate::engine::Canceller {
        self.engine.canceller()
    }

    /// One line on what runs where.
    fn headline(&self) -> String {
        let l = &self.loaded;
        format!(
            "snug: {} · {} · {} weights in {} · {} ({}) · context {}",
            visible(&l.name),
            l.variant,
            l.parameters,
            size(l.weight_bytes),
            l.card.id,
            l.card.path,
            l.context,
        )
    }

    /// Asks, shows each event to `watch`, and waits for the end. When `watch` gives up, the reply is cancelled.
    pub fn ask(&mut self, ask: Ask, watch: &mut dyn FnMut(&Event) -> Outcome) -> Outcome<Reply> {
        self.engine.send(Command::Ask(ask));
        // A signal may have come when there was nothing to cancel.
        if self.signals.reason().is_some() {
            self.engine.canceller().cancel();
        }
        let mut reply = Reply {
            text: String::new(),
            reasoning: String::new(),
            finish: Finish::Error,
            stats: Stats::default(),
            truncated: None,
            error: None,
        };
        let mut bar = Progress::new("reading the prompt", self.quiet);
        let mut gave_up = Ok(());
        loop {
            let Ok(event) = self.events.recv() else {
                return Err(panic_error("answering", &"the engine ended").into());
            };
            match &event {
                Event::Reading { done, of } => bar.tokens(u64::from(*done), u64::from(*of)),
                _ => bar.clear(),
            }
            if gave_up.is_ok() {
                gave_up = watch(&event);
                if gave_up.is_err() {
                    self.engine.canceller().cancel();
                }
            }
            match event {
                Event::Text(text) => reply.text += &text,
                Event::Reasoning(text) => {
                    if self.watched && reply.reasoning.is_empty() {
                        note("snug: thinking ...");
                    }
                    reply.reasoning += &text;
                }
                Event::Truncated { from, to } => reply.truncated = Some((from, to)),
                Event::Failed(e) => reply.error = Some(e),
                Event::Done { reason, stats } => {
                    reply.finish = reason;
                    reply.stats = stats;
                    return gave_up.map(|()| reply);
                }
                _ => {}
            }
        }
    }
}

/// What a command line says about loading.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Context in tokens.
    pub context: Option<u32>,
    /// Worker threads.
    pub threads: Option<usize>,
    /// The text of a chat template.
    pub chat_template: Option<String>,
}

/// How to load a model that was found.
pub fn load(model: &Model, device: Device, options: LoadOptions) -> Load {
    Load {
        name: model.name.clone(),
        path: model.path.clone(),
        variant: model.variant,
        device,
        context: options.context,
        threads: options.threads,
        chat_template: options.chat_template,
    }
}

impl Reply {
    /// The error that a command ends with after this reply, if it ends with one.
    pub fn failure(&self, signals: &Signals) -> Option<Error> {
        match self.finish {
            Finish::Cancelled => {
                Some(super::signals::stopped(signals.reason().unwrap_or(Kind::Interrupted)))
            }
            Finish::Error => {
                Some(self.error.clone().unwrap_or_else(|| panic_error("answering", &"no reason")))
            }
            _ => None,
        }
    }
}

/// A cancelled load is told by the reason that cancelled it.
fn stopped_or(signals: &Signals, e: Error) -> Error {
    match signals.reason() {
        Some(kind) if e.kind == Kind::Interrupted => super::signals::stopped(kind),
        _ => e,
    }
}

/// Finds a model and loads it.
pub fn open(cx: &Context, reference: &str, options: LoadOptions) -> Result<Answering> {
    Answering::load(cx, &refs::find(reference)?, options)
}
