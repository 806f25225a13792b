//! One description for every decoder: dimensions and switches.

/// Element-wise function of the feed-forward gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x·σ(x)
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
}

/// How rotary frequencies are stretched beyond the trained context.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// NTK-aware: the base grows with the position once it passes the trained context.
    Dynamic {
        /// Stretch.
        factor: f64,
        /// Trained context.
        original: u32,
    },
    /// Llama 3.1: low frequencies stretched, high ones kept, a ramp between.
    Llama3 {
        /// Stretch.
        factor: f64,
        /// Below this many turns per trained context: stretched.
        low_freq: f64,
        /// Above this many: kept.
        high_freq: f64,
        /// Trained context.
        original: u32,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// Stretch.
        factor: f64,
        /// Trained context.
        original: u32,
        /// Ramp start, in rotations.
        beta_fast: f64,
        /// Ramp end.
        beta_slow: f64,
        /// Multiplies sines and cosines (the attention temperature).
        attention_factor: f64,
        /// Whether ramp ends are rounded to whole dimensions.
        truncate: bool,
    },
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// How many of a head's dimensions turn (a prefix; even).
    pub dims: u32,
    /// Stretching.
    pub scaling: RopeScaling,
}

/// What a decoder is. Read from `config.json` by `model::arch`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `model_type` as written in config.json.
    pub model_type: String,
    /// Residual width.
    pub hidden: u32,
    /// Number of layers.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of a head; independent of `hidden / heads`.
    pub head_dim: u32,
    /// Feed-forward width.
    pub ffn: u32,
    /// Rows of the embedding.
    pub vocab: u32,
    /// Context, in tokens: as trained, or as far as the rotary scaling stretches it.
    pub max_positions: u32,
    /// RMSNorm epsilon.
    pub norm_eps: f32,
    /// Feed-forward activation.
    pub activation: Activation,
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the attention output.
    pub o_bias: bool,
    /// Biases on gate, up and down.
    pub mlp_bias: bool,
    /// RMSNorm on each query and key head (Qwen3 style).
    pub qk_norm: bool,
    /// Keys a query may see, itself included, per layer; `None` is all of them.
    pub windows: Vec<Option<u32>>,
    /// Score multiplier; `1/√head_dim` unless the config says otherwise.
    pub attn_scale: f32,
}
