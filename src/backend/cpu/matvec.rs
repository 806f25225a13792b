//! `W·x` for one row block of a matrix and up to a step of tokens: the loop that all matrix ops share.
//!
//! ```text
//!  weights, 16 rows × K                                 activations, K × n tokens
//!   bf16     row-major, in place ─────┐
//!   pairlut  record → 8 KiB of words ─┤ strips           one `Strip` for each half tile:
//!                                     ▼                  even columns, odd columns, in the
//!              32 partial sums for each (row, token) ◀── order in which a strip's words lie
//!                                     ▼
//!                          fold → out[token][16 rows]
//! ```
//!
//! Every (row, token) is summed in the order `TILE64` of `num::order`, whatever the format, the number of tokens, the
//! threads and the instruction set. Columns are padded to whole tiles with zero weights and zero activations.
//!
//! For one token, each record is used as soon as it is decoded, while its words are in the first-level cache. For
//! more, the whole row block is decoded once, as strips, and used for all of them, [`TOGETHER`] at a time.

use super::simd::{Isa, Kernel, Lanes};
use crate::backend::Weight;
use crate::codec::pairlut::{RECORD_TILES, TILE, TILE_COLS, TILE_ROWS, View};
use crate::codec::simd::{Level, decode_record_with};
use crate::codec::{Format, Shape};

/// Rows that are computed together.
pub const BLOCK: usize = TILE_ROWS;

/// Tokens that share the registers of one pass.
pub const TOGETHER: usize = 3;

/// The activations of half a tile: `[0..16]` those of even columns, `[16..32]` those of odd ones. Element i of either
/// belongs to columns 16·(i / 4) + 8h + 2·(i mod 4) (and + 1) of the tile, h = 0, 1 being the half.
pub type Strip = [f32; 32];

/// The words of a pair of rows in half a tile. Unit 8h + g of a tile holds rows g and g + 8.
type Unit = [u16; 64];

const UNITS: usize = TILE / 64;

/// Partial sums of a pair of rows for one token: rows g and g + 8, even then odd columns in each.
type Sums = [[[f32; 16]; 2]; 2];

/// Lays out activations for [`Block`]: `value(c)` is that of column c, c < `cols`. `out` holds two strips a tile.
#[inline(always)]
pub fn arrange(cols: usize, value: impl Fn(usize) -> f32, out: &mut [Strip]) {
    for (i, strip) in out.iter_mut().enumerate() {
        let first = TILE_COLS * (i / 2) + 8 * (i % 2);
        let column = |j: usize| first + 16 * (j / 4) + 2 * (j % 4);
        if TILE_COLS * (i / 2 + 1) <= cols {
            for j in 0..16 {
                strip[j] = value(column(j));
                strip[16 + j] = value(column(j) + 1);
            }
        } else {
            for j in 0..16 {
                let padded = |c| if c < cols { value(c) } else { 0.0 };
                strip[j] = padded(column(j));
                strip[16 + j] = padded(column(j) + 1);
            }
        }
    }
}

/// A matrix where its bytes lie.
pub struct Matrix<'a> {
    /// Rows and columns.
    pub shape: Shape,
    stored: Stored<'a>,
}

enum Stored<'a> {
    /// Row-major bf16.
    Rows(&'a [u8]),
    Records(View<'a>),
}

impl<'a> Matrix<'a> {
    /// Looks at a weight whose parts have been validated.
    pub fn new(weight: &Weight<'a>) -> Matrix<'a> {
        let stored = match weight.format {
            Format::Bf16 => Stored::Rows(weight.parts.0[0]),
            Format::Pairlut => Stored::Records(View::trusted(weight.shape, &weight.parts)),
        };
        Matrix { shape: weight.shape, stored }
    }

    /// Row blocks, the last one padded.
    pub fn blocks(&self) -> usize {
        (self.shape.rows as usize).div_ceil(BLOCK)
    }

    /// Strips of one token's input.
    pub fn strips(&self) -> usize {
        2 * self.tiles()
    }

    /// Tiles of a row block, the last one padded.
    fn tiles(&self) -> usize {
        (self.shape.cols as usize).div_ceil(TILE_COLS)
    }
}

/// Work memory of one thread.
pub struct Scratch {
    units: Vec<Unit>,
    sums: Vec<Sums>,
}

impl Scratch {
    /// Room for matrices of up to `cols` columns and steps of up to `tokens` tokens, so that no step allocates.
    pub fn new(cols: usize, tokens: usize) -> Scratch {
        let tiles = if tokens > 1 { cols.div_ceil(TILE_COLS) } else { RECORD_TILES };
        Scratch {
            units: vec![[0; 64]; tiles.max(RECORD_TILES) * UNITS],
            sums: vec![Sums::default(); BLOCK / 2 * TOGETHER],
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.units) + size_of_val(&*self.sums)
    }

    /// Overwrites everything, to show that nothing old is read.
    pub fn poison(&mut self) {
        self.units.as_flattened_mut().fill(0x7fc1);
        self.sums.fill([[[f32::NAN; 16]; 2]; 2]);
    }
}

/// How products are computed: the instructions to use.
#[derive(Clone, Copy)]
pub struct Math {
    /// Of the sums.
    pub isa: Isa,
    /// Of the decoder: the best one that is not wider.
    level: Level,
}

impl Math {
    /// Products on an instruction set.
    pub fn new(isa: Isa) -> Math {
        let levels = Level::available();
        // Both lists run from plain to wide; a machine may have wide sums without a wide decoder.
        let rank = Isa::available().iter().position(|i| *i == isa).unwrap_or(0);
        Math { isa, level: levels[rank.min(levels.len() - 1)] }
    }

    /// Row block `block` of W times `n` tokens: `out[n][16]`, or fewer than 16 when n is 1. `x` holds two strips a
    /// tile for each token.
    pub fn block(
        self,
        matrix: &Matrix<'_>,
        block: usize,
        x: &[Strip],
        n: usize,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let Scratch { units, sums } = scratch;
        self.isa.run(Block { level: self.level, matrix, block, x, n, units, sums, out });
    }
}

struct Block<'a> {
    level: Level,
    matrix: &'a Matrix<'a>,
    block: usize,
    x: &'a [Strip],
    n: usize,
    units: &'a mut [Unit],
    sums: &'a mut [Sums],
    out: &'a mut [f32],
}

impl Kernel for Block<'_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let tiles = self.matrix.tiles();
        debug_assert_eq!(self.x.len(), 2 * tiles * self.n, "two strips a tile and token");
        if self.n == 1 { self.one(l, tiles) } else { self.many(l, tiles) }
    }
}

impl Block<'_> {
    #[inline(always)]
    fn one<L: Lanes>(&mut self, l: L, tiles: usize) {
        let sums = &mut self.sums[..BLOCK / 2];
        sums.fill(Sums::default());
        match &self.matrix.stored {
            Stored::Records(view) => {
                for i in 0..view.grid.records_per_row {
                    let units = &mut self.units[..view.grid.tiles_in(i) * UNITS];
                    decode(self.level, view, self.block, i, units);
                    add_one(l, Record(units.as_chunks().0), &self.x[2 * RECORD_TILES * i..], sums);
                }
            }
            Stored::Rows(bytes) => {
                let rows = Rows::new(bytes, self.matrix.shape, self.block);
                add_one(l, rows.whole, self.x, sums);
                if let Some(rest) = &rows.rest {
                    add_one(l, rest.rows(), &self.x[2 * (tiles - 1)..], sums);
                }
            }
        }
        fold(l, sums, 1, self.out);
    }

    #[inline(always)]
    fn many<L: Lanes>(&mut self, l: L, tiles: usize) {
        let units = &mut self.units[..tiles * UNITS];
        match &self.matrix.stored {
            Stored::Records(view) => {
                for (i, units) in units.chunks_mut(RECORD_TILES * UNITS).enumerate() {
                    decode(self.level, view, self.block, i, units);
                    for unit in units {
                        l.store_strips(l.record_pair(unit), unit);
                    }
                }
            }
            Stored::Rows(bytes) => {
                let rows = Rows::new(bytes, self.matrix.shape, self.block);
                let (whole, last) = units.split_at_mut(rows.tiles * UNITS);
                copy_strips(l, rows.whole, whole);
                if let Some(rest) = &rows.rest {
                    copy_strips(l, rest.rows(), last);
                }
            }
        }
        let strips = Strips(units.as_chunks().0);
        let x = self.x.chunks(2 * tiles * TOGETHER);
        for (x, out) in x.zip(self.out.chunks_mut(BLOCK * TOGETHER)) {
            let n = out.len() / BLOCK;
            let sums = &mut self.sums[..BLOCK / 2 * n];
            sums.fill(Sums::default());
            let x = |t: usize| &x[2 * tiles * t..];
            match n {
                1 => add_many(l, strips, [x(0)], sums),
                2 => add_many(l, strips, [x(0), x(1)], sums),
                _ => add_many(l, strips, [x(0), x(1), x(2)], sums),
            }
            fold(l, sums, n, out);
        }
    }
}

/// Decodes the `i`-th record of a row block; words of padded columns become zero, since what they decode to is
/// unspecified and could be an infinity.
#[inline(always)]
fn decode(level: Level, view: &View<'_>, block: usize, i: usize, units: &mut [Unit]) {
    let tiles = units.len() / UNITS;
    decode_record_with(level, view.record_at(block, i), tiles, units.as_flattened_mut());
    let real = view.grid.cols_in(i) % TILE_COLS;
    if real != 0 {
        clear_padding(&mut units[(tiles - 1) * UNITS..], real);
    }
}

#[cold]
fn clear_padding(tile: &mut [Unit], real: usize) {
    for (i, unit) in tile.iter_mut().enumerate() {
        for (j, word) in unit.iter_mut().enumerate() {
            let column = 16 * (j / 16) + 8 * (i / 8) + 2 * (j / 4 % 4) + j % 2;
            *word = if column < real { *word } else { 0 };
        }
    }
}

/// Where strips come from.
trait Source: Copy {
    fn tiles(self) -> usize;
    /// Rows g and g + 8 of half a tile.
    fn pair<L: Lanes>(self, l: L, tile: usize, half: usize, g: usize) -> [L::W; 2];
    /// Asks for what will be needed instead of this pair after this row block.
    #[inline(always)]
    fn fetch_ahead<L: Lanes>(self, _: L, _tile: usize, _g: usize) {}
}

/// Tiles of a decoded record.
#[derive(Clone, Copy)]
struct Record<'a>(&'a [[Unit; UNITS]]);

impl Source for Record<'_> {
    #[inline(always)]
    fn tiles(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn pair<L: Lanes>(self, l: L, tile: usize, half: usize, g: usize) -> [L::W; 2] {
        l.record_pair(&self.0[tile][8 * half + g])
    }
}

/// Tiles already in strips.
#[derive(Clone, Copy)]
struct Strips<'a>(&'a [[Unit; UNITS]]);

impl Source for Strips<'_> {
    #[inline(always)]
    fn tiles(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn pair<L: Lanes>(self, l: L, tile: usize, half: usize, g: usize) -> [L::W; 2] {
        l.strip_pair(&self.0[tile][8 * half + g])
    }
}

/// Tiles of sixteen row-major rows.
#[derive(Clone, Copy)]
struct RowTiles<'a> {
    rows: [&'a [[u8; 128]]; BLOCK],
    /// Bytes to the next row block.
    next: usize,
}

impl Source for RowTiles<'_> {
    #[inline(always)]
    fn tiles(self) -> usize {
        self.rows[0].len()
    }

    #[inline(always)]
    fn pair<L: Lanes>(self, l: L, tile: usize, half: usize, g: usize) -> [L::W; 2] {
        [l.row_strip(&self.rows[g][tile], half), l.row_strip(&self.rows[g + 8][tile], half)]
    }

    /// Rows are short and lie one after the other: the hardware's prefetching ends with each.
    #[inline(always)]
    fn fetch_ahead<L: Lanes>(self, l: L, tile: usize, g: usize) {
        l.fetch(&self.rows[g][tile], self.next);
        l.fetch(&self.rows[g + 8][tile], self.next);
    }
}

/// The rows of a block of a row-major matrix: whole tiles where they lie, and the rest of the columns as a copy with
/// zeros after it. Rows beyond the last one repeat it; nobody looks at their sums.
struct Rows<'a> {
    whole: RowTiles<'a>,
    tiles: usize,
    rest: Option<Rest>,
}

struct Rest([[u8; 128]; BLOCK]);

impl Rest {
    fn rows(&self) -> RowTiles<'_> {
        RowTiles { rows: std::array::from_fn(|r| std::slice::from_ref(&self.0[r])), next: 0 }
    }
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn new(bytes: &'a [u8], shape: Shape, block: usize) -> Rows<'a> {
        let stride = 2 * shape.cols as usize;
        let last = shape.rows as usize - 1;
        let row = |r: usize| {
            let at = (BLOCK * block + r).min(last) * stride;
            bytes[at..at + stride].as_chunks::<128>()
        };
        let whole = std::array::from_fn(|r| row(r).0);
        let rest = (!stride.is_multiple_of(128)).then(|| {
            let mut rest = Rest([[0; 128]; BLOCK]);
            for (r, to) in rest.0.iter_mut().enumerate() {
                let from = row(r).1;
                to[..from.len()].copy_from_slice(from);
            }
            rest
        });
        Rows { whole: RowTiles { rows: whole, next: BLOCK * stride }, tiles: stride / 128, rest }
    }
}

#[inline(always)]
fn copy_strips<L: Lanes>(l: L, source: RowTiles<'_>, units: &mut [Unit]) {
    for (i, unit) in units.iter_mut().enumerate() {
        l.store_strips(source.pair(l, i / UNITS, i / 8 % 2, i % 8), unit);
    }
}

/// Adds the products of all tiles of `source` with one token's activations, which begin with its first tile's.
#[inline(always)]
fn add_one<L: Lanes, S: Source>(l: L, source: S, x: &[Strip], sums: &mut [Sums]) {
    // Each word is used once, so even and odd columns go together.
    if L::WIDE {
        pairs::<L, S, 4, 1, 0, 2>(l, source, [x], sums);
    } else {
        pairs::<L, S, 1, 1, 0, 2>(l, source, [x], sums);
    }
}

/// Adds the products of a row block with T tokens' activations to `sums[pair][token]`.
#[inline(always)]
fn add_many<L: Lanes, S: Source, const T: usize>(
    l: L,
    source: S,
    x: [&[Strip]; T],
    sums: &mut [Sums],
) {
    // As many sums as there are registers for. Even and odd columns take turns: more rows then share the loads of
    // activations, which are twice as long as words.
    if L::WIDE {
        pairs::<L, S, 4, T, 0, 1>(l, source, x, sums);
        pairs::<L, S, 4, T, 1, 2>(l, source, x, sums);
    } else {
        pairs::<L, S, 1, T, 0, 1>(l, source, x, sums);
        pairs::<L, S, 1, T, 1, 2>(l, source, x, sums);
    }
}

/// All eight pairs, P at a time, with T tokens and the column parities FROM..TO.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "plain counters are what unrolls into registers")]
fn pairs<
    L: Lanes,
    S: Source,
    const P: usize,
    const T: usize,
    const FROM: usize,
    const TO: usize,
>(
    l: L,
    source: S,
    x: [&[Strip]; T],
    sums: &mut [Sums],
) {
    let tiles = source.tiles();
    let x: [&[[Strip; 2]]; T] = std::array::from_fn(|t| &x[t].as_chunks().0[..tiles]);
    for (g, sums) in sums.chunks_exact_mut(P * T).enumerate() {
        let mut acc = [[[[l.splat(0.0); 2]; 2]; T]; P];
        for p in 0..P {
            for t in 0..T {
                for row in 0..2 {
                    for c in FROM..TO {
                        acc[p][t][row][c] = l.load(&sums[p * T + t][row][c]);
                    }
                }
            }
        }
        for tile in 0..tiles {
            for p in 0..P {
                source.fetch_ahead(l, tile, g * P + p);
            }
            for half in 0..2 {
                for p in 0..P {
                    let pair = source.pair(l, tile, half, g * P + p);
                    for c in FROM..TO {
                        for row in 0..2 {
                            let w = if c == 0 { l.even(pair[row]) } else { l.odd(pair[row]) };
                            for t in 0..T {
                                let x = l.load(&x[t][tile][half].as_chunks().0[c]);
                                acc[p][t][row][c] = l.fma(w, x, acc[p][t][row][c]);
                            }
                        }
                    }
                }
            }
        }
        for p in 0..P {
            for t in 0..T {
                for row in 0..2 {
                    for c in FROM..TO {
                        l.store(acc[p][t][row][c], &mut sums[p * T + t][row][c]);
                    }
                }
            }
        }
    }
}

/// `out[token][row] ←` the folded sums; rows that `out` has no room for are dropped.
#[inline(always)]
fn fold<L: Lanes>(l: L, sums: &[Sums], n: usize, out: &mut [f32]) {
    for (t, out) in out.chunks_mut(BLOCK).enumerate() {
        for (row, out) in out.iter_mut().enumerate() {
            let [even, odd] = &sums[row % 8 * n + t][row / 8];
            *out = l.fold(l.load(even), l.load(odd));
        }
    }
}
