//! Every codec: all bit patterns, awkward shapes, adversarial values, golden bytes, hostile parts.

pub mod adversaries;
mod by_the_book;
mod hostile;

use std::collections::BTreeSet;

use proptest::prelude::*;
use sha2::{Digest, Sha256};
use snug::codec::pairlut::{Header, View};
use snug::codec::{CODECS, Codec, Format, Parts, Shape};
use snug::num::f32_to_bf16;
use snug::num::rng::{Stream, draw};

use self::adversaries::{ADVERSARIES, words};
pub use self::hostile::validate_then_decode;

fn shape(rows: u32, cols: u32) -> Shape {
    Shape { rows, cols }
}

pub fn parts(encoded: &[Vec<u8>]) -> Parts<'_> {
    Parts(encoded.iter().map(Vec::as_slice).collect())
}

/// Normal weights of a given deviation.
pub fn normal(shape: Shape, deviation: f32, seed: u64) -> Vec<u16> {
    let mut stream = Stream::new(seed);
    (0..shape.len()).map(|_| f32_to_bf16(stream.normal() * deviation)).collect()
}

fn pairlut() -> &'static dyn Codec {
    Format::Pairlut.codec()
}

#[track_caller]
fn assert_same(got: &[u16], want: &[u16], shape: Shape, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    if let Some(i) = (0..want.len()).find(|&i| got[i] != want[i]) {
        let (row, col) = (i / shape.cols as usize, i % shape.cols as usize);
        panic!("{what}: row {row}, column {col}: {:#06x} instead of {:#06x}", got[i], want[i]);
    }
}

/// Encodes with every codec; what shrinks must come back, by the crate's reader and by the slow one.
#[track_caller]
fn round_trip(shape: Shape, src: &[u16], what: &str) -> Option<Vec<Vec<u8>>> {
    let mut last = None;
    for codec in CODECS {
        let what = format!("{} of {what}, {} × {}", codec.id(), shape.rows, shape.cols);
        let encoded = codec.encode(shape, src);
        if let Some(encoded) = &encoded {
            let size: u64 = encoded.iter().map(|p| p.len() as u64).sum();
            assert!(size <= 2 * shape.len(), "{what}: grew to {size} bytes");
            let parts = parts(encoded);
            codec.validate(shape, &parts).unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut out = vec![0xdead; src.len()];
            codec.decode_rows(shape, &parts, 0..shape.rows, &mut out);
            assert_same(&out, src, shape, &what);
            assert_eq!(codec.breakdown(shape, &parts).total(), size, "{what}");
            if codec.format() == Format::Pairlut {
                assert!(size < 2 * shape.len(), "{what}: {size} bytes are no gain");
                let slow = by_the_book::decode(shape, &encoded[0], &encoded[1]);
                assert_same(&slow, src, shape, &format!("the slow reader, {what}"));
            }
        }
        last = encoded;
    }
    last
}

#[test]
fn all_patterns_survive() {
    let shape = shape(256, 256);
    let ascending: Vec<u16> = (0..=u16::MAX).collect();
    let scattered: Vec<u16> = ascending.iter().map(|w| w.wrapping_mul(0x9e37)).collect();
    // Ascending patterns have one exponent in long runs: they shrink. Scattered ones cannot.
    assert!(round_trip(shape, &ascending, "all patterns").is_some());
    assert!(round_trip(shape, &scattered, "all patterns, scattered").is_none());
}

#[test]
fn normal_weights_of_every_shape_survive() {
    let sizes = [1, 2, 15, 16, 17, 63, 64, 65, 128, 255, 256, 257, 320, 513];
    let mut shrunk = 0;
    for rows in sizes.into_iter().filter(|&rows| rows < 130) {
        for cols in sizes {
            let shape = shape(rows, cols);
            let seed = u64::from(rows << 16 | cols);
            shrunk += usize::from(round_trip(shape, &normal(shape, 0.3, seed), "normal").is_some());
        }
    }
    assert!(shrunk > 20, "only {shrunk} shapes shrink");
}

#[test]
fn adversaries_survive_and_take_the_expected_mode() {
    let mut seen = BTreeSet::new();
    for shape in [shape(16, 256), shape(48, 320), shape(33, 1000), shape(16, 64)] {
        let whole = shape.rows % 16 == 0 && shape.cols % 64 == 0;
        for adversary in ADVERSARIES {
            let (expected, name, _) = *adversary;
            let encoded = round_trip(shape, &words(shape, adversary), name);
            if whole {
                assert_eq!(encoded.is_none(), expected == "raw", "{name}: does it shrink?");
            }
            let Some(encoded) = encoded else { continue };
            let parts = parts(&encoded);
            let view = View::new(shape, &parts).unwrap();
            for r in 0..view.grid.records() as usize {
                let header = Header::read(view.record(r)).unwrap();
                let mode = format!("{:?}", header.mode).to_lowercase();
                if whole && expected != "any" {
                    assert_eq!(mode, expected, "{name}, record {r}");
                }
                seen.insert((mode, header.shifted, header.wide, header.ends[3] > 0));
            }
        }
    }
    for mode in ["bits3", "bits4"] {
        for (shifted, wide) in [(false, false), (false, true), (true, false), (true, true)] {
            let way = (mode.to_string(), shifted, wide, true);
            assert!(seen.contains(&way), "no record is {way:?}: {seen:?}");
        }
    }
}

/// A tensor that shrinks as a whole may hold records that do not.
#[test]
fn a_hopeless_record_stays_raw_among_others() {
    let shape = shape(64, 512);
    let mut src = normal(shape, 0.02, 3);
    let mut stream = Stream::new(4);
    for row in 16..32 {
        src[row * 512..row * 512 + 256].fill_with(|| stream.next_u64() as u16);
    }
    let encoded = round_trip(shape, &src, "one hopeless record").expect("the others shrink");
    let parts = parts(&encoded);
    let view = View::new(shape, &parts).unwrap();
    let raw: Vec<usize> = (0..8).filter(|&r| view.record(r).len() == 16 + 4 * 2048).collect();
    assert_eq!(raw, [2]);
}

/// The deviation decides where exponents fall relative to the eight that a table covers: one octave of it, in small
/// steps, is every case there is.
#[test]
fn normal_weights_take_11_3_bits() {
    for cols in [1024, 1536, 4096] {
        let shape = shape(128, cols);
        let bits: Vec<f64> = (0..8)
            .map(|step| {
                let deviation = 0.01 * 2f32.powf(step as f32 / 8.0);
                let src = normal(shape, deviation, u64::from(100 * cols + step));
                let encoded = pairlut().encode(shape, &src).expect("normal weights shrink");
                8.0 * encoded.concat().len() as f64 / shape.len() as f64
            })
            .collect();
        let mean = bits.iter().sum::<f64>() / bits.len() as f64;
        assert!(mean <= 11.28, "{cols} columns: {mean:.3} bits a weight on average: {bits:.3?}");
        assert!(bits.iter().all(|&bits| bits <= 11.33), "{cols} columns: {bits:.3?} bits a weight");
    }
}

#[test]
fn the_number_of_threads_does_not_matter() {
    let shape = shape(1000, 520);
    let src = normal(shape, 0.05, 11);
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| pairlut().encode(shape, &src).unwrap())
    };
    let one = with(1);
    for threads in [2, 3, 8] {
        assert!(with(threads) == one, "{threads} threads give other bytes than one");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    /// Any words of any shape, from a few exponents (so that it shrinks) to all of them.
    #[test]
    fn random_words_survive(
        rows in 1u32..80,
        cols in 1u32..700,
        exponents in 1u32..40,
        first in 0u16..217,
        seed: u64,
    ) {
        let shape = shape(rows, cols);
        let mut stream = Stream::new(seed);
        let src: Vec<u16> = (0..shape.len())
            .map(|_| (first + stream.below(exponents) as u16) << 7 | stream.next_u64() as u16 & 0x807f)
            .collect();
        round_trip(shape, &src, "random words");
    }
}

/// One tile, written by hand from FORMAT.md.
#[test]
fn a_hand_written_record() {
    let shape = shape(16, 64);
    // Nearly all 1.0 (H = 3f, L = 80); the rest are chosen for their places.
    let mut src = vec![0x3f80u16; 1024];
    let mut put = |row: usize, col: usize, word: u16| src[row * 64 + col] = word;
    put(0, 0, 0x3f81); //  lane 0, k-step 0, j 0: position 0
    put(8, 1, 0x3a11); //  lane 0, k-step 0, j 3: position 3
    put(0, 6, 0x3b22); //  lane 0, k-step 1, j 4: position 8 + 4 = 12
    put(3, 21, 0x3c33); // lane 13 (g 3, t 1), k-step 1, j 1: position 16·13 + 8 + 1 = 217
    put(1, 8, 0x3d44); //  lane 4 (g 1, t 0), k-step 2, j 0: position 512 + 64 = 576
    put(2, 9, 0x40d5); //  lane 8 (g 2, t 0), k-step 2, j 1: position 512 + 128 + 1 = 641
    put(15, 62, 0xbf66); // lane 31 (g 7, t 3), k-step 3, j 6: position 512 + 496 + 8 + 6 = 1022
    put(15, 63, 0xc077); // lane 31, k-step 3, j 7: position 1023
    put(9, 34, 0x3e99); // lane 6 (g 1, t 2), k-step 0, j 6: position 96 + 6 = 102

    // Nine high bytes, all but 3f once. 3f, 40, bf and c0 are the first of their groups (top two bits); of the
    // others the smaller ones stay, so 3e is missing and reached from the first entry of its group:
    // 3a ^ 3e = 04.
    let mut want = vec![0u8; 16 + 1024 + 384];
    want[..8].copy_from_slice(&[1, 0, 1, 0, 1, 0, 1, 0]); // one patch, in tile 0; 3-bit, narrow, not shifted
    want[8..16].copy_from_slice(&[0x3a, 0x3b, 0x3c, 0x3d, 0x3f, 0x40, 0xbf, 0xc0]);
    let low = 16;
    want[low..low + 1024].fill(0x80);
    for (position, byte) in [
        (0, 0x81),
        (3, 0x11),
        (12, 0x22),
        (217, 0x33),
        (576, 0x44),
        (641, 0xd5),
        (1022, 0x66),
        (1023, 0x77),
        (102, 0x99),
    ] {
        want[low + position] = byte;
    }
    // 3f has code 4: the low three bits of each nibble are 100. In k-step 3 code 4 fills plane 2's spare bits.
    let codes = low + 1024;
    want[codes..codes + 256].fill(0x44);
    want[codes + 256..codes + 384].fill(0xcc);
    let mut word = |plane: usize, lane: usize, word: u32| {
        let at = codes + 128 * plane + 4 * lane;
        want[at..at + 4].copy_from_slice(&word.to_le_bytes());
    };
    word(0, 0, 0x4444_0444); //  3a = 0 at j 3
    word(1, 0, 0x4441_4444); //  3b = 1 at j 4
    word(1, 13, 0x4444_4424); // 3c = 2 at j 1
    word(2, 4, 0xcccc_cccb); //  3d = 3 at j 0, under a spare bit
    word(2, 8, 0xcccc_ccdc); //  40 = 5 at j 1
    // bf = 6 (110) at j 6 and c0 = 7 (111) at j 7 of k-step 3: bit 0 to plane 0, bit 1 to plane 1.
    word(0, 31, 0xc444_4444);
    word(1, 31, 0xcc44_4444);
    word(0, 6, 0x4044_4444); // the patched element at j 6 points at 3a = 0
    want.extend((102u16 | 0x04 << 10).to_le_bytes());
    want.extend([0; 14]);

    let encoded = pairlut().encode(shape, &src).expect("it shrinks");
    if let Some(at) = (0..want.len()).find(|&i| encoded[0].get(i) != Some(&want[i])) {
        panic!("byte {at}: {:?} instead of {:#04x}", encoded[0].get(at), want[at]);
    }
    assert_eq!(encoded[0].len(), want.len());
    assert_eq!(encoded[1], [0, 0, 0, 0, 90, 0, 0, 0]);
    round_trip(shape, &src, "the hand-written record");
}

/// The encoder's choices are part of what a file hash means: changing them is allowed, but not by accident.
#[test]
fn encoded_bytes_are_what_they_were() {
    let shape = shape(100, 700);
    // From integers only: the sum of four uniform bytes is bell-shaped, its square spreads the exponents.
    let src: Vec<u16> = (0..shape.len())
        .map(|i| {
            let x = draw(1, i);
            let bell = (0..4).map(|k| (x >> (8 * k) & 0xff) as i64).sum::<i64>() - 510;
            f32_to_bf16((bell * bell.abs()) as f32 / 1_048_576.0)
        })
        .collect();
    let encoded = round_trip(shape, &src, "bell-shaped integers").expect("it shrinks");
    let hash = Sha256::digest(encoded.concat());
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "2f524fa76b72abdecdaeac48f2cca6b6027f4c91995218c4db1452b2b513746d");
}
