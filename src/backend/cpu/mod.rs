//! The CPU backend: the definition of every op, and the fallback for users, so both exact and fast.
//!
//! Activations and cache are float32, weights are read where they lie and never expanded. Every value is computed in
//! an order that depends on its position alone: not on the number of tokens in the step, not on threads, not on the
//! instruction set, not on how the weights are packed.

mod attend;
mod cache;
mod embed;
mod gate_up;
mod head;
mod matvec;
mod norm;
mod pool;
mod product;
mod proj;
mod qkv;
mod sample;
mod simd;

use std::collections::VecDeque;
use std::sync::Arc;

use self::attend::{Attention, Heads};
use self::cache::{Cache, Vector};
use self::matvec::{BLOCK, Math, Strip};
use self::pool::{Pool, Scratch};
use self::qkv::Qkv;
pub use self::sample::{Sampler, check_sampling};
pub use self::simd::{Isa, processor};
use super::{Backend, Card, Ledger, Weights};
use crate::error::{Error, Kind, Result};
use crate::model::kv::{KvFormat, KvLayout};
use crate::model::memory::Widths;
use crate::model::op::{Buf, Linear, Op, Rows, Sampling, Step, WeightId};
use crate::model::program::{Program, Role};
use crate::model::rope::RopeTable;
use crate::num::bf16_to_f32;

/// A program on the processor's cores.
pub struct Cpu {
    program: Arc<Program>,
    weights: Arc<dyn Weights>,
    vectors: Vectors,
    weight_bytes: u64,
    /// Bytes of the matrices that every token reads.
    matrix_bytes: u64,
    pool: Pool,
    math: Math,
    capacity: u32,
    max_step: u32,
    bufs: Buffers,
    cache: Cache,
    rope: RopeTable,
    /// Rows of logits that the last step computed.
    logit_rows: usize,
    sampler: Sampler,
    /// The tokens in the cache.
    history: Vec<u32>,
    /// The last token chosen.
    sampled: Option<u32>,
    /// Chosen tokens that nobody has taken.
    tokens: VecDeque<u32>,
}

/// Norm weights and biases, widened; nothing for matrices.
#[derive(Default)]
struct Vectors(Vec<Vec<f32>>);

impl Vectors {
    fn get(&self, id: WeightId) -> &[f32] {
        &self.0[id.0 as usize]
    }

    fn bias(&self, of: Linear) -> Option<&[f32]> {
        of.bias.map(|id| self.get(id))
    }
}

/// Buffers between ops, for the widest step.
struct Buffers {
    residual: Vec<f32>,
    query: Vec<f32>,
    context: Vec<f32>,
    hidden: Vec<f32>,
    logits: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// The input of a matrix, laid out for it.
    strips: Vec<Strip>,
    /// The output of matrices, `[row block][token][16]`.
    stage: Vec<f32>,
    /// The same for several rows of logits.
    head_stage: Vec<f32>,
    /// States of attention.
    states: Vec<Vector>,
    /// One row of the embedding.
    row: Vec<u16>,
}

impl Buffers {
    fn new(widths: &Widths, max_step: usize, states: usize) -> Buffers {
        let floats = |width: usize| vec![0.0; width * max_step];
        Buffers {
            residual: floats(widths.residual),
            query: floats(widths.attention),
            context: floats(widths.attention),
            hidden: floats(widths.hidden),
            logits: vec![0.0; widths.logits],
            keys: floats(widths.kv),
            values: floats(widths.kv),
            strips: vec![[0.0; 32]; widths.input() / 32 * max_step],
            stage: floats(widths.output()),
            head_stage: Vec::new(),
            states: vec![[0.0; 16]; states],
            row: vec![0; widths.residual],
        }
    }

    fn floats(&mut self) -> [&mut Vec<f32>; 9] {
        [
            &mut self.residual,
            &mut self.query,
            &mut self.context,
            &mut self.hidden,
            &mut self.logits,
            &mut self.keys,
            &mut self.values,
            &mut self.stage,
            &mut self.head_stage,
        ]
    }

    fn bytes(&self) -> usize {
        let floats = [
            &self.residual,
            &self.query,
            &self.context,
            &self.hidden,
            &self.logits,
            &self.keys,
            &self.values,
            &self.stage,
            &self.head_stage,
        ];
        floats.map(|f| size_of_val(&**f)).iter().sum::<usize>()
            + size_of_val(&*self.strips)
            + size_of_val(&*self.states)
            + size_of_val(&*self.row)
    }

    fn grow_logits(&mut self, len: usize) -> Result<()> {
        grow(&mut self.logits, len)
    }

    fn grow_head_stage(&mut self, len: usize) -> Result<()> {
        grow(&mut self.head_stage, len)
    }
}

fn grow(buffer: &mut Vec<f32>, len: usize) -> Result<()> {
    if buffer.len() >= len {
        return Ok(());
    }
    buffer.try_reserve_exact(len - buffer.len()).map_err(|e| {
        Error::new(
            Kind::DoesNotFit,
            "cannot keep the logits of all tokens",
            e.to_string(),
            "ask for those of fewer tokens at a time",
        )
    })?;
    buffer.resize(len, 0.0);
    Ok(())
}

/// How many tokens a step should carry: enough to pay for decoding the weights once, few enough that a step ends soon
/// after it was told to stop. A whole number of passes of the product.
fn step_width(program: &Program) -> u32 {
    const MULTIPLY_ADDS: u64 = 1 << 34;
    let tokens = MULTIPLY_ADDS / program.parameters().max(1);
    (tokens.clamp(24, 192) / matvec::TOGETHER as u64 * matvec::TOGETHER as u64) as u32
}

impl Cpu {
    /// Loads a program: `capacity` tokens of context at most, `threads` workers or one per core.
    ///
    /// # Errors
    /// `Kind::BadFile` when a weight is not of the shape that the program says.
    pub fn new(
        program: Arc<Program>,
        weights: Arc<dyn Weights>,
        capacity: u32,
        threads: Option<usize>,
    ) -> Result<Cpu> {
        Cpu::on(Isa::best(), program, weights, capacity, threads)
    }

    /// [`Cpu::new`] with a given instruction set.
    pub fn on(
        isa: Isa,
        program: Arc<Program>,
        weights: Arc<dyn Weights>,
        capacity: u32,
        threads: Option<usize>,
    ) -> Result<Cpu> {
        let loaded = Loaded::read(&program, &*weights)?;
        let widths = Widths::of(&program);
        let max_step = step_width(&program).min(capacity.max(1));
        let c = &program.config;
        let cache = Cache::new(KvLayout::of(&program, capacity, KvFormat::F32));
        let (heads, step, dim) = (c.heads as usize, max_step as usize, c.head_dim as usize);
        let states = attend::work_vectors(&cache, heads, step, capacity as usize);
        let pool = Pool::new(threads, || Scratch {
            product: matvec::Scratch::new(widths.input(), step),
            side: vec![0.0; BLOCK * step],
            attend: attend::Scratch::new(dim),
        })?;
        Ok(Cpu {
            vectors: loaded.vectors,
            weight_bytes: loaded.bytes,
            matrix_bytes: loaded.matrix_bytes,
            pool,
            math: Math::new(isa),
            capacity,
            max_step,
            bufs: Buffers::new(&widths, step, states),
            cache,
            rope: RopeTable::new(&c.rope),
            logit_rows: 0,
            sampler: Sampler::new(isa, c.vocab as usize),
            history: Vec::with_capacity(capacity as usize),
            sampled: None,
            tokens: VecDeque::with_capacity(4),
            program,
            weights,
        })
    }

    /// Overwrites all memory that holds nothing true: scratch, buffers, and the cache beyond its tokens. A test that
    /// does so between steps, with NaN, shows that none of it is read.
    pub fn poison(&mut self, with: f32) {
        self.pool.poison();
        self.cache.poison(with);
        self.bufs.floats().into_iter().for_each(|f| f.fill(with));
        self.bufs.strips.fill([with; 32]);
        self.bufs.states.fill([with; 16]);
    }

    /// The input of a matrix: RMSNorm of the residual of each token.
    fn norm_into_strips(&mut self, norm: WeightId, n: usize) {
        let hidden = self.bufs.row.len();
        let width = hidden.div_ceil(64) * 2;
        let weight = self.vectors.get(norm);
        let (eps, isa, residual) =
            (self.program.config.norm_eps, self.math.isa, &self.bufs.residual);
        self.pool.pieces(&mut self.bufs.strips[..n * width], width, |_, t, strips| {
            norm::to_strips(isa, &residual[t * hidden..][..hidden], weight, eps, strips);
        });
    }

    fn attend(&mut self, layer: u16, step: &Step<'_>) -> Result<()> {
        let n = step.input.len();
        let layer = usize::from(layer);
        self.check_cached(layer, step.pos + n as u32)?;
        let c = &self.program.config;
        let width = c.heads as usize * c.head_dim as usize;
        let attention = Attention {
            isa: self.math.isa,
            pool: &self.pool,
            cache: &self.cache,
            layer,
            heads: Heads {
                queries: c.heads as usize,
                keys: c.kv_heads as usize,
                dim: c.head_dim as usize,
                scale: c.attn_scale,
                window: c.windows[layer],
            },
            pos: step.pos as usize,
            query: &self.bufs.query[..n * width],
        };
        attention.run(&mut self.bufs.states, &mut self.bufs.context[..n * width]);
        Ok(())
    }

    fn check_cached(&self, layer: usize, tokens: u32) -> Result<()> {
        if self.cache.len(layer) >= tokens {
            return Ok(());
        }
        Err(misuse(format!(
            "layer {layer} holds {} tokens, and the step needs {tokens}",
            self.cache.len(layer)
        )))
    }

    /// What every op relies on.
    fn check(&mut self, step: &Step<'_>) -> Result<()> {
        let n = step.input.len() as u64;
        let end = u64::from(step.pos) + n;
        if end > u64::from(self.capacity) {
            return Err(Error::new(
                Kind::ContextOverflow,
                "cannot take more tokens",
                format!("{end} tokens do not fit in a context of {}", self.capacity),
                "use a longer context, or a shorter prompt",
            ));
        }
        if n == 0 || n > u64::from(self.max_step) {
            return Err(misuse(format!(
                "a step of {n} tokens; up to {} are possible",
                self.max_step
            )));
        }
        if step.sample && step.rows == Rows::None {
            return Err(misuse("a token is to be chosen without logits"));
        }
        self.cache.reserve(end as u32)?;
        self.rope.grow(end as u32);
        Ok(())
    }

    fn exec_here(&mut self, op: &Op, step: &Step<'_>) -> Result<()> {
        match *op {
            Op::Embed { table } => self.embed(table, step),
            Op::Qkv { layer, norm, q, k, v, q_norm, k_norm } => {
                self.qkv(&Qkv { layer, norm, q, k, v, q_norm, k_norm }, step)
            }
            Op::Attend { layer } => self.attend(layer, step),
            Op::Proj { w, from } => self.proj(w, from, step),
            Op::GateUp { norm, gate, up } => self.gate_up(norm, gate, up, step),
            Op::Head { norm, w } => self.head(norm, w, step),
            Op::Sample => self.sample(step),
        }
    }

    fn buffer(&mut self, buf: Buf) -> &mut [f32] {
        match buf {
            Buf::Residual => &mut self.bufs.residual,
            Buf::Query => &mut self.bufs.query,
            Buf::Context => &mut self.bufs.context,
            Buf::Hidden => &mut self.bufs.hidden,
            Buf::Logits => &mut self.bufs.logits,
        }
    }
}

fn misuse(why: impl Into<String>) -> Error {
    Error::new(Kind::Failure, "cannot run the step", why, "report this; it is a fault of snug")
}

/// What loading finds out about the weights.
struct Loaded {
    vectors: Vectors,
    bytes: u64,
    matrix_bytes: u64,
}

impl Loaded {
    fn read(program: &Program, weights: &dyn Weights) -> Result<Loaded> {
        let mut loaded = Loaded { vectors: Vectors::default(), bytes: 0, matrix_bytes: 0 };
        for (i, spec) in program.weights.iter().enumerate() {
            let weight = weights.weight(WeightId(i as u32));
            if weight.shape != spec.shape {
                return Err(Error::bad_file(
                    "cannot load the model",
                    format!(
                        "{} is {} × {}, and its config.json asks for {} × {}",
                        spec.name,
                        weight.shape.rows,
                        weight.shape.cols,
                        spec.shape.rows,
                        spec.shape.cols
                    ),
                    "pack the model again",
                ));
            }
            let bytes = weight.parts.0.iter().map(|p| p.len() as u64).sum::<u64>();
            loaded.bytes += bytes;
            // Of an embedding that is not the head too, a token reads one row.
            if spec.role != Role::Embed || program.config.tied {
                loaded.matrix_bytes += bytes;
            }
            let mut values = Vec::new();
            if spec.role == Role::Vector {
                let mut words = vec![0; spec.shape.len() as usize];
                let codec = weight.format.codec();
                codec.decode_rows(weight.shape, &weight.parts, 0..1, &mut words);
                values = words.into_iter().map(bf16_to_f32).collect();
            }
            loaded.vectors.0.push(values);
        }
        Ok(loaded)
    }
}

impl Backend for Cpu {
    fn card(&self) -> Card {
        Card {
            id: "cpu".into(),
            name: format!("{} × {}", self.pool.len(), simd::processor()),
            path: self.math.isa.name().into(),
        }
    }

    fn ledger(&self) -> Ledger {
        let vectors = self.vectors.0.iter().map(|v| size_of_val(&**v)).sum::<usize>();
        let rope = size_of_val(self.rope.rows());
        let scratch = self.bufs.bytes() + self.pool.scratch_bytes() + self.sampler.bytes();
        Ledger {
            weights: self.weight_bytes,
            kv_used: self.cache.used_bytes(),
            kv_reserved: self.cache.reserved_bytes(),
            scratch: (scratch + rope + vectors) as u64,
            context: 0,
        }
    }

    fn max_step(&self) -> u32 {
        self.max_step
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn set_sampling(&mut self, sampling: &Sampling, history: &[u32]) -> Result<()> {
        self.sampler.set(sampling)?;
        self.history.clear();
        self.history.extend_from_slice(history);
        Ok(())
    }

    fn exec(&mut self, op: &Op, step: &Step<'_>) -> Result<()> {
        self.check(step)?;
        let threads = self.pool.threads();
        threads.install(|| self.exec_here(op, step))
    }

    fn run(&mut self, program: &Program, step: &Step<'_>) -> Result<()> {
        self.check(step)?;
        // Once for the whole step: the forks inside then cost no change of thread.
        let threads = self.pool.threads();
        threads.install(|| program.ops.iter().try_for_each(|op| self.exec_here(op, step)))
    }

    fn token(&mut self) -> Result<u32> {
        self.tokens.pop_front().ok_or_else(|| misuse("no chosen token is waiting"))
    }

    fn read(&mut self, buf: Buf, out: &mut [f32]) -> Result<()> {
        let from = self.buffer(buf);
        match from.get(..out.len()) {
            Some(from) => out.copy_from_slice(from),
            None => {
                let why = format!("{} values of {buf:?}, which has {}", out.len(), from.len());
                return Err(misuse(why));
            }
        }
        Ok(())
    }

    fn write(&mut self, buf: Buf, data: &[f32]) -> Result<()> {
        let to = self.buffer(buf);
        let len = to.len();
        match to.get_mut(..data.len()) {
            Some(to) => to.copy_from_slice(data),
            None => return Err(misuse(format!("{} values for {buf:?} of {len}", data.len()))),
        }
        Ok(())
    }

    fn bytes_per_token(&self, pos: u32) -> u64 {
        let c = &self.program.config;
        let layer = 2 * u64::from(c.kv_heads) * u64::from(c.head_dim) * KvFormat::F32.bytes();
        let seen = |w: &Option<u32>| u64::from(w.unwrap_or(u32::MAX)).min(u64::from(pos) + 1);
        self.matrix_bytes + c.windows.iter().map(|w| layer * seen(w)).sum::<u64>()
    }
}
