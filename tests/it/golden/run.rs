//! Drives a model on a backend, keeping all logits.

use std::path::Path;
use std::sync::Arc;

use snug::backend::cpu::Cpu;
use snug::backend::{Backend, Weight, Weights};
use snug::codec::Format;
use snug::import;
use snug::model::op::{Buf, Input, Rows, Sampling, Step, WeightId};
use snug::model::program::Program;
use snug::store::pack::{self, PackOptions};
use snug::store::reader::Store;

/// A program's weights in a store.
struct Stored {
    store: Store,
    /// By [`WeightId`], the index of the entry.
    entries: Vec<usize>,
}

impl Weights for Stored {
    fn weight(&self, id: WeightId) -> Weight<'_> {
        let entry = &self.store.entries()[self.entries[id.0 as usize]];
        Weight { format: entry.format, shape: entry.shape, parts: self.store.parts(entry) }
    }
}

/// A loaded model and the number of tokens it has seen.
pub struct Run {
    program: Arc<Program>,
    backend: Box<dyn Backend>,
    pos: u32,
}

impl Run {
    /// Loads a model on the CPU. Every weight of the program must be in the store, and no other.
    pub fn open(store: Store, capacity: usize, threads: usize) -> Run {
        let program = Arc::new(Program::read(&store.texts().config).unwrap());
        let find = |name: &str| {
            let at = store.entries().iter().position(|e| e.name == name);
            at.unwrap_or_else(|| panic!("the store has no {name}"))
        };
        let entries: Vec<usize> = program.weights.iter().map(|w| find(&w.name)).collect();
        assert_eq!(entries.len(), store.entries().len(), "weights that the program does not use");
        let weights = Arc::new(Stored { store, entries });
        let capacity = u32::try_from(capacity).unwrap();
        let mut backend = Cpu::new(program.clone(), weights, capacity, Some(threads)).unwrap();
        backend.set_sampling(&Sampling::default(), &[]).unwrap();
        Run { program, backend: Box::new(backend), pos: 0 }
    }

    /// One step; the logits of each of its tokens.
    fn step(&mut self, input: Input<'_>, sample: bool) -> Vec<Vec<f32>> {
        let vocab = self.program.config.vocab as usize;
        let step = Step { input, pos: self.pos, rows: Rows::All, sample };
        self.backend.run(&self.program, &step).unwrap();
        let mut flat = vec![f32::NAN; input.len() * vocab];
        self.backend.read(Buf::Logits, &mut flat).unwrap();
        self.pos += input.len() as u32;
        flat.chunks(vocab).map(<[f32]>::to_vec).collect()
    }

    /// Reads the prompt in steps of at most `chunk` tokens and replies with `count` tokens, the best one each time.
    /// Logits of every token but the last.
    pub fn greedy(
        &mut self,
        prompt: &[u32],
        chunk: usize,
        count: usize,
    ) -> (Vec<u32>, Vec<Vec<f32>>) {
        let chunk = chunk.min(self.backend.max_step() as usize);
        let mut rows = Vec::new();
        for (i, part) in prompt.chunks(chunk).enumerate() {
            let last = (i + 1) * chunk >= prompt.len();
            rows.extend(self.step(Input::Tokens(part), last));
        }
        let mut reply = vec![self.backend.token().unwrap()];
        while reply.len() < count {
            rows.extend(self.step(Input::Last, true));
            reply.push(self.backend.token().unwrap());
        }
        for (token, row) in reply.iter().zip(&rows[prompt.len() - 1..]) {
            assert_eq!(*token, best(row), "the token chosen is not the best one");
        }
        (reply, rows)
    }
}

/// The index of the largest logit, the first of equal ones.
fn best(row: &[f32]) -> u32 {
    let at = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
    (1..row.len()).fold(0, at) as u32
}

pub fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m, x| m.max(x.abs()))
}

/// Infinite where either is not a number.
pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let difference = |(a, b): (&f32, &f32)| (a - b).abs();
    a.iter()
        .zip(b)
        .map(difference)
        .fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { d.max(m) })
}

/// Where two lists of logits differ in a bit first.
pub fn first_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> Option<String> {
    assert_eq!(a.len(), b.len());
    for (position, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.len(), b.len());
        let differs = |i: &usize| a[*i].to_bits() != b[*i].to_bits();
        if let Some(i) = (0..a.len()).find(differs) {
            return Some(format!("token {position}, logit {i}: {:e} and {:e}", a[i], b[i]));
        }
    }
    None
}

/// Packs a directory or GGUF file; the new store, and how many of its weights are not bf16.
pub fn pack(from: &Path, format: Format, to: &Path) -> (Store, usize) {
    let source = import::open(from).unwrap();
    pack::pack(&*source, format, to, PackOptions::default(), &|_, _| {}, &|| false).unwrap();
    let store = Store::open(to).unwrap();
    let packed = store.entries().iter().filter(|e| e.format != Format::Bf16).count();
    (store, packed)
}
