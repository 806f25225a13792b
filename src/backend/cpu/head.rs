//! `Head`: norm and the output matrix, for the rows of logits that the step asks for.

use super::matvec::{BLOCK, Matrix};
use super::{Cpu, norm, product};
use crate::error::Result;
use crate::model::op::{Rows, Step, WeightId};

/// Tokens whose logits are computed together when all are asked for: each needs a stage as long as the vocabulary.
const TOGETHER: usize = 12;

impl Cpu {
    /// `logits[rows][vocab] ← W·RMSNorm(residual)`
    pub(super) fn head(&mut self, norm: WeightId, w: WeightId, step: &Step<'_>) -> Result<()> {
        let n = step.input.len();
        let wanted = match step.rows {
            Rows::None => n..n,
            Rows::Last => n - 1..n,
            Rows::All => 0..n,
        };
        self.logit_rows = wanted.len();
        if wanted.is_empty() {
            return Ok(());
        }
        let source = self.weights.clone();
        let matrix = Matrix::new(&source.weight(w));
        let vocab = matrix.shape.rows as usize;
        self.bufs.grow_logits(wanted.len() * vocab)?;
        let together = wanted.len().min(TOGETHER);
        if together > 1 {
            self.bufs.grow_head_stage(together * matrix.blocks() * BLOCK)?;
        }
        let weight = self.vectors.get(norm);
        let (eps, hidden) = (self.program.config.norm_eps, matrix.shape.cols as usize);
        let (isa, math, width) = (self.math.isa, self.math, matrix.strips());
        let matrices = [matrix];
        for from in wanted.clone().step_by(together) {
            let count = together.min(wanted.end - from);
            let strips = &mut self.bufs.strips[..count * width];
            for (t, strips) in strips.chunks_exact_mut(width).enumerate() {
                let x = &self.bufs.residual[(from + t) * hidden..][..hidden];
                norm::to_strips(isa, x, weight, eps, strips);
            }
            let strips = &self.bufs.strips[..count * width];
            let first = (from - wanted.start) * vocab;
            let logits = &mut self.bufs.logits[first..first + count * vocab];
            if count == 1 {
                self.pool.pieces(logits, BLOCK, |scratch, block, out| {
                    math.block(&matrices[0], block, strips, 1, &mut scratch.product, out);
                });
                continue;
            }
            let stage = &mut self.bufs.head_stage;
            product::all(&self.pool, math, &matrices, strips, count, stage);
            for (t, row) in logits.chunks_exact_mut(vocab).enumerate() {
                product::token(stage, count, t, None, row);
            }
        }
        Ok(())
    }
}
