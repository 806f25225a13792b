//! Ctrl-C, SIGTERM, SIGHUP and `--timeout`: four reasons to stop, one way to hear of them.
//!
//! A thread waits for signals and tells the hook of whoever is working. The hook asks for an orderly stop; when that
//! takes too long, or Ctrl-C comes again within two seconds, the process ends at once. Without a hook it always does.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals as Waiting;

use crate::error::{Error, Kind, Result};

/// A second Ctrl-C within this time ends the process at once.
pub const TWICE: Duration = Duration::from_secs(2);

/// How long the full-screen client gets to leave in good order.
pub const GRACE: Duration = Duration::from_secs(1);

/// What a hook does about a reason to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing ends (a chat stops its reply).
    Stays,
    /// The command ends by itself within this time.
    Ends(Duration),
}

type Hook = Box<dyn Fn(Kind) -> Answer + Send>;

#[derive(Default)]
struct State {
    hook: Option<Hook>,
    reason: Option<Kind>,
    interrupted: Option<Instant>,
}

/// A handle on the reasons to stop; clones are the same.
#[derive(Clone, Default)]
pub struct Signals {
    state: Arc<Mutex<State>>,
}

impl Signals {
    /// Starts to listen. Signals that were ignored when the process started (`nohup`, background jobs) stay ignored.
    pub fn listen() -> Result<Signals> {
        let signals = Signals::default();
        let ignored = ignored_at_start();
        let wanted: Vec<i32> = [SIGINT, SIGTERM, SIGHUP]
            .into_iter()
            .filter(|s| ignored & (1 << (s - 1)) == 0)
            .collect();
        let failed = |e| Error::io("cannot listen for signals", &e);
        let mut waiting = Waiting::new(wanted).map_err(failed)?;
        // Without a handler a file-size limit kills; with one the write fails, and says so.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map_err(failed)?;
        let told = signals.clone();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in waiting.forever() {
                    told.stop(match signal {
                        SIGTERM => Kind::Terminated,
                        SIGHUP => Kind::Hangup,
                        _ => Kind::Interrupted,
                    });
                }
            })
            .map_err(failed)?;
        Ok(signals)
    }

    /// Calls `hook` for every reason to stop, in place of the hook before; at once, if there has been one already.
    pub fn hook(&self, hook: impl Fn(Kind) -> Answer + Send + 'static) {
        let mut state = self.lock();
        if let Some(kind) = state.reason {
            hook(kind);
        }
        state.hook = Some(Box::new(hook));
    }

    /// Why the command has to end, if it has to.
    pub fn reason(&self) -> Option<Kind> {
        self.lock().reason
    }

    /// The reason as an error, for work that polls.
    pub fn check(&self) -> Result<()> {
        match self.reason() {
            Some(kind) => Err(stopped(kind)),
            None => Ok(()),
        }
    }

    /// Counts as a reason to stop once `after` has passed.
    pub fn deadline(&self, after: Duration) -> Result<()> {
        let told = self.clone();
        thread::Builder::new()
            .name("deadline".into())
            .spawn(move || {
                thread::sleep(after);
                told.stop(Kind::Timeout);
            })
            .map(drop)
            .map_err(|e| Error::io("cannot start a timer", &e))
    }

    fn stop(&self, kind: Kind) {
        let mut state = self.lock();
        let now = Instant::now();
        let again = state.interrupted.is_some_and(|before| now - before < TWICE);
        if kind == Kind::Interrupted {
            state.interrupted = Some(now);
        }
        match state.hook.as_ref().map(|hook| hook(kind)) {
            Some(Answer::Stays) => {}
            Some(Answer::Ends(within)) if !(again && kind == Kind::Interrupted) => {
                state.reason.get_or_insert(kind);
                drop(state);
                // The orderly way may be blocked, for instance by a full pipe.
                let _ = thread::Builder::new().spawn(move || {
                    thread::sleep(within);
                    end(kind);
                });
            }
            _ => end(kind),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of a command that was stopped.
pub fn stopped(kind: Kind) -> Error {
    let (why, todo) = match kind {
        Kind::Timeout => ("the time given by --timeout is over", "give it more time"),
        Kind::Terminated => ("SIGTERM arrived", "run it again"),
        Kind::Hangup => ("the terminal was closed", "run it again"),
        _ => ("Ctrl-C was pressed", "run it again"),
    };
    Error::new(kind, "stopped before the end", why, todo)
}

fn end(kind: Kind) -> ! {
    crate::ui::term::restore();
    if kind == Kind::Timeout {
        super::output::note(stopped(kind));
    }
    // Nobody unwinds from here.
    crate::store::discard_unfinished();
    std::process::exit(kind.exit_code().into())
}

/// The mask of signals that this process was told to ignore, where the system says so.
fn ignored_at_start() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        })
        .unwrap_or(0)
}
