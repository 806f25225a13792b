//! Ctrl-C and its kin, at every stage.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Place, Ran, said, wait_for};

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Lets children hear signals even where the tests themselves are told to ignore them (`nohup`, background jobs): what
/// a process ignores its children ignore too, what it handles they do not.
pub fn heard() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(mask.trim(), 16).unwrap();
        for signal in
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|s| ignored & (1 << (s - 1)) != 0)
        {
            signal_hook::flag::register(signal, Default::default()).unwrap();
        }
    });
}

/// Starts, waits until stdout has `bytes` bytes (or stderr a part), sends the signal, and returns what was left.
fn stopped(mut command: Command, ready: &str, bytes: usize, signal: Signal) -> Ran {
    heard();
    let mut child = command.spawn().unwrap();
    let held = child.stdin.take();
    let mut stdout = vec![0; bytes];
    if bytes > 0 {
        child.stdout.as_mut().unwrap().read_exact(&mut stdout).unwrap();
    }
    let mut stderr = String::new();
    if !ready.is_empty() {
        stderr = wait_for(&mut child, ready);
    }
    send(&child, signal);
    let mut ran: Ran = child.wait_with_output().unwrap().into();
    ran.stdout = [stdout, ran.stdout].concat();
    ran.stderr = stderr + &ran.stderr;
    drop(held);
    ran
}

/// An hour: nothing here may wait for it.
const LONG: u64 = 3_600_000;

#[test]
fn every_signal_has_its_code_at_every_stage() {
    let place = Place::new();
    let words = super::tokenizer().encode_text("again and again ").unwrap();
    let long = "word ".repeat(200);
    let slow_load = place.device(&words, json!({ "load_ms": LONG }));
    let slow_read = place.device(&words, json!({ "step_ms": 30, "max_step": 1 }));
    let slow_talk = place.device(&words, json!({ "step_ms": 5 }));
    for (signal, code, name) in [
        (Signal::INT, 130, "interrupted"),
        (Signal::TERM, 143, "terminated"),
        (Signal::HUP, 129, "hangup"),
    ] {
        // Loading.
        let command = place.snug(&["run", "demo", "-v", "-d", &slow_load, "--json", "hi"]);
        let ran = stopped(command, "loading demo", 0, signal);
        assert_eq!(ran.code, Some(code), "loading: {ran:?}");
        assert_eq!(ran.record("error")["code"], name);
        // Reading the prompt.
        let command = place.snug(&["run", "demo", "-v", "-d", &slow_read, &long]);
        let ran = stopped(command, "scripted", 0, signal);
        assert_eq!((ran.code, ran.stdout.len()), (Some(code), 0), "reading: {ran:?}");
        // Replying: what was said is kept.
        let ran = stopped(place.snug(&["run", "demo", "-d", &slow_talk, "hi"]), "", 20, signal);
        assert_eq!(ran.code, Some(code), "replying: {ran:?}");
        assert!(ran.out().starts_with("again and again again"), "{ran:?}");
        assert!(!ran.stderr.contains("error"), "who pressed Ctrl-C knows: {}", ran.stderr);
        // The same in JSON.
        let command = place.snug(&["run", "demo", "--tokens", "-d", &slow_talk, "hi"]);
        let ran = stopped(command, "", 2000, signal);
        let end = ran.record("end");
        assert_eq!((ran.code, &end["finish_reason"]), (Some(code), &json!("cancelled")));
        assert!(end["text"].as_str().unwrap().starts_with("again"), "{end}");
        let last = ran.records().pop().unwrap();
        assert_eq!(
            (&last["type"], &last["exit"], &last["code"]),
            (&json!("error"), &json!(code), &json!(name))
        );
    }
}

#[test]
fn waiting_for_stdin_can_be_interrupted() {
    let place = Place::new();
    let d = place.device(&said("ok"), json!({}));
    for args in [&["run", "demo", "-d", &d, "-"][..], &["tokens", "demo", "-"]] {
        let mut command = place.snug(args);
        command.stdin(Stdio::piped());
        let ran = stopped(command, "waiting for standard input", 0, Signal::INT);
        assert_eq!(ran.code, Some(130), "{ran:?}");
    }
    // A batch that waits for its next request.
    let mut command = place.snug(&["run", "demo", "-d", &d, "-v", "--jsonl"]);
    command.stdin(Stdio::piped());
    let ran = stopped(command, "scripted", 0, Signal::INT);
    assert_eq!(ran.code, Some(130), "{ran:?}");
}

#[test]
fn a_device_that_hangs_cannot_hold_the_program() {
    let place = Place::new();
    let hung = place.device(&said("ok"), json!({ "step_ms": LONG }));
    // Once: the orderly way is blocked, and after a while the process ends all the same.
    let ran =
        stopped(place.snug(&["run", "demo", "-v", "-d", &hung, "hi"]), "scripted", 0, Signal::INT);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    // A full pipe that nobody reads.
    let words = super::tokenizer().encode_text("again and again ").unwrap();
    let talk = place.device(&words, json!({}));
    heard();
    let mut child = place
        .snug(&["run", "demo", "-q", "--ignore-eos", "-d", &talk, "--tokens", "hi"])
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn time_runs_out() {
    let place = Place::new();
    let words = super::tokenizer().encode_text("again and again ").unwrap();
    let load = place.device(&words, json!({ "load_ms": LONG }));
    let talk = place.device(&words, json!({ "step_ms": 20 }));
    let ran = place.run(&["run", "demo", "-d", &load, "--timeout", "200ms", "hi"]).fails(124);
    assert!(ran.stdout.is_empty());
    let ran = place
        .run(&["run", "demo", "-d", &talk, "--timeout", "1s", "--json", "hi"])
        .fails(124)
        .says("--timeout");
    assert_eq!(ran.record("end")["finish_reason"], "cancelled");
    assert_eq!(ran.record("error")["exit"], 124);
    place.run(&["run", "demo", "--timeout", "soon", "hi"]).fails(2);
}

#[test]
fn ignored_signals_stay_ignored() {
    let place = Place::new();
    let d = place.device(&said("one two three four"), json!({ "step_ms": 50 }));
    let snug = place.snug(&["run", "demo", "-v", "-d", &d, "hi"]);
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg("trap '' HUP; exec \"$@\"")
        .arg("sh")
        .arg(snug.get_program())
        .args(snug.get_args());
    shell
        .env("SNUG_STORE", place.path("store"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ran = stopped(shell, "scripted", 0, Signal::HUP);
    assert_eq!((ran.code, ran.out()), (Some(0), "one two three four"));
}

#[test]
fn packing_that_is_stopped_leaves_nothing() {
    let place = Place::new();
    // Large, but no bytes on disk: a hole.
    let rows = 200_000u64;
    let header = json!({"model.embed_tokens.weight": {
        "dtype": "BF16", "shape": [rows, 1024], "data_offsets": [0, rows * 2048],
    }})
    .to_string();
    for (file, text) in snug::store::demo::open().unwrap().texts().files() {
        place.write(&format!("big/{file}"), text);
    }
    let file = place.write(
        "big/model.safetensors",
        [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat(),
    );
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_len(8 + header.len() as u64 + rows * 2048).unwrap();
    heard();
    let mut child = place.snug(&["pack", "big", "-o", "big.snug"]).spawn().unwrap();
    while place.files().len() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began to write");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(place.files(), ["big"]);
}
