//! Speed on a GPU: kernels of a synthetic model against memory and cuBLAS, and tokens a second at several depths.
//!
//! `cargo bench --bench gpu -- [llama-3.1-8b | llama-3.2-1b | qwen3-8b] [portable]`. The same measurements as `snug bench
//! kernels` and `snug bench`, as one table that `benches/gpu.sh` prints on a machine without cargo.

use std::sync::Arc;
use std::time::{Duration, Instant};

use snug::backend::Backend;
use snug::backend::cuda::driver::{Device, devices};
use snug::backend::cuda::{Cuda, Options};
use snug::bench::bandwidth;
use snug::bench::kernels::{self, Bench, OPS, Peer, Timing, packing, shapes};
use snug::bench::speed::{Runner, Test};
use snug::bench::synthetic::{Synthetic, shape};
use snug::codec::Format;
use snug::error::Result;
use snug::model::op::Op;
use snug::model::program::Program;

const WIDTHS: [u32; 2] = [1, 8];
const DEPTHS: [u32; 3] = [0, 8192, 32_768];

fn print(t: &Timing, peak: f64, peers: &[Peer]) {
    let size = t.shape.map_or(String::new(), |s| format!("{} x {}", s.rows, s.cols));
    let peer = peers.iter().find(|p| Some(p.shape) == t.shape && p.n == t.n);
    let peer = peer.map_or(String::new(), |p| {
        format!("   cuBLAS bf16 {:7.2} us, {:.2} times as fast", p.us, p.us / t.us)
    });
    println!(
        "  n {} {:8} {size:14} {:8.2} us  floor {:8.2}  {:5.1} %{peer}",
        t.n,
        t.kernel,
        t.us,
        t.bytes as f64 / peak * 1e6,
        100.0 * t.rate() / peak
    );
}

fn run(
    model: &str,
    program: &Arc<Program>,
    format: Format,
    portable: bool,
    peak: f64,
    peers: &[Peer],
) -> Result<()> {
    let device = Device::open(0)?;
    let host = Synthetic::new(program, format);
    let options = Options { capacity: 40_000, ..Options::default() };
    let options = Options { portable, ..options };
    let start = Instant::now();
    let mut gpu = Cuda::new(program.clone(), &host, options, &|_, _| Ok(()))?;
    let load = start.elapsed().as_secs_f64();
    let ledger = gpu.ledger();
    let label = format!("{model} {format:?}{}", if portable { " portable" } else { "" });
    println!("\n{label}: weights {:.3} GB, load {load:.2} s", ledger.weights as f64 / 1e9);
    let mut bench = Bench::new(&mut gpu, program, &host, device.info().l2_bytes);
    for n in WIDTHS {
        println!("  bare products");
        bench.products(n)?.iter().for_each(|t| print(t, peak, peers));
        println!("  ops");
        bench.ops(&OPS, n, 0)?.iter().for_each(|t| print(t, peak, &[]));
    }
    let inside: Vec<Op> = program
        .ops
        .iter()
        .filter(|op| ["qkv", "o", "gate_up", "down"].contains(&kernels::name(op)))
        .cloned()
        .collect();
    println!("  four matrices x layers: {:.3} ms", gpu.time(&inside, 1, 0, 4)?);
    for depth in DEPTHS {
        let attend = Bench::new(&mut gpu, program, &host, 0).ops(&["attend"], 1, depth)?;
        let tokens = speed(&mut gpu, program, Test { prompt: 0, generate: 200, depth })?;
        println!(
            "  depth {depth:6}: {tokens:7.1} tok/s  ({:.3} ms)  attend {:.2} us a layer",
            1e3 / tokens,
            attend.first().map_or(0.0, |t| t.us)
        );
    }
    let tokens = speed(&mut gpu, program, Test { prompt: 2048, generate: 0, depth: 0 })?;
    println!("  prefill 2048: {tokens:.0} tok/s");
    Ok(())
}

/// Tokens a second, the best of three.
fn speed(gpu: &mut Cuda, program: &Program, test: Test) -> Result<f64> {
    let times = Runner::new(gpu, program, &|| Ok(())).run(test, 1, 3)?;
    let best = times.into_iter().min().unwrap_or(Duration::MAX);
    Ok(f64::from(test.tokens()) / best.as_secs_f64())
}

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    for d in devices()? {
        println!("{} {} sm_{}{} {} SMs", d.name, d.uuid, d.capability.0, d.capability.1, d.sms);
    }
    let speeds = bandwidth::gpu(0, &[8 << 30, 256 << 20])?;
    let peak = speeds[0].1;
    println!("read 8 GiB: {:.3} TB/s, 256 MiB: {:.3} TB/s", peak / 1e12, speeds[1].1 / 1e12);
    let named = wanted.iter().find_map(|name| Some((name.as_str(), shape(name)?)));
    let (model, config) =
        named.or(shape("llama-3.1-8b").map(|c| ("llama-3.1-8b", c))).expect("a shape");
    let program = Arc::new(Program::read(config)?);
    let device = Device::open(0)?;
    let peers = match kernels::peer(&device, &shapes(&program), &WIDTHS)? {
        Some((version, peers)) => {
            println!("cuBLAS {version}");
            peers
        }
        None => {
            println!("cuBLAS: not installed (LD_LIBRARY_PATH)");
            Vec::new()
        }
    };
    for shape in shapes(&program) {
        let t = packing(&device, shape)?;
        println!(
            "pack {} x {}: {:.0} us, {:.0} GB/s of bf16",
            shape.rows,
            shape.cols,
            t.us,
            t.rate() / 1e9
        );
    }
    drop(device);
    run(model, &program, Format::Pairlut, false, peak, &peers)?;
    run(model, &program, Format::Bf16, false, peak, &peers)?;
    if wanted.iter().any(|w| w == "portable") {
        run(model, &program, Format::Pairlut, true, peak, &peers)?;
    }
    Ok(())
}
