//! Kernels that add nothing, run on the host: `tests/emulate/cuda.hpp` stands in for CUDA, so that machines without a GPU
//! hold them to their reference too.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use snug::codec::{Format, Shape};
use snug::num::f32_to_bf16;
use snug::num::rng::Stream;

use super::codecs::adversaries::{ADVERSARIES, words};
use super::util::skip;

type Case = (String, Shape, Vec<u16>);

fn cases() -> Vec<Case> {
    let mut list: Vec<Case> = Vec::new();
    for (rows, cols) in [(16, 256), (47, 328), (31, 1000)] {
        let shape = Shape { rows, cols };
        for adversary in ADVERSARIES {
            list.push((adversary.1.into(), shape, words(shape, adversary)));
        }
    }
    list.push(("every pattern".into(), Shape { rows: 256, cols: 256 }, (0..=u16::MAX).collect()));
    // What is too small to shrink has an index all the same.
    list.push(("one word".into(), Shape { rows: 1, cols: 1 }, vec![0x3f80]));
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    let mut rng = Stream::new(seed);
    for case in 0..40 {
        let shape = Shape { rows: 30 + rng.below(18), cols: 400 + rng.below(500) };
        let (usual, strays) = (2f32.powi(rng.below(40) as i32 - 20), rng.below(3) * rng.below(60));
        let values = (0..shape.len()).map(|_| match rng.below(1000) < strays {
            true => rng.next_u64() as u16,
            false => f32_to_bf16(usual * rng.normal()),
        });
        let values = values.collect();
        list.push((format!("case {case} of seed {seed}"), shape, values));
    }
    // High bytes that are equally frequent, or nearly: the order among equals decides.
    for case in 0..40 {
        let shape = Shape { rows: 16, cols: 200 + rng.below(300) };
        let kinds = 1 + rng.below(40);
        let values = (0..shape.len()).map(|i| {
            let h = (i as u32 % kinds).wrapping_mul(0x9e37_79b1).wrapping_add(case * 77) >> 8 & 255;
            (h << 8) as u16 | rng.next_u64() as u16 & 255
        });
        let values = values.collect();
        list.push((format!("{kinds} high bytes, case {case} of seed {seed}"), shape, values));
    }
    list
}

#[test]
fn the_packing_kernel_writes_the_encoder_s_bytes() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulate");
    let scratch = tempfile::tempdir().unwrap();
    let binary = scratch.path().join("pack");
    let compiler = Command::new("c++")
        .args(["-std=c++17", "-O1", "-w", "-U_FORTIFY_SOURCE", "-o"])
        .arg(&binary)
        .arg(here.join("pack.cpp"))
        .output();
    let Ok(output) = compiler else {
        skip("no C++ compiler");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cases = cases();
    let mut child =
        Command::new(&binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input: Vec<u8> = cases
        .iter()
        .flat_map(|(_, shape, words)| {
            let size = [shape.rows, shape.cols].into_iter().flat_map(u32::to_le_bytes);
            size.chain(words.iter().flat_map(|w| w.to_le_bytes())).collect::<Vec<_>>()
        })
        .collect();
    let feeding = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeding.join().unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut got = output.stdout.as_slice();
    let mut take = |bytes: usize| -> &[u8] {
        let (head, rest) = got.split_at(bytes);
        got = rest;
        head
    };
    let mut packed = 0;
    for (name, shape, words) in &cases {
        let head: Vec<u32> =
            take(12).chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        let (index, records) = (take(4 * head[1] as usize), take(16 * head[2] as usize));
        let what = format!("{name}, {} x {}", shape.rows, shape.cols);
        let Some(want) = Format::Pairlut.codec().encode(*shape, words) else {
            let bytes = (index.len() + records.len()) as u64;
            assert!(bytes >= 2 * shape.len(), "{what}: {bytes} bytes are fewer than bf16 takes");
            continue;
        };
        packed += 1;
        assert!(index == want[1], "{what}: index");
        assert_eq!(records.len(), want[0].len(), "{what}: bytes of records");
        let at = records.iter().zip(&want[0]).position(|(a, b)| a != b);
        assert_eq!(
            at.map(|i| (i, records[i], want[0][i])),
            None,
            "{what}: first byte that differs"
        );
        let starts: Vec<u32> =
            index.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(starts.windows(2).map(|w| w[1] - w[0]).max(), Some(head[0]), "{what}: largest");
    }
    assert!(packed > cases.len() / 2, "{packed} of {} are packed", cases.len());
}
