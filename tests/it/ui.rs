//! The full-screen client as data: events in, screens and effects out. No terminal, no engine.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use snug::backend::{Card, Ledger};
use snug::engine::protocol::{Event, Finish, Loaded, Phase, Prompt, Stats, Token};
use snug::error::{Error, Kind};
use snug::model::op::Sampling;
use snug::num::rng::Stream;
use snug::ui::app::App;
use snug::ui::events::{AppEvent, Effect, Meters, ModelRow, News};
use snug::ui::theme::{Look, Theme};
use snug::ui::view;

const GIB: u64 = 1 << 30;

fn loaded() -> Loaded {
    Loaded {
        name: "Llama-3.1-8B".into(),
        variant: "lossless".into(),
        card: Card { id: "cuda:0".into(), name: "NVIDIA H200".into(), path: "sm_90a".into() },
        context: 16384,
        context_limit: 131_072,
        weight_bytes: 11 * GIB,
        packed_from: None,
        parameters: 8_030_261_248,
        defaults: Sampling::default(),
        stops: vec![(128_009, "generation_config.json".into())],
        took: Duration::from_secs(3),
        ledger: ledger(0),
        bytes_per_token: 11_740_000_000,
    }
}

fn ledger(kv_used: u64) -> Ledger {
    Ledger { weights: 11 * GIB, kv_used, kv_reserved: 2 * GIB, scratch: GIB / 2, context: GIB / 8 }
}

fn stats(tokens: u32) -> Stats {
    Stats {
        prompt_tokens: 412,
        cached_tokens: 0,
        completion_tokens: tokens,
        reasoning_tokens: 0,
        prefill: Duration::from_millis(80),
        ttft: Duration::from_millis(84),
        decode: Duration::from_millis(u64::from(tokens.saturating_sub(1)) * 15),
        bytes_per_token: 11_740_000_000,
        context_used: 412 + tokens,
        ledger: ledger(u64::from(412 + tokens) * 131_072),
    }
}

fn meters() -> Meters {
    Meters {
        rss: Some(GIB / 4),
        memory: Some((9 * GIB, 24 * GIB)),
        held: Some(13 * GIB + GIB / 2 + GIB / 5),
        busy_percent: Some(97),
        celsius: Some(71),
        watts: Some((318, 450)),
        mhz: Some(2595),
    }
}

/// A client and its clock.
struct Played {
    app: App,
    now: Instant,
    effects: Vec<Effect>,
}

impl Played {
    fn new(size: (u16, u16)) -> Played {
        let mut app = App::new(size, Look::default(), Vec::new());
        app.keeps = true;
        Played { app, now: Instant::now(), effects: Vec::new() }
    }

    fn ready(size: (u16, u16)) -> Played {
        let mut p = Played::new(size);
        p.event(AppEvent::News(News::Bandwidth(934e9)));
        p.event(AppEvent::Meters(meters()));
        p.engine(Event::Ready(Box::new(loaded())));
        p
    }

    fn event(&mut self, event: AppEvent) {
        self.now += Duration::from_millis(10);
        self.effects.extend(self.app.update(event, self.now));
    }

    fn engine(&mut self, event: Event) {
        self.event(AppEvent::Engine(event));
    }

    fn key(&mut self, code: KeyCode, modifiers: KeyModifiers) {
        self.event(AppEvent::Key(KeyEvent::new(code, modifiers)));
    }

    fn types(&mut self, text: &str) {
        for c in text.chars() {
            self.key(KeyCode::Char(c), KeyModifiers::NONE);
        }
    }

    fn enter(&mut self, text: &str) {
        self.types(text);
        self.key(KeyCode::Enter, KeyModifiers::NONE);
    }

    fn says(&mut self, text: &str) {
        let words: Vec<&str> = text.split_inclusive(' ').collect();
        self.engine(Event::Begun { prompt_tokens: 412, cached_tokens: 0 });
        for (n, word) in words.iter().enumerate() {
            let bytes = word.as_bytes().to_vec();
            self.engine(Event::Token(Token { id: 1, bytes, logprobs: None }));
            self.engine(Event::Text((*word).into()));
            if n % 8 == 7 {
                self.engine(Event::Stats(stats(n as u32 + 1)));
            }
        }
    }

    fn ends(&mut self, reason: Finish) {
        self.engine(Event::Done { reason, stats: stats(64) });
    }

    /// The effects since the last call.
    fn took(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn screen(&mut self) -> String {
        self.app.lay_out();
        let (width, height) = self.app.size;
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view::view(&self.app, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let mut out = String::new();
        for y in 0..height {
            let mut line = String::new();
            let mut x = 0;
            while x < width {
                let symbol = buffer[(x, y)].symbol();
                line.push_str(symbol);
                x += snug::ui::rich::width(symbol).max(1) as u16;
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

const REPLY: &str = "Every new token reads every weight once. With 11.7 GB of compressed weights and 934 GB/s measured on this card the ceiling is about 80 tokens per second:

| store    | bytes/token | ceiling  |
|----------|------------:|----------|
| bf16     |     16.4 GB | 57 tok/s |
| lossless |     11.7 GB | 80 tok/s |

```rust
let ceiling = measured_bw / bytes_per_token;
```
So *fewer bytes* are **faster**, not only smaller.";

fn conversation(size: (u16, u16)) -> Played {
    let mut p = Played::ready(size);
    p.enter("Explain why decode is bandwidth bound, with a table.");
    p.says(REPLY);
    p
}

#[track_caller]
fn golden(name: &str, screen: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/screens").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, screen).unwrap();
    }
    let want = fs::read_to_string(&path).unwrap_or_default();
    let differs = screen.lines().zip(want.lines()).position(|(a, b)| a != b);
    assert!(
        screen == want,
        "{name} differs at line {differs:?}; UPDATE=1 rewrites it, then look at the diff\n{screen}"
    );
}

#[test]
fn screens_at_five_sizes() {
    for size in [(120, 30), (80, 24), (60, 20), (40, 12), (20, 6)] {
        let mut p = conversation(size);
        let screen = p.screen();
        assert_eq!(screen.lines().count(), usize::from(size.1));
        for line in screen.lines() {
            assert!(snug::ui::rich::width(line) <= size.0.into(), "{line:?}");
        }
        golden(&format!("reply-{}x{}.txt", size.0, size.1), &screen);
    }
}

/// The README shows a screen as it is, not as it was.
#[test]
fn the_readme_shows_a_true_screen() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let screen = fs::read_to_string(root.join("tests/golden/screens/reply-120x30.txt")).unwrap();
    let fence = "```text\n┌─ snug";
    let at = readme.find(fence).expect("no screen in the README") + "```text\n".len();
    let shown = readme[at..].split("```").next().unwrap();
    if std::env::var_os("UPDATE").is_some() && shown != screen {
        fs::write(root.join("README.md"), readme.replacen(shown, &screen, 1)).unwrap();
    } else {
        assert_eq!(shown, screen, "UPDATE=1 rewrites it");
    }
}

#[test]
fn screens_of_other_states() {
    let mut p = Played::new((80, 24));
    p.event(AppEvent::News(News::Loading("qwen3-8b".into())));
    p.engine(Event::Loading { phase: Phase::Check, done: 4 * GIB, of: 11 * GIB });
    golden("loading-80x24.txt", &p.screen());

    let mut p = Played::ready((80, 24));
    let row = |name: &str, bytes: u64, error: Option<&str>| ModelRow {
        reference: name.into(),
        variant: "lossless".into(),
        bytes,
        needs: Some((bytes + GIB, 8192)),
        free: Some(9 * GIB),
        error: error.map(str::to_owned),
    };
    let rows = vec![
        row("demo", 12 << 20, None),
        row("llama-3.1-8b", 11 * GIB, None),
        row("qwen3-4b", 6 * GIB, None),
        row("broken", 0, Some("it is cut short")),
    ];
    p.event(AppEvent::News(News::Models(rows)));
    golden("models-80x24.txt", &p.screen());

    let mut p = conversation((80, 24));
    p.ends(Finish::Stop);
    p.enter("And more?");
    let e = Error::new(
        Kind::ContextOverflow,
        "cannot answer: the prompt does not fit in the context",
        "the prompt has 17000 tokens, the context holds 16384: 616 too many",
        "shorten the prompt",
    );
    p.engine(Event::Failed(e));
    p.engine(Event::Done { reason: Finish::Error, stats: stats(0) });
    golden("overflow-80x24.txt", &p.screen());
}

#[test]
fn mono_ascii_screens_need_no_more_than_ascii() {
    let mut p = conversation((120, 30));
    p.app.look = Look { theme: Theme::Mono, ascii: true };
    let screen = p.screen();
    let odd: Vec<char> = screen.chars().filter(|c| !c.is_ascii()).collect();
    assert!(odd.is_empty(), "{odd:?}");
}

fn asks(effects: &[Effect]) -> Vec<&Prompt> {
    effects
        .iter()
        .filter_map(|e| match e {
            Effect::Ask { prompt, .. } => Some(prompt),
            _ => None,
        })
        .collect()
}

#[test]
fn a_message_queues_while_a_reply_is_written() {
    let mut p = conversation((80, 24));
    p.took();
    p.enter("next");
    assert_eq!(p.app.queued.as_deref(), Some("next"));
    assert!(p.screen().contains("queued: next"));
    p.key(KeyCode::Esc, KeyModifiers::NONE);
    assert_eq!((p.app.queued.clone(), p.app.composer.text()), (None, "next"));
    p.key(KeyCode::Enter, KeyModifiers::NONE);
    assert!(asks(&p.took()).is_empty());
    p.ends(Finish::Stop);
    let took = p.took();
    let Prompt::Chat(messages) = asks(&took)[0] else { panic!("{took:?}") };
    assert_eq!(messages.last().unwrap().content, "next");
    assert_eq!(messages.len(), 3);
    // A reply that was stopped does not let the next message go.
    p.enter("after");
    p.ends(Finish::Cancelled);
    assert!(asks(&p.took()).is_empty());
    assert_eq!(p.app.composer.text(), "after");
}

#[test]
fn overflow_is_asked_and_every_answer_works() {
    let too_long = || Error::new(Kind::ContextOverflow, "cannot answer", "too long", "shorten");
    let overflow = |p: &mut Played| {
        p.enter("more");
        p.took();
        p.engine(Event::Failed(too_long()));
        p.engine(Event::Done { reason: Finish::Error, stats: stats(0) });
    };
    // Take it back.
    let mut p = conversation((80, 24));
    p.ends(Finish::Stop);
    overflow(&mut p);
    p.types("e");
    assert_eq!(p.app.composer.text(), "more");
    assert_eq!(p.app.messages().len(), 2);
    // Leave out.
    p.app.composer.clear();
    overflow(&mut p);
    p.types("d");
    assert!(
        matches!(&p.took()[..], [Effect::Ask { overflow, .. }] if format!("{overflow:?}") == "Shift")
    );
    p.engine(Event::Truncated { from: 900, to: 500 });
    p.says("short");
    p.ends(Finish::Stop);
    assert!(p.screen().contains("the oldest turns were left out: 900 tokens became 500"));
    // Summarise.
    overflow(&mut p);
    p.types("s");
    let took = p.took();
    assert!(matches!(&took[..], [Effect::Ask { max_tokens: Some(_), .. }]), "{took:?}");
    p.engine(Event::Text("They spoke of bandwidth.".into()));
    p.engine(Event::Done { reason: Finish::Stop, stats: stats(9) });
    let took = p.took();
    let Prompt::Chat(messages) = asks(&took)[0] else { panic!() };
    assert!(messages[0].content.contains("They spoke of bandwidth."));
    assert_eq!((messages.len(), messages[1].content.as_str()), (2, "more"));
    assert!(p.screen().contains("told to the model as: They spoke of"));
}

#[test]
fn undo_edit_regenerate_and_continue_send_the_right_turns() {
    let mut p = Played::ready((80, 24));
    for (q, a) in [("one", "first"), ("two", "second")] {
        p.enter(q);
        p.says(a);
        p.ends(Finish::Stop);
    }
    let contents = |prompt: &Prompt| match prompt {
        Prompt::Chat(m) | Prompt::Continue(m, _) => {
            m.iter().map(|m| m.content.clone()).collect::<Vec<_>>()
        }
        Prompt::Raw(_) => Vec::new(),
    };
    p.took();
    p.enter("/regen");
    assert_eq!(contents(asks(&p.took())[0]), ["one", "first", "two"]);
    p.says("other");
    p.ends(Finish::Length);
    p.took();
    p.enter("/continue");
    let took = p.took();
    assert!(matches!(asks(&took)[0], Prompt::Continue(_, begun) if begun == "other"));
    assert_eq!(contents(asks(&took)[0]), ["one", "first", "two"]);
    p.says(" words");
    p.ends(Finish::Stop);
    assert_eq!(p.app.transcript.last_reply().unwrap().text, "other words");
    p.enter("/undo");
    assert_eq!(p.app.messages().len(), 2);
    p.enter("/edit 1");
    assert_eq!((p.app.messages().len(), p.app.composer.text()), (0, "one"));
}

#[test]
fn commands_are_typed_and_never_pasted() {
    let mut p = Played::ready((80, 24));
    p.event(AppEvent::Paste("/quit".into()));
    p.key(KeyCode::Enter, KeyModifiers::NONE);
    assert!(!p.app.is_over());
    assert_eq!(p.app.messages()[0].content, "/quit");
    p.ends(Finish::Stop);
    p.enter("//help");
    assert_eq!(p.app.messages().last().unwrap().content, "/help");
    p.ends(Finish::Stop);
    let before = p.app.messages().len();
    p.enter("/nonsense");
    assert_eq!(p.app.messages().len(), before);
    assert!(p.app.hint.as_ref().unwrap().contains("no command /nonsense"));
    p.app.composer.clear();
    p.enter("/quit");
    assert!(p.app.is_over());
}

/// Every key of the list changes something: what is on the screen, the draft, or what is to be done.
#[test]
fn every_key_of_the_list_acts() {
    use KeyCode::{Char, Down, Enter, Esc, F, PageUp, Tab, Up};
    let (none, ctrl, alt) = (KeyModifiers::NONE, KeyModifiers::CONTROL, KeyModifiers::ALT);
    let shift = KeyModifiers::SHIFT;
    for (draft, code, modifiers) in [
        ("x", Enter, none),
        ("x", Char('j'), ctrl),
        ("x", Enter, alt),
        ("x", Enter, shift),
        ("x", Char('c'), ctrl),
        ("", Char('d'), ctrl),
        ("", PageUp, none),
        ("", Up, shift),
        ("", KeyCode::Home, ctrl),
        ("", Char('y'), alt),
        ("", Char('x'), alt),
        ("/mod", Tab, none),
        ("", Tab, none),
        ("", Up, none),
        ("", Char('r'), ctrl),
        ("x", Char('g'), ctrl),
        ("", Char('o'), ctrl),
        ("", Char('t'), ctrl),
        ("x y", Char('a'), ctrl),
        ("x y", Char('b'), alt),
        ("x y", Char('w'), ctrl),
        ("x y", Char('u'), ctrl),
        ("x y", Char('7'), ctrl),
        ("", Char('l'), ctrl),
        ("", Char('z'), ctrl),
        ("", F(1), none),
        ("", Char('?'), none),
    ] {
        let mut p = conversation((80, 24));
        p.engine(Event::Reasoning("a thought".into()));
        p.ends(Finish::Stop);
        p.app.composer.set(draft);
        p.took();
        let state = |p: &mut Played| {
            let cursor = p.app.composer.laid(70).cursor;
            (p.screen(), p.app.composer.text().to_owned(), cursor, p.app.is_over())
        };
        let before = state(&mut p);
        p.key(code, modifiers);
        assert!(
            state(&mut p) != before || !p.took().is_empty(),
            "{draft:?} {code:?} {modifiers:?}"
        );
    }
    // Esc and the way down end what others began.
    let mut p = conversation((80, 24));
    p.key(PageUp, none);
    assert!(!p.app.transcript.follows());
    p.key(Esc, none);
    assert!(p.app.transcript.follows());
    p.key(PageUp, none);
    for _ in 0..60 {
        p.key(Down, shift);
    }
    p.screen();
    assert!(p.app.transcript.follows());
}

#[test]
fn vim_keys_edit_the_draft_when_asked_for() {
    for (keys, want) in [
        ("0dw", "one two\n"),
        ("dd", "one two\n"),
        ("ddu", "one two\nthree"),
        ("kdd", "three"),
        ("0yyp", "one two\nthreethree"),
        ("cctext", "one two\ntext"),
        ("0Cnew", "one two\nnew"),
        ("kA end", "one two end\nthree"),
        ("0xxihi", "one two\nhiree"),
        ("Onew", "one two\nnew\nthree"),
        ("bD", "one two\n"),
        ("dqzZ", "one two\nthree"),
    ] {
        let mut p = Played::ready((80, 24));
        p.app.vim = Some(Default::default());
        p.app.composer.set("one two\nthree");
        p.key(KeyCode::Esc, KeyModifiers::NONE);
        p.types(keys);
        assert_eq!(p.app.composer.text(), want, "{keys}");
    }
    let mut p = Played::ready((80, 24));
    p.app.vim = Some(Default::default());
    p.types("sent");
    p.key(KeyCode::Esc, KeyModifiers::NONE);
    assert!(p.screen().contains("NORMAL"));
    p.key(KeyCode::Enter, KeyModifiers::NONE);
    assert_eq!(p.app.messages()[0].content, "sent");
    p.types("next");
    assert_eq!(p.app.composer.text(), "next");
}

#[test]
fn every_command_of_the_help_does_something() {
    for command in snug::ui::slash::COMMANDS {
        let mut p = conversation((80, 24));
        p.ends(Finish::Stop);
        p.took();
        let before = p.app.transcript.entries().len();
        p.enter(&format!("/{}", command.name));
        let did = !p.took().is_empty()
            || p.app.hint.is_some()
            || p.app.is_over()
            || p.app.overlay.is_some()
            || p.app.transcript.entries().len() != before;
        assert!(did, "/{} did nothing", command.name);
        p.screen();
    }
}

/// Whatever happens in whatever order at whatever size, nothing panics, and no text that arrived is lost.
#[test]
fn no_order_of_events_at_any_size_panics_or_loses_text() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = seed.as_nanos() as u64;
    let mut draws = Stream::new(seed);
    for round in 0..60 {
        let size = (1 + draws.below(200) as u16, 1 + draws.below(60) as u16);
        let mut p = Played::new(size);
        let mut said = String::new();
        for step in 0..120 {
            let word = format!("w{round}x{step} ");
            match draws.below(22) {
                0 => p.engine(Event::Ready(Box::new(loaded()))),
                1 => p.enter("hello **there**"),
                2..=7 => {
                    let keep = p.app.is_busy()
                        && p.app.transcript.last_reply().is_some_and(|r| r.finish.is_none());
                    let line =
                        ["", "\n", "\n\n", "```\n", "| a |\n|-|\n", "# "][draws.below(6) as usize];
                    p.engine(Event::Text(format!("{line}{word}")));
                    if keep {
                        said += &word;
                    }
                }
                8 => p.engine(Event::Reasoning("thought ".into())),
                9 => p.ends(
                    [Finish::Stop, Finish::Cancelled, Finish::Length][draws.below(3) as usize],
                ),
                10 => p.event(AppEvent::Resize(
                    1 + draws.below(200) as u16,
                    1 + draws.below(60) as u16,
                )),
                11 => p.key(
                    [KeyCode::PageUp, KeyCode::PageDown, KeyCode::Home, KeyCode::End]
                        [draws.below(4) as usize],
                    KeyModifiers::CONTROL,
                ),
                12 => p.key(
                    [KeyCode::Up, KeyCode::Down, KeyCode::Tab, KeyCode::Esc, KeyCode::Backspace]
                        [draws.below(5) as usize],
                    KeyModifiers::NONE,
                ),
                13 => p.event(AppEvent::Paste("漢字\n\u{1b}[2J👩‍👩‍👧 pasted".into())),
                14 => p.engine(Event::Stats(stats(draws.below(500)))),
                15 => p.event(AppEvent::Meters(meters())),
                16 => p.engine(Event::Failed(Error::new(Kind::Failure, "what", "why", "todo"))),
                17 => p.engine(Event::Loading { phase: Phase::Upload, done: 1, of: 0 }),
                18 => p.key(
                    KeyCode::Char(
                        ['a', 'e', 'k', 'w', 'y', 't', 'p', 'n'][draws.below(8) as usize],
                    ),
                    KeyModifiers::CONTROL,
                ),
                19 => p.event(AppEvent::Wheel(draws.below(9) as isize - 4)),
                20 => p.engine(Event::Begun { prompt_tokens: 5, cached_tokens: 2 }),
                _ => p.event(AppEvent::News(News::Models(Vec::new()))),
            }
            if step % 4 == 0 {
                p.screen();
            }
        }
        let raw = p.app.transcript.raw();
        for word in said.split_whitespace() {
            assert!(raw.contains(word), "seed {seed}: {word} is lost");
        }
    }
}
