//! Conversations on disk: one file of JSON lines each, appended and synced per turn.
//!
//! ```text
//! {"type":"session","v":1,"id":"2026-11-30-142501","model":"demo"}
//! {"type":"user","text":"Hello"}
//! {"type":"assistant","model":"demo","text":"Hi.","finish":"stop", …}
//! {"type":"keep","turns":0}                                     undo: only the first 0 turns still count
//! ```
//!
//! Nothing is ever rewritten, so a crash or a power cut costs at most the reply in flight; half a line at the end is
//! dropped when the file is next opened. Files are readable by their owner only.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use directories::BaseDirs;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result, visible};

/// A line of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// The first line.
    Session {
        /// Version of the format: 1.
        v: u32,
        /// The session's id, which is also its file's name.
        id: String,
        /// The model it began with.
        model: String,
    },
    /// The name given to the session, in place of the one before.
    Name {
        /// The name.
        text: String,
    },
    /// The system message from now on.
    System {
        /// `None` removes it.
        text: Option<String>,
    },
    /// What the user said.
    User {
        /// The text.
        text: String,
    },
    /// What a model said.
    Assistant {
        /// Which.
        model: String,
        /// The text.
        text: String,
        /// The thinking before it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reasoning: String,
        /// Why it ended.
        finish: String,
        /// Tokens of the reply.
        #[serde(default)]
        tokens: u32,
        /// Tokens a second.
        #[serde(default)]
        tokens_per_s: f64,
    },
    /// Only the first so many turns (messages of user and model) still count.
    Keep {
        /// How many.
        turns: usize,
    },
    /// All turns but the last are from now on told to the model as this summary.
    Summary {
        /// The summary.
        text: String,
    },
    /// A change that must not go unseen.
    Marker {
        /// What happened.
        text: String,
    },
}

/// What a list of sessions shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The session's id.
    pub id: String,
    /// Its name, or the beginning of its first message.
    pub name: String,
    /// The model it began with.
    pub model: String,
    /// Messages that count.
    pub turns: usize,
}

/// An open session, locked against a second writer.
#[derive(Debug)]
pub struct Log {
    file: File,
    path: PathBuf,
    id: String,
}

/// The directory of state: `$XDG_STATE_HOME/snug`, or what the system has in its place.
pub fn state_dir() -> Option<PathBuf> {
    let dirs = BaseDirs::new()?;
    Some(dirs.state_dir().unwrap_or_else(|| dirs.data_local_dir()).join("snug"))
}

/// Whether conversations may be kept at all.
pub fn allowed() -> bool {
    std::env::var_os("SNUG_NO_HISTORY").is_none_or(|v| v.is_empty() || v == "0")
}

fn sessions_dir() -> Result<PathBuf> {
    state_dir().map(|dir| dir.join("sessions")).ok_or_else(|| {
        Error::new(
            Kind::Failure,
            "cannot keep conversations",
            "this user has no home directory",
            "set XDG_STATE_HOME, or SNUG_NO_HISTORY=1",
        )
    })
}

fn private_dir(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| Error::io(format!("cannot make {}", visible(&dir.to_string_lossy())), &e))
}

fn private_file(path: &Path, new: bool) -> std::io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).create_new(new).mode(0o600).open(path)
}

fn file_of(id: &str) -> Result<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if id.is_empty() || id.starts_with('.') || !id.chars().all(plain) {
        return Err(not_found(id));
    }
    Ok(sessions_dir()?.join(format!("{id}.jsonl")))
}

fn not_found(id: &str) -> Error {
    Error::new(
        Kind::Failure,
        format!("cannot find the session {}", visible(id)),
        "there is no such conversation on this machine",
        "`snug sessions` lists them",
    )
}

impl Log {
    /// A new session.
    pub fn create(model: &str) -> Result<Log> {
        let dir = sessions_dir()?;
        private_dir(&dir)?;
        let now = jiff::Zoned::now().strftime("%Y-%m-%d-%H%M%S").to_string();
        for n in 1..1000 {
            let id = if n == 1 { now.clone() } else { format!("{now}-{n}") };
            let path = dir.join(format!("{id}.jsonl"));
            match private_file(&path, true) {
                Ok(file) => {
                    let mut log = Log { file, path, id: id.clone() };
                    log.lock()?;
                    log.append(&Record::Session { v: 1, id, model: model.to_owned() })?;
                    // The name of a new file is data of its directory.
                    let _ = File::open(&dir).and_then(|d| d.sync_all());
                    return Ok(log);
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("cannot begin a session", &e)),
            }
        }
        Err(Error::new(
            Kind::Failure,
            "cannot begin a session",
            "too many at once",
            "wait a second",
        ))
    }

    /// A session that exists, to go on with it.
    pub fn open(id: &str) -> Result<(Log, Vec<Record>)> {
        let path = file_of(id)?;
        if !path.is_file() {
            return Err(not_found(id));
        }
        let failed = |e| Error::io(format!("cannot open the session {id}"), &e);
        let file = private_file(&path, false).map_err(failed)?;
        let mut log = Log { file, path, id: id.to_owned() };
        log.lock()?;
        let mut text = Vec::new();
        log.file.read_to_end(&mut text).map_err(failed)?;
        let (records, whole) = parse(&text);
        if whole < text.len() {
            log.file.set_len(whole as u64).map_err(failed)?;
            log.file.seek(SeekFrom::End(0)).map_err(failed)?;
        }
        Ok((log, records))
    }

    fn lock(&self) -> Result<()> {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::new(
                Kind::Failure,
                format!("cannot open the session {}", self.id),
                "another snug has it open",
                "close the other one, or begin a new session",
            )
        })
    }

    /// The session's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line and waits until it is on the disk.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        let failed = |e: std::io::Error| Error::io("cannot save the conversation", &e);
        let mut line = serde_json::to_vec(record).map_err(|e| failed(e.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(failed)
    }
}

/// The records of complete lines, and the bytes these take. A line that is no record ends the reading only when it is
/// the last: half a line is what a crash leaves.
fn parse(text: &[u8]) -> (Vec<Record>, usize) {
    let mut records = Vec::new();
    let mut whole = 0;
    for line in text.split_inclusive(|b| *b == b'\n') {
        if line.last() != Some(&b'\n') {
            break;
        }
        whole += line.len();
        if let Ok(record) = serde_json::from_slice(line) {
            records.push(record);
        }
    }
    (records, whole)
}

/// The records of a session.
pub fn read(id: &str) -> Result<Vec<Record>> {
    let text = fs::read(file_of(id)?).map_err(|_| not_found(id))?;
    Ok(parse(&text).0)
}

/// The file of a session, whether it exists or not.
pub fn path(id: &str) -> Result<PathBuf> {
    file_of(id)
}

/// The turns that count, oldest first: pairs of whether the user said it, and the text.
pub fn turns(records: &[Record]) -> Vec<(bool, &str)> {
    let mut turns = Vec::new();
    for record in records {
        match record {
            Record::User { text } => turns.push((true, text.as_str())),
            Record::Assistant { text, .. } => turns.push((false, text.as_str())),
            Record::Keep { turns: keep } => turns.truncate(*keep),
            _ => {}
        }
    }
    turns
}

/// All sessions, newest first. A file that cannot be read is left out.
pub fn list() -> Vec<Summary> {
    let Ok(dir) = sessions_dir() else { return Vec::new() };
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name());
    let mut ids: Vec<String> =
        names.filter_map(|n| Some(n.to_str()?.strip_suffix(".jsonl")?.to_owned())).collect();
    ids.sort();
    ids.reverse();
    ids.iter().filter_map(|id| Some(summary(id, &read(id).ok()?))).collect()
}

fn summary(id: &str, records: &[Record]) -> Summary {
    let turns = turns(records);
    let named = records.iter().rev().find_map(|r| match r {
        Record::Name { text } => Some(text.clone()),
        _ => None,
    });
    let model = records.iter().find_map(|r| match r {
        Record::Session { model, .. } => Some(model.clone()),
        _ => None,
    });
    let first = turns.iter().find(|t| t.0).map(|t| t.1.lines().next().unwrap_or_default());
    let name = named.unwrap_or_else(|| first.unwrap_or("(empty)").chars().take(60).collect());
    Summary { id: id.to_owned(), name, model: model.unwrap_or_default(), turns: turns.len() }
}

/// The session that people mean: an id, a name, or the beginning of an id that is the only one.
pub fn find(wanted: &str) -> Result<String> {
    let all = list();
    if let Some(s) = all.iter().find(|s| s.id == wanted).or(all.iter().find(|s| s.name == wanted)) {
        return Ok(s.id.clone());
    }
    let mut begin = all.iter().filter(|s| s.id.starts_with(wanted));
    match (begin.next(), begin.next()) {
        (Some(s), None) => Ok(s.id.clone()),
        _ => Err(not_found(wanted)),
    }
}

/// Removes a session.
pub fn remove(id: &str) -> Result<()> {
    fs::remove_file(file_of(id)?).map_err(|_| not_found(id))
}

/// How to write a conversation down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Markdown,
    /// One JSON array of role and content.
    Json,
    /// The records as they are.
    Lines,
}

impl Format {
    /// By its name: `md`, `json` or `jsonl`.
    pub fn named(name: &str) -> Option<Format> {
        match name {
            "md" | "markdown" => Some(Format::Markdown),
            "json" => Some(Format::Json),
            "jsonl" => Some(Format::Lines),
            _ => None,
        }
    }
}

/// A conversation in a format.
pub fn export(records: &[Record], format: Format) -> String {
    match format {
        Format::Lines => {
            let line = |r: &Record| serde_json::to_string(r).unwrap_or_default() + "\n";
            records.iter().map(line).collect()
        }
        Format::Json => {
            let mut messages: Vec<serde_json::Value> = Vec::new();
            if let Some(text) = system(records) {
                messages.push(serde_json::json!({"role": "system", "content": text}));
            }
            messages.extend(turns(records).into_iter().map(|(user, text)| {
                serde_json::json!({"role": if user { "user" } else { "assistant" }, "content": text})
            }));
            serde_json::to_string_pretty(&messages).unwrap_or_default() + "\n"
        }
        Format::Markdown => {
            let mut out = String::new();
            if let Some(text) = system(records) {
                out += &format!("## system\n\n{text}\n\n");
            }
            for (user, text) in turns(records) {
                let who = if user { "you" } else { "model" };
                out += &format!("## {who}\n\n{}\n\n", text.trim_end());
            }
            out
        }
    }
}

/// The system message that counts.
pub fn system(records: &[Record]) -> Option<&str> {
    records.iter().rev().find_map(|r| match r {
        Record::System { text } => Some(text.as_deref()),
        _ => None,
    })?
}

/// Messages that were sent, oldest first, for the composer: the last thousand.
pub fn prompts() -> Vec<String> {
    let Some(path) = state_dir().map(|d| d.join("prompts.jsonl")) else { return Vec::new() };
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<String> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    all[all.len().saturating_sub(1000)..].to_vec()
}

/// Adds a message to them.
pub fn add_prompt(text: &str) -> Result<()> {
    let Some(dir) = state_dir() else { return Ok(()) };
    private_dir(&dir)?;
    let line = serde_json::to_string(text).unwrap_or_default() + "\n";
    private_file(&dir.join("prompts.jsonl"), false)
        .and_then(|mut f| f.write_all(line.as_bytes()))
        .map_err(|e| Error::io("cannot save the message", &e))
}

/// Removes the messages that were sent. True when there were any.
pub fn clear_prompts() -> bool {
    state_dir().is_some_and(|d| fs::remove_file(d.join("prompts.jsonl")).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_dropped_and_undo_counts() {
        let text = b"{\"type\":\"user\",\"text\":\"a\"}\nnonsense\n{\"type\":\"assistant\",\"model\":\"m\",\"text\":\"b\",\"finish\":\"stop\"}\n{\"type\":\"keep\",\"turns\":1}\n{\"type\":\"assistant\",\"model\":\"m\",\"text\":\"c\",\"finish\":\"stop\"}\n{\"type\":\"us";
        let (records, whole) = parse(text);
        assert_eq!(whole, text.len() - 11);
        assert_eq!(turns(&records), [(true, "a"), (false, "c")]);
        for cut in 0..text.len() {
            let (records, whole) = parse(&text[..cut]);
            assert!(whole <= cut && parse(&text[..whole]).0 == records);
        }
    }

    #[test]
    fn ids_cannot_leave_the_directory() {
        for bad in ["", "../x", "/etc/passwd", ".hidden", "a/b", "a\0"] {
            assert!(file_of(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn exports_say_what_counts() {
        let records = [
            Record::System { text: Some("S".into()) },
            Record::User { text: "a".into() },
            Record::Keep { turns: 0 },
            Record::User { text: "b".into() },
        ];
        assert_eq!(export(&records, Format::Markdown), "## system\n\nS\n\n## you\n\nb\n\n");
        let json: serde_json::Value =
            serde_json::from_str(&export(&records, Format::Json)).unwrap();
        assert_eq!(json[1]["content"], "b");
        assert_eq!(parse(export(&records, Format::Lines).as_bytes()).0, records);
    }
}
