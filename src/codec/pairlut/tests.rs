//! Every mode, shift and kind of patch, forced, at every level of instructions.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::encode::{Plan, choose, lay_out, write};
use super::*;
use crate::codec::simd::{Level, decode_record_with};
use crate::num::f32_to_bf16;
use crate::num::rng::Stream;

/// A choice an encoder may be held to.
#[derive(Clone, Copy, Debug)]
struct Forced {
    mode: Mode,
    shifted: bool,
    wide: bool,
}

fn every_choice() -> Vec<Forced> {
    let mut all = vec![Forced { mode: Mode::Raw, shifted: false, wide: false }];
    for mode in [Mode::Bits3, Mode::Bits4] {
        for shifted in [false, true] {
            for wide in [false, true] {
                all.push(Forced { mode, shifted, wide });
            }
        }
    }
    all
}

fn encode_forced(shape: Shape, src: &[u16], forced: Forced) -> Vec<Vec<u8>> {
    let grid = Grid::new(shape);
    let allow = |plan: &Plan| {
        (plan.mode, plan.shifted, plan.wide) == (forced.mode, forced.shifted, forced.wide)
    };
    let plans = choose(&grid, src, allow, &|| true);
    let index = lay_out(&grid, &plans).expect("a small tensor");
    write(&grid, src, &plans, &index, &|| true)
}

fn parts(encoded: &[Vec<u8>]) -> Parts<'_> {
    Parts(encoded.iter().map(Vec::as_slice).collect())
}

#[track_caller]
fn assert_same(got: &[u16], want: &[u16], shape: Shape, what: impl std::fmt::Debug) {
    if let Some(i) = (0..want.len()).find(|&i| got[i] != want[i]) {
        let (row, col) = (i / shape.cols as usize, i % shape.cols as usize);
        panic!("{what:?}: row {row}, column {col}: {:#06x} instead of {:#06x}", got[i], want[i]);
    }
}

/// Round trip through a forced choice; returns how many records took it.
#[track_caller]
fn round_trip(shape: Shape, src: &[u16], forced: Forced) -> usize {
    let encoded = encode_forced(shape, src, forced);
    let parts = parts(&encoded);
    Pairlut.validate(shape, &parts).unwrap_or_else(|e| panic!("{forced:?}: {e}"));
    let mut out = vec![0xaaaa; src.len()];
    Pairlut.decode_rows(shape, &parts, 0..shape.rows, &mut out);
    assert_same(&out, src, shape, forced);
    let breakdown = Pairlut.breakdown(shape, &parts);
    assert_eq!(
        breakdown.total(),
        encoded.iter().map(|p| p.len() as u64).sum::<u64>(),
        "{forced:?}"
    );

    let view = View::trusted(shape, &parts);
    let mut taken = 0;
    for r in 0..view.grid.records() as usize {
        let record = view.record(r);
        let tiles = view.grid.tiles_in(r % view.grid.records_per_row);
        let mut words = vec![0; tiles * TILE];
        decode_record_with(Level::available()[0], record, tiles, &mut words);
        for &level in Level::available() {
            let mut other = vec![0x5555; tiles * TILE];
            decode_record_with(level, record, tiles, &mut other);
            let as_tiles = Shape { rows: tiles as u32, cols: TILE as u32 };
            assert_same(&other, &words, as_tiles, (forced, level));
        }
        let header = Header::read(record).unwrap();
        let chosen = (header.mode, header.shifted, header.wide);
        taken += usize::from(chosen == (forced.mode, forced.shifted, forced.wide));
        // Padding decodes to something finite, so that a zero activation silences it.
        let real = (
            view.grid.rows_in(r / view.grid.records_per_row),
            view.grid.cols_in(r % view.grid.records_per_row),
        );
        for (i, w) in words.iter().enumerate() {
            let (row, col) = fragment::row_col(i % TILE);
            let inside = row < real.0 && i / TILE * TILE_COLS + col < real.1;
            assert!(inside || w >> 7 & 0xff != 0xff, "{forced:?}: padding is {w:#06x}");
        }
    }
    taken
}

#[test]
fn all_patterns_survive_every_choice() {
    let shape = Shape { rows: 256, cols: 256 };
    let ascending: Vec<u16> = (0..=u16::MAX).collect();
    // An odd multiplier permutes the patterns, so that every record holds values from everywhere.
    let scattered: Vec<u16> = ascending.iter().map(|w| w.wrapping_mul(0x9e37)).collect();
    for forced in every_choice() {
        for src in [&ascending, &scattered] {
            round_trip(shape, src, forced);
        }
        // Without the exponent 0xFF every record can be shifted.
        let finite: Vec<u16> =
            scattered.iter().map(|&w| if w & 0x7f80 == 0x7f80 { w & 0xbfff } else { w }).collect();
        // Narrow patches reach all groups, because each has an entry in the table.
        assert_eq!(round_trip(shape, &finite, forced), 16, "{forced:?}");
    }
}

#[test]
fn awkward_shapes_survive_every_choice() {
    let mut stream = Stream::new(1);
    for rows in [1, 15, 16, 17, 33] {
        for cols in [1, 63, 64, 65, 255, 256, 257, 320] {
            let shape = Shape { rows, cols };
            let normal: Vec<u16> =
                (0..shape.len()).map(|_| crate::num::f32_to_bf16(stream.normal() * 0.05)).collect();
            let noise: Vec<u16> =
                (0..shape.len()).map(|_| stream.next_u64() as u16 & 0xbfff).collect();
            let zeros: Vec<u16> = (0..shape.len()).map(|i| [0, 0x8000][i as usize % 2]).collect();
            for forced in every_choice() {
                for src in [&normal, &noise, &zeros] {
                    assert_ne!(round_trip(shape, src, forced), 0, "{forced:?}");
                }
            }
        }
    }
}

#[test]
fn some_rows_are_the_rows_of_all() {
    let shape = Shape { rows: 70, cols: 333 };
    let mut stream = Stream::new(2);
    let src: Vec<u16> = (0..shape.len()).map(|_| stream.next_u64() as u16).collect();
    let forced = Forced { mode: Mode::Bits4, shifted: false, wide: false };
    let encoded = encode_forced(shape, &src, forced);
    for first in [0, 1, 15, 16, 17, 31, 47, 69] {
        for last in [first, first + 1, first + 15, first + 16, first + 17, 70] {
            let rows = first..last.min(70);
            let want = &src[rows.start as usize * 333..rows.end as usize * 333];
            let mut out = vec![0; want.len()];
            Pairlut.decode_rows(shape, &parts(&encoded), rows.clone(), &mut out);
            assert_same(&out, want, shape, rows);
        }
    }
}

#[test]
fn headers_read_back() {
    for mode in [Mode::Bits3, Mode::Bits4, Mode::Raw] {
        for (wide, shifted) in [(false, false), (false, true), (true, false), (true, true)] {
            let header = Header { mode, wide, shifted, ends: [1, 0x1fff, 4096, 0] };
            assert_eq!(Header::read(&header.to_bytes()), Some(header));
        }
    }
    for (byte, bits) in [(1, 0x60), (3, 0x20), (3, 0x40), (5, 0x20), (5, 0x80), (7, 0x40)] {
        let mut bytes = [0; 8];
        bytes[byte] = bits;
        assert_eq!(Header::read(&bytes), None, "byte {byte} = {bits:#x}");
    }
    assert_eq!(Header::read(&[0; 7]), None);
}

/// The bits that must be zero are exactly those that no weight depends on.
#[test]
fn padding_is_every_bit_that_no_weight_needs() {
    let shape = Shape { rows: 15, cols: 127 };
    let mut stream = Stream::new(3);
    // Seventeen high bytes, so that every code of either table is in use.
    let src: Vec<u16> = (0..shape.len())
        .map(|_| (0x3000 + (stream.below(17) << 8)) as u16 | stream.next_u64() as u16 & 0xff)
        .collect();
    for mode in [Mode::Bits3, Mode::Bits4, Mode::Raw] {
        let encoded = encode_forced(shape, &src, Forced { mode, shifted: false, wide: false });
        assert_eq!(Header::read(&encoded[0]).map(|h| h.mode), Some(mode));
        let tiles = mode.header_bytes()..mode.header_bytes() + 2 * mode.tile_bytes();
        let mut padding = 0;
        for bit in 8 * tiles.start..8 * tiles.end {
            let mut damaged = encoded.clone();
            damaged[0][bit / 8] ^= 1 << (bit % 8);
            let mut out = vec![0; src.len()];
            Pairlut.decode_rows(shape, &parts(&damaged), 0..shape.rows, &mut out);
            let accepted = Pairlut.validate(shape, &parts(&damaged)).is_ok();
            let needed = out != src;
            assert_eq!(accepted, needed, "{mode:?}: byte {}, bit {}", bit / 8, bit % 8);
            padding += usize::from(!needed);
        }
        let bits = 8 * mode.tile_bytes() / TILE;
        assert_eq!(padding, bits * (2 * TILE - src.len()), "{mode:?}");
    }
}

#[test]
fn what_would_not_shrink_is_not_encoded() {
    let shape = Shape { rows: 12, cols: 61 };
    let raw = 2 * shape.len() as usize;
    let mut orders = Vec::new();
    for strays in 0..60 {
        // Twelve high bytes; those beyond the first eight are rare.
        let src: Vec<u16> = (0..shape.len() as u16)
            .map(|i| 0x3000 + ((if i < strays { 9 + i % 4 } else { i % 8 }) << 8))
            .collect();
        let grid = Grid::new(shape);
        let plans = choose(&grid, &src, |_| true, &|| true);
        let index = lay_out(&grid, &plans).expect("a small tensor");
        let size: usize = write(&grid, &src, &plans, &index, &|| true).iter().map(Vec::len).sum();
        orders.push(size.cmp(&raw));
        assert_eq!(Pairlut.encode(shape, &src).is_some(), size < raw, "{size} bytes, raw {raw}");
    }
    for order in [std::cmp::Ordering::Less, std::cmp::Ordering::Equal] {
        assert!(orders.contains(&order), "{order:?} does not occur");
    }
}

/// Given up at any row block of either pass, no row block after it is worked on.
#[test]
fn encoding_that_is_given_up_does_no_more_work() {
    let shape = Shape { rows: 10 * TILE_ROWS as u32, cols: 256 };
    let mut stream = Stream::new(12);
    let src: Vec<u16> = (0..shape.len()).map(|_| f32_to_bf16(0.02 * stream.normal())).collect();
    let whole = Pairlut.encode(shape, &src).unwrap();
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let blocks = Grid::new(shape).row_blocks;
    // A question for every row block of each pass, and one between the passes.
    for yes in 0..2 * blocks + 2 {
        let asked = AtomicUsize::new(0);
        let go_on = || asked.fetch_add(1, Ordering::Relaxed) < yes;
        let encoded = one_thread.install(|| Pairlut.encode_while(shape, &src, &go_on));
        let written = encoded.map_or(0, |parts| {
            assert_eq!(parts[0].len(), whole[0].len());
            let view = View::trusted(shape, &self::parts(&whole));
            let mut at = 0;
            let mut same = 0;
            for block in 0..blocks {
                let (want, got) = (view.row_block(block), &parts[0][at..]);
                same += usize::from(got.starts_with(want));
                at += want.len();
            }
            same
        });
        assert_eq!(written, yes.saturating_sub(blocks + 1).min(blocks), "stopped after {yes}");
    }
}
