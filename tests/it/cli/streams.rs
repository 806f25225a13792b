//! stdin, stdout and their ends: who waits for whom, what is text, and who may go away.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use serde_json::json;

use super::{Place, said};

/// Replies with the prompt's length in tokens, so that tests see what was read.
fn prompt_tokens(
    place: &Place,
    device: &str,
    args: &[&str],
    stdin: Stdio,
    write: Option<&[u8]>,
) -> u64 {
    let mut all = vec!["run", "demo", "-d", device, "--json", "--raw"];
    all.extend(args);
    let mut child = place.snug(&all).stdin(stdin).spawn().unwrap();
    if let Some(bytes) = write {
        child.stdin.take().unwrap().write_all(bytes).unwrap();
    }
    let ran: super::Ran = child.wait_with_output().unwrap().into();
    ran.ok().record("end")["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn the_prompt_comes_from_where_it_is_named() {
    let place = Place::new();
    let d = place.device(&said("ok"), json!({}));
    let file = place.write("part.txt", "Hello there");
    let piped = || Stdio::piped();
    let from = |f: &str| Stdio::from(File::open(f).unwrap());
    let count = |args: &[&str], stdin, write| prompt_tokens(&place, &d, args, stdin, write);
    assert_eq!(count(&["Hello", "there"], Stdio::null(), None), 2);
    assert_eq!(count(&["-p", "Hello there"], Stdio::null(), None), 2);
    assert_eq!(count(&["-f", &file], Stdio::null(), None), 2);
    assert_eq!(count(&[], piped(), Some(b"Hello there")), 2);
    assert_eq!(count(&["-"], piped(), Some(b"Hello there")), 2);
    assert_eq!(count(&["--stdin"], piped(), Some(b"Hello there")), 2);
    assert_eq!(count(&[], from(&file), None), 2);
    // Joined by a blank line, in order.
    let both = count(&["Hello", "-"], piped(), Some(b" there"));
    assert_eq!(both, count(&["Hello\n\n there"], Stdio::null(), None));
    assert_eq!(both, count(&["-f", &place.write("h", "Hello"), " there"], Stdio::null(), None));
    // A prompt leaves stdin alone, even one that has data; unless it may wait for its end.
    assert_eq!(count(&["Hello"], from(&file), None), 1);
    assert_eq!(count(&["Hello"], piped(), Some(b"there")), 1);
    let joined = count(&["Hello", "--stdin-timeout", "20s"], piped(), Some(b" there"));
    assert_eq!(joined, both);
}

#[test]
fn an_open_and_silent_stdin_hangs_nothing() {
    let place = Place::new();
    let d = place.device(&said("ok"), json!({}));
    // Somebody keeps the other end of this pipe open and never writes.
    let mut child =
        place.snug(&["run", "demo", "-d", &d, "hi"]).stdin(Stdio::piped()).spawn().unwrap();
    let held = child.stdin.take().unwrap();
    assert!(child.wait().unwrap().success());
    drop(held);
    // Asked for by `-`, it is waited for, and that is said.
    let mut child =
        place.snug(&["run", "demo", "-d", &d, "-"]).stdin(Stdio::piped()).spawn().unwrap();
    super::wait_for(&mut child, "waiting for standard input");
    child.stdin.take().unwrap().write_all(b"hi").unwrap();
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(out, "ok");
    assert!(child.wait().unwrap().success());
    // But not for ever.
    let mut child = place
        .snug(&["run", "demo", "-d", &d, "-", "--stdin-timeout", "100ms"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let held = child.stdin.take().unwrap();
    let ran: super::Ran = child.wait_with_output().unwrap().into();
    ran.fails(124).says("--stdin-timeout");
    drop(held);
}

#[test]
fn nothing_to_answer_is_a_usage_error() {
    let place = Place::new();
    place.run(&["run", "demo"]).fails(2).says("without a prompt");
    place.run(&["run"]).fails(2).says("without a model");
    place.run(&[]).fails(2);
    let d = place.device(&said("ok"), json!({}));
    place.run_with(&["run", "demo", "-d", &d, "--raw"], b"").fails(2).says("empty prompt");
}

#[test]
fn bytes_that_are_no_text_are_named_by_place() {
    let place = Place::new();
    let d = place.device(&said("ok"), json!({}));
    for (bytes, parts) in [
        (&b"caf\xe9"[..], &["offset 3", "line 1", "0xe9"][..]),
        (b"a\nb\xe2", &["offset 3", "line 2", "0xe2"]),
        (b"\xff\xfeh\0i\0", &["UTF-16LE"]),
        (b"\xfe\xff\0h\0i", &["UTF-16BE"]),
    ] {
        let file = place.write("odd.txt", bytes);
        for (args, stdin) in
            [(vec!["-"], bytes), (vec!["-f", &file], b""), (vec!["-s", "x", "--json", "-"], bytes)]
        {
            let mut all = vec!["run", "demo", "-d", &d];
            all.extend(args);
            let ran = place.run_with(&all, stdin).fails(12);
            for part in parts {
                assert!(ran.stderr.contains(part), "no {part} in {}", ran.stderr);
            }
        }
    }
    let odd = OsStr::from_bytes(b"caf\xe9");
    let out = place.snug(&["run", "demo", "-d", &d]).arg(odd).output().unwrap();
    super::Ran::from(out).fails(12).says("offset 3");
    let out = place.snug(&["run", "demo", "-d", &d, "--lossy"]).arg(odd).output().unwrap();
    super::Ran::from(out).ok();
    place.run_with(&["run", "demo", "-d", &d, "--lossy", "-"], b"caf\xe9").ok();
    let out = place.snug(&["run"]).arg(odd).arg("x").output().unwrap();
    super::Ran::from(out).fails(12).says("name of the model");
}

#[test]
fn nul_and_carriage_returns_pass_through() {
    let place = Place::new();
    let text = b"a\0b\r\nc\r\n\x1b[0m";
    let record = place.run_with(&["tokens", "demo", "--json", "-"], text).ok().record("tokens");
    let bytes: Vec<u8> = record["ids"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|id| super::tokenizer().token_bytes(id.as_u64().unwrap() as u32).to_vec())
        .collect();
    assert_eq!(bytes, text);
    let marked = place.run_with(&["tokens", "demo", "--json", "-"], b"\xef\xbb\xbfHello").ok();
    assert_eq!(marked.record("tokens")["count"], 1, "a byte order mark is no text");
}

/// Command lines that print, for every verb.
fn printing(place: &Place) -> Vec<Vec<String>> {
    let d = place.device(&said("ok"), json!({}));
    let file = place.demo_file("store/some.snug");
    let mut lines: Vec<Vec<String>> = [
        &["--help"][..],
        &["--version"],
        &["run", "demo", "-d", &d, "hi"],
        &["run", "demo", "-d", &d, "--tokens", "hi"],
        &["pack", "/nonexistent", "-o", "x.snug", "--help"],
        &["inspect", "demo"],
        &["inspect", "demo", "--json"],
        &["inspect", "demo", "--tensors"],
        &["inspect", "demo", "--template"],
        &["verify", "demo", "--level", "container"],
        &["list"],
        &["list", "-q"],
        &["list", "--json"],
        &["rm", "--dry-run", &file],
        &["template", "demo"],
        &["template", "demo", "--ids"],
        &["tokens", "demo", "hello"],
        &["version", "-v"],
        &["man"],
    ]
    .iter()
    .map(|l| l.iter().map(|s| (*s).to_owned()).collect())
    .collect();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        lines.push(vec!["completions".into(), shell.into()]);
    }
    for verb in [
        "run",
        "chat",
        "pack",
        "inspect",
        "verify",
        "list",
        "rm",
        "template",
        "tokens",
        "version",
        "completions",
        "man",
    ] {
        lines.push(vec![verb.into(), "--help".into()]);
    }
    lines
}

#[test]
fn a_reader_that_went_away_is_no_failure() {
    let place = Place::new();
    for line in printing(&place) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut args: Vec<&str> = line.iter().map(String::as_str).collect();
        if args.len() > 1 && !args.contains(&"--help") {
            args.push("-q");
        }
        let out = place.snug(&args).stdout(writer).output().unwrap();
        let ran = super::Ran::from(out);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line:?}");
    }
    // In the middle of a long reply as well.
    let d =
        place.device(&super::tokenizer().encode_text("again ").unwrap(), json!({ "step_ms": 1 }));
    let mut child = place.snug(&["run", "demo", "-q", "-d", &d, "hi"]).spawn().unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let ran: super::Ran = child.wait_with_output().unwrap().into();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_full_disk_is_said() {
    let place = Place::new();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for line in printing(&place) {
        let args: Vec<&str> = line.iter().map(String::as_str).collect();
        let out = place.snug(&args).stdout(full()).output().unwrap();
        super::Ran::from(out).fails(6);
    }
}
