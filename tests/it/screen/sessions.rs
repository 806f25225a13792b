//! Conversations that are kept, changed, gone on with, or not kept.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::Screen;
use crate::cli::{Place, said, tokenizer};

fn files(place: &Place) -> Vec<PathBuf> {
    let dir = place.path("state/snug/sessions");
    let mut all: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

fn records(file: &PathBuf) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn a_conversation_is_kept_for_its_owner_and_goes_on() {
    let place = Place::new();
    let device = place.device(&said("I hear you."), json!({}));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.shows("readable by you only");
    s.types("first words\r");
    s.shows("I hear you.");
    s.types("/save a fine name\r");
    s.shows("is called a fine name");
    s.types("\x04");
    let (code, text) = s.ends();
    assert_eq!(code, Some(0));
    assert!(text.contains("the conversation is in"), "{text}");
    let kept = files(&place);
    assert_eq!(kept.len(), 1);
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&kept[0]), 0o600);
    assert_eq!(mode(&place.path("state/snug/sessions")), 0o700);
    let kinds: Vec<Value> = records(&kept[0]).iter().map(|r| r["type"].clone()).collect();
    assert_eq!(kinds, ["session", "user", "assistant", "name"]);
    // From a list, and by name.
    let mut s = Screen::start(&place.snug(&["chat", "demo", "-d", &device, "--resume"]), (80, 24));
    s.shows("choose a conversation");
    s.shows("a fine name");
    s.types("\r");
    s.shows("goes on with 2 messages");
    s.shows("first words");
    s.types("more words\r");
    s.until("no second reply", |s, _| s.contents().matches("I hear you.").count() == 2);
    // Nobody else may write to it meanwhile.
    let args = ["chat", "demo", "-d", &device, "--session", "a fine name"];
    let mut other = Screen::start(&place.snug(&args), (80, 24));
    other.shows("another snug has it open");
    other.types("\x04");
    assert_eq!(other.ends().0, Some(0));
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
    assert_eq!((files(&place).len(), records(&kept[0]).len()), (1, 6));
    let list = place.run(&["sessions", "--json"]).ok().records();
    assert_eq!(
        (list[0]["name"].as_str(), list[0]["messages"].as_u64()),
        (Some("a fine name"), Some(4))
    );
    let md = place.run(&["sessions", "export", "a fine name", "-"]).ok();
    assert!(md.out().starts_with("## you\n\nfirst words\n\n## model\n\nI hear you.\n"), "{md:?}");
    place.run(&["sessions", "rename", "a fine name", "another"]).ok();
    place.run(&["sessions", "rm", "another"]).ok();
    assert!(files(&place).is_empty());
    place.run(&["sessions", "show", "another"]).fails(1);
}

#[test]
fn a_crash_costs_at_most_the_reply_in_flight() {
    let place = Place::new();
    let words = tokenizer().encode_text("again and again ").unwrap();
    let slow = place.device(&words, json!({ "step_ms": 5 }));
    let mut s = Screen::chat(&place, &slow, (80, 24));
    s.types("before the crash\r");
    s.shows("again and again");
    s.signal(Signal::KILL);
    s.child.wait().unwrap();
    let kept = files(&place);
    assert_eq!(records(&kept[0]).last().unwrap()["text"], "before the crash");
    // A power cut may leave half a line.
    let text = fs::read_to_string(&kept[0]).unwrap();
    fs::write(&kept[0], format!("{text}{{\"type\":\"assist")).unwrap();
    let id = kept[0].file_stem().unwrap().to_str().unwrap().to_owned();
    let device = place.device(&said("I hear you."), json!({}));
    let mut s =
        Screen::start(&place.snug(&["chat", "demo", "-d", &device, "--resume", &id]), (80, 24));
    s.shows("before the crash");
    s.shows("goes on with 1 messages");
    s.shows("context 1024");
    s.types("/regen\r");
    s.shows("I hear you.");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
    let last = records(&kept[0]);
    assert_eq!(last.last().unwrap()["text"], "I hear you.");
}

#[test]
fn nothing_is_kept_when_nobody_wants_it() {
    let place = Place::new();
    let device = place.device(&said("I hear you."), json!({}));
    let mut command = place.snug(&["chat", "demo", "-d", &device]);
    command.env("SNUG_NO_HISTORY", "1");
    let mut s = Screen::start(&command, (80, 24));
    s.shows("context");
    s.types("secret\r");
    s.shows("I hear you.");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
    assert!(!place.path("state").exists());
    // Switched off on the way.
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("/set nohistory\r");
    s.shows("nothing is kept");
    s.types("secret\r");
    s.shows("I hear you.");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
    assert!(files(&place).is_empty() && !place.path("state/snug/prompts.jsonl").exists());
}

/// Undo, edit and another reply go back in the cache instead of reading everything again.
#[test]
fn going_back_keeps_what_the_cache_holds() {
    let place = Place::new();
    let device = place.device(&said("I hear you."), json!({}));
    let mut s = Screen::chat(&place, &device, (100, 40));
    s.types("first words of some length\r");
    s.shows("I hear you.");
    s.types("/regen\r");
    let kept = |lines: usize| {
        let start = std::time::Instant::now();
        while files(&place).first().is_none_or(|f| records(f).len() < lines) {
            assert!(start.elapsed().as_secs() < 60, "no {lines} records");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    // Session, question, answer, what is kept of them, another answer.
    kept(5);
    let cached = |s: &mut Screen| {
        s.types("/stats\r");
        s.shows("from the cache");
        let text = s.text();
        let at = text.rfind("prompt ").unwrap();
        let numbers: Vec<u32> = text[at..]
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse().ok())
            .collect();
        (numbers[0], numbers[1])
    };
    let (prompt, from_cache) = cached(&mut s);
    assert_eq!(from_cache, prompt - 1);
    s.types("/new\r");
    s.shows("a new conversation");
    s.types("one\r");
    s.shows("I hear you.");
    s.types("two\r");
    s.until("no second reply", |s, _| s.contents().matches("I hear you.").count() == 2);
    // The last message again, changed at its end: all before it is still there.
    s.types("/edit\r");
    s.shows("change it and send it again");
    s.types(" more\r");
    s.shows("two more");
    s.until("no second reply", |s, _| s.contents().matches("I hear you.").count() == 2);
    let (prompt, from_cache) = cached(&mut s);
    assert!(from_cache * 2 > prompt, "{from_cache} of {prompt}");
    s.types("/undo\r");
    s.shows("taken back");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn what_does_not_fit_is_asked_about_before_anything_is_sent() {
    let place = Place::new();
    let device = place.device(&said("I hear you."), json!({}));
    let args = ["chat", "demo", "-d", &device, "-c", "48"];
    let mut s = Screen::start(&place.snug(&args), (100, 30));
    s.shows("context 48");
    let long = "one two three four five six seven eight nine ten";
    s.types(&format!("{long}\r"));
    s.shows("I hear you.");
    s.types(&format!("{long} again\r"));
    s.shows("the context holds 48");
    // Taken back, nothing was lost.
    s.types("e");
    s.hides("the context holds 48");
    s.shows("ten again");
    s.types("\r");
    s.shows("the context holds 48");
    s.types("d");
    s.shows("the oldest turns were left out");
    s.until("no second reply", |s, _| s.contents().matches("I hear you.").count() == 2);
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}
