//! Every codec: all bit patterns, awkward shapes, hostile values, golden bytes, hostile parts. The reader at the end
//! is written from FORMAT.md alone and shares nothing with the crate.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sha2::{Digest, Sha256};
use snug::codec::pairlut::{Header, View};
use snug::codec::{CODECS, Codec, Format, Parts, Shape};
use snug::error::Kind;
use snug::num::f32_to_bf16;
use snug::num::rng::{Stream, draw};

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

/// Bit patterns that provoke each way of storing a record. The first word of the name says what is expected of
/// every record: `bits3`, `bits4`, `raw`, or `any`.
fn adversaries(shape: Shape) -> Vec<(&'static str, Vec<u16>)> {
    let n = shape.len() as usize;
    let cols = shape.cols as usize;
    let base = normal(shape, 0.02, 99);
    let mut stream = Stream::new(5);
    let mut each = |f: &mut dyn FnMut(&mut Stream, usize) -> u16| -> Vec<u16> {
        (0..n).map(|i| f(&mut stream, i)).collect()
    };
    let of_exponents = |s: &mut Stream, first: u16, count: u32| {
        (first + s.below(count) as u16) << 7 | s.next_u64() as u16 & 0x807f
    };
    vec![
        ("bits3 all zeros", vec![0; n]),
        ("bits3 both zeros", each(&mut |_, i| (i as u16 % 2) << 15)),
        ("bits3 8 % zeros", each(&mut |s, i| if s.below(100) < 8 { 0 } else { base[i] })),
        ("bits3 50 % zeros", each(&mut |s, i| if s.below(2) == 0 { 0 } else { base[i] })),
        ("bits3 NaN", each(&mut |s, _| 0x7f80 | s.next_u64() as u16 & 0x807f | 1)),
        ("bits3 infinities", each(&mut |_, i| [0x7f80, 0xff80][i % 2])),
        ("bits3 subnormals", each(&mut |s, _| s.next_u64() as u16 & 0x807f)),
        ("bits3 one exponent", each(&mut |s, _| 0x3f00 | s.next_u64() as u16 & 0x807f)),
        (
            "bits3 one exponent a tile",
            each(&mut |s, i| ((i % cols / 64 * 3) as u16) << 7 | s.next_u64() as u16 & 0x7f),
        ),
        // Eight exponents from an even and from an odd one: the second needs the shift.
        ("bits3 eight exponents", each(&mut |s, _| of_exponents(s, 120, 8))),
        ("bits3 eight odd exponents", each(&mut |s, _| of_exponents(s, 119, 8))),
        ("bits4 sixteen exponents", each(&mut |s, _| of_exponents(s, 104, 16))),
        ("bits4 sixteen odd exponents", each(&mut |s, _| of_exponents(s, 105, 16))),
        (
            "bits4 sixteen odd exponents and strays",
            each(&mut |s, _| {
                if s.below(100) == 0 { of_exponents(s, 60, 60) } else { of_exponents(s, 105, 16) }
            }),
        ),
        ("raw uniform exponents", each(&mut |s, _| s.next_u64() as u16)),
        ("raw twenty-four exponents", each(&mut |s, _| of_exponents(s, 100, 24))),
        // A single value of another group in every record: wide patches are cheaper than giving it an entry.
        (
            "bits3 wide",
            each(&mut |s, i| {
                if i % 256 == 77 && i / cols % 16 == 3 {
                    0x4780
                } else {
                    of_exponents(s, 100, 16) & 0x7fff
                }
            }),
        ),
        (
            "bits3 wide odd",
            each(&mut |s, i| {
                if i % 256 == 77 && i / cols % 16 == 3 {
                    0x4780
                } else {
                    of_exponents(s, 101, 16) & 0x7fff
                }
            }),
        ),
        (
            "bits4 wide",
            each(&mut |s, i| {
                if i % 256 == 77 && i / cols % 16 == 3 {
                    0x4780
                } else {
                    of_exponents(s, 60, 32) & 0x7fff
                }
            }),
        ),
        (
            "bits4 wide odd",
            each(&mut |s, i| {
                if i % 256 == 77 && i / cols % 16 == 3 {
                    0x4780
                } else {
                    of_exponents(s, 61, 32) & 0x7fff
                }
            }),
        ),
        (
            "any one outlier row",
            each(&mut |s, i| {
                if i / cols == 5 { f32_to_bf16(s.normal() * 700.0) } else { base[i] }
            }),
        ),
        (
            "any rows of different scales",
            each(&mut |s, i| f32_to_bf16(s.normal() * 2f32.powi((i / cols) as i32 % 16 - 10))),
        ),
        ("any large", each(&mut |s, _| f32_to_bf16(s.normal() * 9.0))),
        ("any huge", each(&mut |s, _| f32_to_bf16(s.normal() * 1e37))),
        (
            "any ends of the range",
            each(&mut |s, _| {
                [0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x0001, 0x8001, 0, 0x7fff][s.below(8) as usize]
            }),
        ),
    ]
}

#[test]
fn adversaries_survive_and_take_the_expected_mode() {
    let mut seen = BTreeSet::new();
    for shape in [shape(16, 256), shape(48, 320), shape(33, 1000), shape(16, 64)] {
        for (name, src) in adversaries(shape) {
            let expected = name.split(' ').next();
            let encoded = round_trip(shape, &src, name);
            if shape.rows % 16 == 0 {
                assert_eq!(encoded.is_none(), expected == Some("raw"), "{name}: does it shrink?");
            }
            let Some(encoded) = encoded else { continue };
            let parts = parts(&encoded);
            let view = View::new(shape, &parts).unwrap();
            for r in 0..view.grid.records() as usize {
                let header = Header::read(view.record(r)).unwrap();
                let mode = format!("{:?}", header.mode).to_lowercase();
                let whole = shape.rows % 16 == 0 && shape.cols % 64 == 0;
                if whole && expected != Some("any") {
                    assert_eq!(Some(mode.as_str()), expected, "{name}, record {r}");
                }
                seen.insert((mode, header.shifted, header.wide, header.ends[3] > 0));
            }
        }
    }
    for mode in ["bits3", "bits4"] {
        for shifted in [false, true] {
            for wide in [false, true] {
                let way = (mode.to_string(), shifted, wide, true);
                assert!(seen.contains(&way), "no record is {way:?}: {seen:?}");
            }
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

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let shape = shape(31, 127);
    let encoded = pairlut().encode(shape, &normal(shape, 0.02, 1)).expect("it shrinks");
    let [records, index] = [&encoded[0][..], &encoded[1][..]];
    let refused = |shape: Shape, parts: Vec<&[u8]>, what: &str| {
        let error = pairlut().validate(shape, &Parts(parts)).expect_err(what);
        assert_eq!(error.kind, Kind::BadFile, "{what}");
    };
    for n in 0..records.len() {
        refused(shape, vec![&records[..n], index], "short records");
    }
    for n in 0..index.len() {
        refused(shape, vec![records, &index[..n]], "short index");
    }
    refused(shape, vec![records], "one part");
    refused(shape, vec![records, index, index], "three parts");
    for (rows, cols) in [(0, 127), (31, 0), (33, 127), (31, 257), (u32::MAX, u32::MAX), (1, 1)] {
        refused(Shape { rows, cols }, vec![records, index], "another shape");
    }
    let bf16 = Format::Bf16.codec();
    for (rows, cols) in [(2, 3), (u32::MAX, u32::MAX)] {
        assert!(bf16.validate(Shape { rows, cols }, &Parts(vec![&[0; 10]])).is_err());
    }
}

/// Each rule broken alone, and the words that must name it.
#[test]
fn every_rule_is_checked_by_name() {
    let padded = shape(31, 120);
    let src = normal(padded, 0.02, 8);
    let encoded = pairlut().encode(padded, &src).expect("it shrinks");
    // Record 0: two tiles of 16 rows, the second with 8 columns of padding. Offsets as in FORMAT.md.
    let codes = 16 + 1024;
    let second = 16 + 1408;
    let patches = 16 + 2 * 1408;
    let count = usize::from(u16::from_le_bytes([encoded[0][6], encoded[0][7]]));
    assert!(count > 2, "the example needs patches");
    type Break = Box<dyn Fn(&mut Vec<u8>, &mut Vec<u8>)>;
    let set = |at: usize, byte: u8| -> Break { Box::new(move |records, _| records[at] = byte) };
    let or = |at: usize, byte: u8| -> Break { Box::new(move |records, _| records[at] |= byte) };
    let cases: Vec<(&str, Break)> = vec![
        ("ascending order", Box::new(|_, index| index[4..8].copy_from_slice(&[0xff; 4]))),
        ("the index runs from", Box::new(|_, index| index[0] = 1)),
        ("the index runs from", Box::new(|_, index| index[8] += 1)),
        ("its header asks for", Box::new(|_, index| index[4] += 1)),
        ("unknown bits", or(1, 0x60)),
        ("unknown bits", or(3, 0x20)),
        ("unknown bits", or(5, 0x80)),
        ("unknown bits", or(7, 0x40)),
        ("its header asks for", or(1, 0x20)),
        ("has patches", set(0, 0xff)),
        ("has patches", or(5, 0x10)),
        (
            "decodes padding to infinity",
            Box::new(|records, _| {
                records[3] |= 0x80;
                records[8] = 0x80;
            }),
        ),
        (
            "out of order",
            Box::new(move |records, _| records.copy_within(patches..patches + 2, patches + 2)),
        ),
        ("out of order, empty or malformed", Box::new(move |records, _| records[patches + 1] &= 3)),
        // Tile 1, row 0, column 56 of the tile: lane 3, k-step 2, position 512 + 48; codes likewise.
        ("tile 1: padding is not zero", set(second + 512 + 48, 1)),
        ("tile 1: padding is not zero", or(codes + 1408 + 2 * 128 + 4 * 3, 1)),
        ("tile 1: padding is not zero", or(codes + 1408 + 4 * 3, 8)),
        (
            "in the padding",
            Box::new(move |records, _| {
                let last = patches + 2 * (count - 1);
                records[last..last + 2].copy_from_slice(&(0x3ffu16 | 1 << 10).to_le_bytes());
            }),
        ),
        (
            "last bytes are not zero",
            Box::new(move |records, index| {
                let end = 16 * u32::from_le_bytes(index[4..8].try_into().unwrap()) as usize;
                assert!(end > patches + 2 * count, "the example needs padding");
                records[end - 1] = 1;
            }),
        ),
    ];
    for (i, (words, apply)) in cases.iter().enumerate() {
        let (mut records, mut index) = (encoded[0].clone(), encoded[1].clone());
        apply(&mut records, &mut index);
        let why = pairlut()
            .validate(padded, &Parts(vec![&records, &index]))
            .expect_err(&format!("case {i}: {words}"))
            .why;
        assert!(why.contains(words), "case {i}: {why:?} does not say {words:?}");
    }
}

/// Rules of the other two modes.
#[test]
fn raw_and_4_bit_headers_are_checked() {
    let shape = shape(64, 256);
    let mut stream = Stream::new(6);
    // Row block 0 needs 16 exponents, row block 1 all of them; the rest pays for both.
    let src: Vec<u16> = (0..shape.len())
        .map(|i| {
            let any = stream.next_u64() as u16;
            match i / (16 * 256) {
                0 => (104 + (any >> 8) % 16) << 7 | any & 0x807f,
                1 => any,
                _ => 0x3f00 | any & 0x80ff,
            }
        })
        .collect();
    let encoded = round_trip(shape, &src, "three modes").expect("it shrinks");
    let raw = 16 * u32::from_le_bytes(encoded[1][4..8].try_into().unwrap()) as usize;
    assert_eq!((encoded[0][1] >> 5, encoded[0][raw + 1] >> 5), (1, 2), "4-bit, raw");
    for (at, bits, words) in [
        (24, 1, "unused header bytes"),
        (31, 0x80, "unused header bytes"),
        (raw + 8, 1, "unused header bytes"),
        (raw + 15, 1, "unused header bytes"),
        (raw + 1, 0x80, "a raw record has"),
        (raw + 3, 0x80, "a raw record has"),
    ] {
        let mut records = encoded[0].clone();
        records[at] |= bits;
        let why = pairlut().validate(shape, &Parts(vec![&records, &encoded[1]])).unwrap_err().why;
        assert!(why.contains(words), "byte {at}: {why:?} does not say {words:?}");
    }
}

/// Validates; what passes must decode without leaving its bounds, and as the slow reader decodes it. Returns
/// whether it passed.
pub fn validate_then_decode(shape: Shape, records: &[u8], index: &[u8]) -> bool {
    let parts = Parts(vec![records, index]);
    if pairlut().validate(shape, &parts).is_err() {
        return false;
    }
    let mut out = vec![0; shape.len() as usize];
    pairlut().decode_rows(shape, &parts, 0..shape.rows, &mut out);
    let slow = by_the_book::decode(shape, records, index);
    assert_same(&out, &slow, shape, "accepted parts");
    assert_eq!(pairlut().breakdown(shape, &parts).total(), (records.len() + index.len()) as u64);
    true
}

#[test]
fn every_flipped_bit_is_refused_or_harmless() {
    let shape = shape(15, 127);
    let encoded = pairlut().encode(shape, &normal(shape, 0.02, 2)).expect("it shrinks");
    let (mut passed, mut refused) = (0, 0);
    for part in 0..2 {
        for bit in 0..8 * encoded[part].len() {
            let mut damaged = encoded.clone();
            damaged[part][bit / 8] ^= 1 << (bit % 8);
            let accepted = validate_then_decode(shape, &damaged[0], &damaged[1]);
            assert!(!accepted || part == 0, "bit {bit} of the index may be anything");
            if accepted { passed += 1 } else { refused += 1 }
        }
    }
    // Low bytes, codes and table entries may be anything; the index, counts, flags and padding may not.
    assert!(passed > 8 * 15 * 127 && refused > 100, "{passed} passed, {refused} refused");
}

/// A reader of `pairlut.1` written from the text of FORMAT.md, element by element.
mod by_the_book {
    use super::Shape;

    fn u16_at(bytes: &[u8], at: usize) -> usize {
        usize::from(bytes[at]) | usize::from(bytes[at + 1]) << 8
    }

    fn u32_at(bytes: &[u8], at: usize) -> usize {
        u16_at(bytes, at) | u16_at(bytes, at + 2) << 16
    }

    pub fn decode(shape: Shape, records: &[u8], index: &[u8]) -> Vec<u16> {
        let (rows, cols) = (shape.rows as usize, shape.cols as usize);
        let mut out = vec![0; rows * cols];
        let row_blocks = rows.div_ceil(16);
        let tiles = cols.div_ceil(64);
        let records_per_row = tiles.div_ceil(4);
        for block in 0..row_blocks {
            for i in 0..records_per_row {
                let r = block * records_per_row + i;
                let record = &records[16 * u32_at(index, 4 * r)..16 * u32_at(index, 4 * r + 4)];
                let count =
                    if i + 1 < records_per_row { 4 } else { tiles - 4 * (records_per_row - 1) };
                for tile in 0..count {
                    for l in 0..32 {
                        for s in 0..4 {
                            for j in 0..8 {
                                let row = 16 * block + l / 4 + 8 * (j / 2 % 2);
                                let col = 64 * (4 * i + tile)
                                    + 16 * (l % 4)
                                    + 4 * s
                                    + j % 2
                                    + 2 * (j / 4);
                                if row < rows && col < cols {
                                    out[row * cols + col] = element(record, count, tile, l, s, j);
                                }
                            }
                        }
                    }
                }
            }
        }
        out
    }

    fn element(record: &[u8], tiles: usize, tile: usize, l: usize, s: usize, j: usize) -> u16 {
        let mode = u16_at(record, 0) >> 13 & 3;
        if mode == 2 {
            return u16_at(record, 16 + 2048 * tile + 512 * s + 16 * l + 2 * j) as u16;
        }
        let four_bit = mode == 1;
        let (header, codes_bytes) = if four_bit { (32, 512) } else { (16, 384) };
        let block = header + tile * (1024 + codes_bytes);
        let p = 512 * (s / 2) + 16 * l + 8 * (s % 2) + j;
        let low = usize::from(record[block + p]);
        let word = |plane: usize| u32_at(record, block + 1024 + 4 * (32 * plane + l));
        let code = if four_bit {
            word(s) >> (4 * j) & 15
        } else if s < 3 {
            word(s) >> (4 * j) & 7
        } else {
            (0..3).map(|b| (word(b) >> (4 * j + 3) & 1) << b).sum()
        };
        let mut high = usize::from(record[8 + code]);

        let wide = u16_at(record, 0) >> 15 == 1;
        let end = |t: usize| u16_at(record, 2 * t) & 0x1fff;
        let patches = header + tiles * (1024 + codes_bytes);
        for k in if tile == 0 { 0 } else { end(tile - 1) }..end(tile) {
            let (position, xor) = if wide {
                let patch = u32_at(record, patches + 4 * k);
                (patch & 1023, patch >> 16)
            } else {
                let patch = u16_at(record, patches + 2 * k);
                (patch & 1023, patch >> 10)
            };
            if position == p {
                high ^= xor;
            }
        }
        let shift = if u16_at(record, 2) >> 15 == 1 { 0x80 } else { 0 };
        (high << 8 | low).wrapping_sub(shift) as u16
    }
}
