//! Seeded mutation of everything that parses. One test a target; `SNUG_FUZZ_ITERS` sets how many inputs each one
//! tries, so that a long run is the same test with another number.

use snug::codec::{Format, Shape};
use snug::num::rng::Stream;

use crate::codecs::{normal, validate_then_decode};

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
