//! The first quarter of an hour, with the built-in model: every step from the keys and words that the screen shows.

use super::Screen;
use crate::cli::Place;

const F1: &str = "\x1bOP";

#[test]
fn a_newcomer_finds_the_way() {
    let place = Place::new();
    place.demo_file("store/another.snug");
    let mut command = place.snug(&[]);
    command.env("SNUG_DEVICE", "cpu").env("SNUG_THREADS", "1");
    let mut s = Screen::start(&command, (80, 24));
    // Start: a list, and how to take from it.
    s.shows("choose a model");
    s.shows("another");
    s.shows("fits with a context of");
    s.shows("Enter takes it");
    s.types("\r");
    s.shows("snug · demo · lossless");
    s.shows("tiny built-in model");
    // Ask.
    s.shows("Enter sends");
    s.types("Tell me a long story about a fox.\r");
    // Stop.
    s.shows("writing · Ctrl-C stop");
    s.until("no text", |s, _| s.contents().contains("demo\n"));
    s.types("\x03");
    s.until("it does not stop", |s, _| {
        let text = s.contents();
        text.contains("/regen asks again") || text.contains("Enter send ·")
    });
    // Help.
    s.shows("F1 help");
    s.types(F1);
    for word in ["/regen", "/undo", "/edit", "/model", "/copy"] {
        s.shows(word);
    }
    // Regenerate.
    s.types("/regen\r");
    s.shows("writing · Ctrl-C stop");
    s.types("\x03");
    s.shows("Enter send ·");
    // Edit.
    s.types("/edit\r");
    s.shows("change it and send it again");
    s.types("\x15Hello!\r");
    s.shows("Enter send ·");
    s.until("no reply", |s, _| s.contents().contains("Hello!"));
    s.shows("Enter send ·");
    // Switch the model.
    s.types("/model\r");
    s.shows("Enter takes it");
    s.types("another\r");
    s.shows("snug · another");
    s.types("Hello again.\r");
    s.shows("Hello again.");
    s.until("no end", |s, _| s.contents().contains("Enter send ·"));
    // Leave.
    s.shows("Ctrl-D quit");
    s.types("\x04");
    let (code, text) = s.ends();
    assert_eq!(code, Some(0));
    assert!(text.contains("--resume"), "{text}");
    // Resume.
    let mut command = place.snug(&["chat", "another", "--resume"]);
    command.env("SNUG_DEVICE", "cpu").env("SNUG_THREADS", "1");
    let mut s = Screen::start(&command, (80, 24));
    s.shows("choose a conversation");
    s.shows("Enter takes it");
    s.types("\r");
    s.shows("Hello again.");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn code_is_copied_by_a_key_that_the_help_names() {
    let place = Place::new();
    let text = "Like this:\n\n```python\nx = 1\ny = 2\n```\nDone.";
    let mut ids: Vec<u32> = text.bytes().map(|b| crate::cli::token_of(&[b])).collect();
    ids.push(crate::cli::END);
    let device = place.device(&ids, serde_json::json!({}));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("How?\r");
    s.shows("Done.");
    s.types("/keys\r");
    s.shows("copy the last block of code");
    s.types("\x1bx");
    s.shows("copied the last block of code");
    let want = format!("\x1b]52;c;{}\x07", snug::text::base64::base64(b"x = 1\ny = 2\n"));
    s.until("other text is in the clipboard", |_, bytes| {
        bytes.windows(want.len()).any(|w| w == want.as_bytes())
    });
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}
