//! Text that comes in: arguments, files, stdin. UTF-8 or a named byte; never a silent wait.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::output::note;
use super::signals::{Answer, Signals};
use crate::error::{Error, Kind, Result};

/// How long stdin may be silent before a hint says that it is being waited for.
const HINT_AFTER: Duration = Duration::from_secs(2);

/// What stdin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// A terminal.
    Terminal,
    /// A pipe, socket or regular file: it may hold text.
    Data,
    /// `/dev/null` and the like.
    Nothing,
}

/// Looks at stdin without reading it.
pub fn stdin_kind() -> Stdin {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Stdin::Terminal;
    }
    match rustix::fs::fstat(&stdin) {
        Ok(stat) => match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::CharacterDevice => Stdin::Nothing,
            _ => Stdin::Data,
        },
        Err(_) => Stdin::Nothing,
    }
}

/// Whether stdin is a pipe with bytes waiting, so that ignoring it deserves a word.
pub fn pipe_has_data() -> bool {
    let stdin = io::stdin();
    let fifo = rustix::fs::fstat(&stdin).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Fifo
    });
    fifo && rustix::io::ioctl_fionread(&stdin).is_ok_and(|n| n > 0)
}

/// Pieces of stdin as they arrive, read by a thread of its own so that the reader can give up waiting.
pub struct Arriving {
    pieces: Receiver<io::Result<Vec<u8>>>,
}

impl Arriving {
    /// Starts to read stdin.
    pub fn start() -> Result<Arriving> {
        let (tx, pieces) = mpsc::sync_channel(4);
        thread::Builder::new()
            .name("stdin".into())
            .spawn(move || {
                let mut buffer = vec![0u8; 64 << 10];
                loop {
                    let piece = match io::stdin().lock().read(&mut buffer) {
                        Ok(0) => return,
                        Ok(n) => Ok(buffer[..n].to_vec()),
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                        Err(e) => Err(e),
                    };
                    let failed = piece.is_err();
                    if tx.send(piece).is_err() || failed {
                        return;
                    }
                }
            })
            .map_err(|e| Error::io("cannot read standard input", &e))?;
        Ok(Arriving { pieces })
    }

    /// The next piece; `Ok(None)` is the end, `Err(None)` that nothing came in time.
    pub fn next(&self, wait: Duration) -> Result<Option<Vec<u8>>, Option<Error>> {
        match self.pieces.recv_timeout(wait) {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(e)) => Err(Some(Error::io("cannot read standard input", &e))),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(None),
        }
    }
}

/// Reads stdin to its end. `None`: it did not end within `timeout`.
///
/// # Errors
/// Reading failed, or a signal came.
pub fn read_stdin(
    timeout: Option<Duration>,
    quiet: bool,
    signals: &Signals,
) -> Result<Option<Vec<u8>>> {
    /// How often to look for signals.
    const TICK: Duration = Duration::from_millis(50);
    signals.hook(|_| Answer::Ends(10 * TICK));
    let arriving = Arriving::start()?;
    let start = Instant::now();
    let mut all = Vec::new();
    let mut hinted = quiet;
    loop {
        match arriving.next(TICK) {
            Ok(Some(bytes)) => all.extend_from_slice(&bytes),
            Ok(None) => {
                signals.check()?;
                return Ok(Some(all));
            }
            Err(Some(e)) => return Err(e),
            Err(None) => signals.check()?,
        }
        if timeout.is_some_and(|t| start.elapsed() >= t) {
            return Ok(None);
        }
        if !hinted && start.elapsed() >= HINT_AFTER {
            note("snug: waiting for standard input to end (Ctrl-D in a terminal)");
            hinted = true;
        }
    }
}

/// Reads a text file.
pub fn read_file(path: &Path, lossy: bool) -> Result<String> {
    let bytes =
        fs::read(path).map_err(|e| Error::io(format!("cannot read {}", path.display()), &e))?;
    decode(bytes, &path.display().to_string(), lossy)
}

/// An argument as text.
pub fn argument(value: &OsStr, name: &str, lossy: bool) -> Result<String> {
    decode(value.as_encoded_bytes().to_vec(), name, lossy)
}

/// Bytes as text. NUL and CR pass; a UTF-8 byte order mark at the start is dropped.
///
/// # Errors
/// `NotUtf8`, with the place of the first bad byte, unless `lossy` replaces it; always for UTF-16 and UTF-32.
pub fn decode(bytes: Vec<u8>, origin: &str, lossy: bool) -> Result<String> {
    let refuse = |why: String, from: &str| {
        let todo = format!("convert it first: `iconv -f {from} -t UTF-8`");
        Err(Error::new(Kind::NotUtf8, format!("cannot read {origin} as text"), why, todo))
    };
    for (mark, name) in [
        (&[0xff, 0xfe, 0, 0][..], "UTF-32LE"),
        (&[0, 0, 0xfe, 0xff], "UTF-32BE"),
        (&[0xff, 0xfe], "UTF-16LE"),
        (&[0xfe, 0xff], "UTF-16BE"),
    ] {
        if bytes.starts_with(mark) {
            return refuse(format!("it begins with the byte order mark of {name}"), name);
        }
    }
    let bytes = match bytes.strip_prefix(b"\xef\xbb\xbf") {
        Some(rest) => rest.to_vec(),
        None => bytes,
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(e) if lossy => Ok(String::from_utf8_lossy(e.as_bytes()).into_owned()),
        Err(e) => {
            let at = e.utf8_error().valid_up_to();
            let line = 1 + e.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
            let byte = e.as_bytes()[at];
            let fault = match e.utf8_error().error_len() {
                None => "begins a character that the text ends within",
                Some(_) => "is not UTF-8",
            };
            Err(Error::new(
                Kind::NotUtf8,
                format!("cannot read {origin} as text"),
                format!("the byte 0x{byte:02x} at offset {at} (line {line}) {fault}"),
                "convert it (`iconv -f LATIN1 -t UTF-8`), or use --lossy to replace such bytes by U+FFFD",
            ))
        }
    }
}

/// A duration as people write it: `90`, `90s`, `500ms`, `2m`, `1h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is not a unit of time; use ms, s, m or h")),
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|n| Duration::try_from_secs_f64(n * scale).ok())
        .ok_or_else(|| "write a time like 90s, 500ms or 2m".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_bytes_are_named_by_place_and_line() {
        for (bytes, want) in [
            (&b"caf\xe9"[..], "0xe9 at offset 3 (line 1) begins"),
            (b"a\nb\n\xe2", "0xe2 at offset 4 (line 3) begins"),
            (b"a\n\xffb", "0xff at offset 2 (line 2) is not"),
            (b"\xff\xfeh\0i\0", "UTF-16LE"),
            (b"\xfe\xff\0h", "UTF-16BE"),
            (b"\xff\xfe\0\0h\0\0\0", "UTF-32LE"),
        ] {
            let e = decode(bytes.to_vec(), "stdin", false).unwrap_err();
            assert_eq!(e.kind, Kind::NotUtf8);
            assert!(e.why.contains(want), "{} lacks {want}", e.why);
        }
        for (bytes, want) in [
            (&b"a\0b\r\nc"[..], "a\0b\r\nc"),
            (b"\xef\xbb\xbfx", "x"),
            ("größe 😸".as_bytes(), "größe 😸"),
        ] {
            assert_eq!(decode(bytes.to_vec(), "stdin", false).unwrap(), want);
        }
        assert_eq!(decode(b"caf\xe9!".to_vec(), "stdin", true).unwrap(), "caf\u{fffd}!");
    }

    #[test]
    fn durations_have_units() {
        for (text, ms) in [("90", 90_000), ("1.5s", 1500), ("250ms", 250), ("2m", 120_000)] {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for bad in ["", "s", "1d", "-1s", "1e9h", "1..2"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
