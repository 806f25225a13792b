//! The whole vocabulary of a decoder: seven ops, the buffers between them, and the step they run in.

/// Index into [`crate::model::program::Program::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A linear map `W·x + b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// `[rows][cols]`
    pub w: WeightId,
    /// `[rows]`
    pub bias: Option<WeightId>,
}

/// One fused instruction. `n` below is the number of tokens of the step.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `residual[n][hidden] ← table[token]·scale`
    Embed {
        /// `[vocab][hidden]`
        table: WeightId,
    },
    /// RMSNorm of the residual → q, k, v (+bias) → per-head norms → RoPE → append k, v to the cache;
    /// `q[n][heads·head_dim]`.
    Qkv {
        /// Which layer.
        layer: u16,
        /// `[hidden]`
        norm: WeightId,
        /// `[heads·head_dim][hidden]`
        q: Linear,
        /// `[kv_heads·head_dim][hidden]`
        k: Linear,
        /// `[kv_heads·head_dim][hidden]`
        v: Linear,
        /// `[head_dim]`, RMSNorm of each query head before RoPE.
        q_norm: Option<WeightId>,
        /// `[head_dim]`, RMSNorm of each key head before RoPE.
        k_norm: Option<WeightId>,
    },
    /// `context[n][heads·head_dim] ← softmax(q·kᵀ·scale)·v`, causal, within the layer's window.
    Attend {
        /// Which layer.
        layer: u16,
    },
    /// `residual[n][hidden] += W·from (+bias)`
    Proj {
        /// `[hidden][from]`
        w: Linear,
        /// `Context` or `Hidden`.
        from: Buf,
    },
    /// `hidden[n][ffn] ← act(gate·x̂) ∘ (up·x̂)`, x̂ = RMSNorm of the residual.
    GateUp {
        /// `[hidden]`
        norm: WeightId,
        /// `[ffn][hidden]`
        gate: Linear,
        /// `[ffn][hidden]`
        up: Linear,
    },
    /// `logits[n][vocab] ← W·RMSNorm(residual)`, for the rows the step asks for.
    Head {
        /// `[hidden]`
        norm: WeightId,
        /// `[vocab][hidden]`
        w: WeightId,
    },
    /// The next token from the last row of logits.
    Sample,
}

/// Buffers that ops pass values in; all f32 on the host side of `Backend::read` and `write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buf {
    /// `[n][hidden]`
    Residual,
    /// `[n][heads·head_dim]`
    Query,
    /// `[n][heads·head_dim]`
    Context,
    /// `[n][ffn]`
    Hidden,
    /// `[rows][vocab]`
    Logits,
}

/// Where a step's tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// These tokens.
    Tokens(&'a [u32]),
    /// The token this backend sampled in the step before; the host need not have seen it.
    Last,
}

impl Input<'_> {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Input::Tokens(t) => t.len(),
            Input::Last => 1,
        }
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Which rows of logits a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// None: a prompt chunk that is not the last.
    None,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

/// One pass over the program.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The tokens.
    pub input: Input<'a>,
    /// Position of the first of them = number of tokens already in the cache.
    pub pos: u32,
    /// Which logits to compute.
    pub rows: Rows,
    /// Whether to choose a next token (needs `rows` ≠ `None`).
    pub sample: bool,
}

/// How to choose a token. The order is fixed: logit bias, penalties, temperature, top-k, top-p, min-p, draw.
/// `temperature == 0` is greedy: the largest logit after bias and penalties, the lower id on a tie.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keep the smallest set with this much probability; 1 is off.
    pub top_p: f32,
    /// Drop tokens below this share of the most likely one's probability; 0 is off.
    pub min_p: f32,
    /// Divide (positive) or multiply (negative) logits of tokens already seen; 1 is off.
    pub repeat_penalty: f32,
    /// How many of the last tokens the three penalties look at; 0 is all.
    pub repeat_last_n: u32,
    /// Subtracted once from tokens already seen.
    pub presence_penalty: f32,
    /// Subtracted per occurrence.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draw; draw `n` belongs to position `n`.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy, nothing else.
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// How much agreement is promised between two ways of computing one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// CPU and GPU give equal bits.
    Same,
    /// Packed and bf16 weights give equal bits on one backend, at any batch width.
    Twin,
    /// Within a derived bound of a float64 oracle.
    Bound,
}
