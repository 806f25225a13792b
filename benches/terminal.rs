//! The full-screen client as its user feels it, through a pseudo-terminal: how long a key takes to show while a reply
//! streams, and what a long, fast reply costs. Tokens come from a script, so that only the client is measured.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};
use snug::engine::protocol::Finish;
use snug::num::rng::Stream;
use snug::store::demo;
use snug::text::Tokenizer;
use snug::ui::transcript::{Entry, Reply, Transcript};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const COLUMNS: u16 = 120;
const ROWS: u16 = 40;
const TOKENS: usize = 20_000;
const KEYS: usize = 400;

/// What a model that explains things writes.
const TEXT: &str = "## A heading\n\nSome words about *decoding* that are **long enough** to wrap on a line of the usual width, with `code` in them, and a second sentence.\n\n- first point\n- second point, which is longer\n  - a nested one\n\n```rust\nfn main() {\n    let x = 42; // a comment\n    println!(\"{x}\");\n}\n```\n\n| store | bytes |\n|-------|------:|\n| bf16  |  16.4 |\n| packed | 11.7 |\n\n";

fn main() -> Outcome {
    let dir = tempfile::tempdir()?;
    println!("{COLUMNS} x {ROWS} cells, through a pseudo-terminal; tokens from a script\n");
    latency(dir.path())?;
    long_reply(dir.path())
}

/// The client in a terminal, read by whoever waits for something.
struct Screen {
    child: Child,
    master: File,
    parser: vt100::Parser,
    bytes: u64,
}

impl Screen {
    fn start(dir: &std::path::Path, args: &[&str], text: &str, token_us: u64) -> Outcome<Screen> {
        let store = demo::open()?;
        let tokenizer =
            Tokenizer::new(&store.texts().tokenizer, store.texts().tokenizer_config.as_deref())?;
        let script = json!({ "tokens": tokenizer.encode_text(text)?, "token_us": token_us });
        let path = dir.join("script.json");
        fs::write(&path, script.to_string())?;
        let device = format!("script:{}", path.display());
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let terminal = File::options().read(true).write(true).open(name.to_str()?)?;
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size)?;
        let end = || terminal.try_clone().map(|f| Stdio::from(OwnedFd::from(f)));
        let child = Command::new("setsid")
            .arg("--ctty")
            .arg(env!("CARGO_BIN_EXE_snug"))
            .args(["chat", "demo", "-d", &device])
            .args(args)
            .env("XDG_STATE_HOME", dir)
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("SSH_CONNECTION")
            .current_dir(dir)
            .stdin(end()?)
            .stdout(end()?)
            .stderr(end()?)
            .spawn()?;
        let cells = |n| NonZeroU16::new(n).unwrap_or(NonZeroU16::MIN);
        let parser = vt100::Parser::new(cells(ROWS), cells(COLUMNS), 0);
        let mut screen = Screen { child, master: File::from(master), parser, bytes: 0 };
        screen.until(|s| s.contents().contains("Enter send ·"))?;
        Ok(screen)
    }

    fn types(&mut self, keys: &str) -> Outcome {
        Ok(self.master.write_all(keys.as_bytes())?)
    }

    /// Reads what comes within a time.
    fn read(&mut self, wait: Duration) -> Outcome {
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        if poll(&mut [PollFd::new(&self.master, PollFlags::IN)], Some(&wait))? > 0 {
            let mut buffer = [0; 65536];
            let n = self.master.read(&mut buffer)?;
            self.parser.process(&buffer[..n]);
            self.bytes += n as u64;
        }
        Ok(())
    }

    fn until(&mut self, holds: impl Fn(&vt100::Screen) -> bool) -> Outcome {
        let start = Instant::now();
        while !holds(self.parser.screen()) {
            if start.elapsed() > Duration::from_secs(120) {
                return Err(format!("it did not come:\n{}", self.parser.screen().contents()).into());
            }
            self.read(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// CPU seconds of all threads but the engine's.
    fn cpu_s(&self) -> Outcome<f64> {
        let mut ticks = 0u64;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let stat = fs::read_to_string(task?.path().join("stat"))?;
            let (name, rest) = stat.rsplit_once(')').ok_or("no stat")?;
            if name.ends_with("(engine") {
                continue;
            }
            let fields: Vec<&str> = rest.split_whitespace().collect();
            ticks += fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        }
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// From writing a key to the terminal until it stands in the draft.
fn latency(dir: &std::path::Path) -> Outcome {
    println!("key to echo, {KEYS} keys 20 to 60 ms apart");
    println!("{:>12} {:>8} {:>8} {:>8} {:>8}", "tok/s", "p50 ms", "p95 ms", "p99 ms", "max ms");
    for (name, token_us) in [("idle", 0), ("1000", 1000), ("2000", 500)] {
        let mut screen = Screen::start(dir, &["-c", "2000000"], TEXT, token_us.max(1))?;
        if token_us > 0 {
            screen.types("go\r")?;
            screen.until(|s| s.contents().contains("writing"))?;
        }
        let mut draws = Stream::new(3);
        let mut times = Vec::new();
        let mut draft = String::new();
        for _ in 0..KEYS {
            let until = Instant::now() + Duration::from_millis(20 + u64::from(draws.below(40)));
            while Instant::now() < until {
                screen.read(until.saturating_duration_since(Instant::now()))?;
            }
            if draft.len() > 60 {
                screen.types("\x15")?;
                draft.clear();
                screen.until(|s| s.contents().contains("› write your"))?;
            }
            let letter = char::from(b'a' + draws.below(26) as u8);
            draft.push(letter);
            let want = format!("› {draft}");
            let start = Instant::now();
            screen.types(letter.encode_utf8(&mut [0; 4]))?;
            while !screen.parser.screen().contents().contains(&want) {
                screen.read(Duration::from_millis(1))?;
                if start.elapsed() > Duration::from_secs(10) {
                    return Err(
                        format!("no {want:?}:\n{}", screen.parser.screen().contents()).into()
                    );
                }
            }
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
        println!(
            "{name:>12} {:>8.1} {:>8.1} {:>8.1} {:>8.1}",
            at(0.5),
            at(0.95),
            at(0.99),
            at(1.0)
        );
    }
    Ok(())
}

/// A reply of many tokens at 2,000 a second: CPU of everything but the engine's thread, bytes written, and whether the
/// last frame equals what the whole text gives when it is read at once.
fn long_reply(dir: &std::path::Path) -> Outcome {
    println!("\n{TOKENS} tokens at 2000 tok/s");
    println!(
        "{:>24} {:>8} {:>8} {:>10} {:>10}",
        "text", "wall s", "CPU s", "of a core", "MB written"
    );
    let plain = "plain words without any end of the paragraph, ";
    let code = format!("```python\n{}", "value = compute(12, 'text')  # a comment\n".repeat(40));
    for (name, text) in [("markdown", TEXT), ("one block of code", &code), ("one paragraph", plain)]
    {
        let count = TOKENS.to_string();
        let mut screen = Screen::start(dir, &["-c", "2000000", "-n", &count], text, 500)?;
        let (cpu, bytes, start) = (screen.cpu_s()?, screen.bytes, Instant::now());
        screen.types("go\r")?;
        screen.until(|s| s.contents().contains("ended by the token limit"))?;
        let wall = start.elapsed().as_secs_f64();
        let cpu = screen.cpu_s()? - cpu;
        let bytes = (screen.bytes - bytes) as f64 / 1e6;
        println!("{name:>24} {wall:>8.1} {cpu:>8.2} {:>8.1} % {bytes:>10.2}", 100.0 * cpu / wall);
        same_last_frame(&mut screen, dir)?;
    }
    println!("every last frame equals the whole text read at once");
    Ok(())
}

fn same_last_frame(screen: &mut Screen, dir: &std::path::Path) -> Outcome {
    let path = dir.join("said.json");
    let _ = fs::remove_file(&path);
    screen.types(&format!("/export json {}\r", path.display()))?;
    screen.until(|s| s.contents().contains("the conversation is in"))?;
    let said: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let text = said[1]["content"].as_str().ok_or("no reply")?;
    let mut whole = Transcript::default();
    whole.push(Entry::Reply(Box::new(Reply::said("demo", text, "", Finish::Length))));
    // The text area of the boxed layout, found by its borders.
    let contents = screen.parser.screen().contents();
    let shown: Vec<String> = contents
        .lines()
        .filter_map(|l| l.strip_prefix("│ "))
        .filter_map(|l| Some(l.split('│').next()?.trim_end().to_owned()))
        .filter(|l| !l.starts_with('›'))
        .collect();
    let width = contents.lines().next().and_then(|l| l.chars().position(|c| c == '┬'));
    whole.lay_out(width.ok_or("no panel")?.saturating_sub(3), shown.len());
    let rows = whole.window().filter_map(|n| whole.row(n));
    let want: Vec<String> = rows
        .map(|r| r.iter().map(|s| s.text.as_str()).collect::<String>().trim_end().to_owned())
        .collect();
    match shown.iter().zip(&want).position(|(a, b)| a != b) {
        Some(at) => Err(format!("row {at} is {:?}, not {:?}", shown[at], want[at]).into()),
        None => Ok(()),
    }
}
