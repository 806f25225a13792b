//! The CUDA backend against the CPU's, and against itself. Without a driver each test says so and passes;
//! `SNUG_REQUIRE_GPU=1` turns that into a failure where a GPU is promised.

use std::sync::Arc;

use snug::backend::cpu::{Cpu, Isa, Sampler};
use snug::backend::cuda::abi::FuncArgs;
use snug::backend::cuda::driver::cublas::Cublas;
use snug::backend::cuda::driver::{self, Device, Launch, check};
use snug::backend::cuda::kernels::Library;
use snug::backend::cuda::pack::Packer;
use snug::backend::cuda::{Cuda, Options};
use snug::backend::{Backend, Weight, Weights};
use snug::bench::kernels::{Bench, OPS, PRODUCTS, Timing};
use snug::codec::{Format, Parts, Shape};
use snug::error::{Error, Kind};
use snug::model::op::{Buf, Input, Op, Rows, Sampling, Step, WeightId};
use snug::model::program::{Program, Role};
use snug::num::{bf16_to_f32, f32_to_bf16, func, gamma, rng::Stream};

use super::codecs::adversaries::{ADVERSARIES, words};

/// Whether there is a GPU to test on.
fn gpu() -> bool {
    match check() {
        Ok(()) => true,
        Err(e) => {
            assert!(std::env::var_os("SNUG_REQUIRE_GPU").is_none(), "{e}");
            println!("skipped: {}", e.why);
            false
        }
    }
}

/// Weights in memory, in one format.
struct Memory(Vec<(Format, Shape, Vec<Vec<u8>>)>);

impl Weights for Memory {
    fn weight(&self, id: WeightId) -> Weight<'_> {
        let (format, shape, parts) = &self.0[id.0 as usize];
        let parts = Parts(parts.iter().map(Vec::as_slice).collect());
        Weight { format: *format, shape: *shape, parts }
    }
}

/// Values of every weight of a program, row-major bf16.
fn values(program: &Program, seed: u64) -> Vec<Vec<u16>> {
    let mut rng = Stream::new(seed);
    let mut list = Vec::new();
    for spec in &program.weights {
        let scale = match spec.role {
            Role::Vector => 0.1,
            _ => 1.0 / (spec.shape.cols as f32).sqrt(),
        };
        let one = if spec.role == Role::Vector && !spec.name.ends_with("bias") { 1.0 } else { 0.0 };
        list.push((0..spec.shape.len()).map(|_| f32_to_bf16(one + scale * rng.normal())).collect());
    }
    list
}

fn pack(program: &Program, values: &[Vec<u16>], format: Format) -> Arc<Memory> {
    let list = program.weights.iter().zip(values).map(|(spec, v)| {
        let format = if spec.role == Role::Vector { Format::Bf16 } else { format };
        match format.codec().encode(spec.shape, v) {
            Some(parts) => (format, spec.shape, parts),
            None => (Format::Bf16, spec.shape, Format::Bf16.codec().encode(spec.shape, v).unwrap()),
        }
    });
    Arc::new(Memory(list.collect()))
}

/// A config whose sizes fit nothing: rows not of 16, columns not of 64, one odd vocabulary.
fn program(
    head_dim: u32,
    heads: u32,
    kv_heads: u32,
    hidden: u32,
    ffn: u32,
    extra: &str,
) -> Arc<Program> {
    let json = format!(
        r#"{{"model_type": "llama", "hidden_size": {hidden}, "intermediate_size": {ffn}, "num_hidden_layers": 2,
        "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}, "head_dim": {head_dim}, "vocab_size": 4099,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": true{extra}}}"#
    );
    Arc::new(Program::read(&json).unwrap())
}

fn cuda(program: &Arc<Program>, weights: &Arc<Memory>, portable: bool) -> Cuda {
    let options = Options { index: 0, capacity: 2048, portable };
    let mut cuda = Cuda::new(program.clone(), &**weights, options, &|_, _| Ok(())).unwrap();
    cuda.poison(0xff).unwrap();
    cuda
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

fn first_difference(a: &[f32], b: &[f32]) -> Option<String> {
    assert_eq!(a.len(), b.len());
    let at = a.iter().zip(b).position(|(x, y)| x.to_bits() != y.to_bits())?;
    Some(format!("element {at} of {}: {} and {}", a.len(), a[at], b[at]))
}

#[test]
fn device_functions_have_the_host_s_bits() {
    if !gpu() {
        return;
    }
    let device = Device::open(0).unwrap();
    let library = Library::load(&device).unwrap();
    let kernel = library.get("probe", "probe_func", false).unwrap();
    let stream = device.stream().unwrap();
    let mut rng = Stream::new(11);
    let mut x: Vec<f32> = (0..200_000).map(|_| f32::from_bits(rng.next_u64() as u32)).collect();
    x.extend((0..200_000).map(|_| rng.normal() * 20.0));
    x.extend([
        0.0,
        -0.0,
        1.0,
        -1.0,
        88.722_84,
        88.73,
        -104.0,
        -103.9,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ]);
    let input = device.alloc(x.len() as u64 * 4).unwrap();
    let output = device.alloc(x.len() as u64 * 4).unwrap();
    input.write(0, bytemuck::cast_slice(&x)).unwrap();
    let bf16 = |v: f32| bf16_to_f32(f32_to_bf16(v));
    type Function = fn(f32) -> f32;
    let list: [(u32, Function); 5] =
        [(0, func::exp), (1, func::silu), (2, func::tanh), (3, func::gelu_tanh), (4, bf16)];
    for (id, host) in list {
        output.fill(&stream, 0xff).unwrap();
        let args =
            FuncArgs { x: input.addr(), out: output.addr(), count: x.len() as u32, func: id };
        let grid = ((x.len() as u32).div_ceil(256), 1, 1);
        stream
            .launch(&kernel, &Launch { grid, block: 256, shared_bytes: 0, overlap: false }, &args)
            .unwrap();
        stream.synchronize().unwrap();
        let mut got = vec![0f32; x.len()];
        output.read(0, bytemuck::cast_slice_mut(&mut got)).unwrap();
        for (i, (got, x)) in got.iter().zip(&x).enumerate() {
            let want = host(*x);
            let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
            assert!(same, "function {id}, input {i} = {x:e}: {got:e} on the device, {want:e} here");
        }
    }
}

/// One op on a step of `n` tokens whose input buffer is given.
fn run_op(
    cuda: &mut Cuda,
    op: &Op,
    n: usize,
    pos: u32,
    set: &[(Buf, &[f32])],
    get: Buf,
    len: usize,
) -> Vec<f32> {
    let tokens = vec![1u32; n];
    let step = Step { input: Input::Tokens(&tokens), pos, rows: Rows::Last, sample: false };
    cuda.exec(&Op::Embed { table: WeightId(0) }, &step).unwrap();
    for (buf, data) in set {
        cuda.write(*buf, data).unwrap();
    }
    cuda.exec(op, &step).unwrap();
    let mut out = vec![0f32; len];
    cuda.read(get, &mut out).unwrap();
    out
}

/// Products: packed and bf16 bits equal, whatever the batch width and path; and within the float64 bound.
#[test]
fn products_are_twins_within_their_bound() {
    if !gpu() {
        return;
    }
    let mut worst = 0f64;
    for (head_dim, heads, kv, hidden, ffn) in [
        (64, 3, 1, 192, 1000),
        (128, 4, 2, 576, 1536),
        (96, 2, 1, 320, 712),
        (128, 8, 2, 4096, 2048 + 40),
    ] {
        let program = program(head_dim, heads, kv, hidden, ffn, "");
        let values = values(&program, 5);
        let down =
            program.ops.iter().find(|op| matches!(op, Op::Proj { from: Buf::Hidden, .. })).unwrap();
        let Op::Proj { w, .. } = down else { unreachable!() };
        let mut rng = Stream::new(9);
        let x: Vec<f32> = (0..8 * ffn).map(|_| bf16_to_f32(f32_to_bf16(rng.normal()))).collect();
        let zero = vec![0f32; (8 * hidden) as usize];
        let mut reference: Option<Vec<f32>> = None;
        for format in [Format::Bf16, Format::Pairlut] {
            let weights = pack(&program, &values, format);
            for portable in [false, true] {
                let mut cuda = cuda(&program, &weights, portable);
                for n in 1..=8usize {
                    let set = [
                        (Buf::Hidden, &x[..n * ffn as usize]),
                        (Buf::Residual, &zero[..n * hidden as usize]),
                    ];
                    let got =
                        run_op(&mut cuda, down, n, 0, &set, Buf::Residual, n * hidden as usize);
                    if let Some(full) = &reference {
                        let what = format!("{format:?} portable {portable} n {n} hidden {hidden}");
                        assert_eq!(first_difference(&got, &full[..got.len()]), None, "{what}");
                    }
                    if n == 8 && reference.is_none() {
                        worst = worst.max(ratio_to_bound(
                            &values[w.w.0 as usize],
                            &x,
                            &got,
                            hidden,
                            ffn,
                        ));
                        reference = Some(got);
                    }
                }
            }
        }
        let full = reference.unwrap();
        let mut first = cuda(&program, &pack(&program, &values, Format::Bf16), false);
        let set = [(Buf::Hidden, &x[..ffn as usize]), (Buf::Residual, &zero[..hidden as usize])];
        let one = run_op(&mut first, down, 1, 0, &set, Buf::Residual, hidden as usize);
        assert_eq!(first_difference(&one, &full[..one.len()]), None);
    }
    println!("largest share of the bound: {worst:.3}");
    assert!(worst < 1.0);
}

/// max |got − exact| / (γ_n · Σ|w||x|) over all outputs.
fn ratio_to_bound(w: &[u16], x: &[f32], got: &[f32], rows: u32, cols: u32) -> f64 {
    let mut worst = 0f64;
    for (token, y) in got.chunks(rows as usize).enumerate() {
        let x = &x[token * cols as usize..][..cols as usize];
        for (row, got) in y.iter().enumerate() {
            let (mut sum, mut size) = (0f64, 0f64);
            for (w, x) in w[row * cols as usize..][..cols as usize].iter().zip(x) {
                let product = f64::from(bf16_to_f32(*w)) * f64::from(*x);
                sum += product;
                size += product.abs();
            }
            worst = worst.max((f64::from(*got) - sum).abs() / (gamma(cols as usize) * size));
        }
    }
    worst
}

fn logits(backend: &mut dyn Backend, program: &Program, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut pos = 0;
    let mut out = vec![0f32; program.config.vocab as usize];
    for (i, piece) in tokens.chunks(chunk).enumerate() {
        let last = (i + 1) * chunk >= tokens.len();
        let rows = if last { Rows::Last } else { Rows::None };
        let step = Step { input: Input::Tokens(piece), pos, rows, sample: false };
        backend.run(program, &step).unwrap();
        pos += piece.len() as u32;
    }
    backend.read(Buf::Logits, &mut out).unwrap();
    out
}

fn relative(a: &[f32], b: &[f32]) -> f32 {
    let size = b.iter().fold(0f32, |m, v| m.max(v.abs()));
    a.iter()
        .zip(b)
        .fold(0f32, |m, (x, y)| if x.is_nan() { f32::INFINITY } else { m.max((x - y).abs()) })
        / size
}

/// Whole models: packed = bf16 bits, chunks of 1 and 7 alike, wide chunks and the CPU close.
#[test]
fn whole_models_agree() {
    if !gpu() {
        return;
    }
    let window = r#", "sliding_window": 100, "model_type": "mistral""#;
    let bias = r#", "attention_bias": true, "mlp_bias": true"#;
    for (head_dim, heads, kv, hidden, ffn, extra) in [
        (64, 9, 3, 576, 1536, ""),
        (128, 4, 1, 320, 712, bias),
        (96, 4, 2, 256, 500, ""),
        (256, 2, 1, 512, 1024, ""),
        (64, 16, 1, 192, 640, window),
    ] {
        let extra = extra.replace(r#", "model_type": "mistral""#, "");
        let program = program(head_dim, heads, kv, hidden, ffn, &extra);
        let values = values(&program, u64::from(hidden));
        let mut rng = Stream::new(3);
        let tokens: Vec<u32> = (0..700).map(|_| rng.below(4099)).collect();
        let (packed, plain) =
            (pack(&program, &values, Format::Pairlut), pack(&program, &values, Format::Bf16));
        let mut cpu = Cpu::new(program.clone(), packed.clone(), 2048, Some(2)).unwrap();
        for len in [1usize, 7, 63, 64, 65, 257, 700] {
            let prompt = &tokens[..len];
            let want = logits(&mut cpu, &program, prompt, 128);
            let mut first: Option<Vec<f32>> = None;
            for (weights, portable) in
                [(&packed, false), (&plain, false), (&packed, true), (&plain, true)]
            {
                let mut gpu = cuda(&program, weights, portable);
                let sevens = logits(&mut gpu, &program, prompt, 7);
                let what = format!("head_dim {head_dim} len {len} portable {portable}");
                let far = relative(&sevens, &want);
                assert!(far < 0.03, "{what}: {far} from the CPU");
                if let Some(first) = &first {
                    assert_eq!(first_difference(&sevens, first), None, "{what}: packed and bf16");
                }
                if len <= 65 {
                    let ones = logits(&mut gpu, &program, prompt, 1);
                    assert_eq!(first_difference(&ones, &sevens), None, "{what}: chunks of 1 and 7");
                }
                let wide = logits(&mut gpu, &program, prompt, 300);
                let far = relative(&wide, &want);
                assert!(far < 0.03, "{what}: wide chunks {far} from the CPU");
                first = Some(sevens);
            }
        }
    }
}

/// A replayed graph gives the bits of ops one by one, twice.
#[test]
fn replayed_steps_equal_single_ops() {
    if !gpu() {
        return;
    }
    let program = program(64, 9, 3, 576, 1536, "");
    let weights = pack(&program, &values(&program, 1), Format::Pairlut);
    let sampling = Sampling {
        temperature: 0.9,
        top_p: 0.95,
        seed: 7,
        repeat_penalty: 1.1,
        ..Sampling::default()
    };
    let prompt = [5u32, 6, 7, 8, 9];
    let mut runs = Vec::new();
    for (eager, portable) in [(false, false), (true, false), (false, false), (false, true)] {
        let mut gpu = cuda(&program, &weights, portable);
        gpu.set_sampling(&sampling, &[]).unwrap();
        let step = Step { input: Input::Tokens(&prompt), pos: 0, rows: Rows::Last, sample: true };
        gpu.run(&program, &step).unwrap();
        let mut tokens = Vec::new();
        for pos in 5..205u32 {
            let step = Step { input: Input::Last, pos, rows: Rows::Last, sample: true };
            match eager {
                true => program.ops.iter().try_for_each(|op| gpu.exec(op, &step)).unwrap(),
                false => gpu.run(&program, &step).unwrap(),
            }
            tokens.push(gpu.token().unwrap());
        }
        let mut last = vec![0f32; 4099];
        gpu.read(Buf::Logits, &mut last).unwrap();
        runs.push((tokens, bits(&last)));
    }
    assert_eq!(runs[0], runs[1], "graph and single ops");
    assert_eq!(runs[0], runs[2], "two runs");
    assert_eq!(runs[0], runs[3], "bulk copies and portable kernels");
}

/// The device chooses the token that the CPU's sampler chooses, for any logits and rule.
#[test]
fn sampling_is_the_cpu_s() {
    if !gpu() {
        return;
    }
    let program = program(64, 3, 1, 192, 256, "");
    let weights = pack(&program, &values(&program, 1), Format::Bf16);
    let mut gpu = cuda(&program, &weights, false);
    let mut rng = Stream::new(21);
    for case in 0..300u32 {
        let spread = [0.1f32, 1.0, 5.0, 30.0][case as usize % 4];
        let mut logits: Vec<f32> = (0..4099).map(|_| rng.normal() * spread).collect();
        for _ in 0..rng.below(200) {
            let (a, b) = (rng.below(4099) as usize, rng.below(4099) as usize);
            logits[a] = logits[b];
        }
        if case % 5 == 0 {
            logits[7] = f32::NAN;
            logits[8] = f32::NEG_INFINITY;
        }
        let pick = |rng: &mut Stream, list: &[f32]| list[rng.below(list.len() as u32) as usize];
        let sampling = Sampling {
            temperature: pick(&mut rng, &[0.0, 0.3, 0.8, 1.0, 2.5]),
            top_k: [0, 1, 2, 40, 5000][rng.below(5) as usize],
            top_p: pick(&mut rng, &[0.0, 0.1, 0.5, 0.9, 1.0]),
            min_p: pick(&mut rng, &[0.0, 0.0, 0.05, 0.5, 1.0]),
            repeat_penalty: pick(&mut rng, &[1.0, 1.0, 1.3]),
            repeat_last_n: [0, 3, 64][rng.below(3) as usize],
            presence_penalty: pick(&mut rng, &[0.0, 0.5]),
            frequency_penalty: pick(&mut rng, &[0.0, 0.2]),
            logit_bias: if case % 3 == 0 {
                vec![(3, 2.0), (3, 1.0), (9, -4.0)]
            } else {
                Vec::new()
            },
            seed: rng.next_u64(),
        };
        let history: Vec<u32> = (0..rng.below(90) + 2).map(|_| rng.below(50)).collect();
        let (cached, step_tokens) = history.split_at(history.len() - 2);
        let mut cpu = Sampler::new(Isa::best(), 4099);
        cpu.set(&sampling).unwrap();
        let want = cpu.choose(&logits, &history, history.len() as u64).unwrap();
        gpu.set_sampling(&sampling, cached).unwrap();
        let pos = cached.len() as u32;
        let step = Step { input: Input::Tokens(step_tokens), pos, rows: Rows::Last, sample: true };
        gpu.exec(&program.ops[0], &step).unwrap();
        gpu.write(Buf::Logits, &logits).unwrap();
        gpu.exec(&Op::Sample, &step).unwrap();
        assert_eq!(gpu.token().unwrap(), want, "case {case}: {sampling:?}");
    }
    let step = Step { input: Input::Tokens(&[1]), pos: 0, rows: Rows::Last, sample: true };
    gpu.set_sampling(&Sampling::default(), &[]).unwrap();
    gpu.exec(&program.ops[0], &step).unwrap();
    gpu.write(Buf::Logits, &[f32::NAN; 4099]).unwrap();
    gpu.exec(&Op::Sample, &step).unwrap();
    assert!(gpu.token().is_err(), "no number among the logits");
}

/// Packs on the device and compares every byte with what the encoder writes.
fn pack_alike(device: &Device, packer: &mut Packer, shape: Shape, words: &[u16], what: &str) {
    let stream = device.stream().unwrap();
    let rows = device.alloc(2 * shape.len()).unwrap();
    rows.write(0, bytemuck::cast_slice(words)).unwrap();
    let got = packer.pack(device, &stream, shape, rows.addr()).unwrap();
    let want = Format::Pairlut.codec().encode(shape, words);
    let what = format!("{what}, {} x {}", shape.rows, shape.cols);
    let (Some(got), Some(want)) = (&got, &want) else {
        assert_eq!(got.is_some(), want.is_some(), "{what}: packed at all");
        return;
    };
    let bytes = |memory: &driver::Memory| {
        let mut bytes = vec![0; memory.bytes() as usize];
        memory.read(0, &mut bytes).unwrap();
        bytes
    };
    let parts = [
        ("index", bytes(got.index.as_ref().unwrap()), &want[1]),
        ("records", bytes(&got.data), &want[0]),
    ];
    for (part, got, want) in parts {
        assert_eq!(got.len(), want.len(), "{what}: bytes of {part}");
        let at = got.iter().zip(want).position(|(a, b)| a != b);
        assert_eq!(
            at.map(|i| (i, got[i], want[i])),
            None,
            "{what}: first byte of {part} that differs"
        );
    }
    let starts: Vec<u32> = bytemuck::cast_slice::<u8, u32>(&want[1]).to_vec();
    let largest = starts.windows(2).map(|w| w[1] - w[0]).max().unwrap();
    assert_eq!(got.slot_bytes, 16 * largest, "{what}: largest record");
}

#[test]
fn packing_is_the_encoder_s_byte_for_byte() {
    if !gpu() {
        return;
    }
    let device = Device::open(0).unwrap();
    let library = Library::load(&device).unwrap();
    let mut packer = Packer::new(&device, &library).unwrap();
    let mut rng = Stream::new(17);
    let shapes = [
        (1, 1),
        (16, 256),
        (17, 65),
        (33, 257),
        (5, 70),
        (48, 320),
        (64, 1000),
        (130, 8),
        (200, 72),
    ];
    for (rows, cols) in shapes {
        let shape = Shape { rows, cols };
        for adversary in ADVERSARIES {
            pack_alike(&device, &mut packer, shape, &words(shape, adversary), adversary.1);
        }
    }
    let all: Vec<u16> = (0..=u16::MAX).collect();
    pack_alike(&device, &mut packer, Shape { rows: 256, cols: 256 }, &all, "every pattern");
    // Under a sanitizer, which is some hundred times slower, a few cases will do.
    let sanitized = std::env::var_os("SANITIZE").is_some();
    for case in 0..if sanitized { 8 } else { 200 } {
        let shape = Shape { rows: 1 + rng.below(90), cols: 1 + rng.below(1300) };
        let (usual, strays) = (2f32.powi(rng.below(40) as i32 - 20), rng.below(3) * rng.below(60));
        let values = (0..shape.len()).map(|_| match rng.below(1000) < strays {
            true => rng.next_u64() as u16,
            false => f32_to_bf16(usual * rng.normal()),
        });
        let values: Vec<u16> = values.collect();
        pack_alike(&device, &mut packer, shape, &values, &format!("case {case}"));
    }
    if sanitized {
        return;
    }
    // Many records: the sums over sizes run through several rounds.
    let shape = Shape { rows: 16 * 3000, cols: 1024 };
    let some: Vec<u16> = (0..1 << 16).map(|_| f32_to_bf16(0.02 * rng.normal())).collect();
    let values: Vec<u16> =
        (0..shape.len() as usize).map(|i| some[(i * 7 + i / 999) % some.len()]).collect();
    pack_alike(&device, &mut packer, shape, &values, "12,000 records");
}

/// bf16 weights that are to be packed become, on the way, what packed weights are.
struct Unpacked(Arc<Memory>);

impl Weights for Unpacked {
    fn weight(&self, id: WeightId) -> Weight<'_> {
        self.0.weight(id)
    }

    fn to_be_packed(&self) -> bool {
        true
    }
}

#[test]
fn packing_while_loading_changes_nothing() {
    if !gpu() {
        return;
    }
    let program = program(64, 9, 3, 576, 1536, "");
    let values = values(&program, 8);
    let (packed, plain) =
        (pack(&program, &values, Format::Pairlut), pack(&program, &values, Format::Bf16));
    let options = Options { capacity: 2048, ..Options::default() };
    let mut late = Cuda::new(program.clone(), &Unpacked(plain), options, &|_, _| Ok(())).unwrap();
    let mut early = cuda(&program, &packed, false);
    assert_eq!(late.ledger().weights, early.ledger().weights);
    let prompt: Vec<u32> = (0..40).collect();
    for chunk in [1, 7, 40] {
        let (a, b) = (
            logits(&mut late, &program, &prompt, chunk),
            logits(&mut early, &program, &prompt, chunk),
        );
        assert_eq!(first_difference(&a, &b), None, "chunks of {chunk}");
    }
}

/// A load ends where it is told to, and what cannot fit is refused; either leaves nothing on the device.
#[test]
fn loading_stops_when_told_and_refuses_what_does_not_fit() {
    if !gpu() {
        return;
    }
    let program = program(128, 8, 4, 2048, 8192, "");
    let weights = pack(&program, &values(&program, 1), Format::Bf16);
    // What a context takes by itself is there before and after.
    let device = Device::open(0).unwrap();
    let before = device.memory().unwrap().0;
    let options = Options { capacity: 2048, ..Options::default() };
    let stop = || Error::new(Kind::Interrupted, "stopped", "enough", "go on");
    for after in [0, 1, 5] {
        let calls = std::cell::Cell::new(0);
        let told = |_, _| {
            calls.set(calls.get() + 1);
            if calls.get() > after { Err(stop()) } else { Ok(()) }
        };
        let error = Cuda::new(program.clone(), &*weights, options, &told).map(drop).unwrap_err();
        assert_eq!(error, stop(), "after {after} calls");
        assert_eq!(calls.get(), after + 1, "nothing is asked again");
    }
    let large = Options { capacity: u32::MAX / 2, ..options };
    let error = Cuda::new(program.clone(), &*weights, large, &|_, _| Ok(())).map(drop).unwrap_err();
    assert_eq!(error.kind, Kind::DoesNotFit, "{error}");
    assert!(error.why.contains("GiB are missing"), "{error}");
    let after = device.memory().unwrap().0;
    assert!(before.abs_diff(after) <= 64 << 20, "{before} bytes free before, {after} after");
}

/// The peer multiplies what we multiply, and the bench's rows are about the launches that it made.
#[test]
fn what_is_timed_is_what_is_said() {
    if !gpu() {
        return;
    }
    let device = Device::open(0).unwrap();
    let stream = device.stream().unwrap();
    if let Some(blas) = Cublas::open(&device, &stream).unwrap() {
        let (rows, cols, n) = (200u32, 72u32, 3u32);
        let mut rng = Stream::new(4);
        let mut memory = |len: u32| {
            let words: Vec<u16> = (0..len).map(|_| f32_to_bf16(rng.normal())).collect();
            let memory = device.alloc(2 * u64::from(len)).unwrap();
            memory.write(0, bytemuck::cast_slice(&words)).unwrap();
            (words, memory)
        };
        let ((w, on_w), (x, on_x)) = (memory(rows * cols), memory(n * cols));
        let y = device.alloc(2 * u64::from(n * rows)).unwrap();
        blas.multiply(&stream, &on_w, &on_x, &y, (rows, cols, n)).unwrap();
        stream.synchronize().unwrap();
        let mut got = vec![0u16; (n * rows) as usize];
        y.read(0, bytemuck::cast_slice_mut(&mut got)).unwrap();
        for (i, got) in got.iter().enumerate() {
            let (token, row) = (i / rows as usize, i % rows as usize);
            let at =
                |v: &[u16], r: usize, c: usize| f64::from(bf16_to_f32(v[r * cols as usize + c]));
            let want: f64 = (0..cols as usize).map(|c| at(&w, row, c) * at(&x, token, c)).sum();
            let far = (f64::from(bf16_to_f32(*got)) - want).abs();
            assert!(
                far < 0.01 * want.abs() + 0.01,
                "token {token}, row {row}: {got:#06x}, not {want}"
            );
        }
    } else {
        println!("no cuBLAS: the peer was not checked");
    }
    let program = program(64, 9, 3, 576, 1536, "");
    let weights = pack(&program, &values(&program, 2), Format::Pairlut);
    let mut gpu = cuda(&program, &weights, false);
    let mut bench = Bench::new(&mut gpu, &program, &*weights, device.info().l2_bytes);
    for n in [1, 8] {
        let (products, ops) = (bench.products(n).unwrap(), bench.ops(&OPS, n, 100).unwrap());
        let names = |rows: &[Timing]| rows.iter().map(|t| t.kernel).collect::<Vec<_>>();
        assert_eq!(names(&products), PRODUCTS);
        assert_eq!(names(&ops), OPS);
        assert_eq!(products[0].shape, Some(Shape { rows: (9 + 2 * 3) * 64, cols: 576 }));
        assert_eq!(products[2].shape, Some(Shape { rows: 2 * 1536, cols: 576 }));
        for t in products.iter().chain(&ops) {
            assert!(t.us > 0.0 && t.us < 1e6 && t.n == n, "{t:?}");
        }
        // Two layers: keys and values of three heads in bf16, a layer.
        assert_eq!(ops[2].bytes, u64::from(100 + n) * 2 * 3 * 64 * 2);
        for (a, b) in products.iter().zip(ops.iter().filter(|t| PRODUCTS.contains(&t.kernel))) {
            assert_eq!((a.kernel, a.bytes, a.shape), (b.kernel, b.bytes, b.shape));
            assert!(a.bytes > 0);
        }
    }
}

/// What is held is what the driver misses.
#[test]
fn the_ledger_matches_the_driver() {
    if !gpu() {
        return;
    }
    let before = Device::open(0).unwrap().memory().unwrap().0;
    let program = program(128, 8, 4, 2048, 8192, "");
    let weights = pack(&program, &values(&program, 1), Format::Pairlut);
    let gpu = cuda(&program, &weights, false);
    let l = gpu.ledger();
    let held = l.weights + l.kv_reserved + l.scratch + l.context;
    let missing = before - Device::open(0).unwrap().memory().unwrap().0;
    let slack = (missing / 100).max(64 << 20);
    assert!(held.abs_diff(missing) <= slack, "ledger {held}, driver {missing}");
}
