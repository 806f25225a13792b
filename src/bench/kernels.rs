//! Single kernels on a GPU: how long each takes, how much of the measured bandwidth that is, and how long cuBLAS takes for
//! the same product.
//!
//! Kernels are timed as graphs of one launch a layer, so that weights come from memory and launches cost what they cost in a
//! step. Where all of them together fit in the L2 cache a row says so: its share means little.

use std::time::Instant;

use super::synthetic;
use crate::backend::Weights;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::driver::cublas::Cublas;
use crate::backend::cuda::driver::{Device, Memory};
use crate::backend::cuda::kernels::Library;
use crate::backend::cuda::measure::best_replay_ms;
use crate::backend::cuda::pack::Packer;
use crate::codec::Shape;
use crate::error::Result;
use crate::model::kv::{KvFormat, KvLayout};
use crate::model::op::{Buf, Op, WeightId};
use crate::model::program::Program;

/// How often a graph of kernels is timed; the least counts.
const REPEATS: u32 = 4;
/// Bytes of copies of a matrix that cuBLAS goes through, so that none of it waits in a cache.
const PEER_BYTES: u64 = 2_000_000_000;

/// One measured kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// `gate_up`, `attend`, …
    pub kernel: &'static str,
    /// Rows and columns of what it multiplies by, all matrices of the launch together.
    pub shape: Option<Shape>,
    /// Tokens.
    pub n: u32,
    /// Tokens in the cache.
    pub depth: u32,
    /// Bytes of weights or cache that one launch reads.
    pub bytes: u64,
    /// Microseconds a launch.
    pub us: f64,
    /// Whether everything that was read between two visits fits in the L2 cache.
    pub cached: bool,
}

impl Timing {
    /// Bytes read a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.us.max(1e-3) * 1e6
    }
}

/// What cuBLAS takes for a product in bf16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peer {
    /// Rows and columns.
    pub shape: Shape,
    /// Tokens.
    pub n: u32,
    /// Microseconds.
    pub us: f64,
}

/// The name of an op's kernel.
pub fn name(op: &Op) -> &'static str {
    match op {
        Op::Embed { .. } => "embed",
        Op::Qkv { .. } => "qkv",
        Op::Attend { .. } => "attend",
        Op::Proj { from: Buf::Context, .. } => "o",
        Op::Proj { .. } => "down",
        Op::GateUp { .. } => "gate_up",
        Op::Head { .. } => "head",
        Op::Sample => "sample",
    }
}

/// The kernels that multiply, and all of them, in the order of a layer.
pub const PRODUCTS: [&str; 5] = ["qkv", "o", "gate_up", "down", "head"];
/// Every kernel of a decode step.
pub const OPS: [&str; 8] = ["embed", "qkv", "attend", "o", "gate_up", "down", "head", "sample"];

/// The matrices that an op reads wholly.
fn matrices(op: &Op) -> Vec<WeightId> {
    match op {
        Op::Qkv { q, k, v, .. } => vec![q.w, k.w, v.w],
        Op::Proj { w, .. } => vec![w.w],
        Op::GateUp { gate, up, .. } => vec![gate.w, up.w],
        Op::Head { w, .. } => vec![*w],
        _ => Vec::new(),
    }
}

/// Rows of some matrices of one width side by side.
fn side_by_side(program: &Program, ids: &[WeightId]) -> Option<Shape> {
    let shapes = ids.iter().map(|id| program.weight(*id).shape);
    shapes.reduce(|a, b| Shape { rows: a.rows + b.rows, cols: b.cols })
}

/// A loaded model whose kernels are timed.
pub struct Bench<'a> {
    gpu: &'a mut Cuda,
    program: &'a Program,
    weights: &'a dyn Weights,
    l2_bytes: u64,
}

impl<'a> Bench<'a> {
    /// Of a model that was loaded from `weights`, on a device with this much L2 cache.
    pub fn new(
        gpu: &'a mut Cuda,
        program: &'a Program,
        weights: &'a dyn Weights,
        l2_bytes: u64,
    ) -> Bench<'a> {
        Bench { gpu, program, weights, l2_bytes }
    }

    fn bytes(&self, ids: &[WeightId]) -> u64 {
        let parts = |id: &WeightId| self.weights.weight(*id).parts.0.iter().map(|p| p.len()).sum();
        ids.iter().map(parts).map(|n: usize| n as u64).sum()
    }

    /// The bare products y = W·x of each shape, `n` tokens: what a library's call does.
    ///
    /// # Errors
    /// A driver error.
    pub fn products(&mut self, n: u32) -> Result<Vec<Timing>> {
        let mut rows = Vec::new();
        for kernel in PRODUCTS {
            let launches: Vec<Vec<WeightId>> =
                self.program.ops.iter().filter(|op| name(op) == kernel).map(matrices).collect();
            let Some(first) = launches.first() else { continue };
            let shape = side_by_side(self.program, first);
            let total: u64 = launches.iter().map(|ids| self.bytes(ids)).sum();
            let ms = f64::from(self.gpu.time_products(&launches, n, REPEATS)?);
            rows.push(self.row(kernel, shape, n, 0, total, ms, launches.len()));
        }
        Ok(rows)
    }

    /// The ops of a step of `n` tokens behind `depth` others, each with what is fused into it: norms, biases, activation,
    /// residual.
    ///
    /// # Errors
    /// A driver error.
    pub fn ops(&mut self, wanted: &[&str], n: u32, depth: u32) -> Result<Vec<Timing>> {
        let mut rows = Vec::new();
        for kernel in OPS.into_iter().filter(|k| wanted.contains(k)) {
            let ops: Vec<Op> =
                self.program.ops.iter().filter(|op| name(op) == kernel).cloned().collect();
            let Some(first) = ops.first() else { continue };
            let shape = side_by_side(self.program, &matrices(first));
            let cache = KvLayout::of(self.program, 1, KvFormat::Bf16).bytes_per_token();
            let total = match first {
                Op::Attend { .. } => cache * u64::from(depth + n),
                _ => ops.iter().map(|op| self.bytes(&matrices(op))).sum(),
            };
            let ms = f64::from(self.gpu.time(&ops, n, depth, REPEATS)?);
            rows.push(self.row(kernel, shape, n, depth, total, ms, ops.len()));
        }
        Ok(rows)
    }

    #[allow(clippy::too_many_arguments)]
    fn row(
        &self,
        kernel: &'static str,
        shape: Option<Shape>,
        n: u32,
        depth: u32,
        total_bytes: u64,
        ms: f64,
        launches: usize,
    ) -> Timing {
        let launches = launches.max(1) as f64;
        let bytes = (total_bytes as f64 / launches) as u64;
        let cached = total_bytes > 0 && total_bytes <= 2 * self.l2_bytes;
        Timing { kernel, shape, n, depth, bytes, us: ms * 1e3 / launches, cached }
    }
}

/// The shapes that a model multiplies by, each once, in the order of [`PRODUCTS`].
pub fn shapes(program: &Program) -> Vec<Shape> {
    let first = |kernel: &&str| program.ops.iter().find(|op| name(op) == *kernel);
    let mut list = Vec::new();
    for op in PRODUCTS.iter().filter_map(first) {
        list.extend(side_by_side(program, &matrices(op)).filter(|s| !list.contains(s)));
    }
    list
}

/// cuBLAS on the same device, each shape with each number of tokens; its version first. `None` where it is not installed.
///
/// # Errors
/// A driver error, or one of the library.
pub fn peer(
    device: &Device,
    shapes: &[Shape],
    widths: &[u32],
) -> Result<Option<(String, Vec<Peer>)>> {
    let stream = device.stream()?;
    let Some(blas) = Cublas::open(device, &stream)? else { return Ok(None) };
    let mut rows = Vec::new();
    for &shape in shapes {
        let bytes = 2 * shape.len();
        let words = synthetic::words(shape);
        let copies = (PEER_BYTES / bytes).max(2);
        let matrices = (0..copies).map(|_| filled(device, &words)).collect::<Result<Vec<_>>>()?;
        for &n in widths {
            let x = filled(device, &synthetic::words(Shape { rows: n, cols: shape.cols }))?;
            let y = device.alloc(2 * u64::from(n) * u64::from(shape.rows))?;
            let size = (shape.rows, shape.cols, n);
            for w in &matrices[..2] {
                blas.multiply(&stream, w, &x, &y, size)?;
            }
            stream.synchronize()?;
            let graph = stream.capture(|| {
                matrices.iter().try_for_each(|w| blas.multiply(&stream, w, &x, &y, size))
            })?;
            let ms = best_replay_ms(device, &stream, &graph, 3, REPEATS)?;
            rows.push(Peer { shape, n, us: f64::from(ms) * 1e3 / copies as f64 });
        }
    }
    Ok(Some((blas.version(), rows)))
}

fn filled(device: &Device, words: &[u16]) -> Result<Memory> {
    let memory = device.alloc(2 * words.len() as u64)?;
    memory.write(0, bytemuck::cast_slice(words))?;
    Ok(memory)
}

/// Packing on the device: `bytes` are those of bf16, and the time includes what the host does.
///
/// # Errors
/// A driver error.
pub fn packing(device: &Device, shape: Shape) -> Result<Timing> {
    let library = Library::load(device)?;
    let mut packer = Packer::new(device, &library)?;
    let stream = device.stream()?;
    let rows = filled(device, &synthetic::words(shape))?;
    let mut best = f64::INFINITY;
    for _ in 0..=REPEATS {
        let start = Instant::now();
        packer.pack(device, &stream, shape, rows.addr())?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    let (bytes, us) = (2 * shape.len(), best * 1e6);
    Ok(Timing { kernel: "pack", shape: Some(shape), n: 0, depth: 0, bytes, us, cached: false })
}
