//! Every way to end, to stop and to come back leaves the terminal as it was.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::Screen;
use crate::cli::{Place, said, tokenizer};

#[test]
fn signals_give_the_terminal_back_and_say_so_in_the_code() {
    let place = Place::new();
    let words = tokenizer().encode_text("again and again ").unwrap();
    let device = place.device(&words, json!({ "step_ms": 5 }));
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut s = Screen::chat(&place, &device, (80, 24));
        s.types("talk\r");
        s.shows("again and again");
        assert!(s.is_raw());
        s.signal(signal);
        assert_eq!(s.ends().0, Some(code), "{signal:?}");
    }
}

#[test]
fn a_failing_engine_is_told_in_three_lines_and_the_chat_goes_on() {
    let place = Place::new();
    for (script, part) in [
        (json!({"fail_at": 2}), "cannot compute a token"),
        (json!({"panic_at": 1}), "internal error"),
    ] {
        let device = place.device(&said("Yes, of course."), script);
        let mut s = Screen::chat(&place, &device, (80, 24));
        s.types("go\r");
        s.shows(part);
        s.shows("why:");
        s.shows("try:");
        if part == "internal error" {
            s.shows("/model loads it again");
            s.shows("snug · no model");
            s.types("\x15/model demo\r");
            s.shows("snug · demo");
        }
        s.types("\x15\x04");
        assert_eq!(s.ends().0, Some(0));
    }
}

#[test]
fn loading_can_be_stopped_at_once() {
    let place = Place::new();
    let device = place.device(&said("Yes."), json!({ "load_ms": 600_000 }));
    let mut s = Screen::start(&place.snug(&["chat", "demo", "-d", &device]), (80, 24));
    s.shows("Ctrl-C stops");
    s.types("\x03");
    s.shows("loading was stopped");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

/// The real thing: a shell with job control, Ctrl-Z, `fg`.
#[test]
fn ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_back() {
    let place = Place::new();
    let device = place.device(&said("I hear you."), json!({}));
    let snug = place.snug(&["chat", "demo", "-d", &device]);
    let mut shell = place.snug(&[]);
    shell.env("PS1", "ready> ").env("ENV", "");
    let mut inner = std::process::Command::new("sh");
    inner.arg("-i").current_dir(place.dir.path());
    for (name, value) in shell.get_envs() {
        match value {
            Some(value) => inner.env(name, value),
            None => inner.env_remove(name),
        };
    }
    let mut s = Screen::start(&inner, (80, 24));
    s.shows("ready>");
    s.types(&format!("{} chat demo -d {device}\n", snug.get_program().to_str().unwrap()));
    s.shows("context");
    s.types("hello\r");
    s.shows("I hear you.");
    s.types("\x1a");
    s.until("the shell does not come back", |s, _| {
        !s.alternate_screen() && s.contents().contains("ready>")
    });
    s.types("echo shell''works\n");
    s.shows("shellworks");
    s.types("fg\n");
    s.until("nothing is drawn again", |s, _| {
        s.alternate_screen() && s.contents().contains("I hear you.")
    });
    s.types("more\r");
    s.until("no second reply", |s, _| s.contents().matches("I hear you.").count() == 2);
    s.types("\x04");
    s.until("the shell is not there", |s, _| !s.alternate_screen());
    s.types("exit\n");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn nothing_is_written_when_nothing_happens() {
    let place = Place::new();
    let device = place.device(&said("I hear you."), json!({}));
    let mut s = Screen::chat(&place, &device, (120, 30));
    s.types("hello\r");
    s.shows("I hear you.");
    s.shows("Enter send ·");
    std::thread::sleep(Duration::from_secs(1));
    let before = s.bytes().len();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(s.bytes().len(), before);
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn a_storm_of_sizes_from_one_cell_up() {
    let place = Place::new();
    let words = tokenizer().encode_text("again and again, ").unwrap();
    let device = place.device(&words, json!({ "step_ms": 2 }));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("talk\r");
    s.shows("again and again");
    let mut draws = snug::num::rng::Stream::new(11);
    for _ in 0..120 {
        s.resize(1 + draws.below(160) as u16, 1 + draws.below(50) as u16);
        std::thread::sleep(Duration::from_millis(5));
    }
    s.resize(1, 1);
    std::thread::sleep(Duration::from_millis(50));
    s.resize(90, 20);
    s.shows("again and again");
    s.shows("Ctrl-C stop");
    s.types("\x03");
    s.shows("stopped;");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn a_panic_gives_the_terminal_back_and_is_told_in_three_lines() {
    let place = Place::new();
    let device = place.device(&said("Yes."), json!({}));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("/debug panic\r");
    let (code, text) = s.ends();
    assert_eq!(code, Some(1));
    for part in ["error: the command failed inside snug", "why: internal error: asked to", "try:"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// Stopped from outside without a warning, the program takes the terminal again when it goes on.
#[test]
fn after_a_stop_from_outside_everything_is_drawn_again() {
    let place = Place::new();
    let device = place.device(&said("I hear you."), json!({}));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("hello\r");
    s.shows("I hear you.");
    s.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(50));
    s.make_cooked();
    let before = s.bytes().len();
    s.signal(Signal::CONT);
    s.until("nothing is drawn again", |_, bytes| {
        let new = String::from_utf8_lossy(&bytes[before..]).into_owned();
        new.contains("\x1b[?1049h") && new.contains("hear")
    });
    assert!(s.is_raw());
    s.types("more\r");
    s.until("no second reply", |s, _| s.contents().matches("I hear you.").count() == 2);
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn an_editor_has_the_keys_for_itself_and_its_text_becomes_the_draft() {
    let place = Place::new();
    let device = place.device(&said("I hear you."), json!({}));
    let mut command = place.snug(&["chat", "demo", "-d", &device]);
    let editor = place.write("editor", "#!/bin/sh\nread key\nprintf 'edited %s: ' \"$key\" > \"$1.new\"; cat \"$1\" >> \"$1.new\"; mv \"$1.new\" \"$1\"\n");
    command.env("EDITOR", format!("sh {editor}")).env_remove("VISUAL");
    let mut s = Screen::start(&command, (80, 24));
    s.shows("context");
    s.types("draft");
    s.shows("draft");
    s.types("\x07");
    s.until("no editor", |s, _| !s.alternate_screen());
    s.types("mine\n");
    s.shows("edited mine: draft");
    s.types("\r");
    s.shows("I hear you.");
    s.types("\x0f");
    s.shows("Enter goes back to the chat");
    s.shows("edited mine: draft");
    s.types("\n");
    s.until("not back", |s, _| s.alternate_screen());
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}
