//! Keys, pastes, replies.

use serde_json::json;
use snug::text::base64::base64;

use super::Screen;
use crate::cli::{END, Place, said, token_of, tokenizer};

#[test]
fn a_message_a_reply_and_the_way_out() {
    let place = Place::new();
    let device = place.device(&said("I hear **you**."), json!({}));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.shows("Enter send ·");
    s.types("hello\r");
    s.shows("I hear you.");
    s.shows("hello");
    // Ctrl-D ends without a word of failure.
    s.types("\x04");
    let (code, text) = s.ends();
    assert_eq!(code, Some(0));
    assert!(!text.contains("rror") && !text.contains("Abort"), "{text}");
}

#[test]
fn a_paste_is_one_edit_and_enter_sends_it() {
    let place = Place::new();
    let device = place.device(&said("Seen."), json!({}));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("\x1b[200~first line\n/quit\nthird line\x1b[201~");
    s.shows("third line");
    assert!(!s.text().contains("Seen."));
    s.types("\r");
    s.shows("Seen.");
    s.shows("/quit");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn every_way_to_type_a_new_line_does_and_enter_sends() {
    let place = Place::new();
    let device = place.device(&said("Seen."), json!({}));
    for (name, bytes) in [
        ("Ctrl-J", "\n"),
        ("Alt-Enter", "\x1b\r"),
        ("Shift-Enter", "\x1b[13;2u"),
        ("backslash Enter", "\\\r"),
    ] {
        let mut s = Screen::chat(&place, &device, (80, 24));
        s.types(&format!("above{bytes}below"));
        s.until(name, |s, _| {
            let text = s.contents();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            lines.windows(2).any(|w| w[0] == "› above" && w[1] == "below")
        });
        assert!(!s.text().contains("Seen."), "{name} sent the message");
        s.types("\r");
        s.shows("Seen.");
        s.types("\x04");
        assert_eq!(s.ends().0, Some(0), "{name}");
    }
}

#[test]
fn ctrl_c_stops_the_reply_clears_the_draft_and_twice_quits() {
    let place = Place::new();
    let words = tokenizer().encode_text("again and again ").unwrap();
    let device = place.device(&words, json!({ "step_ms": 10 }));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("talk\r");
    s.shows("again and again");
    // The draft stays alive meanwhile.
    s.types("draft");
    s.shows("draft");
    s.types("\x03");
    s.shows("stopped; what was said so far is kept");
    s.shows("draft");
    s.types("\x03");
    s.hides("draft");
    // What was said can still be copied.
    s.types("/copy\r");
    s.shows("copied the last reply");
    s.until("nothing in the clipboard", |_, bytes| bytes.windows(7).any(|w| w == b"\x1b]52;c;"));
    s.types("\x03");
    s.shows("Ctrl-C again");
    s.types("\x03");
    assert_eq!(s.ends().0, Some(130));
}

#[test]
fn what_a_model_says_cannot_drive_the_terminal() {
    let place = Place::new();
    let hostile = "a\x1b]52;c;aGk=\x07b\x1b[2Jc\rd\u{9b}31m\u{202e}e\x1b]0;title\x07\x1b[?1049lf";
    let mut ids: Vec<u32> = hostile.bytes().map(|b| token_of(&[b])).collect();
    ids.push(END);
    let device = place.device(&ids, json!({}));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("\x1b[200~evil \x1b[3J \u{9b}2J draft\x1b[201~\r");
    s.shows("a␛]52;c;aGk=␇b␛[2Jc␍d<U+009B>31m<U+202E>e␛]0;title␇␛[?1049lf");
    let bytes = s.bytes();
    let has = |part: &[u8]| bytes.windows(part.len()).any(|w| w == part);
    assert!(!has(b"\x1b]52") && !has(b"\x1b]0") && !has(b"\x1b[3J") && !has(b"\x1b[?1049l"));
    assert!(!has("\u{9b}".as_bytes()) && !has("\u{202e}".as_bytes()));
    // Nor the mouse: nobody asked for it.
    for mode in ["1000", "1002", "1003", "1006"] {
        assert!(!has(format!("\x1b[?{mode}h").as_bytes()), "{mode}");
    }
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn characters_split_over_tokens_and_wide_ones_arrive_whole() {
    let place = Place::new();
    let text = "é漢字😀 ⚠️ 👩‍👩‍👧 end";
    let mut ids: Vec<u32> = text.bytes().map(|b| token_of(&[b])).collect();
    ids.push(END);
    let device = place.device(&ids, json!({ "step_ms": 1 }));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("say\r");
    s.shows(" end");
    for part in ["é漢字😀", "⚠", "👩"] {
        s.shows(part);
    }
    let screen = s.text();
    assert!(!screen.contains('\u{fffd}'), "{screen}");
    // What is copied is the source, byte for byte.
    s.types("/copy\r");
    s.shows("copied");
    let mut want = b"\x1b]52;c;".to_vec();
    want.extend_from_slice(base64(text.as_bytes()).as_bytes());
    s.until("the copy differs from the source", |_, bytes| {
        bytes.windows(want.len()).any(|w| w == want)
    });
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn thinking_is_folded_shown_by_tab_and_never_copied() {
    let place = Place::new();
    let text = "<think>secret thought</think>The answer.";
    let mut ids: Vec<u32> = text.bytes().map(|b| token_of(&[b])).collect();
    ids.push(END);
    let device = place.device(&ids, json!({}));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("why\r");
    s.shows("The answer.");
    s.shows("thought for");
    assert!(!s.text().contains("secret thought"));
    s.types("\t");
    s.shows("│ secret thought");
    s.types("\t");
    s.hides("secret thought");
    s.types("/copy\r");
    let want = format!("\x1b]52;c;{}\x07", base64(b"The answer."));
    s.until("the copy is not the answer", |_, bytes| {
        bytes.windows(want.len()).any(|w| w == want.as_bytes())
    });
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn a_scrolled_view_stays_still_while_text_arrives() {
    let place = Place::new();
    let words = tokenizer().encode_text("again and again, and once more, ").unwrap();
    let device = place.device(&words, json!({ "step_ms": 2 }));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("talk\r");
    s.until("no long reply", |s, _| s.contents().matches("once more").count() > 30);
    s.types("\x1b[5~\x1b[5~");
    s.shows("lines below");
    // Nothing but the figures and the count of lines below may change now.
    let top =
        |s: &Screen| s.text().lines().take(10).map(str::to_owned).collect::<Vec<_>>()[2..].to_vec();
    let before = top(&s);
    let below = |s: &Screen| -> u32 {
        let text = s.text();
        let at = text.find(" lines below").unwrap();
        text[..at].rsplit(' ').next().unwrap().parse().unwrap()
    };
    let count = below(&s);
    let start = std::time::Instant::now();
    while below(&s) < count + 3 {
        assert!(start.elapsed().as_secs() < 60, "nothing arrives");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(top(&s), before);
    s.types("\x1b[F");
    s.hides("lines below");
    s.types("\x03");
    s.shows("stopped;");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn without_colours_and_without_unicode_as_the_environment_says() {
    let place = Place::new();
    let device = place.device(&said("# Title\n\nSome `code` and **more**."), json!({}));
    let mut command = place.snug(&["chat", "demo", "-d", &device]);
    command.env("NO_COLOR", "1").env("LC_ALL", "C");
    let mut s = Screen::start(&command, (120, 30));
    s.shows("context");
    s.types("go\r");
    s.shows("and more.");
    s.types("/model\r");
    s.shows("Enter takes it");
    let text = s.text();
    assert!(text.is_ascii(), "{text}");
    let bytes = String::from_utf8_lossy(&s.bytes()).into_owned();
    for part in bytes.split("\x1b[").skip(1) {
        let Some((numbers, _)) = part.split_once('m') else { continue };
        if !numbers.chars().all(|c| c.is_ascii_digit() || c == ';') {
            continue;
        }
        let coloured = |n: u32| matches!(n, 30..=38 | 40..=48 | 90..=97 | 100..=107);
        let numbers: Vec<u32> = numbers.split(';').filter_map(|n| n.parse().ok()).collect();
        assert!(!numbers.iter().any(|n| coloured(*n)), "{numbers:?}");
    }
    s.types("\x1b");
    s.hides("Enter takes it");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn another_model_takes_the_place_of_the_one_before() {
    let place = Place::new();
    place.demo_file("store/second.snug");
    place.write("store/broken.snug", "nonsense");
    let device = place.device(&said("I hear you."), json!({}));
    let mut s = Screen::chat(&place, &device, (80, 24));
    s.types("hello\r");
    s.shows("I hear you.");
    s.types("/model nowhere\r");
    s.shows("cannot find the model nowhere");
    s.types("/model\r");
    s.shows("cannot be used");
    s.types("second");
    s.hides("cannot be used");
    s.types("\r");
    s.shows("snug · second");
    s.types("more\r");
    s.until("no second reply", |s, _| s.contents().matches("I hear you.").count() == 2);
    // A file that cannot be read leaves nothing loaded, and says what to do.
    s.types("/model broken\r");
    s.shows("/model chooses another model");
    s.types("/model demo -c 512\r");
    s.shows("context 512");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

/// Terminals disagree about the width of such clusters. Whatever one makes of them, what stands after them and the borders
/// are in place, and nothing is left behind.
#[test]
fn borders_stand_whatever_the_terminal_makes_of_emoji() {
    let place = Place::new();
    let corpus = [
        "♻️ recycled",
        "⚠️ warned",
        "🇩🇪🇫🇷 flags",
        "👩‍👩‍👧 family",
        "👍🏽 thumb",
        "漢字かな wide",
        "e\u{301} acute",
    ];
    let text = corpus.join("\n\n");
    let mut ids: Vec<u32> = text.bytes().map(|b| token_of(&[b])).collect();
    ids.push(END);
    let device = place.device(&ids, json!({ "step_ms": 1 }));
    let mut s = Screen::chat(&place, &device, (120, 30));
    let borders = |s: &vt100::Screen| -> Vec<Vec<u16>> {
        let is_border =
            |y, x| s.cell(y, x).is_some_and(|c| matches!(c.contents(), "│" | "┤" | "├"));
        (1..26).map(|y| (0..120).filter(|x| is_border(y, *x)).collect()).collect()
    };
    let mut clean = Vec::new();
    s.until("no panel", |s, _| {
        clean = borders(s);
        clean.iter().all(|row| row.len() == 3)
    });
    s.types("go\r");
    s.shows("acute");
    s.shows("Enter send ·");
    s.until("borders have moved", |s, _| borders(s) == clean);
    for word in ["recycled", "warned", "flags", "family", "thumb", "wide"] {
        s.until(&format!("{word} is not where it belongs"), |s, _| {
            s.contents()
                .lines()
                .any(|l| l.contains(&format!(" {word}  ")) || l.contains(&format!(" {word} ")))
        });
    }
    s.types("/new\r");
    s.until("something is left behind", |s, _| {
        borders(s) == clean
            && s.contents()
                .lines()
                .skip(3)
                .take(20)
                .all(|l| l.chars().skip(1).take(80).all(|c| c == ' ' || c == '│'))
    });
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn a_very_large_paste_is_one_message() {
    let place = Place::new();
    let device = place.device(&said("Seen."), json!({}));
    let mut s =
        Screen::start(&place.snug(&["chat", "demo", "-d", &device, "-c", "900000"]), (80, 24));
    s.shows("context 900000");
    let paste = "a line of some words that mean nothing\n".repeat(8000);
    s.types("\x1b[200~");
    for piece in paste.as_bytes().chunks(2048) {
        s.types(std::str::from_utf8(piece).unwrap());
    }
    s.types("the last line\x1b[201~");
    s.shows("the last line");
    s.types("\r");
    s.shows("Seen.");
    s.types("\x04");
    assert_eq!(s.ends().0, Some(0));
}

#[test]
fn the_wheel_scrolls_only_when_asked_for() {
    let place = Place::new();
    let words = tokenizer().encode_text("again and again, and once more, ").unwrap();
    let device = place.device(&words, json!({}));
    let args = ["chat", "demo", "-d", &device, "-n", "900"];
    let mut s = Screen::start(&place.snug(&args), (80, 24));
    s.shows("context");
    s.types("talk\r");
    s.shows("ended by the token limit");
    s.types("/mouse on\r");
    s.shows("hold Shift to select");
    s.until("no reports asked for", |s, _| {
        s.mouse_protocol_mode() != vt100::MouseProtocolMode::None
    });
    s.types("\x1b[<64;10;10M");
    s.shows("lines below");
    s.types("\x1b[<65;10;10M");
    s.hides("lines below");
    s.types("\x04");
    // `ends` looks whether the reports are off again.
    assert_eq!(s.ends().0, Some(0));
}
