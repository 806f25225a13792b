//! The sampler flags, laid over the model's own defaults.

use std::hash::{BuildHasher, RandomState};

use clap::Args;
use serde_json::{Value, json};

use crate::error::{Error, Kind, Result};
use crate::model::op::Sampling;

/// How to choose tokens. What is not given comes from the model's generation_config.json.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling (defaults: the model's generation_config.json)")]
pub struct SamplingArgs {
    /// Always take the most likely token
    #[arg(long, conflicts_with = "temp")]
    pub greedy: bool,
    /// Temperature; 0 is greedy
    #[arg(long, visible_alias = "temperature", value_name = "T")]
    pub temp: Option<f32>,
    /// Keep the K most likely tokens; 0 is off
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens with this much probability together
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Drop tokens below this share of the likeliest one
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Divide logits of tokens already seen; 1 is off
    #[arg(long, value_name = "X")]
    pub repeat_penalty: Option<f32>,
    /// How many of the last tokens the penalties see; 0 is all
    #[arg(long, value_name = "N")]
    pub repeat_last_n: Option<u32>,
    /// Subtract once from tokens already seen
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtract for each time a token was seen
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Add BIAS to the logit of a token (repeatable); -inf bans it
    #[arg(long, value_name = "ID:BIAS", value_parser = bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws [default: a random one]
    #[arg(long)]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// The sampler that results, checked.
    pub fn over(&self, defaults: &Sampling) -> Result<Sampling> {
        let d = defaults;
        let sampling = Sampling {
            temperature: if self.greedy { 0.0 } else { self.temp.unwrap_or(d.temperature) },
            top_k: self.top_k.unwrap_or(d.top_k),
            top_p: self.top_p.unwrap_or(d.top_p),
            min_p: self.min_p.unwrap_or(d.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(d.repeat_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(d.repeat_last_n),
            presence_penalty: self.presence_penalty.unwrap_or(d.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(d.frequency_penalty),
            logit_bias: if self.logit_bias.is_empty() {
                d.logit_bias.clone()
            } else {
                self.logit_bias.clone()
            },
            seed: self.seed.unwrap_or_else(random_seed),
        };
        check(&sampling)?;
        Ok(sampling)
    }

    /// Sets one value by its long flag's name, as chat's `/set` and batch requests do.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        fn parse<T: std::str::FromStr>(key: &str, value: &str) -> Result<Option<T>> {
            value
                .parse()
                .map(Some)
                .map_err(|_| usage(key, format!("`{value}` is not a number it takes")))
        }
        match key.replace('_', "-").as_str() {
            "temp" | "temperature" => {
                self.greedy = false;
                self.temp = parse(key, value)?;
            }
            "top-k" => self.top_k = parse(key, value)?,
            "top-p" => self.top_p = parse(key, value)?,
            "min-p" => self.min_p = parse(key, value)?,
            "repeat-penalty" => self.repeat_penalty = parse(key, value)?,
            "repeat-last-n" => self.repeat_last_n = parse(key, value)?,
            "presence-penalty" => self.presence_penalty = parse(key, value)?,
            "frequency-penalty" => self.frequency_penalty = parse(key, value)?,
            "seed" => self.seed = parse(key, value)?,
            "greedy" => self.greedy = parse(key, value)?.unwrap_or(false),
            _ => return Err(usage(key, "there is no such sampler value".into())),
        }
        Ok(())
    }
}

/// The sampler as JSON.
pub fn to_json(s: &Sampling) -> Value {
    // Through the shortest decimal that reads back as the same f32, so that 0.7 is shown as 0.7.
    let short = |x: f32| x.to_string().parse::<f64>().map_or(Value::Null, Value::from);
    let bias: serde_json::Map<String, Value> =
        s.logit_bias.iter().map(|(id, b)| (id.to_string(), short(*b))).collect();
    json!({
        "temperature": short(s.temperature),
        "top_k": s.top_k,
        "top_p": short(s.top_p),
        "min_p": short(s.min_p),
        "repeat_penalty": short(s.repeat_penalty),
        "repeat_last_n": s.repeat_last_n,
        "presence_penalty": short(s.presence_penalty),
        "frequency_penalty": short(s.frequency_penalty),
        "logit_bias": bias,
    })
}

fn check(s: &Sampling) -> Result<()> {
    let rules = [
        ("temp", s.temperature.is_finite() && s.temperature >= 0.0, "a number from 0 up"),
        ("top-p", s.top_p > 0.0 && s.top_p <= 1.0, "a number above 0 and at most 1"),
        ("min-p", (0.0..=1.0).contains(&s.min_p), "a number from 0 to 1"),
        (
            "repeat-penalty",
            s.repeat_penalty.is_finite() && s.repeat_penalty > 0.0,
            "a number above 0",
        ),
        ("presence-penalty", s.presence_penalty.is_finite(), "a finite number"),
        ("frequency-penalty", s.frequency_penalty.is_finite(), "a finite number"),
    ];
    match rules.iter().find(|(_, ok, _)| !ok) {
        Some((key, _, want)) => Err(usage(key, format!("it takes {want}"))),
        None => Ok(()),
    }
}

fn usage(key: &str, why: String) -> Error {
    Error::new(
        Kind::Usage,
        format!("cannot set {key}"),
        why,
        "`snug run --help` lists the sampler flags",
    )
}

fn random_seed() -> u64 {
    // Short enough to type again; the standard library's hasher keys are random.
    RandomState::new().hash_one(std::process::id()) >> 32
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let split = text.find([':', '=', '+']).or_else(|| text.find('-'));
    let parsed = split.and_then(|at| {
        let (id, rest) = text.split_at(at);
        let bias = rest.strip_prefix([':', '=']).unwrap_or(rest);
        Some((id.parse().ok()?, bias.parse::<f32>().ok().filter(|b| !b.is_nan())?))
    });
    parsed.ok_or_else(|| "write it as ID:BIAS, for instance 262:-5 or 262:-inf".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_models_defaults_and_are_checked() {
        let defaults = Sampling { temperature: 0.7, top_k: 40, ..Sampling::default() };
        let mut args = SamplingArgs { seed: Some(7), top_k: Some(3), ..SamplingArgs::default() };
        let s = args.over(&defaults).unwrap();
        assert_eq!((s.temperature, s.top_k, s.seed), (0.7, 3, 7));
        args.set("temperature", "0.1").unwrap();
        assert_eq!(args.over(&defaults).unwrap().temperature, 0.1);
        for (key, value) in [
            ("temp", "-1"),
            ("temp", "nan"),
            ("top_p", "0"),
            ("min-p", "2"),
            ("repeat_penalty", "0"),
        ] {
            let mut args = args.clone();
            args.set(key, value).unwrap();
            assert_eq!(args.over(&defaults).unwrap_err().kind, Kind::Usage, "{key} {value}");
        }
        assert!(args.set("nonsense", "1").is_err());
        assert!(args.set("top-k", "-1").is_err());
    }

    #[test]
    fn biases_are_read_in_both_spellings() {
        assert_eq!(bias("262:-5").unwrap(), (262, -5.0));
        assert_eq!(bias("15043+1").unwrap(), (15043, 1.0));
        assert_eq!(bias("15043-1.5").unwrap(), (15043, -1.5));
        assert_eq!(bias("3:-inf").unwrap(), (3, f32::NEG_INFINITY));
        for bad in ["", "x:1", "3", "3:", "3:nan", "-1:2"] {
            assert!(bias(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn json_shows_the_numbers_people_wrote() {
        let s = Sampling { temperature: 0.7, ..Sampling::default() };
        assert_eq!(to_json(&s)["temperature"].to_string(), "0.7");
    }
}
