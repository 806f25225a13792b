//! The one error type: three lines for people, one [`Kind`] for programs.
//!
//! Reporting and branching are different jobs. `what`, `why` and `todo` are sentences for whoever reads the
//! terminal; `kind` is the process exit code and the only thing code may branch on.

use std::fmt;

/// What went wrong, as a class that scripts can rely on. The discriminant is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Anything without a code of its own.
    Failure = 1,
    /// The command line was wrong.
    Usage = 2,
    /// The model is not here (or offline and absent).
    ModelNotFound = 3,
    /// A gated or private model, or a rejected token.
    Auth = 4,
    /// The network failed.
    Network = 5,
    /// The disk is full.
    DiskFull = 6,
    /// The model or its context does not fit in memory.
    DoesNotFit = 7,
    /// No usable GPU, driver or kernel.
    NoGpu = 8,
    /// `verify` found a difference.
    Mismatch = 9,
    /// A file is corrupt, or asks for something unsupported.
    BadFile = 10,
    /// The prompt does not fit in the context.
    ContextOverflow = 11,
    /// Input text is not UTF-8.
    NotUtf8 = 12,
    /// A threshold given by the user was crossed (`--fail-on`, `diff`).
    Threshold = 20,
    /// `--timeout` ran out.
    Timeout = 124,
    /// SIGHUP arrived.
    Hangup = 129,
    /// SIGINT arrived (Ctrl-C).
    Interrupted = 130,
    /// SIGTERM arrived.
    Terminated = 143,
}

impl Kind {
    /// Every kind, for documentation and tests.
    pub const ALL: [Kind; 17] = [
        Kind::Failure,
        Kind::Usage,
        Kind::ModelNotFound,
        Kind::Auth,
        Kind::Network,
        Kind::DiskFull,
        Kind::DoesNotFit,
        Kind::NoGpu,
        Kind::Mismatch,
        Kind::BadFile,
        Kind::ContextOverflow,
        Kind::NotUtf8,
        Kind::Threshold,
        Kind::Timeout,
        Kind::Hangup,
        Kind::Interrupted,
        Kind::Terminated,
    ];

    /// The process exit code.
    pub fn exit_code(self) -> u8 {
        self as u8
    }

    /// The name used in JSON error records.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Failure => "failure",
            Kind::Usage => "usage",
            Kind::ModelNotFound => "model_not_found",
            Kind::Auth => "auth",
            Kind::Network => "network",
            Kind::DiskFull => "disk_full",
            Kind::DoesNotFit => "does_not_fit",
            Kind::NoGpu => "no_gpu",
            Kind::Mismatch => "mismatch",
            Kind::BadFile => "bad_file",
            Kind::ContextOverflow => "context_overflow",
            Kind::NotUtf8 => "not_utf8",
            Kind::Threshold => "threshold",
            Kind::Timeout => "timeout",
            Kind::Hangup => "hangup",
            Kind::Interrupted => "interrupted",
            Kind::Terminated => "terminated",
        }
    }
}

/// An error as people see it: what failed, why, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The class, and the exit code.
    pub kind: Kind,
    /// What could not be done: "cannot load qwen3-4b.snug".
    pub what: String,
    /// The reason, with values: "tensor x has hash 9f1c…, the header says 77ab…".
    pub why: String,
    /// What the reader can do: "pack it again".
    pub todo: String,
}

/// `std::result::Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Builds an error from its three lines.
    pub fn new(
        kind: Kind,
        what: impl Into<String>,
        why: impl Into<String>,
        todo: impl Into<String>,
    ) -> Error {
        Error { kind, what: what.into(), why: why.into(), todo: todo.into() }
    }

    /// A corrupt or unsupported file.
    pub fn bad_file(
        what: impl Into<String>,
        why: impl Into<String>,
        todo: impl Into<String>,
    ) -> Error {
        Error::new(Kind::BadFile, what, why, todo)
    }

    /// An operating-system error while doing `what`; picks the kind from the error.
    pub fn io(what: impl Into<String>, e: &std::io::Error) -> Error {
        use std::io::ErrorKind as E;
        let (kind, todo) = match e.kind() {
            E::StorageFull | E::QuotaExceeded | E::FileTooLarge => {
                (Kind::DiskFull, "free some space, or write to another disk")
            }
            E::NotFound => (Kind::Failure, "check the path"),
            E::PermissionDenied => (Kind::Failure, "check the permissions of the path"),
            E::OutOfMemory => (Kind::DoesNotFit, "free some memory, or use a smaller model"),
            _ => (Kind::Failure, "check the disk and try again"),
        };
        Error::new(kind, what, e.to_string(), todo)
    }

    /// The same error with another first line, to say what the caller was doing.
    pub fn while_doing(mut self, what: impl Into<String>) -> Error {
        self.why = format!("{}: {}", self.what, self.why);
        self.what = what.into();
        self
    }
}

/// Text from a file, made safe to show: control characters and text-direction marks become visible, and only the
/// first 120 characters are kept.
pub fn visible(text: &str) -> String {
    const MOST: usize = 120;
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == MOST {
            out.push('…');
            break;
        }
        match c {
            '\0'..='\x1f' => out.extend(char::from_u32(0x2400 + c as u32)),
            '\x7f' => out.push('␡'),
            '\u{80}'..='\u{9f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => out.extend(c.escape_unicode()),
            _ => out.push(c),
        }
    }
    out
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\n  why: {}\n  try: {}", self.what, self.why, self.todo)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn text_from_files_cannot_drive_the_terminal() {
        for (text, want) in [
            ("model.norm.weight", "model.norm.weight"),
            ("a\x1b]52;c;x\x07\r\n", "a␛]52;c;x␇␍␊"),
            ("\u{9b}2J\x7f", "\\u{9b}2J␡"),
            ("ab\u{202e}cd", "ab\\u{202e}cd"),
            ("größe 模型", "größe 模型"),
        ] {
            assert_eq!(visible(text), want);
        }
        assert_eq!(visible(&"x".repeat(1000)).chars().count(), 121);
    }
}
