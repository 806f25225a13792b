//! What a packed model can be shown to have kept, level by level. Each level is a comparison of bits; none follows from
//! another without being run.
//!
//! L0, decoded weights against their hashes or their source, is `store::verify`'s. Here: L1, every decoder of this machine
//! gives the same words; L2, the product of a packed matrix equals that of the same matrix in bf16; L3 and L4, so do the
//! logits and the greedy tokens of the whole model. [`device`] does the same on a GPU.

pub mod device;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use self::device::Prover;
use super::weights::{Stored, matching};
use crate::backend::cpu::{Cpu, Isa};
use crate::backend::{Backend, Weight, Weights};
use crate::codec::pairlut::{TILE, View};
use crate::codec::{Format, Parts, Shape, simd};
use crate::error::{Error, Kind, Result, visible};
use crate::model::config::{Activation, Config, Rope, RopeScaling};
use crate::model::op::{Buf, Input, Linear, Op, Rows, Sampling, Step, WeightId};
use crate::model::program::{Program, Role, WeightSpec};
use crate::num::rng::Stream;
use crate::store::{Entry, Store};

/// Told how much of how much is done.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);
/// Ends the work by an error.
pub type GoOn<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// Widths of step that a product is compared at: one token, and several that share a pass.
const WIDTHS: [usize; 3] = [1, 5, 8];

/// What a level compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// One line for people.
    pub said: String,
    /// How many values were compared.
    pub compared: u64,
}

/// Weights decoded into memory: the bf16 twin of a packed model.
struct Decoded {
    shapes: Vec<Shape>,
    words: Vec<Vec<u8>>,
}

impl Decoded {
    /// Every weight of a program.
    fn of(program: &Program, weights: &dyn Weights) -> Decoded {
        let ids: Vec<WeightId> = (0..program.weights.len() as u32).map(WeightId).collect();
        Decoded {
            shapes: program.weights.iter().map(|w| w.shape).collect(),
            words: ids.par_iter().map(|id| decode(&weights.weight(*id))).collect(),
        }
    }
}

impl Weights for Decoded {
    fn weight(&self, id: WeightId) -> Weight<'_> {
        let i = id.0 as usize;
        Weight { format: Format::Bf16, shape: self.shapes[i], parts: Parts(vec![&self.words[i]]) }
    }
}

/// A single weight of a store.
struct One<'a> {
    store: &'a Arc<Store>,
    entry: &'a Entry,
}

impl One<'_> {
    fn weight(&self) -> Weight<'_> {
        let (format, shape) = (self.entry.format, self.entry.shape);
        Weight { format, shape, parts: self.store.parts(self.entry) }
    }

    /// As it lies in the store.
    fn stored(&self) -> Arc<dyn Weights> {
        let index = self.store.entries().iter().position(|e| std::ptr::eq(e, self.entry));
        let entries = index.into_iter().collect();
        Arc::new(Stored { store: Arc::clone(self.store), entries, packs: false })
    }

    /// In bf16.
    fn decoded(&self) -> Arc<dyn Weights> {
        let words = vec![decode(&self.weight())];
        Arc::new(Decoded { shapes: vec![self.entry.shape], words })
    }
}

fn decode(weight: &Weight<'_>) -> Vec<u8> {
    let mut words = vec![0u16; weight.shape.len() as usize];
    let (codec, rows) = (weight.format.codec(), 0..weight.shape.rows);
    codec.decode_rows(weight.shape, &weight.parts, rows, &mut words);
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn mismatch(what: &str, why: String) -> Error {
    Error::new(
        Kind::Mismatch,
        what,
        why,
        "this is a fault of snug or of the machine: please report it",
    )
}

fn packed(store: &Store) -> Vec<&Entry> {
    store.entries().iter().filter(|e| e.format != Format::Bf16).collect()
}

/// L1: every instruction set of this machine decodes every record to the same words.
///
/// # Errors
/// `Mismatch` with the first word that differs, or what `go_on` returned.
pub fn decode_levels(store: &Store, progress: Progress<'_>, go_on: GoOn<'_>) -> Result<Proof> {
    let packed = packed(store);
    let of: u64 = packed.iter().map(|e| 2 * e.shape.len()).sum();
    let done = AtomicU64::new(0);
    packed.par_iter().try_for_each(|entry| {
        let parts = store.parts(entry);
        let view = View::trusted(entry.shape, &parts);
        (0..view.grid.row_blocks).into_par_iter().try_for_each(|block| {
            go_on()?;
            for i in 0..view.grid.records_per_row {
                same_words(entry, view.record_at(block, i), view.grid.tiles_in(i))?;
            }
            Ok::<(), Error>(())
        })?;
        let done = done.fetch_add(2 * entry.shape.len(), Ordering::Relaxed) + 2 * entry.shape.len();
        progress(done, of);
        Ok::<(), Error>(())
    })?;
    let levels: Vec<String> = simd::Level::available().iter().map(ToString::to_string).collect();
    let said = format!("{} packed tensors decode alike with {}", packed.len(), levels.join(", "));
    Ok(Proof { said, compared: of / 2 * (levels.len() as u64 - 1) })
}

fn same_words(entry: &Entry, record: &[u8], tiles: usize) -> Result<()> {
    let mut want = vec![0u16; tiles * TILE];
    simd::decode_record(record, tiles, &mut want);
    let mut got = vec![0u16; tiles * TILE];
    for level in simd::Level::available() {
        simd::decode_record_with(*level, record, tiles, &mut got);
        if let Some(at) = want.iter().zip(&got).position(|(a, b)| a != b) {
            let why = format!(
                "a record of {} decodes to {:#06x} at {at} with {level}, otherwise to {:#06x}",
                visible(&entry.name),
                got[at],
                want[at]
            );
            return Err(mismatch("two decoders disagree", why));
        }
    }
    Ok(())
}

/// L2: for every packed matrix, random inputs give the same output words as its bf16 twin, with every instruction set, and
/// at every width of step.
///
/// # Errors
/// `Mismatch` with the first output that differs, or what `go_on` returned.
pub fn products(
    store: &Arc<Store>,
    seed: u64,
    threads: Option<usize>,
    progress: Progress<'_>,
    go_on: GoOn<'_>,
) -> Result<Proof> {
    let packed = packed(store);
    let of: u64 = packed.iter().map(|e| e.shape.len()).sum();
    let mut draws = Stream::new(seed);
    let (mut done, mut compared) = (0, 0);
    for entry in &packed {
        let one = One { store, entry };
        let (cols, rows) = (entry.shape.cols as usize, entry.shape.rows as usize);
        let widest = WIDTHS[WIDTHS.len() - 1];
        let x: Vec<f32> = (0..widest * cols).map(|_| draws.normal()).collect();
        let want = product(Isa::best(), one.decoded(), entry.shape, threads, &x, widest)?;
        for isa in Isa::available() {
            for n in WIDTHS {
                go_on()?;
                let got = product(isa, one.stored(), entry.shape, threads, &x[..n * cols], n)?;
                compared += got.len() as u64;
                let differs = got.iter().zip(&want).position(|(a, b)| a.to_bits() != b.to_bits());
                if let Some(at) = differs {
                    let why = format!(
                        "row {} of {} gives {:e} ({:#010x}) with {}, its bf16 twin {:e} ({:#010x})",
                        at % rows,
                        visible(&entry.name),
                        got[at],
                        got[at].to_bits(),
                        isa.name(),
                        want[at],
                        want[at].to_bits()
                    );
                    return Err(mismatch("a packed product differs from bf16", why));
                }
            }
        }
        done += entry.shape.len();
        progress(2 * done, 2 * of);
    }
    let sets: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    let said = format!(
        "{} packed matrices give the output words of bf16 with {}, 1 to {} tokens at once",
        packed.len(),
        sets.join(", "),
        WIDTHS[WIDTHS.len() - 1]
    );
    Ok(Proof { said, compared })
}

/// `W·x` for `n` inputs, through the backend's own projection.
fn product(
    isa: Isa,
    weights: Arc<dyn Weights>,
    shape: Shape,
    threads: Option<usize>,
    x: &[f32],
    n: usize,
) -> Result<Vec<f32>> {
    let program = Arc::new(alone(shape));
    let mut cpu = Cpu::on(isa, Arc::clone(&program), weights, 8, threads)?;
    let tokens = vec![0; n];
    let step = Step { input: Input::Tokens(&tokens), pos: 0, rows: Rows::None, sample: false };
    let mut y = vec![0.0; n * shape.rows as usize];
    cpu.write(Buf::Hidden, x)?;
    cpu.write(Buf::Residual, &y)?;
    cpu.exec(&program.ops[0], &step)?;
    cpu.read(Buf::Residual, &mut y)?;
    Ok(y)
}

/// A program that multiplies by one matrix and does nothing else.
fn alone(shape: Shape) -> Program {
    let w = Linear { w: WeightId(0), bias: None };
    Program {
        config: Config {
            model_type: "one matrix".into(),
            hidden: shape.rows,
            layers: 0,
            heads: 1,
            kv_heads: 1,
            head_dim: 2,
            ffn: shape.cols,
            vocab: 1,
            max_positions: 8,
            norm_eps: 1e-5,
            activation: Activation::Silu,
            rope: Rope { theta: 1e4, dims: 2, scaling: RopeScaling::None },
            tied: true,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            windows: Vec::new(),
            attn_scale: 1.0,
        },
        ops: vec![Op::Proj { w, from: Buf::Hidden }],
        weights: vec![WeightSpec { name: "w".into(), shape, role: Role::Down }],
    }
}

/// Bytes that the bf16 twin of a packed model takes in memory.
pub fn twin_bytes(program: &Program) -> u64 {
    2 * program.parameters()
}

/// L3 and L4: the packed model and its bf16 twin run side by side on `prompt` and then on the greedy tokens; every logit
/// of every step is compared.
///
/// # Errors
/// `Mismatch` with the first logit or token that differs, or what `go_on` returned.
pub fn whole_model(
    store: &Arc<Store>,
    program: &Arc<Program>,
    prompt: &[u32],
    steps: u32,
    on: &Prover,
    progress: Progress<'_>,
    go_on: GoOn<'_>,
) -> Result<(Proof, Proof)> {
    let entries = matching(program, store)?;
    let stored = Arc::new(Stored { store: Arc::clone(store), entries, packs: false });
    let twin = Decoded::of(program, &*stored);
    let context = program.config.max_positions.min(prompt.len() as u32 + steps);
    let mut packed = on.open(program, stored, context, go_on)?;
    let mut plain = on.open(program, Arc::new(twin), context, go_on)?;
    let vocab = program.config.vocab as usize;
    let (mut a, mut b) = (vec![0f32; vocab], vec![0f32; vocab]);
    for backend in [&mut packed, &mut plain] {
        backend.set_sampling(&Sampling::default(), &[])?;
    }
    let (mut pos, mut next, mut compared) = (0u32, prompt.to_vec(), 0u32);
    while pos + next.len() as u32 <= context && compared < steps {
        let last = feed(&mut *packed, program, &next, pos, go_on)?;
        let twin = feed(&mut *plain, program, &next, pos, go_on)?;
        pos += next.len() as u32;
        packed.read(Buf::Logits, &mut a)?;
        plain.read(Buf::Logits, &mut b)?;
        if let Some(i) = a.iter().zip(&b).position(|(a, b)| a.to_bits() != b.to_bits()) {
            let why = format!("at position {pos}, token {i}: {:e}, its bf16 twin {:e}", a[i], b[i]);
            return Err(mismatch("the logits differ from bf16", why));
        }
        if last != twin {
            let why = format!("at position {pos}: token {last}, its bf16 twin {twin}");
            return Err(mismatch("the tokens differ from bf16", why));
        }
        next = vec![last];
        compared += 1;
        progress(u64::from(compared), u64::from(steps));
    }
    let logits = u64::from(compared) * vocab as u64;
    let said = format!("{compared} steps of {vocab} logits equal those of bf16");
    let tokens = format!("{compared} greedy tokens equal those of bf16");
    Ok((Proof { said, compared: logits }, Proof { said: tokens, compared: u64::from(compared) }))
}

/// Runs tokens in chunks and returns the token chosen after the last.
fn feed(
    backend: &mut dyn Backend,
    program: &Program,
    tokens: &[u32],
    pos: u32,
    go_on: GoOn<'_>,
) -> Result<u32> {
    let width = (backend.max_step() as usize).max(1);
    let chunks = tokens.len().div_ceil(width);
    for (i, chunk) in tokens.chunks(width).enumerate() {
        go_on()?;
        let last = i + 1 == chunks;
        let step = Step {
            input: Input::Tokens(chunk),
            pos: pos + (i * width) as u32,
            rows: if last { Rows::Last } else { Rows::None },
            sample: last,
        };
        backend.run(program, &step)?;
    }
    backend.token()
}
