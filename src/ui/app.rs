//! The state of the client, and the one function that changes it.
//!
//! `update` takes what happened and gives back what is to be done about it; it touches no terminal, no file and no
//! engine. So every key, every event of the engine and every order of them can be tested as data.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::composer::Composer;
use super::events::{AppEvent, Effect, Facts, Meters, ModelRow, News, Saved};
use super::picker::{Picker, Purpose};
use super::talk::reply_record;
use super::theme::Look;
use super::transcript::{Entry, Reply, Transcript};
use super::vim::Vim;
use crate::engine::protocol::{Finish, Loaded, Overflow, Phase, Stats};
use crate::error::{Error, Kind};
use crate::history::Record;

/// Within this time a second Ctrl-C ends the program.
const TWICE: Duration = Duration::from_secs(2);

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
    pub(super) before: Option<(u32, Duration)>,
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
    pub(super) thinking_since: Option<Instant>,
    pub(super) first_notice: bool,
    /// The vim keys, when they are asked for.
    pub vim: Option<Vim>,
    /// The name that the next session gets.
    pub session_name: Option<String>,
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
            thinking_since: None,
            first_notice: false,
            vim: None,
            session_name: None,
        }
    }

    /// Whether this is the first conversation that is kept, so that a word about it is due.
    pub fn first_time(&mut self, first: bool) {
        self.first_notice = first;
    }

    /// A longer text of ours, to be read from its beginning.
    pub(super) fn page(&mut self, text: impl Into<String>) {
        self.transcript.push_to_read(Entry::Note(text.into()));
    }

    /// The conversation as records, whether it is kept or not.
    pub fn records(&self) -> Vec<Record> {
        let system = self.system.clone().map(|text| Record::System { text: Some(text) });
        let entries = self.transcript.entries().iter().filter_map(|e| match e {
            Entry::User(text) => Some(Record::User { text: text.clone() }),
            Entry::Reply(reply) => Some(reply_record(reply)),
            Entry::Marker(text) => Some(Record::Marker { text: text.clone() }),
            Entry::Note(_) | Entry::Error(_) => None,
        });
        system.into_iter().chain(entries).collect()
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
            AppEvent::News(news) => self.news(news, now, &mut effects),
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
            Some(Overlay::Search { query, .. }) => {
                query.push_str(text.lines().next().unwrap_or(""))
            }
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

    fn news(&mut self, news: News, now: Instant, effects: &mut Vec<Effect>) {
        match news {
            News::Hint(text) => self.hint = Some(text),
            News::Note(text) => self.note(text),
            News::Failed(e) => self.transcript.push(Entry::Error(e)),
            News::Loading(name) => {
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
            News::Session(id) => {
                self.session = Some(id);
                let named = self.session_name.take();
                effects.extend(named.map(|text| Effect::Record(Record::Name { text })));
            }
            News::Restored(saved) => self.restore(*saved),
            News::Completions(words) => self.complete_with(words),
            News::Bandwidth(speed) => self.facts.measured_bytes_per_s = Some(speed),
            News::Sampler(line) => self.facts.sampler = line,
            News::System(text) => {
                self.system = Some(text.clone());
                effects.push(Effect::Record(Record::System { text: Some(text) }));
                self.hint = Some("the system message counts from the next message on".into());
            }
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
                self.transcript.push(Entry::Marker(format!(
                    "the turns above are told to the model as: {text}"
                )));
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
