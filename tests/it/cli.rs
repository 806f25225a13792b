//! The program from outside: arguments, pipes, terminals, signals, exit codes, JSON.

mod bench;
mod commands;
mod drivers;
mod replies;
mod signals;
mod streams;
mod terminal;
mod texts;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use snug::store::demo;
use snug::text::Tokenizer;
use tempfile::TempDir;

/// A place of its own for one test: an empty store, no settings from outside.
pub struct Place {
    pub dir: TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: TempDir::new().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program with these arguments, silent streams, and nothing inherited that could change it.
    pub fn snug(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_snug"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SNUG_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env("SNUG_STORE", self.path("store"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("NO_COLOR")
            .env_remove("TMUX")
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        self.snug(args).output().unwrap().into()
    }

    /// Runs with these bytes as stdin, which then ends.
    pub fn run_with(&self, args: &[&str], stdin: &[u8]) -> Ran {
        let mut child = self.snug(args).stdin(Stdio::piped()).spawn().unwrap();
        // A program that needs no stdin may be gone by now.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        child.wait_with_output().unwrap().into()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A device that says these pieces of text and then ends the turn; `more` adds to the script.
    pub fn device(&self, tokens: &[u32], more: Value) -> String {
        let mut script = json!({ "tokens": tokens });
        for (key, value) in more.as_object().unwrap() {
            script[key] = value.clone();
        }
        let name = format!("script-{}.json", fs::read_dir(self.dir.path()).unwrap().count());
        format!("script:{}", self.write(&name, script.to_string()))
    }

    /// The built-in model as a file.
    pub fn demo_file(&self, name: &str) -> String {
        self.write(name, demo::bytes())
    }

    /// Files that are in the place, without the scripts.
    pub fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<String> = names.map(|n| n.to_str().unwrap().to_owned()).collect();
        names.retain(|n| !n.starts_with("script-"));
        names.sort();
        names
    }
}

/// What a finished program left.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(o: Output) -> Ran {
        Ran {
            code: o.status.code(),
            stdout: o.stdout,
            stderr: String::from_utf8_lossy(&o.stderr).into_owned(),
        }
    }
}

impl Ran {
    pub fn out(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// It failed with this code and said what, why and what to do, in three lines that end stderr.
    #[track_caller]
    pub fn fails(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        let lines: Vec<&str> = self.stderr.trim_end().lines().collect();
        let [.., what, why, todo] = lines.as_slice() else {
            panic!("fewer than three lines: {self:?}")
        };
        for (line, start) in [(what, "error: "), (why, "  why: "), (todo, "  try: ")] {
            assert!(
                line.starts_with(start) && line.len() > start.len() + 2,
                "{line:?} in {self:?}"
            );
        }
        self
    }

    #[track_caller]
    pub fn says(self, part: &str) -> Ran {
        assert!(self.stderr.contains(part), "no {part:?} in {}", self.stderr);
        self
    }

    /// stdout as one JSON object a line.
    #[track_caller]
    pub fn records(&self) -> Vec<Value> {
        let records: Vec<Value> =
            self.out().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        for r in &records {
            assert_eq!(r["v"], 1, "{r}");
            assert!(r["type"].is_string(), "{r}");
        }
        records
    }

    /// The one record of this type.
    #[track_caller]
    pub fn record(&self, kind: &str) -> Value {
        let of_kind: Vec<Value> =
            self.records().into_iter().filter(|r| r["type"] == kind).collect();
        assert_eq!(of_kind.len(), 1, "{kind} in {self:?}");
        of_kind[0].clone()
    }
}

/// The built-in model's tokenizer.
pub fn tokenizer() -> Tokenizer {
    let store = demo::open().unwrap();
    let texts = store.texts();
    Tokenizer::new(&texts.tokenizer, texts.tokenizer_config.as_deref()).unwrap()
}

/// The end of a turn.
pub const END: u32 = 2;

/// The ids of text, and the end of the turn.
pub fn said(text: &str) -> Vec<u32> {
    let mut ids = tokenizer().encode_text(text).unwrap();
    ids.push(END);
    ids
}

/// The token that stands for exactly these bytes.
pub fn token_of(bytes: &[u8]) -> u32 {
    let t = tokenizer();
    (3..t.vocab_size()).find(|id| t.token_bytes(*id) == bytes).unwrap()
}

/// Waits until a child has written `part` to its stderr; returns what it wrote.
pub fn wait_for(child: &mut Child, part: &str) -> String {
    use std::io::Read;
    let stderr = child.stderr.as_mut().unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&seen).contains(part) {
        let n = stderr.read(&mut byte).unwrap();
        assert!(n > 0, "it ended without saying {part:?}: {}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

pub fn exists(path: impl AsRef<Path>) -> bool {
    path.as_ref().exists()
}
