//! The state of the client, and the one function that changes it.
//!
//! `update` takes what happened and gives back what is to be done about it; it touches no terminal, no file and no
//! engine. So every key, every event of the engine and every order of them can be tested as data.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::composer::Composer;
use super::events::{AppEvent, Effect, Facts, Meters, ModelRow, News, Saved};
use super::picker::{Picker, Purpose};
use super::theme::Look;
use super::transcript::{Entry, Reply, Transcript};
use crate::engine::protocol::{Event, Finish, Loaded, Message, Overflow, Phase, Prompt, Stats};
use crate::error::{Error, Kind};
use crate::history::Record;

/// Within this time a second Ctrl-C ends the program.
const TWICE: Duration = Duration::from_secs(2);
/// Speeds kept for the sparkline.
const SPEEDS: usize = 64;

/// What there is to talk to.
#[derive(Clone, Debug)]
pub enum Model {
    /// Nothing.
    None,
    /// One that is being loaded.
    Loading(Loading),
    /// One that answers.
    Ready(Box<Loaded>),
}

/// How far loading is.
#[derive(Clone, Debug)]
pub struct Loading {
    /// What is loaded.
    pub name: String,
    /// What is being done.
    pub phase: Phase,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all; 0 is not known yet.
    pub of: u64,
    /// When this phase began.
    pub since: Instant,
    /// Now.
    pub now: Instant,
}

/// What the engine is doing for us.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Nothing.
    Idle,
    /// Reading the prompt: tokens done of tokens in all, of these from the cache.
    Reading {
        /// Done.
        done: u32,
        /// In all.
        of: u32,
        /// From the cache.
        cached: u32,
    },
    /// Writing the reply.
    Writing,
    /// Summarising older turns; the summary so far.
    Summarising(String),
}

/// What lies over the screen and takes the keys.
#[derive(Clone, Debug)]
pub enum Overlay {
    /// A list to choose from.
    Pick(Picker),
    /// Looking for an earlier message.
    Search {
        /// What is looked for.
        query: String,
        /// How many matches to skip.
        skip: usize,
    },
    /// The conversation does not fit: what now?
    Overflow(Error),
}

/// How much of the statistics is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    /// What the width allows.
    Auto,
    /// Two lines, or one.
    Strip,
    /// None.
    Off,
}

/// Speeds of the reply at work and before.
#[derive(Clone, Debug, Default)]
pub struct Speeds {
    /// Tokens a second between reports, the last at the end.
    pub recent: VecDeque<f64>,
    before: Option<(u32, Duration)>,
}

/// The client.
#[derive(Debug)]
pub struct App {
    /// Columns and rows of the terminal.
    pub size: (u16, u16),
    /// How things look.
    pub look: Look,
    /// What there is to talk to.
    pub model: Model,
    /// What was said.
    pub transcript: Transcript,
    /// The draft.
    pub composer: Composer,
    /// A message that waits for the reply at work to end.
    pub queued: Option<String>,
    /// What the engine is doing.
    pub work: Work,
    /// What lies on top.
    pub overlay: Option<Overlay>,
    /// Completions of the word before the cursor, and which is chosen.
    pub completion: Option<(Vec<String>, usize)>,
    /// One line about what just happened.
    pub hint: Option<String>,
    /// How much of the statistics is shown.
    pub panel: Panel,
    /// Counts and times of the reply at work, or the last.
    pub stats: Stats,
    /// Speeds.
    pub speeds: Speeds,
    /// What the machine reports.
    pub meters: Meters,
    /// The system message.
    pub system: Option<String>,
    /// The session's id, when it is kept.
    pub session: Option<String>,
    /// Whether conversations are kept.
    pub keeps: bool,
    /// What is not known from the engine.
    pub facts: Facts,
    /// Whether the mouse wheel scrolls.
    pub mouse: bool,
    /// Set when the program is to end, with its exit code.
    pub ended: Option<Kind>,
    /// Set when the program is to end well.
    pub finished: bool,
    /// When something on the screen changed.
    pub dirty: bool,
    /// What to do when a prompt is too long.
    pub overflow: Overflow,
    /// Turns before this entry are told as `summary`.
    pub(super) since: usize,
    /// The summary of the turns before.
    pub(super) summary: Option<String>,
    pub(super) interrupted: Option<Instant>,
    pub(super) asked: Option<Instant>,
    pub(super) thinking_since: Option<Instant>,
    pub(super) waiting_answer: Option<Instant>,
    pub(super) first_notice: bool,
}

impl App {
    /// A client of this size, with nothing loaded.
    pub fn new(size: (u16, u16), look: Look, history: Vec<String>) -> App {
        App {
            size,
            look,
            model: Model::None,
            transcript: Transcript::default(),
            composer: Composer::new(history),
            queued: None,
            work: Work::Idle,
            overlay: None,
            completion: None,
            hint: None,
            panel: Panel::Auto,
            stats: Stats::default(),
            speeds: Speeds::default(),
            meters: Meters::default(),
            system: None,
            session: None,
            keeps: false,
            facts: Facts::default(),
            mouse: false,
            ended: None,
            finished: false,
            dirty: true,
            overflow: Overflow::Refuse,
            since: 0,
            summary: None,
            interrupted: None,
            asked: None,
            thinking_since: None,
            waiting_answer: None,
            first_notice: false,
        }
    }

    /// What is loaded, if anything is.
    pub fn loaded(&self) -> Option<&Loaded> {
        match &self.model {
            Model::Ready(loaded) => Some(loaded),
            _ => None,
        }
    }

    /// Whether the engine works on something that can be stopped.
    pub fn is_busy(&self) -> bool {
        self.work != Work::Idle
    }

    /// Whether the client is to end.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() || self.finished
    }

    /// The one function that changes the state.
    pub fn update(&mut self, event: AppEvent, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.dirty = true;
        match event {
            AppEvent::Key(key) => self.key(key, now, &mut effects),
            AppEvent::Paste(text) => self.paste(&text),
            AppEvent::Wheel(rows) => self.transcript.scroll(rows),
            AppEvent::Resize(columns, rows) => self.size = (columns, rows),
            AppEvent::Engine(event) => self.engine(event, now, &mut effects),
            AppEvent::Meters(meters) => {
                self.dirty = meters != self.meters;
                self.meters = meters;
            }
            AppEvent::News(news) => self.news(news, &mut effects),
            AppEvent::Signal(kind) => self.signal(kind, now, &mut effects),
            AppEvent::Resumed => effects.push(Effect::Redraw),
        }
        effects
    }

    fn signal(&mut self, kind: Kind, now: Instant, effects: &mut Vec<Effect>) {
        if kind == Kind::Interrupted {
            self.interrupt(now, effects);
        } else {
            self.ended = Some(kind);
        }
    }

    /// Ctrl-C: stops what goes on, else clears the draft, else ends when it comes twice.
    pub(super) fn interrupt(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.overlay.take().is_some() {
            return self.dismissed(effects);
        }
        if self.is_busy() || matches!(self.model, Model::Loading(_)) {
            effects.push(Effect::Cancel);
            return;
        }
        if self.queued.take().is_some() {
            return;
        }
        if !self.composer.is_empty() {
            self.composer.clear();
            self.interrupted = None;
            return;
        }
        if self.interrupted.is_some_and(|at| now - at < TWICE) {
            self.ended = Some(Kind::Interrupted);
            return;
        }
        self.interrupted = Some(now);
        self.hint = Some("Ctrl-C again, or Ctrl-D, quits".into());
    }

    /// What is left to do when an overlay is closed without a choice.
    pub(super) fn dismissed(&mut self, effects: &mut Vec<Effect>) {
        if self.transcript.entries().last().is_some_and(|e| matches!(e, Entry::User(_)))
            && !self.is_busy()
        {
            self.take_back(effects);
        }
    }

    /// The last message, back into the draft.
    pub(super) fn take_back(&mut self, effects: &mut Vec<Effect>) {
        let entries = self.transcript.entries();
        let Some(at) = entries.iter().rposition(|e| matches!(e, Entry::User(_))) else { return };
        let Entry::User(text) = &entries[at] else { return };
        let text = text.clone();
        if self.composer.is_empty() {
            self.composer.set(&text);
        }
        self.cut(at, effects);
    }

    /// Forgets the entries from `at` on.
    pub(super) fn cut(&mut self, at: usize, effects: &mut Vec<Effect>) {
        self.transcript.truncate(at);
        if self.since > at {
            (self.since, self.summary) = (0, None);
        }
        let turns = self.transcript.entries().iter().filter(|e| e.is_turn()).count();
        effects.push(Effect::Record(Record::Keep { turns }));
        self.transcript.follow();
    }

    fn paste(&mut self, text: &str) {
        match &mut self.overlay {
            Some(Overlay::Pick(picker)) => picker.type_text(text.lines().next().unwrap_or("")),
            Some(Overlay::Search { query, .. }) => query.push_str(text.lines().next().unwrap_or("")),
            Some(Overlay::Overflow(_)) => {}
            None => {
                self.composer.paste(text);
                self.completion = None;
            }
        }
    }

    /// A line of ours into the transcript.
    pub fn note(&mut self, text: impl Into<String>) {
        self.transcript.push(Entry::Note(text.into()));
    }

    /// The conversation as the model gets it.
    pub fn messages(&self) -> Vec<Message> {
        let message = |role: &str, content: &str| Message { role: role.into(), content: content.into() };
        let mut out = Vec::new();
        let summary = self.summary.as_ref().map(|s| format!("The conversation so far, in short: {s}"));
        let system: Vec<String> = self.system.clone().into_iter().chain(summary).collect();
        if !system.is_empty() {
            out.push(message("system", &system.join("\n\n")));
        }
        for entry in self.transcript.entries().iter().skip(self.since) {
            match entry {
                Entry::User(text) => out.push(message("user", text)),
                Entry::Reply(reply) if !reply.text.is_empty() => {
                    out.push(message("assistant", &reply.text));
                }
                _ => {}
            }
        }
        out
    }

    /// Sends a message, or keeps it until the reply at work has ended.
    pub(super) fn send(&mut self, text: String, effects: &mut Vec<Effect>) {
        if self.is_busy() || !matches!(self.model, Model::Ready(_)) {
            if matches!(self.model, Model::None) {
                self.hint = Some("no model is loaded: /model chooses one".into());
                self.composer.set(&text);
                return;
            }
            self.queued = Some(text);
            return;
        }
        if self.keeps {
            effects.push(Effect::Remember(text.clone()));
        }
        effects.push(Effect::Record(Record::User { text: text.clone() }));
        self.transcript.push(Entry::User(text));
        self.ask(effects);
    }

    /// Asks for a reply to the turns as they are.
    pub(super) fn ask(&mut self, effects: &mut Vec<Effect>) {
        let prompt = Prompt::Chat(self.messages());
        let name = self.loaded().map(|l| l.name.clone()).unwrap_or_default();
        self.transcript.push(Entry::Reply(Box::new(Reply::of(&name))));
        self.begin(prompt, effects);
    }

    /// Lets the last reply go on.
    pub(super) fn go_on(&mut self, effects: &mut Vec<Effect>) {
        let mut messages = self.messages();
        let begun = match messages.pop() {
            Some(m) if m.role == "assistant" => m.content,
            _ => {
                self.hint = Some("there is no reply to continue".into());
                return;
            }
        };
        if let Some(reply) = self.transcript.last_reply_mut() {
            reply.finish = None;
        }
        self.transcript.touch();
        let turns = self.transcript.entries().iter().filter(|e| e.is_turn()).count();
        effects.push(Effect::Record(Record::Keep { turns: turns.saturating_sub(1) }));
        self.begin(Prompt::Continue(messages, begun), effects);
    }

    fn begin(&mut self, prompt: Prompt, effects: &mut Vec<Effect>) {
        self.transcript.follow();
        self.work = Work::Reading { done: 0, of: 0, cached: 0 };
        self.speeds.before = None;
        self.thinking_since = None;
        effects.push(Effect::Ask { prompt, overflow: self.overflow, max_tokens: None });
    }

    fn engine(&mut self, event: Event, now: Instant, effects: &mut Vec<Effect>) {
        match event {
            Event::Loading { phase, done, of } => self.loading(phase, done, of, now),
            Event::Ready(loaded) => self.ready(loaded, effects),
            Event::Begun { prompt_tokens, cached_tokens } => {
                self.reading(cached_tokens, prompt_tokens, Some(cached_tokens));
            }
            Event::Reading { done, of } => self.reading(done, of, None),
            Event::Truncated { from, to } => {
                let text = format!("the oldest turns were left out: {from} tokens became {to}");
                effects.push(Effect::Record(Record::Marker { text: text.clone() }));
                if !matches!(self.work, Work::Summarising(_)) {
                    self.mark(text);
                }
            }
            Event::Token(_) => {
                self.dirty = false;
                if matches!(self.work, Work::Reading { .. }) {
                    self.work = Work::Writing;
                    self.dirty = true;
                }
            }
            Event::Text(text) => self.text(&text, now),
            Event::Reasoning(text) => {
                self.thinking_since.get_or_insert(now);
                if let Some(reply) = self.transcript.last_reply_mut() {
                    reply.think(&text);
                }
            }
            Event::Stats(stats) => self.measured(stats),
            Event::Done { reason, stats } => self.done(reason, stats, effects),
            Event::Explained(explained) => {
                let text = super::texts::explained(&explained, self.loaded());
                self.note(text);
            }
            Event::Failed(e) => self.failed(e, effects),
        }
    }

    fn loading(&mut self, phase: Phase, done: u64, of: u64, now: Instant) {
        if let Model::Loading(l) = &mut self.model {
            if l.phase != phase {
                l.since = now;
            }
            (l.phase, l.done, l.of, l.now) = (phase, done, of, now);
        }
    }

    fn ready(&mut self, loaded: Box<Loaded>, effects: &mut Vec<Effect>) {
        self.stats = Stats {
            ledger: loaded.ledger,
            bytes_per_token: loaded.bytes_per_token,
            ..Stats::default()
        };
        self.speeds = Speeds::default();
        if self.transcript.entries().is_empty() {
            self.note(super::texts::welcome(&loaded, self.keeps && self.first_notice, &self.facts));
        } else {
            self.note(super::texts::headline(&loaded));
        }
        self.model = Model::Ready(loaded);
        self.send_queued(effects);
    }

    fn send_queued(&mut self, effects: &mut Vec<Effect>) {
        if let Some(text) = self.queued.take() {
            self.send(text, effects);
        }
    }

    fn reading(&mut self, done: u32, of: u32, from_cache: Option<u32>) {
        if let Work::Reading { done: d, of: o, cached } = &mut self.work {
            (*d, *o, *cached) = (done, of, from_cache.unwrap_or(*cached));
        }
    }

    /// Puts a marker before the reply at work.
    fn mark(&mut self, text: String) {
        let at = self.transcript.entries().len().saturating_sub(1);
        let reply = self.transcript.entries().last().cloned();
        self.transcript.truncate(at);
        self.transcript.push(Entry::Marker(text));
        if let Some(reply) = reply {
            self.transcript.push(reply);
        }
    }

    fn text(&mut self, text: &str, now: Instant) {
        if let Work::Summarising(summary) = &mut self.work {
            summary.push_str(text);
            return;
        }
        let since = self.thinking_since.take();
        if let Some(reply) = self.transcript.last_reply_mut() {
            if let Some(since) = since {
                reply.thought_s = (now - since).as_secs_f64();
            }
            reply.push(text);
        }
    }

    fn measured(&mut self, stats: Stats) {
        let now = (stats.completion_tokens, stats.decode);
        if let Some((tokens, time)) = self.speeds.before
            && now.0 > tokens
            && now.1 > time
        {
            let speed = f64::from(now.0 - tokens) / (now.1 - time).as_secs_f64();
            self.speeds.recent.push_back(speed);
            if self.speeds.recent.len() > SPEEDS {
                self.speeds.recent.pop_front();
            }
        }
        self.speeds.before = Some(now);
        self.stats = stats;
    }

    fn done(&mut self, reason: Finish, stats: Stats, effects: &mut Vec<Effect>) {
        let work = std::mem::replace(&mut self.work, Work::Idle);
        if let Work::Summarising(summary) = work {
            return self.summarised(reason, summary, effects);
        }
        self.measured(stats);
        let Some(reply) = self.transcript.last_reply_mut().filter(|r| r.finish.is_none()) else {
            return self.send_queued(effects);
        };
        reply.end(reason, stats);
        let record = Record::Assistant {
            model: reply.name.clone(),
            text: reply.text.clone(),
            reasoning: reply.reasoning.clone(),
            finish: reason.name().into(),
            tokens: stats.completion_tokens,
            tokens_per_s: (super::texts::average(&stats) * 10.0).round() / 10.0,
        };
        self.transcript.touch();
        effects.push(Effect::Record(record));
        if matches!(reason, Finish::Stop | Finish::StopString) {
            self.send_queued(effects);
        } else if let Some(text) = self.queued.take() {
            // What was to follow a whole reply is not sent after half of one.
            self.composer.set(&text);
        }
    }

    fn failed(&mut self, e: Error, effects: &mut Vec<Effect>) {
        if matches!(self.model, Model::Loading(_)) {
            self.model = Model::None;
            self.queued.take().into_iter().for_each(|text| self.composer.set(&text));
            if e.kind == Kind::Interrupted {
                self.note("loading was stopped; /model chooses a model");
            } else {
                self.transcript.push(Entry::Error(e));
                self.note("/model chooses another model");
            }
            effects.push(Effect::LoadFailed);
            return;
        }
        let empty = self.transcript.last_reply().is_some_and(|r| {
            r.finish.is_none() && r.text.is_empty() && r.reasoning.is_empty()
        });
        if empty && self.is_busy() {
            let entries = self.transcript.entries();
            let at = entries.iter().rposition(|e| matches!(e, Entry::Reply(_)));
            self.transcript.truncate(at.unwrap_or(entries.len()));
        }
        if e.kind == Kind::ContextOverflow && self.is_busy() {
            self.overlay = Some(Overlay::Overflow(e));
            return;
        }
        if empty && self.is_busy() {
            self.take_back(effects);
        }
        self.transcript.push(Entry::Error(e));
    }

    /// Asks for a summary of everything but the last message.
    pub(super) fn summarise(&mut self, effects: &mut Vec<Effect>) {
        let mut messages = self.messages();
        let last = messages.pop();
        let older = messages.iter().filter(|m| m.role != "system").count();
        if last.is_none() || older == 0 {
            self.hint = Some("there are no older turns to summarise".into());
            return self.dismissed(effects);
        }
        let content = "Summarise our conversation so far in a few sentences. Keep names, numbers and decisions.";
        messages.push(Message { role: "user".into(), content: content.into() });
        self.work = Work::Summarising(String::new());
        effects.push(Effect::Ask {
            prompt: Prompt::Chat(messages),
            overflow: Overflow::Shift,
            max_tokens: Some(200),
        });
    }

    fn summarised(&mut self, reason: Finish, summary: String, effects: &mut Vec<Effect>) {
        let summary = summary.trim().to_owned();
        if summary.is_empty() || matches!(reason, Finish::Error | Finish::Cancelled) {
            self.take_back(effects);
            self.note("there is no summary; the conversation is as it was, and your message is back in the draft");
            return;
        }
        let last = self.transcript.entries().iter().rposition(|e| matches!(e, Entry::User(_)));
        let at = last.unwrap_or(self.transcript.entries().len());
        let entry = self.transcript.entries().get(at).cloned();
        self.transcript.truncate(at);
        self.transcript.push(Entry::Marker(format!("the turns above are told to the model as: {summary}")));
        self.since = self.transcript.entries().len();
        effects.push(Effect::Record(Record::Summary { text: summary.clone() }));
        self.summary = Some(summary);
        if let Some(entry) = entry {
            self.transcript.push(entry);
            self.ask(effects);
        }
    }

    fn news(&mut self, news: News, effects: &mut Vec<Effect>) {
        match news {
            News::Hint(text) => self.hint = Some(text),
            News::Note(text) => self.note(text),
            News::Failed(e) => self.transcript.push(Entry::Error(e)),
            News::Loading(name) => {
                let now = Instant::now();
                let phase = Phase::Check;
                self.model =
                    Model::Loading(Loading { name, phase, done: 0, of: 0, since: now, now });
            }
            News::Models(rows) => self.pick_model(rows),
            News::Sessions(rows) => {
                if rows.is_empty() {
                    self.hint = Some("no conversations are kept yet".into());
                } else {
                    self.overlay = Some(Overlay::Pick(Picker::sessions(&rows)));
                }
            }
            News::Edited(text) => self.composer.set(text.trim_end_matches('\n')),
            News::Said(text) => self.send(text, effects),
            News::Session(id) => self.session = Some(id),
            News::Restored(saved) => self.restore(*saved),
            News::Completions(words) => self.complete_with(words),
            News::Facts(facts) => self.facts = facts,
            News::Keeps(keeps) => {
                self.keeps = keeps;
                if !keeps {
                    self.session = None;
                }
            }
        }
    }

    fn pick_model(&mut self, rows: Vec<ModelRow>) {
        let current = self.loaded().map(|l| l.name.clone());
        self.overlay = Some(Overlay::Pick(Picker::models(&rows, current.as_deref())));
    }

    fn restore(&mut self, saved: Saved) {
        self.transcript.clear();
        (self.since, self.summary, self.system) = (0, None, None);
        for record in saved.records {
            self.replay(record);
        }
        let turns = self.transcript.entries().iter().filter(|e| e.is_turn()).count();
        self.session = Some(saved.id.clone());
        self.note(format!("session {} goes on with {turns} messages", saved.id));
        if let Some(text) = self.unanswered() {
            self.hint = Some(format!("the last message has no reply: /regen asks again ({text})"));
        }
    }

    fn unanswered(&self) -> Option<String> {
        let last = self.transcript.entries().iter().rev().find(|e| e.is_turn())?;
        match last {
            Entry::User(text) => Some(super::rich::fit(text.lines().next().unwrap_or(""), 20)),
            _ => None,
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::User { text } => self.transcript.push(Entry::User(text)),
            Record::Assistant { model, text, reasoning, finish, .. } => {
                let finish = Finish::named(&finish).unwrap_or(Finish::Stop);
                let reply = Reply::said(&model, &text, &reasoning, finish);
                self.transcript.push(Entry::Reply(Box::new(reply)));
            }
            Record::Keep { turns } => {
                let entries = self.transcript.entries();
                let mut seen = 0;
                let at = entries.iter().position(|e| {
                    seen += usize::from(e.is_turn());
                    seen > turns
                });
                self.transcript.truncate(at.unwrap_or(entries.len()));
                if self.since > self.transcript.entries().len() {
                    (self.since, self.summary) = (0, None);
                }
            }
            Record::System { text } => self.system = text,
            Record::Marker { text } => self.transcript.push(Entry::Marker(text)),
            Record::Summary { text } => {
                let at = self.transcript.entries().len().saturating_sub(1);
                let entry = self.transcript.entries().last().cloned();
                self.transcript.truncate(at);
                self.transcript.push(Entry::Marker(format!("the turns above are told to the model as: {text}")));
                self.since = self.transcript.entries().len();
                self.summary = Some(text);
                entry.into_iter().for_each(|e| self.transcript.push(e));
            }
            Record::Session { .. } | Record::Name { .. } => {}
        }
    }

    /// Makes the rows that the view shows; before each drawing.
    pub fn lay_out(&mut self) {
        let frame = super::view::areas(self);
        self.transcript.lay_out(frame.text.width.into(), frame.text.height.into());
    }

    /// What a choice in a list does.
    pub(super) fn picked(&mut self, purpose: Purpose, value: String, effects: &mut Vec<Effect>) {
        match purpose {
            Purpose::Model => effects.push(Effect::Load(value)),
            Purpose::Session => effects.push(Effect::Resume(value)),
        }
    }
}
