//! `GateUp`: norm, both projections, and the activation of one times the other.

use super::matvec::{BLOCK, Matrix};
use super::simd::{Kernel, Lanes};
use super::{Cpu, product};
use crate::error::Result;
use crate::model::config::Activation;
use crate::model::op::{Linear, Step, WeightId};
use crate::num::func;

impl Cpu {
    /// `hidden[n][ffn] ← act(gate·x̂ + bias) ∘ (up·x̂ + bias)`, x̂ = RMSNorm of the residual.
    pub(super) fn gate_up(
        &mut self,
        norm: WeightId,
        gate: Linear,
        up: Linear,
        step: &Step<'_>,
    ) -> Result<()> {
        let n = step.input.len();
        self.norm_into_strips(norm, n);
        let source = self.weights.clone();
        let [gate_w, up_w] = [gate, up].map(|l| Matrix::new(&source.weight(l.w)));
        let (gate_bias, up_bias) = (self.vectors.bias(gate), self.vectors.bias(up));
        let (math, activation) = (self.math, self.program.config.activation);
        let strips = &self.bufs.strips[..n * gate_w.strips()];
        let size = n * BLOCK;
        let stage = &mut self.bufs.stage[..gate_w.blocks() * size];
        self.pool.pieces(stage, size, |scratch, block, out| {
            let side = &mut scratch.side[..size];
            math.block(&gate_w, block, strips, n, &mut scratch.product, side);
            math.block(&up_w, block, strips, n, &mut scratch.product, out);
            for (bias, values) in [(gate_bias, &mut *side), (up_bias, &mut *out)] {
                let Some(bias) = bias else { continue };
                for token in values.chunks_exact_mut(BLOCK) {
                    token.iter_mut().zip(&bias[block * BLOCK..]).for_each(|(x, b)| *x += b);
                }
            }
            math.isa.run(Gate { activation, gate: side, out });
        });
        let (ffn, stage) = (gate_w.shape.rows as usize, &self.bufs.stage);
        for (t, row) in self.bufs.hidden.chunks_exact_mut(ffn).take(n).enumerate() {
            product::token(stage, n, t, None, row);
        }
        Ok(())
    }
}

/// `out ← act(gate) ∘ out`
struct Gate<'a> {
    activation: Activation,
    gate: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let both = self.out.iter_mut().zip(self.gate);
        match self.activation {
            Activation::Silu => both.for_each(|(out, gate)| *out *= func::silu(*gate)),
            Activation::GeluTanh => both.for_each(|(out, gate)| *out *= func::gelu_tanh(*gate)),
        }
    }
}
