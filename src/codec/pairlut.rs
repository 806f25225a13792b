//! The default lossless codec (FORMAT.md, section 3).
//!
//! A weight is cut into row blocks of 16 rows and tiles of 64 columns; a record holds up to four tiles of one row
//! block. Each bf16 word splits into its low byte, stored as is, and its high byte (sign and top seven exponent
//! bits), stored as a code into a table of the record's usual high bytes. The few elements whose high byte is not
//! in the table are patched.
//!
//! ```text
//!   columns    0 ..... 255           256 ..... 511       512 ..... 575
//!            ┌────────────────────┬────────────────────┬──────┐
//!  rows 0-15 │ record 0: 4 tiles  │ record 1: 4 tiles  │ rec 2│    one record: header and table
//!            ├────────────────────┼────────────────────┼──────┤                per tile: low bytes, codes
//! rows 16-31 │ record 3           │ record 4           │ rec 5│                patches of all its tiles
//!            └────────────────────┴────────────────────┴──────┘
//! ```
//!
//! [`View`] finds records, [`Header`] reads them, [`super::simd`] decodes them; `encode` and `validate` are the
//! two sides of the layout rules.

mod encode;
pub mod fragment;
#[cfg(test)]
mod tests;
mod validate;

use std::ops::Range;

use rayon::prelude::*;

use self::fragment::scatter;
use super::{Breakdown, Codec, Format, Parts, Shape, simd};
use crate::error::{Error, Result};

/// Rows of a tile, and of a row block.
pub const TILE_ROWS: usize = 16;
/// Columns of a tile.
pub const TILE_COLS: usize = 64;
/// Elements of a tile.
pub const TILE: usize = TILE_ROWS * TILE_COLS;
/// Tiles of a record that is not the last of its row block.
pub const RECORD_TILES: usize = 4;
/// Elements of a full record.
pub const RECORD: usize = RECORD_TILES * TILE;
/// Records begin at multiples of this many bytes; the index counts in it.
pub const UNIT: usize = 16;

/// How a record stores its high bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Codes of 3 bits into a table of 8.
    Bits3,
    /// Codes of 4 bits into a table of 16.
    Bits4,
    /// Whole words, no table.
    Raw,
}

impl Mode {
    /// Bytes before the first tile.
    #[inline]
    pub const fn header_bytes(self) -> usize {
        match self {
            Mode::Bits3 | Mode::Raw => 16,
            Mode::Bits4 => 32,
        }
    }

    /// Bytes of a tile without its patches.
    #[inline]
    pub const fn tile_bytes(self) -> usize {
        match self {
            Mode::Bits3 => TILE + 384,
            Mode::Bits4 => TILE + 512,
            Mode::Raw => 2 * TILE,
        }
    }

    /// Entries of the table.
    #[inline]
    pub const fn entries(self) -> usize {
        match self {
            Mode::Bits3 => 8,
            Mode::Bits4 => 16,
            Mode::Raw => 0,
        }
    }
}

/// The first eight bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How high bytes are stored.
    pub mode: Mode,
    /// Patches of 4 bytes instead of 2.
    pub wide: bool,
    /// Words are stored plus 0x0080.
    pub shifted: bool,
    /// Patches of tiles 0 … t together.
    pub ends: [u16; RECORD_TILES],
}

const COUNT_MASK: u16 = 0x1fff;
const WIDE: u16 = 0x8000;
const SHIFTED: u16 = 0x8000;

impl Header {
    /// Reads the header of a record; `None` when bits are set that have no meaning, or the record is too short.
    #[inline]
    pub fn read(record: &[u8]) -> Option<Header> {
        let bytes: &[u8; 8] = record.first_chunk()?;
        let words: [u16; 4] =
            std::array::from_fn(|t| u16::from_le_bytes([bytes[2 * t], bytes[2 * t + 1]]));
        let mode = match words[0] >> 13 & 3 {
            0 => Mode::Bits3,
            1 => Mode::Bits4,
            2 => Mode::Raw,
            _ => return None,
        };
        if words[1] & 0x6000 != 0 || words[2] & !COUNT_MASK != 0 || words[3] & !COUNT_MASK != 0 {
            return None;
        }
        Some(Header {
            mode,
            wide: words[0] & WIDE != 0,
            shifted: words[1] & SHIFTED != 0,
            ends: words.map(|w| w & COUNT_MASK),
        })
    }

    /// The eight bytes that [`Header::read`] reads back.
    fn to_bytes(self) -> [u8; 8] {
        let mut words = self.ends;
        words[0] |= (self.mode as u16) << 13 | if self.wide { WIDE } else { 0 };
        words[1] |= if self.shifted { SHIFTED } else { 0 };
        let mut bytes = [0; 8];
        for (pair, word) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(words) {
            *pair = word.to_le_bytes();
        }
        bytes
    }

    /// Bytes of one patch.
    #[inline]
    pub fn patch_bytes(&self) -> usize {
        if self.wide { 4 } else { 2 }
    }

    /// Patches of tile `t` (count of those before it, count with it).
    #[inline]
    pub fn patch_range(&self, t: usize) -> Range<usize> {
        let start = if t == 0 { 0 } else { self.ends[t - 1] };
        usize::from(start)..usize::from(self.ends[t])
    }

    /// What is added to every word before it is split.
    #[inline]
    pub fn shift(&self) -> u16 {
        if self.shifted { 0x0080 } else { 0 }
    }

    /// Bytes of a record of `tiles` tiles with this header, rounded up to [`UNIT`].
    pub fn record_bytes(&self, tiles: usize) -> usize {
        self.payload_bytes(tiles).next_multiple_of(UNIT)
    }

    /// Bytes of a record before it is rounded up.
    fn payload_bytes(&self, tiles: usize) -> usize {
        self.mode.header_bytes()
            + tiles * self.mode.tile_bytes()
            + usize::from(self.ends[RECORD_TILES - 1]) * self.patch_bytes()
    }
}

/// How a shape is cut into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The weight's shape.
    pub shape: Shape,
    /// Groups of 16 rows, the last one padded.
    pub row_blocks: usize,
    /// Tiles of a row block, the last one padded.
    pub tiles: usize,
    /// Records of a row block.
    pub records_per_row: usize,
}

impl Grid {
    /// The grid of a shape.
    pub fn new(shape: Shape) -> Grid {
        let tiles = (shape.cols as usize).div_ceil(TILE_COLS);
        Grid {
            shape,
            row_blocks: (shape.rows as usize).div_ceil(TILE_ROWS),
            tiles,
            records_per_row: tiles.div_ceil(RECORD_TILES),
        }
    }

    /// Records in all.
    pub fn records(&self) -> u64 {
        self.row_blocks as u64 * self.records_per_row as u64
    }

    /// Tiles of the `i`-th record of every row block: 4, or fewer in the last one.
    pub fn tiles_in(&self, i: usize) -> usize {
        (self.tiles - RECORD_TILES * i).min(RECORD_TILES)
    }

    /// Real rows of a row block: 16, or fewer in the last one.
    pub fn rows_in(&self, block: usize) -> usize {
        (self.shape.rows as usize - TILE_ROWS * block).min(TILE_ROWS)
    }

    /// Real columns of the `i`-th record of every row block.
    pub fn cols_in(&self, i: usize) -> usize {
        let width = RECORD_TILES * TILE_COLS;
        (self.shape.cols as usize - width * i).min(width)
    }
}

/// The parts of a `pairlut` weight, with their grid.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// How the weight is cut.
    pub grid: Grid,
    records: &'a [u8],
    index: &'a [[u8; 4]],
}

impl<'a> View<'a> {
    /// Looks at the parts of a weight. Checks their sizes only: see [`Codec::validate`].
    ///
    /// # Errors
    /// `Kind::BadFile` when the number of parts, or the size of one, does not fit the shape.
    pub fn new(shape: Shape, parts: &Parts<'a>) -> Result<View<'a>> {
        let [records, index] = parts.0[..] else {
            return Err(refuse(format!("it has {} parts instead of 2", parts.0.len())));
        };
        if shape.is_empty() {
            return Err(refuse(format!("it is {} × {}", shape.rows, shape.cols)));
        }
        let grid = Grid::new(shape);
        let (entries, rest) = index.as_chunks::<4>();
        let want = grid.records() + 1;
        if entries.len() as u64 != want || !rest.is_empty() {
            return Err(refuse(format!(
                "the index of a {} × {} weight has {} bytes, found {}",
                shape.rows,
                shape.cols,
                4 * want,
                index.len()
            )));
        }
        let view = View { grid, records, index: entries };
        let (first, last) = (view.start(0), view.start(entries.len() - 1));
        if first != 0 || last != records.len() {
            return Err(refuse(format!(
                "the index runs from {first} to {last}, the records have {} bytes",
                records.len()
            )));
        }
        Ok(view)
    }

    /// The view of parts that have passed [`Codec::validate`].
    pub fn trusted(shape: Shape, parts: &Parts<'a>) -> View<'a> {
        View::new(shape, parts).expect("the parts have been validated")
    }

    /// Where record `r` begins. (Saturates on hosts whose addresses are too short: such a file cannot be mapped.)
    fn start(&self, r: usize) -> usize {
        (u32::from_le_bytes(self.index[r]) as usize).saturating_mul(UNIT)
    }

    /// The bytes of record `r`, or `None` when the index is not in order there.
    fn get(&self, r: usize) -> Option<&'a [u8]> {
        self.records.get(self.start(r)..self.start(r + 1))
    }

    /// The bytes of record `r` = row block · records per row + place in the row block.
    ///
    /// # Panics
    /// When there is no such record; never after [`Codec::validate`] for `r < grid.records()`.
    pub fn record(&self, r: usize) -> &'a [u8] {
        &self.records[self.start(r)..self.start(r + 1)]
    }

    /// The bytes of the `i`-th record of a row block.
    pub fn record_at(&self, block: usize, i: usize) -> &'a [u8] {
        self.record(block * self.grid.records_per_row + i)
    }

    /// All records of a row block, one after the other.
    pub fn row_block(&self, block: usize) -> &'a [u8] {
        let r = block * self.grid.records_per_row;
        &self.records[self.start(r)..self.start(r + self.grid.records_per_row)]
    }
}

/// Byte planes, 3-bit codes into a small table, and a short patch list.
pub struct Pairlut;

impl Codec for Pairlut {
    fn format(&self) -> Format {
        Format::Pairlut
    }

    fn id(&self) -> &'static str {
        "pairlut.1"
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["records", "index"]
    }

    fn encode_while(
        &self,
        shape: Shape,
        src: &[u16],
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Option<Vec<Vec<u8>>> {
        encode::encode(shape, src, go_on)
    }

    fn validate(&self, shape: Shape, parts: &Parts<'_>) -> Result<()> {
        validate::validate(shape, parts)
    }

    fn decode_rows(&self, shape: Shape, parts: &Parts<'_>, rows: Range<u32>, out: &mut [u16]) {
        let view = View::trusted(shape, parts);
        let cols = shape.cols as usize;
        let rows = rows.start as usize..rows.end as usize;
        assert_eq!(out.len(), rows.len() * cols, "room for {rows:?} of {cols} columns");
        if rows.is_empty() {
            return;
        }
        // The first row block may be entered in its middle; all others are whole but the last.
        let first = rows.start / TILE_ROWS;
        let head = ((first + 1) * TILE_ROWS).min(rows.end) - rows.start;
        let (out, rest) = out.split_at_mut(head * cols);
        decode_block(&view, first, rows.start % TILE_ROWS, out);
        rest.par_chunks_mut(TILE_ROWS * cols)
            .with_min_len(blocks_per_task(&view.grid))
            .enumerate()
            .for_each(|(i, out)| decode_block(&view, first + 1 + i, 0, out));
    }

    fn breakdown(&self, shape: Shape, parts: &Parts<'_>) -> Breakdown {
        let view = View::trusted(shape, parts);
        let mut sum = Breakdown { index: parts.0[1].len() as u64, ..Breakdown::default() };
        for r in 0..view.grid.records() as usize {
            let record = view.record(r);
            let header = Header::read(record).expect("the record has been validated");
            let tiles = view.grid.tiles_in(r % view.grid.records_per_row);
            let bytes = tiles * header.mode.tile_bytes();
            let low = if header.mode == Mode::Raw { bytes } else { tiles * TILE };
            let patches = usize::from(header.ends[RECORD_TILES - 1]) * header.patch_bytes();
            sum.low += low as u64;
            sum.codes += (bytes - low) as u64;
            sum.patches += patches as u64;
            sum.tables += header.mode.header_bytes() as u64;
            sum.padding += (record.len() - header.payload_bytes(tiles)) as u64;
        }
        sum
    }

    fn lossless(&self) -> bool {
        true
    }
}

/// Decodes the rows from `skip` on of a row block into `out` (row-major, whole rows).
fn decode_block(view: &View<'_>, block: usize, skip: usize, out: &mut [u16]) {
    let mut words = [0; RECORD];
    let cols = view.grid.shape.cols as usize;
    for i in 0..view.grid.records_per_row {
        let tiles = view.grid.tiles_in(i);
        let words = &mut words[..tiles * TILE];
        simd::decode_record(view.record_at(block, i), tiles, words);
        for (t, tile) in words.as_chunks::<TILE>().0.iter().enumerate() {
            let from = (RECORD_TILES * i + t) * TILE_COLS;
            scatter(tile, skip, &mut out[from..], cols, (cols - from).min(TILE_COLS));
        }
    }
}

/// Row blocks that are worth handing to another thread: some 64 records.
fn blocks_per_task(grid: &Grid) -> usize {
    64_usize.div_ceil(grid.records_per_row)
}

fn refuse(why: impl Into<String>) -> Error {
    Error::bad_file("cannot use a pairlut tensor", why, "pack the model again")
}
