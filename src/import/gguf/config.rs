//! Metadata → config.json and generation_config.json.

use serde_json::{Map, Value as Json, json};

use super::names::Present;
use super::parse::{bad, unsupported};
use super::value::{Metadata, Value};
use crate::error::{Error, Result, visible};

/// A supported architecture: what GGUF calls it, what Hugging Face calls it, and how they differ.
#[derive(Debug)]
pub struct Family {
    /// `general.architecture`
    pub arch: &'static str,
    model_type: &'static str,
    class: &'static str,
    /// Rows of q and k are in pairs, see [`super::names`].
    pub paired_rows: bool,
    /// Has norms on queries and keys.
    pub qk_norm: bool,
    /// Always has biases on q, k and v, and never on the output.
    pub qkv_bias: bool,
    /// May have biases in the feed-forward.
    pub mlp_bias: bool,
}

const FAMILIES: [Family; 3] = [
    Family {
        arch: "llama",
        model_type: "llama",
        class: "LlamaForCausalLM",
        paired_rows: true,
        qk_norm: false,
        qkv_bias: false,
        mlp_bias: true,
    },
    Family {
        arch: "qwen2",
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        paired_rows: false,
        qk_norm: false,
        qkv_bias: true,
        mlp_bias: false,
    },
    Family {
        arch: "qwen3",
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        paired_rows: false,
        qk_norm: true,
        qkv_bias: false,
        mlp_bias: false,
    },
];

/// The family of a file.
pub fn family(m: &Metadata<'_>) -> Result<&'static Family> {
    let arch =
        m.str("general.architecture")?.ok_or_else(|| bad("it has no general.architecture"))?;
    FAMILIES.iter().find(|f| f.arch == arch).ok_or_else(|| {
        let known: Vec<&str> = FAMILIES.iter().map(|f| f.arch).collect();
        unsupported(format!(
            "its architecture is {}; {} are supported",
            visible(arch),
            known.join(", ")
        ))
    })
}

/// The dimensions that shapes follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Dims {
    pub hidden: u32,
    pub layers: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub ffn: u32,
    /// Rows of the embedding.
    pub vocab: u32,
}

impl Dims {
    /// Reads them; `vocab` comes from the embedding's shape.
    pub fn read(m: &Metadata<'_>, arch: &str, vocab: u64) -> Result<Dims> {
        let hidden = required(m, arch, "embedding_length")?;
        let heads = required(m, arch, "attention.head_count")?;
        let kv_heads = size(m, arch, "attention.head_count_kv")?.unwrap_or(heads);
        let head_dim = match size(m, arch, "attention.key_length")? {
            Some(n) => n,
            None if hidden % heads == 0 => hidden / heads,
            None => return Err(bad(format!("{heads} heads do not divide a width of {hidden}"))),
        };
        let value = size(m, arch, "attention.value_length")?.unwrap_or(head_dim);
        let turned = size(m, arch, "rope.dimension_count")?.unwrap_or(head_dim);
        if value != head_dim || turned != head_dim {
            return Err(unsupported(format!(
                "heads of {head_dim} with values of {value}, of which {turned} turn: all three must be equal"
            )));
        }
        if head_dim % 2 != 0 || heads % kv_heads != 0 {
            return Err(bad(format!(
                "{heads} heads, {kv_heads} key heads and {head_dim} dimensions do not divide"
            )));
        }
        if heads.checked_mul(head_dim).is_none() {
            return Err(bad(format!("{heads} heads of {head_dim} are absurd")));
        }
        Ok(Dims {
            hidden,
            layers: required(m, arch, "block_count")?,
            heads,
            kv_heads,
            head_dim,
            ffn: required(m, arch, "feed_forward_length")?,
            vocab: u32::try_from(vocab).map_err(|_| bad(format!("a vocabulary of {vocab}")))?,
        })
    }
}

/// A size ≥ 1 that fits 32 bits. Some files give one for each layer; these must agree.
fn size(m: &Metadata<'_>, arch: &str, name: &str) -> Result<Option<u32>> {
    let key = format!("{arch}.{name}");
    let n = match m.get(&key) {
        None => return Ok(None),
        Some(Value::Array(_)) => {
            let all = m.elements(&key, "an integer ≥ 0", |v| v.as_u64())?.unwrap_or_default();
            if all.is_empty() || all.iter().any(|n| *n != all[0]) {
                return Err(unsupported(format!("{key} differs between layers")));
            }
            all[0]
        }
        Some(_) => m.u64(&key)?.unwrap_or(0),
    };
    match u32::try_from(n) {
        Ok(n) if n > 0 => Ok(Some(n)),
        _ => Err(bad(format!("{key} is {n}"))),
    }
}

fn required(m: &Metadata<'_>, arch: &str, name: &str) -> Result<u32> {
    size(m, arch, name)?.ok_or_else(|| bad(format!("metadata {arch}.{name} is missing")))
}

/// A finite number above zero, as the decimal its writer meant.
pub fn positive(m: &Metadata<'_>, key: &str) -> Result<Option<f64>> {
    match m.f64(key)? {
        Some(x) if x.is_finite() && x > 0.0 => Ok(Some(decimal(x))),
        Some(x) => Err(bad(format!("{key} is {x}"))),
        None => Ok(None),
    }
}

/// A number that is a float32 as the shortest decimal of that float32: 1e-5, not 9.999999747378752e-6.
pub fn decimal(x: f64) -> f64 {
    let short = x as f32;
    if f64::from(short) == x { short.to_string().parse().unwrap_or(x) } else { x }
}

/// What a key of the architecture may say without changing anything.
enum Neutral {
    /// It is read elsewhere, or only informs.
    Any,
    /// Zero or false.
    Off,
    /// True.
    On,
    /// One text.
    Text(&'static str),
}

/// Every known key of an architecture. Any other may ask for something that is not computed, and is refused.
const KEYS: &[(&str, Neutral)] = &[
    ("block_count", Neutral::Any),
    ("context_length", Neutral::Any),
    ("embedding_length", Neutral::Any),
    ("feed_forward_length", Neutral::Any),
    ("vocab_size", Neutral::Any),
    ("attention.head_count", Neutral::Any),
    ("attention.head_count_kv", Neutral::Any),
    ("attention.key_length", Neutral::Any),
    ("attention.value_length", Neutral::Any),
    ("attention.layer_norm_rms_epsilon", Neutral::Any),
    ("attention.sliding_window", Neutral::Any),
    ("rope.dimension_count", Neutral::Any),
    ("rope.freq_base", Neutral::Any),
    ("rope.scale_linear", Neutral::Any),
    ("rope.scaling.type", Neutral::Any),
    ("rope.scaling.factor", Neutral::Any),
    ("rope.scaling.original_context_length", Neutral::Any),
    ("rope.scaling.attn_factor", Neutral::Any),
    ("rope.scaling.finetuned", Neutral::Any),
    ("rope.scaling.yarn_attn_factor", Neutral::Any),
    ("rope.scaling.yarn_beta_fast", Neutral::Any),
    ("rope.scaling.yarn_beta_slow", Neutral::Any),
    ("rope.scaling.yarn_ext_factor", Neutral::Any),
    ("rope.scaling.yarn_log_multiplier", Neutral::Any),
    ("attention.causal", Neutral::On),
    ("attention.clamp_kqv", Neutral::Off),
    ("attention.max_alibi_bias", Neutral::Off),
    ("expert_count", Neutral::Off),
    ("expert_used_count", Neutral::Off),
    ("nextn_predict_layers", Neutral::Off),
    ("pooling_type", Neutral::Off),
    ("use_parallel_residual", Neutral::Off),
    // Says that q and k are in pairs, which they always are.
    ("tensor_data_layout", Neutral::Text("Meta AI original pth")),
];

/// Refuses a file that is a part of a model. Parts but the first say nothing else, so this comes before all that a
/// model must say.
pub fn refuse_part(m: &Metadata<'_>) -> Result<()> {
    let count = m.u64("split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(());
    }
    let e = match m.u64("split.no")? {
        Some(no) if no < count => unsupported(format!("it is part {} of {count}", no + 1)),
        _ => unsupported(format!("it is one of {count} parts")),
    };
    // The tool that splits them, and the order of its arguments.
    let todo = format!(
        "join the parts: llama-gguf-split --merge NAME-00001-of-{count:05}.gguf WHOLE.gguf, then use WHOLE.gguf"
    );
    Err(Error { todo, ..e })
}

/// Refuses what changes the model and is not understood.
pub fn refuse_unknown(m: &Metadata<'_>, arch: &str) -> Result<()> {
    for (key, value) in m.pairs() {
        let Some(name) = key.strip_prefix(arch).and_then(|k| k.strip_prefix('.')) else {
            continue;
        };
        let harmless = match KEYS.iter().find(|k| k.0 == name).map(|k| &k.1) {
            None => false,
            Some(Neutral::Any) => true,
            Some(Neutral::Off) => *value == Value::Bool(false) || value.as_f64() == Some(0.0),
            Some(Neutral::On) => *value == Value::Bool(true),
            Some(Neutral::Text(t)) => *value == Value::Str(t.as_bytes()),
        };
        if !harmless {
            let shown = match value {
                Value::Str(raw) => visible(&String::from_utf8_lossy(raw)),
                Value::Array(_) => value.type_name(),
                Value::Bool(b) => b.to_string(),
                _ => value.as_f64().map_or_else(|| value.type_name(), |x| x.to_string()),
            };
            return Err(unsupported(format!(
                "metadata {} = {shown} is not supported",
                visible(key)
            )));
        }
    }
    let kind = m.str("general.type")?.unwrap_or("model");
    if kind != "model" {
        return Err(unsupported(format!("it is no model: its general.type is {}", visible(kind))));
    }
    if let Some(v) = m.u64("general.quantization_version")?.filter(|v| *v != 2) {
        return Err(unsupported(format!("its general.quantization_version is {v}; 2 is known")));
    }
    Ok(())
}

/// Builds config.json.
pub fn config_json(
    m: &Metadata<'_>,
    family: &Family,
    dims: &Dims,
    present: Present,
    theta: f64,
    rope_scaling: Option<Json>,
) -> Result<String> {
    let arch = family.arch;
    let eps =
        positive(m, &format!("{arch}.attention.layer_norm_rms_epsilon"))?.ok_or_else(|| {
            bad(format!("metadata {arch}.attention.layer_norm_rms_epsilon is missing"))
        })?;
    // A file of zero means no window.
    let window = m.u64(&format!("{arch}.attention.sliding_window"))?.filter(|w| *w > 0);
    let mut out = Map::new();
    let mut put = |key: &str, value: Json| drop(out.insert(key.into(), value));
    let (class, model_type) = match window {
        // A Llama with a window on every layer is a Mistral.
        Some(_) if arch == "llama" && !present.attention_bias && !present.mlp_bias => {
            ("MistralForCausalLM", "mistral")
        }
        Some(w) => return Err(unsupported(format!("{arch}.attention.sliding_window is {w}"))),
        None => (family.class, family.model_type),
    };
    put("architectures", json!([class]));
    put("model_type", json!(model_type));
    put("hidden_size", json!(dims.hidden));
    put("intermediate_size", json!(dims.ffn));
    put("num_hidden_layers", json!(dims.layers));
    put("num_attention_heads", json!(dims.heads));
    put("num_key_value_heads", json!(dims.kv_heads));
    put("head_dim", json!(dims.head_dim));
    put("hidden_act", json!("silu"));
    put("max_position_embeddings", json!(required(m, arch, "context_length")?));
    put("rms_norm_eps", json!(eps));
    put("rope_theta", json!(theta));
    put("rope_scaling", rope_scaling.unwrap_or(Json::Null));
    if let Some(w) = window {
        put("sliding_window", json!(w));
    }
    if !family.qkv_bias && model_type != "mistral" {
        put("attention_bias", json!(present.attention_bias));
    }
    if model_type == "llama" {
        put("mlp_bias", json!(present.mlp_bias));
    }
    put("vocab_size", json!(dims.vocab));
    put("tie_word_embeddings", json!(present.tied));
    for (hf, gguf) in TOKEN_IDS {
        if let Some(id) = m.u64(gguf)? {
            put(hf, json!(id));
        }
    }
    put("torch_dtype", json!("bfloat16"));
    pretty(out)
}

const TOKEN_IDS: [(&str, &str); 3] = [
    ("bos_token_id", "tokenizer.ggml.bos_token_id"),
    ("eos_token_id", "tokenizer.ggml.eos_token_id"),
    ("pad_token_id", "tokenizer.ggml.padding_token_id"),
];

/// Builds generation_config.json: where to stop (`ends`), and the sampling that the file recommends.
pub fn generation_json(m: &Metadata<'_>, ends: &[u32]) -> Result<String> {
    let mut out = Map::new();
    for (hf, gguf) in [TOKEN_IDS[0], TOKEN_IDS[2]] {
        if let Some(id) = m.u64(gguf)? {
            out.insert(hf.into(), json!(id));
        }
    }
    if !ends.is_empty() {
        out.insert("eos_token_id".into(), json!(ends));
    }
    let mut sampling = Map::new();
    for (hf, gguf) in [
        ("temperature", "temp"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("repetition_penalty", "penalty_repeat"),
    ] {
        if let Some(x) = m.f64(&format!("general.sampling.{gguf}"))?.filter(|x| x.is_finite()) {
            sampling.insert(hf.into(), json!(decimal(x)));
        }
    }
    if let Some(k) = m.u64("general.sampling.top_k")? {
        sampling.insert("top_k".into(), json!(k));
    }
    if !sampling.is_empty() {
        out.insert("do_sample".into(), json!(true));
        out.append(&mut sampling);
    }
    pretty(out)
}

/// JSON as files have it: indented, ending in a line break.
pub fn pretty(map: Map<String, Json>) -> Result<String> {
    let mut text = serde_json::to_string_pretty(&Json::Object(map))
        .map_err(|e| bad(format!("a rebuilt text is not JSON: {e}")))?;
    text.push('\n');
    Ok(text)
}
