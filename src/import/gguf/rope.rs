//! Rotary settings: metadata and the tensor of frequency factors → `rope_scaling` of config.json.

use serde_json::{Value, json};

use super::config::{decimal, positive};
use super::parse::unsupported;
use super::value::Metadata;
use crate::error::{Result, visible};

/// What Llama 3.1 and everything made from it uses: low and high frequency factor, trained context.
const LLAMA3: (f64, f64, u64) = (1.0, 4.0, 8192);
/// Factors are float32 results of about ten operations.
const TOLERANCE: f64 = 1e-4;

/// `rope_scaling` in the Hugging Face spelling, or `None` for frequencies as trained.
///
/// `factors` is the content of `rope_freqs.weight`: each frequency is divided by its factor.
pub fn scaling(
    m: &Metadata<'_>,
    arch: &str,
    theta: f64,
    head_dim: u32,
    factors: Option<&[f32]>,
) -> Result<Option<Value>> {
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    let stated = m.str(&key("type"))?.filter(|t| *t != "none");
    let Some(factors) = factors else { return from_metadata(m, arch, stated) };
    if factors.iter().all(|f| *f == 1.0) {
        return from_metadata(m, arch, stated);
    }
    if let Some(kind) = stated {
        return Err(unsupported(format!(
            "it has both rope_freqs.weight and {} {}",
            key("type"),
            visible(kind)
        )));
    }
    let original = m.u64(&key("original_context_length"))?;
    llama3(theta, head_dim, factors, original).map(Some)
}

fn from_metadata(m: &Metadata<'_>, arch: &str, stated: Option<&str>) -> Result<Option<Value>> {
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    // The oldest files have a linear scale only, under another name.
    let old = positive(m, &format!("{arch}.rope.scale_linear"))?;
    let factor = positive(m, &key("factor"))?.or(old).filter(|f| *f != 1.0);
    let kind = stated.or(old.map(|_| "linear"));
    let (kind, factor) = match (kind, factor) {
        // A factor of one stretches nothing, whatever the type.
        (None | Some("linear" | "yarn"), None) => return Ok(None),
        (None, Some(_)) => {
            return Err(unsupported(format!("{} is missing beside a factor", key("type"))));
        }
        (Some(kind), factor) => (kind, factor.unwrap_or(1.0)),
    };
    match kind {
        "linear" => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
        "yarn" => yarn(m, arch, factor).map(Some),
        other => Err(unsupported(format!("its rope scaling is {}", visible(other)))),
    }
}

fn yarn(m: &Metadata<'_>, arch: &str, factor: f64) -> Result<Value> {
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    let original = m.u64(&key("original_context_length"))?.ok_or_else(|| {
        unsupported("its rope scaling is yarn without an original_context_length")
    })?;
    for (name, neutral) in [("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)] {
        if let Some(x) = m.f64(&key(name))?.filter(|x| *x != neutral) {
            return Err(unsupported(format!("{} is {x}", key(name))));
        }
    }
    let mut out = json!({
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    });
    for (name, hf) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
        if let Some(x) = positive(m, &key(name))? {
            out[hf] = json!(x);
        }
    }
    // Files scale the usual temperature; config.json states the result.
    let scale = positive(m, &key("attn_factor"))?.or(positive(m, &key("yarn_attn_factor"))?);
    if let Some(scale) = scale.filter(|s| *s != 1.0) {
        out["attention_factor"] = json!(scale * (0.1 * libm::log(factor) + 1.0));
    }
    Ok(out)
}

/// Recognises the factors that Llama 3.1's rule gives: wavelengths beyond `original / low` are stretched by `factor`,
/// those below `original / high` are kept, and the frequency is interpolated between.
fn llama3(theta: f64, head_dim: u32, factors: &[f32], original: Option<u64>) -> Result<Value> {
    let why = |why: String| {
        unsupported(format!("rope_freqs.weight {why}, so it does not come from the Llama 3 rule"))
    };
    if factors.len() != head_dim as usize / 2 {
        return Err(why(format!("has {} factors for heads of {head_dim}", factors.len())));
    }
    let factor = decimal(f64::from(factors.iter().fold(1f32, |a, b| a.max(*b))));
    let (low, high, usual) = LLAMA3;
    let original = original.unwrap_or(usual);
    for (i, got) in factors.iter().enumerate() {
        let turns = turns(theta, head_dim, i, original as f64);
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        let want = 1.0 / ((1.0 - kept) / factor + kept);
        let off = (f64::from(*got) - want).abs();
        if off.is_nan() || off > TOLERANCE * want {
            return Err(why(format!("has factor {got} at {i}, where {want} is expected")));
        }
    }
    Ok(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }))
}

/// How often dimension pair i turns within `context` tokens.
fn turns(theta: f64, head_dim: u32, i: usize, context: f64) -> f64 {
    let freq = libm::pow(theta, -2.0 * i as f64 / f64::from(head_dim));
    context * freq / std::f64::consts::TAU
}
