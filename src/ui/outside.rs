//! What happens outside of the screen: keys coming in, and the ways to leave the screen for a while.

use std::io::{self, BufRead, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, kill_current_process_group};

use super::events::{AppEvent, News};
use super::{Outbox, start, term, translated};
use crate::error::{Error, Kind, Result};
use crate::text::sanitize;

/// How long the input thread waits for a key before it looks at the gate.
const LOOK: Duration = Duration::from_millis(50);
/// How long to wait for the input thread to step aside, and for a stop to take effect.
const ASIDE: Duration = Duration::from_millis(300);

/// Lets keys in, or not: while an editor runs, the keys are its own.
#[derive(Clone, Debug)]
pub struct Gate {
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    aside: bool,
}

/// The gate opens again when this goes.
#[derive(Debug)]
pub struct Closed(Gate);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.lock().closed = false;
        self.0.state.1.notify_all();
    }
}

impl Gate {
    /// Starts the thread that reads keys.
    pub fn open(to: Outbox) -> Result<Gate> {
        let gate = Gate { state: Arc::default() };
        let mine = gate.clone();
        start("input", move || {
            while mine.pass() {
                match crossterm::event::poll(LOOK) {
                    Ok(false) => continue,
                    Ok(true) => {}
                    Err(_) => {
                        to.send(AppEvent::Signal(Kind::Hangup));
                        return;
                    }
                }
                let Ok(event) = crossterm::event::read() else {
                    to.send(AppEvent::Signal(Kind::Hangup));
                    return;
                };
                if let Some(event) = translated(event)
                    && !to.send(event)
                {
                    return;
                }
            }
        })?;
        Ok(gate)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the gate is closed.
    fn pass(&self) -> bool {
        let mut state = self.lock();
        while state.closed {
            state.aside = true;
            self.state.1.notify_all();
            state = self.state.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.aside = false;
        true
    }

    /// Closes it, and waits until nobody reads keys any more.
    pub fn close(&self) -> Closed {
        let mut state = self.lock();
        state.closed = true;
        let waited = self.state.1.wait_timeout_while(state, ASIDE, |s| !s.aside);
        drop(waited);
        Closed(self.clone())
    }
}

/// Stops this program and everything it was started with, as the terminal would for Ctrl-Z. Returns when it goes on.
pub fn suspend() -> Result<()> {
    let failed = |e: rustix::io::Errno| Error::io("cannot stop", &e.into());
    kill_current_process_group(Signal::TSTP).map_err(failed)?;
    // The stop reaches this thread a moment later. Where nobody could let it go on, it does not come at all.
    std::thread::sleep(ASIDE);
    Ok(())
}

/// The program that an environment variable names, through a shell: such variables may carry arguments.
fn shell(variables: &[&str], fallback: &str) -> Command {
    let set = |name: &&str| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
    let program = variables.iter().find_map(set).unwrap_or_else(|| fallback.into());
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{program} \"$@\"")).arg("sh");
    command
}

/// Lets the user edit text.
pub fn editor(text: &str) -> Result<Vec<News>> {
    let failed = |e: io::Error| Error::io("cannot edit the draft", &e);
    let mut file =
        tempfile::Builder::new().prefix("snug-draft-").suffix(".md").tempfile().map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    let status = shell(&["VISUAL", "EDITOR"], "vi").arg(file.path()).status().map_err(failed)?;
    if !status.success() {
        return Ok(vec![News::Hint("the editor failed; the draft is as it was".into())]);
    }
    let edited = std::fs::read(file.path()).map_err(failed)?;
    let edited = String::from_utf8(edited).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::new(
            Kind::NotUtf8,
            "cannot read the draft",
            format!("byte {at} of it is not UTF-8"),
            "save it as UTF-8",
        )
    })?;
    Ok(vec![News::Edited(edited)])
}

/// Shows text on the normal screen, nothing wrapped, until Enter is pressed.
pub fn raw(text: &str) -> Result<()> {
    let failed = |e: io::Error| Error::io("cannot write to the terminal", &e);
    let mut out = io::stdout();
    write!(out, "\n{}\n── Enter goes back to the chat ──\n", sanitize::visible(text))
        .and_then(|()| out.flush())
        .map_err(failed)?;
    io::stdin().lock().read_line(&mut String::new()).map(drop).map_err(failed)
}

/// Shows text in a pager.
pub fn pager(text: &str) -> Result<()> {
    let failed = |e: io::Error| Error::io("cannot run the pager", &e);
    let mut child =
        shell(&["SNUG_PAGER", "PAGER"], "less").stdin(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A pager that is left early closes its end: that is no failure.
        let _ = stdin.write_all(sanitize::visible(text).as_bytes());
    }
    child.wait().map(drop).map_err(failed)
}

/// Puts text into the clipboard: the terminal's own, and that of the surroundings where a program for it is there.
pub fn copy(text: &str) -> Result<()> {
    term::copy(text)?;
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    let program: &[&str] = match () {
        () if set("TMUX") => &["tmux", "load-buffer", "-w", "-"],
        () if set("WAYLAND_DISPLAY") => &["wl-copy"],
        () if set("DISPLAY") => &["xclip", "-selection", "clipboard"],
        () => return Ok(()),
    };
    let child = Command::new(program[0])
        .args(&program[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    // The terminal has the text already; this is a second way to the same.
    if let Ok(mut child) = child {
        let text = text.to_owned();
        return start("clipboard", move || {
            if let Some(mut stdin) = child.stdin.take() {
                let _ = stdin.write_all(text.as_bytes());
            }
            let _ = child.wait();
        });
    }
    Ok(())
}
