//! The Llama family: one block, told apart by biases, head norms and windows.

use serde_json::Value;

use super::Names;
use super::fields::{Fields, Neutral, bad, shown};
use super::rope;
use crate::error::{Result, visible};
use crate::model::config::{Activation, Config};

/// Longest context a config may claim.
pub const MAX_POSITIONS: u32 = 1 << 28;
const MAX_HIDDEN: u32 = 1 << 16;
const MAX_FFN: u32 = 1 << 19;
const MAX_LAYERS: u32 = 1 << 10;
const MAX_HEADS: u32 = 1 << 10;
const MAX_HEAD_DIM: u32 = 1 << 10;
const MAX_ATTENTION: u32 = 1 << 17;
const MAX_VOCAB: u32 = 1 << 22;

/// Tensor names of the family.
pub static NAMES: Names = Names {
    embed: "model.embed_tokens.weight",
    norm: "model.norm.weight",
    head: "lm_head.weight",
    layer: "model.layers.",
    attn_norm: "input_layernorm.weight",
    q: "self_attn.q_proj.weight",
    k: "self_attn.k_proj.weight",
    v: "self_attn.v_proj.weight",
    q_norm: "self_attn.q_norm.weight",
    k_norm: "self_attn.k_norm.weight",
    o: "self_attn.o_proj.weight",
    ffn_norm: "post_attention_layernorm.weight",
    gate: "mlp.gate_proj.weight",
    up: "mlp.up_proj.weight",
    down: "mlp.down_proj.weight",
};

/// Options of this and neighbouring families that change the result and that no op here computes.
const UNSUPPORTED: &[(&str, Neutral)] = &[
    ("quantization_config", Neutral::Off),
    ("pretraining_tp", Neutral::One),
    ("partial_rotary_factor", Neutral::One),
    ("rope_interleaved", Neutral::Off),
    ("no_rope_layers", Neutral::Off),
    ("no_rope_layer_interval", Neutral::Off),
    ("num_experts", Neutral::Off),
    ("num_local_experts", Neutral::Off),
    ("n_routed_experts", Neutral::Off),
    ("attention_chunk_size", Neutral::Off),
    ("attn_logit_softcapping", Neutral::Off),
    ("final_logit_softcapping", Neutral::Off),
    ("query_pre_attn_scalar", Neutral::Off),
    ("attention_multiplier", Neutral::Off),
    ("embedding_multiplier", Neutral::One),
    ("residual_multiplier", Neutral::One),
    ("logits_scaling", Neutral::One),
    ("logit_scale", Neutral::One),
    ("clip_qkv", Neutral::Off),
    ("qk_layernorm", Neutral::Off),
    ("use_qk_norm", Neutral::Off),
    ("is_encoder_decoder", Neutral::Off),
    ("add_cross_attention", Neutral::Off),
];

/// Llama 1 to 3.x, SmolLM 1 and 2, and what borrows their `model_type`. A `sliding_window` means nothing here.
pub fn llama(json: &Value) -> Result<Config> {
    let fields = Fields::of(json)?;
    let bias = fields.flag("attention_bias", false)?;
    if let Some(v) = fields.get("layer_types") {
        let full =
            |v: &Value| v.as_array().is_some_and(|a| a.iter().all(|t| t == "full_attention"));
        if !full(v) {
            return Err(bad(format!("layer_types = {} is not supported by llama", shown(v))));
        }
    }
    let mut config = common(fields, 2048)?;
    config.qkv_bias = bias;
    config.o_bias = bias;
    config.mlp_bias = fields.flag("mlp_bias", false)?;
    Ok(config)
}

/// Mistral: one window for all layers. A config that does not mention `sliding_window` has one of 4,096.
pub fn mistral(json: &Value) -> Result<Config> {
    let fields = Fields::of(json)?;
    fields.refuse_unless("layer_types", Neutral::Off)?;
    let mut config = common(fields, 131_072)?;
    let window = match fields.has("sliding_window") {
        true => fields.size("sliding_window", u32::MAX)?,
        false => Some(4096),
    };
    config.windows.fill(window);
    Ok(config)
}

/// Qwen 2 and 2.5: biases on q, k and v; windows on the upper layers when `use_sliding_window` says so.
pub fn qwen2(json: &Value) -> Result<Config> {
    let fields = Fields::of(json)?;
    let mut config = common(fields, 32_768)?;
    config.qkv_bias = true;
    config.windows = qwen_windows(fields, config.layers)?;
    Ok(config)
}

/// Qwen 3 (dense): a norm on each query and key head; heads of 128 unless said otherwise.
pub fn qwen3(json: &Value) -> Result<Config> {
    let fields = Fields::of(json)?;
    let bias = fields.flag("attention_bias", false)?;
    let mut config = sized(fields, 32_768, Some(128))?;
    config.qk_norm = true;
    config.qkv_bias = bias;
    config.o_bias = bias;
    config.windows = qwen_windows(fields, config.layers)?;
    Ok(config)
}

fn common(fields: Fields<'_>, max_positions: u32) -> Result<Config> {
    sized(fields, max_positions, None)
}

/// Everything that all of the family spell alike: dimensions, activation, norm, rotary settings, tying.
fn sized(fields: Fields<'_>, max_positions: u32, head_dim: Option<u32>) -> Result<Config> {
    for (key, neutral) in UNSUPPORTED {
        fields.refuse_unless(key, *neutral)?;
    }
    causal_only(fields)?;
    let hidden = fields.required("hidden_size", MAX_HIDDEN)?;
    let layers = fields.required("num_hidden_layers", MAX_LAYERS)?;
    let heads = fields.required("num_attention_heads", MAX_HEADS)?;
    let kv_heads = fields.size("num_key_value_heads", MAX_HEADS)?.unwrap_or(heads);
    if heads % kv_heads != 0 {
        return Err(bad(format!("num_key_value_heads {kv_heads} does not divide {heads} heads")));
    }
    let head_dim = match fields.size("head_dim", MAX_HEAD_DIM)?.or(head_dim) {
        Some(given) => given,
        None if hidden % heads != 0 => {
            return Err(bad(format!("{heads} heads do not divide hidden_size {hidden}")));
        }
        None => hidden / heads,
    };
    if head_dim % 2 != 0 || head_dim == 0 || head_dim > MAX_HEAD_DIM {
        return Err(bad(format!("head_dim {head_dim} is not an even number up to {MAX_HEAD_DIM}")));
    }
    if heads * head_dim > MAX_ATTENTION {
        return Err(bad(format!(
            "{heads} heads of {head_dim} are more than {MAX_ATTENTION} values"
        )));
    }
    let max_positions =
        fields.size("max_position_embeddings", MAX_POSITIONS)?.unwrap_or(max_positions);
    let norm_eps = fields.positive("rms_norm_eps")?.unwrap_or(1e-6);
    if norm_eps as f32 == 0.0 || norm_eps >= 1.0 {
        return Err(bad(format!("rms_norm_eps is {norm_eps}, and must lie between zero and one")));
    }
    let rope = rope::read(fields, head_dim, max_positions)?;
    Ok(Config {
        model_type: fields.text("model_type")?.unwrap_or_default().to_string(),
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn: fields.required("intermediate_size", MAX_FFN)?,
        vocab: fields.required("vocab_size", MAX_VOCAB)?,
        max_positions: rope::reach(&rope, max_positions),
        norm_eps: norm_eps as f32,
        activation: activation(fields)?,
        rope,
        tied: fields.flag("tie_word_embeddings", false)?,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        windows: vec![None; layers as usize],
        attn_scale: (1.0 / f64::from(head_dim).sqrt()) as f32,
    })
}

/// Classifiers, reward models and bare encoders share the `model_type` but have no language head.
fn causal_only(fields: Fields<'_>) -> Result<()> {
    let Some(value) = fields.get("architectures") else { return Ok(()) };
    let named = |v: &Value| v.as_str().is_some_and(|s| s.ends_with("ForCausalLM"));
    match value.as_array() {
        Some(list) if list.is_empty() || list.iter().any(named) => Ok(()),
        _ => Err(bad(format!("architectures = {} is not a language model", shown(value)))),
    }
}

fn activation(fields: Fields<'_>) -> Result<Activation> {
    match fields.text("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        other => Err(bad(format!("hidden_act {:?} is not supported", visible(other)))),
    }
}

/// `layer_types` when given, else layers from `max_window_layers` on; none at all without `use_sliding_window`.
fn qwen_windows(fields: Fields<'_>, layers: u32) -> Result<Vec<Option<u32>>> {
    let window = match fields.flag("use_sliding_window", false)? {
        true if fields.has("sliding_window") => fields.size("sliding_window", u32::MAX)?,
        true => Some(4096),
        false => None,
    };
    let Some(kinds) = fields.get("layer_types") else {
        let first = match fields.get("max_window_layers") {
            None => 28,
            Some(v) => v.as_u64().ok_or_else(|| {
                bad(format!("max_window_layers is {}, not a whole number", shown(v)))
            })?,
        };
        return Ok((0..layers).map(|i| window.filter(|_| u64::from(i) >= first)).collect());
    };
    let wrong = |why: String| bad(format!("layer_types = {}: {why}", shown(kinds)));
    let list = kinds.as_array().ok_or_else(|| wrong("not a list".into()))?;
    if list.len() != layers as usize {
        return Err(wrong(format!("{} entries for {layers} layers", list.len())));
    }
    list.iter()
        .map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") if window.is_some() => Ok(window),
            Some("sliding_attention") => Err(wrong("no sliding_window is set".into())),
            _ => Err(wrong(format!("{} is not supported", shown(kind)))),
        })
        .collect()
}
