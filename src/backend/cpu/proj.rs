//! `Proj`: attention output and down projection, added to the residual.

use super::matvec::{Matrix, arrange};
use super::{Cpu, product};
use crate::error::{Error, Kind, Result};
use crate::model::op::{Buf, Linear, Step};

impl Cpu {
    /// `residual[n][hidden] += W·from (+bias)`
    pub(super) fn proj(&mut self, w: Linear, from: Buf, step: &Step<'_>) -> Result<()> {
        let n = step.input.len();
        let source = self.weights.clone();
        let matrix = Matrix::new(&source.weight(w.w));
        let from = match from {
            Buf::Context => &self.bufs.context,
            Buf::Hidden => &self.bufs.hidden,
            other => {
                return Err(Error::new(
                    Kind::Failure,
                    "cannot project",
                    format!("{other:?} is not the result of attention or of the gate"),
                    "report this; it is a fault of snug",
                ));
            }
        };
        let (cols, strips) = (matrix.shape.cols as usize, matrix.strips());
        let out = &mut self.bufs.strips[..n * strips];
        self.pool.pieces(out, strips, |_, t, strips| {
            let x = &from[t * cols..(t + 1) * cols];
            arrange(cols, |c| x[c], strips);
        });
        let matrices = [matrix];
        let (strips, stage) = (&self.bufs.strips, &mut self.bufs.stage);
        product::all(&self.pool, self.math, &matrices, strips, n, stage);
        let bias = self.vectors.bias(w);
        let (hidden, stage) = (matrices[0].shape.rows as usize, &self.bufs.stage);
        for (t, row) in self.bufs.residual.chunks_exact_mut(hidden).take(n).enumerate() {
            product::add_token(stage, n, t, bias, row);
        }
        Ok(())
    }
}
