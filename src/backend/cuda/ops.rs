//! Each op as launches: steps of up to eight tokens go through the matrix-vector kernels, longer ones through unpacked
//! matrices and the tensor-core product.

use super::Cuda;
use super::abi::{
    ActMulArgs, AttendArgs, EmbedArgs, GemmArgs, MatvecArgs, NormArgs, SampleArgs, UnpackArgs,
};
use super::driver::{Addr, Launch};
use super::kernels::{ByFormat, Kernels};
use super::matvec::{matrix, plan, tiles};
use super::memory::CHUNK_TOKENS;
use crate::codec::Format;
use crate::error::Result;
use crate::model::config::Activation;
use crate::model::op::{Buf, Linear, Op, WeightId};

/// Tokens up to which a step goes through the matrix-vector kernels.
pub const NARROW: u32 = 8;

/// Keys of a split of decode attention; mirrors `SPLIT_CHUNKS · CHUNK` in `common/attend.cuh`.
pub const SPLIT_TOKENS: u32 = 4 * CHUNK_TOKENS;

/// Tokens up to which every block norms its input itself; more cost less in a launch of their own.
const MAX_OWN_NORM: u32 = 2;

/// Tile edges of the product kernel.
const GEMM_TILE: u32 = 128;
const GEMM_SHARED_BYTES: u32 = 3 * 2 * 128 * 64 * 2;

/// What a step is made of, for the launches.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tokens.
    pub n: u32,
    /// Rows of logits wanted: the last one, or all.
    pub all_rows: bool,
}

impl Cuda {
    /// Queues one op.
    pub(super) fn queue(&self, op: &Op, shape: Shape) -> Result<()> {
        let wide = shape.n > NARROW;
        match op {
            Op::Embed { table } => self.embed(*table, shape.n),
            Op::Qkv { norm, q, k, v, .. } if wide => {
                self.wide_norm(*norm, shape.n)?;
                let x = self.scratch.normed.addr();
                let width = self.widths.qkv;
                let mut out = 0;
                for linear in [q, k, v] {
                    self.product(
                        linear,
                        x,
                        self.buffers.qkv.addr().plus(u64::from(out) * 4),
                        width,
                        shape.n,
                        false,
                    )?;
                    out += self.program.weight(linear.w).shape.rows;
                }
                Ok(())
            }
            Op::Qkv { norm, q, k, v, .. } => {
                self.normed(&self.kernels.qkv, *norm, &[*q, *k, *v], shape.n)
            }
            Op::Attend { layer } => self.attend(*layer, shape.n),
            Op::Proj { w, from } => {
                let (x, stride) = self.input(*from);
                match wide {
                    true => self.product(
                        w,
                        x,
                        self.buffers.residual.addr(),
                        self.program.config.hidden,
                        shape.n,
                        true,
                    ),
                    false => self.project(w, x, stride, shape.n),
                }
            }
            Op::GateUp { norm, gate, up } => self.gate_up(*norm, gate, up, shape.n, wide),
            Op::Head { norm, w } => self.head(*norm, *w, shape),
            Op::Sample => self.sample(shape),
        }
    }

    fn launch<A: super::driver::Args>(
        &self,
        kernel: &super::driver::Kernel,
        grid: (u32, u32, u32),
        block: u32,
        shared_bytes: u32,
        args: &A,
    ) -> Result<()> {
        self.start(kernel, &Launch { grid, block, shared_bytes, overlap: true }, args)
    }

    /// Launches, and with `SNUG_TRACE=1` says so first and waits after, so that a fault names its kernel.
    fn start<A: super::driver::Args>(
        &self,
        kernel: &super::driver::Kernel,
        launch: &Launch,
        args: &A,
    ) -> Result<()> {
        if self.trace {
            eprintln!("snug: {} grid {:?}", kernel.name(), launch.grid);
        }
        self.stream.launch(kernel, launch, args)?;
        if self.trace && !self.capturing.get() {
            self.stream.synchronize()?;
        }
        Ok(())
    }

    fn bias(&self, linear: &Linear) -> Addr {
        linear.bias.map_or(Addr(0), |b| self.weights[b.0 as usize].data.addr())
    }

    fn vector(&self, id: WeightId) -> Addr {
        self.weights[id.0 as usize].data.addr()
    }

    /// Where a projection reads, and how far apart its tokens are.
    fn input(&self, from: Buf) -> (Addr, u32) {
        match from {
            Buf::Hidden => (self.buffers.hidden.addr(), self.widths.hidden),
            _ => (self.buffers.context.addr(), self.widths.context),
        }
    }

    fn embed(&self, table: WeightId, n: u32) -> Result<()> {
        let w = &self.weights[table.0 as usize];
        let shape = self.program.weight(table).shape;
        let args = EmbedArgs {
            m: matrix(w, Addr(0), shape.rows, 0),
            tokens: self.buffers.tokens.addr(),
            pos: self.buffers.pos.addr(),
            history: self.buffers.history.addr(),
            residual: self.buffers.residual.addr(),
            n,
            cols: shape.cols,
            tiles: tiles(shape.cols),
            records: tiles(shape.cols).div_ceil(4),
        };
        self.launch(self.kernels.embed.of(w.format), (args.records, n, 1), 128, 0, &args)
    }

    /// RMSNorm of the residual as bf16 rows.
    fn wide_norm(&self, norm: WeightId, n: u32) -> Result<()> {
        self.norm_rows(norm, self.buffers.residual.addr(), n)
    }

    fn norm_rows(&self, norm: WeightId, residual: Addr, n: u32) -> Result<()> {
        let cols = self.program.config.hidden;
        let args = NormArgs {
            residual,
            weight: self.vector(norm),
            out: self.scratch.normed.addr(),
            cols,
            padded: tiles(cols) * 64,
            eps: self.program.config.norm_eps,
            unused: 0,
        };
        self.launch(&self.kernels.norm, (n, 1, 1), 256, 0, &args)
    }

    /// A product of a wide step: the matrix is unpacked, then multiplied. `x` has `tiles·64` columns.
    fn product(
        &self,
        w: &Linear,
        x: Addr,
        y: Addr,
        stride: u32,
        n: u32,
        accumulate: bool,
    ) -> Result<()> {
        let weight = &self.weights[w.w.0 as usize];
        let shape = self.program.weight(w.w).shape;
        let depth = tiles(shape.cols) * 64;
        let records = tiles(shape.cols).div_ceil(4);
        let unpack = UnpackArgs {
            m: matrix(weight, Addr(0), shape.rows, 0),
            out: self.scratch.matrix.addr(),
            rows_in: Addr(0),
            cols: shape.cols,
            tiles: tiles(shape.cols),
            records,
            depth,
        };
        let blocks = shape.rows.div_ceil(16) * records;
        self.launch(self.kernels.unpack.of(weight.format), (blocks, 1, 1), 128, 0, &unpack)?;
        let gemm = GemmArgs {
            x,
            w: self.scratch.matrix.addr(),
            bias: self.bias(w),
            y,
            n,
            rows: shape.rows,
            depth,
            stride,
            accumulate: u32::from(accumulate),
            unused: 0,
        };
        let grid = (shape.rows.div_ceil(GEMM_TILE), n.div_ceil(GEMM_TILE), 1);
        self.launch(&self.kernels.gemm, grid, 256, GEMM_SHARED_BYTES, &gemm)
    }

    /// A matrix as the device decodes it: row-major bf16 bit patterns.
    ///
    /// # Errors
    /// A driver error; `DoesNotFit` when there is no room for the decoded matrix.
    pub fn unpacked(&self, id: WeightId) -> Result<Vec<u16>> {
        let weight = &self.weights[id.0 as usize];
        let shape = self.program.weight(id).shape;
        let (tiles, cols) = (tiles(shape.cols), shape.cols as usize);
        let depth = tiles as usize * 64;
        let out = self.device.alloc(2 * u64::from(shape.rows) * depth as u64)?;
        let args = UnpackArgs {
            m: matrix(weight, Addr(0), shape.rows, 0),
            out: out.addr(),
            rows_in: Addr(0),
            cols: shape.cols,
            tiles,
            records: tiles.div_ceil(4),
            depth: depth as u32,
        };
        let blocks = shape.rows.div_ceil(16) * args.records;
        self.launch(self.kernels.unpack.of(weight.format), (blocks, 1, 1), 128, 0, &args)?;
        self.stream.synchronize()?;
        let mut words = vec![0u16; shape.rows as usize * depth];
        out.read(0, bytemuck::cast_slice_mut(&mut words))?;
        if depth != cols {
            for row in 1..shape.rows as usize {
                words.copy_within(row * depth..row * depth + cols, row * cols);
            }
            words.truncate(shape.rows as usize * cols);
        }
        Ok(words)
    }

    /// Products of RMSNorm(residual) side by side in `qkv`, in one launch where the formats agree.
    fn normed(&self, kernels: &ByFormat, norm: WeightId, list: &[Linear], n: u32) -> Result<()> {
        let mut out = 0;
        let mut from = 0;
        while from < list.len() {
            let format = self.format(&list[from]);
            let count = list[from..].iter().take_while(|l| self.format(l) == format).count();
            let mut args = self.normed_args(norm, n, self.buffers.residual.addr());
            for (i, linear) in list[from..from + count].iter().enumerate() {
                self.put(&mut args, i, linear, &mut out);
            }
            args.count = count as u32;
            args.y = self.buffers.qkv.addr();
            args.stride = self.widths.qkv;
            self.run_normed(kernels, format, norm, &mut args)?;
            from += count;
        }
        Ok(())
    }

    fn format(&self, linear: &Linear) -> Format {
        self.weights[linear.w.0 as usize].format
    }

    /// Puts a matrix into slot `i` of the arguments, its output behind the ones before.
    fn put(&self, args: &mut MatvecArgs, i: usize, linear: &Linear, out: &mut u32) {
        let weight = &self.weights[linear.w.0 as usize];
        let rows = self.program.weight(linear.w).shape.rows;
        args.m[i] = matrix(weight, self.bias(linear), rows, *out);
        args.slot_bytes = args.slot_bytes.max(weight.slot_bytes);
        *out += rows;
    }

    fn normed_args(&self, norm: WeightId, n: u32, residual: Addr) -> MatvecArgs {
        let cols = self.program.config.hidden;
        MatvecArgs {
            residual,
            norm: self.vector(norm),
            x: self.scratch.normed.addr(),
            x_stride: tiles(cols) * 64,
            n,
            cols,
            eps: self.program.config.norm_eps,
            activation: match self.program.config.activation {
                Activation::Silu => 0,
                Activation::GeluTanh => 1,
            },
            ..MatvecArgs::default()
        }
    }

    /// Launches a kernel with a norm prologue; where x does not fit beside the ring, the norm goes ahead on its own.
    fn run_normed(
        &self,
        kernels: &ByFormat,
        format: Format,
        norm: WeightId,
        args: &mut MatvecArgs,
    ) -> Result<()> {
        let launch = plan(args, format, self.path, self.device.info());
        if args.x_in_shared == 0 || args.n > MAX_OWN_NORM {
            self.norm_rows(norm, args.residual, args.n)?;
            args.norm = Addr(0);
        }
        self.start(kernels.of(format), &launch, args)
    }

    /// One launch of bare products y = W·x of matrices of one format and width: what a library's matrix-vector call does.
    pub(super) fn bare(&self, ids: &[WeightId], n: u32) -> Result<()> {
        let first = Linear { w: ids[0], bias: None };
        let cols = self.program.weight(ids[0]).shape.cols;
        let mut args = MatvecArgs {
            x: self.scratch.normed.addr(),
            x_stride: tiles(cols) * 64,
            y: self.buffers.qkv.addr(),
            count: ids.len() as u32,
            n,
            cols,
            ..MatvecArgs::default()
        };
        let mut rows = 0;
        for (i, id) in ids.iter().enumerate() {
            self.put(&mut args, i, &Linear { w: *id, bias: None }, &mut rows);
        }
        args.stride = rows;
        let format = self.format(&first);
        let launch = plan(&mut args, format, self.path, self.device.info());
        self.start(self.kernels.qkv.of(format), &launch, &args)
    }

    fn project(&self, w: &Linear, x: Addr, x_stride: u32, n: u32) -> Result<()> {
        let hidden = self.program.config.hidden;
        let mut args = MatvecArgs {
            x,
            x_stride,
            y: self.buffers.residual.addr(),
            stride: hidden,
            count: 1,
            n,
            cols: self.program.weight(w.w).shape.cols,
            ..MatvecArgs::default()
        };
        self.put(&mut args, 0, w, &mut 0);
        let format = self.format(w);
        let launch = plan(&mut args, format, self.path, self.device.info());
        self.start(self.kernels.proj.of(format), &launch, &args)
    }

    fn gate_up(
        &self,
        norm: WeightId,
        gate: &Linear,
        up: &Linear,
        n: u32,
        wide: bool,
    ) -> Result<()> {
        let format = self.format(gate);
        if !wide && format == self.format(up) {
            let mut args = self.normed_args(norm, n, self.buffers.residual.addr());
            self.put(&mut args, 0, gate, &mut 0);
            self.put(&mut args, 1, up, &mut 0);
            args.count = 2;
            args.pair = 1;
            args.hidden = self.buffers.hidden.addr();
            args.stride = self.widths.hidden;
            return self.run_normed(&self.kernels.gate_up, format, norm, &mut args);
        }
        let ffn = self.program.config.ffn;
        self.wide_norm(norm, n)?;
        let (g, u) = (self.scratch.gate.addr(), self.scratch.up.addr());
        self.product(gate, self.scratch.normed.addr(), g, ffn, n, false)?;
        self.product(up, self.scratch.normed.addr(), u, ffn, n, false)?;
        let args = ActMulArgs {
            gate: g,
            up: u,
            out: self.buffers.hidden.addr(),
            n,
            cols: ffn,
            padded: self.widths.hidden,
            activation: match self.program.config.activation {
                Activation::Silu => 0,
                Activation::GeluTanh => 1,
            },
        };
        let blocks = (u64::from(n) * u64::from(args.padded)).div_ceil(256) as u32;
        self.launch(&self.kernels.act_mul, (blocks, 1, 1), 256, 0, &args)
    }

    fn attend(&self, layer: u16, n: u32) -> Result<()> {
        let c = &self.program.config;
        let Kernels { attend, append, prefill_attend, .. } = &self.kernels;
        let (q_norm, k_norm) = self.head_norms(layer);
        let args = AttendArgs {
            qkv: self.buffers.qkv.addr(),
            cache: self.cache.addr(),
            context: self.buffers.context.addr(),
            partial: self.scratch.partial.addr(),
            counters: self.scratch.counters.addr(),
            rope: self.buffers.rope.addr(),
            q_norm,
            k_norm,
            pos: self.buffers.pos.addr(),
            n,
            heads: c.heads,
            kv_heads: c.kv_heads,
            rotary: c.rope.dims,
            window: c.windows[usize::from(layer)].unwrap_or(0),
            max_splits: self.max_splits,
            layer: u32::from(layer),
            layers: c.layers,
            context_stride: self.widths.context,
            scale: c.attn_scale,
            softcap: 0.0,
            eps: c.norm_eps,
        };
        if n <= NARROW {
            let rows = (n * c.heads / c.kv_heads).div_ceil(16);
            let shared = 16 * c.head_dim * 2 + 2 * 64 * 4 + 64 * c.head_dim * 4;
            return self.launch(
                attend,
                (c.kv_heads, self.splits_in_flight, rows),
                128,
                shared,
                &args,
            );
        }
        self.launch(append, (n.div_ceil(4), c.kv_heads, 1), 128, 0, &args)?;
        let halves = if c.head_dim > 128 { 2 } else { 1 };
        self.launch(
            prefill_attend,
            (n.div_ceil(64), c.heads, halves),
            128,
            64 * c.head_dim * 2,
            &args,
        )
    }

    fn head_norms(&self, layer: u16) -> (Addr, Addr) {
        let find = |op: &Op| match op {
            Op::Qkv { layer: l, q_norm, k_norm, .. } if *l == layer => Some((*q_norm, *k_norm)),
            _ => None,
        };
        let (q, k) = self.program.ops.iter().find_map(find).unwrap_or_default();
        let addr = |id: Option<WeightId>| id.map_or(Addr(0), |id| self.vector(id));
        (addr(q), addr(k))
    }

    /// Logits of the last token at row 0, or of every token, eight at a time.
    fn head(&self, norm: WeightId, w: WeightId, shape: Shape) -> Result<()> {
        let (first, n) = if shape.all_rows { (0, shape.n) } else { (shape.n - 1, 1) };
        let (hidden, vocab) =
            (u64::from(self.program.config.hidden), u64::from(self.program.config.vocab));
        let linear = Linear { w, bias: None };
        for row in (0..n).step_by(NARROW as usize) {
            let residual = self.buffers.residual.addr().plus(u64::from(first + row) * hidden * 4);
            let mut args = self.normed_args(norm, NARROW.min(n - row), residual);
            self.put(&mut args, 0, &linear, &mut 0);
            args.count = 1;
            args.y = self.buffers.logits.addr().plus(u64::from(row) * vocab * 4);
            args.stride = self.program.config.vocab;
            self.run_normed(&self.kernels.head, self.format(&linear), norm, &mut args)?;
        }
        Ok(())
    }

    fn sample(&self, shape: Shape) -> Result<()> {
        let vocab = self.program.config.vocab;
        let row = if shape.all_rows { u64::from(shape.n - 1) } else { 0 };
        let s = &self.sampler;
        let args = SampleArgs {
            logits: self.buffers.logits.addr().plus(row * u64::from(vocab) * 4),
            params: s.params.addr(),
            state: s.state.addr(),
            bias: s.bias.addr(),
            counts: s.counts.addr(),
            history: self.buffers.history.addr(),
            adjusted: s.adjusted.addr(),
            keys: s.keys.addr(),
            weights: s.weights.addr(),
            pos: self.buffers.pos.addr(),
            token: self.buffers.tokens.addr(),
            ring: s.ring.addr(),
            vocab,
            n: shape.n,
            ring_len: super::step::RING,
            unused: 0,
        };
        let [count, scan, weigh, pick] = &self.kernels.sample;
        let blocks = vocab.div_ceil(256).min(128);
        self.launch(count, (1, 1, 1), 1024, 0, &args)?;
        self.launch(scan, (blocks, 1, 1), 256, 0, &args)?;
        self.launch(weigh, (blocks, 1, 1), 256, 0, &args)?;
        self.launch(pick, (1, 1, 1), 1024, 0, &args)
    }
}
