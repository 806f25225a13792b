//! The order of elements inside a tile: what one lane of `mma.m16n8k16` holds lies together.
//!
//! Lane l = 4g + t owns rows g and g + 8 and columns 16t … 16t + 15. Its sixteen elements of one k-step pair
//! (half h of the tile: columns 16t + 8h … 16t + 8h + 7) are one unit, two columns of either row in turn:
//!
//! ```text
//!   row g     ┌ c c+1 │ c+2 c+3 │ c+4 c+5 │ c+6 c+7 ┐       c = 16t + 8h
//!   row g + 8 └ c c+1 │ c+2 c+3 │ c+4 c+5 │ c+6 c+7 ┘
//!   positions   g  g+8   g   g+8    g  g+8    g  g+8        from 512h + 16l
//! ```

use super::{TILE, TILE_COLS, TILE_ROWS};

/// Elements of one lane in one half of a tile.
const LANE: usize = 16;

/// The position of the element at `row` and `col` of a tile.
pub const fn position(row: usize, col: usize) -> usize {
    let lane = 4 * (row % 8) + col / 16;
    let half = col / 8 % 2;
    512 * half + LANE * lane + 4 * (col / 2 % 4) + 2 * (row / 8) + col % 2
}

/// The row and column of a position: the inverse of [`position`].
pub const fn row_col(p: usize) -> (usize, usize) {
    let lane = p / LANE % 32;
    let row = lane / 4 + 8 * (p / 2 % 2);
    (row, 16 * (lane % 4) + 8 * (p / 512) + 2 * (p / 4 % 4) + p % 2)
}

/// Collects a tile from row-major memory whose rows are `stride` words apart. Beyond `rows` and `cols` the tile
/// is filled with `fill`.
pub fn gather(
    src: &[u16],
    stride: usize,
    rows: usize,
    cols: usize,
    fill: u16,
    tile: &mut [u16; TILE],
) {
    if rows == TILE_ROWS && cols == TILE_COLS {
        return gather_full(src, stride, tile);
    }
    let mut flat = [fill; TILE];
    for (to, from) in flat.chunks_exact_mut(TILE_COLS).zip(src.chunks(stride)).take(rows) {
        to[..cols].copy_from_slice(&from[..cols]);
    }
    gather_full(&flat, TILE_COLS, tile);
}

fn gather_full(src: &[u16], stride: usize, tile: &mut [u16; TILE]) {
    let [first, second] = halves_mut(tile);
    for (g, (first, second)) in first.iter_mut().zip(second).enumerate() {
        let upper: &[[u16; 8]; 8] = units(src[g * stride..].first_chunk().expect(WIDE));
        let lower: &[[u16; 8]; 8] = units(src[(g + 8) * stride..].first_chunk().expect(WIDE));
        for t in 0..4 {
            first[t] = weave(upper[2 * t], lower[2 * t]);
            second[t] = weave(upper[2 * t + 1], lower[2 * t + 1]);
        }
    }
}

const WIDE: &str = "a tile is 64 columns wide";

/// Two rows of a unit, two columns of either in turn.
#[inline(always)]
fn weave(upper: [u16; 8], lower: [u16; 8]) -> [u16; LANE] {
    let [a, b, c, d, e, f, g, h] = upper;
    let [i, j, k, l, m, n, o, p] = lower;
    [a, b, i, j, c, d, k, l, e, f, m, n, g, h, o, p]
}

/// The inverse of [`weave`].
#[inline(always)]
fn unweave(unit: [u16; LANE]) -> [[u16; 8]; 2] {
    let [a, b, i, j, c, d, k, l, e, f, m, n, g, h, o, p] = unit;
    [[a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]]
}

/// The units of a tile: of each half, for each g, for each t.
fn halves(tile: &[u16; TILE]) -> &[[[[u16; LANE]; 4]; 8]; 2] {
    bytemuck::cast_ref(tile)
}

fn halves_mut(tile: &mut [u16; TILE]) -> &mut [[[[u16; LANE]; 4]; 8]; 2] {
    bytemuck::cast_mut(tile)
}

/// The units of a row of a tile.
fn units(row: &[u16; TILE_COLS]) -> &[[u16; 8]; 8] {
    bytemuck::cast_ref(row)
}

/// Writes the rows from `skip` on of a tile into row-major memory whose rows are `stride` words apart, as many as
/// `out` has room for; `cols` columns of each.
pub fn scatter(tile: &[u16; TILE], skip: usize, out: &mut [u16], stride: usize, cols: usize) {
    if skip == 0 && cols == TILE_COLS && out.len() >= (TILE_ROWS - 1) * stride + TILE_COLS {
        return scatter_full(tile, out, stride);
    }
    let mut flat = [0; TILE];
    scatter_full(tile, &mut flat, TILE_COLS);
    for (to, from) in out.chunks_mut(stride).zip(flat.chunks_exact(TILE_COLS).skip(skip)) {
        to[..cols].copy_from_slice(&from[..cols]);
    }
}

fn scatter_full(tile: &[u16; TILE], out: &mut [u16], stride: usize) {
    let [first, second] = halves(tile);
    for (g, (first, second)) in first.iter().zip(second).enumerate() {
        let mut rows = [[[0; 8]; 8]; 2];
        for t in 0..4 {
            [rows[0][2 * t], rows[1][2 * t]] = unweave(first[t]);
            [rows[0][2 * t + 1], rows[1][2 * t + 1]] = unweave(second[t]);
        }
        for (r, row) in [g, g + 8].into_iter().zip(rows) {
            out[r * stride..][..TILE_COLS].copy_from_slice(row.as_flattened());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FORMAT.md, section 3, word for word.
    fn by_the_book(l: usize, s: usize, j: usize) -> (usize, (usize, usize)) {
        let (g, t) = (l / 4, l % 4);
        let row = g + 8 * (j / 2 % 2);
        let column = 16 * t + 4 * s + (j % 2) + 2 * (j / 4);
        (512 * (s / 2) + 16 * l + 8 * (s % 2) + j, (row, column))
    }

    #[test]
    fn positions_follow_the_format() {
        for l in 0..32 {
            for s in 0..4 {
                for j in 0..8 {
                    let (p, (row, col)) = by_the_book(l, s, j);
                    assert_eq!(position(row, col), p, "lane {l}, k-step {s}, element {j}");
                    assert_eq!(row_col(p), (row, col), "position {p}");
                }
            }
        }
    }

    #[test]
    fn gather_and_scatter_follow_positions_at_every_size() {
        let stride = 67;
        let src: Vec<u16> = (0..16 * stride as u16).collect();
        for rows in 1..=16 {
            for cols in [1, 2, 7, 8, 9, 31, 63, 64] {
                let src = &src[..(rows - 1) * stride + cols];
                let mut tile = [0; TILE];
                gather(src, stride, rows, cols, 0xffff, &mut tile);
                for (p, &w) in tile.iter().enumerate() {
                    let (r, c) = row_col(p);
                    let real = r < rows && c < cols;
                    assert_eq!(w, if real { src[r * stride + c] } else { 0xffff }, "{r}, {c}");
                }
                for skip in 0..rows {
                    let mut out = vec![7; (rows - 1 - skip) * stride + cols];
                    scatter(&tile, skip, &mut out, stride, cols);
                    for (i, &w) in out.iter().enumerate() {
                        let want = if i % stride < cols { src[skip * stride + i] } else { 7 };
                        assert_eq!(w, want, "{rows} × {cols}, skip {skip}, word {i}");
                    }
                }
            }
        }
    }
}
