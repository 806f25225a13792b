//! Products of whole matrices: row blocks spread over the threads, results in a stage, tokens taken from it.
//!
//! The stage is `[row block][token][16]`: a thread writes whole blocks, so no two touch the same memory.

use super::matvec::{BLOCK, Math, Matrix, Strip};
use super::pool::Pool;

/// Row blocks of several matrices with the same input, one after the other, in one fork. Returns the first row block
/// of each.
pub fn all<const N: usize>(
    pool: &Pool,
    math: Math,
    matrices: &[Matrix<'_>; N],
    strips: &[Strip],
    n: usize,
    stage: &mut [f32],
) -> [usize; N] {
    let mut starts = [0; N];
    let mut blocks = 0;
    for (start, matrix) in starts.iter_mut().zip(matrices) {
        *start = blocks;
        blocks += matrix.blocks();
    }
    let strips = &strips[..n * matrices[0].strips()];
    pool.pieces(&mut stage[..blocks * n * BLOCK], n * BLOCK, |scratch, block, out| {
        let i = starts.iter().rposition(|start| *start <= block).unwrap_or(0);
        math.block(&matrices[i], block - starts[i], strips, n, &mut scratch.product, out);
    });
    starts
}

/// `row ←` token `t` of a stage, plus the bias.
#[inline]
pub fn token(stage: &[f32], n: usize, t: usize, bias: Option<&[f32]>, row: &mut [f32]) {
    each(stage, n, t, bias, row, |x, y| *x = y);
}

/// `row +=` token `t` of a stage, plus the bias.
#[inline]
pub fn add_token(stage: &[f32], n: usize, t: usize, bias: Option<&[f32]>, row: &mut [f32]) {
    each(stage, n, t, bias, row, |x, y| *x += y);
}

#[inline(always)]
fn each(
    stage: &[f32],
    n: usize,
    t: usize,
    bias: Option<&[f32]>,
    row: &mut [f32],
    put: impl Fn(&mut f32, f32),
) {
    let blocks = stage.chunks_exact(n * BLOCK).map(|block| &block[t * BLOCK..][..BLOCK]);
    match bias {
        None => {
            for (row, block) in row.chunks_mut(BLOCK).zip(blocks) {
                row.iter_mut().zip(block).for_each(|(x, y)| put(x, *y));
            }
        }
        Some(bias) => {
            for ((row, bias), block) in row.chunks_mut(BLOCK).zip(bias.chunks(BLOCK)).zip(blocks) {
                row.iter_mut().zip(block).zip(bias).for_each(|((x, y), b)| put(x, y + b));
            }
        }
    }
}
