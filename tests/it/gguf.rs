//! GGUF: the container, dequantisation, names, rebuilt configs and tokenizers.

mod import;

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use snug::import::ModelSource;

/// Every weight's name and the SHA-256 of its bf16 bytes, one a line, sorted by name.
pub fn listing(source: &dyn ModelSource) -> String {
    let mut out = String::new();
    for (i, t) in source.tensors().iter().enumerate() {
        let words = weight(source, i);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let _ = writeln!(out, "{} {}", t.name, hex(&Sha256::digest(bytes)));
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

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}
