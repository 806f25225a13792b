//! Config → Program: the list of ops, said once; both backends read this and nothing else.

use crate::codec::Shape;
use crate::model::config::Config;
use crate::model::op::{Op, WeightId};

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
    /// The spec of a weight.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }
}
