//! The CUDA backend: the same ops as `cpu`, fast.
//!
//! One device, one stream. Steps of one token that follow a sampled one are captured as a graph once and replayed: token id
//! and position live in device memory, so nothing in the graph changes.

pub mod abi;
pub mod driver;
pub mod images;
pub mod kernels;
pub mod load;
pub mod matvec;
pub mod measure;
pub mod memory;
mod ops;
pub mod pack;
mod step;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use self::abi::{SampleParams, SampleState};
use self::driver::{Device, Graph, Memory, Pinned, Stream};
use self::kernels::{Kernels, Library, Path};
use self::matvec::tiles;
use self::memory::{Cache, DeviceWeight};
use self::ops::{NARROW, SPLIT_TOKENS};
use crate::backend::{Backend, Card, Ledger, Weights};
use crate::error::{Error, Kind, Result};
use crate::model::kv::{KvFormat, KvLayout};
use crate::model::op::{Buf, Input, Op, Rows, Sampling, Step, WeightId};
use crate::model::program::{Program, Role};
use crate::model::rope::RopeTable;

/// Tokens of one prompt chunk.
const MAX_STEP: u32 = 512;

/// How a backend is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Position in the driver's list.
    pub index: usize,
    /// Tokens the cache can hold.
    pub capacity: u32,
    /// Use the portable kernels even where bulk copies exist (tests run both).
    pub portable: bool,
}

/// A loaded program on one GPU.
pub struct Cuda {
    program: Arc<Program>,
    kernels: Kernels,
    path: Path,
    weights: Vec<DeviceWeight>,
    weight_bytes: u64,
    cache: Cache,
    used: u32,
    widths: Widths,
    buffers: Buffers,
    scratch: Scratch,
    sampler: Sampler,
    max_splits: u32,
    splits_in_flight: u32,
    stream: Stream,
    graph: Option<Graph>,
    pending: VecDeque<step::Pending>,
    trace: bool,
    capturing: Cell<bool>,
    context_bytes: u64,
    device: Device,
}

/// Values between tokens in each buffer.
#[derive(Clone, Copy, Debug)]
struct Widths {
    qkv: u32,
    context: u32,
    hidden: u32,
}

/// What ops pass each other.
struct Buffers {
    residual: Memory,
    qkv: Memory,
    context: Memory,
    hidden: Memory,
    logits: Memory,
    tokens: Memory,
    pos: Memory,
    history: Memory,
    rope: Memory,
}

/// What one op needs for itself.
struct Scratch {
    matrix: Memory,
    normed: Memory,
    gate: Memory,
    up: Memory,
    partial: Memory,
    counters: Memory,
}

/// What sampling keeps.
struct Sampler {
    params: Memory,
    state: Memory,
    bias: Memory,
    counts: Memory,
    adjusted: Memory,
    keys: Memory,
    weights: Memory,
    ring: Pinned,
}

impl Buffers {
    fn bytes(&self) -> u64 {
        [
            &self.residual,
            &self.qkv,
            &self.context,
            &self.hidden,
            &self.logits,
            &self.tokens,
            &self.pos,
            &self.history,
            &self.rope,
        ]
        .iter()
        .map(|m| m.bytes())
        .sum()
    }
}

impl Scratch {
    fn bytes(&self) -> u64 {
        [&self.matrix, &self.normed, &self.gate, &self.up, &self.partial, &self.counters]
            .iter()
            .map(|m| m.bytes())
            .sum()
    }
}

impl Sampler {
    fn bytes(&self) -> u64 {
        [
            &self.params,
            &self.state,
            &self.bias,
            &self.counts,
            &self.adjusted,
            &self.keys,
            &self.weights,
        ]
        .iter()
        .map(|m| m.bytes())
        .sum()
    }
}

impl Cuda {
    /// Loads a program. `progress(done, of)` hears of copied bytes and may cancel.
    ///
    /// # Errors
    /// `Kind::NoGpu` without a usable driver or kernel, `Kind::DoesNotFit` with the numbers, what `progress` returns.
    pub fn new(
        program: Arc<Program>,
        weights: &dyn Weights,
        options: Options,
        progress: &dyn Fn(u64, u64) -> Result<()>,
    ) -> Result<Cuda> {
        let device = Device::open(options.index)?;
        let (free, _) = device.memory()?;
        let library = Library::load(&device)?;
        let bulk =
            images::coverage(device.info().capability).has_bulk_copies() && !options.portable;
        let path = if bulk { Path::Bulk } else { Path::Portable };
        let kernels = library.kernels(program.config.head_dim, path)?;
        let stream = device.stream()?;
        let reserve = scratch_bytes(&program, options.capacity);
        let weights = load::load(&device, &library, &program, weights, reserve, progress)?;
        let weight_bytes = weights.iter().map(DeviceWeight::bytes).sum();
        let layout = KvLayout::of(&program, options.capacity, KvFormat::Bf16);
        let mut cuda = Cuda {
            cache: Cache::new(&device, layout)?,
            widths: Widths::of(&program),
            buffers: buffers(&device, &program, options.capacity)?,
            scratch: scratch(&device, &program, options.capacity)?,
            sampler: sampler(&device, &program)?,
            max_splits: options.capacity.div_ceil(SPLIT_TOKENS),
            splits_in_flight: splits_in_flight(&device, &program, options.capacity),
            program,
            kernels,
            path,
            weights,
            weight_bytes,
            used: 0,
            stream,
            graph: None,
            pending: VecDeque::new(),
            trace: std::env::var_os("SNUG_TRACE").is_some_and(|v| v == "1"),
            capturing: Cell::new(false),
            context_bytes: 0,
            device,
        };
        cuda.clear()?;
        let (left, _) = cuda.device.memory()?;
        let known = cuda.weight_bytes + cuda.scratch_held() + cuda.cache.mapped();
        cuda.context_bytes = free.saturating_sub(left).saturating_sub(known);
        Ok(cuda)
    }

    fn scratch_held(&self) -> u64 {
        self.buffers.bytes() + self.scratch.bytes() + self.sampler.bytes()
    }

    /// Padding columns must be zero, counters too; the rest may be anything.
    fn clear(&mut self) -> Result<()> {
        for memory in [
            &self.buffers.context,
            &self.buffers.hidden,
            &self.buffers.pos,
            &self.buffers.tokens,
            &self.scratch.counters,
            &self.sampler.state,
            &self.sampler.counts,
            &self.sampler.bias,
        ] {
            memory.fill(&self.stream, 0)?;
        }
        self.stream.synchronize()?;
        let mut table = RopeTable::new(&self.program.config.rope);
        table.grow(self.cache.layout().capacity);
        self.buffers.rope.write(0, bytemuck::cast_slice(table.rows()))?;
        self.set_sampling(&Sampling::default(), &[])
    }

    /// Fills every buffer that a step must write before it reads with `byte`: tests poison them.
    pub fn poison(&mut self, byte: u8) -> Result<()> {
        let b = &self.buffers;
        for memory in [&b.residual, &b.qkv, &b.logits, &self.scratch.matrix, &self.scratch.partial]
        {
            memory.fill(&self.stream, byte)?;
        }
        self.stream.synchronize()
    }
}

impl Widths {
    fn of(program: &Program) -> Widths {
        let c = &program.config;
        Widths {
            qkv: (c.heads + 2 * c.kv_heads) * c.head_dim,
            context: tiles(c.heads * c.head_dim) * 64,
            hidden: tiles(c.ffn) * 64,
        }
    }
}

fn buffers(device: &Device, program: &Program, capacity: u32) -> Result<Buffers> {
    let (c, w, n) = (&program.config, Widths::of(program), u64::from(MAX_STEP));
    let wide = |width: u32, bytes: u64| device.alloc(n * u64::from(width) * bytes);
    Ok(Buffers {
        residual: wide(c.hidden, 4)?,
        qkv: wide(w.qkv, 4)?,
        context: wide(w.context, 2)?,
        hidden: wide(w.hidden, 2)?,
        logits: device.alloc(u64::from(NARROW) * u64::from(c.vocab) * 4)?,
        tokens: device.alloc(n * 4)?,
        pos: device.alloc(4)?,
        history: device.alloc((u64::from(capacity) + n) * 4)?,
        rope: device.alloc(u64::from(capacity) * u64::from(c.rope.dims) * 4)?,
    })
}

/// Largest unpacked matrix that a wide step needs; the embedding and head are never unpacked.
fn matrix_bytes(program: &Program) -> u64 {
    let inner = program
        .weights
        .iter()
        .filter(|w| !matches!(w.role, Role::Embed | Role::Head | Role::Vector));
    inner.map(|w| u64::from(w.shape.rows) * u64::from(tiles(w.shape.cols)) * 128).max().unwrap_or(0)
}

fn partial_bytes(program: &Program, capacity: u32) -> u64 {
    let c = &program.config;
    let splits = u64::from(capacity.div_ceil(SPLIT_TOKENS));
    u64::from(NARROW * c.heads) * splits * u64::from(c.head_dim + 2) * 4
}

fn scratch(device: &Device, program: &Program, capacity: u32) -> Result<Scratch> {
    let (c, n) = (&program.config, u64::from(MAX_STEP));
    Ok(Scratch {
        matrix: device.alloc(matrix_bytes(program))?,
        normed: device.alloc(n * u64::from(tiles(c.hidden)) * 128)?,
        gate: device.alloc(n * u64::from(c.ffn) * 4)?,
        up: device.alloc(n * u64::from(c.ffn) * 4)?,
        partial: device.alloc(partial_bytes(program, capacity))?,
        counters: device.alloc(u64::from(c.heads * NARROW) * 4)?,
    })
}

fn sampler(device: &Device, program: &Program) -> Result<Sampler> {
    let vocab = u64::from(program.config.vocab);
    Ok(Sampler {
        params: device.alloc(size_of::<SampleParams>() as u64)?,
        state: device.alloc(size_of::<SampleState>() as u64)?,
        bias: device.alloc(vocab * 4)?,
        counts: device.alloc(vocab * 4)?,
        adjusted: device.alloc(vocab * 4)?,
        keys: device.alloc(vocab * 8)?,
        weights: device.alloc(vocab * 4)?,
        ring: device.alloc_pinned(step::RING as usize * 4)?,
    })
}

/// Bytes beside the weights: what `buffers`, `scratch` and `sampler` allocate, and the cache of a full context.
fn scratch_bytes(program: &Program, capacity: u32) -> u64 {
    let (c, w, n) = (&program.config, Widths::of(program), u64::from(MAX_STEP));
    let per_token = u64::from(c.hidden) * 6
        + u64::from(w.qkv) * 4
        + u64::from(w.context) * 2
        + u64::from(w.hidden) * 2
        + u64::from(c.ffn) * 8
        + 8;
    let vocab = u64::from(c.vocab) * (u64::from(NARROW) * 4 + 24);
    let rope = u64::from(capacity) * (u64::from(c.rope.dims) * 4 + 4);
    let kv =
        KvLayout::of(program, capacity, KvFormat::Bf16).bytes_per_token() * u64::from(capacity);
    n * per_token + vocab + rope + matrix_bytes(program) + partial_bytes(program, capacity) + kv
}

/// Blocks along the keys: enough to fill the card; they loop over splits, so the number changes no result.
fn splits_in_flight(device: &Device, program: &Program, capacity: u32) -> u32 {
    let enough = (2 * device.info().sms).div_ceil(program.config.kv_heads);
    enough.min(capacity.div_ceil(SPLIT_TOKENS)).max(1)
}

impl Backend for Cuda {
    fn card(&self) -> Card {
        let info = self.device.info();
        let arch = format!("sm_{}{}", info.capability.0, info.capability.1);
        let path = match self.path {
            Path::Bulk => format!("{arch}, bulk copies"),
            Path::Portable => format!("{arch}, portable"),
        };
        Card { id: format!("cuda:{}", info.index), name: info.name.clone(), path }
    }

    fn ledger(&self) -> Ledger {
        memory::ledger(
            self.weight_bytes,
            &self.cache,
            self.used,
            self.scratch_held(),
            self.context_bytes,
        )
    }

    fn max_step(&self) -> u32 {
        MAX_STEP
    }

    fn capacity(&self) -> u32 {
        self.cache.layout().capacity
    }

    fn set_sampling(&mut self, s: &Sampling, history: &[u32]) -> Result<()> {
        crate::backend::cpu::check_sampling(s, self.program.config.vocab as usize)?;
        self.stream.synchronize()?;
        self.pending.clear();
        let vocab = self.program.config.vocab as usize;
        if !s.logit_bias.is_empty() {
            let mut dense = vec![0f32; vocab];
            for (id, bias) in &s.logit_bias {
                if let Some(slot) = dense.get_mut(*id as usize) {
                    *slot = *bias;
                }
            }
            self.sampler.bias.write(0, bytemuck::cast_slice(&dense))?;
        }
        // Counts belong to the history they were made from.
        self.sampler.counts.fill(&self.stream, 0)?;
        self.sampler.state.fill(&self.stream, 0)?;
        self.stream.synchronize()?;
        let keep = history.len().min(self.cache.layout().capacity as usize);
        self.buffers.history.write(0, bytemuck::cast_slice(&history[..keep]))?;
        let params = [
            s.temperature.to_bits(),
            s.top_k,
            s.top_p.to_bits(),
            s.min_p.to_bits(),
            s.repeat_penalty.to_bits(),
            s.presence_penalty.to_bits(),
            s.frequency_penalty.to_bits(),
            s.repeat_last_n,
            u32::from(!s.logit_bias.is_empty()),
            0,
            s.seed as u32,
            (s.seed >> 32) as u32,
        ];
        self.sampler.params.write(0, bytemuck::cast_slice(&params))
    }

    fn exec(&mut self, op: &Op, step: &Step<'_>) -> Result<()> {
        self.stage(op, step)?;
        let shape = step::shape(step);
        match op {
            Op::Head { .. } if step.rows == Rows::None => Ok(()),
            Op::Sample if !step.sample => Ok(()),
            Op::Sample => {
                self.queue(op, shape)?;
                self.announce(step.pos + shape.n)
            }
            _ => self.queue(op, shape),
        }
    }

    fn run(&mut self, program: &Program, step: &Step<'_>) -> Result<()> {
        if self.replayable(step) {
            return self.replay(step);
        }
        program.ops.iter().try_for_each(|op| self.exec(op, step))
    }

    fn token(&mut self) -> Result<u32> {
        self.take_token()
    }

    fn read(&mut self, buf: Buf, out: &mut [f32]) -> Result<()> {
        self.stream.synchronize()?;
        let (memory, width, stride, wide) = self.buffer(buf);
        if wide {
            return memory.read(0, bytemuck::cast_slice_mut(out));
        }
        let mut row = vec![0u16; width];
        for (token, values) in out.chunks_mut(width).enumerate() {
            let row = &mut row[..values.len()];
            memory.read((token * stride * 2) as u64, bytemuck::cast_slice_mut(row))?;
            for (v, bits) in values.iter_mut().zip(row.iter()) {
                *v = crate::num::bf16_to_f32(*bits);
            }
        }
        Ok(())
    }

    fn write(&mut self, buf: Buf, data: &[f32]) -> Result<()> {
        self.stream.synchronize()?;
        let (memory, width, stride, wide) = self.buffer(buf);
        if wide {
            return memory.write(0, bytemuck::cast_slice(data));
        }
        for (token, values) in data.chunks(width).enumerate() {
            let row: Vec<u16> = values.iter().map(|v| crate::num::f32_to_bf16(*v)).collect();
            memory.write((token * stride * 2) as u64, bytemuck::cast_slice(&row))?;
        }
        Ok(())
    }

    fn runs_ahead(&self) -> bool {
        true
    }

    fn bytes_per_token(&self, pos: u32) -> u64 {
        let skip = |role: Role| role == Role::Embed && !self.program.config.tied;
        let weights: u64 = self
            .program
            .weights
            .iter()
            .zip(&self.weights)
            .filter(|(spec, _)| !skip(spec.role))
            .map(|(_, w)| w.bytes())
            .sum();
        weights + self.cache.layout().bytes_per_token() * (u64::from(pos) + 1)
    }
}

impl Cuda {
    /// Milliseconds per replay of `ops` on a step of `n` tokens at position `pos`, as one graph: the least of `repeats` means
    /// over ten replays. The cache is as the steps before left it.
    ///
    /// # Errors
    /// A driver error.
    pub fn time(&mut self, ops: &[Op], n: u32, pos: u32, repeats: u32) -> Result<f32> {
        let tokens = vec![0u32; n as usize];
        let step = Step { input: Input::Tokens(&tokens), pos, rows: Rows::Last, sample: false };
        self.write_tokens(&step)?;
        self.cache.hold(pos + n)?;
        let shape = step::shape(&step);
        self.time_graph(repeats, || ops.iter().try_for_each(|op| self.queue(op, shape)))
    }

    /// The same for bare products: each entry is one launch over matrices of one format and width.
    ///
    /// # Errors
    /// A driver error.
    pub fn time_products(
        &mut self,
        launches: &[Vec<WeightId>],
        n: u32,
        repeats: u32,
    ) -> Result<f32> {
        self.time_graph(repeats, || launches.iter().try_for_each(|ids| self.bare(ids, n)))
    }

    fn time_graph(&self, repeats: u32, work: impl FnOnce() -> Result<()>) -> Result<f32> {
        self.capturing.set(true);
        let graph = self.stream.capture(work);
        self.capturing.set(false);
        measure::best_replay_ms(&self.device, &self.stream, &graph?, 10, repeats)
    }

    /// A buffer, its width, its stride in elements, and whether its elements are f32 (else bf16).
    fn buffer(&self, buf: Buf) -> (&Memory, usize, usize, bool) {
        let c = &self.program.config;
        let attention = (c.heads * c.head_dim) as usize;
        match buf {
            Buf::Residual => (&self.buffers.residual, c.hidden as usize, c.hidden as usize, true),
            Buf::Query => {
                (&self.buffers.qkv, self.widths.qkv as usize, self.widths.qkv as usize, true)
            }
            Buf::Context => (&self.buffers.context, attention, self.widths.context as usize, false),
            Buf::Hidden => {
                (&self.buffers.hidden, c.ffn as usize, self.widths.hidden as usize, false)
            }
            Buf::Logits => (&self.buffers.logits, c.vocab as usize, c.vocab as usize, true),
        }
    }

    /// What only the host can do before an op: tokens and position for `Embed`, room in the cache for `Qkv`.
    fn stage(&mut self, op: &Op, step: &Step<'_>) -> Result<()> {
        let n = step.input.len() as u32;
        if n == 0 || n > MAX_STEP {
            return Err(Error::new(
                Kind::Failure,
                "cannot run a step",
                format!("it has {n} tokens, the GPU takes 1 to {MAX_STEP}"),
                "report this",
            ));
        }
        match op {
            Op::Embed { .. } => self.write_tokens(step),
            Op::Qkv { .. } => {
                self.cache.hold(step.pos + n)?;
                self.used = step.pos + n;
                Ok(())
            }
            Op::Head { .. } if step.rows == Rows::All && n > NARROW => {
                let bytes = u64::from(n) * u64::from(self.program.config.vocab) * 4;
                if self.buffers.logits.bytes() < bytes {
                    self.stream.synchronize()?;
                    self.graph = None;
                    self.buffers.logits = self.device.alloc(bytes)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
