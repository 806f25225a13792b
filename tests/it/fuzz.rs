//! Seeded mutation of everything that parses. One test a target; `SNUG_FUZZ_ITERS` sets how many inputs each one
//! tries, so that a long run is the same test with another number.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};
use snug::codec::{Format, Parts, Shape};
use snug::num::rng::Stream;
use snug::store::{container, header};

use crate::codecs::{normal, validate_then_decode};
use crate::store::damage::Pieces;
use crate::store::fixture::{le, listing};

/// Inputs a target tries: what the environment says, or its own default (a second or two).
fn iterations(default: u64) -> u64 {
    match std::env::var("SNUG_FUZZ_ITERS") {
        Ok(n) => n.parse().expect("SNUG_FUZZ_ITERS is a number"),
        Err(_) => default,
    }
}

/// Changes `bytes` in one to four places: bits, bytes, interesting values, copies, cuts, growth.
fn mutate(stream: &mut Stream, bytes: &mut Vec<u8>) {
    const INTERESTING: [u32; 8] = [0, 1, 0x7f, 0x80, 0xff, 0x1fff, 0x8000, u32::MAX];
    for _ in 0..=stream.below(3) {
        if bytes.is_empty() {
            bytes.push(stream.next_u64() as u8);
            continue;
        }
        let n = bytes.len() as u32;
        let at = stream.below(n) as usize;
        match stream.below(8) {
            0..=2 => bytes[at] ^= 1 << stream.below(8),
            3 => bytes[at] = stream.next_u64() as u8,
            4 => {
                let value = INTERESTING[stream.below(8) as usize].to_le_bytes();
                let width = (1 << stream.below(3)).min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&value[..width]);
            }
            5 => {
                let width = 1 + stream.below(16.min(n)) as usize;
                let from = stream.below(n - width as u32 + 1) as usize;
                let to = at.min(bytes.len() - width);
                bytes.copy_within(from..from + width, to);
            }
            6 => bytes.truncate(at),
            _ => bytes.extend((0..16).map(|_| stream.next_u64() as u8)),
        }
    }
}

/// Encoded tensors that between them use every mode, both kinds of patch and every kind of edge.
fn pairlut_corpus() -> Vec<(Shape, Vec<Vec<u8>>)> {
    let mut stream = Stream::new(0);
    let shapes = [(16, 64), (31, 127), (16, 320), (48, 256), (15, 640)];
    let mut corpus = Vec::new();
    for (rows, cols) in shapes {
        let shape = Shape { rows, cols };
        let usual = normal(shape, 0.02, u64::from(cols));
        let mut outlier = usual.iter().map(|w| w & 0x7fff).collect::<Vec<_>>();
        outlier[70] = 0x4780;
        let spread = (0..shape.len())
            .map(|_| (104 + stream.below(16) as u16) << 7 | stream.next_u64() as u16 & 0x807f)
            .collect();
        let mut patchwork = usual.clone();
        patchwork[..16.min(rows as usize) * 8].fill_with(|| stream.next_u64() as u16);
        for src in [usual, outlier, spread, patchwork, vec![0; shape.len() as usize]] {
            corpus.extend(Format::Pairlut.codec().encode(shape, &src).map(|parts| (shape, parts)));
        }
    }
    corpus
}

#[test]
fn pairlut_parts() {
    let corpus = pairlut_corpus();
    assert!(corpus.len() > 15, "{} tensors shrink", corpus.len());
    let mut stream = Stream::new(20);
    let mut passed = 0;
    let iterations = iterations(10_000);
    for _ in 0..iterations {
        let (shape, parts) = &corpus[stream.below(corpus.len() as u32) as usize];
        let mut parts = parts.clone();
        // Mostly the records: few changes of the index can pass.
        let part = usize::from(stream.below(8) == 0);
        if part == 0 && stream.below(2) == 0 {
            // Header and table, where most of the rules are.
            let mut header = parts[0][..32].to_vec();
            mutate(&mut stream, &mut header);
            header.resize(32, 0);
            parts[0][..32].copy_from_slice(&header);
        } else {
            mutate(&mut stream, &mut parts[part]);
        }
        passed += u64::from(validate_then_decode(*shape, &parts[0], &parts[1]));
    }
    assert!(passed > iterations / 20, "only {passed} of {iterations} inputs pass validation");
}

/// The files of a folder of `tests/fuzz`, by name.
fn corpus(folder: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(folder);
    let file = |name: String| (name.clone(), fs::read(dir.join(&name)).unwrap());
    let files: Vec<_> = listing(&dir).into_iter().map(file).collect();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files
}

/// Parses a header; one that passes must hold what its rules promise and survive being written.
fn swallow_header(json: &[u8], data_len: u64) -> bool {
    let Ok(parsed) = header::parse(json, data_len) else { return false };
    let mut at = 0;
    for t in &parsed.tensors {
        assert_eq!(t.begin, at, "{}", t.name);
        assert_eq!(header::tensor_bytes(t.dtype, &t.shape), Some(t.end - t.begin), "{}", t.name);
        at = t.end;
    }
    assert_eq!(at, data_len);
    let written = header::write(&parsed, 0, 64);
    assert_eq!(written.len() % 64, 0);
    let again = header::parse(&written[8..], data_len).expect("what is written parses");
    assert_eq!(again, parsed);
    true
}

#[test]
fn safetensors_headers() {
    let corpus = corpus("header");
    let data_len = |json: &[u8]| {
        let text = String::from_utf8_lossy(json);
        let offsets = text.split("data_offsets\":[").skip(1);
        offsets.filter_map(|s| s.split([',', ']']).nth(1)?.parse::<u64>().ok()).max().unwrap_or(0)
    };
    let whole: Vec<bool> =
        corpus.iter().map(|(_, json)| swallow_header(json, data_len(json))).collect();
    let passing: Vec<&str> = corpus
        .iter()
        .zip(whole)
        .filter(|(_, ok)| *ok)
        .map(|((name, _), _)| name.as_str())
        .collect();
    assert_eq!(passing, ["empty.json", "escapes.json", "order.json", "plain.json"]);
    let mut stream = Stream::new(40);
    let iterations = iterations(40_000);
    let mut passed = 0;
    for _ in 0..iterations {
        let (_, json) = &corpus[stream.below(corpus.len() as u32) as usize];
        let mut json = json.clone();
        if stream.below(2) == 0 {
            mutate_digits(&mut stream, &mut json);
        } else {
            mutate(&mut stream, &mut json);
        }
        // The data are as long as the header says, or nearly.
        let slack = u64::from(stream.below(8) == 0);
        passed += u64::from(swallow_header(&json, data_len(&json).saturating_add(slack)));
    }
    assert!(passed > iterations / 100, "only {passed} of {iterations} headers pass");
}

/// Changes digits and structural characters only, so that most results still parse as JSON.
fn mutate_digits(stream: &mut Stream, json: &mut [u8]) {
    let places: Vec<usize> = (0..json.len()).filter(|i| json[*i].is_ascii_digit()).collect();
    for _ in 0..=stream.below(2) {
        if let Some(at) = places.get(stream.below(places.len().max(1) as u32) as usize) {
            json[*at] = b'0' + stream.below(10) as u8;
        }
    }
}

/// Reads a `.snug` file; one that passes must decode to its shape without a panic. Whether its hashes hold, too.
fn swallow_snug(file: &[u8]) -> Option<bool> {
    let contents = container::read(file).ok()?;
    let mut intact = true;
    for weight in &contents.weights {
        let (entry, codec) = (&weight.entry, weight.entry.format.codec());
        let parts = Parts(weight.parts.iter().map(|p| &file[p.clone()]).collect());
        codec.validate(entry.shape, &parts).ok()?;
        let mut words = vec![0; entry.shape.len() as usize];
        codec.decode_rows(entry.shape, &parts, 0..entry.shape.rows, &mut words);
        let hash: [u8; 32] = Sha256::digest(le(&words)).into();
        intact &= Some(hash) == entry.sha256;
    }
    Some(intact)
}

#[test]
fn snug_files() {
    // Files of the first version: they must open for ever.
    let corpus = corpus("snug");
    for (name, file) in &corpus {
        assert_eq!(swallow_snug(file), Some(true), "{name}");
    }
    let mut stream = Stream::new(41);
    let iterations = iterations(4_000);
    let (mut passed, mut intact) = (0, 0);
    for _ in 0..iterations {
        let (_, file) = &corpus[stream.below(corpus.len() as u32) as usize];
        let file = match stream.below(3) {
            0 => {
                let mut file = file.clone();
                mutate(&mut stream, &mut file);
                file
            }
            _ => mutate_pieces(&mut stream, Pieces::of(file)),
        };
        let outcome = swallow_snug(&file);
        passed += u64::from(outcome.is_some());
        intact += u64::from(outcome == Some(true));
    }
    assert!(passed > iterations / 20, "only {passed} of {iterations} files pass");
    assert!(intact < passed, "no change of a weight was seen in {passed} files");
}

/// Changes one piece of a file and works out the offsets again, so that the change reaches the rules behind them.
fn mutate_pieces(stream: &mut Stream, mut pieces: Pieces) -> Vec<u8> {
    let at = stream.below(pieces.tensors.len() as u32) as usize;
    let t = &mut pieces.tensors[at];
    match stream.below(6) {
        0 => {
            let mut name = std::mem::take(&mut t.name).into_bytes();
            mutate(stream, &mut name);
            t.name = String::from_utf8_lossy(&name).into_owned();
        }
        1 => t.shape = vec![t.shape.iter().product()],
        2 => {
            let other = stream.below(pieces.tensors.len() as u32) as usize;
            pieces.tensors.swap(at, other);
        }
        3 => {
            let key = stream.below(pieces.metadata.len() as u32) as usize;
            let value = pieces.metadata.values_mut().nth(key).expect("an index below the length");
            let mut text = value.as_str().unwrap_or_default().as_bytes().to_vec();
            if stream.below(2) == 0 {
                mutate_digits(stream, &mut text)
            } else {
                mutate(stream, &mut text)
            }
            *value = String::from_utf8_lossy(&text).into_owned().into();
        }
        _ => {
            let size = if t.dtype == "BF16" { 2 } else { 1 };
            mutate(stream, &mut t.bytes);
            let whole = t.bytes.len() / size * size;
            t.bytes.truncate(whole);
            if t.bytes.len() / size != t.shape.iter().product::<u64>() as usize {
                t.shape = vec![(t.bytes.len() / size) as u64];
            }
        }
    }
    pieces.file()
}

/// Parses a header and translates it, as if any amount of data followed. Whether it is sound, and a model.
fn gguf_header(bytes: &[u8]) -> (bool, bool) {
    use snug::import::gguf::{parse, translate, value::Value};

    fn walk(value: Value<'_>) -> usize {
        match value {
            Value::Array(a) => a.iter().map(walk).sum::<usize>() + 1,
            _ => 1,
        }
    }
    let file_len = bytes.len() as u64 + (1 << 20);
    let gguf = match parse::parse(bytes, file_len) {
        Ok(Some(gguf)) => gguf,
        Ok(None) | Err(_) => return (false, false),
    };
    let values: usize = gguf.metadata.pairs().iter().map(|(_, v)| walk(*v)).sum();
    assert!(values <= bytes.len(), "{values} values in {} bytes", bytes.len());
    let mut ranges: Vec<_> = gguf.tensors.iter().map(|t| t.bytes.clone()).collect();
    ranges.sort_by_key(|r| r.start);
    assert!(ranges.iter().all(|r| r.start < r.end && r.end <= file_len), "{ranges:?}");
    assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start), "{ranges:?}");
    let Ok(model) = translate(&gguf, |at| Ok(vec![0; (at.end - at.start) as usize])) else {
        return (true, false);
    };
    for text in [Some(&model.texts.config), Some(&model.texts.tokenizer)]
        .into_iter()
        .chain([model.texts.generation_config.as_ref(), model.texts.tokenizer_config.as_ref()])
        .flatten()
    {
        serde_json::from_str::<serde_json::Value>(text).unwrap();
    }
    // The reader of configs and the tokenizer library have the last word; they must not fall over.
    let _ = snug::model::arch::read(&model.texts.config);
    (true, true)
}

#[test]
fn gguf_headers() {
    let corpus: Vec<_> = corpus("gguf").into_iter().map(|(_, header)| header).collect();
    let sound = corpus.iter().filter(|h| gguf_header(h).0).count();
    let models = corpus.iter().filter(|h| gguf_header(h).1).count();
    assert!(sound >= 5 && models >= 4, "{sound} sound headers, {models} models in the corpus");
    let mut stream = Stream::new(30);
    let (mut sound, mut models) = (0, 0);
    let iterations = iterations(4_000);
    for _ in 0..iterations {
        let mut header = corpus[stream.below(corpus.len() as u32) as usize].clone();
        if stream.below(2) == 0 {
            // The list of tensors, and what comes last in the metadata.
            let tail = header.len() - header.len().min(1 + stream.below(2_000) as usize);
            let mut part = header.split_off(tail);
            mutate(&mut stream, &mut part);
            header.extend(part);
        } else {
            mutate(&mut stream, &mut header);
        }
        let (parsed, translated) = gguf_header(&header);
        sound += u64::from(parsed);
        models += u64::from(translated);
    }
    assert!(sound > iterations / 20, "only {sound} of {iterations} headers are sound");
    assert!(models > iterations / 50, "only {models} of {iterations} headers are models");
}

/// Templates, whole and mutated: they compile or say where not, they render or say where not, and they end.
#[test]
fn chat_templates() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../golden/templates.json")).unwrap();
    let snippets: serde_json::Value =
        serde_json::from_str(include_str!("../golden/snippets.json")).unwrap();
    let chat = golden["chats"]["system_turns"].as_array().unwrap();
    let variables = snippets["context"].as_object().unwrap();
    let mut corpus: Vec<String> = Vec::new();
    corpus.extend(
        golden["templates"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t["template"].as_str().unwrap().to_owned()),
    );
    corpus.extend(
        snippets["snippets"].as_array().unwrap().iter().map(|s| s[0].as_str().unwrap().to_owned()),
    );
    corpus.extend(
        crate::template::hostile().into_iter().map(|(source, _)| source).filter(|s| s.len() < 2000),
    );
    let tokenizer = crate::tokens::load_cached("bytelevel");
    let mut stream = Stream::new(33);
    let (mut compiled, mut rendered) = (0, 0);
    let iterations = iterations(1500);
    for _ in 0..iterations {
        let pick = |stream: &mut Stream| corpus[stream.below(corpus.len() as u32) as usize].clone();
        let mut bytes = pick(&mut stream).into_bytes();
        if stream.below(4) == 0 {
            // Two templates in one.
            let other = pick(&mut stream).into_bytes();
            let at = stream.below(bytes.len() as u32 + 1) as usize;
            bytes.splice(at..at, other);
        } else {
            mutate(&mut stream, &mut bytes);
        }
        let source = String::from_utf8_lossy(&bytes);
        let Ok(template) = snug::text::ChatTemplate::new(&source, tokenizer).inspect_err(|e| {
            assert_eq!(e.kind, snug::error::Kind::BadFile, "{source}: {e}");
            assert!(!e.why.contains("engine failed"), "{source}: {e}");
        }) else {
            continue;
        };
        compiled += 1;
        match template.render(chat, true, variables) {
            Ok(prompt) => {
                prompt.encode(tokenizer).unwrap();
                rendered += 1;
            }
            Err(e) => assert!(!e.why.contains("engine failed"), "{source}: {e}"),
        }
    }
    assert!(
        compiled > iterations / 10 && rendered > iterations / 20,
        "{compiled} compile, {rendered} render"
    );
}
