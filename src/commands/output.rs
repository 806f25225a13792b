//! Everything that leaves the program: replies and data on stdout, notes and errors on stderr.
//!
//! No `println!` anywhere: it panics when the reader of a pipe has gone. Here a closed pipe is [`Exit::Closed`], a quiet
//! success.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde_json::{Value, json};

use crate::error::{Error, Kind};
use crate::text::sanitize::VisibleStream;

/// Why a command ended before its end.
#[derive(Debug)]
pub enum Exit {
    /// It failed.
    Error(Error),
    /// Whoever read stdout has gone, so there is nothing left to do.
    Closed,
    /// It failed, and has said so itself.
    Told(Kind),
}

impl From<Error> for Exit {
    fn from(e: Error) -> Exit {
        Exit::Error(e)
    }
}

/// What a command returns.
pub type Outcome<T = ()> = Result<T, Exit>;

/// stdout. Bytes pass unchanged unless it is a terminal, where reply text cannot drive the terminal.
pub struct Out {
    stdout: io::Stdout,
    terminal: bool,
    stream: VisibleStream,
}

impl Out {
    /// This process's stdout.
    pub fn new() -> Out {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Out { stdout, terminal, stream: VisibleStream::new() }
    }

    /// Whether people read it.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes a piece of a reply, or other text that came from a model or a file, and flushes it.
    pub fn text(&mut self, text: &str) -> Outcome {
        let written = if self.terminal {
            let safe = self.stream.push(text);
            self.stdout.write_all(safe.as_bytes())
        } else {
            self.stdout.write_all(text.as_bytes())
        };
        self.check(written)?;
        self.flush()
    }

    /// Ends a reply: what waited for its next piece is written.
    pub fn end_text(&mut self) -> Outcome {
        let rest = self.stream.finish();
        self.bytes(rest.as_bytes())?;
        self.flush()
    }

    /// Writes one line of our own.
    pub fn line(&mut self, line: impl Display) -> Outcome {
        let written = writeln!(self.stdout, "{line}");
        self.check(written)
    }

    /// Writes one JSON object on one line, and flushes it.
    pub fn json(&mut self, value: &Value) -> Outcome {
        let written = writeln!(self.stdout, "{value}");
        self.check(written)?;
        self.flush()
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Outcome {
        let written = self.stdout.write_all(bytes);
        self.check(written)
    }

    /// Hands everything to the system.
    pub fn flush(&mut self) -> Outcome {
        let flushed = self.stdout.flush();
        self.check(flushed)
    }

    fn check(&self, result: io::Result<()>) -> Outcome {
        match result {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Exit::Closed),
            Err(e) => Err(Error::io("cannot write to standard output", &e).into()),
        }
    }
}

impl Default for Out {
    fn default() -> Out {
        Out::new()
    }
}

/// Writes a line to stderr; nobody listening is no reason to fail.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The error as a JSON record.
pub fn error_record(e: &Error) -> Value {
    json!({
        "v": 1,
        "type": "error",
        "code": e.kind.name(),
        "exit": e.kind.exit_code(),
        "message": format!("{}: {}", e.what, e.why),
        "hint": e.todo,
    })
}

/// The only place that prints errors: three lines on stderr, and with `--json` a last record on stdout.
/// Someone who pressed Ctrl-C knows; that gets no lines.
pub fn print_error(e: &Error, json: bool) {
    if json {
        let mut stdout = io::stdout();
        let _ = writeln!(stdout, "{}", error_record(e)).and_then(|()| stdout.flush());
    }
    if !matches!(e.kind, Kind::Interrupted | Kind::Terminated | Kind::Hangup) {
        note(e);
    }
}

/// Writes text that came from a model to stderr, harmless and without a line end.
pub fn aside(text: &str) {
    let _ = write!(io::stderr(), "{}", crate::text::sanitize::visible(text));
}
