//! The engine's loop: load, read the prompt, produce tokens, stop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::model::{Model, Prepared};
use super::protocol::{Ask, Command, Event, Finish, Load, Logprobs, Stats, Token};
use super::thinking::{Piece, Thinking};
use super::{Shared, cancelled, panic_error};
use crate::error::{Error, Kind, Result};
use crate::model::op::{Buf, Input, Rows, Step};
use crate::text::{Detokenizer, StopStrings};

/// Progress events keep this distance.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// A prompt chunk should take no longer than this, so that cancelling feels immediate.
const CHUNK_TIME: Duration = Duration::from_millis(100);
/// Chunks do not shrink below this many tokens.
const SMALLEST_CHUNK: usize = 8;

pub(super) struct Worker {
    commands: Receiver<(u64, Command)>,
    line: Line,
    model: Option<Model>,
}

/// The way out: events to the listener, and whether anybody still wants them.
struct Line {
    events: SyncSender<Event>,
    shared: Arc<Shared>,
    /// The number of the command at work.
    current: u64,
    /// Nobody listens any more.
    gone: bool,
    reported: Option<Instant>,
}

impl Worker {
    pub(super) fn new(
        commands: mpsc::Receiver<(u64, Command)>,
        events: SyncSender<Event>,
        shared: Arc<Shared>,
    ) -> Worker {
        let line = Line { events, shared, current: 0, gone: false, reported: None };
        Worker { commands, line, model: None }
    }

    pub(super) fn run(mut self) {
        while let Ok((number, command)) = self.commands.recv() {
            self.line.current = number;
            match command {
                Command::Load(load) => self.load(&load),
                Command::Ask(ask) => self.ask(&ask),
                Command::Explain(ask) => self.explain(&ask),
                Command::Quit => break,
            }
            if self.line.gone {
                break;
            }
        }
    }

    fn load(&mut self, load: &Load) {
        self.model = None;
        let line = &mut self.line;
        let opened = catch_unwind(AssertUnwindSafe(|| {
            Model::open(load, &mut |phase, done, of| {
                line.check()?;
                line.sometimes(|| Event::Loading { phase, done, of });
                Ok(())
            })
        }));
        match opened {
            Ok(Ok(model)) => {
                let loaded = model.loaded.clone();
                self.model = Some(model);
                self.line.emit(Event::Ready(Box::new(loaded)));
            }
            Ok(Err(e)) => self.line.emit(Event::Failed(e)),
            Err(panic) => self.line.emit(Event::Failed(panic_error("loading", panic.as_ref()))),
        }
    }

    fn explain(&mut self, ask: &Ask) {
        let model = self.model.as_ref().ok_or_else(no_model);
        let explained = catch_unwind(AssertUnwindSafe(|| model.and_then(|m| m.explain(ask))));
        self.line.emit(match explained {
            Ok(Ok(explained)) => Event::Explained(Box::new(explained)),
            Ok(Err(e)) => Event::Failed(e),
            Err(panic) => Event::Failed(panic_error("reading the prompt", panic.as_ref())),
        });
    }

    fn ask(&mut self, ask: &Ask) {
        let mut stats = Stats::default();
        let line = &mut self.line;
        let Some(model) = self.model.as_mut() else {
            line.emit(Event::Failed(no_model()));
            line.emit(Event::Done { reason: Finish::Error, stats });
            return;
        };
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let ended = Reply::begin(model, ask, line, &mut stats).and_then(Reply::run);
            if ended.is_err() {
                // A step may have failed half-way: nothing in the cache is known to be true.
                model.session.clear();
            }
            ended
        }));
        let reason = match ended {
            Ok(Ok(reason)) => reason,
            Ok(Err(e)) => {
                self.line.emit(Event::Failed(e));
                Finish::Error
            }
            Err(panic) => {
                self.model = None;
                self.line.emit(Event::Failed(panic_error("answering", panic.as_ref())));
                self.line.emit(Event::Unloaded);
                Finish::Error
            }
        };
        if let Some(model) = &self.model {
            stats.ledger = model.backend.ledger();
            stats.context_used = model.session.used();
            stats.bytes_per_token = model.backend.bytes_per_token(stats.context_used);
        }
        self.line.emit(Event::Done { reason, stats });
    }
}

fn no_model() -> Error {
    Error::new(Kind::Failure, "cannot answer", "no model is loaded", "load one")
}

impl Line {
    /// Sends an event, waiting for room; gives up when nobody listens or the engine is being dropped.
    fn emit(&mut self, event: Event) {
        let mut event = event;
        loop {
            match self.events.try_send(event) {
                Ok(()) => return,
                Err(TrySendError::Disconnected(_)) => {
                    self.gone = true;
                    return;
                }
                Err(TrySendError::Full(back)) => {
                    if self.shared.quit.load(std::sync::atomic::Ordering::SeqCst) {
                        self.gone = true;
                        return;
                    }
                    event = back;
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Sends an event unless one of this kind went out a moment ago.
    fn sometimes(&mut self, event: impl FnOnce() -> Event) {
        let due = self.reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        if due {
            self.reported = Some(Instant::now());
            self.emit(event());
        }
    }

    fn is_cancelled(&self) -> bool {
        self.gone || self.shared.is_cancelled(self.current)
    }

    fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(cancelled()) } else { Ok(()) }
    }
}

/// A reply in the making.
struct Reply<'a> {
    model: &'a mut Model,
    ask: &'a Ask,
    line: &'a mut Line,
    stats: &'a mut Stats,
    prompt: Vec<u32>,
    stops: StopStrings,
    thinking: Thinking,
    start: Instant,
}

impl<'a> Reply<'a> {
    /// Turns the ask into tokens that fit, and says when something was left out.
    fn begin(
        model: &'a mut Model,
        ask: &'a Ask,
        line: &'a mut Line,
        stats: &'a mut Stats,
    ) -> Result<Reply<'a>> {
        let start = Instant::now();
        let Prepared { tokens, whole, thinking } = model.prepare(ask)?;
        stats.prompt_tokens = tokens.len() as u32;
        if whole != tokens.len() {
            line.emit(Event::Truncated { from: whole as u32, to: tokens.len() as u32 });
        }
        let stops = StopStrings::new(&ask.stop);
        let thinking = Thinking::new(thinking);
        Ok(Reply { model, ask, line, stats, prompt: tokens, stops, thinking, start })
    }

    fn run(mut self) -> Result<Finish> {
        let read = self.read_prompt()?;
        self.stats.prefill = self.start.elapsed();
        if !read {
            return Ok(Finish::Cancelled);
        }
        if self.ask.max_tokens == Some(0) {
            self.stats.ttft = self.stats.prefill;
            return Ok(Finish::Length);
        }
        self.decode()
    }

    /// Runs what the cache does not hold yet. False when cancelled.
    fn read_prompt(&mut self) -> Result<bool> {
        let Model { backend, program, session, .. } = &mut *self.model;
        let of = self.prompt.len();
        let mut at = session.rewind_to(&self.prompt);
        self.stats.cached_tokens = at as u32;
        let (prompt_tokens, cached_tokens) = (of as u32, at as u32);
        self.line.emit(Event::Begun { prompt_tokens, cached_tokens });
        backend.set_sampling(&self.ask.sampling, &self.prompt[..at])?;
        let widest = (backend.max_step() as usize).max(1);
        let mut chunk = widest;
        while at < of {
            if self.line.is_cancelled() {
                return Ok(false);
            }
            let begun = Instant::now();
            let end = of.min(at + chunk);
            let last = end == of && self.ask.max_tokens != Some(0);
            let step = Step {
                input: Input::Tokens(&self.prompt[at..end]),
                pos: at as u32,
                rows: if last { Rows::Last } else { Rows::None },
                sample: last,
            };
            backend.run(program, &step)?;
            session.advance(&self.prompt[at..end]);
            at = end;
            if begun.elapsed() > CHUNK_TIME {
                chunk = (chunk / 2).clamp(SMALLEST_CHUNK.min(widest), widest);
            }
            self.line.sometimes(|| Event::Reading { done: at as u32, of: of as u32 });
        }
        Ok(true)
    }

    /// Produces tokens until something ends the reply. On entry the last step has sampled the first of them.
    fn decode(&mut self) -> Result<Finish> {
        let tokenizer = Arc::clone(&self.model.tokenizer);
        let mut detokenizer = tokenizer.detokenizer();
        let mut first: Option<Instant> = None;
        let finish = loop {
            let n = self.stats.completion_tokens;
            let last = self.ask.max_tokens.is_some_and(|most| n + 1 >= most);
            let queued = !last && self.model.runs_ahead(self.ask) && self.step()?;
            let id = self.model.backend.token()?;
            let now = Instant::now();
            match first {
                None => {
                    first = Some(now);
                    self.stats.ttft = now - self.start;
                }
                Some(first) => self.stats.decode = now - first,
            }
            let ended = if !self.ask.ignore_eos && self.model.is_stop(id) {
                Some(Finish::Stop)
            } else if self.model.session.used() == self.model.session.capacity() {
                Some(Finish::Context)
            } else {
                let hit = self.show(id, &mut detokenizer)?;
                if queued {
                    self.model.session.advance(&[id]);
                }
                match (hit, last, self.line.is_cancelled()) {
                    (true, ..) => Some(Finish::StopString),
                    (_, true, _) => Some(Finish::Length),
                    (_, _, true) => Some(Finish::Cancelled),
                    _ => None,
                }
            };
            if let Some(finish) = ended {
                if queued {
                    self.model.backend.token()?;
                }
                break finish;
            }
            if !queued {
                self.step()?;
                self.model.session.advance(&[id]);
            }
            self.report();
        };
        if finish != Finish::StopString {
            let rest = self.stops.push(&detokenizer.flush()).text + &self.stops.flush();
            self.speak(&rest);
        }
        for piece in self.thinking.finish() {
            self.say(piece);
        }
        Ok(finish)
    }

    /// Runs (or queues, before the host has seen it) the step of the token that was sampled last. False when the cache
    /// is full.
    fn step(&mut self) -> Result<bool> {
        let Model { backend, program, session, .. } = &mut *self.model;
        let pos = session.used();
        if pos == session.capacity() {
            return Ok(false);
        }
        backend.run(program, &Step { input: Input::Last, pos, rows: Rows::Last, sample: true })?;
        Ok(true)
    }

    /// Sends a token and the text that it completes. True when a stop string is complete.
    fn show(&mut self, id: u32, detokenizer: &mut Detokenizer<'_>) -> Result<bool> {
        let logprobs = match self.ask.logprobs {
            0 => None,
            k => Some(self.logprobs(id, k)?),
        };
        let bytes = self.model.tokenizer.token_bytes(id).to_vec();
        self.stats.completion_tokens += 1;
        self.line.emit(Event::Token(Token { id, bytes, logprobs }));
        let clear = self.stops.push(&detokenizer.push(id));
        self.stats.reasoning_tokens += u32::from(self.thinking.within());
        self.speak(&clear.text);
        Ok(clear.stop.is_some())
    }

    fn speak(&mut self, text: &str) {
        for piece in self.thinking.push(text) {
            self.say(piece);
        }
    }

    fn say(&mut self, piece: Piece) {
        self.line.emit(match piece {
            Piece::Answer(text) => Event::Text(text),
            Piece::Thought(text) => Event::Reasoning(text),
        });
    }

    fn report(&mut self) {
        let model = &self.model;
        self.stats.context_used = model.session.used();
        self.stats.bytes_per_token = model.backend.bytes_per_token(self.stats.context_used);
        let stats = &mut *self.stats;
        self.line.sometimes(|| {
            stats.ledger = model.backend.ledger();
            Event::Stats(*stats)
        });
    }

    /// Log-softmax of the last logits, in float64.
    fn logprobs(&mut self, id: u32, k: u32) -> Result<Logprobs> {
        let vocab = self.model.program.config.vocab as usize;
        let mut logits = vec![0f32; vocab];
        self.model.backend.read(Buf::Logits, &mut logits)?;
        let top = best(&logits, k as usize);
        let most = top.first().map_or(0.0, |&i| f64::from(logits[i as usize]));
        let sum: f64 = logits.iter().map(|l| (f64::from(*l) - most).exp()).sum();
        let log = |id: u32| {
            logits
                .get(id as usize)
                .map_or(f32::NEG_INFINITY, |l| (f64::from(*l) - most - sum.ln()) as f32)
        };
        let bytes = |id: u32| self.model.tokenizer.token_bytes(id).to_vec();
        Ok(Logprobs {
            chosen: log(id),
            top: top.into_iter().map(|id| (id, bytes(id), log(id))).collect(),
        })
    }
}

/// The indices of the k largest values, largest first, the lower index on a tie.
fn best(values: &[f32], k: usize) -> Vec<u32> {
    let order =
        |a: &u32, b: &u32| values[*b as usize].total_cmp(&values[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<u32> = (0..values.len() as u32).collect();
    if k < ids.len() {
        ids.select_nth_unstable_by(k, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    ids
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn the_best_are_sorted_and_ties_go_to_the_lower_index() {
        let values = [1.0, 3.0, 2.0, 3.0, -1.0];
        assert_eq!(best(&values, 3), [1, 3, 2]);
        assert_eq!(best(&values, 9), [1, 3, 2, 0, 4]);
        assert!(best(&[], 2).is_empty());
    }
}
