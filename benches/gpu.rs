//! Speed on a GPU: ops of a synthetic model against their floors, and decode at several depths. One table.
//!
//! `cargo bench --bench gpu -- [llama-3.1-8b | llama-3.2-1b]`. Weights are Gaussian with the usual scale; layers share host
//! bytes but not device memory, so nothing is read twice from the cache. `benches/peer.py` times cuBLAS on the same shapes.

use std::sync::Arc;
use std::time::Instant;

use snug::backend::cuda::driver::{Device, Launch, devices};
use snug::backend::cuda::kernels::Library;
use snug::backend::cuda::{Cuda, Options, abi::ReadArgs};
use snug::backend::{Backend, Weight, Weights};
use snug::codec::{Format, Parts, Shape};
use snug::error::Result;
use snug::model::op::{Buf, Input, Op, Rows, Sampling, Step, WeightId};
use snug::model::program::{Program, Role};
use snug::num::{f32_to_bf16, rng::Stream};

const MODELS: &[(&str, &str)] = &[
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
];

/// One encoded matrix per shape, handed out for every layer.
struct Synthetic {
    by_weight: Vec<usize>,
    list: Vec<(Format, Shape, Vec<Vec<u8>>)>,
}

impl Synthetic {
    fn new(program: &Program, format: Format) -> Synthetic {
        let mut s = Synthetic { by_weight: Vec::new(), list: Vec::new() };
        for spec in &program.weights {
            let wanted = if spec.role == Role::Vector { Format::Bf16 } else { format };
            let at = s.list.iter().position(|(f, shape, _)| *shape == spec.shape && *f == wanted);
            let at = at.unwrap_or_else(|| {
                let values = gaussian(spec.shape, spec.role);
                let parts =
                    wanted.codec().encode(spec.shape, &values).expect("Gaussian weights shrink");
                s.list.push((wanted, spec.shape, parts));
                s.list.len() - 1
            });
            s.by_weight.push(at);
        }
        s
    }
}

/// Gaussian weights of deviation 0.02, made of blocks of 65,536 draws at changing offsets.
fn gaussian(shape: Shape, role: Role) -> Vec<u16> {
    if role == Role::Vector {
        return vec![f32_to_bf16(1.0); shape.len() as usize];
    }
    let mut rng = Stream::new(shape.len());
    let pool: Vec<u16> = (0..1 << 20).map(|_| f32_to_bf16(0.02 * rng.normal())).collect();
    let mut values = Vec::with_capacity(shape.len() as usize);
    while (values.len() as u64) < shape.len() {
        let take = (shape.len() as usize - values.len()).min(1 << 16);
        let from = rng.below((1 << 20) - (1 << 16)) as usize;
        values.extend_from_slice(&pool[from..from + take]);
    }
    values
}

impl Weights for Synthetic {
    fn weight(&self, id: WeightId) -> Weight<'_> {
        let (format, shape, parts) = &self.list[self.by_weight[id.0 as usize]];
        let parts = Parts(parts.iter().map(Vec::as_slice).collect());
        Weight { format: *format, shape: *shape, parts }
    }
}

/// Bytes per second of plain reads of 8 GiB, and of 256 MiB.
fn read_bandwidth() -> Result<(f64, f64)> {
    let device = Device::open(0)?;
    let kernel = Library::load(&device)?.get("probe", "probe_read", false)?;
    let stream = device.stream()?;
    let memory = device.alloc(8 << 30)?;
    let out = device.alloc(1 << 16)?;
    memory.fill(&stream, 0x5a)?;
    let grid = (device.info().sms * 2, 1, 1);
    let mut speeds = Vec::new();
    for bytes in [8u64 << 30, 256 << 20] {
        let args = ReadArgs { data: memory.addr(), out: out.addr(), count: bytes / 16 };
        let (start, end) = (device.event()?, device.event()?);
        let mut best = f32::INFINITY;
        for _ in 0..5 {
            start.record(&stream)?;
            stream.launch(
                &kernel,
                &Launch { grid, block: 512, shared_bytes: 0, overlap: false },
                &args,
            )?;
            end.record(&stream)?;
            end.synchronize()?;
            best = best.min(end.ms_since(&start)?);
        }
        speeds.push(bytes as f64 / f64::from(best) * 1e3);
    }
    Ok((speeds[0], speeds[1]))
}

fn weights_of(op: &Op) -> Vec<WeightId> {
    match op {
        Op::Qkv { q, k, v, .. } => vec![q.w, k.w, v.w],
        Op::Proj { w, .. } => vec![w.w],
        Op::GateUp { gate, up, .. } => vec![gate.w, up.w],
        Op::Head { w, .. } => vec![*w],
        _ => Vec::new(),
    }
}

fn name(op: &Op) -> &'static str {
    match op {
        Op::Embed { .. } => "embed",
        Op::Qkv { .. } => "qkv",
        Op::Attend { .. } => "attend",
        Op::Proj { from: Buf::Context, .. } => "o proj",
        Op::Proj { .. } => "down",
        Op::GateUp { .. } => "gate_up",
        Op::Head { .. } => "head",
        Op::Sample => "sample",
    }
}

fn run(model: &str, json: &str, format: Format, portable: bool, peak: f64) -> Result<()> {
    let program = Arc::new(Program::read(json)?);
    let host = Synthetic::new(&program, format);
    let options = Options { index: 0, capacity: 40_000, portable };
    let start = Instant::now();
    let mut gpu = Cuda::new(program.clone(), &host, options, &|_, _| Ok(()))?;
    let load = start.elapsed().as_secs_f64();
    let ledger = gpu.ledger();
    let label = format!("{model} {format:?}{}", if portable { " portable" } else { "" });
    println!("\n{label}: weights {:.3} GB, load {load:.2} s", ledger.weights as f64 / 1e9);
    for n in [1u32, 8] {
        for kind in ["qkv", "o proj", "gate_up", "down", "head"] {
            let launches: Vec<Vec<WeightId>> =
                program.ops.iter().filter(|op| name(op) == kind).map(weights_of).collect();
            let shapes = launches[0].iter().map(|id| program.weight(*id).shape);
            let (rows, cols) = shapes.fold((0, 0), |(r, _), s| (r + s.rows, s.cols));
            let bytes: usize =
                launches[0].iter().flat_map(|id| host.weight(*id).parts.0).map(<[u8]>::len).sum();
            let us = f64::from(gpu.time_products(&launches, n, 4)?) * 1e3 / launches.len() as f64;
            let floor = bytes as f64 / peak * 1e6;
            println!(
                "  bare {rows:6} x {cols:5} n {n} {us:8.2} us  floor {floor:8.2}  {:5.1} %",
                100.0 * floor / us
            );
        }
        for kind in ["embed", "qkv", "attend", "o proj", "gate_up", "down", "head", "sample"] {
            let ops: Vec<Op> = program.ops.iter().filter(|op| name(op) == kind).cloned().collect();
            let bytes: u64 = ops
                .iter()
                .flat_map(weights_of)
                .map(|id| host.weight(id).parts.0.iter().map(|p| p.len() as u64).sum::<u64>())
                .sum();
            let us = f64::from(gpu.time(&ops, n, 0, 4)?) * 1e3 / ops.len() as f64;
            let floor = bytes as f64 / ops.len() as f64 / peak * 1e6;
            println!(
                "  n {n} {kind:8} {us:8.2} us  floor {floor:8.2}  {:5.1} %",
                100.0 * floor / us
            );
        }
    }
    let body: Vec<Op> = program
        .ops
        .iter()
        .filter(|op| weights_of(op).len() + 1 > 1 && name(op) != "head")
        .cloned()
        .collect();
    println!("  four matrices x layers: {:.3} ms", gpu.time(&body, 1, 0, 4)?);
    for depth in [0u32, 8192, 32_768] {
        let attend: Vec<Op> =
            program.ops.iter().filter(|op| name(op) == "attend").cloned().collect();
        let us = f64::from(gpu.time(&attend, 1, depth, 3)?) * 1e3 / attend.len() as f64;
        let tokens = decode(&mut gpu, &program, depth, 200)?;
        println!(
            "  depth {depth:6}: {tokens:7.1} tok/s  ({:.3} ms)  attend {us:.2} us a layer",
            1e3 / tokens
        );
    }
    let prompt: Vec<u32> = (0..2048).map(|i| i % 1000).collect();
    let seconds =
        (0..2).map(|_| prefill(&mut gpu, &program, &prompt)).collect::<Result<Vec<_>>>()?;
    println!(
        "  prefill 2048: {:.0} tok/s",
        2048.0 / seconds.into_iter().fold(f64::INFINITY, f64::min)
    );
    Ok(())
}

fn decode(gpu: &mut Cuda, program: &Program, depth: u32, count: u32) -> Result<f64> {
    gpu.set_sampling(&Sampling::default(), &[])?;
    let first = Step { input: Input::Tokens(&[1]), pos: depth, rows: Rows::Last, sample: true };
    gpu.run(program, &first)?;
    let mut pos = depth + 1;
    let mut queue = |gpu: &mut Cuda| -> Result<()> {
        let step = Step { input: Input::Last, pos, rows: Rows::Last, sample: true };
        pos += 1;
        gpu.run(program, &step)
    };
    for _ in 0..20 {
        queue(gpu)?;
        gpu.token()?;
    }
    let start = Instant::now();
    for _ in 0..count {
        queue(gpu)?;
        gpu.token()?;
    }
    let speed = f64::from(count) / start.elapsed().as_secs_f64();
    gpu.token()?;
    Ok(speed)
}

fn prefill(gpu: &mut Cuda, program: &Program, prompt: &[u32]) -> Result<f64> {
    let start = Instant::now();
    let mut logit = [0f32];
    for (i, piece) in prompt.chunks(512).enumerate() {
        let rows = if (i + 1) * 512 >= prompt.len() { Rows::Last } else { Rows::None };
        let step = Step { input: Input::Tokens(piece), pos: i as u32 * 512, rows, sample: false };
        gpu.run(program, &step)?;
    }
    gpu.read(Buf::Logits, &mut logit)?;
    Ok(start.elapsed().as_secs_f64())
}

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    for d in devices()? {
        println!("{} {} sm_{}{} {} SMs", d.name, d.uuid, d.capability.0, d.capability.1, d.sms);
    }
    let (peak, short) = read_bandwidth()?;
    println!("read 8 GiB: {:.3} TB/s, 256 MiB: {:.3} TB/s", peak / 1e12, short / 1e12);
    for (model, json) in MODELS {
        if wanted.is_empty() || wanted.iter().any(|w| w == model) {
            run(model, json, Format::Pairlut, false, peak)?;
            run(model, json, Format::Bf16, false, peak)?;
        }
    }
    if wanted.iter().any(|w| w == "portable") {
        run(MODELS[0].0, MODELS[0].1, Format::Pairlut, true, peak)?;
    }
    Ok(())
}
