//! Rotary settings: `rope_theta` with `rope_scaling`, or the newer `rope_parameters` that holds both.

use super::fields::{Fields, Neutral, bad, shown};
use super::llama::MAX_POSITIONS;
use crate::error::{Result, visible};
use crate::model::config::{Rope, RopeScaling};

/// Reads the rotary settings of a model whose whole head turns.
///
/// The order of precedence is that of the reference: `rope_scaling` when it says anything, else `rope_parameters`;
/// inside it `rope_type` before `type`, and its own `rope_theta` before the one beside it.
pub fn read(config: Fields<'_>, head_dim: u32, max_positions: u32) -> Result<Rope> {
    let scaling = match config.object("rope_scaling")? {
        Some(fields) if !fields.is_empty() => Some(fields),
        _ => config.object("rope_parameters")?,
    };
    let mut theta = config.positive("rope_theta")?;
    let mut kind = "default";
    if let Some(fields) = scaling {
        if let Some((key, _)) = fields.iter().find(|(_, v)| v.is_object()) {
            return Err(bad(format!(
                "rope_parameters.{} gives one kind of layer its own rotary settings, which is not supported",
                visible(key)
            )));
        }
        fields.refuse_unless("partial_rotary_factor", Neutral::One)?;
        fields.refuse_unless("mrope_section", Neutral::Off)?;
        theta = fields.positive("rope_theta")?.or(theta);
        kind = fields.text("rope_type")?.or(fields.text("type")?).unwrap_or(kind);
    }
    let theta = theta.unwrap_or(10_000.0);
    if theta <= 1.0 {
        return Err(bad(format!("rope_theta is {theta}, and must be above one")));
    }
    let scaling = match (kind, scaling) {
        ("default", _) => RopeScaling::None,
        (_, None) => RopeScaling::None,
        ("linear", Some(f)) => RopeScaling::Linear { factor: factor(f)? },
        ("dynamic", Some(f)) => {
            if head_dim < 4 {
                return Err(bad(format!(
                    "rope type dynamic needs a head_dim above 2, not {head_dim}"
                )));
            }
            RopeScaling::Dynamic { factor: factor(f)?, original: max_positions }
        }
        ("llama3", Some(f)) => llama3(f, original(config, f, max_positions)?)?,
        ("yarn", Some(f)) => yarn(f, original(config, f, max_positions)?, max_positions)?,
        (other, Some(_)) => {
            return Err(bad(format!("rope type {:?} is not supported", visible(other))));
        }
    };
    Ok(Rope { theta, dims: head_dim, scaling })
}

/// Positions that a model with these settings may be asked for. `max_position_embeddings` is what it is without
/// stretching for `linear` and `dynamic` (the format asks that it be left alone), and may be for `yarn`; other kinds
/// state the whole reach.
pub fn reach(rope: &Rope, max_positions: u32) -> u32 {
    let stretched = match rope.scaling {
        RopeScaling::None | RopeScaling::Llama3 { .. } => 0.0,
        RopeScaling::Linear { factor } => factor * f64::from(max_positions),
        RopeScaling::Dynamic { factor, original } | RopeScaling::Yarn { factor, original, .. } => {
            factor * f64::from(original)
        }
    };
    // A float too large for the type becomes its largest value.
    (stretched as u32).clamp(max_positions, MAX_POSITIONS)
}

fn required(fields: Fields<'_>, key: &str) -> Result<f64> {
    fields.positive(key)?.ok_or_else(|| bad(format!("the rotary settings have no {key}")))
}

fn factor(fields: Fields<'_>) -> Result<f64> {
    let factor = required(fields, "factor")?;
    if factor < 1.0 {
        return Err(bad(format!("the rotary factor is {factor}, and must not be below one")));
    }
    Ok(factor)
}

/// The trained context: beside the rotary settings, else in them, else the model's own.
fn original(config: Fields<'_>, fields: Fields<'_>, max_positions: u32) -> Result<u32> {
    const KEY: &str = "original_max_position_embeddings";
    let inner = fields.size(KEY, MAX_POSITIONS)?;
    Ok(config.size(KEY, MAX_POSITIONS)?.or(inner).unwrap_or(max_positions))
}

fn llama3(fields: Fields<'_>, original: u32) -> Result<RopeScaling> {
    let low_freq = required(fields, "low_freq_factor")?;
    let high_freq = required(fields, "high_freq_factor")?;
    if high_freq <= low_freq {
        return Err(bad(format!(
            "high_freq_factor {high_freq} must be above low_freq_factor {low_freq}"
        )));
    }
    Ok(RopeScaling::Llama3 { factor: factor(fields)?, low_freq, high_freq, original })
}

fn yarn(fields: Fields<'_>, original: u32, max_positions: u32) -> Result<RopeScaling> {
    let factor = match fields.get("factor") {
        Some(_) => factor(fields)?,
        None => f64::from(max_positions) / f64::from(original),
    };
    let attention_factor = match fields.positive("attention_factor")? {
        Some(given) => given,
        None => {
            let mscale = |weight: f64| {
                if factor <= 1.0 { 1.0 } else { 0.1 * weight * libm::log(factor) + 1.0 }
            };
            let given = |key| Ok(fields.number(key)?.filter(|x| *x != 0.0));
            match (given("mscale")?, given("mscale_all_dim")?) {
                (Some(num), Some(den)) => mscale(num) / mscale(den),
                _ => mscale(1.0),
            }
        }
    };
    if !(attention_factor.is_finite() && attention_factor > 0.0) {
        return Err(bad(format!("mscale and mscale_all_dim give a scale of {attention_factor}")));
    }
    // Zero stands for the default, as in the reference.
    let beta = |key, default| Ok(fields.number(key)?.filter(|x| *x != 0.0).unwrap_or(default));
    let (beta_fast, beta_slow): (f64, f64) = (beta("beta_fast", 32.0)?, beta("beta_slow", 1.0)?);
    if beta_slow <= 0.0 || beta_fast < beta_slow {
        return Err(bad(format!(
            "beta_fast {beta_fast} must not be below beta_slow {beta_slow}, and both above zero"
        )));
    }
    if let Some(v) = fields.get("truncate").filter(|v| !v.is_boolean()) {
        return Err(bad(format!("truncate is {}, not true or false", shown(v))));
    }
    Ok(RopeScaling::Yarn {
        factor,
        original,
        beta_fast,
        beta_slow,
        attention_factor,
        truncate: fields.flag("truncate", true)?,
    })
}
