//! On a terminal: replies cannot drive it, and a conversation can be held in it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;

use super::{END, Place, said, token_of, tokenizer};

/// A terminal and the program in it.
struct Terminal {
    child: Child,
    keys: File,
    pieces: Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

impl Terminal {
    fn start(mut command: Command) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let end = |f: &File| Stdio::from(OwnedFd::from(f.try_clone().unwrap()));
        let child =
            command.stdin(end(&slave)).stdout(end(&slave)).stderr(end(&slave)).spawn().unwrap();
        let mut screen = File::from(master.as_fd().try_clone_to_owned().unwrap());
        let (tx, pieces) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The terminal is gone (an error) when the program is.
            while let Ok(n @ 1..) = screen.read(&mut buffer) {
                if tx.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { child, keys: File::from(master), pieces, seen: Vec::new() }
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// Waits until this has been shown since the last call, and forgets all up to it.
    #[track_caller]
    fn shows(&mut self, part: &str) {
        let start = Instant::now();
        loop {
            if let Some(at) = self.screen().find(part) {
                self.seen = self.screen().as_bytes()[at + part.len()..].to_vec();
                return;
            }
            match self.pieces.recv_timeout(Duration::from_millis(100)) {
                Ok(piece) => self.seen.extend(piece),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    panic!("ended without {part:?}: {:?}", self.screen())
                }
                Err(_) => assert!(
                    start.elapsed() < Duration::from_secs(60),
                    "no {part:?}: {:?}",
                    self.screen()
                ),
            }
        }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end; all that is left on the screen.
    fn ends(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        while let Ok(piece) = self.pieces.recv_timeout(Duration::from_millis(300)) {
            self.seen.extend(piece);
        }
        (code, self.screen())
    }
}

#[test]
fn replies_cannot_drive_the_terminal_but_stay_exact_in_pipes() {
    let place = Place::new();
    let hostile = "a\x1b]52;c;aGk=\x07b\x1b[2Jc\rd\u{9b}31m\u{202e}e\x1b]8;;x\x1b\\";
    let t = tokenizer();
    let mut ids: Vec<u32> = hostile.bytes().map(|b| token_of(&[b])).collect();
    ids.push(END);
    assert!(t.vocab_size() > 256);
    let device = place.device(&ids, json!({}));
    let args = ["run", "demo", "-q", "-d", &device, "hi"];
    assert_eq!(place.run(&args).ok().out(), hostile);
    let (code, screen) = Terminal::start(place.snug(&args)).ends();
    assert_eq!(code, Some(0));
    assert!(screen.contains("a␛]52;c;aGk=␇b␛[2Jc␍d"), "{screen:?}");
    // Line ends are the terminal's own; nothing else may act on it.
    let acts = |c: char| {
        (c.is_control() && c != '\n' && c != '\r') || ('\u{202a}'..='\u{202e}').contains(&c)
    };
    assert!(!screen.contains(acts), "{screen:?}");
    // A carriage return at the very end is shown too.
    let device = place.device(&[token_of(b"a"), token_of(b"\r"), END], json!({}));
    let args = ["run", "demo", "-q", "-d", &device, "hi"];
    let (_, screen) = Terminal::start(place.snug(&args)).ends();
    assert!(screen.contains("a␍"), "{screen:?}");
    // Names from files are as harmless, on stdout too.
    let name = "evil\x1b]0;title\x07";
    place.demo_file(&format!("store/{name}.snug"));
    let (_, screen) = Terminal::start(place.snug(&["list"])).ends();
    assert!(screen.contains("evil␛]0;title␇") && !screen.contains('\x1b'), "{screen:?}");
    // So are the names of tensors, in tables and in errors.
    let dir = super::commands::source_dir(&place, "odd");
    let path = place.path("odd/model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let n = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&file[8..8 + n]).unwrap();
    let header = header.replace("model.norm.weight", r"model.\u001b[2J\u009b\u202e.weight");
    let odd = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &file[8 + n..]].concat();
    std::fs::write(&path, odd).unwrap();
    for args in [&["inspect", &dir, "--tensors"][..], &["inspect", &dir], &["run", &dir, "hi"]] {
        let (_, screen) = Terminal::start(place.snug(args)).ends();
        assert!(!screen.contains(acts) && screen.len() > 100, "{args:?}: {screen:?}");
    }
    let (_, screen) = Terminal::start(place.snug(&["inspect", &dir, "--tensors"])).ends();
    assert!(screen.contains(r"model.␛[2J\u{9b}\u{202e}.weight"), "{screen:?}");
}

#[test]
fn a_conversation_in_a_terminal() {
    let place = Place::new();
    let device = place.device(&said("I hear you."), json!({}));
    let mut t = Terminal::start(place.snug(&["chat", "demo", "--plain", "-d", &device]));
    t.shows("/help lists commands");
    t.shows("> ");
    t.types("hello\n");
    t.shows("I hear you.");
    t.types("/set temp=hot\n");
    t.shows("error: cannot set temp");
    t.types("/nonsense\n");
    t.shows("no command /nonsense");
    t.types("//literally\n");
    t.shows("I hear you.");
    t.types("/undo\n");
    t.shows("2 messages left");
    t.types("/regen\n");
    t.shows("I hear you.");
    // A paste is one message, sent by Enter, and never a command.
    t.types("/quit\nsecond line\nthird line\n");
    t.shows("3 lines pasted");
    t.types("\n");
    t.shows("I hear you.");
    // Ctrl-D ends without a word.
    t.shows("> ");
    t.types("\x04");
    let (code, screen) = t.ends();
    assert_eq!(code, Some(0));
    assert!(!screen.contains("error") && !screen.contains("Abort"), "{screen:?}");
}

#[test]
fn ctrl_c_stops_the_reply_and_twice_ends_the_chat() {
    let place = Place::new();
    let words = tokenizer().encode_text("again and again ").unwrap();
    let device = place.device(&words, json!({ "step_ms": 10 }));
    let mut t = Terminal::start(place.snug(&["chat", "demo", "--plain", "-v", "-d", &device]));
    let interrupt = |t: &Terminal| kill_process(Pid::from_child(&t.child), Signal::INT).unwrap();
    t.shows("> ");
    t.types("talk\n");
    t.shows("again and again");
    interrupt(&t);
    t.shows("stopped; what was said so far is kept");
    t.shows("ended by cancelled");
    // The chat goes on with what was said.
    t.types("more\n");
    t.shows("again and again");
    interrupt(&t);
    t.shows("ended by cancelled");
    t.shows("> ");
    // Idle: the first says how to end, the second ends.
    std::thread::sleep(Duration::from_millis(2100));
    interrupt(&t);
    t.shows("Ctrl-C again");
    interrupt(&t);
    assert_eq!(t.ends().0, Some(130));
}

#[test]
fn a_conversation_through_pipes() {
    let place = Place::new();
    let device = place.device(&said("Yes."), json!({}));
    let ran = place
        .run_with(&["chat", "demo", "-d", &device, "-q"], b"one\n\n/stats\ntwo\\\nlines\nthree")
        .ok();
    assert_eq!(ran.out(), "Yes.\nYes.\nYes.\n");
    assert!(!ran.stderr.contains("> "), "{}", ran.stderr);
    let ran = place.run_with(&["chat", "demo", "-d", &device], b"one\n/quit\ntwo\n").ok();
    assert_eq!(ran.out(), "Yes.\n");
    // What fails is said, and the conversation goes on.
    let failing = place.device(&said("Yes."), json!({ "fail_at": 0 }));
    let ran = place.run_with(&["chat", "demo", "-d", &failing], b"one\ntwo\n").ok();
    assert_eq!(ran.stderr.matches("error: cannot compute a token").count(), 2, "{ran:?}");
}

#[test]
fn snug_alone_in_a_terminal_talks() {
    let place = Place::new();
    let device = place.device(&said("Hi."), json!({}));
    let mut command = place.snug(&[]);
    command.env("SNUG_DEVICE", &device).env("SNUG_PLAIN", "1");
    let mut t = Terminal::start(command);
    t.shows("built-in `demo`");
    t.shows("> ");
    t.types("hello\n");
    t.shows("Hi.");
    t.types("/bye\n");
    assert_eq!(t.ends().0, Some(0));
    // `run` without a prompt does the same.
    let mut again = place.snug(&["run", "demo", "-d", &device]);
    again.env("TERM", "dumb");
    let mut t = Terminal::start(again);
    t.shows("> ");
    t.types("hello\n");
    t.shows("Hi.");
    t.types("/exit\n");
    assert_eq!(t.ends().0, Some(0));
}
