//! The full-screen client from outside: the real program in a pseudo-terminal, keys in, a screen out.

mod leaving;
mod newcomer;
mod sessions;
mod talking;

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use crate::cli::Place;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal with the program in it, as a person would see it.
pub struct Screen {
    pub child: Child,
    keys: File,
    terminal: File,
    seen: Arc<Mutex<Seen>>,
}

struct Seen {
    parser: vt100::Parser,
    bytes: Vec<u8>,
    closed: bool,
}

fn cells(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n).unwrap()
}

impl Screen {
    /// Starts the program as the leader of a session that has the terminal.
    pub fn start(command: &Command, (columns, rows): (u16, u16)) -> Screen {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).unwrap();
        let end = || Stdio::from(OwnedFd::from(terminal.try_clone().unwrap()));
        let mut leader = Command::new("setsid");
        leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
        leader.current_dir(command.get_current_dir().unwrap());
        let child = leader.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let parser = vt100::Parser::new(cells(rows), cells(columns), 0);
        let seen = Arc::new(Mutex::new(Seen { parser, bytes: Vec::new(), closed: false }));
        let (theirs, mut output) = (Arc::clone(&seen), File::from(master.try_clone().unwrap()));
        thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(n @ 1..) = output.read(&mut buffer) {
                let Ok(mut seen) = theirs.lock() else { return };
                seen.parser.process(&buffer[..n]);
                seen.bytes.extend_from_slice(&buffer[..n]);
            }
            if let Ok(mut seen) = theirs.lock() {
                seen.closed = true;
            }
        });
        Screen { child, keys: File::from(master), terminal, seen }
    }

    /// `snug chat demo` with this script as its device.
    pub fn chat(place: &Place, device: &str, size: (u16, u16)) -> Screen {
        let mut screen = Screen::start(&place.snug(&["chat", "demo", "-d", device]), size);
        screen.shows("context");
        screen
    }

    pub fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    pub fn text(&self) -> String {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).parser.screen().contents()
    }

    /// Whether a condition on the screen holds within the time that anything may take.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&vt100::Screen, &[u8]) -> bool) {
        let start = Instant::now();
        loop {
            {
                let seen = self.seen.lock().unwrap();
                if holds(seen.parser.screen(), &seen.bytes) {
                    return;
                }
                let over = seen.closed || start.elapsed() > PATIENCE;
                assert!(!over, "{what}:\n{}", seen.parser.screen().contents());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub fn shows(&mut self, part: &str) {
        self.until(&format!("no {part:?} on the screen"), |s, _| s.contents().contains(part));
    }

    #[track_caller]
    pub fn hides(&mut self, part: &str) {
        self.until(&format!("{part:?} stays on the screen"), |s, _| !s.contents().contains(part));
    }

    /// Whether the terminal takes keys one by one, without showing them.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO)
    }

    /// What a shell does to the terminal when it takes it back.
    pub fn make_cooked(&self) {
        let mut modes = tcgetattr(&self.terminal).unwrap();
        modes.local_modes |= LocalModes::ICANON | LocalModes::ECHO;
        tcsetattr(&self.terminal, OptionalActions::Now, &modes).unwrap();
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.seen.lock().unwrap().bytes.clone()
    }

    pub fn resize(&mut self, columns: u16, rows: u16) {
        self.seen.lock().unwrap().parser.set_size(cells(rows), cells(columns));
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.terminal, size).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end; its code, and that the terminal is as it was.
    #[track_caller]
    pub fn ends(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end:\n{}", self.text());
            thread::sleep(Duration::from_millis(5));
        };
        assert!(!self.is_raw(), "the terminal was left raw");
        self.until("the alternate screen, paste marks or the mouse stay on", |s, _| {
            !s.alternate_screen()
                && !s.bracketed_paste()
                && !s.hide_cursor()
                && s.mouse_protocol_mode() == vt100::MouseProtocolMode::None
        });
        let text = self.text();
        (status.code(), text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
