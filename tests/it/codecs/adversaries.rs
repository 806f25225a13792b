//! Weights that provoke each way of storing a record.

use snug::codec::Shape;
use snug::num::f32_to_bf16;
use snug::num::rng::Stream;

use super::normal;

/// Where a word goes, and the usual weight it replaces.
pub struct At {
    row: usize,
    col: usize,
    usual: u16,
}

/// A kind of weights: what every whole record of it must be stored as (`bits3`, `bits4`, `raw`, or `any`), what it
/// is, and its words.
pub type Adversary = (&'static str, &'static str, fn(&mut Stream, &At) -> u16);

#[rustfmt::skip]
pub const ADVERSARIES: &[Adversary] = &[
    ("bits3", "all zeros", |_, _| 0),
    ("bits3", "zeros of both signs", |_, at| (at.col as u16 % 2) << 15),
    ("bits3", "8 % zeros", |s, at| if s.below(100) < 8 { 0 } else { at.usual }),
    ("bits3", "50 % zeros", |s, at| if s.below(2) == 0 { 0 } else { at.usual }),
    ("bits3", "NaN", |s, _| 0x7f80 | s.next_u64() as u16 & 0x807f | 1),
    ("bits3", "infinities", |_, at| [0x7f80, 0xff80][at.col % 2]),
    ("bits3", "subnormals", |s, _| exponents(s, 0, 1)),
    ("bits3", "one exponent", |s, _| exponents(s, 126, 1)),
    ("bits3", "one exponent a tile", |s, at| exponents(s, (at.col / 64 * 3) as u16, 1)),
    // Eight exponents from an even and from an odd one: the second needs the shift.
    ("bits3", "eight exponents", |s, _| exponents(s, 120, 8)),
    ("bits3", "eight odd exponents", |s, _| exponents(s, 119, 8)),
    ("bits4", "sixteen exponents", |s, _| exponents(s, 104, 16)),
    ("bits4", "sixteen odd exponents", |s, _| exponents(s, 105, 16)),
    ("bits4", "sixteen odd exponents and strays", |s, _| {
        if s.below(100) == 0 { exponents(s, 60, 60) } else { exponents(s, 105, 16) }
    }),
    ("raw", "twenty-four exponents", |s, _| exponents(s, 100, 24)),
    ("raw", "all exponents", |s, _| s.next_u64() as u16),
    // As many positive exponents as the table holds and a single large weight: wide patches are cheaper than an entry.
    ("bits3", "sixteen exponents and a large weight", |s, at| or_large(at, exponents(s, 100, 16))),
    ("bits3", "sixteen odd exponents and a large weight", |s, at| or_large(at, exponents(s, 101, 16))),
    ("bits4", "32 exponents and a large weight", |s, at| or_large(at, exponents(s, 60, 32))),
    ("bits4", "32 odd exponents and a large weight", |s, at| or_large(at, exponents(s, 61, 32))),
    ("any", "one outlier row", |s, at| if at.row == 5 { scaled(s, 700.0) } else { at.usual }),
    ("any", "rows of different scales", |s, at| scaled(s, 2f32.powi(at.row as i32 % 16 - 10))),
    ("any", "large weights", |s, _| scaled(s, 9.0)),
    ("any", "huge weights", |s, _| scaled(s, 1e37)),
    ("any", "ends of the range", |s, _| {
        [0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x0001, 0x8001, 0, 0x7fff][s.below(8) as usize]
    }),
];

/// A word with one of `count` exponents from `first` on; any sign and mantissa.
fn exponents(stream: &mut Stream, first: u16, count: u32) -> u16 {
    (first + stream.below(count) as u16) << 7 | stream.next_u64() as u16 & 0x807f
}

fn scaled(stream: &mut Stream, deviation: f32) -> u16 {
    f32_to_bf16(stream.normal() * deviation)
}

/// One large weight in every record, else the absolute value of a word.
fn or_large(at: &At, word: u16) -> u16 {
    if at.row % 16 == 3 && at.col % 256 == 40 { 0x4780 } else { word & 0x7fff }
}

/// The words of an adversary.
pub fn words(shape: Shape, (_, _, word): &Adversary) -> Vec<u16> {
    let mut stream = Stream::new(5);
    let cols = shape.cols as usize;
    let at = |(i, usual)| At { row: i / cols, col: i % cols, usual };
    let usual = normal(shape, 0.02, 99);
    usual.into_iter().enumerate().map(|pair| word(&mut stream, &at(pair))).collect()
}
