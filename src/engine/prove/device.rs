//! The same levels on a GPU: each run of the packed model is held against its bf16 twin on the same device. And how far two
//! devices agree with each other.

use std::sync::Arc;

use rayon::prelude::*;

use super::{Decoded, GoOn, Progress, Proof, decode, feed, mismatch};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::{self, Cuda, driver};
use crate::backend::{self, Backend, Device, Weights};
use crate::codec::Format;
use crate::engine::weights::{Stored, matching};
use crate::error::{Error, Kind, Result, visible};
use crate::model::op::{Buf, Input, Op, Rows, Sampling, Step, WeightId};
use crate::model::program::Program;
use crate::num::rng::Stream;
use crate::store::Store;

/// Widths of step that ops are compared at: the matrix-vector kernels, and unpacked matrices for wide steps.
const WIDTHS: [u32; 4] = [1, 5, 8, 40];
/// Widest step of which every row of logits is compared.
const ALL_ROWS: u32 = 8;
/// Logits of two devices may differ by this share of the largest one: the GPU keeps inputs of products as bf16.
const TOLERANCE: f32 = 1.0 / 32.0;

/// Where a level is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prover {
    /// On the CPU, with this many threads.
    Cpu(Option<usize>),
    /// On the GPU of this index.
    Cuda(usize),
}

impl Prover {
    /// The device that `run` would choose.
    ///
    /// # Errors
    /// `Usage` for a script, which computes nothing; `NoGpu` when there is no such GPU.
    pub fn of(device: &Device, threads: Option<usize>) -> Result<Prover> {
        match device {
            Device::Auto => Prover::of(&device.chosen().0, threads),
            Device::Cpu => Ok(Prover::Cpu(threads)),
            Device::Cuda(index) => Ok(Prover::Cuda(driver::find(&index.to_string())?)),
            Device::Scripted(_) => Err(Error::new(
                Kind::Usage,
                "cannot prove anything on this device",
                "a script computes nothing",
                "use --device cpu or cuda",
            )),
        }
    }

    /// `cpu` or `cuda:0`.
    pub fn id(&self) -> String {
        match self {
            Prover::Cpu(_) => "cpu".into(),
            Prover::Cuda(index) => format!("cuda:{index}"),
        }
    }

    /// Its product name and instruction set.
    pub fn name(&self) -> String {
        let gpu = |index: usize| driver::devices().ok()?.into_iter().find(|d| d.index == index);
        match self {
            Prover::Cpu(_) => format!("{}, {}", backend::cpu_name(), backend::cpu_path()),
            Prover::Cuda(index) => gpu(*index).map_or_else(String::new, |d| {
                format!("{}, sm_{}{}", visible(&d.name), d.capability.0, d.capability.1)
            }),
        }
    }

    /// Loads a program there.
    pub(super) fn open(
        &self,
        program: &Arc<Program>,
        weights: Arc<dyn Weights>,
        capacity: u32,
        go_on: GoOn<'_>,
    ) -> Result<Box<dyn Backend>> {
        let program = Arc::clone(program);
        Ok(match self {
            Prover::Cpu(threads) => Box::new(Cpu::new(program, weights, capacity, *threads)?),
            Prover::Cuda(index) => {
                let options = cuda::Options { index: *index, capacity, ..Default::default() };
                Box::new(Cuda::new(program, &*weights, options, &|_, _| go_on())?)
            }
        })
    }
}

/// The packed weights of a model in its store, and their bf16 twin in memory.
fn twins(store: &Arc<Store>, program: &Program) -> Result<(Stored, Decoded)> {
    let stored =
        Stored { store: Arc::clone(store), entries: matching(program, store)?, packs: false };
    let twin = Decoded::of(program, &stored);
    Ok((stored, twin))
}

/// L1 on a GPU: its decoder gives the words that the CPU's gives.
///
/// # Errors
/// `Mismatch` with the first word that differs, or what `go_on` returned.
pub fn decoder(
    store: &Arc<Store>,
    program: &Arc<Program>,
    index: usize,
    progress: Progress<'_>,
    go_on: GoOn<'_>,
) -> Result<Proof> {
    let stored =
        Stored { store: Arc::clone(store), entries: matching(program, store)?, packs: false };
    let options = cuda::Options { index, capacity: 64, ..Default::default() };
    let gpu = Cuda::new(Arc::clone(program), &stored, options, &|_, _| go_on())?;
    let of = program.parameters();
    let (mut done, mut compared, mut tensors) = (0, 0, 0);
    for (i, spec) in program.weights.iter().enumerate() {
        go_on()?;
        let id = WeightId(i as u32);
        let weight = stored.weight(id);
        if weight.format != Format::Bf16 {
            let (got, want) = (gpu.unpacked(id)?, decode(&weight));
            let want = want.as_chunks::<2>().0;
            let differs = got.par_iter().zip(want).position_first(|(a, b)| a.to_le_bytes() != *b);
            if let Some(at) = differs {
                let (row, col) = (at / spec.shape.cols as usize, at % spec.shape.cols as usize);
                let why = format!(
                    "row {row}, column {col} of {} decodes to {:#06x} on the GPU, otherwise to {:#06x}",
                    visible(&spec.name),
                    got[at],
                    u16::from_le_bytes(want[at])
                );
                return Err(mismatch("two decoders disagree", why));
            }
            compared += spec.shape.len();
            tensors += 1;
        }
        done += spec.shape.len();
        progress(2 * done, 2 * of);
    }
    Ok(Proof { said: format!("{tensors} packed tensors decode alike on the GPU"), compared })
}

/// L2 on a GPU: every op that multiplies gives the same words with packed and with bf16 weights, with either kind of copies
/// and at every width of step.
///
/// # Errors
/// `Mismatch` with the first output that differs, or what `go_on` returned.
pub fn products(
    store: &Arc<Store>,
    program: &Arc<Program>,
    seed: u64,
    index: usize,
    progress: Progress<'_>,
    go_on: GoOn<'_>,
) -> Result<Proof> {
    let (stored, twin) = twins(store, program)?;
    let runs: [(&dyn Weights, &str, bool); 4] = [
        (&twin, "bf16", false),
        (&twin, "bf16 weights and portable kernels", true),
        (&stored, "packed weights", false),
        (&stored, "packed weights and portable kernels", true),
    ];
    let capacity = program.config.max_positions.min(64);
    let mut want: Vec<Vec<f32>> = Vec::new();
    let (mut compared, mut done) = (0, 0);
    let of = (runs.len() * program.ops.len() * WIDTHS.len()) as u64;
    for (run, (weights, name, portable)) in runs.into_iter().enumerate() {
        let options = cuda::Options { index, capacity, ..Default::default() };
        let options = cuda::Options { portable, ..options };
        let mut gpu = Cuda::new(Arc::clone(program), weights, options, &|_, _| go_on())?;
        gpu.poison(0xff)?;
        let mut at = 0;
        outputs(&mut gpu, program, seed, &mut |op, n, got| {
            go_on()?;
            if run == 0 {
                want.push(got);
            } else {
                same(op, n, name, &got, &want[at])?;
                compared += got.len() as u64;
            }
            at += 1;
            done += 1;
            progress(done, of);
            Ok(())
        })?;
    }
    let said = format!(
        "every product of the model gives the output words of bf16, portable kernels or not, {} tokens at once",
        WIDTHS.map(|n| n.to_string()).join(", ")
    );
    Ok(Proof { said, compared })
}

fn same(op: &Op, n: u32, name: &str, got: &[f32], want: &[f32]) -> Result<()> {
    let Some(at) = got.iter().zip(want).position(|(a, b)| a.to_bits() != b.to_bits()) else {
        return Ok(());
    };
    let why = format!(
        "output {at} of {op:?}, {n} tokens, is {:e} ({:#010x}) with {name}, {:e} ({:#010x}) with bf16",
        got[at],
        got[at].to_bits(),
        want[at],
        want[at].to_bits(),
    );
    Err(mismatch("a packed product differs from bf16", why))
}

/// Takes an op, the tokens of its step and what it wrote.
type Each<'a> = &'a mut dyn FnMut(&Op, u32, Vec<f32>) -> Result<()>;

/// Runs every op that reads a matrix on random inputs, the same for the same seed, and hands out what it wrote.
fn outputs(gpu: &mut Cuda, program: &Program, seed: u64, each: Each<'_>) -> Result<()> {
    let c = &program.config;
    let mut draws = Stream::new(seed);
    // Wide steps need that many positions.
    let most = gpu.capacity();
    for n in WIDTHS.into_iter().filter(|n| *n <= most) {
        let tokens: Vec<u32> = (0..n).map(|_| draws.below(c.vocab)).collect();
        let all = n <= ALL_ROWS;
        let rows = if all { Rows::All } else { Rows::Last };
        let step = Step { input: Input::Tokens(&tokens), pos: 0, rows, sample: false };
        for op in &program.ops {
            let (out, width) = match op {
                Op::Embed { .. } | Op::Proj { .. } => (Buf::Residual, n * c.hidden),
                Op::Qkv { .. } => (Buf::Query, n * (c.heads + 2 * c.kv_heads) * c.head_dim),
                Op::GateUp { .. } => (Buf::Hidden, n * c.ffn),
                Op::Head { .. } => (Buf::Logits, if all { n * c.vocab } else { c.vocab }),
                Op::Attend { .. } | Op::Sample => continue,
            };
            if !matches!(op, Op::Embed { .. }) {
                let mut random =
                    |width: u32| -> Vec<f32> { (0..n * width).map(|_| draws.normal()).collect() };
                gpu.write(Buf::Residual, &random(c.hidden))?;
                match op {
                    Op::Proj { from: Buf::Context, .. } => {
                        gpu.write(Buf::Context, &random(c.heads * c.head_dim))?;
                    }
                    Op::Proj { .. } => gpu.write(Buf::Hidden, &random(c.ffn))?,
                    _ => {}
                }
            }
            gpu.exec(op, &step)?;
            let mut got = vec![0f32; width as usize];
            gpu.read(out, &mut got)?;
            each(op, n, got)?;
        }
    }
    Ok(())
}

/// Greedy tokens of one model on two devices, `steps` of them, with the logits of every step compared within
/// [`TOLERANCE`]. Where the tokens part, the two best logits were closer than the devices are, and the rest of the text is
/// another one: there it ends.
///
/// # Errors
/// `Mismatch` where logits are further apart, or what `go_on` returned.
pub fn two_devices(
    store: &Arc<Store>,
    program: &Arc<Program>,
    prompt: &[u32],
    steps: u32,
    (a, b): (&Prover, &Prover),
    progress: Progress<'_>,
    go_on: GoOn<'_>,
) -> Result<Proof> {
    let entries = matching(program, store)?;
    let weights: Arc<dyn Weights> =
        Arc::new(Stored { store: Arc::clone(store), entries, packs: false });
    let context = program.config.max_positions.min(prompt.len() as u32 + steps);
    let mut first = a.open(program, Arc::clone(&weights), context, go_on)?;
    let mut second = b.open(program, weights, context, go_on)?;
    let names = [a.id(), b.id()];
    side_by_side([&mut *first, &mut *second], names, program, prompt, steps, progress, go_on)
}

/// [`two_devices`], loaded.
fn side_by_side(
    mut pair: [&mut dyn Backend; 2],
    [a, b]: [String; 2],
    program: &Program,
    prompt: &[u32],
    steps: u32,
    progress: Progress<'_>,
    go_on: GoOn<'_>,
) -> Result<Proof> {
    let context = pair[0].capacity().min(pair[1].capacity());
    let vocab = program.config.vocab as usize;
    let mut logits = [vec![0f32; vocab], vec![0f32; vocab]];
    for backend in &mut pair {
        backend.set_sampling(&Sampling::default(), &[])?;
    }
    let (mut pos, mut next, mut compared, mut furthest) = (0u32, prompt.to_vec(), 0u32, 0f32);
    while pos + next.len() as u32 <= context && compared < steps {
        let mut chosen = [0; 2];
        for ((backend, logits), chosen) in pair.iter_mut().zip(&mut logits).zip(&mut chosen) {
            *chosen = feed(&mut **backend, program, &next, pos, go_on)?;
            backend.read(Buf::Logits, logits)?;
        }
        pos += next.len() as u32;
        compared += 1;
        let far = distance(&logits[0], &logits[1]);
        furthest = furthest.max(far);
        if far.is_nan() || far > TOLERANCE {
            let why = format!(
                "at position {pos} they are {far:.4} of the largest logit apart, at most {TOLERANCE:.4} is expected"
            );
            return Err(mismatch("the logits of two devices differ", why));
        }
        if chosen[0] != chosen[1] {
            let margin = |l: &[f32]| l[chosen[0] as usize] - l[chosen[1] as usize];
            let said = format!(
                "{} equal tokens on {} and {}, then {} and {}: the first leads by {:.4} on {}, by {:.4} on {}; logits at most {furthest:.4} apart",
                compared - 1,
                a,
                b,
                chosen[0],
                chosen[1],
                margin(&logits[0]),
                a,
                margin(&logits[1]),
                b,
            );
            return Ok(Proof { said, compared: u64::from(compared) });
        }
        next = vec![chosen[0]];
        progress(u64::from(compared), u64::from(steps));
    }
    let said = format!(
        "{compared} greedy tokens are the same on {} and {}; logits at most {furthest:.4} of the largest apart",
        a, b
    );
    Ok(Proof { said, compared: u64::from(compared) })
}

/// The largest difference as a share of the largest value; NaN where one is.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let size = b.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
    let far = a.iter().zip(b).fold(0f32, |m, (x, y)| {
        let d = (x - y).abs();
        if d.is_nan() {
            f32::NAN
        } else if m.is_nan() {
            m
        } else {
            m.max(d)
        }
    });
    far / size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::num::f32_to_bf16;

    #[test]
    fn distances_are_shares_and_nan_is_never_near() {
        assert_eq!(distance(&[1.0, 2.0], &[1.0, 4.0]), 0.5);
        assert_eq!(distance(&[1.0], &[1.0]), 0.0);
        assert!(distance(&[f32::NAN, 1.0], &[1.0, 1.0]).is_nan());
        assert!(distance(&[1.0, f32::NAN, 1.0], &[1.0, f32::NAN, 5.0]).is_nan());
    }

    /// Random weights; `change` is what another device makes of each word.
    fn model(program: &Arc<Program>, change: impl Fn(u16, u64) -> u16) -> Cpu {
        let mut draws = Stream::new(12);
        let mut words = Vec::new();
        for spec in &program.weights {
            let one = f32::from(u8::from(spec.shape.rows == 1));
            let word = |draws: &mut Stream| {
                let w = f32_to_bf16(one + 0.1 * draws.normal());
                change(w, draws.next_u64()).to_le_bytes()
            };
            words.push((0..spec.shape.len()).flat_map(|_| word(&mut draws)).collect());
        }
        let shapes = program.weights.iter().map(|w| w.shape).collect();
        let weights = Arc::new(Decoded { shapes, words });
        Cpu::new(Arc::clone(program), weights, 300, Some(1)).unwrap()
    }

    #[test]
    fn devices_agree_or_part_at_a_tie_or_are_told_apart() {
        let config = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 700,
            "max_position_embeddings": 300, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true}"#;
        let program = Arc::new(Program::read(config).unwrap());
        let compare = |other: &mut Cpu, prompt: &[u32]| {
            let mut one = model(&program, |w, _| w);
            let names = ["one".into(), "other".into()];
            let go_on = || Ok(());
            side_by_side([&mut one, other], names, &program, prompt, 200, &|_, _| (), &go_on)
        };
        let same = compare(&mut model(&program, |w, _| w), &[3, 1, 4]).unwrap();
        assert_eq!(same.compared, 200);
        assert!(
            same.said.starts_with("200 greedy tokens are the same on one and other"),
            "{same:?}"
        );
        // The last bit of some weights: logits move a little, and where two are close the texts part.
        let close = |w: u16, draw: u64| w ^ u16::from(draw.is_multiple_of(4));
        let parted = (0..40).find_map(|id| {
            let proof = compare(&mut model(&program, close), &[id]).unwrap();
            (proof.compared < 200).then_some(proof)
        });
        let parted = parted.expect("one of forty prompts leads past a tie");
        let equal = format!("{} equal tokens on one and other, then ", parted.compared - 1);
        assert!(parted.said.starts_with(&equal) && parted.said.contains("leads by"), "{parted:?}");
        // Other weights are another model.
        let error = compare(&mut model(&program, |w, draw| w ^ (draw as u16 & 0x40)), &[3, 1, 4]);
        assert_eq!(error.unwrap_err().kind, Kind::Mismatch);
    }
}
