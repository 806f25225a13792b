//! Config → Program: the list of ops, said once; both backends read this and nothing else.

use crate::codec::Shape;
use crate::error::Result;
use crate::model::arch::{self, Names};
use crate::model::config::Config;
use crate::model::op::{Buf, Linear, Op, WeightId};

/// A weight the program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Its name in the file.
    pub name: String,
    /// Its shape; vectors (norms, biases) are one row.
    pub shape: Shape,
    /// What it is, for listings and memory plans.
    pub role: Role,
}

/// What a weight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The token embedding (also the head when tied).
    Embed,
    /// q, k, v matrices.
    Qkv,
    /// Attention output.
    AttnOut,
    /// gate and up matrices.
    GateUp,
    /// down matrix.
    Down,
    /// Untied output head.
    Head,
    /// Norm weights and biases.
    Vector,
}

/// What to compute.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Dimensions and switches.
    pub config: Config,
    /// In order.
    pub ops: Vec<Op>,
    /// Indexed by [`WeightId`].
    pub weights: Vec<WeightSpec>,
}

impl Program {
    /// Reads the text of a config.json and lists what to compute. Errors as [`arch::read`].
    pub fn read(config_json: &str) -> Result<Program> {
        let config = arch::read(config_json)?;
        let names = arch::find(&config.model_type).map_or(&arch::llama::NAMES, |a| a.names);
        Ok(Program::new(config, names))
    }

    /// Embedding, then for each layer q/k/v, attention, its projection, gate and up, down; then the head.
    pub fn new(config: Config, names: &Names) -> Program {
        let mut b = Builder { names, weights: Vec::new() };
        let c = &config;
        let (attn, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let table = b.matrix(names.embed.into(), c.vocab, c.hidden, Role::Embed);
        let mut ops = vec![Op::Embed { table }];
        for i in 0..c.layers {
            let layer = i as u16;
            ops.push(Op::Qkv {
                layer,
                norm: b.vector(i, names.attn_norm, c.hidden),
                q: b.linear(i, names.q, attn, c.hidden, c.qkv_bias, Role::Qkv),
                k: b.linear(i, names.k, kv, c.hidden, c.qkv_bias, Role::Qkv),
                v: b.linear(i, names.v, kv, c.hidden, c.qkv_bias, Role::Qkv),
                q_norm: c.qk_norm.then(|| b.vector(i, names.q_norm, c.head_dim)),
                k_norm: c.qk_norm.then(|| b.vector(i, names.k_norm, c.head_dim)),
            });
            ops.push(Op::Attend { layer });
            let w = b.linear(i, names.o, c.hidden, attn, c.o_bias, Role::AttnOut);
            ops.push(Op::Proj { w, from: Buf::Context });
            ops.push(Op::GateUp {
                norm: b.vector(i, names.ffn_norm, c.hidden),
                gate: b.linear(i, names.gate, c.ffn, c.hidden, c.mlp_bias, Role::GateUp),
                up: b.linear(i, names.up, c.ffn, c.hidden, c.mlp_bias, Role::GateUp),
            });
            let w = b.linear(i, names.down, c.hidden, c.ffn, c.mlp_bias, Role::Down);
            ops.push(Op::Proj { w, from: Buf::Hidden });
        }
        let norm = b.matrix(names.norm.into(), 1, c.hidden, Role::Vector);
        let w = match c.tied {
            true => table,
            false => b.matrix(names.head.into(), c.vocab, c.hidden, Role::Head),
        };
        ops.push(Op::Head { norm, w });
        ops.push(Op::Sample);
        let weights = b.weights;
        Program { config, ops, weights }
    }

    /// The spec of a weight.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }

    /// Number of weights of the model; a tied head counts once.
    pub fn parameters(&self) -> u64 {
        self.weights.iter().map(|w| w.shape.len()).sum()
    }
}

struct Builder<'a> {
    names: &'a Names,
    weights: Vec<WeightSpec>,
}

impl Builder<'_> {
    fn matrix(&mut self, name: String, rows: u32, cols: u32, role: Role) -> WeightId {
        let id = WeightId(self.weights.len() as u32);
        self.weights.push(WeightSpec { name, shape: Shape { rows, cols }, role });
        id
    }

    fn vector(&mut self, layer: u32, name: &str, len: u32) -> WeightId {
        self.matrix(format!("{}{layer}.{name}", self.names.layer), 1, len, Role::Vector)
    }

    fn linear(
        &mut self,
        layer: u32,
        name: &str,
        rows: u32,
        cols: u32,
        bias: bool,
        role: Role,
    ) -> Linear {
        let full = format!("{}{layer}.{name}", self.names.layer);
        let stem = full.strip_suffix(".weight").unwrap_or(&full).to_string();
        let w = self.matrix(full, rows, cols, role);
        let bias = bias.then(|| self.matrix(format!("{stem}.bias"), 1, rows, Role::Vector));
        Linear { w, bias }
    }
}
