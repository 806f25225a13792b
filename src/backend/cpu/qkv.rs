//! `Qkv`: norm, the three projections, head norms, rotation, and the new keys and values into the cache.

use rayon::prelude::*;

use super::matvec::{BLOCK, Matrix};
use super::{Cpu, norm, product};
use crate::error::Result;
use crate::model::op::{Linear, Step, WeightId};

/// The weights of the op.
pub(super) struct Qkv {
    pub layer: u16,
    pub norm: WeightId,
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub q_norm: Option<WeightId>,
    pub k_norm: Option<WeightId>,
}

impl Cpu {
    /// `query[n][heads·head_dim] ←`, and n more tokens in the cache of the layer.
    pub(super) fn qkv(&mut self, op: &Qkv, step: &Step<'_>) -> Result<()> {
        let n = step.input.len();
        let layer = usize::from(op.layer);
        self.check_cached(layer, step.pos)?;
        self.norm_into_strips(op.norm, n);

        let source = self.weights.clone();
        let matrices = [op.q, op.k, op.v].map(|l| Matrix::new(&source.weight(l.w)));
        let starts = product::all(
            &self.pool,
            self.math,
            &matrices,
            &self.bufs.strips,
            n,
            &mut self.bufs.stage,
        );

        let c = &self.program.config;
        let dim = c.head_dim as usize;
        let vectors = &self.vectors;
        let [q_bias, k_bias, v_bias] = [op.q, op.k, op.v].map(|l| vectors.bias(l));
        let (q_norm, k_norm) =
            (op.q_norm.map(|id| vectors.get(id)), op.k_norm.map(|id| vectors.get(id)));
        let (rope, eps) = (&self.rope, c.norm_eps);
        let stage = &self.bufs.stage;
        let turn = |row: &mut [f32], norm: Option<&[f32]>, pos: u32| {
            let (cos, sin) = rope.row(pos);
            for head in row.chunks_exact_mut(dim) {
                if let Some(weight) = norm {
                    norm::in_place(head, weight, eps);
                }
                rotate(head, cos, sin);
            }
        };
        let token = |t: usize, q: &mut [f32], k: &mut [f32], v: &mut [f32]| {
            product::token(&stage[starts[0] * n * BLOCK..], n, t, q_bias, q);
            product::token(&stage[starts[1] * n * BLOCK..], n, t, k_bias, k);
            product::token(&stage[starts[2] * n * BLOCK..], n, t, v_bias, v);
            turn(q, q_norm, step.pos + t as u32);
            turn(k, k_norm, step.pos + t as u32);
        };
        let kv = c.kv_heads as usize * dim;
        let attention = c.heads as usize * dim;
        let (query, keys, values) =
            (&mut self.bufs.query[..n * attention], &mut self.bufs.keys, &mut self.bufs.values);
        let (keys, values) = (&mut keys[..n * kv], &mut values[..n * kv]);
        if n == 1 {
            token(0, query, keys, values);
        } else {
            query
                .par_chunks_exact_mut(attention)
                .zip(keys.par_chunks_exact_mut(kv))
                .zip(values.par_chunks_exact_mut(kv))
                .enumerate()
                .for_each(|(t, ((q, k), v))| token(t, q, k, v));
        }
        self.cache.write(layer, step.pos, keys, values);
        Ok(())
    }
}

/// Turns the pairs (xᵢ, xᵢ₊ₕ) of a head, h pairs in all: the head's first 2h dimensions.
fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    let (first, rest) = head.split_at_mut(half);
    for (((a, b), cos), sin) in first.iter_mut().zip(&mut rest[..half]).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
