//! Rotary tables, made on the host in float64 so that every backend and system turns by the same angles.

use std::f64::consts::TAU;

use crate::model::config::{Rope, RopeScaling};

/// Cosines and sines of positions 0, 1, …; rows are made when asked for.
///
/// Row p is `[cos · dims/2][sin · dims/2]` of the angles p·fᵢ, each times the attention factor, rounded to float32
/// once. Dimension i turns with dimension i + dims/2. The functions are those of `libm`, in Rust, so the same table
/// comes out on every system.
#[derive(Clone, Debug)]
pub struct RopeTable {
    rope: Rope,
    /// fᵢ within the trained context, in radians per token.
    frequencies: Vec<f64>,
    /// Multiplies both functions.
    scale: f64,
    rows: Vec<f32>,
}

impl RopeTable {
    /// An empty table.
    pub fn new(rope: &Rope) -> RopeTable {
        let scale = match rope.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        RopeTable { rope: rope.clone(), frequencies: frequencies(rope), scale, rows: Vec::new() }
    }

    /// Values in a row: half of them cosines, half sines.
    pub fn width(&self) -> usize {
        self.frequencies.len() * 2
    }

    /// Number of rows made so far.
    pub fn len(&self) -> u32 {
        self.rows.len().checked_div(self.width()).unwrap_or(0) as u32
    }

    /// True when no row has been made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the rows of all positions below `positions` that are missing.
    pub fn grow(&mut self, positions: u32) {
        let half = self.frequencies.len();
        for p in self.len()..positions {
            let stretched = self.stretched(p);
            let frequencies = stretched.as_ref().unwrap_or(&self.frequencies);
            let start = self.rows.len();
            self.rows.resize(start + 2 * half, 0.0);
            for (i, f) in frequencies.iter().enumerate() {
                let angle = f64::from(p) * f;
                self.rows[start + i] = (libm::cos(angle) * self.scale) as f32;
                self.rows[start + half + i] = (libm::sin(angle) * self.scale) as f32;
            }
        }
    }

    /// Cosines and sines of a position below [`RopeTable::len`].
    pub fn row(&self, position: u32) -> (&[f32], &[f32]) {
        let width = self.width();
        let start = position as usize * width;
        self.rows[start..start + width].split_at(width / 2)
    }

    /// All rows, `[len][width]`, for a device that keeps its own copy.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// The frequencies of a position beyond the trained context, where they depend on it: token p turns as the last
    /// token of a sequence of p + 1, whatever comes after it, so a prompt cut anywhere gives the same cache.
    fn stretched(&self, position: u32) -> Option<Vec<f64>> {
        match self.rope.scaling {
            RopeScaling::Dynamic { factor, original } if position >= original => {
                let share = (f64::from(position) + 1.0) / f64::from(original);
                let dims = f64::from(self.rope.dims);
                let stretch = factor * share - (factor - 1.0);
                let base = self.rope.theta * libm::pow(stretch, dims / (dims - 2.0));
                Some(series(base, self.rope.dims).collect())
            }
            _ => None,
        }
    }
}

/// base^(−2i/dims) for each pair of dimensions.
fn series(base: f64, dims: u32) -> impl Iterator<Item = f64> {
    (0..dims / 2).map(move |i| 1.0 / libm::pow(base, f64::from(2 * i) / f64::from(dims)))
}

/// Frequencies within the trained context.
fn frequencies(rope: &Rope) -> Vec<f64> {
    let plain = series(rope.theta, rope.dims);
    match rope.scaling {
        RopeScaling::None | RopeScaling::Dynamic { .. } => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
        RopeScaling::Llama3 { factor, low_freq, high_freq, original } => plain
            .map(|f| {
                let turns = f64::from(original) * f / TAU;
                if turns < low_freq {
                    f / factor
                } else if turns > high_freq {
                    f
                } else {
                    let kept = (turns - low_freq) / (high_freq - low_freq);
                    (1.0 - kept) * f / factor + kept * f
                }
            })
            .collect(),
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
            let (low, high) = ramp(rope, f64::from(original), beta_fast, beta_slow, truncate);
            plain
                .enumerate()
                .map(|(i, f)| {
                    let stretched = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * stretched + f * (1.0 - stretched)
                })
                .collect()
        }
    }
}

/// Where YaRN's ramp begins and ends, in pairs of dimensions: those that make `fast` and `slow` turns in the trained
/// context.
fn ramp(rope: &Rope, original: f64, fast: f64, slow: f64, truncate: bool) -> (f64, f64) {
    let dims = f64::from(rope.dims);
    let pair =
        |turns: f64| dims * libm::log(original / (turns * TAU)) / (2.0 * libm::log(rope.theta));
    let (mut low, mut high) = (pair(fast), pair(slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dims - 1.0));
    // A ramp of no width would divide zero by zero; the reference widens it by the same amount.
    if low == high { (low, high + 0.001) } else { (low, high) }
}
