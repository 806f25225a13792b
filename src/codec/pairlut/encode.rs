//! Choosing and writing records.
//!
//! Two passes. The first counts the sign-and-exponent values of a record and decides from the counts alone how to
//! store it; that fixes the size of every record, and with it the index. The second writes all records in place.
//! Neither depends on the number of threads.

use rayon::prelude::*;

use super::fragment::gather;
use super::{Grid, Header, Mode, RECORD_TILES, TILE, TILE_COLS, TILE_ROWS, UNIT, blocks_per_task};
use crate::codec::Shape;

/// Values of sign and exponent together.
const EXPONENTS: usize = 512;

/// What was decided for one record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub mode: Mode,
    pub wide: bool,
    pub shifted: bool,
    /// Codes that occur; the table's other entries are there to fill it.
    pub used: u8,
    pub patches: u16,
    pub table: [u8; 16],
}

impl Plan {
    const RAW: Plan =
        Plan { mode: Mode::Raw, wide: false, shifted: false, used: 0, patches: 0, table: [0; 16] };

    fn header(&self) -> Header {
        Header {
            mode: self.mode,
            wide: self.wide,
            shifted: self.shifted,
            ends: [self.patches; RECORD_TILES],
        }
    }

    /// What an encoder minimises: bytes, then patches (they cost time).
    fn cost(&self, tiles: usize) -> (usize, u16) {
        (self.header().record_bytes(tiles), self.patches)
    }
}

/// Asked for every row block, by every thread.
pub(super) type GoOn<'a> = &'a (dyn Fn() -> bool + Sync);

/// See [`crate::codec::Codec::encode_while`].
pub(super) fn encode(shape: Shape, src: &[u16], go_on: GoOn<'_>) -> Option<Vec<Vec<u8>>> {
    assert_eq!(
        src.len() as u64,
        shape.len(),
        "weights of a {} × {} matrix",
        shape.rows,
        shape.cols
    );
    if shape.is_empty() {
        return None;
    }
    let grid = Grid::new(shape);
    let plans = choose(&grid, src, |_| true, go_on);
    if !go_on() {
        return None;
    }
    let index = lay_out(&grid, &plans)?;
    let bytes = UNIT as u64 * u64::from(*index.last()?) + 4 * index.len() as u64;
    (bytes < 2 * shape.len()).then(|| write(&grid, src, &plans, &index, go_on))
}

/// Decides every record. Plans that `allow` turns down are not used; where it allows none, the record stays raw. Row
/// blocks that are reached after `go_on` said no get no plans.
pub(super) fn choose(
    grid: &Grid,
    src: &[u16],
    allow: impl Fn(&Plan) -> bool + Sync,
    go_on: GoOn<'_>,
) -> Vec<Plan> {
    let cols = grid.shape.cols as usize;
    src.par_chunks(TILE_ROWS * cols)
        .with_min_len(blocks_per_task(grid))
        .flat_map_iter(|rows| {
            let allow = &allow;
            let records = if go_on() { grid.records_per_row } else { 0 };
            (0..records).map(move |i| {
                let from = i * RECORD_TILES * TILE_COLS;
                let counts = count(rows, cols, from..from + grid.cols_in(i));
                plan(&counts, grid.tiles_in(i), allow)
            })
        })
        .collect()
}

/// The index of the planned records, or `None` when a u32 cannot hold it.
pub(super) fn lay_out(grid: &Grid, plans: &[Plan]) -> Option<Vec<u32>> {
    let mut index = Vec::with_capacity(plans.len() + 1);
    let mut end = 0u32;
    index.push(end);
    for (r, plan) in plans.iter().enumerate() {
        let bytes = plan.header().record_bytes(grid.tiles_in(r % grid.records_per_row));
        end = end.checked_add((bytes / UNIT) as u32)?;
        index.push(end);
    }
    Some(index)
}

/// Writes the planned records and their index; nothing into row blocks that are reached after `go_on` said no.
pub(super) fn write(
    grid: &Grid,
    src: &[u16],
    plans: &[Plan],
    index: &[u32],
    go_on: GoOn<'_>,
) -> Vec<Vec<u8>> {
    let starts: Vec<usize> = index.iter().map(|&units| units as usize * UNIT).collect();
    let mut records = vec![0; starts[plans.len()]];
    let mut blocks = Vec::with_capacity(grid.row_blocks);
    let mut rest = records.as_mut_slice();
    for range in starts[..plans.len()].chunks(grid.records_per_row).scan(0, |r, chunk| {
        *r += chunk.len();
        Some(chunk[0]..starts[*r])
    }) {
        let (block, after) = rest.split_at_mut(range.len());
        blocks.push(block);
        rest = after;
    }
    let cols = grid.shape.cols as usize;
    blocks
        .into_par_iter()
        .zip(plans.par_chunks(grid.records_per_row))
        .zip(src.par_chunks(TILE_ROWS * cols))
        .with_min_len(blocks_per_task(grid))
        .filter(|_| go_on())
        .for_each(|((mut out, plans), rows)| {
            for (i, plan) in plans.iter().enumerate() {
                let bytes = plan.header().record_bytes(grid.tiles_in(i));
                let (record, after) = out.split_at_mut(bytes);
                write_record(grid, plan, rows, i, record);
                out = after;
            }
        });
    vec![records, index.iter().flat_map(|units| units.to_le_bytes()).collect()]
}

/// Counts sign-and-exponent values in some columns of a row block.
fn count(rows: &[u16], stride: usize, cols: std::ops::Range<usize>) -> [u16; EXPONENTS] {
    // Four tables: equal neighbours would wait for each other's increments in one.
    let mut counts = [[0u16; EXPONENTS]; 4];
    for row in rows.chunks(stride) {
        let (quads, rest) = row[cols.clone()].as_chunks::<4>();
        for quad in quads {
            for (table, w) in counts.iter_mut().zip(quad) {
                table[usize::from(w >> 7)] += 1;
            }
        }
        for w in rest {
            counts[0][usize::from(w >> 7)] += 1;
        }
    }
    let [mut sum, others @ ..] = counts;
    for other in others {
        for (a, b) in sum.iter_mut().zip(other) {
            *a += b;
        }
    }
    sum
}

/// The cheapest plan for these counts among those allowed; the first of equals.
fn plan(counts: &[u16; EXPONENTS], tiles: usize, allow: impl Fn(&Plan) -> bool) -> Plan {
    // Exponent 0xFF of either sign: one more would not fit.
    let may_shift = counts[0x0ff] == 0 && counts[0x1ff] == 0;
    let shifts: &[bool] = if may_shift { &[false, true] } else { &[false] };
    let mut best = allow(&Plan::RAW).then_some(Plan::RAW);
    let beats = |plan: &Plan, best: &Option<Plan>| {
        best.is_none_or(|best| plan.cost(tiles) < best.cost(tiles))
    };
    for &shifted in shifts {
        let ranked = Ranked::new(counts, shifted);
        for mode in [Mode::Bits3, Mode::Bits4] {
            let least = ranked.beyond(mode.entries());
            for wide in [false, true] {
                // No table leaves fewer patches than the most frequent values do.
                let bound = Plan { mode, wide, patches: least, ..Plan::RAW };
                if beats(&bound, &best) {
                    let plan = with_table(&ranked, mode, wide, shifted);
                    if allow(&plan) && beats(&plan, &best) {
                        best = Some(plan);
                    }
                }
            }
        }
    }
    best.unwrap_or(Plan::RAW)
}

/// The high bytes that occur, the most frequent first, of equals the smaller one.
struct Ranked {
    /// Count · 256 + 255 - value, falling.
    keys: [u32; 256],
    len: usize,
}

impl Ranked {
    fn new(counts: &[u16; EXPONENTS], shifted: bool) -> Ranked {
        let mut moved = [0; EXPONENTS];
        let shift = usize::from(shifted);
        moved[shift..].copy_from_slice(&counts[..EXPONENTS - shift]);
        let mut ranked = Ranked { keys: [0; 256], len: 0 };
        for (h, pair) in moved.as_chunks::<2>().0.iter().enumerate() {
            let n = u32::from(pair[0] + pair[1]);
            if n > 0 {
                ranked.keys[ranked.len] = n << 8 | (255 - h as u32);
                ranked.len += 1;
            }
        }
        ranked.keys[..ranked.len].sort_unstable_by(|a, b| b.cmp(a));
        ranked
    }

    /// Elements whose value is not among the `n` most frequent.
    fn beyond(&self, n: usize) -> u16 {
        self.keys[..self.len].iter().skip(n).map(|key| (key >> 8) as u16).sum()
    }

    /// Values and their counts.
    fn iter(&self) -> impl Iterator<Item = (u8, u16)> {
        self.keys[..self.len].iter().map(|key| (255 - *key as u8, (key >> 8) as u16))
    }
}

/// The plan with the best table for a mode and a kind of patch.
///
/// The most frequent values leave the fewest patches. Narrow ones reach a value only from an entry with the same
/// top two bits, so there an entry is set aside for each of the four groups that occurs.
fn with_table(ranked: &Ranked, mode: Mode, wide: bool, shifted: bool) -> Plan {
    let mut awaited = [false; 4];
    if !wide {
        ranked.iter().for_each(|(h, _)| awaited[group(h)] = true);
    }
    let mut set_aside = awaited.iter().filter(|&&group| group).count();
    let (mut table, mut used, mut patches) = ([0; 16], 0, 0);
    for (h, n) in ranked.iter() {
        let first = std::mem::take(&mut awaited[group(h)]);
        set_aside -= usize::from(first);
        if first || used + set_aside < mode.entries() {
            table[used] = h;
            used += 1;
        } else {
            patches += n;
        }
    }
    order(&mut table[..mode.entries()], &mut used, shifted);
    Plan { mode, wide, shifted, used: used as u8, patches, table }
}

/// Sorts the used entries, so that equal records have equal bytes whatever chose them, and makes code 0 fit for
/// padding: a shifted record whose code 0 had a zero exponent would decode padding to an infinity.
fn order(table: &mut [u8], used: &mut usize, shifted: bool) {
    let zero_exponent = |h: u8| h & 0x7f == 0;
    table[..*used].sort_unstable_by_key(|&h| (shifted && zero_exponent(h), h));
    if shifted && zero_exponent(table[0]) {
        // Only the two zeros occur, so there is room.
        table.rotate_right(1);
        table[0] = 1;
        *used += 1;
    }
}

/// High bytes a narrow patch can exchange: those with the same top two bits.
fn group(h: u8) -> usize {
    usize::from(h >> 6)
}

fn write_record(grid: &Grid, plan: &Plan, rows: &[u16], i: usize, record: &mut [u8]) {
    let cols = grid.shape.cols as usize;
    let tiles = grid.tiles_in(i);
    let mut header = plan.header();
    let (head, body) = record.split_at_mut(plan.mode.header_bytes());
    let (blocks, patches) = body.split_at_mut(tiles * plan.mode.tile_bytes());
    let mut patches = Patches { rest: patches, count: 0, wide: plan.wide };
    let shift = header.shift();
    let fill = (u16::from(plan.table[0]) << 8).wrapping_sub(shift);
    let mut words = [0; TILE];
    for (t, block) in blocks.chunks_exact_mut(plan.mode.tile_bytes()).enumerate() {
        let from = (RECORD_TILES * i + t) * TILE_COLS;
        let width = (cols - from).min(TILE_COLS);
        gather(&rows[from..], cols, rows.len() / cols, width, fill, &mut words);
        if plan.mode == Mode::Raw {
            write_raw(&words, block);
        } else {
            words.iter_mut().for_each(|w| *w = w.wrapping_add(shift));
            write_tile(plan, &words, block, &mut patches);
        }
        header.ends[t..].fill(patches.count);
    }
    debug_assert_eq!(patches.count, plan.patches, "patches planned and written");
    head[..8].copy_from_slice(&header.to_bytes());
    let entries = plan.mode.entries();
    head[8..8 + entries].copy_from_slice(&plan.table[..entries]);
}

/// The patches of a record, written one after the other.
struct Patches<'a> {
    rest: &'a mut [u8],
    count: u16,
    wide: bool,
}

impl Patches<'_> {
    fn push(&mut self, position: usize, xor: u8) {
        let rest = std::mem::take(&mut self.rest);
        self.rest = if self.wide {
            let (to, rest) = rest.split_at_mut(4);
            to.copy_from_slice(&(position as u32 | u32::from(xor) << 16).to_le_bytes());
            rest
        } else {
            let (to, rest) = rest.split_at_mut(2);
            to.copy_from_slice(&(position as u16 | u16::from(xor) << 10).to_le_bytes());
            rest
        };
        self.count += 1;
    }
}

/// A raw tile keeps the k-steps of a lane 512 bytes apart.
fn write_raw(words: &[u16; TILE], block: &mut [u8]) {
    for (unit, eight) in words.as_chunks::<8>().0.iter().enumerate() {
        let (half, lane, odd) = (unit / 64, unit / 2 % 32, unit % 2);
        let to = 512 * (2 * half + odd) + 16 * lane;
        for (pair, w) in block[to..to + 16].as_chunks_mut::<2>().0.iter_mut().zip(eight) {
            *pair = w.to_le_bytes();
        }
    }
}

/// Set in a code byte when the element is in the table.
const HIT: u8 = 0x80;

fn write_tile(plan: &Plan, words: &[u16; TILE], block: &mut [u8], patches: &mut Patches<'_>) {
    let (low, planes) = block.split_at_mut(TILE);
    let mut high = [0; TILE];
    for ((low, high), w) in low.iter_mut().zip(&mut high).zip(words) {
        [*low, *high] = w.to_le_bytes();
    }
    let table = &plan.table[..usize::from(plan.used)];
    let mut codes = [0; TILE];
    find(&high, table, &mut codes);

    // The code of a missed element: an entry of its group where there is one.
    let mut stand_in = [0; 4];
    for (code, &h) in table.iter().enumerate().rev() {
        stand_in[group(h)] = code as u8;
    }
    for (i, eight) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mut missed = !u64::from_le_bytes(*eight) & (u64::from(HIT) * 0x0101_0101_0101_0101);
        while missed != 0 {
            let j = missed.trailing_zeros() as usize / 8;
            missed &= missed - 1;
            let h = high[8 * i + j];
            eight[j] = stand_in[group(h)];
            patches.push(8 * i + j, h ^ table[usize::from(eight[j])]);
        }
    }
    pack(plan.mode, &codes, planes);
}

/// Looks up every high byte: its code with [`HIT`] set, or 0. Written as whole-vector comparisons with one entry
/// at a time; a table of 256 codes would need a load for every element.
fn find(high: &[u8; TILE], table: &[u8], codes: &mut [u8; TILE]) {
    for (codes, high) in codes.as_chunks_mut::<64>().0.iter_mut().zip(high.as_chunks::<64>().0) {
        for (code, &entry) in table.iter().enumerate() {
            let found = HIT | code as u8;
            for (c, &h) in codes.iter_mut().zip(high) {
                *c |= if h == entry { found } else { 0 };
            }
        }
    }
}

/// Packs the codes of a tile into the planes of its mode.
fn pack(mode: Mode, codes: &[u8; TILE], planes: &mut [u8]) {
    let mut words = [[0; 32]; 4];
    let halves = codes.as_chunks::<512>().0.iter();
    for ([even, odd], half) in words.as_chunks_mut().0.iter_mut().zip(halves) {
        for ((even, odd), unit) in
            even.iter_mut().zip(odd).zip(half.as_chunks::<8>().0.as_chunks().0)
        {
            [*even, *odd] = unit.map(|eight| nibbles(u64::from_le_bytes(eight)));
        }
    }
    if mode == Mode::Bits3 {
        // Bit b of the codes of k-step 3 goes to the spare bits of plane b.
        let [planes @ .., last] = &mut words;
        for (b, plane) in planes.iter_mut().enumerate() {
            for (word, last) in plane.iter_mut().zip(&*last) {
                *word |= (last >> b & 0x1111_1111) << 3;
            }
        }
    }
    for (to, word) in planes.as_chunks_mut().0.iter_mut().zip(words.as_flattened()) {
        *to = word.to_le_bytes();
    }
}

/// The low nibbles of eight bytes side by side.
fn nibbles(x: u64) -> u32 {
    let x = x & 0x0f0f_0f0f_0f0f_0f0f;
    let x = (x | x >> 4) & 0x00ff_00ff_00ff_00ff;
    let x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    (x | x >> 16) as u32
}
