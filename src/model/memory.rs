//! What a loaded model takes: the widths of buffers that backends allocate by, and a plan made before loading.

use crate::model::kv::{KvFormat, KvLayout};
use crate::model::program::Program;

/// Bytes of a loaded model, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights as stored (mapped or copied).
    pub weights: u64,
    /// Cache for the whole context.
    pub kv: u64,
    /// Activations of the widest step, and the rotary table.
    pub scratch: u64,
}

impl MemoryPlan {
    /// What a model takes: `weight_bytes` as the store lists them, a cache of `context` tokens, and steps of up to
    /// `max_step` tokens.
    pub fn new(
        program: &Program,
        weight_bytes: u64,
        format: KvFormat,
        context: u32,
        max_step: u32,
    ) -> MemoryPlan {
        let kv = KvLayout::of(program, context, format);
        let rope = u64::from(context) * u64::from(program.config.rope.dims) * 4;
        MemoryPlan {
            weights: weight_bytes,
            kv: kv.bytes_per_token() * u64::from(context),
            scratch: Widths::of(program).bytes(max_step) + rope,
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.scratch
    }
}

impl KvLayout {
    /// The cache of a program.
    pub fn of(program: &Program, capacity: u32, format: KvFormat) -> KvLayout {
        let c = &program.config;
        KvLayout { layers: c.layers, heads: c.kv_heads, head_dim: c.head_dim, capacity, format }
    }
}

/// Values per token in each buffer between ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    /// `Buf::Residual`
    pub residual: usize,
    /// `Buf::Query` and `Buf::Context`
    pub attention: usize,
    /// `Buf::Hidden`
    pub hidden: usize,
    /// Keys, or values, of one token in one layer.
    pub kv: usize,
    /// `Buf::Logits`
    pub logits: usize,
}

impl Widths {
    /// The widths of a program.
    pub fn of(program: &Program) -> Widths {
        let c = &program.config;
        Widths {
            residual: c.hidden as usize,
            attention: c.heads as usize * c.head_dim as usize,
            hidden: c.ffn as usize,
            kv: c.kv_heads as usize * c.head_dim as usize,
            logits: c.vocab as usize,
        }
    }

    /// The widest input of a matrix, rounded up to whole tiles of 64 columns.
    pub fn input(&self) -> usize {
        self.residual.max(self.attention).max(self.hidden).next_multiple_of(64)
    }

    /// The most rows that one op computes before it folds them into a buffer (q with k and v, gate with up), rounded
    /// up to whole blocks of 16.
    pub fn output(&self) -> usize {
        let blocks = |n: usize| n.next_multiple_of(16);
        let qkv = blocks(self.attention) + 2 * blocks(self.kv);
        qkv.max(2 * blocks(self.hidden)).max(blocks(self.residual))
    }

    /// Bytes of all buffers for steps of up to `max_step` tokens: those between ops, one matrix input and one output,
    /// and two rows of logits (one as computed, one as the sampler changes it).
    pub fn bytes(&self, max_step: u32) -> u64 {
        let between = self.residual + 2 * self.attention + self.hidden;
        let per_token = between + self.input() + self.output();
        4 * (u64::from(max_step) * per_token as u64 + 2 * self.logits as u64)
    }
}
