//! The terminal itself: which modes are on, and the one place that takes them back.
//!
//! Whatever way the program ends (return, error, panic, signal), [`restore`] runs, and runs once: modes are undone only
//! while they are on. What is drawn is collected and written in one piece, between the marks that keep terminals from
//! showing half a frame; a frame that changes nothing writes nothing.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{MoveTo, Show};
use crossterm::event::{
    DisableBracketedPaste, EnableBracketedPaste, KeyboardEnhancementFlags,
    PopKeyboardEnhancementFlags, PushKeyboardEnhancementFlags,
};
use crossterm::style::ResetColor;
use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen,
    LeaveAlternateScreen,
};
use crossterm::{Command, queue};

use crate::error::{Error, Result};
use crate::text::base64::base64;

/// Whether our modes are on.
static ON: AtomicBool = AtomicBool::new(false);

/// The modes of a full-screen program, while this lives.
#[derive(Debug)]
pub struct Guard(());

impl Guard {
    /// Turns them on.
    ///
    /// # Errors
    /// There is no terminal, or it cannot be written.
    pub fn new() -> Result<Guard> {
        enter()?;
        Ok(Guard(()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        restore();
    }
}

fn failed(e: io::Error) -> Error {
    Error::io("cannot use the terminal", &e)
}

/// Turns the modes on, if they are off.
pub fn enter() -> Result<()> {
    terminal::enable_raw_mode().map_err(failed)?;
    ON.store(true, Ordering::SeqCst);
    let mut out = Vec::new();
    let flags = KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES;
    let queued = queue!(
        out,
        EnterAlternateScreen,
        DisableLineWrap,
        EnableBracketedPaste,
        PushKeyboardEnhancementFlags(flags),
        Clear(ClearType::All),
        MoveTo(0, 0),
    );
    queued.and_then(|()| write(&out)).map_err(failed)
}

/// Turns the modes on, whatever this program believes: after a stop the terminal may have been changed.
pub fn enter_again() -> Result<()> {
    if ON.load(Ordering::SeqCst) {
        let _ = terminal::disable_raw_mode();
    }
    enter()
}

/// Whether the modes are on.
pub fn is_on() -> bool {
    ON.load(Ordering::SeqCst)
}

/// Turns the modes off, if they are on. Never fails: there is nothing to be done about a terminal that has gone.
pub fn restore() {
    if !ON.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = Vec::new();
    let _ = wheel_off(&mut out);
    let _ = queue!(
        out,
        PopKeyboardEnhancementFlags,
        DisableBracketedPaste,
        EnableLineWrap,
        ResetColor,
        Show,
        LeaveAlternateScreen,
    );
    let _ = write(&out);
    let _ = terminal::disable_raw_mode();
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Lets the terminal report the wheel (and nothing else of the mouse), or not.
pub fn wheel(on: bool) -> Result<()> {
    let bytes: &[u8] = if on { b"\x1b[?1000h\x1b[?1006h" } else { b"\x1b[?1006l\x1b[?1000l" };
    write(bytes).map_err(failed)
}

fn wheel_off(out: &mut Vec<u8>) -> io::Result<()> {
    out.write_all(b"\x1b[?1006l\x1b[?1000l")
}

/// Collects what is drawn. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    waiting: Rc<RefCell<Vec<u8>>>,
}

impl Write for Frames {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Writing is for [`Frames::send`]; a library that flushes in the middle of a frame must not show half of it.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Frames {
    /// Writes what was collected, as one frame. Gives back how many bytes that were.
    pub fn send(&self) -> Result<usize> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            return Ok(0);
        }
        let mut frame = String::new();
        let _ = terminal::BeginSynchronizedUpdate.write_ansi(&mut frame);
        let mut bytes = frame.into_bytes();
        bytes.append(&mut waiting);
        let mut end = String::new();
        let _ = terminal::EndSynchronizedUpdate.write_ansi(&mut end);
        bytes.extend_from_slice(end.as_bytes());
        write(&bytes).map_err(failed)?;
        Ok(bytes.len())
    }
}

/// Puts text into the clipboard of the terminal, also over SSH (OSC 52).
pub fn copy(text: &str) -> Result<()> {
    let mut bytes = b"\x1b]52;c;".to_vec();
    bytes.extend_from_slice(base64(text.as_bytes()).as_bytes());
    bytes.push(b'\x07');
    write(&bytes).map_err(failed)
}
