//! Random weights in the shape of a real model, so that speed can be measured without one.
//!
//! Values follow what trained weights look like to a codec: normal, each row of its own scale, with a few outliers. One
//! matrix of each shape is drawn and encoded and stands for all of its shape; a device that copies weights gets as
//! many copies as there are layers, and so does a CPU backend that reads in place ([`Synthetic::spread_out`]).

use std::sync::Arc;

use rayon::prelude::*;

use crate::backend::{Weight, Weights};
use crate::codec::{Format, Parts, Shape};
use crate::model::op::WeightId;
use crate::model::program::{Program, Role};
use crate::num::rng::{Stream, draw};
use crate::num::{bf16_to_f32, f32_to_bf16};

/// Shapes that can be asked for by name, as config.json.
pub const SHAPES: &[(&str, &str)] = &[
    (
        "llama-3.1-8b",
        r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": false}"#,
    ),
    (
        "llama-3.2-1b",
        r#"{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
        "tie_word_embeddings": true}"#,
    ),
    (
        "qwen3-8b",
        r#"{"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
        "tie_word_embeddings": false}"#,
    ),
    (
        "smollm2-135m",
        r#"{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000, "hidden_act": "silu",
        "tie_word_embeddings": true}"#,
    ),
];

/// The config.json of a shape that has a name.
pub fn shape(name: &str) -> Option<&'static str> {
    SHAPES.iter().find(|(n, _)| *n == name).map(|(_, config)| *config)
}

/// Draws that all weights are made of.
const POOL: usize = 1 << 20;
/// Draws that are taken from one place of it.
const RUN: usize = 1 << 12;
/// Deviation of the median row.
const DEVIATION: f32 = 0.02;
/// Deviation of the logarithm (base 2) of a row's scale.
const ROW_SPREAD: f32 = 0.3;
/// One draw in this many is an outlier, this many times as large.
const OUTLIERS: (u32, f32) = (500, 6.0);

/// A stored matrix.
type Stored = (Format, Shape, Arc<Vec<Vec<u8>>>);

/// The weights of a program, drawn.
pub struct Synthetic {
    /// By [`WeightId`].
    list: Vec<Stored>,
}

impl Synthetic {
    /// Draws and encodes one weight of every shape: matrices in `format` where that makes them smaller.
    pub fn new(program: &Program, format: Format) -> Synthetic {
        let pool = pool();
        let mut made: Vec<(Role, Stored)> = Vec::new();
        let mut list = Vec::new();
        for spec in &program.weights {
            let vector = spec.role == Role::Vector;
            let same = |(role, (_, shape, _)): &&(Role, Stored)| {
                *shape == spec.shape && (*role == Role::Vector) == vector
            };
            let stored = match made.iter().find(same) {
                Some((_, stored)) => stored.clone(),
                None => {
                    let stored = encoded(spec.shape, vector, format, &pool);
                    made.push((spec.role, stored.clone()));
                    stored
                }
            };
            list.push(stored);
        }
        Synthetic { list }
    }

    /// The same with memory of its own for every weight, as a file has: what reads it in place finds nothing of one
    /// layer in the cache of another.
    pub fn spread_out(mut self) -> Synthetic {
        let own = |(_, _, parts): &mut Stored| *parts = Arc::new(Vec::clone(parts));
        self.list.par_iter_mut().for_each(own);
        self
    }

    /// Bytes of all weights.
    pub fn bytes(&self) -> u64 {
        let parts = self.list.iter().flat_map(|(_, _, parts)| parts.iter());
        parts.map(|p| p.len() as u64).sum()
    }
}

impl Weights for Synthetic {
    fn weight(&self, id: WeightId) -> Weight<'_> {
        let (format, shape, parts) = &self.list[id.0 as usize];
        let parts = Parts(parts.iter().map(Vec::as_slice).collect());
        Weight { format: *format, shape: *shape, parts }
    }
}

/// The words of a random matrix.
pub fn words(shape: Shape) -> Vec<u16> {
    values(shape, false, &pool())
}

fn encoded(shape: Shape, vector: bool, format: Format, pool: &[f32]) -> Stored {
    let words = values(shape, vector, pool);
    let formats = if vector { [Format::Bf16; 2] } else { [format, Format::Bf16] };
    let encode = |f: Format| Some((f, f.codec().encode(shape, &words)?));
    let (format, parts) =
        formats.into_iter().find_map(encode).expect("every tensor has a bf16 form");
    (format, shape, Arc::new(parts))
}

/// Standard normal draws, some of them outliers.
fn pool() -> Vec<f32> {
    let mut pool = vec![0f32; POOL];
    pool.par_chunks_mut(RUN).enumerate().for_each(|(i, run)| {
        let mut stream = Stream::new(i as u64);
        for v in run {
            let far = stream.below(OUTLIERS.0) == 0;
            *v = stream.normal() * if far { OUTLIERS.1 } else { 1.0 };
        }
    });
    pool
}

/// The words of a weight. Norms are near one; rows of a matrix have scales of their own.
fn values(shape: Shape, vector: bool, pool: &[f32]) -> Vec<u16> {
    let mut words = vec![0u16; shape.len() as usize];
    let cols = shape.cols as usize;
    words.par_chunks_mut(cols).enumerate().for_each(|(row, words)| {
        let mut stream = Stream::new(draw(shape.len(), row as u64));
        let scale = DEVIATION * (ROW_SPREAD * stream.normal()).exp2();
        for run in words.chunks_mut(RUN) {
            let from = stream.below((POOL - RUN) as u32) as usize;
            for (word, z) in run.iter_mut().zip(&pool[from..]) {
                *word = f32_to_bf16(if vector { 1.0 + 0.1 * z } else { scale * z });
            }
        }
    });
    debug_assert!(words.iter().all(|w| bf16_to_f32(*w).is_finite()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_can_be_read_and_weights_look_trained() {
        for (name, config) in SHAPES {
            let program = Program::read(config).unwrap();
            assert!(program.parameters() > 100_000_000, "{name}");
        }
        let small = r#"{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
            "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 3000,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true}"#;
        let program = Program::read(small).unwrap();
        let made = Synthetic::new(&program, Format::Pairlut).spread_out();
        let (mut weights, mut bytes) = (0, 0);
        for (i, spec) in program.weights.iter().enumerate() {
            let w = made.weight(WeightId(i as u32));
            assert_eq!(w.shape, spec.shape, "{}", spec.name);
            w.format.codec().validate(w.shape, &w.parts).unwrap();
            assert_eq!(w.format == Format::Bf16, spec.role == Role::Vector, "{}", spec.name);
            if spec.role != Role::Vector {
                weights += w.shape.len();
                bytes += w.parts.0.iter().map(|p| p.len() as u64).sum::<u64>();
            }
        }
        let bits = 8.0 * bytes as f64 / weights as f64;
        assert!(
            (11.2..11.4).contains(&bits),
            "{bits} bits a weight; checkpoints have 11.27 to 11.31"
        );
        // No two weights share memory, so that nothing is read from a cache that a real model would not find there.
        let mut starts: Vec<*const u8> = (0..program.weights.len() as u32)
            .flat_map(|i| {
                made.weight(WeightId(i)).parts.0.iter().map(|p| p.as_ptr()).collect::<Vec<_>>()
            })
            .collect();
        let all = starts.len();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), all);
    }
}
