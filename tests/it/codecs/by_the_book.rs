//! A reader of `pairlut.1` written from the text of FORMAT.md, element by element. It shares nothing with the crate.

use snug::codec::Shape;

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
            let count = if i + 1 < records_per_row { 4 } else { tiles - 4 * (records_per_row - 1) };
            for tile in 0..count {
                for l in 0..32 {
                    for s in 0..4 {
                        for j in 0..8 {
                            let row = 16 * block + l / 4 + 8 * (j / 2 % 2);
                            let col =
                                64 * (4 * i + tile) + 16 * (l % 4) + 4 * s + j % 2 + 2 * (j / 4);
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
