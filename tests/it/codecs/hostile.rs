//! Parts that are not what an encoder wrote: refused by name, or decoded within bounds.

use snug::codec::{Format, Parts, Shape};
use snug::error::Kind;
use snug::num::rng::Stream;

use super::adversaries::{ADVERSARIES, words};
use super::{assert_same, by_the_book, normal, pairlut, round_trip, shape};

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
        // A third tile with a patch, where there are two.
        (
            "tile 2 has patches",
            Box::new(|records, _| {
                records[4] += 1;
                records[6] += 1;
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

/// A wide patch has fourteen bits that mean nothing.
#[test]
fn spare_bits_of_wide_patches_are_checked() {
    let shape = shape(16, 256);
    let name = "sixteen exponents and a large weight";
    let adversary = ADVERSARIES.iter().find(|a| a.1 == name).expect(name);
    let encoded = round_trip(shape, &words(shape, adversary), name).expect(name);
    assert_eq!(encoded[0][1] & 0xe0, 0x80, "{name}: wide patches, 3-bit mode");
    let count = usize::from(u16::from_le_bytes([encoded[0][6], encoded[0][7]]));
    assert!(count > 0, "{name}: patches");
    for patch in 0..count {
        for bit in (10..16).chain(24..32) {
            let mut records = encoded[0].clone();
            records[16 + 4 * 1408 + 4 * patch + bit / 8] ^= 1 << (bit % 8);
            let why = pairlut().validate(shape, &Parts(vec![&records, &encoded[1]])).unwrap_err();
            assert!(why.why.contains("malformed"), "patch {patch}, bit {bit}: {why}");
        }
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

/// Every bit of the header, the patches and the index; of the bytes between, one bit each.
#[test]
fn every_flipped_bit_is_refused_or_harmless() {
    let shape = shape(15, 127);
    let encoded = pairlut().encode(shape, &normal(shape, 0.02, 2)).expect("it shrinks");
    let planes = 16..16 + 2 * 1408;
    let (mut passed, mut refused) = (0, 0);
    for part in 0..2 {
        for bit in 0..8 * encoded[part].len() {
            let byte = bit / 8;
            if part == 0 && planes.contains(&byte) && bit % 8 != byte % 8 {
                continue;
            }
            let mut damaged = encoded.clone();
            damaged[part][byte] ^= 1 << (bit % 8);
            let accepted = validate_then_decode(shape, &damaged[0], &damaged[1]);
            assert!(!accepted || part == 0, "bit {bit} of the index may be anything");
            *if accepted { &mut passed } else { &mut refused } += 1;
        }
    }
    // Low bytes, codes and table entries may be anything; the index, counts, flags and padding may not.
    assert!(passed > 15 * 127 && refused > 100, "{passed} passed, {refused} refused");
}
