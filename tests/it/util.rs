//! Small random models in memory, how differences are reported, and what a test does that cannot run.

use std::sync::Arc;

use snug::backend::cpu::{Cpu, Isa};
use snug::backend::{Backend, Weight, Weights};
use snug::codec::{Format, Parts, Shape};
use snug::model::op::{Buf, Input, Rows, Step, WeightId};
use snug::model::program::{Program, Role};
use snug::num::rng::Stream;
use snug::num::{bf16_to_f32, f32_to_bf16};

/// Says that a test is skipped for want of something. Where `CI` is set nothing is wanting, so there it fails.
#[track_caller]
pub fn skip(why: &str) {
    let ci = std::env::var("CI").is_ok_and(|v| !["", "0", "false"].contains(&v.as_str()));
    assert!(!ci, "CI must not skip: {why}");
    eprintln!("skipped: {why}");
}

/// A model in memory: the same weights as bf16 words and as stored bytes.
pub struct Model {
    pub program: Arc<Program>,
    pub words: Vec<Vec<u16>>,
    stored: Vec<(Format, Vec<Vec<u8>>)>,
}

impl Model {
    /// Random weights for a config, packed where packing helps when `format` says so. Rows of a matrix differ in
    /// scale, as those of attention heads do.
    pub fn random(config: &str, seed: u64, format: Format) -> Arc<Model> {
        let program = Program::read(config).unwrap();
        let mut stream = Stream::new(seed);
        let words =
            program.weights.iter().map(|spec| random_words(&mut stream, spec.shape, spec.role));
        let words = words.collect();
        Model::of(program, words, format)
    }

    /// A model of these words.
    pub fn of(program: Program, words: Vec<Vec<u16>>, format: Format) -> Arc<Model> {
        let stored = program.weights.iter().zip(&words).map(|(spec, words)| {
            let packed = format.codec().encode(spec.shape, words);
            packed.map_or_else(|| (Format::Bf16, bf16(words)), |parts| (format, parts))
        });
        Arc::new(Model { stored: stored.collect(), program: Arc::new(program), words })
    }

    /// The same weights in another format.
    pub fn stored_as(&self, format: Format) -> Arc<Model> {
        Model::of((*self.program).clone(), self.words.clone(), format)
    }

    /// How many weights are stored in a format.
    pub fn count(&self, format: Format) -> usize {
        self.stored.iter().filter(|s| s.0 == format).count()
    }

    /// Bytes as stored.
    pub fn stored_bytes(&self) -> u64 {
        self.stored.iter().flat_map(|s| &s.1).map(|p| p.len() as u64).sum()
    }

    /// The value at a row and column of a weight.
    pub fn at(&self, id: WeightId, row: usize, col: usize) -> f64 {
        let cols = self.program.weight(id).shape.cols as usize;
        f64::from(bf16_to_f32(self.words[id.0 as usize][row * cols + col]))
    }

    /// The weight of this name.
    pub fn id(&self, name: &str) -> WeightId {
        let at = self.program.weights.iter().position(|w| w.name == name);
        WeightId(at.unwrap_or_else(|| panic!("no weight {name}")) as u32)
    }

    /// A backend for it.
    pub fn on(self: &Arc<Model>, isa: Isa, threads: usize, capacity: u32) -> Cpu {
        Cpu::on(isa, self.program.clone(), self.clone(), capacity, Some(threads)).unwrap()
    }

    /// A backend for it on the best instruction set and two threads.
    pub fn cpu(self: &Arc<Model>, capacity: u32) -> Cpu {
        self.on(Isa::best(), 2, capacity)
    }
}

impl Weights for Model {
    fn weight(&self, id: WeightId) -> Weight<'_> {
        let (format, parts) = &self.stored[id.0 as usize];
        let parts = Parts(parts.iter().map(Vec::as_slice).collect());
        Weight { format: *format, shape: self.program.weight(id).shape, parts }
    }
}

fn bf16(words: &[u16]) -> Vec<Vec<u8>> {
    vec![words.iter().flat_map(|w| w.to_le_bytes()).collect()]
}

fn random_words(stream: &mut Stream, shape: Shape, role: Role) -> Vec<u16> {
    let deviation = 1.0 / (shape.cols as f32).sqrt();
    let mut words = Vec::new();
    for _ in 0..shape.rows {
        let scale = deviation * 2f32.powi(stream.below(5) as i32 - 2);
        for _ in 0..shape.cols {
            words.push(f32_to_bf16(match role {
                Role::Vector => 1.0 + 0.2 * stream.normal(),
                Role::Embed => stream.normal() * 2.0 * scale,
                _ => stream.normal() * scale,
            }));
        }
    }
    words
}

/// `count` normal values.
pub fn normals(stream: &mut Stream, count: usize) -> Vec<f32> {
    (0..count).map(|_| stream.normal()).collect()
}

/// `count` values from the start of a buffer.
pub fn read(cpu: &mut Cpu, buf: Buf, count: usize) -> Vec<f32> {
    let mut out = vec![0.0; count];
    cpu.read(buf, &mut out).unwrap();
    out
}

/// Runs `tokens` from position `pos` on in steps of up to `chunk`; returns all their logits.
pub fn logits(
    cpu: &mut Cpu,
    program: &Program,
    tokens: &[u32],
    pos: u32,
    chunk: usize,
) -> Vec<f32> {
    let vocab = program.config.vocab as usize;
    let mut all = Vec::new();
    let mut at = pos;
    for ids in tokens.chunks(chunk) {
        let step = Step { input: Input::Tokens(ids), pos: at, rows: Rows::All, sample: false };
        cpu.run(program, &step).unwrap();
        all.extend(read(cpu, Buf::Logits, ids.len() * vocab));
        at += ids.len() as u32;
    }
    all
}

/// Fails at the first value whose bits differ.
#[track_caller]
pub fn same_bits(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: number of values");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            g.to_bits() == w.to_bits(),
            "{what}: value {i} is {g} ({:#010x}), not {w} ({:#010x})",
            g.to_bits(),
            w.to_bits()
        );
    }
}
