//! GGUF: the container, dequantisation, names, rebuilt configs and tokenizers.

pub mod container;
mod dequant;
mod import;
pub mod tokenizers;
pub mod writer;

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use snug::error::{Error, Kind, Result};
use snug::import::ModelSource;
use snug::import::gguf::{Model, parse, translate};

/// Every weight's name and the SHA-256 of its bf16 bytes, one a line, sorted by name.
pub fn listing(source: &dyn ModelSource) -> String {
    let mut out = String::new();
    for (i, t) in source.tensors().iter().enumerate() {
        let _ = writeln!(out, "{} {}", t.name, sha256(&weight(source, i)));
    }
    out
}

/// A whole weight as bf16 words, read in uneven runs of rows.
pub fn weight(source: &dyn ModelSource, index: usize) -> Vec<u16> {
    let shape = source.tensors()[index].shape();
    let cols = shape.cols as usize;
    let mut out = vec![0xdead; shape.rows as usize * cols];
    let mut row = 0;
    while row < shape.rows {
        let end = (row + 1 + row % 7 * 37).min(shape.rows);
        let words = &mut out[row as usize * cols..end as usize * cols];
        source.read_rows(index, row..end, words).unwrap();
        row = end;
    }
    out
}

fn sha256(words: &[u16]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf").join(name)
}

fn golden(name: &str) -> String {
    let path = golden_path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn golden_json(name: &str) -> Value {
    serde_json::from_str(&golden(name)).unwrap()
}

/// SmolLM2, where its file is; `None` skips the test.
fn smollm2() -> Option<Box<dyn ModelSource>> {
    crate::smollm2::file().map(|path| snug::import::open(&path).unwrap())
}

/// Parses and translates a file in memory.
pub fn import(bytes: &[u8]) -> Result<Model> {
    let gguf = parse::parse(bytes, bytes.len() as u64)?.expect("the whole file was given");
    translate(&gguf, |at: Range<u64>| Ok(bytes[at.start as usize..at.end as usize].to_vec()))
}

/// What is done to a sound file, and the reason it is then refused for.
pub type Case = (&'static str, fn(&mut writer::Writer), &'static str);

/// Checks that a file is refused as bad, for a reason that holds `reason`.
fn refused<T>(what: &str, result: Result<T>, reason: &str) {
    match result {
        Ok(_) => panic!("{what}: accepted"),
        Err(Error { kind, why, .. }) => {
            assert_eq!(kind, Kind::BadFile, "{what}: {why}");
            assert!(why.contains(reason), "{what}: {why:?} does not say {reason:?}");
        }
    }
}
