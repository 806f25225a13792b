//! A loaded model on its own thread, driven by commands, heard through events.
//!
//! The backend is built on that thread and never leaves it. Events travel over a bounded channel, so a slow listener slows
//! the engine and never the other way round. Cancelling is the one thing that overtakes commands: it marks everything
//! sent so far as unwanted, and the worker looks between tensors, prompt chunks and tokens.

pub mod model;
pub mod protocol;
pub mod prove;
pub mod session;
pub mod thinking;
pub mod weights;
mod worker;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use crate::error::{Error, Kind, Result};
use protocol::{Command, Event};

/// What the engine's handles share with its thread.
#[derive(Debug, Default)]
struct Shared {
    /// Number of commands sent.
    sent: AtomicU64,
    /// Commands up to this number are cancelled.
    cancelled: AtomicU64,
    /// The engine is being dropped.
    quit: AtomicBool,
}

/// A running engine. Dropping it cancels what it does and waits for its thread.
#[derive(Debug)]
pub struct Engine {
    commands: mpsc::Sender<(u64, Command)>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Cancels what an engine does; can be cloned and sent anywhere.
#[derive(Clone, Debug)]
pub struct Canceller {
    shared: Arc<Shared>,
}

impl Engine {
    /// Starts the thread. It reports to `events`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn(events: mpsc::SyncSender<Event>) -> Result<Engine> {
        let shared = Arc::new(Shared::default());
        let (commands, queue) = mpsc::channel();
        let told = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("engine".into())
            .spawn(move || worker::Worker::new(queue, events, told).run())
            .map_err(|e| Error::io("cannot start the engine", &e))?;
        Ok(Engine { commands, shared, thread: Some(thread) })
    }

    /// Queues a command. An engine that has ended ignores it; its event channel is then closed.
    pub fn send(&self, command: Command) {
        let number = self.shared.sent.fetch_add(1, Ordering::SeqCst) + 1;
        let _ = self.commands.send((number, command));
    }

    /// A handle that cancels.
    pub fn canceller(&self) -> Canceller {
        Canceller { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        self.send(Command::Quit);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Canceller {
    /// Cancels every command sent so far, whether it has begun or not. Later ones are not affected.
    pub fn cancel(&self) {
        let sent = self.shared.sent.load(Ordering::SeqCst);
        self.shared.cancelled.fetch_max(sent, Ordering::SeqCst);
    }
}

impl Shared {
    fn is_cancelled(&self, number: u64) -> bool {
        self.quit.load(Ordering::SeqCst) || self.cancelled.load(Ordering::SeqCst) >= number
    }
}

/// The error of work that was cancelled.
fn cancelled() -> Error {
    Error::new(Kind::Interrupted, "stopped before the end", "it was cancelled", "run it again")
}

/// A panic as an error: a fault of ours, said in the same three lines as everything else.
pub fn panic_error(doing: &str, payload: &(dyn Any + Send)) -> Error {
    let message = payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    Error::new(
        Kind::Failure,
        format!("{doing} failed inside snug"),
        format!("internal error: {message}"),
        "please report this with the command line; `snug version -v` says what to add",
    )
}
