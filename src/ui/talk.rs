//! Talking with the engine: what is sent, and what its events do to the conversation.

use std::time::Instant;

use super::app::{App, Model, Overlay, Speeds, Work};
use super::events::Effect;
use super::transcript::{Entry, Reply};
use crate::engine::protocol::{Event, Finish, Loaded, Message, Overflow, Phase, Prompt, Stats};
use crate::error::{Error, Kind};
use crate::history::Record;

/// Speeds kept for the sparkline.
const SPEEDS: usize = 64;

impl App {
    /// The conversation as the model gets it.
    pub fn messages(&self) -> Vec<Message> {
        let message =
            |role: &str, content: &str| Message { role: role.into(), content: content.into() };
        let mut out = Vec::new();
        let summary =
            self.summary.as_ref().map(|s| format!("The conversation so far, in short: {s}"));
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

    pub(super) fn begin(&mut self, prompt: Prompt, effects: &mut Vec<Effect>) {
        self.transcript.follow();
        self.work = Work::Reading { done: 0, of: 0, cached: 0 };
        self.speeds.before = None;
        self.thinking_since = None;
        effects.push(Effect::Ask { prompt, overflow: self.overflow, max_tokens: None });
    }

    pub(super) fn engine(&mut self, event: Event, now: Instant, effects: &mut Vec<Effect>) {
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
            Event::Unloaded => {
                self.model = Model::None;
                self.note("the model was let go; /model loads it again");
            }
        }
    }

    pub(super) fn loading(&mut self, phase: Phase, done: u64, of: u64, now: Instant) {
        if let Model::Loading(l) = &mut self.model {
            if l.phase != phase {
                l.since = now;
            }
            (l.phase, l.done, l.of, l.now) = (phase, done, of, now);
        }
    }

    pub(super) fn ready(&mut self, loaded: Box<Loaded>, effects: &mut Vec<Effect>) {
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

    pub(super) fn send_queued(&mut self, effects: &mut Vec<Effect>) {
        if let Some(text) = self.queued.take() {
            self.send(text, effects);
        }
    }

    pub(super) fn reading(&mut self, done: u32, of: u32, from_cache: Option<u32>) {
        if let Work::Reading { done: d, of: o, cached } = &mut self.work {
            (*d, *o, *cached) = (done, of, from_cache.unwrap_or(*cached));
        }
    }

    /// Puts a marker before the reply at work.
    pub(super) fn mark(&mut self, text: String) {
        let at = self.transcript.entries().len().saturating_sub(1);
        let reply = self.transcript.entries().last().cloned();
        self.transcript.truncate(at);
        self.transcript.push(Entry::Marker(text));
        if let Some(reply) = reply {
            self.transcript.push(reply);
        }
    }

    pub(super) fn text(&mut self, text: &str, now: Instant) {
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

    pub(super) fn measured(&mut self, stats: Stats) {
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

    pub(super) fn done(&mut self, reason: Finish, stats: Stats, effects: &mut Vec<Effect>) {
        let work = std::mem::replace(&mut self.work, Work::Idle);
        if let Work::Summarising(summary) = work {
            return self.summarised(reason, summary, effects);
        }
        self.measured(stats);
        let Some(reply) = self.transcript.last_reply_mut().filter(|r| r.finish.is_none()) else {
            return self.send_queued(effects);
        };
        reply.end(reason, stats);
        let record = reply_record(reply);
        self.transcript.touch();
        effects.push(Effect::Record(record));
        if matches!(reason, Finish::Stop | Finish::StopString) {
            self.send_queued(effects);
        } else if let Some(text) = self.queued.take() {
            // What was to follow a whole reply is not sent after half of one.
            self.composer.set(&text);
        }
    }

    pub(super) fn failed(&mut self, e: Error, effects: &mut Vec<Effect>) {
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
        let empty = self
            .transcript
            .last_reply()
            .is_some_and(|r| r.finish.is_none() && r.text.is_empty() && r.reasoning.is_empty());
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

    pub(super) fn summarised(
        &mut self,
        reason: Finish,
        summary: String,
        effects: &mut Vec<Effect>,
    ) {
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
        self.transcript
            .push(Entry::Marker(format!("the turns above are told to the model as: {summary}")));
        self.since = self.transcript.entries().len();
        effects.push(Effect::Record(Record::Summary { text: summary.clone() }));
        self.summary = Some(summary);
        if let Some(entry) = entry {
            self.transcript.push(entry);
            self.ask(effects);
        }
    }
}

/// A reply as it is kept.
pub(super) fn reply_record(reply: &Reply) -> Record {
    Record::Assistant {
        model: reply.name.clone(),
        text: reply.text.clone(),
        reasoning: reply.reasoning.clone(),
        finish: reply.finish.unwrap_or(Finish::Cancelled).name().into(),
        tokens: reply.stats.completion_tokens,
        tokens_per_s: (super::texts::average(&reply.stats) * 10.0).round() / 10.0,
    }
}
