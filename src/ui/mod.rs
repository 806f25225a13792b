//! The full-screen client: one thread draws, one reads keys, one brings what the engine says. No async runtime.
//!
//! ```text
//! keys ─── input thread ──┐                      ┌─▶ Effect ─▶ engine, files, terminal
//! engine ─ bridge thread ─┼─▶ inbox ─▶ update ───┤
//! signals, meters ────────┘    (one receiver)    └─▶ state ─▶ view ─▶ one write a frame
//! ```
//!
//! Nothing is drawn when nothing changed. What the engine says is gathered for a few milliseconds, so that a fast model
//! costs the screen no more than a slow one; keys are answered at once.

pub mod app;
pub mod composer;
pub mod events;
pub mod highlight;
mod keys;
pub mod markdown;
mod outside;
pub mod panel;
pub mod picker;
pub mod rich;
pub mod slash;
mod talk;
pub mod term;
pub mod texts;
pub mod theme;
pub mod transcript;
pub mod view;
pub mod vim;

pub use keys::KEYS;

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::event::{Event as TerminalEvent, MouseEventKind};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use signal_hook::consts::SIGCONT;

use crate::engine::Engine;
use crate::engine::protocol::{Command, Event, Stats};
use crate::error::{Error, Kind, Result};
use crate::history::{self, Log, Record};
use app::{App, Model};
use events::{AppEvent, Effect, Host, Meters, News, Saved};
use outside::Gate;

/// Frames keep this distance while text streams.
const FRAME: Duration = Duration::from_millis(33);
/// The same over a slow connection.
const SLOW_FRAME: Duration = Duration::from_millis(100);
/// A frame whose writing took longer than this says that the connection is slow.
const SLOW_WRITE: Duration = Duration::from_millis(50);
/// Streaming frames may take this share of a core; long paragraphs are drawn less often.
const FRAME_SHARE: u32 = 10;
/// No frame is put off for longer.
const LONGEST: Duration = Duration::from_millis(250);
/// What the engine says within this time is brought together.
const GATHER: Duration = Duration::from_millis(5);
/// Events of the engine that may wait for the bridge, and bundles that may wait for the screen.
const BACKLOG: usize = 256;
const BUNDLES: usize = 8;

/// What reaches the thread that draws.
#[derive(Debug)]
pub enum Arrival {
    /// One thing.
    One(AppEvent),
    /// What the engine said within a few milliseconds.
    Engine(Vec<Event>),
}

/// The sending end of the inbox, for signals and meters.
#[derive(Clone, Debug)]
pub struct Outbox(SyncSender<Arrival>);

impl Outbox {
    /// Sends; false when the client has gone.
    pub fn send(&self, event: AppEvent) -> bool {
        self.0.send(Arrival::One(event)).is_ok()
    }

    /// Sends without waiting, for those that must not wait.
    pub fn try_send(&self, event: AppEvent) {
        let _ = self.0.try_send(Arrival::One(event));
    }
}

/// Where everything arrives.
pub fn inbox() -> (Outbox, Receiver<Arrival>) {
    let (tx, rx) = mpsc::sync_channel(BACKLOG);
    (Outbox(tx), rx)
}

/// How the client ended.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Why, unless it ended well.
    pub reason: Option<Kind>,
    /// The file of the session, if one was kept.
    pub session: Option<String>,
    /// Tokens of all replies.
    pub tokens: u64,
    /// Counts and times of the last reply.
    pub stats: Stats,
}

/// Reads the machine's meters now and then, on a thread of its own. It is told whether the engine is at work.
pub type Sampler = Box<dyn FnMut() -> Meters + Send>;

/// Runs the client until it ends. `first` is done first.
///
/// # Errors
/// The terminal cannot be used, or the engine's thread cannot be started.
pub fn run(
    app: App,
    first: Vec<Effect>,
    host: &mut dyn Host,
    sampler: Sampler,
    (outbox, inbox): (Outbox, Receiver<Arrival>),
) -> Result<Ending> {
    let (engine_events, said) = mpsc::sync_channel(BACKLOG);
    let engine = Engine::spawn(engine_events)?;
    bridge(said, outbox.0.clone())?;
    let guard = term::Guard::new()?;
    let gate = Gate::open(outbox.clone())?;
    continued(outbox.clone())?;
    let busy = meters(sampler, outbox)?;
    let mut client = Client::new(app, engine, host, gate, busy)?;
    client.perform(first);
    let ended = client.run(&inbox);
    let ending = client.ending();
    drop(client);
    drop(guard);
    ended.map(|()| ending)
}

/// Brings what the engine says, gathered.
fn bridge(said: Receiver<Event>, to: SyncSender<Arrival>) -> Result<()> {
    let work = move || {
        while let Ok(first) = said.recv() {
            // A lone event is passed on at once when nothing follows; a stream comes in bundles.
            let streams = matches!(first, Event::Token(_) | Event::Text(_) | Event::Reasoning(_));
            if streams {
                thread::sleep(GATHER);
            }
            let mut bundle = vec![first];
            bundle.extend(said.try_iter());
            if to.send(Arrival::Engine(bundle)).is_err() {
                return;
            }
        }
    };
    start("bridge", work)
}

/// Tells when the program goes on after it was stopped.
fn continued(to: Outbox) -> Result<()> {
    let mut waiting = signal_hook::iterator::Signals::new([SIGCONT])
        .map_err(|e| Error::io("cannot listen for signals", &e))?;
    start("continue", move || {
        for _ in waiting.forever() {
            if !to.send(AppEvent::Resumed) {
                return;
            }
        }
    })
}

/// Reads the meters twice a second while the engine works, and every five seconds otherwise.
fn meters(mut sampler: Sampler, to: Outbox) -> Result<Sender<bool>> {
    let (busy, told) = mpsc::channel();
    start("meters", move || {
        let mut working = true;
        loop {
            if !to.send(AppEvent::Meters(sampler())) {
                return;
            }
            let wait = if working { Duration::from_millis(500) } else { Duration::from_secs(5) };
            match told.recv_timeout(wait) {
                Ok(now) => working = now,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    Ok(busy)
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started.map(drop).map_err(|e| Error::io("cannot start a thread", &e))
}

/// The state, and everything that effects need.
struct Client<'a> {
    app: App,
    engine: Engine,
    host: &'a mut dyn Host,
    terminal: Terminal<CrosstermBackend<term::Frames>>,
    frames: term::Frames,
    gate: Gate,
    log: Option<Log>,
    /// Records from before the session had a file.
    early: Vec<Record>,
    busy: Sender<bool>,
    was_busy: bool,
    drawn: Instant,
    /// How long the next streaming frame waits after the one before.
    pace: Duration,
    slow: bool,
    /// Rows of the last frame with clusters whose width is in doubt.
    doubtful: Vec<u16>,
    tokens: u64,
}

impl<'a> Client<'a> {
    fn new(
        app: App,
        engine: Engine,
        host: &'a mut dyn Host,
        gate: Gate,
        busy: Sender<bool>,
    ) -> Result<Client<'a>> {
        let area = Rect { x: 0, y: 0, width: app.size.0, height: app.size.1 };
        let frames = term::Frames::default();
        let backend = CrosstermBackend::new(frames.clone());
        let options = TerminalOptions { viewport: Viewport::Fixed(area) };
        let terminal = Terminal::with_options(backend, options).map_err(screen_failed)?;
        Ok(Client {
            app,
            engine,
            host,
            terminal,
            frames,
            gate,
            log: None,
            early: Vec::new(),
            busy,
            was_busy: true,
            drawn: Instant::now(),
            pace: FRAME,
            slow: false,
            doubtful: Vec::new(),
            tokens: 0,
        })
    }

    fn run(&mut self, inbox: &Receiver<Arrival>) -> Result<()> {
        self.draw()?;
        while !self.app.is_over() {
            let due = self.drawn + self.pace;
            let arrived = if self.app.dirty {
                inbox.recv_timeout(due.saturating_duration_since(Instant::now()))
            } else {
                inbox.recv().map_err(RecvTimeoutError::from)
            };
            let mut urgent = false;
            match arrived {
                Ok(arrival) => {
                    urgent |= self.take(arrival);
                    // Everything that waits belongs to the same frame.
                    for arrival in inbox.try_iter().take(BUNDLES) {
                        urgent |= self.take(arrival);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.app.dirty && (urgent || Instant::now() >= self.drawn + self.pace) {
                self.draw()?;
            }
        }
        Ok(())
    }

    /// Lets something happen. True when it should be seen at once.
    fn take(&mut self, arrival: Arrival) -> bool {
        let was_dirty = self.app.dirty;
        match arrival {
            Arrival::One(event) => {
                let urgent = !matches!(event, AppEvent::Meters(_));
                self.handle(event);
                self.app.dirty |= was_dirty;
                urgent
            }
            Arrival::Engine(events) => {
                let mut dirty = was_dirty;
                for event in events {
                    if let Event::Done { stats, .. } = &event {
                        self.tokens += u64::from(stats.completion_tokens);
                    }
                    self.handle(AppEvent::Engine(event));
                    dirty |= self.app.dirty;
                }
                self.app.dirty = dirty;
                false
            }
        }
    }

    fn handle(&mut self, event: AppEvent) {
        let effects = self.app.update(event, Instant::now());
        self.perform(effects);
        let busy = self.app.is_busy() || matches!(self.app.model, Model::Loading(_));
        if busy != self.was_busy {
            self.was_busy = busy;
            let _ = self.busy.send(busy);
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let news = self.effect(effect);
            let news = news.unwrap_or_else(|e| vec![News::Failed(e)]);
            for news in news {
                let more = self.app.update(AppEvent::News(news), Instant::now());
                self.perform(more);
            }
        }
    }

    fn effect(&mut self, effect: Effect) -> Result<Vec<News>> {
        match effect {
            Effect::Ask { prompt, overflow, max_tokens } => {
                let Some(loaded) = self.app.loaded() else { return Ok(Vec::new()) };
                match self.host.ask(loaded, prompt, overflow) {
                    Ok(mut ask) => {
                        ask.max_tokens = max_tokens.or(ask.max_tokens);
                        self.engine.send(Command::Ask(ask));
                    }
                    Err(e) => return Ok(self.refused(e)),
                }
            }
            Effect::Explain(prompt) => {
                let Some(loaded) = self.app.loaded() else { return Ok(Vec::new()) };
                let ask = self.host.ask(loaded, prompt, self.app.overflow)?;
                self.engine.send(Command::Explain(ask));
            }
            Effect::Cancel => self.engine.canceller().cancel(),
            Effect::Load(reference) => {
                let load = self.host.load(&reference)?;
                let name = load.name.clone();
                self.engine.send(Command::Load(load));
                return Ok(vec![News::Loading(name)]);
            }
            Effect::LoadFailed => {}
            Effect::Record(record) => return self.record(record),
            Effect::Remember(text) => history::add_prompt(&text)?,
            Effect::NewSession => self.log = None,
            Effect::Resume(id) => return self.resume(&id),
            Effect::Keep(keep) => return self.keep(keep),
            Effect::Sessions => return Ok(vec![News::Sessions(history::list())]),
            effect => return self.outer(effect),
        }
        Ok(Vec::new())
    }

    /// An ask that could not even be put together is told like a reply that failed.
    fn refused(&mut self, e: Error) -> Vec<News> {
        for event in [
            Event::Failed(e),
            Event::Done { reason: crate::engine::protocol::Finish::Error, stats: self.app.stats },
        ] {
            let more = self.app.update(AppEvent::Engine(event), Instant::now());
            self.perform(more);
        }
        Vec::new()
    }

    fn record(&mut self, record: Record) -> Result<Vec<News>> {
        if !self.app.keeps {
            return Ok(Vec::new());
        }
        let mut news = Vec::new();
        if self.log.is_none() {
            if !matches!(record, Record::User { .. }) {
                if matches!(record, Record::System { .. }) {
                    self.early.push(record);
                }
                return Ok(news);
            }
            let model = self.app.loaded().map(|l| l.name.clone()).unwrap_or_default();
            let mut log = Log::create(&model)?;
            let system = self.app.system.clone();
            self.early.clear();
            if system.is_some() {
                log.append(&Record::System { text: system })?;
            }
            news.push(News::Session(log.id().to_owned()));
            self.log = Some(log);
        }
        if let Some(log) = &mut self.log {
            log.append(&record)?;
        }
        Ok(news)
    }

    fn resume(&mut self, id: &str) -> Result<Vec<News>> {
        let id = history::find(id)?;
        if self.log.as_ref().is_some_and(|l| l.id() == id) {
            return Ok(vec![News::Hint("this conversation is open already".into())]);
        }
        let (log, records) = Log::open(&id)?;
        self.log = Some(log);
        Ok(vec![News::Keeps(true), News::Restored(Box::new(Saved { id, records }))])
    }

    fn keep(&mut self, keep: bool) -> Result<Vec<News>> {
        let hint =
            if keep { "conversations are kept from now on" } else { "nothing is kept from now on" };
        self.log = None;
        Ok(vec![News::Keeps(keep), News::Hint(hint.into())])
    }

    /// Effects outside of the screen.
    fn outer(&mut self, effect: Effect) -> Result<Vec<News>> {
        match effect {
            Effect::Redraw => self.redraw()?,
            Effect::Mouse(on) => term::wheel(on)?,
            Effect::Copy(text, what) => {
                outside::copy(&text)?;
                return Ok(vec![News::Hint(format!("copied {what}"))]);
            }
            Effect::Suspend => self.away(outside::suspend)?,
            Effect::Editor(text) => return self.away(|| outside::editor(&text)),
            Effect::Raw(text) => self.away(|| outside::raw(&text))?,
            Effect::Pager(text) => self.away(|| outside::pager(&text))?,
            effect => return self.host.perform(effect, self.app.loaded()),
        }
        Ok(Vec::new())
    }

    /// Leaves the screen for something else, and comes back.
    fn away<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let closed = self.gate.close();
        term::restore();
        let done = work();
        self.redraw()?;
        drop(closed);
        done
    }

    /// Takes the screen (again) and draws everything.
    fn redraw(&mut self) -> Result<()> {
        term::enter_again()?;
        if self.app.mouse {
            term::wheel(true)?;
        }
        if let Ok((columns, rows)) = crossterm::terminal::size()
            && columns > 0
            && rows > 0
        {
            self.app.size = (columns, rows);
        }
        self.resize()
    }

    fn resize(&mut self) -> Result<()> {
        let (width, height) = self.app.size;
        self.terminal.resize(Rect { x: 0, y: 0, width, height }).map_err(screen_failed)?;
        self.app.dirty = true;
        Ok(())
    }

    fn draw(&mut self) -> Result<()> {
        let begun = Instant::now();
        let area = self.terminal.get_frame().area();
        if (area.width, area.height) != self.app.size {
            self.resize()?;
        }
        self.app.lay_out();
        let (app, before) = (&self.app, std::mem::take(&mut self.doubtful));
        let mut doubtful = Vec::new();
        let drawn = self.terminal.draw(|frame| {
            view::view(app, frame);
            doubtful = view::doubtful_rows(frame.buffer_mut());
            view::write_rows_anew(frame.buffer_mut(), &before);
        });
        drawn.map_err(screen_failed)?;
        self.doubtful = doubtful;
        self.app.dirty = false;
        let made = begun.elapsed();
        self.frames.send()?;
        let written = begun.elapsed() - made;
        self.slow = std::env::var_os("SSH_CONNECTION").is_some() && written > SLOW_WRITE;
        let least = if self.slow { SLOW_FRAME } else { FRAME };
        self.pace = (made * FRAME_SHARE).clamp(least, LONGEST);
        self.drawn = Instant::now();
        Ok(())
    }

    fn ending(&self) -> Ending {
        Ending {
            reason: self.app.ended,
            session: self.log.as_ref().map(|l| l.path().display().to_string()),
            tokens: self.tokens,
            stats: self.app.stats,
        }
    }
}

fn screen_failed(e: io::Error) -> Error {
    Error::io("cannot draw on the terminal", &e)
}

/// What the client makes of an event of the terminal.
fn translated(event: TerminalEvent) -> Option<AppEvent> {
    Some(match event {
        TerminalEvent::Key(key) => AppEvent::Key(key),
        TerminalEvent::Paste(text) => AppEvent::Paste(text),
        TerminalEvent::Resize(columns, rows) => AppEvent::Resize(columns, rows),
        TerminalEvent::Mouse(mouse) => match mouse.kind {
            MouseEventKind::ScrollUp => AppEvent::Wheel(-3),
            MouseEventKind::ScrollDown => AppEvent::Wheel(3),
            _ => return None,
        },
        TerminalEvent::FocusGained | TerminalEvent::FocusLost => return None,
    })
}
