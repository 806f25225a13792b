//! The rules of the layout, all of them. What passes here needs no bounds check anywhere.

use std::ops::Range;

use rayon::prelude::*;

use super::fragment::{position, row_col};
use super::{
    Grid, Header, Mode, RECORD_TILES, TILE, TILE_COLS, TILE_ROWS, View, blocks_per_task, refuse,
};
use crate::codec::{Parts, Shape};
use crate::error::Result;

/// See [`crate::codec::Codec::validate`].
pub(super) fn validate(shape: Shape, parts: &Parts<'_>) -> Result<()> {
    let view = View::new(shape, parts)?;
    let edges = Edges::new(&view.grid);
    let fault = (0..view.grid.row_blocks)
        .into_par_iter()
        .with_min_len(blocks_per_task(&view.grid))
        .find_map_first(|block| {
            (0..view.grid.records_per_row).find_map(|i| {
                check_record(&view, &edges, block, i).err().map(|why| (block, i, why))
            })
        });
    match fault {
        None => Ok(()),
        Some((block, i, why)) => Err(refuse(format!(
            "record {} (rows from {}, columns from {}): {why}",
            block * view.grid.records_per_row + i,
            block * TILE_ROWS,
            i * RECORD_TILES * TILE_COLS
        ))),
    }
}

type Check = std::result::Result<(), String>;

fn check(rule: bool, why: impl FnOnce() -> String) -> Check {
    if rule { Ok(()) } else { Err(why()) }
}

fn check_record(view: &View<'_>, edges: &Edges, block: usize, i: usize) -> Check {
    let grid = &view.grid;
    let tiles = grid.tiles_in(i);
    let record =
        view.get(block * grid.records_per_row + i).ok_or("the index is not in ascending order")?;
    let header = Header::read(record).ok_or("the header has unknown bits, or is cut short")?;
    let want = header.record_bytes(tiles);
    check(record.len() == want, || {
        format!("its header asks for {want} bytes, the index gives {}", record.len())
    })?;
    check_header(&header, tiles, record)?;

    let blocks = header.mode.header_bytes();
    let patches = blocks + tiles * header.mode.tile_bytes();
    let end = header.payload_bytes(tiles);
    for t in 0..tiles {
        let edge = edges.of(grid, block, RECORD_TILES * i + t);
        let at = |k: usize| patches + k * header.patch_bytes();
        let of_tile = header.patch_range(t);
        let bytes = &record[at(of_tile.start)..at(of_tile.end)];
        check_patches(bytes, header.wide, edge).map_err(|why| format!("tile {t}: {why}"))?;
        if let Some(edge) = edge {
            let tile = &record[blocks + t * header.mode.tile_bytes()..][..header.mode.tile_bytes()];
            check(edge.padding(header.mode).is_clear_in(tile), || {
                format!("tile {t}: padding is not zero")
            })?;
        }
    }
    check(record[end..].iter().all(|&b| b == 0), || "its last bytes are not zero".into())
}

fn check_header(header: &Header, tiles: usize, record: &[u8]) -> Check {
    for t in 0..RECORD_TILES {
        let Range { start, end } = header.patch_range(t);
        check(start <= end && end - start <= if t < tiles { TILE } else { 0 }, || {
            format!("tile {t} has patches {start} to {end}")
        })?;
    }
    let table = &record[8..header.mode.header_bytes()];
    let (table, spare) = table.split_at(header.mode.entries());
    check(spare.iter().all(|&b| b == 0), || "unused header bytes are not zero".into())?;
    if header.mode == Mode::Raw {
        return check(!header.wide && !header.shifted && header.ends == [0; RECORD_TILES], || {
            "a raw record has patches or flags".into()
        });
    }
    check(!header.shifted || table[0] & 0x7f != 0, || {
        format!(
            "code 0 of a shifted record is {:#04x}, which decodes padding to infinity",
            table[0]
        )
    })
}

/// Positions ascend, every XOR changes something, spare bits are zero, and no padding is patched.
fn check_patches(bytes: &[u8], wide: bool, edge: Option<&Edge>) -> Check {
    if wide {
        let patches = bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b));
        check_list(patches, 0x00ff_0000, edge)
    } else {
        let patches = bytes.as_chunks().0.iter().map(|&b| u32::from(u16::from_le_bytes(b)));
        check_list(patches, 0x0000_fc00, edge)
    }
}

fn check_list(patches: impl Iterator<Item = u32>, xor: u32, edge: Option<&Edge>) -> Check {
    let mut least = 0;
    for (k, patch) in patches.enumerate() {
        let p = patch & 0x3ff;
        if p < least || patch & xor == 0 || patch & !(xor | 0x3ff) != 0 {
            return Err(format!("patch {k} ({patch:#x}) is out of order, empty or malformed"));
        }
        if edge.is_some_and(|edge| !edge.is_real(p as usize)) {
            return Err(format!("patch {k} ({patch:#x}) is in the padding"));
        }
        least = p + 1;
    }
    Ok(())
}

/// The bits of a tile that must be zero.
struct Mask(Vec<u8>);

impl Mask {
    fn is_clear_in(&self, tile: &[u8]) -> bool {
        tile.iter().zip(&self.0).fold(0, |any, (byte, mask)| any | byte & mask) == 0
    }
}

/// The padding of a tile that reaches over the weight's right or lower edge.
struct Edge {
    rows: usize,
    cols: usize,
    masks: [Mask; 3],
}

impl Edge {
    fn new(rows: usize, cols: usize) -> Edge {
        let mut edge = Edge {
            rows,
            cols,
            masks: [Mode::Bits3, Mode::Bits4, Mode::Raw]
                .map(|mode| Mask(vec![0; mode.tile_bytes()])),
        };
        for row in 0..TILE_ROWS {
            for col in 0..TILE_COLS {
                if row >= rows || col >= cols {
                    edge.add(position(row, col));
                }
            }
        }
        edge
    }

    /// Adds the bits of the element at position p to the masks.
    fn add(&mut self, p: usize) {
        let (step, lane, j) = (2 * (p / 512) + p / 8 % 2, p / 16 % 32, p % 8);
        let nibble = |plane: usize| (TILE + 4 * (32 * plane + lane) + j / 2, 4 * (j % 2));
        let [bits3, bits4, raw] = &mut self.masks;
        bits3.0[p] = 0xff;
        bits4.0[p] = 0xff;
        let (at, bit) = nibble(step);
        bits4.0[at] |= 0xf << bit;
        if step < 3 {
            bits3.0[at] |= 0x7 << bit;
        } else {
            for plane in 0..3 {
                let (at, bit) = nibble(plane);
                bits3.0[at] |= 0x8 << bit;
            }
        }
        raw.0[512 * step + 16 * lane + 2 * j..][..2].fill(0xff);
    }

    fn padding(&self, mode: Mode) -> &Mask {
        &self.masks[mode as usize]
    }

    fn is_real(&self, p: usize) -> bool {
        let (row, col) = row_col(p);
        row < self.rows && col < self.cols
    }
}

/// The kinds of edge tile a grid has.
struct Edges {
    right: Option<Edge>,
    bottom: Option<Edge>,
    corner: Option<Edge>,
}

impl Edges {
    fn new(grid: &Grid) -> Edges {
        let rows = grid.rows_in(grid.row_blocks - 1);
        let cols = grid.shape.cols as usize - TILE_COLS * (grid.tiles - 1);
        let (short, narrow) = (rows < TILE_ROWS, cols < TILE_COLS);
        Edges {
            right: narrow.then(|| Edge::new(TILE_ROWS, cols)),
            bottom: short.then(|| Edge::new(rows, TILE_COLS)),
            corner: (short || narrow).then(|| Edge::new(rows, cols)),
        }
    }

    /// The edge of a tile, if it has padding.
    fn of(&self, grid: &Grid, block: usize, tile: usize) -> Option<&Edge> {
        match (block + 1 == grid.row_blocks, tile + 1 == grid.tiles) {
            (true, true) => self.corner.as_ref(),
            (true, false) => self.bottom.as_ref(),
            (false, true) => self.right.as_ref(),
            (false, false) => None,
        }
    }
}
