//! Long work without an engine: a bar, a pool of the size that was asked for, and an orderly stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::globals::Context;
use super::progress::Progress;
use super::signals::{Answer, Signals, stopped};
use super::threads;
use crate::error::{Error, Kind, Result};

/// What is at work is finished before a command stops; this long is granted.
const GRACE: Duration = Duration::from_secs(30);

/// Reports progress; called from several threads.
pub type Report<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Work that signals can stop.
pub struct Work {
    cancelled: Arc<AtomicBool>,
    signals: Signals,
    quiet: bool,
    jobs: Option<usize>,
}

impl Work {
    /// From now on signals stop it.
    pub fn new(cx: &Context, jobs: Option<usize>) -> Work {
        let cancelled = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&cancelled);
        cx.signals.hook(move |_| {
            told.store(true, Ordering::SeqCst);
            Answer::Ends(GRACE)
        });
        Work { cancelled, signals: cx.signals.clone(), quiet: cx.globals.quiet, jobs }
    }

    /// Whether to give up.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// The same as an error.
    pub fn go_on(&self) -> Result<()> {
        match self.is_cancelled() {
            true => Err(stopped(self.signals.reason().unwrap_or(Kind::Interrupted))),
            false => Ok(()),
        }
    }

    /// Does one thing, with a bar of this label.
    pub fn run<T: Send>(
        &self,
        label: &str,
        f: impl FnOnce(Report<'_>) -> Result<T> + Send,
    ) -> Result<T> {
        let bar = Mutex::new(Progress::new(label, self.quiet));
        let report = |done, of| bar.lock().unwrap_or_else(PoisonError::into_inner).bytes(done, of);
        threads::on(self.jobs, || f(&report))?.map_err(|e| self.named(e))
    }

    /// Work that was interrupted says by what.
    fn named(&self, e: Error) -> Error {
        match (e.kind, self.signals.reason()) {
            (Kind::Interrupted, Some(kind)) => stopped(kind),
            _ => e,
        }
    }
}
