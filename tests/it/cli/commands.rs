//! The other verbs, references to models, exit codes, files that are broken.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use snug::commands::COMMANDS;
use snug::store::demo;

use super::{Place, Ran, exists, said};

/// A model directory that can be packed: the built-in model's weights and texts.
pub fn source_dir(place: &Place, name: &str) -> String {
    let store = demo::open().unwrap();
    let texts = store.texts();
    for (file, text) in texts.files() {
        place.write(&format!("{name}/{file}"), text);
    }
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for e in store.entries() {
        let mut words = vec![0u16; e.shape.len() as usize];
        e.format.codec().decode_rows(e.shape, &store.parts(e), 0..e.shape.rows, &mut words);
        let from = data.len();
        data.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        header.insert(
            e.name.clone(),
            json!({"dtype": "BF16", "shape": e.dims, "data_offsets": [from, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    place.write(&format!("{name}/model.safetensors"), bytes);
    place.path(name).to_str().unwrap().to_owned()
}

#[test]
fn help_fits_a_screen_and_shows_how() {
    let place = Place::new();
    let verbs = [
        "run",
        "chat",
        "pack",
        "inspect",
        "verify",
        "list",
        "rm",
        "devices",
        "bench",
        "template",
        "tokens",
        "version",
        "completions",
        "man",
    ];
    for verb in verbs.iter().map(|v| Some(*v)).chain([None]) {
        let args: Vec<&str> = verb.into_iter().chain(["--help"]).collect();
        let ran = place.run(&args).ok();
        let lines = ran.out().lines().count();
        assert!(lines <= 60, "{verb:?}: {lines} lines");
        let example = format!("snug {}", verb.unwrap_or("run"));
        assert!(ran.out().lines().take(8).any(|l| l.contains(&example)), "{verb:?}: {}", ran.out());
        assert!(ran.stderr.is_empty());
    }
    let about = "Chat with language models";
    assert!(place.run(&["--help"]).ok().out().starts_with(about));
    assert!(place.run(&["man"]).ok().out().contains(&format!("snug \\- {about}")));
    let ran = place.run(&["--version"]).ok();
    assert_eq!(ran.out(), concat!("snug ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(place.run(&["version"]).ok().stdout, ran.stdout);
    assert!(place.run(&["version", "-v"]).ok().out().contains("pairlut.1"));
    assert_eq!(
        place.run(&["version", "--json"]).ok().record("version")["version"],
        env!("CARGO_PKG_VERSION")
    );
    // Colours only where they are wanted.
    assert!(!place.run(&["--help"]).ok().out().contains('\x1b'));
    assert!(place.run(&["run", "--color", "always", "--help"]).ok().out().contains('\x1b'));
    assert!(!place.run(&["--color=never", "run", "--help"]).ok().out().contains('\x1b'));
    // Aliases.
    assert_eq!(
        place.run(&["prompt", "--help"]).ok().stdout,
        place.run(&["run", "--help"]).ok().stdout
    );
    place.run(&["ls"]).ok();
    place.run(&["show", "demo"]).ok();
}

#[test]
fn wrong_command_lines_are_said_in_three_lines() {
    let place = Place::new();
    for args in [
        &["frobnicate"][..],
        &["run", "demo", "--bogus", "x"],
        &["run", "demo", "--temp", "hot", "x"],
        &["run", "demo", "--temp", "-1", "x"],
        &["run", "demo", "--top-p", "0", "x"],
        &["run", "demo", "--temp", "1", "--greedy", "x"],
        &["run", "demo", "--stop", "", "x"],
        &["run", "demo", "--logit-bias", "99999:1", "x"],
        &["run", "demo", "-c", "0", "x"],
        &["run", "demo", "-c", "4096", "x"],
        &["run", "demo", "--threads", "0", "x"],
        &["run", "demo", "--overflow", "drop", "x"],
        &["run", "demo", "-d", "tpu", "x"],
        &["run", "demo", "-d", "cuda:x", "x"],
        &["pack", "x"],
        &["rm"],
        &["rm", "demo"],
        &["completions", "tcsh"],
        &["verify", "demo", "--level", "L9"],
        &["chat", "demo", "--raw"],
    ] {
        let ran = place.run(args).fails(2);
        assert!(ran.stdout.is_empty(), "{args:?}");
    }
    // JSON readers get a record even then.
    let ran = place.run(&["run", "--json", "--bogus"]).fails(2);
    assert_eq!(ran.record("error")["code"], "usage");
}

#[test]
fn options_can_come_from_the_environment_and_flags_win() {
    let place = Place::new();
    let d = place.device(&said("ok"), json!({}));
    let sampler = |args: &[&str], env: &[(&str, &str)]| {
        let mut all = vec!["run", "demo", "--json", "hi"];
        all.extend(args);
        let out =
            place.snug(&all).env("SNUG_DEVICE", &d).envs(env.iter().copied()).output().unwrap();
        Ran::from(out).ok().record("start")["sampler"].clone()
    };
    assert_eq!(sampler(&[], &[("SNUG_TEMP", "0.25")])["temperature"], 0.25);
    assert_eq!(sampler(&["--temp", "0.5"], &[("SNUG_TEMP", "0.25")])["temperature"], 0.5);
    assert_eq!(sampler(&["--temperature", "0.5"], &[])["temperature"], 0.5);
    assert_eq!(sampler(&[], &[("SNUG_GREEDY", "1")])["temperature"], 0.0);
    assert_eq!(sampler(&[], &[("SNUG_GREEDY", "0")])["temperature"], 0.7);
    let out = place
        .snug(&["run", "demo", "hi"])
        .env("SNUG_DEVICE", &d)
        .env("SNUG_JSON", "1")
        .output()
        .unwrap();
    assert_eq!(Ran::from(out).ok().record("end")["text"], "ok");
}

#[test]
fn models_are_found_or_the_nearest_are_named() {
    let place = Place::new();
    let d = place.device(&said("ok"), json!({}));
    place.demo_file("store/qwen3-8b.snug");
    place.demo_file("store/smol.snug");
    let run = |model: &str| place.run(&["run", model, "-d", &d, "hi"]);
    assert_eq!(run("qwen3-8b").ok().out(), "ok");
    assert_eq!(run("qwen3-8b:lossless").ok().out(), "ok");
    assert_eq!(run("store/smol.snug").ok().out(), "ok");
    let by_option = place.run(&["run", "-m", "smol", "-d", &d, "hi"]).ok();
    assert_eq!(by_option.out(), "ok");
    assert_eq!(place.run(&["run", "-hf", "smol", "-d", &d, "hi"]).ok().out(), "ok");
    run("qwen-8b").fails(3).says("did you mean qwen3-8b?");
    run("dmeo").fails(3).says("did you mean demo?");
    run("./missing.snug").fails(3).says("no such file");
    run("Qwen/Qwen3-8B").fails(3).says("does not download").says("snug pack");
    run("hf://Qwen/Qwen3-8B").fails(3);
    // What other programs have downloaded is used where it lies.
    source_dir(&place, "hub/models--Org--Model/snapshots/abc123");
    place.write("hub/models--Org--Model/refs/main", "abc123");
    let cached = |model: &str| {
        let out = place
            .snug(&["run", model, "-d", &d, "--json", "hi"])
            .env("HF_HUB_CACHE", place.path("hub"))
            .output();
        Ran::from(out.unwrap())
    };
    for model in ["Org/Model", "hf://Org/Model", "Org/Model@abc123:bf16"] {
        assert_eq!(cached(model).ok().record("start")["model"], "Org/Model@abc123:bf16");
    }
    cached("Org/Model@other").fails(3);
    let packed = cached("Org/Model:lossless").ok();
    assert_eq!(packed.record("start")["model"], "Org/Model@abc123:lossless");
    run("hostile\x1b]0;x\x07name").fails(3).says("hostile␛]0;x␇name");
    // A variant is held to.
    for verb in [
        &["run", "smol:bf16", "hi"][..],
        &["inspect", "smol:bf16"],
        &["verify", "smol:bf16"],
        &["template", "smol:bf16"],
    ] {
        place.run(verb).fails(10).says("stored as lossless");
    }
    run("smol:w4a4kv4").fails(3).says("4-bit");
    // A GGUF file has to be packed, by this very command.
    place.write("my model.gguf", b"GGUF\x03\0\0\0");
    run("my model.gguf").fails(10).says("snug pack 'my model.gguf' -o 'my model.snug'");
    // What this build cannot do, it says.
    place.run(&["run", "demo", "-d", "cuda", "hi"]).fails(8);
    place.run(&["run", "demo", "-d", "cuda:1", "--json", "hi"]).fails(8);
}

#[test]
fn the_store_is_listed_and_emptied() {
    let place = Place::new();
    let file = place.demo_file("store/one.snug");
    place.write("store/broken.snug", "not a model");
    place.write("store/other.txt", "not listed");
    let ran = place.run(&["list", "--json"]).ok();
    let rows = ran.records();
    let names: Vec<&str> = rows.iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["demo", "broken", "one"]);
    assert_eq!(rows[1]["error"]["exit"], 10);
    assert_eq!((&rows[2]["variant"], &rows[2]["exact"]), (&json!("lossless"), &json!(true)));
    assert_eq!(rows[2]["bytes"], json!(fs::metadata(&file).unwrap().len()));
    assert_eq!(place.run(&["list", "-q"]).ok().out(), "demo\nbroken\none\n");
    assert!(place.run(&["list"]).ok().out().contains("unreadable"));
    // Nobody is there to be asked.
    place.run(&["rm", "one"]).fails(2).says("--yes");
    place.run(&["rm", "--dry-run", "one"]).ok();
    assert!(exists(&file));
    // All or none.
    place.run(&["rm", "-y", "one", "nothing"]).fails(3);
    assert!(exists(&file));
    place.run(&["rm", "-y", "one", "broken"]).ok();
    assert!(!exists(&file));
    let text = place.write("keep.txt", "x");
    place.run(&["rm", "-y", &text]).fails(2);
    assert!(exists(&text));
}

#[test]
fn packing_gives_the_built_in_file_and_leaves_nothing_half_done() {
    let place = Place::new();
    let dir = source_dir(&place, "demo");
    let ran = place.run(&["pack", &dir, "-o", "out.snug", "--verify", "--json"]).ok();
    let record = ran.record("packed");
    assert_eq!((&record["exact"], &record["verified"]), (&json!(true), &json!(true)));
    assert!(record["total"]["bits_per_weight"].as_f64().unwrap() < 11.3, "{record}");
    // Same source, same bytes, whatever the number of threads.
    assert!(fs::read(place.path("out.snug")).unwrap() == demo::bytes());
    place.run(&["pack", &dir, "-o", "one.snug", "--jobs", "1", "-q"]).ok();
    assert!(fs::read(place.path("one.snug")).unwrap() == demo::bytes());
    // What is there stays, unless it may go.
    place.write("taken.snug", "precious");
    place.run(&["pack", &dir, "-o", "taken.snug"]).fails(1);
    assert_eq!(fs::read(place.path("taken.snug")).unwrap(), b"precious");
    place.run(&["pack", &dir, "-o", "taken.snug", "--force", "--codec", "bf16", "-q"]).ok();
    let d = place.device(&said("ok"), json!({}));
    let plain = place.run(&["run", "taken.snug:bf16", "-d", &d, "--json", "hi"]).ok();
    assert_eq!(plain.record("start")["model"], "taken:bf16");
    place.run(&["run", "out.snug:bf16", "-d", &d, "hi"]).fails(10);
    // The same text from packed and plain weights.
    let greedy = |model: &str| {
        place.run(&["run", model, "--greedy", "-n", "24", "Tell me a story."]).ok().stdout
    };
    assert_eq!(greedy("taken.snug"), greedy("out.snug"));
    // bf16 that is to be lossless is packed while it is loaded, which is said and takes the memory of the packed file.
    let model = format!("{dir}:lossless");
    let run = |model: &str| {
        place
            .run(&["run", model, "-d", "cpu", "--greedy", "-n", "24", "--json", "Tell me a story."])
            .ok()
    };
    let (late, early) = (run(&model).says("snug: packed 13.3 MiB of bf16 into"), run("out.snug"));
    assert_eq!(late.record("start")["model"], "demo:lossless");
    assert_eq!(late.record("end")["text"], early.record("end")["text"]);
    let weights = |ran: &Ran| ran.record("end")["memory"]["weights"].as_u64();
    assert_eq!(weights(&late), weights(&early));
    assert!(!early.stderr.contains("packed"), "{early:?}");
    let before = place.files();
    place.run(&["pack", &dir, "-o", "no/such/dir/x.snug"]).fails(1);
    place.run(&["pack", "nothing", "-o", "x.snug"]).fails(3);
    place.run(&["pack", "out.snug", "-o", "x.snug"]).fails(10);
    // A limit on file size stands for a full disk.
    let snug = place.snug(&["pack", &dir, "-o", "big.snug"]);
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg("ulimit -f 1000; exec \"$@\"")
        .arg("sh")
        .arg(snug.get_program())
        .args(snug.get_args());
    let out = shell.current_dir(place.dir.path()).stdin(Stdio::null()).output().unwrap();
    Ran::from(out).fails(6);
    assert_eq!(place.files(), before);
}

#[test]
fn cut_and_damaged_files_are_refused_by_every_command() {
    let place = Place::new();
    let whole = demo::bytes();
    let n = whole.len();
    for keep in [0, 1, 7, 8, 9, 100, 4095, 4096, 10_000, n / 2, n - 257, n - 1] {
        let file = place.write("cut.snug", &whole[..keep]);
        for args in [
            &["run", &file, "hi"][..],
            &["inspect", &file],
            &["verify", &file],
            &["template", &file],
            &["tokens", &file, "hi"],
        ] {
            let ran = place.run(args).fails(10);
            assert!(ran.stdout.is_empty(), "{keep}: {args:?}");
        }
    }
    let mut longer = whole.to_vec();
    longer.push(0);
    let file = place.write("long.snug", longer);
    place.run(&["run", &file, "hi"]).fails(10);
    let absurd = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let file = place.write("absurd.snug", absurd);
    place.run(&["run", &file, "hi"]).fails(10);
    place.run(&["run", place.dir.path().to_str().unwrap(), "hi"]).fails(10);
}

#[test]
fn verify_climbs_as_far_as_it_is_asked_and_no_further() {
    let place = Place::new();
    let dir = source_dir(&place, "demo");
    let args = ["verify", "demo", "-d", "cpu", "--steps", "8", "--json", "--receipt", "r.json"];
    let ran = place.run(&args).ok();
    let receipt = ran.record("receipt");
    assert_eq!((&receipt["level"], &receipt["result"]), (&json!("L4"), &json!("equal")));
    let steps = receipt["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 5);
    assert!(steps.iter().all(|s| s["values_compared"].as_u64().unwrap() > 0), "{steps:?}");
    assert!(steps.iter().all(|s| s["device"] == "cpu"), "{steps:?}");
    assert_eq!(receipt["device"]["id"], "cpu");
    let script = place.device(&[1], json!({}));
    place.run(&["verify", "demo", "-d", &script]).fails(2).says("computes nothing");
    place.run(&["verify", "demo", "-d", "cpu", "--against-device", "cpu"]).fails(2).says("itself");
    if snug::backend::cuda::driver::check().is_err() {
        place.run(&["verify", "demo", "-d", "cpu", "--against-device", "cuda"]).fails(8);
    }
    let written: Value = serde_json::from_slice(&fs::read(place.path("r.json")).unwrap()).unwrap();
    assert_eq!(written["tensors"], receipt["tensors"]);
    for (level, want) in [("container", "L0"), ("decode", "L1"), ("kernel", "L2"), ("logits", "L3")]
    {
        let ran = place.run(&["verify", "demo", "--level", level, "--steps", "3"]).ok();
        assert_eq!(ran.out().lines().last(), Some(&*format!("level reached: {want}")));
    }
    place.run(&["verify", "demo", "--level", "L1"]).ok();
    let against = place.run(&["verify", "demo", "--against", &dir, "--level", "container"]).ok();
    assert!(against.out().contains("the source, word by word"), "{against:?}");
    // A directory has no hashes; against itself it is what it is, and nothing more is claimed.
    place.run(&["verify", &dir]).fails(2).says("--against");
    let plain = place.run(&["verify", &dir, "--against", &dir]).ok();
    assert!(plain.out().ends_with("level reached: L0\n"), "{plain:?}");
}

#[test]
fn verify_finds_one_wrong_bit() {
    let place = Place::new();
    let mut bytes = demo::bytes().to_vec();
    // A low byte in the middle of the weights: still a valid file, but another weight.
    let at = bytes.len() / 2 / 4096 * 4096 + 100;
    let flips = (at..at + 2000).find(|i| {
        let mut changed = bytes.clone();
        changed[*i] ^= 1;
        let file = place.write("changed.snug", &changed);
        snug::store::Store::open(file.as_ref()).is_ok()
    });
    bytes[flips.unwrap()] ^= 1;
    let file = place.write("changed.snug", &bytes);
    let ran = place.run(&["verify", &file, "--receipt", "bad.json"]).fails(9).says("model.layers");
    assert!(ran.out().ends_with("level reached: none\n"), "{ran:?}");
    let receipt: Value =
        serde_json::from_slice(&fs::read(place.path("bad.json")).unwrap()).unwrap();
    assert_eq!((&receipt["result"], &receipt["level"]), (&json!("mismatch"), &Value::Null));
    place.run(&["verify", &file, "--json"]).fails(9);
    // The source tells as well.
    let dir = source_dir(&place, "demo");
    place.run(&["verify", &file, "--against", &dir]).fails(9).says("row");
}

#[test]
fn inspect_accounts_for_every_byte() {
    let place = Place::new();
    let record = place.run(&["inspect", "demo", "--json"]).ok().record("model");
    for sum in ["all", "packed"] {
        let parts = record[sum]["parts"].as_object().unwrap();
        let total: u64 = parts.values().map(|p| p["bytes"].as_u64().unwrap()).sum();
        assert_eq!(json!(total), record[sum]["bytes"], "{sum}");
    }
    assert!(record["packed"]["bits_per_weight"].as_f64().unwrap() <= 11.30, "{record}");
    assert_eq!(record["source"]["exact"], true);
    let text = place.run(&["inspect", "demo"]).ok();
    for word in
        ["low bytes", "codes", "patches", "tables", "index", "padding", "bits/weight", "exact"]
    {
        assert!(text.out().contains(word), "{word}");
    }
    let tensors = place.run(&["inspect", "demo", "--json", "--tensors", "*.mlp.*"]).ok().records();
    assert_eq!(tensors.len(), 24);
    assert!(
        tensors
            .iter()
            .all(|t| t["codec"] == "pairlut.1" && t["sha256"].as_str().unwrap().len() == 64)
    );
    place.run(&["inspect", "demo", "--tensors", "nothing*"]).fails(1);
    assert!(
        place.run(&["inspect", "demo", "--template"]).ok().out().contains("add_generation_prompt")
    );
}

#[test]
fn templates_and_tokens_are_shown() {
    let place = Place::new();
    let text = place.run(&["template", "demo"]).ok();
    assert!(
        text.out().starts_with("<|im_start|>system\n")
            && text.out().ends_with("<|im_start|>assistant\n")
    );
    let ids = place.run(&["template", "demo", "--ids"]).ok();
    assert!(ids.out().lines().next().unwrap().contains("<|im_start|>"));
    assert!(ids.stderr.contains("stops at 2 <|im_end|>"), "{}", ids.stderr);
    let record = place.run(&["tokens", "demo", "--json", "Hello<|im_end|>"]).ok().record("tokens");
    assert!(record["count"].as_u64().unwrap() > 2);
    let record = place
        .run(&["tokens", "demo", "--json", "--special", "Hello<|im_end|>"])
        .ok()
        .record("tokens");
    assert_eq!(record["ids"].as_array().unwrap().len(), 2);
    assert_eq!(record["tokens"][1]["special"], true);
    let bad = place.write("m.json", r#"{"role": "user"}"#);
    place.run(&["template", "demo", "--messages", &bad]).fails(2);
    let piped = place
        .run_with(&["template", "demo", "--messages", "-"], br#"[{"role":"user","content":"Hi"}]"#)
        .ok();
    assert!(piped.out().contains("user\nHi<|im_end|>"));
}

/// What does not fit is refused before it is loaded, with how much is missing.
#[test]
fn a_model_that_does_not_fit_is_refused_with_the_numbers() {
    let place = Place::new();
    let run = |memory: u64, context: &str| {
        let device = place.device(&said("ok"), json!({ "memory": memory, "load_ms": 3_600_000 }));
        place.run(&["run", "demo", "-d", &device, "-c", context, "--timeout", "500ms", "hi"])
    };
    run(1 << 20, "512").fails(7).says("0.00 GiB are free").says("GiB are missing").says("-c");
    // The context counts.
    run(10 << 20, "1024").fails(7);
    // What fits is loaded, which takes an hour here.
    run(10 << 20, "64").fails(124);
}

#[test]
fn manual_pages_are_written_whole() {
    let place = Place::new();
    fs::create_dir(place.path("man1")).unwrap();
    place.run(&["man", "man1"]).ok();
    let page = fs::read_to_string(place.path("man1/snug-run.1")).unwrap();
    assert!(page.contains("EXIT STATUS") && page.contains("logprobs"), "{page}");
    assert_eq!(fs::read_dir(place.path("man1")).unwrap().count(), COMMANDS.len() + 1);
    // The chat's page names every key and command that the client itself lists.
    let page = fs::read_to_string(place.path("man1/snug-chat.1")).unwrap().replace("\\-", "-");
    for (keys, what) in snug::ui::KEYS {
        assert!(page.contains(&keys.replace('\\', "\\e")) && page.contains(what), "{keys}");
    }
    for command in snug::ui::slash::COMMANDS {
        assert!(page.contains(&format!("\\fB/{}\\fR", command.name)), "/{}", command.name);
    }
    place.run(&["man", "nowhere"]).fails(1);
}
